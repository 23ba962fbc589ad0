"""Algorithms that change weights, biases or ranges of a quantized model, a small file each."""
