"""Divisors, and what a logarithm is taken of, that are never 0 in float and round to 0 in integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxq.calibration.statistics import Statistics
from onnxq.graph.traverse import all_nodes
from onnxq.measuring.verification import Verification
from onnxq.plan import Edge, Site
from onnxq.qparams import QParams, fake_quantize
from onnxq.quantized import Quantized
from onnxq.spec import Scheme

__all__ = ["by_zero"]

_NEVER_ZERO = {"Div": 1, "Log": 0, "Reciprocal": 0}
"""Operators that are not defined where an input is 0 → which."""
_ZERO_STAYS = frozenset({"Abs", "Identity", "Reshape", "Sqrt", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that make 0 of 0 and nothing else: between the integers and the division they may run in float."""
_LOW = 20.0
"""dB of the worst output, below which it is looked for: where few numbers round to 0 a result may be good."""


def by_zero(quantized: Quantized, statistics: Statistics, verification: Verification) -> Iterator[str]:
    """Hints for a poor result: tensors that are 0 in integers and must not be. An epsilon helps, flags may not.

    Args:
        quantized: the result.
        statistics: of the calibration data: how near to 0 the float model comes.
        verification: of the result.
    """
    if verification.worst is None or verification.worst[1].sqnr >= _LOW:
        return
    readers: dict[str, list[ir.Node]] = {}
    found: dict[str, tuple[float, float]] = {}
    read = quantized.plan.by_edge("activation")
    made = {site.tensor: site for site in quantized.plan.sites if site.role == "activation" and site.produced}
    for node in all_nodes(quantized.model):
        first = None  # kept away from 0 there, it is so behind it
        for site in _integers_before(node, read, made):
            least, qp = _least(statistics, site), quantized.qparams[site.name]
            if least is not None and _is_even(qp) and float(fake_quantize(np.float32(least), qp)) == 0.0:
                first = site.tensor
                found[first] = abs(least), float(qp.scale) / 2
        if first is not None:
            readers.setdefault(first, []).append(node)
    for tensor, (node, *others) in readers.items():
        least, half = found[tensor]
        kinds = {one.op_type for one in (node, *others)}
        does = ("divide by", "take the logarithm of") if others else ("divides by", "takes the logarithm of")
        what = " or ".join(does[logs] for logs in (False, True) if any((kind == "Log") == logs for kind in kinds))
        named = f"{'nodes' if others else 'node'} {node.name!r} ({node.op_type})"
        named += f" and {len(others)} more" if others else ""
        yield (
            f"{named} {what} what is 0 in integers and not in float: {tensor!r} goes down to {least:.2g}, and rounds "
            f"to 0 below {half:.2g}. An epsilon as large as that in the model, or a Max with it, keeps it away from 0"
        )


def _integers_before(node: ir.Node, read: Mapping[Edge, Site], made: Mapping[str, Site]) -> Iterator[Site]:
    """The quantizers of what must not be 0 where a node reads it, and of what operators that keep zeros make it of.

    Args:
        node: divides, or takes a logarithm; of others there are none.
        read: sites by the inputs that read them.
        made: sites of tensors that all see quantized, by tensor.
    """
    place = _NEVER_ZERO.get(node.op_type)
    while place is not None and node.domain == "":
        value = node.inputs[place]
        site = read.get(Edge(node.name or "", place)) or made.get((value.name if value is not None else None) or "")
        if site is not None:
            yield site
        before = value.producer() if value is not None else None
        if before is None or before.op_type not in _ZERO_STAYS:
            return
        node, place = before, 0


def _is_even(qp: QParams) -> bool:
    """Whether it has one scale, and all its steps are as large."""
    return qp.scale.ndim == 0 and qp.spec.scheme is Scheme.UNIFORM


def _least(statistics: Statistics, site: Site) -> float | None:
    """The number of a tensor that is nearest to 0; None where it may hold 0, or is not known."""
    seen = statistics.tensors.get(site.source or site.tensor)
    if seen is None or not seen.count or seen.min <= 0.0 <= seen.max:
        return None
    return seen.min if seen.min > 0.0 else seen.max
