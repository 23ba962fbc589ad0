"""With which numbers: the scale and zero point of every site of a plan, from statistics and from the weights."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.mask_reach import lowest_number
from onnxq.calibration.masks import Masks, find_masks
from onnxq.calibration.ranges import select_range
from onnxq.calibration.reduced import reduced_numbers
from onnxq.calibration.statistics import SENTINEL, Statistics
from onnxq.calibration.weights import weight_range
from onnxq.errors import StatisticsError
from onnxq.graph.known import once
from onnxq.graph.recognition.saturation import ALL, bounds
from onnxq.graph.traverse import all_constants, all_nodes
from onnxq.graph.values import constant_array
from onnxq.plan import Plan, Site
from onnxq.qparams import QParams
from onnxq.ranged import MIN_SCALE, from_range
from onnxq.spec import QuantSpec

__all__ = ["choose_numbers", "fit_biases", "unusable_constants", "unusable_tensors"]

_BIAS_LIMIT = float(2**31 - 1)
"""The largest integer of a bias."""


def unusable_tensors(plan: Plan, statistics: Statistics, made: Container[str] = ()) -> dict[str, str]:
    """Activations of a plan that have no usable range, with the reason.

    Args:
        plan: where it is quantized.
        statistics: of the model as it was calibrated.
        made: tensors that were made since.

    Raises:
        StatisticsError: the statistics know nothing of a tensor.
    """
    bad: dict[str, str] = {}
    for tensor in plan.observed():
        if tensor in statistics.unobservable:
            bad[tensor] = f"tensor {tensor!r} cannot be observed: {statistics.unobservable[tensor]}"
            continue
        seen = statistics.tensors.get(tensor)
        if seen is None and tensor in made:
            bad[tensor] = f"tensor {tensor!r} belongs to the target's own arithmetic and was not seen in calibration"
            continue
        if seen is None:
            raise StatisticsError(
                "the statistics have no such tensor",
                where=f"tensor {tensor!r}",
                hint="Calibrate this model again, with the same --exclude",
            )
        if seen.count == 0:
            if seen.nan or seen.inf or seen.sentinels:
                why = "held no finite value"
            else:
                fed = any(tensor in sample.feeds for sample in statistics.kept)
                why = "was empty" if fed else "was never computed"
            bad[tensor] = f"tensor {tensor!r} {why} on the calibration data"
        elif 2 * seen.masked > seen.samples:
            bad[tensor] = f"tensor {tensor!r} holds mask values (infinite, or beyond 1e30) among its numbers"
    return bad


def unusable_constants(model: ir.Model, plan: Plan) -> dict[str, str]:
    """Weights, biases and constant operands of a plan that no finite grid holds, with the reason."""
    values = all_constants(model)
    bad: dict[str, str] = {}
    for site in plan.sites:
        if site.role != "activation" and site.tensor not in bad:
            array = constant_array(values[site.tensor])
            if array is None:
                continue
            if not array.size:
                bad[site.tensor] = f"constant {site.tensor!r} is empty"
                continue
            ends = once(values[site.tensor], "ends", partial(_ends, array))
            if not np.isfinite(ends).all():
                bad[site.tensor] = f"constant {site.tensor!r} holds NaN or infinite values"
            elif np.abs(ends).max() > SENTINEL:
                bad[site.tensor] = f"constant {site.tensor!r} holds mask values (beyond 1e30)"
    return bad


def _ends(array: NDArray[Any]) -> NDArray[Any]:
    """The least and the largest number; NaN where there is one."""
    with np.errstate(invalid="ignore"):
        return np.array([array.min(), array.max()])


def choose_numbers(model: ir.Model, plan: Plan, statistics: Statistics) -> dict[str, QParams]:
    """Scale and zero point of every site.

    Activations take the range that their spec's range method selects from the statistics, that of their `spans`
    included, tied sites that of their root. Numbers beyond which all that read one of them saturate (an Elu below -8,
    say) count as those at that bound, except for ``minmax``, which is asked for to hold all there is. Masks in front of
    a Softmax are no numbers: a grid reaches as far below the scores as it must for what is clipped there to mask.
    Weights take their absolute maximum at 8 bits and above, the range of least squared error below and where scales are
    powers of two, and one that is wider where it is to be reduced. A bias takes ``scale_x * scale_w``; where it would
    not fit 32 bits, the weight's scale of that channel is raised, by at most ``|bias| / 2**31`` a weight.

    Returns:
        Parameters by site name.
    """
    values, masks = all_constants(model), find_masks(model, statistics.tensors)
    nodes = {node.name or "": node for node in all_nodes(model)}
    made = {value.name: value for node in nodes.values() for value in node.outputs}
    numbers: dict[str, QParams] = {}
    tied: dict[str, list[str]] = {}
    for site in plan.sites:
        tied.setdefault(plan.root(site).name, []).append(site.source)
    for site in plan.sites:
        if site.role == "activation" and site.tied_to is None:
            ends = _where_all_saturate([made.get(source) for source in tied[site.name]], site.spec)
            ranges = [site.fixed or _range(statistics, masks, site.source, site.spec, ends)]
            ranges += [_extent(values, statistics, masks, tensor, site.spec) for tensor in site.spans]
            lows, highs = zip(*ranges, strict=True)
            numbers[site.name] = from_range(min(lows), max(highs), site.spec)
        elif site.role in ("weight", "constant"):
            numbers[site.name] = _of_constant(values[site.tensor], site, nodes)
    for site in plan.sites:
        if site.tied_to is not None:
            numbers[site.name] = replace(numbers[plan.root(site).name], spec=site.spec)
    fit_biases(model, plan, numbers)
    return numbers


def _where_all_saturate(tensors: Sequence[ir.Value | None], spec: QuantSpec) -> tuple[float, float]:
    """The numbers beyond which all that read one of some tensors saturate; ``minmax`` is asked for to hold them."""
    if spec.range == "minmax":
        return ALL
    lowest, highest = zip(*(bounds(tensor, spec.bits) for tensor in tensors), strict=True)
    return min(lowest), max(highest)


def _of_constant(value: ir.Value, site: Site, nodes: Mapping[str, ir.Node]) -> QParams:
    """Those of a weight, or of a constant that an operator takes as data."""
    array = _array(value)
    if site.role == "constant" and not site.spec.power_of_two:
        return from_range(array.min(initial=0.0), array.max(initial=0.0), site.spec)
    found = from_range(*once(value, ("range", site.spec), partial(weight_range, array, site.spec)), site.spec)
    if not site.spec.reduced:
        return found
    return reduced_numbers(found, [nodes[edge.node] for edge in site.readers], value)


def _extent(
    values: Mapping[str, ir.Value], statistics: Statistics, masks: Masks, tensor: str, spec: QuantSpec
) -> tuple[float, float]:
    """The range of a tensor that a grid is to hold besides its own: of a constant, all of it."""
    array = constant_array(values.get(tensor))
    if array is None:
        return _range(statistics, masks, tensor, spec, ALL)
    return array.min(initial=0.0), array.max(initial=0.0)


def _range(
    statistics: Statistics, masks: Masks, tensor: str, spec: QuantSpec, ends: tuple[float, float]
) -> tuple[float, float]:
    """The range that a spec's method selects, of what lies within ``ends``; searched for once for all plans."""
    seen, reach = statistics.tensors[tensor], masks.reach(tensor, spec.bits)
    if masks.clipped(tensor):
        ends = (max(ends[0], lowest_number(seen)), ends[1])
    inside = seen.clipped(*ends)
    key = (tensor, spec, ends if inside is not seen else None)
    if key not in statistics.ranges:
        statistics.ranges[key] = select_range(inside, spec)
    low, high = statistics.ranges[key]
    return (
        min(low, reach.down) if reach.down > -math.inf else low,
        max(high, reach.up) if reach.up < math.inf else high,
    )


