"""State that a Loop only carries along: its body reads the value from outside instead."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, rename_output, replace_value
from onnxq.graph.note import Note
from onnxq.graph.traverse import all_nodes

__all__ = ["free_invariant_state"]

_LEADING = 2
"""Inputs of a Loop, and of its body, before the first state."""


def free_invariant_state(model: ir.Model) -> list[Note]:
    """Turns states that every iteration hands on unchanged into values that the body reads from the outer graph.

    Converters of TensorFlow models pass the weights of a recurrent cell in this way; as states they look like
    activations, read from outside they are the constants that they are.

    Args:
        model: changed in place. Names must be unique over the model. A state stays one where the graph's own output
            shows its last value, or the body hands it out under a second name.
    """
    loops = [node for node in all_nodes(model) if node.op_type == "Loop" and node.domain == ""]
    return [
        Note("invariant_state", loop.name or "", f"{freed} states that never change are read from outside the Loop")
        for loop in loops
        if (freed := _free(loop))
    ]


def _free(node: ir.Node) -> int:
    """Frees the states of one Loop, which a new node replaces; how many there were."""
    body = node.attributes["body"].as_graph()
    invariant = [index for index in range(len(body.inputs) - _LEADING) if _is_invariant(node, body, index)]
    if not invariant:
        return 0
    for index in invariant:
        initial = node.inputs[_LEADING + index]
        assert initial is not None
        replace_value(body.inputs[_LEADING + index], initial)
        replace_value(node.outputs[index], initial)
    states = [index for index in range(len(body.inputs) - _LEADING) if index not in invariant]
    scans = range(len(body.inputs) - _LEADING, len(node.outputs))
    body.outputs[:] = [output for index, output in enumerate(body.outputs) if index - 1 not in invariant]
    body.inputs[:] = [*body.inputs[:_LEADING], *(body.inputs[_LEADING + index] for index in states)]
    _replace(node, [*node.inputs[:_LEADING], *(node.inputs[_LEADING + index] for index in states)], [*states, *scans])
    return len(invariant)


def _is_invariant(node: ir.Node, body: ir.Graph, index: int) -> bool:
    state, handed_on = body.inputs[_LEADING + index], body.outputs[1 + index]
    source: ir.Value | None = handed_on
    while source is not None and (maker := source.producer()) is not None:
        if maker.op_type != "Identity" or maker.domain != "" or maker.graph is not body:
            return False
        source = maker.inputs[0]
    shown = sum(output is state for output in body.outputs) - (handed_on is state)
    return source is state and not shown and not node.outputs[index].is_graph_output()


def _replace(node: ir.Node, inputs: list[ir.Value | None], kept: list[int]) -> None:
    """Puts a node with other inputs, and some of the outputs, in a node's place."""
    graph = node.graph
    assert graph is not None
    attributes = list(node.attributes.values())
    node.attributes.clear()
    new = ir.Node("", node.op_type, inputs, attributes, num_outputs=len(kept), name=node.name, overload=node.overload)
    new.metadata_props.update(node.metadata_props)
    graph.insert_before(node, new)
    for index, output in zip(kept, new.outputs, strict=True):
        rename_output(output, node.outputs[index])
    remove_nodes([node])
