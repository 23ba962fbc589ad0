from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.graph.files.load import load
from onnxq.graph.files.save import file_size, to_proto
from onnxq.graph.traverse import all_nodes
from tests.graph.helpers import build, random
from tests.models import i64


def tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    """Of initializers, attributes and functions."""
    made = [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]
    nodes = [*all_nodes(model), *(node for function in model.functions.values() for node in function.all_nodes())]
    attributes = [a for node in nodes for a in node.attributes.values() if a.type is ir.AttributeType.TENSOR]
    return [*made, *(a.as_tensor() for a in attributes)]


def everywhere() -> onnx.ModelProto:
    """A model with numbers in an initializer, a Constant, a branch and a function."""
    proto = build(
        """g (float[4, 4] x, bool c) => (float[4, 4] y, float[4, 4] z) {
            k = Constant <value_float = 1.0> ()
            a = Mul (x, w)
            y = If (c) <
                then_branch = t () => (float[4, 4] p) { [inner] q = Constant <value_float = 1.0> () p = Add (a, q) },
                else_branch = e () => (float[4, 4] r) { r = Identity (a) }
            >
            z = Add (a, k)
        }""",
        w=random(4, 4),
    )
    branch = proto.graph.node[2].attribute[0].g
    for node in (proto.graph.node[0], branch.node[0]):
        del node.attribute[:]
        value = onnx.numpy_helper.from_array(random(4, 4, seed=1), "v")
        node.attribute.append(onnx.helper.make_attribute("value", value))
    return proto


def test_numbers_are_read_without_a_copy() -> None:
    found = tensors(load(everywhere()))
    assert len(found) == 3
    for tensor in found:
        assert np.shares_memory(tensor.numpy(), tensor.numpy()), tensor.name


def test_packed_numbers_are_kept_in_a_protobuf_of_their_own() -> None:
    proto = everywhere()
    packed = onnx.helper.make_tensor("packed", onnx.TensorProto.INT4, [3], [1, 2, 3])
    proto.graph.initializer.append(packed)
    model = load(proto)
    assert sum(isinstance(t, ir.serde.TensorProtoTensor) for t in tensors(model)) <= 1
    array = model.graph.initializers["packed"].const_value
    assert array is not None and array.numpy().tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", ["float32", "float16", "float64", "int64", "uint8", "bool"])
def test_what_was_read_is_written_as_it_was(kind: str, tmp_path: Path) -> None:
    array = random(3, 5).astype(kind)
    proto = build("g (float[5] x) => (float[5] y) { y = Relu (x) }", w=array, empty=i64([]))
    proto.graph.initializer[0].doc_string = "of a layer"
    proto.graph.initializer[0].metadata_props.add(key="a", value="b")
    onnx.save(proto, tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    assert list(to_proto(model).graph.initializer) == list(proto.graph.initializer)
    assert file_size(model) == to_proto(model).ByteSize()
