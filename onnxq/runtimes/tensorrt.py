"""TensorRT-RTX: parses a model and compiles it ahead of time for a GPU, on any x86-64 CPU. It computes nothing here."""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime(
    "tensorrt",
    "TensorRT-RTX",
    ("tensorrt-rtx-cu12-libs==1.7.1.116", "tensorrt-rtx-cu12-bindings==1.7.1.116"),
    runs=False,
    options={"capability": "SM86"},
)
"""Option ``capability``: which GPU it compiles for, SM75, SM80, SM86, SM89, SM120 or SM121; FP8 exists from SM89 on,
FP4 from SM120."""
