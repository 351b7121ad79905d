"""Methods compared on the same prompts and seeds."""
