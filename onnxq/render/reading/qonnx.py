"""Quantizers of QONNX, which Brevitas and the package qonnx write, as calls of ``onnxq::FakeQuantize``.

Quant (also IntQuant) has the operands of a FakeQuantize, and computes the same, but that the grid's ends are worked out
of a number of bits: https://github.com/fastmachinelearning/qonnx/blob/main/docs/qonnx-custom-ops/intquant_op.md. No
runtime knows the operator, so it is replaced as soon as a model is loaded. Left as they are: those with operands that
are not constant, another rounding than half to even, or a grid that is none of ONNX's integers, and BipolarQuant, Trunc
and FloatQuant.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.namer import Namer
from onnxq.graph.passes.constants import constant_tensor
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import array_of, replace_nodes, set_constant
from onnxq.qparams import QParams, quantize
from onnxq.render import fake_quantize
from onnxq.spec import PerChannel, PerTensor, QuantSpec

__all__ = ["read_quant_nodes"]

_DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas")
_ROUNDINGS = ("ROUND", "HALF_EVEN")
_FIRST_OPSET = 11
"""From here on the function's operators are what they are."""
_OPERANDS = 4
"""Data, scale, zero point, number of bits."""
_WIDEST, _BIAS_BITS = 16, 32


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
        numbers, data = _numbers(node), node.inputs[0]
        if numbers is None or data is None or not isinstance(node.graph, ir.Graph):
            continue
        arrays = fake_quantize.parameters(numbers, data)
        base = node.outputs[0].name or "quant"
        scale, zero = (set_constant(node.graph, namer, f"{base}_{name}", array) for name, array in arrays.items())
        made = fake_quantize.node(data, scale, zero, numbers.spec, node.name or namer.node(base))
        replace_nodes([node], made)
    fake_quantize.register(model)
    used = {node.domain for node in all_nodes(model)}
    for domain in _DOMAINS:
        if domain not in used:
            model.opset_imports.pop(domain, None)


def _numbers(node: ir.Node) -> QParams | None:
    """Of a Quant node; None where it is none of what FakeQuantize says."""
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
    shape = np.broadcast_shapes(scale.shape, zero.shape)
    axes = [k for k, size in enumerate(shape) if size != 1]
    data = node.inputs[0]
    rank = len(data.shape) if data is not None and data.shape is not None else len(shape)
    if len(axes) > 1 or len(shape) > rank or not (scale > 0).all():
        return None
    grain = PerChannel(axes[0] + rank - len(shape)) if axes else PerTensor()
    spec = QuantSpec(bits, signed, signed and not zero.any(), grain, narrow_range=narrow)
    flat = (-1,) if axes else ()
    scales = np.broadcast_to(scale, shape).astype(np.float32).reshape(flat)
    numbers = QParams(spec, scales, np.broadcast_to(zero, shape).astype(np.int64).reshape(flat))
    return numbers if bits <= _WIDEST else _as_bias(numbers, _array(data))


def _as_bias(numbers: QParams, array: NDArray[Any] | None) -> QParams | None:
    """Numbers of more than 16 bits in 32; None where that is not the same."""
    spec = numbers.spec
    wide = replace(numbers, spec=replace(spec, bits=_BIAS_BITS, narrow_range=False))
    if array is None or not spec.symmetric:
        return None
    return wide if np.array_equal(quantize(array, wide), quantize(array, numbers)) else None


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
