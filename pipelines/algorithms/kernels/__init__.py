"""Numba compilation, byte scanning, hash mixing and union-find that the kernels share."""
