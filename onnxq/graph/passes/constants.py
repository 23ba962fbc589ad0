"""Constants: every Constant node becomes an initializer, and whatever is computed from constants alone is computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, replace_by_constant
from onnxq.graph.evaluate import evaluate
from onnxq.graph.note import Note
from onnxq.graph.passes.constant_sizes import MAX_RESULT_BYTES, within_bounds
from onnxq.graph.passes.known_shapes import fold_shapes
from onnxq.graph.traverse import all_graphs, subgraphs
from onnxq.graph.values import is_constant, tensor_of

__all__ = ["constant_tensor", "fold_constants", "lift_constants"]

# Different at each call, or with a meaning beyond their numbers: quantization already in the model stays visible
# by its DequantizeLinear, while a constant that is quantized in the model is stored as the integers it becomes.
_NEVER = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("DequantizeLinear", "DynamicQuantizeLinear"),
        *("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
    }
)

_OTHER_SHAPE = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_UNPACKING = frozenset({"GatherBlockQuantized", "MatMulNBits", "QMoE"})

_NUMERIC = frozenset(
    {
        *(ir.DataType.BOOL, ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE),
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    }
)


def constant_tensor(node: ir.Node, name: str) -> ir.TensorProtocol | None:
    """The tensor of a Constant node, whichever of its attributes holds it, as an object of our own called ``name``."""
    for key, attr in node.attributes.items():
        if attr.is_ref():
            return None
        match key:
            case "value":
                held = tensor_of(attr)
                if held.dtype == ir.DataType.STRING:
                    return ir.StringTensor(held.numpy(), shape=held.shape, name=name)  # type: ignore[arg-type]
                if isinstance(held, ir.ExternalTensor):
                    return ir.ExternalTensor(
                        held.location,
                        held.offset,
                        held.length,
                        held.dtype,
                        shape=held.shape,
                        name=name,
                        base_dir=held.base_dir,
                    )
                return ir.Tensor(held.numpy(), dtype=held.dtype, shape=held.shape, name=name)  # type: ignore[arg-type]
            case "value_float" | "value_floats":
                return ir.Tensor(np.array(attr.value, dtype=np.float32), name=name)
            case "value_int" | "value_ints":
                return ir.Tensor(np.array(attr.value, dtype=np.int64), name=name)
            case "value_string":
                return ir.StringTensor([attr.as_string().encode()], shape=ir.Shape([]), name=name)
            case "value_strings":
                texts = [text.encode() for text in attr.as_strings()]
                return ir.StringTensor(texts, shape=ir.Shape([len(texts)]), name=name)
            case _:
                continue
    return None


def lift_constants(model: ir.Model) -> list[Note]:
    """Turns Constant nodes into initializers of the same name; one that makes a graph output stays a node.

    Args:
        model: changed in place. Names must be unique over the model.
    """
    lifted = 0
    for graph in all_graphs(model):
        done: list[ir.Node] = []
        for node in list(graph):
            if node.op_type != "Constant" or node.domain != "" or node.outputs[0].is_graph_output():
                continue
            old = node.outputs[0]
            if not old.name:
                continue
            tensor = constant_tensor(node, old.name)
            if tensor is None:
                continue
            replace_by_constant(old, tensor, graph)
            done.append(node)
        remove_nodes(done)
        lifted += len(done)
    return [Note("constants", "", f"{lifted} Constant nodes became initializers")] if lifted else []


def _foldable(node: ir.Node) -> bool:
    if (
        node.domain != ""
        or node.op_type in _NEVER
        or node.op_type.startswith(("Sequence", "Optional", "SplitToSequence"))
    ):
        return False
    if any(value.is_graph_output() for value in node.outputs) or next(subgraphs(node), None) is not None:
        return False
    if node.op_type == "QuantizeLinear" and node.outputs[0].dtype not in _NUMERIC:
        return False  # integers or floats that NumPy lacks
    return not any(attr.is_ref() for attr in node.attributes.values())


def _shows_codes(node: ir.Node) -> bool:
    """Whether it gives integers of a weight another shape for operators that unpack them, and others read them too."""
    if node.op_type not in _OTHER_SHAPE:
        return False
    source = node.inputs[0]
    held = source.const_value if source is not None else None
    if source is None or held is None or held.dtype.is_floating_point() or held.nbytes <= MAX_RESULT_BYTES:
        return False
    readers = [reader.op_type for reader, _ in node.outputs[0].uses()]
    return _UNPACKING.issuperset(readers) and any(reader.op_type not in _OTHER_SHAPE for reader, _ in source.uses())


def fold_constants(model: ir.Model, stays: Callable[[ir.Node], bool] = lambda _: False) -> list[Note]:
    """Computes everything that depends on constants alone, and shapes that are known, once and for all.

    Not folded: random operators, nodes with subgraphs, operators of other domains, dequantization,
    nodes that make a graph output, integers of a weight in another shape where both are read, and what has a result
    so large that it would blow the file up (see :mod:`onnxq.graph.passes.constant_sizes`); sizes are known before
    anything is computed.

    Args:
        model: changed in place. Names must be unique over the model, shapes inferred.
        stays: whether a node is not computed, though it could be.

    Returns:
        Notes of how much was folded, and of what was left because of its size.
    """
    notes = fold_shapes(model)
    folded = 0
    refused: dict[str, Note] = {}
    while True:
        candidates = _candidates(model, refused, stays)
        if not candidates:
            break
        chosen = within_bounds(model, candidates, refused)
        if not chosen:
            break
        taken = set(chosen)
        wanted = [
            value
            for node in chosen
            for value in node.outputs
            if value.name and any(use.node not in taken for use in value.uses())
        ]
        known = evaluate(chosen, wanted, opset_imports=model.opset_imports, ir_version=model.ir_version)
        for value, array in known.items():
            producer = value.producer()
            if producer is None or producer.graph is None:
                continue
            tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=value.name)
            replace_by_constant(value, tensor, producer.graph)
        gone = _remove_unread(chosen)
        folded += gone
        for node in chosen:
            if node.graph is not None and node.name not in refused:
                refused[node.name or ""] = Note(
                    "constants", node.name or "", f"{node.op_type} of constants: onnxruntime cannot compute it"
                )
        if not gone:
            break
    if folded:
        notes.append(Note("constants", "", f"{folded} nodes computed from constants alone"))
    return [*notes, *refused.values()]


def _remove_unread(nodes: list[ir.Node]) -> int:
    gone = 0
    for node in reversed(nodes):
        if node.graph is not None and not any(value.uses() for value in node.outputs):
            remove_nodes([node])
            gone += 1
    return gone


def _candidates(model: ir.Model, refused: dict[str, Note], stays: Callable[[ir.Node], bool]) -> list[ir.Node]:
    """The nodes whose every input is a constant or made by another candidate, in order."""
    made: set[ir.Value] = set()
    found: list[ir.Node] = []
    for graph in all_graphs(model):
        for node in graph:
            inputs = [value for value in node.inputs if value is not None]
            if not inputs and node.op_type != "Constant":
                continue
            if not all(value in made or is_constant(value) for value in inputs):
                continue
            if node.name in refused or not _foldable(node) or _shows_codes(node) or stays(node):
                continue
            if not all(
                value in made or (value.const_value and value.const_value.dtype in _NUMERIC) for value in inputs
            ):
                continue
            if not inputs:
                continue
            found.append(node)
            made.update(node.outputs)
    return found
