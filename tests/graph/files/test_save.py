from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.errors import OutputError
from onnxq.graph.files import save as module
from onnxq.graph.files.load import load
from onnxq.graph.files.save import file_size, proto_size, save, serialized_size, to_proto
from tests.graph.helpers import build, random, run


def model(size: int = 64) -> ir.Model:
    text = f"g (float[1,{size}] x) => (float[1,8] y) {{ m = MatMul(x, w) \n y = Add(m, b) }}"
    return load(build(text, w=random(size, 8), b=random(8, seed=1)))


FEEDS = {"x": random(1, 64, seed=2)}


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert save(model(), path) == [path]
    assert path.read_bytes() == to_proto(model()).SerializeToString(deterministic=True)
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    source = model()
    assert save(source, path, external_data=True) == [path, tmp_path / "m.onnx.data"]
    proto = onnx.load(path, load_external_data=False)
    located = {t.name: t.data_location for t in proto.graph.initializer}
    assert located == {"w": onnx.TensorProto.EXTERNAL, "b": onnx.TensorProto.DEFAULT}
    expected = run(to_proto(source), FEEDS)
    np.testing.assert_array_equal(run(onnx.load(path), FEEDS)[0], expected[0])
    assert not isinstance(source.graph.initializers["w"].const_value, ir.ExternalTensor)


def test_external_data_by_itself_above_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROTO_BYTES", 1000)
    assert len(save(model(), tmp_path / "m.onnx")) == 2
    with pytest.raises(OutputError, match="too many for one protobuf"):
        to_proto(model())


@pytest.mark.parametrize("external_data", [True, False])
def test_output_is_the_input_being_read(tmp_path: Path, external_data: bool) -> None:
    path = tmp_path / "m.onnx"
    save(model(), path, external_data=True)
    lazy = load(path)
    assert isinstance(lazy.graph.initializers["w"].const_value, ir.ExternalTensor)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(OutputError, match="belongs to the model that is read"):
        save(lazy.clone(), tmp_path / "m.onnx.data", external_data=external_data)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    save(lazy, path, external_data=external_data)
    np.testing.assert_array_equal(run(onnx.load(path), FEEDS)[0], run(to_proto(model()), FEEDS)[0])
    # The model in memory still reads the old data, which the rename has not pulled away under it.
    np.testing.assert_array_equal(np.asarray(lazy.graph.initializers["w"].const_value), random(64, 8))


def test_a_file_of_small_tensors_alone_belongs_to_the_model(tmp_path: Path) -> None:
    proto = to_proto(model(8))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    with pytest.raises(OutputError, match=r"w\.bin': this file belongs to the model"):
        save(load(tmp_path / "m.onnx"), tmp_path / "w.bin")
    assert save(load(to_proto(model(8))), tmp_path / "w.bin") == [tmp_path / "w.bin"]  # of another model


def test_external_input_becomes_standalone(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    target.mkdir()
    save(model(), source / "m.onnx", external_data=True)
    assert save(load(source / "m.onnx"), target / "m.onnx") == [target / "m.onnx"]
    np.testing.assert_array_equal(run(onnx.load(target / "m.onnx"), FEEDS)[0], run(to_proto(model()), FEEDS)[0])


def test_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save(model(), tmp_path / name / "m.onnx", external_data=True)
    for file in ("m.onnx", "m.onnx.data"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_link_is_followed_not_replaced(tmp_path: Path) -> None:
    real = tmp_path / "real.onnx"
    save(model(8), real)
    link = tmp_path / "link.onnx"
    link.symlink_to(real)
    save(model(), link)
    assert link.is_symlink()
    assert real.read_bytes() == to_proto(model()).SerializeToString(deterministic=True)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        save(model(), tmp_path / "none" / "m.onnx")


def test_path_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="folder"):
        save(model(), tmp_path)


@pytest.mark.parametrize("external_data", [True, False])
def test_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external_data: bool) -> None:
    path = tmp_path / "m.onnx"
    save(model(8), path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"m\.onnx.*No space left on device; about \d+ bytes are needed"):
        save(model(), path, external_data=external_data)
    assert os.listdir(tmp_path) == ["m.onnx"]
    assert path.read_bytes() == before


def test_interrupt_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(model(), tmp_path / "m.onnx", external_data=True)
    assert os.listdir(tmp_path) == []


