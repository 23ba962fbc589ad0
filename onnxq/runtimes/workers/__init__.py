"""Scripts that drive runtimes, run by any Python interpreter; none imports onnxq."""
