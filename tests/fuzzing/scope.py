"""The graph that a random model grows in, node by node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, helper, numpy_helper

from tests.running import open_session

__all__ = ["FLOATS", "Scope", "infer_once", "kinds_of", "reads"]

Array = NDArray[Any]
Picked = Callable[[Array], bool]

FLOATS = (np.float32, np.float16, np.float64)
_MOST_ELEMENTS = 12_000
_LARGEST = {"float16": 300.0}
_LARGEST_ELSE = 3e3
_ODD_NAMES = ("{}", "{}", "{}", "/model/{}/op", "{}_quantized", "{} ü", "{}.weight", "{}:0", "{}_scale", "n/{}_DQ")


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
        there = {n: visible[n] for n in reads(node) if n in visible}
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
        for name in reads(node):
            self.read[name] = self.read.get(name, 0) + 1
        return names


def _sound(array: Array) -> bool:
    if array.size > _MOST_ELEMENTS:
        return False
    if array.dtype.kind != "f":
        return True
    most = float(np.abs(array).max(initial=0))
    return bool(np.isfinite(array).all()) and most < _LARGEST.get(array.dtype.name, _LARGEST_ELSE)


def reads(node: onnx.NodeProto) -> list[str]:
    """Tensors that a node reads, those that its subgraphs take from around included."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            for inner in attribute.g.node:
                found += reads(inner)
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
    got = open_session(model, optimize=False).run(list(outputs), {n: a for n, a in feeds.items() if n not in constants})
    return [np.asarray(array) for array in got]


def kinds_of(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of a model's tensors, those inside of nodes included, as far as they are known."""

    def of(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
        for info in (*graph.input, *graph.output, *graph.value_info):
            yield info.name, info.type.tensor_type.elem_type
        yield from ((tensor.name, tensor.data_type) for tensor in graph.initializer)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from of(attribute.g)

    return dict(of(onnx.shape_inference.infer_shapes(model).graph))
