"""Marks on the tensors of a module's calls that survive the way into ONNX, and where they end up there."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from onnxq.errors import ModelError
from onnxq.graph.files.load import load
from onnxq.graph.namer import Namer, unique_names
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, is_constant, remove_nodes, replace_value, set_constant
from onnxq.plan import Edge
from onnxq.torch.composites import opened_between
from onnxq.torch.insertion import IN_PLACE, map_tensors

__all__ = ["Marked", "Marker", "Place", "in_float32", "to_onnx", "without_marks"]

Tensor = torch.Tensor

DOMAIN, NAME = "onnxq", "Mark"
_MOVES = ("Transpose", "Identity")
_PACKING = ("_pack_padded_sequence", "_pad_packed_sequence")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_MEAN = 3
_BIASES = {"BatchNormalization": (2, _MEAN), "Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,), "Add": (0, 1)}
"""Positions of what is added; behind a batch normalization's shift, the mean that is taken from it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a call: the argument at a position, or (``"out"``, ``"out.1"``) a result."""

    call: str
    position: str


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, call: str, position: str) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0], None, None

    @staticmethod
    def symbolic(g: Any, x: Any, call: str, position: str) -> Any:
        return g.op(f"{DOMAIN}::{NAME}", x, call_s=call, position_s=position).setType(x.type())


class Marker:
    """Marks every floating-point tensor that a call reads or makes.

    Attributes:
        shapes: of what was marked.
        infinite: what holds infinite values, as masked scores do.
        names: of the functions, by call.
    """

    def __init__(self) -> None:
        self.shapes: dict[Place, tuple[int, ...]] = {}
        self.infinite: set[Place] = set()
        self.names: dict[str, str] = {}

    def call(self, key: str, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See :meth:`onnxq.torch.insertion.Visitor.call`."""
        self.names[key] = name

        def mark(position: str, x: Tensor) -> Tensor:
            if x.dtype != torch.float32 or not x.ndim:
                return x
            self.shapes[place := Place(key, position)] = tuple(x.shape)
            if bool(torch.isinf(x.detach()).any()):
                self.infinite.add(place)
            return _Mark.apply(x, key, position)  # type: ignore[no-any-return]

        if name in _PACKING or _reads_packed(name, args):
            return func(*args, **kwargs)  # torch exports the packing only where nothing stands in between
        in_place = changes_first(name, args, kwargs)
        if name in IN_PLACE:
            func, in_place = IN_PLACE[name], False
        func = opened_between(name, args, mark) or func
        args = tuple(a if in_place and k == 0 else map_tensors(a, mark, str(k)) for k, a in enumerate(args))
        kwargs = {k: a if k == "out" else map_tensors(a, mark, k) for k, a in kwargs.items()}
        return map_tensors(func(*args, **kwargs), mark, "out")


def _reads_packed(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a recurrent layer is called with a packed sequence: its lengths stand behind the data then."""
    return name in _RECURRENT and len(args) > 1 and isinstance(args[1], Tensor) and args[1].dtype == torch.int64


def changes_first(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call changes its first argument."""
    dunder = name.startswith("__")
    if name == "__setitem__" or (name.endswith("_") and not dunder) or (dunder and name.startswith("__i")):
        return True
    return bool(kwargs.get("inplace")) or (name in ("relu", "relu6", "hardswish", "silu") and args[-1] is True)


def to_onnx(
    module: torch.nn.Module, example_inputs: tuple[Any, ...], *, opset: int, of: str, **names: Any
) -> onnx.ModelProto:
    """A module in evaluation mode as ONNX, its own mode left as it was.

    Args:
        module: to export.
        example_inputs: of its forward.
        opset: of the standard operators.
        of: name of the user's class, for messages.
        names: ``input_names``, ``output_names``, ``dynamic_axes`` of ``torch.onnx.export``.

    Raises:
        ModelError: torch cannot export it.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), in_float32(), _unprinted():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                example_inputs,
                Path(folder) / "model.onnx",
                dynamo=False,
                opset_version=opset,
                custom_opsets={DOMAIN: 1},
                **names,
            )
            return onnx.load(Path(folder) / "model.onnx")
    except Exception as error:  # torch raises errors of many kinds, and its own on top of a user's
        raise ModelError(
            f"torch cannot export it to ONNX ({type(error).__name__}: {error})",
            where=f"module {of}",
            hint="torch.onnx.export(module, example_inputs, path, dynamo=False) must work on the float module",
        ) from error
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def in_float32() -> Iterator[None]:
    """No gradients, and no autocast of the caller's: what is written computes in the types of its tensors."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def _unprinted() -> Iterator[None]:
    """The exporter turns on a log, which holds the whole graph where it fails and goes to the standard output."""
    switch = "_jit_set_onnx_log_enabled"
    known = getattr(torch._C, switch, None)
    if known is not None:
        setattr(torch._C, switch, lambda on: None)
    try:
        yield
    finally:
        if known is not None:
            setattr(torch._C, switch, known)


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


def without_marks(proto: onnx.ModelProto) -> Marked:
    """Take the marks out of an exported model."""
    model = load(proto)
    unique_names(model)
    found = Marked(model)
    marks = [node for node in model.graph if (node.domain, node.op_type) == (DOMAIN, NAME)]
    for mark in marks:
        place = Place(mark.attributes.get_string("call", ""), mark.attributes.get_string("position", ""))
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
            for edge in _edges(made):
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


def _fill_zeros(model: ir.Model) -> None:
    """Give what training starts at 0 other values, in place: a plan would leave out biases that do nothing yet."""
    namer = Namer(model)
    for node in list(all_nodes(model)):
        normalizes = node.op_type == "BatchNormalization"
        for position in _BIASES.get(node.op_type, ()):
            value = node.inputs[position] if position < len(node.inputs) else None
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


def _edges(marked: ir.Value) -> list[Edge]:
    """Inputs that read a marked tensor; for a constant also those behind nodes that only move it."""
    constant = is_constant(_origin(marked))
    edges = []
    for node, index in marked.uses():
        if (node.domain, node.op_type) == (DOMAIN, NAME):
            continue
        edges.append(Edge(node.name or "", index))
        if constant and node.op_type in _MOVES:
            edges += _edges(node.outputs[0])
    return edges
