"""Qualcomm's encodings as aimet-onnx reads them: it writes them into the model as Q and DQ, which onnxruntime runs.

This checks the format, the names and the numbers of an encodings file with Qualcomm's own parser; it is no SNPE.
Verified with aimet-onnx 2.42.0 (needs torch), onnxruntime 1.31.1.
"""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime("snpe", "aimet-onnx (encodings)", ("torch==2.13.0", "aimet-onnx", "onnxruntime", "onnx"))
