"""The smallest graph that shows a breach still."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import onnx

from tests.contract import infer
from tests.fuzzing.graphs import Case
from tests.fuzzing.judge import judge
from tests.fuzzing.scope import reads
from tests.verdict import Verdict

__all__ = ["kind", "shrink"]

_STEPS = 150
"""Smaller graphs that are tried for a breach."""


def kind(verdict: Verdict) -> str:
    """A verdict without what is particular to a graph."""
    return re.sub(r"'[^']*'|-?\d+(\.\d+)?|\binf\b", "…", verdict.text)[:80]


def shrink(case: Case, backend: str, placement: Any) -> Case:
    """The smallest graph found by taking away outputs and nodes that shows the same kind of breach."""
    wanted, tried = kind(judge(case, backend, placement)), 0
    changed = True
    while changed and tried < _STEPS:
        changed = False
        for smaller in _smaller(case):
            tried += 1
            verdict = judge(smaller, backend, placement)
            if verdict.outcome == "FAULT" and kind(verdict) == wanted:
                case, changed = smaller, True
                break
            if tried >= _STEPS:
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Graphs with one output, or with a tensor as an input in place of what makes it; valid ones only."""
    model, feeds = case.model, case.feeds
    if len(model.graph.output) > 1:
        for output in model.graph.output:
            yield from _valid(case.seed, _cut(model, [output.name], {}), feeds)
    made = [name for node in model.graph.node if node.op_type != "Constant" for name in node.output if name]
    for name in made:
        if [name] != [output.name for output in model.graph.output]:
            yield from _valid(case.seed, _cut(model, [name], {}), feeds)
    seen = _values(case, made)
    for name in reversed(made):
        if name in seen and name not in {output.name for output in model.graph.output}:
            more = [{**feed, name: array} for feed, array in zip(feeds, seen[name], strict=True)]
            yield from _valid(case.seed, _cut(model, [o.name for o in model.graph.output], {name: seen[name][0]}), more)


def _values(case: Case, names: list[str]) -> dict[str, list[Any]]:
    bare = onnx.ModelProto.FromString(case.model.SerializeToString())
    del bare.graph.output[:]
    bare.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        return infer(bare, case.feeds, optimize=False)
    except Exception:  # onnxruntime's own
        return {}


def _cut(model: onnx.ModelProto, outputs: list[str], inputs: dict[str, Any]) -> onnx.ModelProto:
    """The part between some tensors and the outputs."""
    small = onnx.ModelProto()
    small.CopyFrom(model)
    graph, wanted, kept = small.graph, set(outputs), list[onnx.NodeProto]()
    for node in reversed(model.graph.node):
        if wanted & {*node.output} - {*inputs}:
            kept.append(node)
            wanted |= {*reads(node)}
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    initializers = [t for t in model.graph.initializer if t.name in wanted]
    given = [info for info in model.graph.input if info.name in wanted]
    for name, array in inputs.items():
        kind_ = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        given.append(onnx.helper.make_tensor_value_info(name, kind_, array.shape))
    known = {info.name: info for info in onnx.shape_inference.infer_shapes(model).graph.value_info}
    known |= {info.name: info for info in model.graph.output}
    made = [known.get(name, onnx.ValueInfoProto(name=name)) for name in outputs]
    for part in ("node", "initializer", "input", "output", "value_info"):
        del getattr(graph, part)[:]
    graph.node.extend(nodes)
    graph.initializer.extend(initializers)
    graph.input.extend(given)
    graph.output.extend(made)
    return small


def _valid(seed: int, model: onnx.ModelProto, feeds: list[dict[str, Any]]) -> Iterator[Case]:
    names = {info.name for info in model.graph.input}
    fed = [{name: array for name, array in feed.items() if name in names} for feed in feeds]
    try:
        onnx.checker.check_model(model, full_check=True)
        infer(model, fed, optimize=False)
    except Exception:  # the checker's, shape inference's and onnxruntime's own
        return
    yield Case(seed, model, fed)
