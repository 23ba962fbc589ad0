from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.errors import ModelError
from onnxq.graph.files.load import load
from onnxq.graph.files.save import to_proto
from onnxq.graph.namer import unique_names
from tests.graph.helpers import build, ops, random, run
from tests.models import f16, f32, i64

RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


def external(folder: Path, location: str = "m.data", **entries: int) -> Path:
    """A model whose (64, 8) float32 weight lies in a file beside it."""
    proto = build("g (float[1,64] x) => (float[1,8] y) { y = MatMul(x, w) }", w=random(64, 8))
    tensor = proto.graph.initializer[0]
    (folder / "m.data").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load(tmp_path / "none.onnx")


def test_folder_names_the_models_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match=r"folder.*a\.onnx"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x00\x01 not a model", b"PK\x03\x04zip"])
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not an ONNX"):
        load(path)


def test_truncated(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    data = build("g (float[1,64] x) => (float[1,8] y) { y = MatMul(x, w) }", w=random(64, 8)).SerializeToString()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="cut short"):
        load(path)


def test_undefined_name() -> None:
    with pytest.raises(ModelError, match=r"\(Add\).*'ghost'"):
        load(build("g (float[2] x) => (float[2] y) { y = Add(x, ghost) }"))


def test_undefined_name_in_subgraph() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] p) { p = Add(x, ghost) },
                    else_branch = b () => (float[2] q) { q = Relu(x) }> }"""
    with pytest.raises(ModelError, match="'ghost'"):
        load(build(text))


def test_name_of_another_branch_is_not_in_scope() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] p) { p = Relu(x) },
                    else_branch = b () => (float[2] q) { q = Relu(p) }> }"""
    with pytest.raises(ModelError, match="'p'"):
        load(build(text))


def test_cycle_names_its_nodes() -> None:
    with pytest.raises(ModelError, match=r"cycle.*Add.*Relu|cycle.*Relu.*Add"):
        load(build("g (float[2] x) => (float[2] y) { a = Add(x, y) \n y = Relu(a) }"))


def test_name_defined_twice() -> None:
    with pytest.raises(ModelError, match="'y' is defined twice"):
        load(build("g (float[2] x) => (float[2] y) { y = Relu(x) \n y = Neg(x) }"))


def test_initializer_defined_twice() -> None:
    proto = build("g (float[2] x) => (float[2] y) { y = Add(x, w) }", w=random(2))
    proto.graph.initializer.append(proto.graph.initializer[0])
    with pytest.raises(ModelError, match="'w' is defined twice"):
        load(proto)


def test_no_outputs() -> None:
    proto = build(RELU)
    del proto.graph.output[:]
    with pytest.raises(ModelError, match="no outputs"):
        load(proto)


def test_output_that_nothing_makes() -> None:
    proto = build(RELU)
    proto.graph.output[0].name = "z"
    with pytest.raises(ModelError, match="'z' is made by no node"):
        load(proto)


def test_unsorted_nodes_are_sorted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    proto = build("g (float[2] x) => (float[2] y) { a = Neg(x) \n y = Relu(a) }")
    expected = run(proto, {"x": f32([-1, 2])})
    nodes = [proto.graph.node[1], proto.graph.node[0]]
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(proto)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    with caplog.at_level(logging.WARNING, logger="onnxq"):
        model = load(shuffled)
    assert ops(model) == ["Neg", "Relu"]
    assert "sorted" in caplog.text
    np.testing.assert_array_equal(run(to_proto(model), {"x": f32([-1, 2])})[0], expected[0])


def test_sorted_model_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(build(RELU))
    assert caplog.text == ""


def test_modelproto_stays_as_it_is() -> None:
    proto = build("g (float[2] x) => (float[2] y) { y = Add(x, w) }", w=random(2))
    before = proto.SerializeToString()
    model = load(proto)
    model.graph.initializers["w"].name = "renamed"
    model.graph[0].op_type = "Sub"
    assert proto.SerializeToString() == before


def test_ir_model_stays_as_it_is() -> None:
    source = ir.serde.deserialize_model(build("g (float[2] x) => (float[2] y) { y = Add(x, w) }", w=random(2)))
    before = ir.serde.serialize_model(source).SerializeToString()
    model = load(source)
    model.graph.initializers["w"].name = "renamed"
    model.graph.inputs[0].dtype = ir.DataType.DOUBLE
    model.graph[0].outputs[0].dtype = ir.DataType.DOUBLE
    assert ir.serde.serialize_model(source).SerializeToString() == before
    np.testing.assert_array_equal(np.asarray(model.graph.initializers["renamed"].const_value), random(2))


