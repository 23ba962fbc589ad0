"""If and Loop in random graphs: branches and bodies that read weights and tensors from around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.fuzzing.scope import Scope

__all__ = ["condition", "loop"]


def condition(s: Scope) -> None:
    """An If whose condition is a constant, or comes from the data."""
    from tests.fuzzing.ops import grow

    branches, kinds = [], []
    for _ in range(2):
        inner = s.inner()
        for _ in range(int(s.rng.integers(1, 4))):
            grow(inner)
        made = [n for node in inner.nodes for n in node.output if n and node.op_type != "Constant"]
        made = [n for n in made if inner.values[n][0].dtype == s.dtype]
        if not made:
            through = s.pick(lambda a: a.dtype == s.dtype)
            made = (inner.add("Identity", [through]) or []) if through else []
        if not made:
            return
        branches.append(_graph(inner, [], [made[-1]]))
        kinds.append(inner.values[made[-1]][0].ndim)
    if kinds[0] != kinds[1]:
        return  # of one rank, so that what follows is sound in either case
    test: str | None
    if s.chance(0.5):
        test = s.constant(bool(s.chance(0.5)), np.bool_)
    else:
        test = _from_data(s)
    if test is not None:
        s.add("If", [test], then_branch=branches[0], else_branch=branches[1])


def _from_data(s: Scope) -> str | None:
    x = s.pick(lambda a: a.dtype == s.dtype and a.size > 0)
    total = s.add("ReduceMax", [x], keepdims=0) if x else None
    above = s.add("Greater", [total[0], s.constant(s.choose([-1e3, 0.5]), s.dtype)]) if total else None
    return above[0] if above else None


def loop(s: Scope) -> None:
    """A Loop of a few turns over one tensor whose shape stays, sometimes with what each turn gave behind it."""
    from tests.fuzzing.ops import grow

    x = s.pick(lambda a: a.dtype == s.dtype and a.ndim > 0 and a.size > 0)
    if x is None:
        return
    inner = s.inner()
    turn, going, carried = (inner.name("c") for _ in range(3))
    inner.values[turn] = [np.asarray(0, np.int64)] * s.samples
    inner.values[going] = [np.asarray(True)] * s.samples
    inner.values[carried] = s.visible()[x]
    inner.fixed |= {turn, going}
    for _ in range(int(s.rng.integers(1, 4))):
        grow(inner)
    shapes = [a.shape for a in s.visible()[x]]
    made = [n for node in inner.nodes for n in node.output if n and node.op_type != "Constant"]
    made = [n for n in made if [a.shape for a in inner.values[n]] == shapes and inner.values[n][0].dtype == s.dtype]
    last = inner.add("Tanh", [made[-1] if made else carried])
    again = inner.add("Identity", [going])
    if not last or not again:
        return
    scan = [n for n in made[-2:-1] if s.chance(0.5)]
    if scan:
        scan = inner.add("Identity", scan) or []
    body = _graph(inner, [turn, going, carried], [again[0], last[0], *scan])
    s.add("Loop", [s.constant(int(s.choose([1, 2, 3])), np.int64), "" if s.chance(0.5) else s.constant(True), x],
          outputs=1 + len(scan), body=body)  # fmt: skip


def _graph(inner: Scope, inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    def info(name: str) -> onnx.ValueInfoProto:
        array: NDArray[Any] = inner.values[name][0]
        same = len({a.shape for a in inner.values[name]}) == 1
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, kind, array.shape if same else None)

    return helper.make_graph(
        inner.nodes,
        inner.name("graph"),
        [info(name) for name in inputs],
        [info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in inner.constants.items()],
    )
