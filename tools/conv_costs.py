"""Convolutions of onnxruntime's CPU provider, float against 8-bit integer, beside what the table says of them.

Each stands behind another convolution, as in a net, and runs on one thread; its time is the least of onnxruntime's own
profile, in nanoseconds for each position of its output. The table is that of this machine's processor, by which groups
of an integer convolution are put together.

    python tools/conv_costs.py [--edge 3] [--inputs 16 64 128] [--outputs 3 16 18 64] [--groups 1] [--size 56]
    python tools/conv_costs.py --axes 1 --size 1600 --stride 2
"""

from __future__ import annotations

import argparse
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from kernel_times import kernel_times
from onnx import numpy_helper

from onnxq import Options
from onnxq.backends.onnxruntime import BACKEND
from onnxq.backends.onnxruntime.convolutions import groups_together
from onnxq.backends.onnxruntime.processors import NO_VNNI, VNNI
from onnxq.for_processor import for_processor, reduces

RUNS = 60
BEFORE = 16
"""Channels into the convolution in front of the one that is measured."""


class Sizes(NamedTuple):
    """Of a convolution: ``edge`` and ``size`` along each axis, the latter of its output."""

    inputs: int
    outputs: int
    group: int
    edge: int
    size: int
    axes: int
    stride: int

    @property
    def read(self) -> list[int]:
        """Sizes of the data read."""
        return [self.size * self.stride] * self.axes


def build(sizes: Sizes, *, integer: bool) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    inputs, outputs, group, edge, size, axes, stride = sizes
    shapes = {"w0": (inputs, BEFORE, *[1] * axes), "w": (outputs, inputs // group, *[edge] * axes)}
    held: dict[str, Any]
    pads = f"pads = {[edge // 2] * 2 * axes}, strides = {[stride] * axes}, group = {group}"
    if integer:
        nodes = f"""a = QLinearConv (x, s, z, w0, s0, z0, s, z)
                    [tested] y = QLinearConv <{pads}> (a, s, z, w, s1, z1, s, z)"""
        held = {name: rng.integers(-60, 60, shape).astype(np.int8) for name, shape in shapes.items()}
        held |= {"s": np.float32(0.02), "z": np.uint8(128)}
        for name, count in (("0", inputs), ("1", outputs)):
            held |= {f"s{name}": np.full(count, 0.001, np.float32), f"z{name}": np.zeros(count, np.int8)}
    else:
        nodes = f"a = Conv (x, w0)  [tested] y = Conv <{pads}> (a, w)"
        held = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    kind = "uint8" if integer else "float"
    read, made = ", ".join(map(str, sizes.read)), ", ".join(map(str, [size] * axes))
    signature = f"({kind}[1, {BEFORE}, {read}] x) => ({kind}[1, {outputs}, {made}] y)"
    model: onnx.ModelProto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g {signature} {{ {nodes} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in held.items())
    return model


def nanoseconds(model: onnx.ModelProto, sizes: Sizes, dtype: type[np.generic]) -> float:
    """Of the second convolution, for each position of its output."""
    feeds = {"x": np.random.default_rng(1).integers(0, 255, (1, BEFORE, *sizes.read)).astype(dtype)}
    kernels = kernel_times(model.SerializeToString(), feeds, RUNS).values()
    tested = [kernel for kernel in kernels if "Conv" in kernel.op][1]
    return 1000 * min(tested.times) / math.prod([sizes.size] * sizes.axes)


def joined(model: onnx.ModelProto, sizes: Sizes) -> Sizes:
    """With the groups that are put together."""
    products = NO_VNNI if reduces(BACKEND, Options()) else VNNI
    count = groups_together(_tested(model), sizes.outputs * sizes.size**sizes.axes, products)
    return sizes._replace(group=sizes.group // count)


def _tested(model: onnx.ModelProto) -> ir.Node:
    return next(node for node in ir.from_proto(model).graph if node.name == "tested")


def table(model: onnx.ModelProto, sizes: Sizes) -> tuple[float, float]:
    """What the backend's table says of the second convolution, in units of its own."""
    return for_processor(BACKEND, Options()).rules["Conv"].costs(_tested(model), sizes.outputs * sizes.size**sizes.axes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("inputs", [16, 64, 128]), ("outputs", [3, 16, 18, 64]), ("groups", [1])):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default)
    parser.add_argument("--edge", type=int, default=3)
    parser.add_argument("--size", type=int, default=56)
    parser.add_argument("--axes", type=int, default=2)
    parser.add_argument("--stride", type=int, default=1)
    asked = parser.parse_args()
    print("inputs outputs group   float ns  integer ns   ratio  of the table")
    for inputs, outputs, group in itertools.product(asked.inputs, asked.outputs, asked.groups):
        if inputs % group or outputs % group:
            continue
        sizes = Sizes(inputs, outputs, group, asked.edge, asked.size, asked.axes, asked.stride)
        plain = build(sizes, integer=False)
        integer = build(joined(plain, sizes), integer=True)
        times = nanoseconds(plain, sizes, np.float32), nanoseconds(integer, sizes, np.uint8)
        by_table = table(plain, sizes)
        ratios = times[1] / times[0], by_table[1] / by_table[0]
        print(f"{inputs:6} {outputs:7} {group:5} {times[0]:10.1f} {times[1]:11.1f} {ratios[0]:7.2f} {ratios[1]:13.2f}")


if __name__ == "__main__":
    main()
