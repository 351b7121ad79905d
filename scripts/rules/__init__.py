"""The rules of acceptance, enumerated and sampled: which keep the target's distribution."""
