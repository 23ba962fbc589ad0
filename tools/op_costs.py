"""Kernel costs of onnxruntime's CPU provider, float against 8-bit integer: the figures behind the cost table of the
backend.

Every operator runs on a tensor of 1 x 64 x 56 x 56 on one thread; times are medians taken from onnxruntime's own
profile, divided by the time of a QuantizeLinear on as many elements. Between integer layers a Resize has its channels
last (ResizeLast). Functions for which onnxruntime has one kernel run
as their chains of operators, once alone and once behind a DequantizeLinear, which each of their readers then has for
itself.

    python tools/op_costs.py
"""

from __future__ import annotations

import collections
import statistics
from typing import Any

import numpy as np
import onnx
from kernel_times import kernel_times
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 64, 56, 56)
OPS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "Add": ("Add", 2, {}),
    "Mul": ("Mul", 2, {}),
    "Concat": ("Concat", 2, {"axis": 1}),
    "AveragePool": ("AveragePool", 1, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "GlobalAveragePool": ("GlobalAveragePool", 1, {}),
    "MaxPool": ("MaxPool", 1, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "MaxPool3": ("MaxPool", 1, {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]}),
    "Sigmoid": ("Sigmoid", 1, {}),
    "LeakyRelu": ("LeakyRelu", 1, {"alpha": 0.1}),
    "Softmax": ("Softmax", 1, {"axis": -1}),
    "Transpose": ("Transpose", 1, {"perm": [0, 2, 3, 1]}),
    "Reshape": ("Reshape", 1, {}),
    "Relu": ("Relu", 1, {}),
    "Resize": (
        "Resize",
        1,
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    "ResizeLast": (
        "Resize:last",
        1,
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
}

CHAINS = {
    "silu": "f = Sigmoid (x)\n y = Mul (x, f)",
    "gelu": "d = Div (x, root)\n e = Erf (d)\n o = Add (e, one)\n m = Mul (x, o)\n y = Mul (m, half)",
    "layernorm": """m = ReduceMean <axes = [-1]> (x)\n d = Sub (x, m)\n p = Pow (d, two)
        v = ReduceMean <axes = [-1]> (p)\n a = Add (v, little)\n r = Sqrt (a)\n n = Div (d, r)
        g = Mul (n, row)\n y = Add (g, row)""",
}


def chain(body: str, quantized: bool) -> bytes:
    """A function written as operators on an input that is dequantized or not."""
    first = "q = QuantizeLinear (x0, step, z)\n x = DequantizeLinear (q, step, z)" if quantized else "x = Neg (x0)"
    dims = ", ".join(map(str, SHAPE))
    model: onnx.ModelProto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[{dims}] x0) => (float[{dims}] y) {{ {first}\n {body} }}'
    )
    constants: dict[str, Any] = {"root": 2**0.5, "one": 1, "half": 0.5, "two": 2, "little": 1e-5, "step": 0.02}
    held = {name: np.asarray(value, np.float32) for name, value in constants.items()}
    held |= {"row": np.ones(SHAPE[-1], np.float32), "z": np.asarray(128, np.uint8)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in held.items())
    return bytes(model.SerializeToString())


def build(op: str, inputs: int, attributes: dict[str, Any], quantized: bool) -> bytes:
    initializers = [
        numpy_helper.from_array(np.float32(0.02), "s"),
        numpy_helper.from_array(np.uint8(128), "z"),
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
        numpy_helper.from_array(np.array([1, 2, 2, 1], np.float32), "last"),
        numpy_helper.from_array(np.array([1, 56, 64, 56], np.int64), "shape"),
    ]
    nodes, names = [], []
    for k in range(inputs):
        name = f"x{k}"
        if quantized:
            nodes += [
                helper.make_node("QuantizeLinear", [name, "s", "z"], [f"q{k}"]),
                helper.make_node("DequantizeLinear", [f"q{k}", "s", "z"], [f"d{k}"]),
            ]
            name = f"d{k}"
        names.append(name)
    extra = {"Reshape": ["shape"], "Resize": ["", "scales"], "Resize:last": ["", "last"]}.get(op, [])
    nodes.append(helper.make_node(op.partition(":")[0], [*names, *extra], ["o"], **attributes))
    last = "o"
    if quantized:
        nodes += [
            helper.make_node("QuantizeLinear", ["o", "s", "z"], ["oq"]),
            helper.make_node("DequantizeLinear", ["oq", "s", "z"], ["od"]),
        ]
        last = "od"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT, SHAPE) for k in range(inputs)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        initializers,
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def profile(model: bytes, inputs: int, runs: int = 60, *, together: bool = False) -> dict[str, float]:
    """Microseconds a node type takes, median over runs; of one of its nodes, or of all of them together."""
    rng = np.random.default_rng(0)
    feeds = {f"x{k}": rng.standard_normal(SHAPE, np.float32) for k in range(inputs)}
    times: dict[str, list[float]] = collections.defaultdict(list)
    for kernel in kernel_times(model, feeds, runs).values():
        times[kernel.op] += kernel.times
    return {op: statistics.median(v) * (round(len(v) / runs) if together else 1) for op, v in times.items()}


def main() -> None:
    reference = profile(build("Relu", 1, {}, True), 1)
    unit = reference["QuantizeLinear"]
    print(
        f"QuantizeLinear {unit:.0f} us for {int(np.prod(SHAPE))} elements; "
        f"DequantizeLinear {reference['DequantizeLinear'] / unit:.2f}"
    )
    for label, (op, inputs, attributes) in OPS.items():
        plain = profile(build(op, inputs, attributes, False), inputs)
        quantized = profile(build(op, inputs, attributes, True), inputs)
        kernels = {k: v for k, v in quantized.items() if k not in ("QuantizeLinear", "DequantizeLinear")}
        size = {"Concat": 2.0, "AveragePool": 0.25, "MaxPool": 0.25, "Resize": 4.0, "ResizeLast": 4.0}.get(label, 1.0)
        if label == "GlobalAveragePool":
            size = 1 / 56 / 56
        text = ", ".join(f"{k} {v / unit / size:.2f}" for k, v in kernels.items())
        print(f"{label:18s} float {sum(plain.values()) / unit / size:8.2f}   integer {text}   (per output element)")
    for label, body in CHAINS.items():
        alone = profile(chain(body, False), 1, together=True)
        behind = profile(chain(body, True), 1, together=True)
        fused = {k: v for k, v in alone.items() if k != "Neg"}
        split = {k: v for k, v in behind.items() if k not in ("QuantizeLinear", "DequantizeLinear")}
        each = ", ".join(f"{k} {v / unit:.2f}" for k, v in {**fused, **split}.items())
        one, other = sum(fused.values()) / unit, sum(split.values()) / unit
        print(
            f"{label:18s} alone {one:8.2f}   behind a DequantizeLinear {other:.2f}, {other - one:.2f} more   ({each})"
        )


if __name__ == "__main__":
    main()
