"""The way back: files of quantized models, and tables of numbers, become a Quantized again."""
