"""LiteRT on the CPU: the interpreter of TensorFlow Lite models, with XNNPACK's kernels.

Options of the script:

* ``reference``: the interpreter's plain kernels in place of its fast ones, XNNPACK's among them.
"""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime(
    "litert", "LiteRT", ("ai-edge-litert",), options={"reference": False}, timed=True, ending=".tflite", steps=2
)
