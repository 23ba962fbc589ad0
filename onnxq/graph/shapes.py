"""Types and shapes by onnx's own shape inference, without handing it the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from onnxq.graph.domains import STANDARD
from onnxq.graph.note import Note
from onnxq.graph.passes.exact_pools import exact_pools
from onnxq.graph.skeleton import big_constants, skeleton
from onnxq.graph.traverse import all_graphs, all_nodes

__all__ = ["SIZES_TO_FIND", "forget_shapes", "infer_shapes", "inputs_of_unknown_size", "shapes_of_one", "sizes_at"]

SIZES_TO_FIND = "onnxq.sizes_to_find"
"""Key in the ``meta`` of a graph's output whose free sizes are those that follow from the inputs, where any do."""
MAX_VECTOR = 1 << 16
"""Elements of the largest vector with which data propagation is used."""
_LIKE_THE_INPUT = frozenset({"GroupNormalization"})
"""Standard operators that onnx (1.23) infers nothing of."""


def infer_shapes(model: ir.Model) -> list[Note]:
    """Gives every value the type and shape that follow from the inputs and the operators.

    What the file itself says about inner tensors that onnx infers is not believed, since edited models are often stale
    there: it is only kept where inference finds nothing. Nor is an empty size of what a Loop carries. Graph
    inputs and outputs keep theirs; an output that the file gives no shape gets the inferred one, and so does one whose
    declared shape contradicts it; where it is marked :data:`SIZES_TO_FIND`, it gets its free sizes. An STFT is told its
    default where it says nothing.

    Args:
        model: changed in place. Names must be unique over the model.

    Returns:
        A note for each pool that was rewritten (see :func:`exact_pools`) and each output whose declared shape was
        wrong, or one that inference failed; the shapes known before then stay.
    """
    for node in all_nodes(model):
        if node.op_type == "STFT" and node.domain in STANDARD and "onesided" not in node.attributes:
            node.attributes["onesided"] = ir.AttrInt64("onesided", 1)  # onnx's inference (1.23) takes 0 for the default
    notes: list[Note] = []
    big = big_constants(model)
    for node, tensor in big.items():
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    while True:
        proto, _ = skeleton(model, big)
        _forget(proto.graph)
        _stand_in(proto.graph)
        try:
            inferred = infer(proto)
        except Exception as error:
            return [*notes, Note("shapes", "", f"shape inference failed, so some shapes stay unknown: {error}")]
        known = _known(inferred)
        _tell(model, known)
        misread = exact_pools(model)
        if not misread:
            break
        notes += misread
    for end in model.graph.outputs:
        if (kind := known.get(end.name or "")) is not None and kind.WhichOneof("value") is not None:
            if end.type is None:
                end.type = ir.serde.deserialize_type_proto_for_type(kind)
            if not isinstance(end.type, ir.TensorType):
                continue
            found = ir.serde.deserialize_type_proto_for_shape(kind)
            if end.shape is not None and found is not None and _contradict(end.shape, found):
                notes.append(Note("shapes", end.name or "", f"declared with shape {end.shape}, has {found}: corrected"))
                end.shape = None
            if end.shape is None:  # no sizes are a shape, too
                end.shape = found
            elif found is not None and SIZES_TO_FIND in end.meta:
                end.shape = _fixed(end.shape, found)
    return notes


def _known(inferred: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """What inference found of the tensors that nodes make, by name."""
    known: dict[str, onnx.TypeProto] = {}
    stack = [inferred.graph]
    while stack:
        graph = stack.pop()
        for info in graph.value_info:
            known[info.name] = info.type
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    for info in (*attribute.g.input, *attribute.g.output):
                        known.setdefault(info.name, info.type)
                    stack.append(attribute.g)
    for info in inferred.graph.output:
        known.setdefault(info.name, info.type)
    return known


def _tell(model: ir.Model, known: Mapping[str, onnx.TypeProto]) -> None:
    """Puts types and shapes to the inner tensors of a model."""
    fixed = {*model.graph.inputs, *model.graph.outputs}
    for current in all_graphs(model):
        for value in (*current.inputs, *(v for node in current for v in node.outputs)):
            if value in fixed or not value.name or value.name not in known:
                continue
            kind = known[value.name]
            if kind.WhichOneof("value") is None:
                continue
            typed = ir.serde.deserialize_type_proto_for_type(kind)
            if typed is not None and getattr(typed, "dtype", None) != ir.DataType.UNDEFINED:
                value.type = typed
            shape = ir.serde.deserialize_type_proto_for_shape(kind)
            if shape is not None:
                value.shape = shape


def _fixed(declared: ir.Shape, found: ir.Shape) -> ir.Shape:
    """A declared shape, with the sizes that were found of those that are free."""
    sizes = zip(declared, found, strict=True)
    return ir.Shape([other if not isinstance(one, int) and isinstance(other, int) else one for one, other in sizes])


def _contradict(declared: ir.Shape, found: ir.Shape) -> bool:
    """Whether no tensor has both shapes."""
    if len(declared) != len(found):
        return True
    sizes = zip(declared, found, strict=True)
    return any(isinstance(one, int) and isinstance(other, int) and one != other for one, other in sizes)


def infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    """onnx's shape inference, with data propagation where that is safe.

    Data propagation keeps a record for each element of a vector, so that one large vector would fill the memory: sizes
    are looked at first.
    """
    plain = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=False)
    stack = [plain.graph]
    while stack:
        graph = stack.pop()
        for info in (*graph.value_info, *graph.output):
            dims = info.type.tensor_type.shape.dim
            if len(dims) == 1 and dims[0].dim_value > MAX_VECTOR:
                return plain
        stack += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)


