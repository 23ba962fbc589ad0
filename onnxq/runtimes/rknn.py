"""RKNN-Toolkit2: builds an artifact for a Rockchip NPU and runs it in its simulator on x86-64 Linux."""

from onnxq.runtimes.runtime import Runtime

RUNTIME = Runtime(
    "rknn",
    "RKNN-Toolkit2 simulator",
    ("rknn-toolkit2", "setuptools<81"),
    options={"target_platform": "rk3588"},
    one_shape=True,
    steps=4,  # of convolutions, an offset for each channel
    reads_codes=False,  # behind an int8 input, HardSigmoid, Sigmoid and Tanh are off by up to 79 steps
)
