"""The verdict on a random graph: the contract, and no more error than rounding to 8 bits explains.

What rounding explains is measured, not asked of onnxq: the float model is run with uniform noise of one 8-bit step
added to its weights and to every tensor, and with the error of rounding to such steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxq import Options, Quantized, check, plan, quantize
from onnxq.catalog import backends
from onnxq.errors import OnnxqError
from onnxq.options import Placement
from tests import contract
from tests.contract import assert_contract, infer, sqnr
from tests.fuzz import Case
from tests.verdict import Verdict, line, spot

__all__ = ["explained", "judge"]

Array = NDArray[Any]

_SURE = 25.0
"""dB that need no explanation."""
_MARGIN = {True: 12.0, False: 20.0}
"""dB below the noisy float model: at home, and for targets with coarser steps and a scale per tensor."""
_INNER = 25.0
"""dB more where a node holds graphs, to which no noise is added, or where numbers jump."""
_JUMPS = frozenset(
    ("ArgMax", "ArgMin", "Cast", "Ceil", "Floor", "Greater", "Hardmax", "Round", "Sign", "TopK", "ThresholdedRelu")
)
"""Operators that turn a small difference into a large one."""
_CHAOS = 8.0
"""dB below which noise flips decisions, and there is nothing to compare."""
_DRAWS = 6
_FLOATS = (np.float32, np.float16, np.float64)
_NOT_HERE = {target.name: target.runtime != "onnxruntime" for target in backends()}


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
    with warnings.catch_warnings():
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
        assert all(path.stat().st_size for path in quantized.files), "an empty file was written"
    else:
        assert planned >= set(quantized.plan.quantized), "more is quantized than was planned"
    count = len(quantized.plan.quantized) + len(quantized.plan.stored)
    scores = _scores(case, quantized, result, backend)
    _assert_explained(case, scores, backend, touched=bool(count))
    if case.seed % 8 == 0:
        again = quantize(model, feeds, backend=backend, options=options)
        same = ir.to_proto(again.rendered()).SerializeToString(deterministic=True)
        assert same == result.SerializeToString(deterministic=True), "the second run gives another result"
    return Verdict("quantized" if count else "untouched", f"{count} nodes, {min(scores.values(), default=0):.0f} dB")


def _scores(case: Case, quantized: Quantized, result: onnx.ModelProto, backend: str) -> dict[str, float]:
    """dB of each float output; where tiny differences grow, optimizations on and off may differ."""
    if _NOT_HERE[backend]:
        return _elsewhere(case, quantized, result)
    try:
        return assert_contract(case.model, result, quantized, case.feeds, agree=_SURE)
    except AssertionError as error:
        if "optimizations on and off differ" not in str(error):
            raise
        known = explained(case.model, case.feeds)
        if min(known.values(), default=0) >= _SURE + _MARGIN[True]:
            raise
        return assert_contract(case.model, result, quantized, case.feeds, agree=-1e9)


def _elsewhere(case: Case, quantized: Quantized, result: onnx.ModelProto) -> dict[str, float]:
    """The contract of a target whose results onnxruntime only simulates: as they are written, not optimized."""
    onnx.checker.check_model(result, full_check=True)
    contract._assert_same_interface(case.model, result)
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
            assert all(a.shape == b.shape for a, b in pairs), f"output {name!r} has another shape"
            assert all(np.isfinite(b).all() for _, b in pairs), f"output {name!r} is not finite"
            scores[name] = sqnr(arrays, got[name])
    return scores


def _assert_explained(case: Case, scores: dict[str, float], backend: str, *, touched: bool) -> None:
    low = {name: score for name, score in scores.items() if not score >= _SURE}
    if not low:
        return
    known = explained(case.model, case.feeds)
    holds = any(a.HasField("g") for node in case.model.graph.node for a in node.attribute)
    holds |= any(node.op_type in _JUMPS for node in case.model.graph.node)
    margin = _MARGIN[not _NOT_HERE[backend]] + (_INNER if holds else 0)
    for name, score in low.items():
        assert touched or known[name] < _SURE, f"output {name!r}: {score:.1f} dB, and nothing is quantized"
        told = f"output {name!r}: {score:.1f} dB, where noise of a step gives {known[name]:.1f}"
        assert known[name] < _CHAOS or score >= known[name] - margin, told


# -- what rounding explains


def explained(model: onnx.ModelProto, feeds: Sequence[dict[str, Array]]) -> dict[str, float]:
    """dB of each float output of the float model with noise of a step in every tensor; the worst of some draws."""
    tensors = _tensors(model, feeds)
    fixed = {node.output[0] for node in model.graph.node if node.op_type in ("Softmax", "Sigmoid")}
    expected = infer(model, feeds, optimize=False)
    floats = [name for name, arrays in expected.items() if all(a.dtype.kind == "f" for a in arrays)]
    worst = dict.fromkeys(floats, float("inf"))
    for draw in range(_DRAWS):
        rng = np.random.default_rng(draw)
        noise = {name: _noise(arrays, rng, draw, name in fixed) for name, arrays in tensors.items()}
        fed = [{**feed, **{f"{n}__noise": arrays[k] for n, arrays in noise.items()}} for k, feed in enumerate(feeds)]
        try:
            noisy = infer(_noisy(model, tensors, rng), fed, optimize=False)
        except Exception:  # onnxruntime's own: noise changed a shape
            return dict.fromkeys(floats, -1e9)
        for name in floats:
            alike = all(a.shape == b.shape for a, b in zip(noisy[name], expected[name], strict=True))
            sound = alike and all(np.isfinite(a).all() for a in noisy[name])
            worst[name] = min(worst[name], sqnr(expected[name], noisy[name]) if sound else -1e9)
    return worst


def _tensors(model: onnx.ModelProto, feeds: Sequence[dict[str, Array]]) -> dict[str, list[Array]]:
    """The float tensors of the main graph that nodes make, and the inputs, for each sample."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    given = {name for feed in feeds for name in feed}
    skipped = ("Constant", "Identity")
    made = [name for node in model.graph.node if node.op_type not in skipped for name in node.output if name]
    del bare.graph.output[:]
    bare.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    found = infer(bare, feeds, optimize=False)
    found |= {name: [np.asarray(feed[name]) for feed in feeds] for name in given}
    return {name: arrays for name, arrays in sorted(found.items()) if all(a.dtype in _FLOATS for a in arrays)}


