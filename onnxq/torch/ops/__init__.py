"""ONNX operators as torch computes them, a family a file."""
