"""Biases of quantized layers: one for each, and its mean error measured and taken out."""