def fit_biases(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> None:
    """Scales of the biases as they are now, the other numbers given; scales of weights are raised where they must be.

    Args:
        model: holds the biases.
        plan: where it is quantized.
        numbers: parameters by site name, changed in place.
    """
    values = all_constants(model)
    biases = [site for site in plan.sites if site.role == "bias"]
    for site in biases:
        if site.factors is not None:
            _make_room(site, _array(values[site.tensor]), numbers)
    for site in biases:
        if site.factors is not None:
            numbers[site.name] = _bias(site, numbers)
        else:
            numbers[site.name] = from_range(*weight_range(_array(values[site.tensor]), site.spec), site.spec)


def _make_room(site: Site, bias: NDArray[np.float32], numbers: MutableMapping[str, QParams]) -> None:
    """Raise scales of the weight so that the bias fits 32 bits and its scale is a normal number."""
    assert site.factors is not None
    data, weight = numbers[site.factors[0]], numbers[site.factors[1]]
    scale_x = float(data.scale)
    need = np.maximum(np.abs(bias.astype(np.float64)).reshape(-1) / (_BIAS_LIMIT * 0.5), MIN_SCALE) / scale_x
    need = need if weight.scale.ndim and need.size == weight.scale.size else need.max(initial=0.0)
    raised = np.maximum(weight.scale.astype(np.float64), need).astype(np.float32)
    if (raised > weight.scale).any():
        numbers[site.factors[1]] = replace(weight, scale=raised)


def _bias(site: Site, numbers: Mapping[str, QParams]) -> QParams:
    """``scale_x * scale_w``, by which an integer operator's sums are counted."""
    assert site.factors is not None
    data, weight = numbers[site.factors[0]], numbers[site.factors[1]]
    product = np.minimum(data.scale.astype(np.float64) * weight.scale, np.finfo(np.float32).max)
    scale = np.asarray(product, np.float32)  # rounded once, as a product of float32 is
    return QParams(site.spec, scale, np.zeros(scale.shape, np.int64))


def _array(value: ir.Value) -> NDArray[np.float32]:
    array = constant_array(value)
    assert array is not None
    return np.asarray(array, np.float32)
