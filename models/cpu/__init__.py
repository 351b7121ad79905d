"""Kernels in C++ for CPUs: built on first use, run in place of a layer's own steps."""