def test_serialized_size_is_close(tmp_path: Path) -> None:
    large = model(4096)
    exact = len(to_proto(large).SerializeToString())
    assert exact <= serialized_size(large) <= 1.1 * exact


@pytest.mark.parametrize("size", [8, 40, 64, 700])
def test_file_size_is_exact(size: int) -> None:
    """Above and below the size from which tensors are left unread; a length needs one byte, two or three."""
    proto = to_proto(model(size))
    proto.doc_string, proto.graph.initializer[0].doc_string = "d" * size, "some words"
    source = ir.serde.deserialize_model(proto)
    assert file_size(source) == len(proto.SerializeToString())
    weight = source.graph.initializers["w"]
    assert weight.const_value is not None
    weight.const_value = ir.Tensor(weight.const_value.numpy(), name="w", doc_string="other words")
    weight.const_value.metadata_props["k"] = "v"
    assert file_size(source) == len(to_proto(source).SerializeToString())


@pytest.mark.parametrize("size", [1, 100, 5000])
def test_the_size_of_a_tensor_is_known_without_writing_its_numbers(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(4 * size, dtype=np.float32).reshape(4, size)
    usual = onnx.numpy_helper.from_array(array, "w")
    usual.doc_string = "words"
    other = onnx.helper.make_tensor("w", onnx.TensorProto.INT32, array.shape, array.astype(np.int32).ravel())
    outside = onnx.TensorProto(dims=array.shape, data_type=1, name="w", data_location=onnx.TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="file")
    for tensor in (usual, other, outside):
        assert proto_size(tensor, array.nbytes) == len(tensor.SerializeToString())
    shells: list[int] = []

    def counted(number: int) -> int:
        shells.append(number)
        return 1

    monkeypatch.setattr("onnxq.graph.files.save._digits", counted)
    proto_size(usual, 10**9)
    assert shells == [10**9], "counted, not written"


def test_file_size_reads_no_big_tensor() -> None:
    def never() -> ir.TensorProtocol:
        raise AssertionError("read")

    source = model()
    weight = source.graph.initializers["w"]
    size = file_size(source)
    weight.const_value = ir.LazyTensor(never, dtype=ir.DataType.FLOAT, shape=ir.Shape([64, 8]), name="w")
    assert file_size(source) == size


@pytest.mark.parametrize("external_data", [True, False])
def test_inputs_left_empty_at_the_end_are_not_written(tmp_path: Path, external_data: bool) -> None:
    """They say nothing, and Qualcomm's parser fails at them; those in between have a place to keep."""
    proto = build(
        """g (float[1,64] x, bool c) => (float[1,64] y) {
            p = Pad (x, pads)
            t = Clip (p, , most)
            y = If (c) <
                then_branch = a () => (float[1,64] s) { s = Clip (t, least) },
                else_branch = b () => (float[1,64] u) { u = Identity (t) }
            >
        }""",
        pads=np.zeros(4, np.int64),
        most=np.float32(1),
        least=np.float32(0),
    )
    pad, _, branches = proto.graph.node
    pad.input.append("")
    branches.attribute[0].g.node[0].input.append("")
    source = load(proto)
    save(source, tmp_path / "m.onnx", external_data=external_data)
    pad, clip, branches = onnx.load(tmp_path / "m.onnx").graph.node
    assert (list(pad.input), list(clip.input)) == (["x", "pads"], ["p", "", "most"])
    (inner,) = (n for a in branches.attribute for n in a.g.node if n.op_type == "Clip")
    assert list(inner.input) == ["t", "least"]
    assert file_size(source) == to_proto(source).ByteSize()


def test_small_tensors_do_not_fill_pages(tmp_path: Path) -> None:
    sizes = {"a": (33, 8), "b": (513, 513), "c": (33, 8)}
    weights = {name: random(*size) for name, size in sizes.items()}
    text = "g (float[1] x) => (float[33,8] y, float[513,513] z) { p = Add(x, a) \n y = Add(p, c) \n z = Add(x, b) }"
    save(load(build(text, **weights)), tmp_path / "m.onnx", external_data=True)
    held = {
        t.name: int(next(e.value for e in t.external_data if e.key == "offset"))
        for t in onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer
    }
    assert held["b"] % 4096 == 0  # 1 MB and more: to be mapped
    assert (tmp_path / "m.onnx.data").stat().st_size < sum(w.nbytes for w in weights.values()) + 4096 + 128
