"""hls4ml: the C++ that it writes for Vitis HLS, compiled with g++ and run; nothing is synthesized.

The script does what hls4ml's users do before it: qonnx's ``cleanup``, ``ConvertToChannelsLastAndClean`` and
``GemmToMatMul``. Made for nets of some thousand weights: compiling takes seconds for these, and minutes for others.

Options of the script:

* ``precision``: of numbers that no quantizer gives a type.
* ``io_type``: ``"io_parallel"`` or ``"io_stream"``.
"""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime(
    "hls4ml",
    "hls4ml",
    ("hls4ml", "qonnx"),
    options={"precision": "fixed<32,16>", "io_type": "io_parallel"},
    one_shape=True,
)
