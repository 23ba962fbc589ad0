"""The operators that the DPU computes in its own way, written in that way.

Batch normalizations alone are depthwise convolutions, as AMD Quark makes them. Sigmoid is HardSigmoid, HardSwish is x
times HardSigmoid, a LeakyRelu's slope is a multiple of 1/256. HardSigmoid and averages divide by multiplying with a
rounded fraction: a Mul behind them has the factor by which that is off. The Mul takes over the tensor's name, so that
statistics and tables speak of what the device computes. Where that Mul is there already, as in a model that was written
for the DPU, it is left.

Source: amd-quark 0.13, ``postprocess/simulation/simulate_dpu.py``; ``HARD_SIGMOID_SCALE`` and ``dpu_leaky_relu_alpha``
of ``quantization/quant_utils.py``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output, replace_nodes, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.lone_norms import lone_norms
from onnxq.graph.recognition.groups import find_groups
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import COMPUTES_OTHER, LEFT_ALONE, constant_array, input_of, scalar

__all__ = ["bounds_of", "factor", "is_dpu_hard_sigmoid", "rewrite", "without_factors"]

_SIXTH = 1.0 / 6.0
_HARD_SIGMOID = (2731.0 / 16384.0) / _SIXTH
_NEAR = 1e-6
_LARGEST_KERNEL = 255
_SQUARE_KERNELS = {
    3: 9.0 * 7.0 / 64.0,
    5: 25.0 * 10.0 / 256.0,
    6: 36.0 * 7.0 / 256.0,
    7: 49.0 * 21.0 / 1024.0,
    14: 196.0 * 21.0 / 4096.0,
}
_APART = ("silu", "hardswish")


def rewrite(model: ir.Model) -> list[Note]:
    """Write a model's operators as the DPU computes them; not those inside functions that stay float as a whole,
    nor those that are excluded.

    Args:
        model: changed in place; shapes inferred.

    Returns:
        What was done.
    """
    whole = {node for group in find_groups(model) if group.kind not in _APART for node in group.nodes}
    namer = Namer(model)
    counts: Counter[str] = Counter()
    notes = lone_norms(model)
    for node in list(all_nodes(model)):
        if node in whole or node.meta.get(LEFT_ALONE) or node.domain != "":
            continue
        if not node.inputs or node.inputs[0] is None:
            continue
        if node.inputs[0].dtype is not ir.DataType.FLOAT:
            continue
        node = _as_computed(node, namer, counts, notes)
        number = factor(node)
        if number is not None:
            if _multiplied(node, number) is not None:
                continue
            _insert_factor(node, number, namer)
            counts[f"{node.op_type} is followed by the factor of the DPU's arithmetic"] += 1
        elif node.op_type in ("AveragePool", "GlobalAveragePool", "ReduceMean"):
            why = "its size is not known or not square: the factor of the DPU's arithmetic is left out"
            notes.append(Note("vitis", node.name or "", f"{node.op_type}: {why}"))
    if counts:
        infer_shapes(model)
    return [*(Note("vitis", "", f"{number} times: {what}") for what, number in counts.items()), *notes]


def _as_computed(node: ir.Node, namer: Namer, counts: Counter[str], notes: list[Note]) -> ir.Node:
    """The operator of the DPU that stands in the place of an activation function now; any other node as it is."""
    x = node.inputs[0]
    assert x is not None
    if node.op_type == "Sigmoid":
        made = _hard_sigmoid(x, node.name or "HardSigmoid")
        replace_nodes([node], made)
        made.meta[COMPUTES_OTHER] = "Sigmoid"
        counts["Sigmoid became HardSigmoid"] += 1
        return made
    if node.op_type == "HardSwish":
        counts["HardSwish became x times HardSigmoid"] += 1
        return _split_hard_swish(node, namer)
    if node.op_type == "LeakyRelu":
        alpha = node.attributes.get_float("alpha", 0.01)
        rounded = round(alpha * 256) / 256
        if rounded != alpha:
            node.attributes["alpha"] = ir.AttrFloat32("alpha", rounded)
            node.meta[COMPUTES_OTHER] = "LeakyRelu"
            notes.append(Note("vitis", node.name or "", f"alpha {alpha:g} became {rounded * 256:g}/256"))
    return node


def without_factors(model: ir.Model) -> None:
    """Take out, in place, the factors that :func:`rewrite` has put in: a device needs no model of itself."""
    for node in list(all_nodes(model)):
        if node.outputs[0].is_graph_output():
            continue
        number = factor(node)
        mul = _multiplied(node, number) if number is not None else None
        if mul is not None:
            constant = mul.inputs[1]
            rename_output(node.outputs[0], mul.outputs[0])
            remove_nodes([mul])
            if constant is not None and not constant.uses() and isinstance(constant.graph, ir.Graph):
                del constant.graph.initializers[constant.name or ""]


def factor(node: ir.Node) -> float | None:
    """By what the DPU's result of an average or a HardSigmoid differs from the exact one, as float32.

    Returns:
        ``None`` where the node is none of these, or its size is not known, or a pool's not square.
    """
    if node.domain != "" or not node.inputs:
        return None
    number: float | None = None
    if is_dpu_hard_sigmoid(node):
        number = _HARD_SIGMOID
    elif node.op_type == "AveragePool":
        kernel = node.attributes.get_ints("kernel_shape", [])
        number = _of_square(kernel)
    elif node.op_type == "GlobalAveragePool":
        dims = _dims(node.inputs[0])
        number = _of_square(dims[2:]) if len(dims) == 4 else None
    elif node.op_type == "ReduceMean":
        elements = _averaged(node)
        number = _of_fraction(elements) if elements else None
    return None if number is None else float(np.float32(number))


def _multiplied(node: ir.Node, number: float) -> ir.Node | None:
    """The Mul by a number that alone reads a node's result, if there is one."""
    behind = [use.node for use in node.outputs[0].uses()]
    if len(behind) != 1 or behind[0].op_type != "Mul" or behind[0].domain != "":
        return None
    return behind[0] if scalar(behind[0].inputs[1]) == number else None


