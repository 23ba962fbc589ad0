"""Random valid ONNX graphs: what people's exporters write, and what they might.

A graph grows node by node. Each node is run in onnxruntime on the very samples that the model will be given, and is
dropped where it does not run, is not finite, or leaves the range in which 8 bits mean anything; so every graph is
valid, and a fault found with it is one of the quantizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper

__all__ = ["FLOATS", "Case", "Scope", "generate", "infer_once"]

Array = NDArray[Any]
Picked = Callable[[Array], bool]

FLOATS = (np.float32, np.float16, np.float64)
_MOST_ELEMENTS = 12_000
_LARGEST = {"float16": 300.0}
_LARGEST_ELSE = 3e3
_ODD_NAMES = ("{}", "{}", "{}", "/model/{}/op", "{}_quantized", "{} ü", "{}.weight", "{}:0", "{}_scale", "n/{}_DQ")


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


@dataclass
class Scope:
    """A graph that grows: the main one, or a branch or body inside of a node.

    Attributes:
        rng: all that is random.
        opset: of the standard operators.
        dtype: of the floats that most of the graph computes with.
        samples: number of samples that run along.
        parent: the graph around this one, whose tensors can be read here.
        nodes: in order.
        constants: initializers.
        values: tensor → its value for each sample; initializers included.
        used: names that are taken, in all scopes together.
        read: how often each tensor is read.
        fixed: tensors that are constants, in whatever form.
    """

    rng: np.random.Generator
    opset: int
    dtype: Any
    samples: int
    parent: Scope | None = None
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, list[Array]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    read: dict[str, int] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)

    def inner(self) -> Scope:
        """A scope inside this one."""
        return Scope(self.rng, self.opset, self.dtype, self.samples, self, used=self.used, fixed=set(self.fixed))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def choose(self, things: Sequence[Any]) -> Any:
        """One of them; a NumPy array would lose the types of what it holds."""
        return things[int(self.rng.integers(len(things)))]

    def name(self, stem: str) -> str:
        """A new name, sometimes of the kind that exporters and quantizers use themselves."""
        while True:
            found = str(self.choose(_ODD_NAMES)).format(f"{stem}{self.rng.integers(200)}")
            if found not in self.used:
                self.used.add(found)
                return found

    def visible(self) -> dict[str, list[Array]]:
        """All tensors that can be read here."""
        around = self.parent.visible() if self.parent is not None else {}
        return {**around, **self.values}

    def known(self) -> dict[str, Array]:
        """All initializers that can be read here."""
        around = self.parent.known() if self.parent is not None else {}
        return {**around, **self.constants}

    def pick(self, fits: Picked) -> str | None:
        """A tensor that fits for every sample, rarely a constant; mostly a late one, so that graphs grow deep."""
        fixed = self.fixed if self.chance(0.96) else ()
        names = [n for n, v in self.visible().items() if n not in fixed and all(map(fits, v))]
        if not names:
            return None
        return str(self.choose(names[-4:] if self.chance(0.75) else names))

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the first sample."""
        return tuple(self.visible()[name][0].shape)

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.rng.standard_normal(shape) * scale).astype(self.dtype)

    def weight(self, *shape: int, fan: int | None = None) -> str:
        """A weight of a size that keeps activations about as large as they are, often one that is there already."""
        same = [n for n, a in self.known().items() if a.shape == shape and a.dtype == self.dtype and a.ndim >= 2]
        if same and self.chance(0.25):
            return str(self.choose(same))
        spread = 1.4 / np.sqrt(max(fan or int(np.prod(shape[1:])), 1))
        array = self.normal(*shape, scale=spread)
        if array.size and shape[0] > 2 and self.chance(0.15):
            array[self.rng.integers(shape[0])] = 0  # a dead channel
        elif array.size and self.chance(0.1):
            array[self.rng.integers(shape[0])] *= 1e-4 if self.dtype != np.float16 else 1e-2
        return self.constant(array)

    def constant(self, values: Any, dtype: Any = None) -> str:
        """A constant as an initializer, a Constant node or behind an Identity; sometimes one that is there already."""
        array = np.asarray(values, dtype)
        twins = [
            n
            for n, a in self.known().items()
            if a.shape == array.shape and a.dtype == array.dtype and a.tobytes() == array.tobytes()
        ]
        if twins and self.chance(0.5):
            return str(self.choose(twins))
        name, form = self.name("w"), self.rng.random()
        if form < 0.2:
            self.nodes.append(_constant_node(name, array, self.opset, plain=self.chance(0.5)))
        elif form < 0.25:
            inner = self.name("w")
            self.constants[inner] = array
            self.values[inner] = [array] * self.samples
            self.fixed.add(inner)
            self.nodes.append(helper.make_node("Identity", [inner], [name]))
        else:
            self.constants[name] = array
        self.values[name] = [array] * self.samples
        self.fixed.add(name)
        return name

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str] | None:
        """Append a node and give its outputs, or None where it does not run or leaves the range."""
        names = [self.name("t") for _ in range(outputs)]
        label = self.name("n") if self.chance(0.7) else ""
        node = helper.make_node(op, list(inputs), names, label, **attributes)
        visible = self.visible()
        there = {n: visible[n] for n in _reads(node) if n in visible}
        try:
            values = [infer_once([node], self.opset, {n: v[k] for n, v in there.items()}, names, self.known())
                      for k in range(self.samples)]  # fmt: skip
        except Exception:  # onnxruntime's exceptions share no base
            return None
        if not all(_sound(array) for run in values for array in run):
            return None
        self.nodes.append(node)
        for position, name in enumerate(names):
            self.values[name] = [run[position] for run in values]
        for name in _reads(node):
            self.read[name] = self.read.get(name, 0) + 1
        return names


