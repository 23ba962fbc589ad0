"""The verdict on a random graph: the contract, and no more error than rounding to 8 bits explains.

What rounding explains is measured, not asked of onnxq, with the float model (``tests/fuzzing/noise.py``). A result may
be a few times as far off as noise of one step in every tensor makes it (`times_of`). Where numbers jump, a norm is
divided by, or a logarithm taken, an error at the output is not in proportion to the noise; there the float model with
that many times the noise is what counts. A target that computes everything in integers divides by what rounds to 0:
there the result may hold no number where the float model, all its tensors rounded, does not either, and onnxq must say
so.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq import Backend, Options, Quantized, check, plan, quantize
from onnxq.catalog import backends
from onnxq.errors import OnnxqError
from onnxq.graph.passes.normalize import normalize
from onnxq.options import Placement
from onnxq.planning.uneven import too_uneven
from onnxq.prepare import KEEP, Prepared
from tests import contract
from tests.contract import assert_contract, infer, sqnr
from tests.fuzzing.graphs import Case
from tests.fuzzing.litert import assert_as_simulated
from tests.fuzzing.noise import NONE, explained
from tests.fuzzing.sizes import of_any_size
from tests.fuzzing.targets import AT_HOME, as_computed, steps_of, times_of
from tests.verdict import Verdict, line, spot

__all__ = ["LIMITS", "judge"]

Array = NDArray[Any]

_SURE = 25.0
"""dB that need no explanation."""
_INNER = 25.0
"""dB more where nodes inside of an If or Loop are quantized: noise there is of the range of one turn, not of all."""
_LIKE = 3.0
"""dB below what onnxruntime's optimizations do to the float model, as where they drop a float64 epsilon."""
_CHAOS = 8.0
"""dB below which noise flips decisions, and there is nothing to compare."""
_NOT_HERE = {target.name: target.runtime != "onnxruntime" for target in backends()}


LIMITS = {
    ("tengine", 11090974): "the tool's grid of weights times data of 1e-9 is too fine for an int32 bias of 0.9",
    ("vitis", 113): "x times HardSigmoid(x) of 5e-5 has position 7 at least, and a Concat with 1 and more the same",
}
"""Target and seed of graphs that a target cannot compute well, whatever its scales; onnxq must warn of them."""


def judge(
    case: Case, backend: str = "onnxruntime", placement: Placement = "all", folder: Path | None = None, **more: Any
) -> Verdict:
    """Check, plan and quantize a random graph, and hold the result to the contract.

    Args:
        case: the graph.
        backend: the target.
        placement: see `Options`.
        folder: where to write; else only the rendering is looked at.
        more: other options.

    Returns:
        What became of it; a fault where the contract is broken, or on any error though the float model runs.
    """
    with warnings.catch_warnings(), of_any_size():
        warnings.simplefilter("error")
        try:
            return _judged(case, backend, Options(placement=placement, **more), folder)
        except AssertionError as error:
            return Verdict("FAULT", f"broken contract: {line(error)} ({spot(error)})")
        except Exception as error:
            return Verdict("FAULT", f"{type(error).__name__}: {line(error)} ({spot(error)})")


def _judged(case: Case, backend: str, options: Options, folder: Path | None) -> Verdict:
    model, feeds = case.model, case.feeds
    before = model.SerializeToString(deterministic=True)
    findings = check(model, backend=backend, data=feeds, options=options)
    foretold = [finding for finding in findings if finding.level == "error"]
    try:
        planned = set(plan(model, backend=backend, options=options).quantized)
        quantized = quantize(model, feeds, backend=backend, options=options, output=folder)
    except OnnxqError as error:
        if foretold and _NOT_HERE[backend]:
            return Verdict("refused", line(error))
        return Verdict("FAULT", f"{type(error).__name__}: {line(error)}")
    assert model.SerializeToString(deterministic=True) == before, "the model given was changed"
    assert not foretold, f"check says what is not so: {foretold[0].where}: {foretold[0].what}"
    result = ir.to_proto(quantized.rendered())
    if _NOT_HERE[backend]:
        contract._assert_same_interface(model, result, quantized)
        assert all(path.stat().st_size for path in quantized.files), "an empty file was written"
    elif options.placement == "all" or not _free(model):  # what is fast depends on sizes that only the data tells
        assert planned >= set(quantized.plan.quantized), "more is quantized than was planned"
    count = len(quantized.plan.quantized) + len(quantized.plan.stored)
    case = as_computed(case, backend)
    scores = _scores(case, quantized, result, backend)
    if quantized.backend.runtime == "litert":
        assert_as_simulated(quantized, case.feeds, infer(result, case.feeds, optimize=False), scores)
    inside = {node.name for node in _inner(result.graph)} & set(quantized.plan.quantized)
    limit = LIMITS.get((backend, case.seed))
    if limit is None:
        _assert_explained(case, scores, quantized.backend, touched=bool(count), inner=bool(inside))
    else:
        said = quantized.verification.warnings if quantized.verification is not None else ()
        assert any("below the floor" in text for text in said), f"onnxq does not say that it is poor: {limit}"
    if case.seed % 8 == 0:
        again = quantize(model, feeds, backend=backend, options=options)
        same = ir.to_proto(again.rendered()).SerializeToString(deterministic=True)
        assert same == result.SerializeToString(deterministic=True), "the second run gives another result"
        _assert_normal(model)
    return Verdict("quantized" if count else "untouched", f"{count} nodes, {min(scores.values(), default=0):.0f} dB")