def is_dpu_hard_sigmoid(node: ir.Node) -> bool:
    """Whether a node is the HardSigmoid that the DPU has: ``clip(x / 6 + 1 / 2, 0, 1)``."""
    if node.op_type != "HardSigmoid":
        return False
    alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
    return abs(alpha - _SIXTH) < _NEAR and abs(beta - 0.5) < _NEAR


def bounds_of(clip: ir.Node) -> tuple[float | None, float | None]:
    """The ends of a Clip, ``None`` where there is none or it is computed."""
    low, high = (scalar(input_of(clip, k)) for k in (1, 2))
    return low, high


def _dims(value: ir.Value | None) -> list[int]:
    """The dimensions of a tensor, 0 where one is not known; none where their number is not."""
    shape = value.shape if value is not None else None
    return [dim if isinstance(dim, int) else 0 for dim in shape] if shape is not None else []


def _of_square(kernel: Sequence[int]) -> float | None:
    if len(kernel) != 2 or kernel[0] != kernel[1] or kernel[0] < 1:
        return None
    if kernel[0] > _LARGEST_KERNEL:
        return 1.0
    return _SQUARE_KERNELS.get(kernel[0], _of_fraction(kernel[0] ** 2))


def _of_fraction(elements: int) -> float:
    """``k / 2**n * elements`` for the fraction ``k / 2**n`` nearest to ``1 / elements``, the first of equal ones."""
    shifts = range(7 + math.ceil(math.log2(elements)))
    best = min(shifts, key=lambda n: abs(round(2**n / elements) / 2**n - 1 / elements))
    return float(round(2**best / elements) / 2**best * elements)


def _averaged(node: ir.Node) -> int | None:
    """How many elements a ReduceMean averages."""
    dims = _dims(node.inputs[0])
    axes: Sequence[int] = node.attributes.get_ints("axes", [])
    if input_of(node, 1) is not None:
        given = constant_array(node.inputs[1])
        axes = [] if given is None else given.reshape(-1).tolist()
    if not axes or any(not -len(dims) <= axis < len(dims) for axis in axes):
        return None
    return math.prod(dims[axis] for axis in axes)


def _hard_sigmoid(x: ir.Value, name: str) -> ir.Node:
    attributes = {"alpha": _SIXTH, "beta": 0.5}
    node = ir.node("HardSigmoid", [x], attributes=attributes, name=name)
    node.outputs[0].type = x.type
    node.outputs[0].shape = x.shape.copy() if x.shape is not None else None
    return node


def _split_hard_swish(node: ir.Node, namer: Namer) -> ir.Node:
    """x * HardSigmoid(x) in place of HardSwish(x); returns the HardSigmoid."""
    x = node.inputs[0]
    assert x is not None and isinstance(node.graph, ir.Graph)
    gate = _hard_sigmoid(x, namer.node(f"{node.name}_HardSigmoid"))
    gate.outputs[0].name = namer.fresh(f"{node.outputs[0].name}_gate")
    node.graph.insert_before(node, [gate])
    replace_nodes([node], ir.node("Mul", [x, gate.outputs[0]], name=node.name))
    return gate


def _insert_factor(node: ir.Node, number: float, namer: Namer) -> None:
    assert isinstance(node.graph, ir.Graph)
    exact = node.outputs[0]
    constant = set_constant(node.graph, namer, f"{exact.name}_factor", np.asarray(number, np.float32))
    mul = ir.node("Mul", [exact, constant], name=namer.node(f"{node.name}_factor"))
    node.graph.insert_after(node, [mul])
    rename_output(mul.outputs[0], exact)
    mul.replace_input_with(0, exact)
    exact.name = namer.fresh(f"{mul.outputs[0].name}_exact")
