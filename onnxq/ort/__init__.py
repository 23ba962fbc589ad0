"""onnxruntime: the one place that opens it, and what its messages and types need."""
