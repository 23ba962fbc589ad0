"""Marks on the tensors of a module's calls that survive the way into ONNX, and where they end up there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from onnxq.calibration.statistics import TensorStatistics
from onnxq.graph.edits import remove_nodes, replace_value, set_constant
from onnxq.graph.files.load import load
from onnxq.graph.namer import Namer, unique_names
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, input_of, is_constant
from onnxq.plan import Edge
from onnxq.torch.composites import opened_between
from onnxq.torch.insertion import IN_PLACE, map_tensors
from onnxq.torch.masked import telling
from onnxq.torch.nodes import DOMAIN, is_exporting, own_node

__all__ = ["RECURRENT", "Marked", "Marker", "Place", "changes_first", "without_marks"]

Tensor = torch.Tensor

NAME = "Mark"
_MOVES = ("Transpose", "Identity")
_GATE_MOVES = ("Slice", "Concat", "Unsqueeze")
"""With these the exporter brings the gates of a recurrent layer into the order of ONNX."""
RECURRENT = ("LSTM", "GRU", "RNN")
_PACKING = ("_pack_padded_sequence", "_pad_packed_sequence")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_WEIGHTS = 3
"""Position of the weights of a recurrent layer that reads a packed sequence."""
_MEAN = 3
_APART = 1e-6
_BIASES = {"BatchNormalization": (2, _MEAN), "Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,), "Add": (0, 1)}
"""Positions of what is added; behind a batch normalization's shift, the mean that is taken from it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a call: the argument at a position, or (``"out"``, ``"out.1"``) a result."""

    call: str
    position: str


