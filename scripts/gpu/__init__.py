"""What scripts/gpu/check.sh runs: correctness and speed on a CUDA machine, in parts."""
