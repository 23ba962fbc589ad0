from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxq.errors import ExecutionError, OptionError
from onnxq.graph.files.load import load
from onnxq.ort.inputs import InputInfo
from onnxq.ort.session import Session, available_providers

TEXT = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N, 3] x, int64[] k) => (float[N, 3] y, int64[] j) {
        y = Relu(x)
        j = Identity(k)
    }"""


def _big() -> ir.Model:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[N, 64] x) => (float[N, 64] y) { y = MatMul(x, w) }""")
    array = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    weight = next(v for n in model.graph for v in n.inputs if v is not None and v.name == "w")
    weight.const_value = ir.tensor(array, name="w")
    weight.type, weight.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([64, 64])
    model.graph.register_initializer(weight)
    return model


def test_inputs_outputs_and_run() -> None:
    session = Session(ir.from_onnx_text(TEXT))
    assert session.inputs == [
        InputInfo("x", np.dtype(np.float32), ("N", 3)),
        InputInfo("k", np.dtype(np.int64), ()),
    ]
    assert [info.name for info in session.outputs] == ["y", "j"]
    x = np.array([[-1.0, 0.0, 2.0]], np.float32)
    got = session.run({"x": x, "k": np.asarray(7)})
    assert list(got) == ["y", "j"] and got["j"] == 7
    assert np.array_equal(got["y"], np.maximum(x, 0))
    assert list(session.run({"x": x, "k": np.asarray(7)}, ["j"])) == ["j"]


@pytest.mark.parametrize("optimize", [True, False])
def test_big_initializers_are_handed_over_and_the_model_is_left_alone(optimize: bool) -> None:
    model = _big()
    weight = model.graph.initializers["w"]
    before = weight.const_value
    session = Session(model, optimize=optimize)
    assert weight.const_value is before and before is not None
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
    expected = x.astype(np.float64) @ before.numpy().astype(np.float64)
    assert np.abs(session.run({"x": x})["y"] - expected).max() < 1e-4


def test_numbers_of_a_data_file_that_python_has_no_arrays_of_or_that_nothing_reads(tmp_path: Path) -> None:
    """4 bits, an input that may be overridden, a constant without a reader."""
    text = """
        <ir_version: 10, opset_import: ["" : 21]>
        agraph (float[2, 64] x, float[64, 64] v) => (float[2, 64] z) {
            w = DequantizeLinear (q, s)
            y = MatMul(x, w)
            z = MatMul(y, v)
        }"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    arrays = {"q": rng.integers(-8, 8, (64, 64)), "s": np.float32(0.1), "v": rng.standard_normal((64, 64))}
    arrays["unread"] = arrays["v"]
    for name, array in arrays.items():
        kind = ml_dtypes.int4 if name == "q" else np.float32
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array).astype(kind), name))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
    x = rng.standard_normal((2, 64)).astype(np.float32)
    got = Session(load(tmp_path / "m.onnx"), optimize=False).run({"x": x})["z"]
    np.testing.assert_allclose(got, x @ (arrays["q"] * 0.1) @ arrays["v"], rtol=1e-4, atol=1e-4)


def test_bytes_and_paths(tmp_path: Path) -> None:
    data = ir.to_proto(_big()).SerializeToString()
    path = tmp_path / "m o.onnx"
    path.write_bytes(data)
    x = np.ones((1, 64), np.float32)
    results = [Session(source).run({"x": x})["y"] for source in (_big(), data, path, str(path))]
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_overridable_initializer_stays_overridable() -> None:
    model = _big()
    model.graph.inputs.append(model.graph.initializers["w"])
    session = Session(model)
    assert [info.name for info in session.inputs] == ["x"]
    x = np.ones((1, 64), np.float32)
    assert np.array_equal(session.run({"x": x, "w": np.zeros((64, 64), np.float32)})["y"], np.zeros((1, 64)))
    assert session.run({"x": x})["y"].any()


def test_unknown_provider() -> None:
    with pytest.raises(OptionError, match=r"no provider 'TPU'.*CPUExecutionProvider"):
        Session(_big(), providers=["TPU"])
    assert "CPUExecutionProvider" in available_providers()
    for name in ("CPU", "cpu", "CPUExecutionProvider"):
        Session(_big(), providers=[name])


def test_missing_or_wrong_custom_op_library(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="does not exist"):
        Session(_big(), custom_op_library=tmp_path / "none.so")
    wrong = tmp_path / "wrong.so"
    wrong.write_bytes(b"no library")
    with pytest.raises(OptionError, match=r"wrong\.so.*cannot be loaded"):
        Session(_big(), custom_op_library=wrong)


def test_unknown_operator_is_named() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17, "my.ops" : 1]>
        agraph (float[2] x) => (float[2] y) { y = my.ops.Wobble(x) }""")
    with pytest.raises(ExecutionError, match=r"my\.ops:Wobble.*--custom-op-library"):
        Session(model)