def _is_inferred(node: ir.Node | onnx.NodeProto) -> bool:
    """Whether onnx can infer what a node makes."""
    if not node.domain and node.op_type in _LIKE_THE_INPUT:
        return False
    if not node.domain or node.domain not in STANDARD:
        return not node.domain
    known = onnx.defs.has(node.op_type, node.domain)
    return known and onnx.defs.get_schema(node.op_type, node.domain).has_type_and_shape_inference_function


def _stand_in(graph: onnx.GraphProto) -> None:
    """Lets operators that onnx infers nothing of, though their output is like their input, stand as Identity."""
    stack = [graph]
    while stack:
        for node in stack.pop().node:
            if not node.domain and node.op_type in _LIKE_THE_INPUT:
                node.op_type = "Identity"
                del node.input[1:], node.attribute[:]
            stack += [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def _forget(graph: onnx.GraphProto) -> None:
    """Drops what the protobuf says about the shapes of what standard operators make."""
    stack = [graph]
    while stack:
        current = stack.pop()
        made = {name for node in current.node if _is_inferred(node) for name in node.output}
        for info in current.output:
            if info.name in made and info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
        foreign = {name for node in current.node if not _is_inferred(node) for name in node.output}
        kept = [info for info in current.value_info if info.name in foreign]
        del current.value_info[:]
        current.value_info.extend(kept)
        for node in current.node:
            bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            for body in bodies if node.op_type == "Loop" and node.domain in STANDARD else ():
                _free_empty(body)
            stack += bodies


def _free_empty(body: onnx.GraphProto) -> None:
    """Drops the sizes of nothing of what a Loop carries: an exporter says them of a list that the Loop fills."""
    for info in body.input[2:]:
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and not dim.dim_value:
                dim.Clear()


def forget_shapes(model: ir.Model) -> None:
    """Drops what is known of inner tensors that standard operators make: any reader infers it, and files get smaller.

    Args:
        model: changed in place. Graph inputs and outputs keep their types, and so does what an operator makes of which
            onnx infers nothing: of another domain, or one of classical machine learning, a Scaler say.
    """
    for graph in all_graphs(model):
        outputs = set(graph.outputs)
        for node in graph:
            if _is_inferred(node):
                for value in node.outputs:
                    if value not in outputs:
                        value.type = value.shape = None


def shapes_of_one(model: ir.Model) -> dict[str, tuple[int, ...]]:
    """Input name → shape where a free first dimension is 1; inputs with other free dimensions are missing."""
    found = {}
    for value in model.graph.inputs:
        first, *others = value.shape or ir.Shape([None, None])
        if value.name and all(isinstance(dim, int) for dim in others):
            found[value.name] = (first if isinstance(first, int) else 1, *(d for d in others if isinstance(d, int)))
    return found


def inputs_of_unknown_size(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Names of inputs with free dimensions, the first apart, of which no shape is given.

    Args:
        model: left unchanged.
        shapes: input name → shape.
    """
    known = {*shapes_of_one(model), *shapes}
    return [value.name for value in model.graph.inputs if value.name and value.name not in known]


def sizes_at(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Number of elements of every tensor whose shape follows from given shapes of the inputs.

    Args:
        model: left unchanged. Names must be unique over the model.
        shapes: input name → shape.

    Returns:
        Tensor name → number of elements; tensors of unknown shape are missing.
    """
    proto, _ = skeleton(model)
    _forget(proto.graph)
    for info in proto.graph.input:
        if info.name in shapes:
            dims = info.type.tensor_type.shape.dim
            del dims[:]
            for size in shapes[info.name]:
                dims.add().dim_value = size
    try:
        inferred = infer(proto)
    except Exception:  # raised for anything it cannot digest; the sizes are a help, not a need
        return {}
    sizes: dict[str, int] = {}
    stack = [inferred.graph]
    while stack:
        graph = stack.pop()
        for info in (*graph.input, *graph.value_info, *graph.output):
            tensor = info.type.tensor_type
            dims = tensor.shape.dim
            if tensor.HasField("shape") and all(d.HasField("dim_value") for d in dims):
                sizes[info.name] = math.prod(d.dim_value for d in dims)
        stack += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return sizes
