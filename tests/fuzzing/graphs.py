"""Random valid ONNX graphs: what people's exporters write, and what they might.

A graph grows node by node. Each node is run in onnxruntime on the very samples that the model will be given, and is
dropped where it does not run, is not finite, or leaves the range in which 8 bits mean anything; so every graph is
valid, and a fault found with it is one of the quantizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.fuzzing.ops import grow
from tests.fuzzing.scope import FLOATS, Scope
from tests.running import open_session

__all__ = ["Case", "generate"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A random model with its data.

    Attributes:
        seed: that gives it again.
        model: valid, and run by onnxruntime on all samples.
        feeds: samples, by input name.
    """

    seed: int
    model: onnx.ModelProto
    feeds: list[dict[str, Array]]


# -- whole models


def generate(seed: int) -> Case:
    """The model of a seed. Models that the checker refuses or onnxruntime does not run are not given: the next is."""
    for attempt in range(100):
        case = _attempt(seed, np.random.default_rng([seed, attempt]))
        if case is not None:
            return case
    raise AssertionError(f"seed {seed} gives no valid model")


def _attempt(seed: int, rng: np.random.Generator) -> Case | None:
    opset = int(rng.choice([7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23], p=_OPSETS))
    dtype = FLOATS[int(rng.choice(3, p=[0.84, 0.1, 0.06]))]
    scope = Scope(rng, opset, dtype, samples=int(rng.integers(1, 4)))
    free = {name: _input(scope, name) for name in ("x", "input.1", "z")[: int(rng.choice([1, 1, 1, 2, 2, 3]))]}
    for _ in range(int(rng.integers(2, 22))):
        grow(scope)
    if not scope.nodes or not any(n.op_type not in ("Constant", "Identity") for n in scope.nodes):
        return None
    return _assembled(seed, scope, free)


_OPSETS = np.array([2, 1, 2, 1, 3, 2, 6, 2, 2, 2, 8, 2, 2, 2, 3, 1, 2]) / 43


def _input(scope: Scope, name: str) -> list[str | None]:
    """A float input, of random size and spread; the names of its free dimensions."""
    rng, channels = scope.rng, int(scope.choose([1, 2, 3, 4, 4, 6, 8]))
    side = int(rng.integers(4, 10))
    batch = int(scope.choose([1, 1, 1, 2, 3]))
    shape = [[], [6], [batch, 12], [batch, 5, 8], [batch, channels, side], [batch, channels, side, side + 1],
             [batch, channels, 4, 3, 4]][int(rng.choice(7, p=[0.02, 0.04, 0.17, 0.15, 0.08, 0.48, 0.06]))]  # fmt: skip
    free: list[str | None] = [f"n{i}" if scope.chance(0.12) else None for i in range(len(shape))]
    scale, shift = float(scope.choose([1, 1, 1, 0.1, 30])), float(scope.choose([0, 0, 0, 1, -3]))
    runs = []
    for k in range(scope.samples):
        vary = bool(k) and free[:1] != [None] and free != [] and scope.chance(0.5)
        sized = [shape[0] + k, *shape[1:]] if vary else shape
        array = np.asarray(rng.standard_normal(sized) * scale + shift * scale)
        if scope.chance(0.2):
            array = np.maximum(array, 0)
        runs.append(array.astype(scope.dtype))
    scope.used.add(name)
    scope.values[name] = runs
    return free


def _assembled(seed: int, scope: Scope, free: dict[str, list[str | None]]) -> Case | None:
    rng = scope.rng
    made = [name for node in scope.nodes for name in node.output if name and node.op_type != "Constant"]
    leaves = [name for name in made if not scope.read.get(name)]
    outputs = list(dict.fromkeys([*leaves[-3:], *([str(scope.choose(made))] if scope.chance(0.3) else [])]))
    if scope.chance(0.02):
        outputs.append(next(iter(free)))
    if not outputs:
        return None

    def info(name: str, names: Sequence[str | None] | None = None) -> onnx.ValueInfoProto:
        arrays = scope.values[name]
        kind = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        ranks = {a.ndim for a in arrays}
        if len(ranks) > 1:
            return helper.make_tensor_value_info(name, kind, None)
        sizes = [{a.shape[i] for a in arrays} for i in range(arrays[0].ndim)]
        dims = [next(iter(s)) if len(s) == 1 and not dynamic else f"{name}_{i}" for i, s in enumerate(sizes)]
        if names is not None:
            dims = [label or next(iter(size)) for label, size in zip(names, sizes, strict=True)]
        return helper.make_tensor_value_info(name, kind, dims)

    free = _own_names(free, scope)
    dynamic = any(name for names in free.values() for name in names) or "If" in {n.op_type for n in scope.nodes}
    graph = helper.make_graph(
        scope.nodes,
        "random",
        [info(name, names) for name, names in free.items()],
        [info(name, free.get(name)) for name in outputs],
        [_tensor(array, name, rng) for name, array in scope.constants.items()],
    )
    version = 3 if scope.opset < 9 and scope.chance(0.3) else 8 if scope.opset < 21 else 10
    if version == 3 or scope.chance(0.03):
        graph.input.extend(info(name) for name in scope.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", scope.opset)], ir_version=version)
    helper.set_model_props(model, {"seed": str(seed)})
    feeds = [{name: scope.values[name][k] for name in free} for k in range(scope.samples)]
    try:
        onnx.checker.check_model(model, full_check=True)
        if scope.chance(0.3):
            told = onnx.shape_inference.infer_shapes(model)
            if all(_fits(info, scope.values[info.name]) for info in told.graph.output):  # which it gets wrong for some
                model = told
        for optimize in (False, True):
            _run_whole(model, feeds, optimize=optimize)
    except Exception:  # the checker's, shape inference's and onnxruntime's own
        return None
    return Case(seed, model, feeds)


def _own_names(free: dict[str, list[str | None]], scope: Scope) -> dict[str, list[str | None]]:
    """Names of free dimensions that inputs share only where their sizes are the same in every sample."""
    sizes: dict[str, tuple[int, ...]] = {}
    told: dict[str, list[str | None]] = {}
    for name, labels in free.items():
        told[name] = []
        for axis, label in enumerate(labels):
            found = tuple(array.shape[axis] for array in scope.values[name])
            shared = label is None or sizes.setdefault(label, found) == found
            told[name].append(label if shared else f"{label} of {name}")
    return told


def _fits(info: onnx.ValueInfoProto, arrays: Sequence[Array]) -> bool:
    """Whether all arrays have the sizes that are declared."""
    dims = info.type.tensor_type.shape.dim
    sizes = [d.dim_value if d.HasField("dim_value") else None for d in dims]
    return all(s is None or s == n for a in arrays for s, n in zip(sizes, a.shape, strict=False))


def _tensor(array: Array, name: str, rng: np.random.Generator) -> TensorProto:
    """A tensor with its numbers as bytes or in the field of its type."""
    if rng.random() < 0.7 or array.dtype == np.float16 or not array.size:
        return numpy_helper.from_array(array, name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())


def _run_whole(model: onnx.ModelProto, feeds: Sequence[dict[str, Array]], *, optimize: bool) -> None:
    session = open_session(model, optimize=optimize)
    for feed in feeds:
        session.run(None, feed)
