"""The graph engine: load, check, normalize and save ONNX models; it knows nothing of quantization.

A pass is one file with one function that changes an ``onnx_ir.Model`` in place and returns the notes of what it did
and what it left alone. ``normalize.normalize`` is the list of them.
"""
