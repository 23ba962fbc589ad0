"""Quantizers of QONNX, which Brevitas and the package qonnx write, as calls of ``onnxq::FakeQuantize``.

Quant (also IntQuant) has the operands of a FakeQuantize, and computes the same, but that the grid's ends are worked out
of a number of bits, and that it adds the zero point before it rounds: with an odd one, what is half-way between
integers goes to the other. No runtime knows the operator, so it is replaced as soon as a model is loaded. Source:
https://github.com/fastmachinelearning/qonnx/blob/main/docs/qonnx-custom-ops/intquant_op.md.

Left as they are: those with operands that are not constant, another rounding than half to even, or a grid that is none
of ONNX's integers, and BipolarQuant, Trunc and FloatQuant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import replace_nodes, set_constant
from onnxq.graph.fake_quantize_function import DOMAIN as OWN
from onnxq.graph.fake_quantize_function import NAME, register
from onnxq.graph.namer import Namer
from onnxq.graph.passes.constants import constant_tensor
from onnxq.graph.traverse import all_nodes, full_type
from onnxq.graph.values import array_of

__all__ = ["DOMAIN", "GIVEN_AS", "read_quant_nodes"]

DOMAIN = "qonnx.custom_op.general"
GIVEN_AS = "onnxq.given_as"
"""Key in the ``meta`` of a FakeQuantize: the operator that the file has in its place, as messages are to name it."""
_DOMAINS = (DOMAIN, "onnx.brevitas")
_ROUNDINGS = ("ROUND", "HALF_EVEN")
_FIRST_OPSET = 11
"""From here on the function's operators are what they are."""
_OPERANDS = 4
"""Data, scale, zero point, number of bits."""
_WIDEST, _BIAS_BITS = 16, 32


@dataclass(frozen=True)
class _Call:
    """What a FakeQuantize says: scale and zero point in a shape that broadcasts against its data, and attributes."""

    scale: NDArray[np.float32]
    zero_point: NDArray[np.float32]
    attributes: dict[str, int]


def read_quant_nodes(model: ir.Model) -> None:
    """Write QONNX's Quant nodes as FakeQuantize, in place.

    Where there are any, initializers are not listed as inputs any more: Brevitas lists all that are parameters.
    """
    found = [n for n in all_nodes(model) if n.domain in _DOMAINS and n.op_type in ("Quant", "IntQuant")]
    if not found or model.opset_imports.get("", 0) < _FIRST_OPSET:
        return
    inputs = model.graph.inputs
    for value in [value for value in inputs if value.is_initializer()]:
        inputs.remove(value)
    namer = Namer(model)
    for node in found:
        call, data = _call(node), node.inputs[0] if node.inputs else None
        if call is None or data is None or not isinstance(node.graph, ir.Graph):
            continue
        base = node.outputs[0].name or "quant"
        scale = set_constant(node.graph, namer, f"{base}_scale", call.scale)
        zero = set_constant(node.graph, namer, f"{base}_zero_point", call.zero_point)
        name = node.name or namer.node(base)
        made = ir.node(NAME, [data, scale, zero], call.attributes, domain=OWN, name=name)
        made.meta[GIVEN_AS] = full_type(node)
        replace_nodes([node], made)
    register(model)
    used = {node.domain for node in all_nodes(model)}
    for domain in _DOMAINS:
        if domain not in used:
            model.opset_imports.pop(domain, None)


def _call(node: ir.Node) -> _Call | None:
    """What a Quant node says; None where it is none of what FakeQuantize does."""
    if len(node.inputs) != _OPERANDS:
        return None
    scale, zero, width = (_array(value) for value in node.inputs[1:])
    if scale is None or zero is None or width is None or width.size != 1 or not _is_whole(zero) or not _is_whole(width):
        return None
    bits, signed = int(width.reshape(())), bool(node.attributes.get_int("signed", 1))
    narrow = bool(node.attributes.get_int("narrow", 0))
    rounding = node.attributes.get_string("rounding_mode", "ROUND").upper()
    if not 2 <= bits <= _BIAS_BITS or rounding not in _ROUNDINGS or (narrow and not signed):
        return None
    if scale.size > 1 and zero.size > 1 and scale.shape != zero.shape:
        return None
    shape = np.broadcast_shapes(scale.shape, zero.shape)
    data = node.inputs[0]
    rank = len(data.shape) if data is not None and data.shape is not None else len(shape)
    axes = [k + rank - len(shape) for k, size in enumerate(shape) if size != 1]
    if len(axes) > 1 or len(shape) > rank or not (scale > 0).all():
        return None
    if bits > _WIDEST:
        if not signed or zero.any() or not _fits(_array(data), scale, bits):
            return None
        bits, narrow = _BIAS_BITS, False
    low = -(1 << (bits - 1)) + narrow if signed else 0
    attributes = {"quant_min": low, "quant_max": (1 << (bits - signed)) - 1}
    attributes |= {"axis": axes[0]} if axes else {}
    full = tuple([-1 if k in axes else 1 for k in range(rank)]) if axes else ()
    scales, zeros = (np.broadcast_to(array, shape).astype(np.float32).reshape(full) for array in (scale, zero))
    return _Call(scales, zeros, attributes)


def _fits(array: NDArray[Any] | None, scale: NDArray[Any], bits: int) -> bool:
    """Whether a bias is a constant of which a grid of more than 16 bits cuts off nothing: one of 32 holds the same."""
    return array is not None and bool((np.abs(array / scale) < (1 << (bits - 1)) - 1).all())


def _array(value: ir.Value | None) -> NDArray[Any] | None:
    """The numbers of an initializer or a Constant node."""
    if value is None:
        return None
    maker, tensor = value.producer(), value.const_value
    if maker is not None and (maker.domain, maker.op_type) == ("", "Constant"):
        tensor = constant_tensor(maker, value.name or "")
    return array_of(tensor) if tensor is not None else None


def _is_whole(array: NDArray[Any]) -> bool:
    return bool(np.equal(array, np.rint(array)).all())
