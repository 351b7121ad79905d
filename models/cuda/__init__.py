"""Kernels in Triton for NVIDIA GPUs: attention, and the steps between matrix products."""
