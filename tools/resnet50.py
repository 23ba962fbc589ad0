"""A network of ResNet-50's shape with random weights, and random images: something large to measure on.

    python tools/resnet50.py resnet50.onnx images.npz --samples 64

He et al., Deep Residual Learning for Image Recognition, 2016: 25.6 million parameters, 4.1 billion products an image,
53 convolutions each followed by BatchNormalization. Weights keep the variance of activations (He initialization); the
figures that it gives say something of time and memory, nothing of accuracy.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks, stride of the four stages."""


class _Builder:
    """Nodes and initializers in the making."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, values: np.ndarray) -> str:
        """Add an initializer."""
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{output}.{op}", **attributes))
        return output

    def conv_bn(self, x: str, name: str, sizes: tuple[int, int, int], stride: int = 1, gain: float = 1.0) -> str:
        """Convolution (inputs, outputs, kernel) and BatchNormalization of a given gain."""
        inputs, outputs, kernel = sizes
        deviation = np.sqrt(2 / (inputs * kernel * kernel))
        values = self.random.normal(0, deviation, (outputs, inputs, kernel, kernel))
        pads, strides = [kernel // 2] * 4, [stride] * 2
        weight = self.weight(f"{name}.weight", values)
        y = self.node("Conv", [x, weight], name, kernel_shape=[kernel] * 2, pads=pads, strides=strides)
        uniform = self.random.uniform
        parameters = [
            self.weight(f"{name}.gamma", gain * uniform(0.7, 1.3, outputs)),
            self.weight(f"{name}.beta", uniform(-0.2, 0.2, outputs)),
            self.weight(f"{name}.mean", uniform(-0.2, 0.2, outputs)),
            self.weight(f"{name}.variance", uniform(0.7, 1.4, outputs)),
        ]
        return self.node("BatchNormalization", [y, *parameters], f"{name}.bn")


def build(seed: int = 0) -> onnx.ModelProto:
    """The network, Nx3x224x224 → Nx1000.

    Args:
        seed: of the weights.
    """
    b = _Builder(seed)
    x = b.node("Relu", [b.conv_bn("image", "stem", (3, 64, 7), 2)], "stem.relu")
    x = b.node("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, (width, blocks, stride) in enumerate(STAGES, 1):
        for block in range(blocks):
            name, step = f"layer{stage}.{block}", stride if block == 0 else 1
            y = b.node("Relu", [b.conv_bn(x, f"{name}.a", (channels, width, 1))], f"{name}.a.relu")
            y = b.node("Relu", [b.conv_bn(y, f"{name}.b", (width, width, 3), step)], f"{name}.b.relu")
            y = b.conv_bn(y, f"{name}.c", (width, 4 * width, 1), gain=0.5)
            if block == 0:
                x = b.conv_bn(x, f"{name}.down", (channels, 4 * width, 1), step, gain=0.7)
            channels = 4 * width
            x = b.node("Relu", [b.node("Add", [x, y], f"{name}.sum")], f"{name}.out")
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x], "mean")], "features")
    b.weight("fc.weight", b.random.normal(0, 0.02, (1000, channels)))
    b.weight("fc.bias", b.random.normal(0, 0.02, 1000))
    b.node("Gemm", [x, "fc.weight", "fc.bias"], "logits", transB=1)
    graph = helper.make_graph(
        b.nodes,
        "resnet50",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 1000])],
        b.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="onnxq")


def images(count: int, seed: int = 1) -> np.ndarray:
    """Random images, float32 Nx3x224x224: smooth patterns of mean 0 and deviation near 1, a little noise."""
    random = np.random.default_rng(seed)
    coarse = random.normal(0, 1, (count, 3, 14, 14)).astype(np.float32)
    fine = random.standard_normal((count, 3, 224, 224), dtype=np.float32)
    smooth: np.ndarray = coarse.repeat(16, axis=2).repeat(16, axis=3) + np.float32(0.3) * fine
    return smooth


def main() -> None:
    """Write the model and, where asked for, images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="where to write the model (.onnx)")
    parser.add_argument("data", type=Path, nargs="?", help="where to write images (.npz)")
    parser.add_argument("--samples", type=int, default=64, help="number of images (default 64)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    onnx.save(build(args.seed), args.model)
    if args.data is not None:
        np.savez(args.data, image=images(args.samples, args.seed + 1))
    print(f"{args.model}: {args.model.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