def test_unsorted_ir_model() -> None:
    source = ir.serde.deserialize_model(build("g (float[2] x) => (float[2] y) { a = Neg(x) \n y = Relu(a) }"))
    first = source.graph[0]
    source.graph.remove(first)
    source.graph.append(first)
    assert ops(load(source)) == ["Neg", "Relu"]
    assert [node.op_type for node in source.graph] == ["Relu", "Neg"]


def test_one_form_whatever_the_field() -> None:
    array = f16([[1, 2], [3, 4]])
    raw = build("g (float16[2] x) => (float16[2] y) { y = MatMul(x, w) }", w=array)
    fields = onnx.ModelProto()
    fields.CopyFrom(raw)
    tensor = fields.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.int32_data.extend(int(v) for v in array.view(np.uint16).reshape(-1))
    assert to_proto(load(fields)).SerializeToString() == to_proto(load(raw)).SerializeToString()


def test_sparse_initializer_becomes_dense() -> None:
    proto = build("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    values = onnx.numpy_helper.from_array(f32([5, 7]), "w")
    indices = onnx.numpy_helper.from_array(i64([1, 3]), "w_indices")
    proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))
    model = load(proto)
    np.testing.assert_array_equal(np.asarray(model.graph.initializers["w"].const_value), [0, 5, 0, 7])


def test_standard_domain_by_its_long_name() -> None:
    proto = build(RELU)
    proto.opset_import[0].domain = "ai.onnx"
    assert load(proto).opset_imports == {"": 17}


def test_sizes_below_zero_are_free() -> None:
    proto = build("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    graph = load(proto).graph
    assert [str(end.shape) for end in (*graph.inputs, *graph.outputs)] == ["[None,3]", "[None,3]"]


def test_graphs_without_a_name_get_one() -> None:
    """onnxruntime takes a model as it is, the checker of ONNX does not."""
    proto = build(
        """g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { a = Relu(x) },
                else_branch = e () => (float[2] b) { b = Neg(x) }
            >
        }"""
    )
    for graph in (proto.graph, *(attribute.g for attribute in proto.graph.node[0].attribute)):
        graph.name = ""
    with pytest.raises(onnx.checker.ValidationError, match="name"):
        onnx.checker.check_model(proto)
    onnx.checker.check_model(to_proto(load(proto)), full_check=True)
    assert proto.graph.name == ""


def test_one_string_as_node_and_tensor_name() -> None:
    proto = build("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.node[0].name = "y"
    model = load(proto)
    assert unique_names(model) == []
    assert model.graph[0].name == model.graph[0].outputs[0].name == "y"


class TestExternalData:
    def test_stays_on_disk(self, tmp_path: Path) -> None:
        tensor = load(external(tmp_path)).graph.initializers["w"].const_value
        assert isinstance(tensor, ir.ExternalTensor)
        np.testing.assert_array_equal(tensor.numpy(), random(64, 8))

    def test_missing(self, tmp_path: Path) -> None:
        path = external(tmp_path)
        (tmp_path / "m.data").unlink()
        with pytest.raises(ModelError, match=r"tensor 'w'.*'m\.data' is missing"):
            load(path)

    def test_too_short_gives_the_bytes(self, tmp_path: Path) -> None:
        path = external(tmp_path)
        os.truncate(tmp_path / "m.data", 100)
        with pytest.raises(ModelError, match=r"needs 2048 bytes at offset 0 of .*, which has 100 bytes"):
            load(path)

    def test_offset_beyond_the_end(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="needs 2048 bytes at offset 4096"):
            load(external(tmp_path, offset=4096))

    def test_length_that_does_not_fit_the_shape(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="says 2000 bytes, its type and shape need 2048"):
            load(external(tmp_path, length=2000))

    @pytest.mark.parametrize("location", ["../m.data", "/etc/hostname", "a/../../m.data", ""])
    def test_outside_the_folder(self, tmp_path: Path, location: str) -> None:
        (tmp_path / "models").mkdir()
        path = external(tmp_path / "models", location)
        (tmp_path / "models" / "m.data").rename(tmp_path / "m.data")
        with pytest.raises(ModelError, match="outside the model's folder"):
            load(path)

    def test_linked_model_and_data(self, tmp_path: Path) -> None:
        store, links = tmp_path / "store", tmp_path / "links"
        store.mkdir()
        links.mkdir()
        path = external(store)
        (store / "m.data").rename(store / "blob")
        (links / "m.onnx").symlink_to(path)
        (links / "m.data").symlink_to(store / "blob")
        tensor = load(links / "m.onnx").graph.initializers["w"].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), random(64, 8))

    def test_data_beside_the_linked_model(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        store.mkdir()
        link = tmp_path / "link.onnx"
        link.symlink_to(external(store))
        assert load(link).graph.initializers["w"].const_value is not None

    def test_hard_linked_data(self, tmp_path: Path) -> None:
        path = external(tmp_path)
        os.link(tmp_path / "m.data", tmp_path / "other")
        tensor = load(path).graph.initializers["w"].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), random(64, 8))


