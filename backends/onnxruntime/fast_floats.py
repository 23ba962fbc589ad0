"""Operators on floats that onnxruntime 1.32 computes slowly, written with others that it computes fast.

Integer layers do not make these faster, and next to them they weigh the more. Figures are ns for each element that is
read, on one thread of an AMD EPYC of family 26, of the operator → as it is written here. Results differ by roundings of
float32, as those of a sum in another order do; signs of zeros may differ, and a root of minus infinity is no number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxq.backends.onnxruntime.convolutions import elements_of
from onnxq.backends.onnxruntime.norms import POWERS, reciprocal, square
from onnxq.backends.onnxruntime.over_channels import (
    REDUCTIONS,
    has_channels_last,
    is_quantized,
    reduction,
    softmax,
)
from onnxq.backends.onnxruntime.spectra import dft, stft
from onnxq.backends.onnxruntime.warps import grid_sample
from onnxq.backends.onnxruntime.weighted import cubic, of_volumes
from onnxq.graph.edits import remove_nodes, rename_output
from onnxq.graph.namer import Namer
from onnxq.graph.passes.chain import Chain
from onnxq.graph.recognition.groups import find_groups
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import AnyArray, constant_array

__all__ = ["write_fast"]

_OPSET = 13
"""From it on a Softmax is of one axis; results have it at least where weights have scales of their own a channel."""


class _Form(NamedTuple):
    """How an operator is written, and from how many elements on that is faster.

    Attributes:
        write: what gives the operator's output; None where that operator stays.
        least: elements.
    """

    write: Callable[[Chain], ir.Value | None]
    least: int


def write_fast(model: ir.Model) -> None:
    """Write what is slow with what is fast, in place; the tensors in front of and behind an operator keep their names.

    Left are operators that are small or not of float32, a Softmax for which there is an integer kernel, and what
    onnxruntime computes with the channels last between integer convolutions.
    """
    namer, opset = Namer(model), model.opset_imports.get("", 0)
    may_have_mish = any(node.op_type in ("Softplus", "Tanh") for node in all_nodes(model))
    for group in find_groups(model) if may_have_mish else ():
        first = group.nodes[0]
        if group.kind == "mish" and first.inputs[0] is group.inputs[0] and _is_worth_it(first, opset, _OF_MISH):
            _replace(group.nodes, Chain(first, opset, namer), _mish)
    for node in list(all_nodes(model)):
        form = _FORMS.get(node.op_type) if node.domain == "" else None
        if form is not None and _is_worth_it(node, opset, form.least):
            _replace([node], Chain(node, opset, namer), form.write)


def _is_worth_it(node: ir.Node, opset: int, least: int) -> bool:
    data = node.inputs[0]
    if opset < _OPSET or not isinstance(node.graph, ir.Graph) or data is None or data.dtype is not ir.DataType.FLOAT:
        return False
    dims = data.shape if data.shape is not None else (least,)
    return elements_of(dims) >= least


def _replace(nodes: Sequence[ir.Node], chain: Chain, write: Callable[[Chain], ir.Value | None]) -> None:
    """Put a chain in the place of nodes, whose names the last of the chain have from then on."""
    made = write(chain)
    if made is None:
        return
    rename_output(made, nodes[-1].outputs[0])
    remove_nodes(nodes)
    for former, node in zip(reversed(nodes), reversed(chain.made), strict=False):
        node.name = former.name


def _put(chain: Chain, op: str, *inputs: ir.Value | float) -> ir.Value:
    """Put an operator that computes element by element."""
    values = [value if isinstance(value, ir.Value) else chain.number(value) for value in inputs]
    made = chain.put(op, *values)
    made.shape = chain.x.shape.copy() if chain.x.shape is not None else None
    return made


def _prelu(chain: Chain) -> ir.Value | None:
    """``Max(x, a x)``, or ``Relu(x) + a Min(x, 0)`` where a slope is 0 or above 1: 4.9 → 0.3 and 0.4, bit-equal.

    onnxruntime branches on the sign of each element.
    """
    x, slopes = chain.x, chain.input(1)
    array = constant_array(slopes)
    if slopes is None or array is None or not np.isfinite(array).all():
        return None
    if array.all() and (array <= 1).all():
        return _put(chain, "Max", x, _put(chain, "Mul", x, slopes))
    return _put(chain, "Add", _put(chain, "Relu", x), _put(chain, "Mul", _put(chain, "Min", x, 0.0), slopes))


def _elu(chain: Chain) -> ir.Value:
    """``Relu(x) + a (Exp(Min(x, 0)) - 1)``: 1.5 → 0.6."""
    return _exponential(chain, chain.node.attributes.get_float("alpha", 1.0), 1.0)


def _selu(chain: Chain) -> ir.Value:
    """An Elu times a number: 1.5 → 0.9."""
    attributes = chain.node.attributes
    alpha, gamma = attributes.get_float("alpha", 1.67326319217681884765625), attributes.get_float("gamma", 1.0507010221)
    return _exponential(chain, alpha * gamma, gamma)


def _celu(chain: Chain) -> ir.Value | None:
    """An Elu, where it is one: 1.8 → 0.6."""
    return _exponential(chain, 1.0, 1.0) if chain.node.attributes.get_float("alpha", 1.0) == 1.0 else None


def _exponential(chain: Chain, below: float, above: float) -> ir.Value:
    """``above Relu(x) + below (Exp(Min(x, 0)) - 1)``."""
    positive = _put(chain, "Relu", chain.x)
    if above != 1.0:
        positive = _put(chain, "Mul", positive, above)
    raised = _put(chain, "Exp", _put(chain, "Min", chain.x, 0.0))
    if below != 1.0:
        raised = _put(chain, "Mul", raised, below)
    return _put(chain, "Add", positive, _put(chain, "Sub", raised, below))


def _softplus(chain: Chain) -> ir.Value:
    """``Relu(x) + Log(w) + (u - (w - 1)) / w`` with ``u = Exp(-|x|), w = 1 + u``: 9.4 → 3.2.

    The last term is what the rounding of w takes from the logarithm, which is all of it for large ``-x``.
    """
    u = _put(chain, "Exp", _put(chain, "Neg", _put(chain, "Abs", chain.x)))
    w = _put(chain, "Add", u, 1.0)
    lost = _put(chain, "Div", _put(chain, "Sub", u, _put(chain, "Sub", w, 1.0)), w)
    return _put(chain, "Add", _put(chain, "Relu", chain.x), _put(chain, "Add", _put(chain, "Log", w), lost))


def _mish(chain: Chain) -> ir.Value:
    """``x n / (n + 2)`` with ``n = e (e + 2), e = Exp(Min(x, 20))``, which is x Tanh(Softplus(x)): 9.9 → 1.3."""
    e = _put(chain, "Exp", _put(chain, "Min", chain.x, 20.0))
    n = _put(chain, "Mul", e, _put(chain, "Add", e, 2.0))
    return _put(chain, "Mul", chain.x, _put(chain, "Div", n, _put(chain, "Add", n, 2.0)))


def _pow(chain: Chain) -> ir.Value | None:
    """Powers that are products, roots and reciprocals: 3.1 → 0.2 to 0.5.

    onnxruntime multiplies for exponents of 2 and 3 alone.
    """
    exponent = constant_array(chain.input(1))
    if exponent is None or exponent.size != 1 or exponent.ndim > len(chain.x.shape or ()):
        return None
    return _raised(chain, chain.x, float(exponent.item()))


def _raised(chain: Chain, x: ir.Value, exponent: float) -> ir.Value | None:
    """A positive tensor to a power; None for one that is not known here."""
    if exponent < 0:
        positive = x if exponent == -1.0 else _raised(chain, x, -exponent)
        return None if positive is None else _put(chain, "Div", 1.0, positive)
    if exponent == 4.0:
        return _put(chain, "Mul", square := _put(chain, "Mul", x, x), square)
    if exponent not in (0.5, 0.75, 1.5):
        return None
    root = _put(chain, "Sqrt", x)
    if exponent == 0.5:
        return root
    return _put(chain, "Mul", root, x if exponent == 1.5 else _put(chain, "Sqrt", root))


def _lrn(chain: Chain) -> ir.Value | None:
    """Squares of the channels around each, added up side by side: 20 → 3.6."""
    x, attributes = chain.x, chain.node.attributes
    size, beta = attributes.get_int("size", 1), attributes.get_float("beta", 0.75)
    if x.shape is None or beta not in (0.5, 0.75, 1.0) or size % 2 == 0:  # which onnxruntime refuses
        return None
    squares = _put(chain, "Mul", x, x)
    pads = [0] * (2 * len(x.shape))
    pads[1] = pads[1 + len(x.shape)] = size // 2
    padded = chain.put("Pad", squares, chain.integers(*pads))
    ends = [*range(1 - size, 0), np.iinfo(np.int64).max]
    axis = chain.integers(1)
    parts = [
        chain.put("Slice", padded, chain.integers(start), chain.integers(end), axis) for start, end in enumerate(ends)
    ]
    weighted = _put(chain, "Mul", chain.put("Sum", *parts), attributes.get_float("alpha", 1e-4) / size)
    total = _put(chain, "Add", weighted, attributes.get_float("bias", 1.0))
    divisor = total if beta == 1.0 else _raised(chain, total, beta)
    assert divisor is not None
    return _put(chain, "Div", x, divisor)


def _resize(chain: Chain) -> ir.Value | None:
    """Cubic ones and those of volumes as in :mod:`.weighted`; bilinear ones that enlarge with the channels last, of
    channels in fours: 1.1 → 0.5 of what they make.

    What is bilinear is bit-equal. The Reshapes change nothing, but without them onnxruntime takes the Transposes back.
    """
    node, axes = chain.node, (0, 2, 3, 1)
    if node.attributes.get_string("mode", "nearest") == "cubic":
        return cubic(chain)
    if len(chain.x.shape or ()) == 5:
        return of_volumes(chain)
    scales, sizes = (constant_array(chain.input(index)) for index in (2, 3))
    given = scales if scales is not None and scales.size else sizes
    if given is None or not _is_bilinear(node) or not _enlarges(chain.x, given):
        return None
    if is_quantized(node) or has_channels_last(node):
        return None
    moved = chain.constant("by_axis", given[list(axes)])
    same = chain.integers(0, 0, 0, 0)
    last = chain.put("Reshape", chain.put("Transpose", chain.x, perm=ir.AttrInt64s("perm", axes)), same)
    made = chain.put("Resize", last, None, *((moved,) if given is scales else (None, moved)))
    chain.made[-1].attributes.update(node.attributes)
    return chain.put("Transpose", chain.put("Reshape", made, same), perm=ir.AttrInt64s("perm", (0, 3, 1, 2)))


def _is_bilinear(node: ir.Node) -> bool:
    """Whether onnxruntime has a kernel of its own for a Resize with channels last."""
    attributes = node.attributes
    asked = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "keep_aspect_ratio_policy": "stretch"}
    mode, places, policy = (attributes.get_string(name, default) for name, default in asked.items())
    if attributes.get_int("antialias", 0) or "axes" in attributes:
        return False
    return mode == "linear" and places != "tf_crop_and_resize" and policy == "stretch"


def _enlarges(x: ir.Value, given: AnyArray) -> bool:
    """Whether scales or sizes of pictures make them so much larger that Transposes around are worth it."""
    dims = list(x.shape) if x.shape is not None else []
    if len(dims) != 4 or given.size != 4 or not isinstance(dims[1], int) or dims[1] < 8 or dims[1] % 4:
        return False
    if given.dtype.kind == "f":
        return list(given[:2]) == [1.0, 1.0] and float(given[2] * given[3]) >= 2.0
    known = [dim for dim in dims if isinstance(dim, int)]
    return list(given[:2]) == dims[:2] and len(known) == 4 and given[2] * given[3] >= 2 * known[2] * known[3]


_OF_MISH = 512
_FORMS: Mapping[str, _Form] = {
    "Celu": _Form(_celu, 2048),
    "DFT": _Form(dft, 1),
    "Elu": _Form(_elu, 2048),
    "GridSample": _Form(grid_sample, 1024),
    "LRN": _Form(_lrn, 1024),
    "LogSoftmax": _Form(softmax, 4096),
    "Mish": _Form(_mish, _OF_MISH),
    "Mul": _Form(square, 1),
    "PRelu": _Form(_prelu, 256),
    "Pow": _Form(_pow, POWERS),
    "Reciprocal": _Form(reciprocal, 1),
    "Resize": _Form(_resize, 2048),
    "Selu": _Form(_selu, 4096),
    "STFT": _Form(stft, 1),
    "Softmax": _Form(softmax, 4096),
    "Softplus": _Form(_softplus, 1024),
    **dict.fromkeys(REDUCTIONS, _Form(reduction, 8192)),
}
