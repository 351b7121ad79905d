"""The speculative decoding loop: draft, verify, commit; trees, KV cache, noise and rules."""
