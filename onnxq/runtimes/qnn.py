"""Qualcomm's HTP through onnxruntime-qnn; on x86-64 Linux the package emulates the HTP and compiles for it.

Options of the script:

* ``fallback``: nodes that the HTP does not take run on onnxruntime's CPU kernels; else one such node is an error.
* ``arch``, ``soc``: HTP architecture and SoC model of the provider's options, empty for its default, which is the
  oldest, 68. It computes 16 bits less precisely than 73, that of the Snapdragon 8 Gen 2 (SoC 43), and those after it.
  Operators that stay float among integer ones it compiles, in half precision, only where the SoC is named; else it
  refuses the whole model ("Failed to finalize QNN graph").
* ``context``: path of a context model ``*_ctx.onnx`` to write, with its binary ``*_qnn.bin`` beside it: the graph
  compiled for the HTP, which a device loads without compiling.
* ``dlc``: folder to write a ``.dlc`` into (QAIRT's own container). The provider then makes nothing to run: no outputs.

Free dimensions of the model's inputs are fixed to those of the first sample.

Verified with onnxruntime-qnn 2.7.0 (QNN 2.51) and onnxruntime 1.31.1 on x86-64 Linux.
"""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime(
    "qnn",
    "onnxruntime-qnn (HTP)",
    ("onnxruntime-qnn", "onnxruntime", "onnx"),
    options={"fallback": False, "arch": "73", "soc": "43", "context": "", "dlc": ""},
    one_shape=True,
    in_parts={"fallback": True},  # a part may be one DequantizeLinear, which no HTP graph begins and ends with
)
