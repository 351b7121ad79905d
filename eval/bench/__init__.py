"""`benchmark`: methods compared on the same prompts and seeds, and sweeps of them."""