def test_operators_that_only_a_gpu_has() -> None:
    """As onnxruntime's optimizer writes them for a U-net."""
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        agraph (float[1, 4, 4, 8] x, float[8] g, float[8] b) => (float[1, 4, 4, 8] y) {
            y = com.microsoft.GroupNorm <activation = 0, groups = 2> (x, g, b)
        }""")
    with pytest.raises(ExecutionError, match=r"GroupNorm.*as it was exported"):
        Session(model)


def test_broken_file_and_wrong_feeds(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x00\x01nonsense")
    with pytest.raises(ExecutionError, match=r"broken\.onnx.*cannot load"):
        Session(path)
    session = Session(ir.from_onnx_text(TEXT))
    x, k = np.zeros((1, 3), np.float32), np.asarray(1)
    for feeds in ({"x": x}, {"x": x, "k": k, "z": x}, {"x": x[0], "k": k}, {"x": x.astype(np.float64), "k": k}):
        with pytest.raises(ExecutionError):
            session.run(feeds)
    assert capfd.readouterr() == ("", "")


def test_failing_node_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[N] x) => (float[2, 2] y)
        <int64[2] shape = {2, 2}> { [fold_it] y = Reshape(x, shape) }""")
    with pytest.raises(ExecutionError, match=r"fold_it.*shapes of the inputs: 'x' is 5\. A model may take fewer sizes"):
        Session(model).run({"x": np.zeros(5, np.float32)})
    with pytest.raises(ExecutionError, match=r"fold_it.*shapes of the inputs$"):
        Session(model).run({"x": np.zeros(1, np.float32)})  # one sample is no size that was chosen
    assert capfd.readouterr().err == ""


def test_an_index_beyond_a_table_names_the_inputs_of_integers() -> None:
    """Names, types and shapes are right: it is the values."""
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[2] x, int64[N] ids) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
            e = Gather(w, ids)
            y = Add(e, x)
        }""")
    session = Session(model)
    with pytest.raises(ExecutionError, match="Check the values of 'ids': is an index beyond what the model has"):
        session.run({"x": np.zeros(2, np.float32), "ids": np.array([1, 7])})


def test_of_several_inputs_of_integers_only_that_with_the_index_is_named() -> None:
    """A text longer than the table of positions has such an index in none of them: its length is told."""
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (int64[N] ids, int64[N] mask) => (float[N, 2] z) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64 ax = {0}> {
            e = Gather (w, ids)
            p = CumSum (mask, ax)
            f = Gather (w, p)
            z = Add (e, f)
        }""")
    session = Session(model)
    with pytest.raises(ExecutionError, match="Check the values of 'ids': is an index"):
        session.run({"ids": np.array([1, 7]), "mask": np.array([1, 0])})
    with pytest.raises(ExecutionError, match=r"'ids' is 4, 'mask' is 4.*none longer than its table of positions"):
        session.run({"ids": np.array([1, 2, 1, 0]), "mask": np.array([1, 1, 1, 1])})


def test_pictures_of_sides_that_a_model_cannot_halve() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[1, 3, H, W] x) => (float[1, 3, H, W] y) <float[4] twice = {1, 1, 2, 2}> {
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
            r = Resize <mode = "nearest"> (p, , twice)
            y = Add (x, r)
        }""")
    session = Session(model)
    assert session.run({"x": np.zeros((1, 3, 64, 32), np.float32)})["y"].shape == (1, 3, 64, 32)
    with pytest.raises(ExecutionError, match=r"'x' is 1x3x63x32.*--image-resize"):
        session.run({"x": np.zeros((1, 3, 63, 32), np.float32)})
    for other in (np.zeros((1, 2, 63, 32), np.float32), np.zeros((1, 3, 63, 32))):  # no node fails of that
        with pytest.raises(ExecutionError, match=r"shapes of the inputs$"):
            session.run({"x": other})


def test_profile(tmp_path: Path) -> None:
    session = Session(_big(), profile=tmp_path / "profile")
    session.run({"x": np.ones((1, 64), np.float32)})
    path = session.end_profiling()
    assert path.parent == tmp_path and path.stat().st_size > 0


def test_quantizers_computed_as_they_are_written() -> None:
    """Fused, a sum between quantizers is an integer kernel, which rounds once in place of each tensor."""
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[64] x) => (float[64] y) <float s = {0.1}, float t = {0.07}, uint8 z = {128}> {
            a = QuantizeLinear (x, s, z)
            b = DequantizeLinear (a, s, z)
            c = Add (b, b)
            d = QuantizeLinear (c, t, z)
            y = DequantizeLinear (d, t, z)
        }""")
    x = {"x": np.random.default_rng(0).standard_normal(64).astype(np.float32)}
    plain = Session(model, optimize=False).run(x)["y"]
    assert np.array_equal(Session(model, fuse_quantizers=False).run(x)["y"], plain)


def test_a_path_that_is_no_text_is_told_of(tmp_path: Path) -> None:
    """onnxruntime's own words are the signature of its constructor."""
    with pytest.raises(ExecutionError, match=r"whose path is not UTF-8\. Rename the file or its folder"):
        Session(tmp_path / "m\udcff.onnx")
