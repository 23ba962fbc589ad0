"""Make tensors inside a model observable, by adding outputs to a copy of it.

A tensor of an ``If`` branch becomes an output of that branch, and an empty tensor of the other one: an empty array
means that the branch was not taken. A tensor of a ``Loop`` or ``Scan`` body is collected over all iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from onnxq.calibration.workbench import Workbench
from onnxq.errors import ModelError
from onnxq.graph.edits import remove_nodes
from onnxq.graph.passes.prune import remove_unread
from onnxq.graph.values import constant_array

__all__ = ["Tapped", "tap"]


class Tapped(NamedTuple):
    """A model with more outputs.

    Attributes:
        model: the copy; the outputs of the original come first.
        outputs: tensor name to the name of the output that shows it.
        unobservable: tensor name to the reason why no output can show it.
    """

    model: ir.Model
    outputs: dict[str, str]
    unobservable: dict[str, str]


class _UnobservableError(Exception):
    """Raised inside this module only: a tensor cannot be lifted to the top."""


def tap(model: ir.Model, tensors: Sequence[str], *, keep_outputs: bool = True) -> Tapped:
    """Copy a model and add outputs that show the given tensors.

    Args:
        model: the model, not modified; value names are unique over the whole of it.
        tensors: names of tensors; those that are known not to be float32 are reported as unobservable.
        keep_outputs: the original outputs stay, in front; else they are dropped with all that only they need.

    Returns:
        The copy, where to find each tensor, and why some cannot be observed.

    Raises:
        ModelError: the model has no tensor of a name.
    """
    clone = model.clone()
    tapper = _Tapper(clone)
    if not keep_outputs:
        clone.graph.outputs.clear()
    names = list(dict.fromkeys(tensors))
    for name in sorted(names, key=tapper.rank):
        tapper.show(name)
    if not keep_outputs:
        _drop_unused(clone.graph)
    outputs = {name: tapper.outputs[name] for name in names if name in tapper.outputs}
    return Tapped(clone, outputs, tapper.unobservable)


class _Tapper:
    """Adds outputs to one model, and notes in ``outputs`` or ``unobservable`` what became of each tensor."""

    def __init__(self, model: ir.Model) -> None:
        self.outputs: dict[str, str] = {}
        self.unobservable: dict[str, str] = {}
        self._graphs = Workbench(model)
        self._top = model.graph
        self._opset = model.opset_imports.get("", 0)
        self._lifted: dict[int, ir.Value] = {}

    def rank(self, name: str) -> tuple[int, bool]:
        """Which tensors to show first: a Loop carries those of unknown shapes, in front of those that it stacks.

        Each output in front makes all behind it move.
        """
        value = self._value(name)
        return -self._graphs.depth(value), _static(value.shape)

    def show(self, name: str) -> None:
        """Make a tensor an output of the model."""
        value = self._value(name)
        try:
            self.outputs[name] = self._show(name, value)
        except _UnobservableError as reason:
            self.unobservable[name] = str(reason)

    def _value(self, name: str) -> ir.Value:
        value = self._graphs.values.get(name)
        if value is None:
            raise ModelError(f"the model has no tensor named {name!r}")
        return value

    def _show(self, name: str, value: ir.Value) -> str:
        if name in self._graphs.ambiguous:
            raise _UnobservableError("several tensors have this name")
        graph = self._graphs.homes[id(value)]
        if isinstance(value.type, (ir.SequenceType, ir.OptionalType)):
            raise _UnobservableError("it is not a tensor")
        if value.dtype not in (None, ir.DataType.FLOAT):
            raise _UnobservableError(f"it is {str(value.dtype).lower()}, not float32")
        if graph is not self._top and value.dtype is None:
            raise _UnobservableError("it is inside a subgraph and its type is not known")
        while graph is not self._top:
            value = self._lift(value, graph)
            graph = self._graphs.homes[id(value)]
        if value.producer() is None:
            value = self._graphs.copy(value, graph)
        if not value.is_graph_output():
            graph.outputs.append(value)
        return value.name or ""

    def _lift(self, value: ir.Value, graph: ir.Graph) -> ir.Value:
        """A value of the enclosing graph that shows ``value`` of the subgraph ``graph``."""
        if id(value) in self._lifted:
            return self._lifted[id(value)]
        node = self._graphs.parents[id(graph)]
        if node.op_type == "If" and node.domain == "":
            lifted = self._lift_if(value, graph, node)
        elif node.op_type == "Loop" and node.domain == "":
            lifted = self._lift_loop(value, graph, node)
        elif node.op_type == "Scan" and node.domain == "":
            lifted = self._lift_scan(value, graph, node)
        else:
            raise _UnobservableError(f"it is inside a {node.op_type} node")
        self._graphs.register(lifted, _owner(node))
        self._lifted[id(value)] = lifted
        return lifted

    def _lift_if(self, value: ir.Value, graph: ir.Graph, node: ir.Node) -> ir.Value:
        condition = constant_array(node.inputs[0])
        taken = "then_branch" if condition is not None and condition.all() else "else_branch"
        if condition is not None and node.attributes[taken].as_graph() is not graph:
            # onnxruntime 1.31 leaves only the branch that is taken, and may then look for what showed the other's
            raise _UnobservableError("it is in a branch that is never taken")
        for attribute in node.attributes.values():
            branch = attribute.as_graph()
            branch.outputs.append(self._graphs.copy(value, graph) if branch is graph else self._graphs.empty(branch))
        return self._add_output(node, value, None)

    def _lift_loop(self, value: ir.Value, graph: ir.Graph, node: ir.Node) -> ir.Value:
        if _static(value.shape):
            graph.outputs.append(self._graphs.copy(value, graph))
            return self._add_output(node, value, None)
        # iterations may differ in shape: carry one flat tensor that grows
        start = self._graphs.empty(_owner(node), before=node)
        carried = self._graphs.fresh(value, "so_far")
        graph.inputs.append(carried)
        self._graphs.register(carried, graph)
        flat = self._graphs.flatten(value, graph)
        grown = self._graphs.new_node(graph, "Concat", [carried, flat], [ir.AttrInt64("axis", 0)], value, "grown")
        position = max(len(node.inputs), 2)  # trip count and condition come first, even if left out
        node.resize_inputs(position + 1)
        node.replace_input_with(position, start)
        count = position - 2  # loop-carried values so far
        graph.outputs.insert(1 + count, grown)
        return self._add_output(node, value, count)

    def _lift_scan(self, value: ir.Value, graph: ir.Graph, node: ir.Node) -> ir.Value:
        if self._opset < 9:
            raise _UnobservableError("it is inside a Scan of opset 8")
        if value.shape is None:
            raise _UnobservableError("it is inside a Scan and its shape is not known")
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in node.attributes:
                extended = [*node.attributes[name].as_ints(), 0]
                node.attributes[name] = ir.AttrInt64s(name, extended)
        graph.outputs.append(self._graphs.copy(value, graph))
        return self._add_output(node, value, None)

    def _add_output(self, node: ir.Node, like: ir.Value, position: int | None) -> ir.Value:
        """Give a control-flow node one more output, last or at a position."""
        count = len(node.outputs)
        node.resize_outputs(count + 1)
        target = count if position is None else position
        for index in range(count, target, -1):  # the others make room: each takes the part of the one before it
            old, new = node.outputs[index - 1], node.outputs[index]
            _move(old, new)
            self._lifted = {key: new if lifted is old else lifted for key, lifted in self._lifted.items()}
        result = node.outputs[target]
        result.name = self._graphs.fresh_name(f"{like.name}/tap")
        result.type = ir.TensorType(ir.DataType.FLOAT)
        result.shape = None
        for index in range(target, count + 1):
            self._graphs.register(node.outputs[index], _owner(node))
        return result


def _owner(node: ir.Node) -> ir.Graph:
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        raise _UnobservableError("it is inside a function")
    return graph


def _move(old: ir.Value, new: ir.Value) -> None:
    """Let ``new`` take the name, type, shape and readers of ``old``."""
    name = old.name
    new.type, new.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = f"{name}/moved" if name else None
    new.name = name


def _static(shape: ir.Shape | None) -> bool:
    return shape is not None and shape.is_static()


def _drop_unused(graph: ir.Graph) -> None:
    """Remove the nodes that no output needs, from the end; unused initializers go as well."""
    for node in reversed(list(graph)):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            remove_nodes([node])
    remove_unread(graph)