def test_a_serialized_model() -> None:
    proto = build(RELU)
    assert ops(load(proto.SerializeToString())) == ["Relu"]


@pytest.mark.parametrize("source", [b"", b"x12", build(RELU).SerializeToString()[:20]])
def test_bytes_of_something_else(source: bytes) -> None:
    with pytest.raises(ModelError, match="the bytes given as a model: "):
        load(source)


def test_what_is_no_model_at_all() -> None:
    with pytest.raises(ModelError, match="an object of type int is not a model"):
        load(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", ["ZipMap", "Identity"])
def test_maps_are_refused_with_the_way_to_do_without(op: str) -> None:
    """As of a classifier of scikit-learn: its probabilities go out as a sequence of maps."""
    model = build("agraph (float[2, 2] x) => (float[2, 2] p) { s = Softmax (x)\n p = Identity (s) }")
    tensor = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    maps = onnx.helper.make_sequence_type_proto(onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, tensor))
    model.graph.output[0].type.CopyFrom(maps)
    model.graph.node[1].op_type = op
    with pytest.raises(ModelError) as caught:
        load(model)
    assert caught.value.where == "output 'p'"
    assert "it is a sequence of maps" in str(caught.value)
    assert ("{'zipmap': False} in skl2onnx" in str(caught.value)) == (op == "ZipMap")
    assert "creating a PR" not in str(caught.value)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 3\n", "a pointer of Git LFS.*git lfs pull"),
        (b"\x1f\x8b\x08\x08\x00\x00", "compressed by gzip.*gunzip"),
        (b"PK\x03\x04\x00\x00", r"a zip archive.*torch\.onnx\.export"),
        (b"\x1c\x00\x00\x00TFL3\x00\x00", "a TensorFlow Lite model"),
        (b"\x89HDF\r\n\x1a\n\x00", "an HDF5 file"),
        (b"\x80\x02}q\x00.", "a pickle"),
        (b"\n<!DOCTYPE html><html>404</html>", "a web page.*Download"),
        (b"<net name='x' version='11'></net>", "an XML file, as OpenVINO's"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, head: bytes, said: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(head + bytes(64))
    with pytest.raises(ModelError, match=rf"m\.onnx': this is not an ONNX file, but {said}"):
        load(path)


@pytest.mark.parametrize("field", ["name", "doc_string"])
def test_texts_of_tensors_are_utf8(field: str) -> None:
    proto = build(RELU, other=random(4))
    setattr(proto.graph.initializer[0], field, "to_be_damaged")
    source = proto.SerializeToString()
    load(source)
    with pytest.raises(ModelError, match="UTF-8"):
        load(source.replace(b"to_be_damaged", b"to_be_damage\xff"))


def test_constant_of_another_shape_than_is_declared() -> None:
    """onnxruntime-genai's builder declares all of them without axes."""
    proto = build("g (float[2,3] x) => (float[3,2] y) { s = Constant<value = int64[2] {3, 2}>() \n y = Reshape(x, s) }")
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("s", onnx.TensorProto.INT64, []))
    with pytest.raises(Exception, match="differ in rank"):
        onnx.checker.check_model(proto, full_check=True)
    x = {"x": random(2, 3)}
    np.testing.assert_array_equal(run(to_proto(load(proto)), x)[0], run(proto, x)[0])
    onnx.checker.check_model(to_proto(load(proto)), full_check=True)
