"""What the HTP lacks: operators in some form or in all, free sizes."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxq.checks.findings import Finding
from onnxq.errors import ModelError
from onnxq.graph.traverse import all_nodes, describe
from onnxq.graph.values import static_shape
from onnxq.options import Options
from onnxq.options.selection import Selection
from onnxq.rows import plain_max_pool
from onnxq.spec import QuantSpec

__all__ = ["ACTIVATION", "COMPILED", "NOWHERE", "flat", "lacks", "refuse_free_sizes", "undilated"]

ACTIVATION = QuantSpec(signed=False, symmetric=False)
COMPILED = ("context", "dlc")
"""Formats that onnxruntime-qnn writes."""
_SIZED_BY_DATA = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
"""Operators whose outputs have as many elements as the data wants."""
_FLAT = ("GlobalMaxPool", "InstanceNormalization", "MaxPool")
"""Operators that the HTP has for four dimensions at most, in no type for more."""
_DENSE = ("AveragePool", "ConvTranspose", "MaxPool")
"""Operators that it has without dilations, in no type with them."""
_NAMES = (
    "Acos Acosh Asinh Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Celu CenterCropPad Col2Im Compress "
    "Cosh DFT DeformConv Det Erf EyeLike GlobalLpPool Hardmax If IsInf Loop MaxUnpool Mod NonMaxSuppression NonZero "
    "OneHot RNN ReduceL1 ReduceLogSum ReduceProd ReduceSumSquare ReverseSequence Scan Shrink Sinh Softsign Trilu "
    "Unique"
)
NOWHERE = frozenset(_NAMES.split())
"""Operators that the HTP has in no type, each tried alone in float on onnxruntime-qnn's emulator."""


def undilated(node: ir.Node) -> str | None:
    """One without dilations."""
    wide = node.op_type in _DENSE and any(step != 1 for step in node.attributes.get_ints("dilations", ()))
    return f"the HTP has no {node.op_type} with dilations" if wide else None


def flat(node: ir.Node) -> str | None:
    """One of four dimensions at most."""
    value = node.inputs[0] if node.op_type in _FLAT else None
    deep = value is not None and value.shape is not None and len(value.shape) > 4
    return f"the HTP has no {node.op_type} of five dimensions" if deep else None


def _form(node: ir.Node) -> str | None:
    """A form of an operator that the HTP has in others alone."""
    get, op = node.attributes, node.op_type
    if op == "MaxPool" and plain_max_pool(node) is not None:
        return "the HTP has no MaxPool that gives indices"
    if op == "LpPool" and get.get_int("p", 2) not in (1, 2):
        return "the HTP has no LpPool of a norm other than 1 and 2"
    if op == "Pad" and get.get_string("mode", "constant") == "wrap":
        return "the HTP has no Pad that wraps around"
    if op in ("ScatterElements", "ScatterND") and get.get_string("reduction", "none") in ("max", "min"):
        return f"the HTP has no {op} that takes the larger or smaller"
    trains = op == "BatchNormalization" and get.get_int("training_mode", 0) == 1
    return "the HTP has no BatchNormalization in training mode" if trains else None


def refuse_free_sizes(model: ir.Model) -> None:
    """The HTP compiles for fixed sizes.

    Raises:
        ModelError: an input has free ones, or a node gives as many elements as the data wants.
    """
    free = [f"input {v.name!r} has the sizes {v.shape}" for v in model.graph.inputs if static_shape(v) is None]
    found = free or [
        f"{describe(node)} gives a tensor {node.outputs[0].name!r} whose size depends on the data"
        for node in all_nodes(model)
        if node.op_type in _SIZED_BY_DATA and node.domain == ""
    ]
    if found:
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        fix = "python -m onnxruntime.tools.make_dynamic_shape_fixed --input_name NAME --input_shape 1,3,224,224 IN OUT"
        hint = f"Fix them ({fix})" if free else "Cut the model before it"
        raise ModelError(
            f"the formats {' and '.join(COMPILED)} are compiled for fixed sizes: {'; '.join(found[:3])}{more}",
            hint=f"{hint}, or use the format qdq",
        )


def _wide_softplus(node: ir.Node) -> Finding:
    """What the HTP makes of a Softplus in 16 bits."""
    what = "in 16 bits the HTP computes Softplus hardly better than in 8"
    value = node.inputs[0]
    if value is None or len(value.uses()) > 1 or (value.shape is not None and len(value.shape) != 4):
        return Finding("note", describe(node), what)
    hint = "See with 'onnxq verify' on your data what is left; with activations of 8 bits it is right"
    return Finding("warning", describe(node), f"{what}, and of a picture it may get whole rows wrong", hint)


def lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Free sizes, operators that the HTP has not in any type, and what it computes badly in 16 bits."""
    found = []
    nodes = tuple(all_nodes(model))
    selection, bits = Selection(model, nodes, options), options.act_bits or ACTIVATION.bits
    default = replace(ACTIVATION, bits=bits)
    for value in model.graph.inputs:
        if static_shape(value) is None:
            what = f"free sizes {value.shape}; the HTP compiles for fixed ones"
            hint = "Fix them in the model or when the session is created"
            found.append(Finding("warning", f"input {value.name!r}", what, hint))
    for node in nodes:
        if node.domain != "":
            continue
        if node.op_type == "Softplus" and selection.activation(default, node, node.outputs[0]).bits > 8:
            found.append(_wide_softplus(node))
        if node.op_type in NOWHERE:
            what = f"the HTP has no {node.op_type}: it runs on the CPU, what is around it in parts"
            found.append(Finding("warning", describe(node), what, "Cut the model before it, if it is at the end"))
        if (none := flat(node) or undilated(node) or _form(node)) is not None:
            what = f"{none}: it runs on the CPU, what is around it in parts"
            found.append(Finding("warning", describe(node), what, "Cut the model there"))
        if node.op_type in ("LSTM", "GRU"):
            what = (
                f"the HTP computes {node.op_type} in half precision, from version 69 on; for version 68, and off a "
                "device where the provider is told no SoC, no session can be created"
            )
            found.append(Finding("warning", describe(node), what, "Name the SoC: provider option soc_model (43, say)"))
    return found
