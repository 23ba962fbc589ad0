"""What the HTP lacks: operators in some form or in all, free sizes."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxq.checks.findings import Finding
from onnxq.checks.forms import OTHER_NORMS, TRAINING, WITH_INDICES, WRAPPING, Form, form_of, has, is_deep
from onnxq.checks.free_sizes import how_to_fix
from onnxq.errors import ModelError
from onnxq.graph.passes.flatten_products import is_deep_product
from onnxq.graph.traverse import all_nodes, describe
from onnxq.graph.values import constant_array, input_of, static_shape
from onnxq.options import Options
from onnxq.options.selection import Selection
from onnxq.spec import QuantSpec

__all__ = [
    "ACTIVATION",
    "COMPILED",
    "FLAT",
    "NOWHERE",
    "flat",
    "lacks",
    "refuse_free_sizes",
    "resizes_pictures",
    "samples_pictures",
    "scales_are_ratios",
    "undilated",
]


ACTIVATION = QuantSpec(signed=False, symmetric=False)
COMPILED = ("context", "dlc")
"""Formats that onnxruntime-qnn writes."""
_SIZED_BY_DATA = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
"""Operators whose outputs have as many elements as the data wants."""
_SHALLOW = (
    "ArgMax ArgMin Asin Atan BatchNormalization Ceil Cos CumSum Elu Floor Gelu GlobalMaxPool HardSwish "
    "InstanceNormalization LayerNormalization Log LogSoftmax LpNormalization LpPool MatMul MaxPool Mish Neg "
    "ReduceL2 ReduceLogSumExp Round Selu Sign Sin Softplus Sqrt Tanh TopK"
)
FLAT = frozenset(_SHALLOW.split())
"""Operators that the HTP has for four dimensions at most, in no type for more (Gelu in floats), each tried on the
emulator."""
_DEEP = ("Reshape", "Transpose")
"""Operators that it has for six dimensions, where two stay together or one is 1; others for five at most."""
_DENSE = ("AveragePool", "ConvTranspose", "MaxPool")
"""Operators that it has without dilations, in no type with them."""
_NAMES = (
    "Acos Acosh Asinh Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Celu CenterCropPad Col2Im Compress "
    "Cosh DFT DeformConv Det Erf EyeLike GlobalLpPool Hardmax If IsInf Loop MaxUnpool Mod NonMaxSuppression NonZero "
    "OneHot RNN ReduceL1 ReduceLogSum ReduceProd ReduceSumSquare ReverseSequence Scan Shrink Sinh Softsign Trilu "
    "Unique"
)
_ON_THE_CPU = "it runs on the CPU, what is around it in parts"
NOWHERE = frozenset(_NAMES.split())
"""Operators that the HTP has in no type, each tried alone in float on onnxruntime-qnn's emulator."""


def undilated(node: ir.Node) -> str | None:
    """One without dilations."""
    wide = node.op_type in _DENSE and any(step != 1 for step in node.attributes.get_ints("dilations", ()))
    return f"the HTP has no {node.op_type} with dilations" if wide else None


def flat(node: ir.Node) -> str | None:
    """One of four dimensions at most, or written so."""
    if node.domain != "" or node.op_type in _DEEP or is_deep_product(node, 4):
        return None
    most = max((len(value.shape) for value in (*node.inputs, *node.outputs) if value and value.shape), default=0)
    if most > 5:
        return f"the HTP has no {node.op_type} of six dimensions"
    return f"the HTP has no {node.op_type} of five dimensions" if most == 5 and node.op_type in FLAT else None


def scales_are_ratios(node: ir.Node) -> bool:
    """Whether the scales of a Resize are the ratios of its sizes, as far as both are known."""
    scales = constant_array(input_of(node, 2))
    before = static_shape(node.inputs[0]) or ()
    axes = node.attributes.get_ints("axes", ()) or range(len(before))
    if scales is None or not scales.size or not before:
        return True
    wanted = [float(scale) * before[axis] for axis, scale in zip(axes, scales, strict=True)]
    return all(abs(size - round(size)) < 1e-3 for size in wanted)


def resizes_pictures(node: ir.Node) -> str | None:
    """A Resize that leaves samples and channels as they are, and one by cubic polynomials by the ratio of its sizes."""
    mode = node.attributes.get_string("mode", "nearest")
    before, after = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if mode == "nearest":
        return None
    if before is not None and after is not None and before[:2] != after[:2]:
        return f"the HTP has no {mode} Resize of samples or channels"
    if mode == "cubic" and not scales_are_ratios(node):
        return "the HTP has no cubic Resize whose scales are not the ratios of its sizes"
    return None


