"""What `check.sh` runs: whether a GPU draws the CPU's tokens, and how long its rounds take."""