def _sound(array: Array) -> bool:
    if array.size > _MOST_ELEMENTS:
        return False
    if array.dtype.kind != "f":
        return True
    most = float(np.abs(array).max(initial=0))
    return bool(np.isfinite(array).all()) and most < _LARGEST.get(array.dtype.name, _LARGEST_ELSE)


def _reads(node: onnx.NodeProto) -> list[str]:
    """Tensors that a node reads, those that its subgraphs take from around included."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            for inner in attribute.g.node:
                found += _reads(inner)
            found += [value.name for value in attribute.g.output]
    return list(dict.fromkeys(found))


def _constant_node(name: str, array: Array, opset: int, *, plain: bool) -> onnx.NodeProto:
    """A Constant in the form of its type, where the opset has it."""
    if plain and opset >= 12 and array.ndim < 2 and array.size and array.dtype in (np.float32, np.int64):
        key = "value_float" if array.dtype == np.float32 else "value_int"
        value: Any = array.item() if array.ndim == 0 else array.tolist()
        return helper.make_node("Constant", [], [name], **{key + "s" * array.ndim: value})
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))


def infer_once(
    nodes: Sequence[onnx.NodeProto],
    opset: int,
    feeds: dict[str, Array],
    outputs: Sequence[str],
    constants: dict[str, Array],
) -> list[Array]:
    """Run a few nodes in onnxruntime, without optimization; raises what it raises."""
    types = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
    graph = helper.make_graph(
        list(nodes),
        "once",
        [helper.make_tensor_value_info(n, types[n], a.shape) for n, a in feeds.items() if n not in constants],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(constants[n], n) for n in feeds if n in constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 21 else 10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    got = session.run(list(outputs), {n: a for n, a in feeds.items() if n not in constants})
    return [np.asarray(array) for array in got]


# -- whole models


def generate(seed: int) -> Case:
    """The model of a seed. Models that the checker refuses or onnxruntime does not run are not given: the next is."""
    from tests.fuzz_ops import grow

    for attempt in range(100):
        case = _attempt(seed, np.random.default_rng([seed, attempt]), grow)
        if case is not None:
            return case
    raise AssertionError(f"seed {seed} gives no valid model")


def _attempt(seed: int, rng: np.random.Generator, grow: Callable[[Scope], None]) -> Case | None:
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
            model = onnx.shape_inference.infer_shapes(model)
        for optimize in (False, True):
            _run_whole(model, feeds, optimize=optimize)
    except Exception:  # the checker's, shape inference's and onnxruntime's own
        return None
    return Case(seed, model, feeds)


def _tensor(array: Array, name: str, rng: np.random.Generator) -> TensorProto:
    """A tensor with its numbers as bytes or in the field of its type."""
    if rng.random() < 0.7 or array.dtype == np.float16 or not array.size:
        return numpy_helper.from_array(array, name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())


def _run_whole(model: onnx.ModelProto, feeds: Sequence[dict[str, Array]], *, optimize: bool) -> None:
    level = ort.GraphOptimizationLevel
    options = ort.SessionOptions()
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for feed in feeds:
        session.run(None, feed)