def _assert_normal(model: onnx.ModelProto) -> None:
    """Targets raise the opset of a model that is normal already, and know what was calibrated by the names it has."""
    prepared = Prepared(model, Options()).model
    notes = normalize(prepared, min_opset=prepared.opset_imports[""], keep=KEEP, unfit=too_uneven)
    left = ("not folded", "callers may override it")
    done = [str(note) for note in notes if not any(words in note.message for words in left)]
    assert not done, f"normalizing a second time does {done}"


def _scores(case: Case, quantized: Quantized, result: onnx.ModelProto, backend: str) -> dict[str, float]:
    """dB of each float output; where tiny differences grow, optimizations on and off may differ."""
    if _NOT_HERE[backend]:
        return _elsewhere(case, quantized, result)
    try:
        return assert_contract(case.model, result, quantized, case.feeds, agree=_SURE)
    except AssertionError as error:
        if "optimizations on and off differ" not in str(error):
            raise
        much = explained(case.model, case.feeds, AT_HOME)
        if min(much.values(), default=0) >= _SURE:
            raise
        return assert_contract(case.model, result, quantized, case.feeds, agree=-1e9)


def _elsewhere(case: Case, quantized: Quantized, result: onnx.ModelProto) -> dict[str, float]:
    """The contract of a target whose results onnxruntime only simulates: as they are written, not optimized."""
    onnx.checker.check_model(result, full_check=True)
    contract._assert_scales(result)
    reasons = {kept.node: kept.reason for kept in quantized.plan.kept_float}
    assert all(reason.strip() for reason in reasons.values()), "a node stays float without a reason"
    assert not reasons.keys() & {*quantized.plan.quantized, *quantized.plan.absorbed}, "a node is both"
    expected, got = (infer(model, case.feeds, optimize=False) for model in (case.model, result))
    scores = {}
    for name, arrays in expected.items():
        pairs = list(zip(arrays, got[name], strict=True))
        assert all(a.dtype == b.dtype and a.ndim == b.ndim for a, b in pairs), f"output {name!r} has another type"
        if all(a.dtype.kind == "f" for a in arrays):
            if any(a.shape != b.shape for a, b in pairs):
                scores[name] = NONE  # as where a number decides on the branch of an If: for noise to explain
                continue
            finite = all(np.isfinite(b).all() for _, b in pairs)
            where = all(np.isfinite(b[np.isfinite(a)]).all() for a, b in pairs)  # a DPU's Sigmoid may be 0
            assert finite or not quantized.backend.mixes, f"output {name!r} is not finite"
            checked = quantized.verification
            errors = checked.outputs.get(name) if checked is not None else None  # none of what is picked
            warned = checked is not None and any("-inf dB" in warning for warning in checked.warnings)
            said = errors is not None and bool(errors.broken) and warned
            assert finite or said, f"output {name!r} is not finite, unsaid"
            scores[name] = sqnr(arrays, got[name]) if where else NONE
    return scores


def _assert_explained(case: Case, scores: dict[str, float], target: Backend, *, touched: bool, inner: bool) -> None:
    low = {name: score for name, score in scores.items() if not score >= _SURE}
    if low and not _NOT_HERE[target.name]:
        plain, optimized = (infer(case.model, case.feeds, optimize=optimize) for optimize in (False, True))
        low = {n: score for n, score in low.items() if score < sqnr(plain[n], optimized[n]) - _LIKE}
    if not low:
        return
    times = times_of(target)
    rounded, asked = not target.mixes, steps_of(target.name, case.model)
    known = explained(case.model, case.feeds, rounded=rounded, asked=asked)
    margin = _decibels(times) + (_INNER if inner else 0)
    for name, score in low.items():
        assert touched or known[name] < _SURE, f"output {name!r}: {score:.1f} dB, and nothing is quantized"
    short = {name: score for name, score in low.items() if known[name] >= _CHAOS and score < known[name] - margin}
    if not short:
        return
    much = explained(case.model, case.feeds, times, rounded=rounded, asked=asked)
    if not rounded:  # what is small may really be 0
        zeros = explained(case.model, case.feeds, times, rounded=True, asked=asked)
        much = {name: min(score, zeros[name]) for name, score in much.items()}
    for name, score in short.items():
        told = f"{score:.1f} dB, where noise of a step gives {known[name]:.1f}, of {times:g} steps {much[name]:.1f}"
        assert score >= much[name] - 0.1, f"output {name!r}: {told}"


def _decibels(times: float) -> float:
    return float(20 * np.log10(times))


def _free(model: onnx.ModelProto) -> bool:
    """Whether an input has a dimension without a size."""
    shapes = [info.type.tensor_type.shape for info in model.graph.input]
    return any(not dim.HasField("dim_value") for shape in shapes for dim in shape.dim)


def _inner(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes inside of the nodes of a graph."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from attribute.g.node
                yield from _inner(attribute.g)
