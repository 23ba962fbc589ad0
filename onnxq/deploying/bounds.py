"""Quantizers that a target has no use for keep the bounds that they set, where much of their tensor lies beyond."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxq.deploying.border import beside_border
from onnxq.given.written_out import bound_behind
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import only_reader
from onnxq.measuring.clipped import clipped
from onnxq.options import Options
from onnxq.plan import Kept, Plan, Site
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.limits import bounds
from onnxq.spec import PerTensor, Scheme

__all__ = ["Bounds", "keep_bounds"]

_KEPT = "the bounds of a quantizer that the model given has there"


@dataclass(frozen=True)
class Bounds:
    """What became of the bounds that quantizers left out set.

    Attributes:
        left_out: tensors whose quantizers a plan has no use for.
        kept: those of them that a Clip bounds now.
        lost: those of which numbers pass that the model given clips → their share.
    """

    left_out: tuple[str, ...]
    kept: tuple[str, ...]
    lost: dict[str, float]


def keep_bounds(source: Quantized, plan: Plan, numbers: dict[str, QParams], options: Options) -> tuple[Plan, Bounds]:
    """Write a Clip where a quantizer that is left out cuts off more than it rounds.

    Not where the target computes the function behind the tensor together with the operator before it, nor on a target
    without Clip.

    Args:
        source: the model given, in the target's form; its model is changed in place.
        plan: the target's.
        numbers: of the plan's sites.
        options: custom operators and providers.
    """
    out = _left_out(source, plan, numbers)
    values = {v.name or "": v for node in all_nodes(source.model) for v in node.outputs}
    ends = _felt(source, plan, numbers, [(site, values[site.tensor]) for site in out if site.tensor in values])
    steps = {site.tensor: float(source.qparams[site.name].scale) for site in out if site.tensor in ends}
    shares = clipped(source, {t: e for t, e in ends.items() if np.isfinite(e).any()}, steps, options)
    holds = "Clip" in source.backend.rules or "Clip" in source.backend.absorbed
    namer, kept, written = Namer(source.model), [], []
    for site in out if holds else ():
        if site.tensor in shares and _absorbed_reader(values[site.tensor], plan) is None:
            node = _written(site, source.qparams[site.name], values[site.tensor], namer)
            written.append(Kept(node.name or "", node.op_type, _KEPT))
            kept.append(site.tensor)
    lost = {tensor: share for tensor, share in shares.items() if tensor not in kept}
    found = Bounds(tuple(dict.fromkeys(site.tensor for site in out)), tuple(kept), lost)
    return replace(plan, kept_float=(*plan.kept_float, *written)), found


def _left_out(source: Quantized, plan: Plan, numbers: Mapping[str, QParams]) -> list[Site]:
    """Activations of the model given that a plan has not, neither their tensor nor its grid under another name."""
    held = {tensor for site in plan.sites for tensor in (site.tensor, *site.spans)} | beside_border(source)
    scales = {(s.source, float(numbers[s.name].scale)) for s in plan.sites if not numbers[s.name].scale.ndim}

    def is_held(site: Site) -> bool:
        scale = source.qparams[site.name].scale
        return site.tensor in held or (not scale.ndim and (site.tensor, float(scale)) in scales)

    return [site for site in source.plan.sites if site.role == "activation" and not is_held(site)]


def _felt(
    source: Quantized, plan: Plan, numbers: Mapping[str, QParams], out: Iterable[tuple[Site, ir.Value]]
) -> dict[str, tuple[float, float]]:
    """Tensor → the ends of a quantizer that is left out, as far as they are felt; of uniform grids of one scale."""
    behind = {site.tensor: numbers[site.name] for site in plan.sites if site.role == "activation"}
    found: dict[str, tuple[float, float]] = {}
    for site, value in out:
        grid = source.qparams[site.name]
        if grid.spec.scheme is Scheme.UNIFORM and isinstance(grid.spec.granularity, PerTensor):
            found[site.tensor] = _felt_behind(grid, _absorbed_reader(value, plan), behind)
    return found


def _absorbed_reader(value: ir.Value, plan: Plan) -> ir.Node | None:
    """The function that alone reads a tensor and is computed together with what makes it."""
    reader = only_reader(value)
    return reader if reader is not None and reader.name in plan.absorbed else None


def _felt_behind(grid: QParams, function: ir.Node | None, behind: dict[str, QParams]) -> tuple[float, float]:
    """The ends of a grid that still are felt behind a Relu or Clip and the quantizer there; the others infinite."""
    low, high = float(grid.lo), float(grid.hi)
    after = behind.get(function.outputs[0].name or "") if function is not None else None
    if function is None or after is None or function.op_type not in ("Relu", "Clip"):
        return low, high
    lowest, highest = bounds(function)
    step = float(after.scale.max())
    begins, ends = float(after.lo.min()) + step, float(after.hi.max()) - step
    return (-np.inf if max(low, lowest) <= begins else low), (np.inf if min(high, highest) >= ends else high)


def _written(site: Site, grid: QParams, value: ir.Value, namer: Namer) -> ir.Node:
    return bound_behind(
        value, float(grid.lo), float(grid.hi), namer, readers=None if site.produced else set(site.readers)
    )