class Marker:
    """Marks every floating-point tensor that a call reads or makes.

    For torch.export it runs twice, on tensors with values first.

    Attributes:
        shapes: of what was marked.
        telling: statistics of what may hold masks: of tensors with large numbers, or of zeros throughout.
        names: of the functions, by call.
        parameters: which parameter of the module an argument is, a number for each.
    """

    def __init__(self) -> None:
        self.shapes: dict[Place, tuple[int, ...]] = {}
        self.parameters: dict[Place, int] = {}
        self.telling: dict[Place, TensorStatistics] = {}
        self.names: dict[str, str] = {}

    def call(self, key: str, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See :meth:`onnxq.torch.insertion.Visitor.call`."""
        self.names[key] = name

        def mark(position: str, x: Tensor) -> Tensor:
            if x.dtype != torch.float32 or not x.ndim or not self._look(Place(key, position), x):
                return x
            return own_node(NAME, (x,), {"call": key, "position": position}, torch.clone)

        if _reads_packed(name, args):
            args = (*args[:_WEIGHTS], map_tensors(args[_WEIGHTS], mark, str(_WEIGHTS)), *args[_WEIGHTS + 1 :])
        if name in _PACKING or _reads_packed(name, args):
            return func(*args, **kwargs)  # torch exports the packing only where nothing stands in between
        in_place = changes_first(name, args, kwargs)
        if name in IN_PLACE:
            func, in_place = IN_PLACE[name], False
        func = opened_between(name, args, mark) or func
        args = tuple(a if in_place and k == 0 else map_tensors(a, mark, str(k)) for k, a in enumerate(args))
        kwargs = {k: a if k == "out" else map_tensors(a, mark, k) for k, a in kwargs.items()}
        return map_tensors(func(*args, **kwargs), mark, "out")

    def _look(self, place: Place, x: Tensor) -> bool:
        """Note what a tensor is; torch.export's have no values: whether it was looked at before."""
        if is_exporting():
            return place in self.shapes
        self.shapes[place] = tuple(x.shape)
        if isinstance(x, torch.nn.Parameter):
            self.parameters[place] = id(x)
        elif (found := telling(place.position, x.detach())) is not None:
            self.telling[place] = found
        return True


def _reads_packed(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a recurrent layer is called with a packed sequence: its lengths stand behind the data then."""
    return name in _RECURRENT and len(args) > 1 and isinstance(args[1], Tensor) and args[1].dtype == torch.int64


def changes_first(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call changes its first argument."""
    dunder = name.startswith("__")
    if name == "__setitem__" or (name.endswith("_") and not dunder) or (dunder and name.startswith("__i")):
        return True
    return bool(kwargs.get("inplace")) or (name in ("relu", "relu6", "hardswish", "silu") and args[-1] is True)


@dataclass(slots=True)
class Marked:
    """Where marks ended up.

    Attributes:
        model: without them.
        edges: inputs of nodes → the arguments that they are.
        made: tensor → the results that it is.
        producers: call → the node that makes its first result.
    """

    model: ir.Model
    edges: dict[Edge, list[Place]] = field(default_factory=dict)
    made: dict[str, list[Place]] = field(default_factory=dict)
    producers: dict[str, str] = field(default_factory=dict)


def without_marks(proto: onnx.ModelProto, parameters: Mapping[Place, int]) -> Marked:
    """Take the marks out of an exported model.

    Args:
        proto: exported.
        parameters: see :class:`Marker`.
    """
    model = load(proto)
    unique_names(model)
    found = Marked(model)
    marks = [node for node in model.graph if (node.domain, node.op_type) == (DOMAIN, NAME)]
    _part_equals(model, marks, parameters)
    constants = _made_of_constants(model)
    for mark in marks:
        place = _place(mark)
        source, made = mark.inputs[0], mark.outputs[0]
        assert source is not None
        if place.position.startswith("out"):
            origin = _origin(source)
            for name in {origin.name or "", *([made.name or ""] if made.is_graph_output() else [])}:
                found.made.setdefault(name, []).append(place)
            producer = origin.producer()
            if place.position in ("out", "out.0") and producer is not None:
                found.producers[place.call] = producer.name or ""
        else:
            for edge in dict.fromkeys(_edges(made, constants)):
                found.edges.setdefault(edge, []).append(place)
    gone = []
    for mark in marks:
        source, made = mark.inputs[0], mark.outputs[0]
        assert source is not None
        if made.is_graph_output():
            mark.domain, mark.op_type = "", "Identity"
            mark.attributes.clear()
        else:
            replace_value(made, source)
            gone.append(mark)
    remove_nodes(gone)
    model.opset_imports.pop(DOMAIN, None)
    _fill_zeros(model)
    return found


def _place(mark: ir.Node) -> Place:
    return Place(mark.attributes.get_string("call", ""), mark.attributes.get_string("position", ""))


def _part_equals(model: ir.Model, marks: Sequence[ir.Node], parameters: Mapping[Place, int]) -> None:
    """Give parameters that are equal now, in copied layers say, a constant each, in place: torch writes one for all."""
    namer, known = Namer(model), dict[tuple[str, int], ir.Value]()
    first: dict[str, int] = {}
    for mark in marks:
        number, value = parameters.get(_place(mark)), mark.inputs[0]
        while value is not None and (copy := value.producer()) is not None and copy.op_type == "Identity":
            value = copy.inputs[0]
        array = constant_array(value)
        if number is None or value is None or array is None:
            continue
        name = value.name or ""
        if first.setdefault(name, number) == number:
            continue
        if (name, number) not in known:
            other = array * np.float32(1 + _APART * (len(known) + 1))  # equal, the target's plan would share them again
            known[name, number] = set_constant(model.graph, namer, f"{name}_own", other.astype(array.dtype))
        mark.replace_input_with(0, known[name, number])


def _fill_zeros(model: ir.Model) -> None:
    """Give what training starts at 0 other values, in place: a plan would leave out biases that do nothing yet."""
    namer = Namer(model)
    for node in list(all_nodes(model)):
        normalizes = node.op_type == "BatchNormalization"
        for position in _BIASES.get(node.op_type, ()):
            value = input_of(node, position)
            while value is not None and (copy := value.producer()) is not None and copy.op_type == "Identity":
                value = copy.inputs[0]  # torch writes equal tensors once
            array = constant_array(value) if value is not None and value.dtype is ir.DataType.FLOAT else None
            if (
                value is None
                or array is None
                or not isinstance(node.graph, ir.Graph)
                or (array.any() and not normalizes)
            ):
                continue
            filled = np.full_like(array, float(position != _MEAN or not normalizes))
            node.replace_input_with(position, set_constant(node.graph, namer, f"{value.name}_trained", filled))


def _origin(value: ir.Value) -> ir.Value:
    """The tensor in front of marks."""
    while (node := value.producer()) is not None and (node.domain, node.op_type) == (DOMAIN, NAME):
        before = node.inputs[0]
        assert before is not None
        value = before
    return value


def _made_of_constants(model: ir.Model) -> set[ir.Value]:
    """Constants, and what nothing else goes into: a part cut out of a weight, say."""
    found = {value for value in model.graph.initializers.values() if is_constant(value)}
    for node in model.graph:  # in order, as torch writes it
        if all(v is None or v in found for v in node.inputs) and (node.inputs or node.op_type == "Constant"):
            found.update(node.outputs)
    return found


def _edges(marked: ir.Value, constants: Set[ir.Value]) -> list[Edge]:
    """Inputs that read a marked tensor; for a constant also those behind nodes that only move it."""
    edges = []
    for node, index in marked.uses():
        if (node.domain, node.op_type) == (DOMAIN, NAME):
            continue
        edges.append(Edge(node.name or "", index))
        if marked in constants and node.op_type in _MOVES:
            edges += _edges(node.outputs[0], constants)
        elif marked in constants and node.op_type in _GATE_MOVES:
            edges += _gates(node.outputs[0])
    return edges


def _gates(moved: ir.Value) -> list[Edge]:
    """Inputs of recurrent layers that a weight's gates go into."""
    edges = []
    for node, index in moved.uses():
        if node.op_type in RECURRENT:
            edges.append(Edge(node.name or "", index))
        elif node.op_type in _GATE_MOVES:
            edges += _gates(node.outputs[0])
    return edges
