"""Biases of quantized layers: one for each, its mean error measured and taken out, and which are fitted already."""