def samples_pictures(node: ir.Node) -> str | None:
    """A GridSample of pictures that takes the nearest element or interpolates linearly."""
    if node.attributes.get_string("mode", "linear") in ("cubic", "bicubic"):
        return "the HTP has no cubic GridSample"
    return "the HTP has no GridSample of five dimensions" if is_deep(node) else None


_IN_HALF = ("LSTM", "GRU", "STFT")
"""Operators that the HTP has in half precision alone, each tried on the emulator."""


def _framed(node: ir.Node) -> bool:
    """Whether the step and the length of an STFT's frames are constants."""
    given = [value for index, value in enumerate(node.inputs) if index in (1, 3) and value is not None]
    return all(constant_array(value) is not None for value in given)


_FORMS = (
    WITH_INDICES,
    OTHER_NORMS,
    WRAPPING,
    Form(("ScatterElements", "ScatterND"), "{} that takes the larger or smaller", has("reduction", "max", "min")),
    TRAINING,
    Form(("STFT",), "{} of complex numbers", lambda node: (static_shape(node.inputs[0]) or ())[2:] == (2,)),
    Form(("STFT",), "{} whose step or length is computed", lambda node: not _framed(node)),
)
"""What the HTP has not, though it has other forms of the operator."""


def _form(node: ir.Node) -> str | None:
    """A form of an operator that the HTP has in others alone."""
    if node.op_type == "Resize":
        return resizes_pictures(node)
    if node.op_type == "GridSample":
        return samples_pictures(node)
    form = form_of(node, _FORMS)
    return f"the HTP has no {form}" if form is not None else None


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
        first = next((v for v in model.graph.inputs if static_shape(v) is None), None)
        hint = f"Fix them ({how_to_fix(first)})" if first is not None else "Cut the model before it"
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


def _other_scales(node: ir.Node) -> Finding:
    """What the HTP makes of a linear Resize whose scales are not the ratios of its sizes."""
    what = "the HTP takes the ratio of the sizes for its scales, which is another, in float as well"
    return Finding("warning", describe(node), what, "Give it sizes in place of scales")


_WHOLE = frozenset({"Ceil", "Floor", "Round", "Sign"})
"""Operators that give whole numbers."""


def _keeps_fractions(node: ir.Node) -> bool:
    """Whether a node is a Cast to floats of what a Cast made integers of floats, whole ones not for sure."""
    maker = node.inputs[0].producer() if node.op_type == "Cast" and node.inputs[0] is not None else None
    value = maker.inputs[0] if maker is not None and maker.op_type == "Cast" else None
    if maker is None or value is None or value.dtype is None or not value.dtype.is_floating_point():
        return False
    types = [ir.DataType(cast.attributes.get_int("to", 0)) for cast in (maker, node)]
    source = value.producer()
    whole = source is not None and source.op_type in _WHOLE
    return not whole and types[0].is_integer() and types[1].is_floating_point()


def lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Free sizes, operators that the HTP has not in any type, and what it computes badly in 16 bits."""
    found = []
    nodes = tuple(all_nodes(model))
    selection, bits = Selection(model, nodes, options), options.act_bits or ACTIVATION.bits
    default = replace(ACTIVATION, bits=bits)
    for value in model.graph.inputs:
        if static_shape(value) is None:
            what = f"free sizes {value.shape}; the HTP compiles for fixed ones"
            hint = f"Fix them ({how_to_fix(value)}), or when the session is created"
            found.append(Finding("warning", f"input {value.name!r}", what, hint))
    for node in nodes:
        if node.domain != "":
            continue
        if node.op_type == "Softplus" and selection.activation(default, node, node.outputs[0]).bits > 8:
            found.append(_wide_softplus(node))
        none = flat(node) or undilated(node) or _form(node)
        if node.op_type in NOWHERE:
            what = f"the HTP has no {node.op_type}: {_ON_THE_CPU}"
            found.append(Finding("warning", describe(node), what, "Cut the model before it, if it is at the end"))
        elif none is not None:
            ends = node.op_type == "GridSample" and is_deep(node)
            what = f"{none}: {'onnxruntime-qnn takes no model with it' if ends else _ON_THE_CPU}"
            found.append(Finding("warning", describe(node), what, "Cut the model there"))
        if node.op_type == "Resize" and node.attributes.get_string("mode", "") == "linear":
            found += [] if scales_are_ratios(node) else [_other_scales(node)]
        if _keeps_fractions(node):
            what = "a Cast to integers and one back in a row leave fractions on the HTP"
            found.append(Finding("warning", describe(node), what, "Use Floor instead, if nothing is below 0"))
        if node.op_type in _IN_HALF and none is None:
            what = (
                f"the HTP computes {node.op_type} in half precision, from version 69 on; for version 68, and off a "
                "device where the provider is told no SoC, no session can be created"
            )
            found.append(Finding("warning", describe(node), what, "Name the SoC: provider option soc_model (43, say)"))
    return found