def _noise(arrays: Sequence[Array], rng: np.random.Generator, draw: int, fixed: bool) -> list[Array]:
    """Noise of one 255th of the range, zero included: uniform, or what rounding to about such a grid does."""
    spans = [max(float(a.max()), 0) - min(float(a.min()), 0) for a in arrays if a.size]
    step = (1.0 if fixed else max(spans, default=0.0)) / 255
    if draw % 2 and step:
        grid = step * rng.uniform(0.8, 1.25)
        exact = [a.astype(np.float64) for a in arrays]
        return [(np.round(a / grid) * grid - a).astype(b.dtype) for a, b in zip(exact, arrays, strict=True)]
    return [rng.uniform(-step / 2, step / 2, a.shape).astype(a.dtype) for a in arrays]


def _noisy(model: onnx.ModelProto, tensors: dict[str, list[Array]], rng: np.random.Generator) -> onnx.ModelProto:
    noisy = onnx.ModelProto()
    noisy.CopyFrom(model)
    graph = noisy.graph
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype in _FLOATS and array.size > 1:
            step = float(np.abs(array).max()) / 127
            changed = (array + rng.uniform(-step / 2, step / 2, array.shape)).astype(array.dtype)
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    renamed = {info.name: f"{info.name}__noisy" for info in graph.input if info.name in tensors}
    nodes = [helper.make_node("Add", [name, f"{name}__noise"], [new]) for name, new in renamed.items()]
    for node in graph.node:
        _rename(node, renamed)
        nodes.append(node)
        for position, name in enumerate(node.output):
            if name in tensors:
                node.output[position] = f"{name}__clean"
                nodes.append(helper.make_node("Add", [f"{name}__clean", f"{name}__noise"], [name]))
    for name, arrays in tensors.items():
        kind = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        graph.input.append(helper.make_tensor_value_info(f"{name}__noise", kind, None))
    del graph.value_info[:]
    made = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(made)
    return noisy


def _rename(node: onnx.NodeProto, renamed: dict[str, str]) -> None:
    node.input[:] = [renamed.get(name, name) for name in node.input]
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                _rename(inner, renamed)
