"""Grids whose steps are not even: 8-bit floating point, and powers of a root of two."""
