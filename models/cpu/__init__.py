"""Kernels in C++ for CPUs: built on first use, run instead of a layer's own steps."""
