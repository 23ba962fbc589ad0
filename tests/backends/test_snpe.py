"""Encodings files: what they say of each tensor in each version, and that they are read back exactly."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.snpe import BACKEND
from onnxq.errors import BackendError
from onnxq.ort.session import Session
from onnxq.qparams import QParams
from tests.models import build, constants_of, feeds_for, images, normal
from tests.planning.test_planner import residual

FORMATS = tuple(name for name, form in BACKEND.formats.items() if form.read is not None)
FEEDS = images(1, 16, 8, 8, samples=2)
WORKERS = Path(onnxq.__file__).parent / "runtimes" / "workers"


def net() -> onnx.ModelProto:
    """Channel axes 0 and 1, a bias, a single output channel, a constant operand."""
    return build(
        """(float[1, 16, 8, 8] x) => (float[1, 1, 16, 16] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            r = Relu (a)
            s = Mul (r, c)
            t = ConvTranspose <strides = [2, 2]> (s, w2, b2)
            y = Conv (t, w3)
        }""",
        w1=normal(8, 16, 3, 3),
        b1=normal(8),
        c=np.abs(normal(8, 1, 1)) + 0.5,
        w2=normal(8, 6, 2, 2, seed=1),
        b2=normal(6),
        w3=normal(1, 6, 1, 1, seed=2),
    )


def written(folder: Path, form: str, **options: Any) -> tuple[onnxq.Quantized, Path, dict[str, Any]]:
    path = folder / "q.onnx"
    q = onnxq.quantize(
        net(), FEEDS, backend="snpe", output=path, options=Options(format=form, effort="fast", **options)
    )
    assert sorted(p.name for p in folder.iterdir()) == ["q.encodings", "q.onnx"]
    return q, path, json.loads(path.with_suffix(".encodings").read_text())


def zero_of(qp: QParams) -> int:
    return int(qp.zero_point.reshape(-1)[0])


def test_0_6_1_has_a_list_of_encodings_for_each_name(tmp_path: Path) -> None:
    q, _, document = written(tmp_path, "encodings-0.6.1")
    assert document.keys() == {"version", "activation_encodings", "param_encodings"}
    assert document["version"] == "0.6.1"
    acts, params = document["activation_encodings"], document["param_encodings"]
    assert acts.keys() == {"x", "r", "s", "t", "y"}
    assert params.keys() == {"w1", "c", "w2", "w3"}
    (x,) = acts["x"]
    scale, zero = float(q.qparams["x"].scale), zero_of(q.qparams["x"])
    assert x == {
        "bitwidth": 8,
        "dtype": "int",
        "is_symmetric": "False",
        "scale": scale,
        "offset": -zero,
        "min": -zero * scale,
        "max": (255 - zero) * scale,
    }
    assert [e["scale"] for e in params["w1"]] == q.qparams["w1"].scale.tolist()
    for entry in params["w1"]:
        assert (entry["offset"], entry["is_symmetric"]) == (-128, "True")
        assert entry["min"] == pytest.approx(-128 * entry["scale"])
        assert entry["max"] == pytest.approx(127 * entry["scale"])
    assert [len(params[name]) for name in ("w1", "c", "w2", "w3")] == [8, 1, 6, 1]


def test_1_0_0_has_arrays_and_a_header(tmp_path: Path) -> None:
    q, _, document = written(tmp_path, "encodings-1.0.0")
    acts = {e["name"]: e for e in document["activation_encodings"]}
    params = {e["name"]: e for e in document["param_encodings"]}
    assert acts["r"] == {
        "name": "r",
        "dtype": "INT",
        "bw": 8,
        "is_sym": False,
        "enc_type": "PER_TENSOR",
        "scale": [float(q.qparams["r"].scale)],
        "offset": [0],
    }
    assert params["w2"]["enc_type"] == "PER_CHANNEL"
    assert params["w2"]["offset"] == [-128] * 6
    assert params["w2"]["is_sym"] is True
    assert params["w3"]["enc_type"] == "PER_TENSOR"  # one channel
    assert document["quantizer_args"]["activation_bitwidth"] == document["quantizer_args"]["param_bitwidth"] == 8


def test_2_0_0_is_written_as_onnx_has_it(tmp_path: Path) -> None:
    q, _, document = written(tmp_path, "encodings-2.0.0")
    assert document.keys() == {"producer", "version", "encodings"}
    entries = {e["name"]: e for e in document["encodings"]}
    assert entries.keys() == {"x", "r", "s", "t", "y", "w1", "c", "w2", "w3", "b1", "b2"}
    assert entries["r"] == {"name": "r", "output_dtype": "uint8", "y_scale": float(q.qparams["r"].scale)}
    assert entries["x"]["y_zero_point"] == zero_of(q.qparams["x"])
    assert (entries["w1"]["axis"], entries["w2"]["axis"]) == (0, 1)
    assert entries["w1"]["output_dtype"] == "int8" and "y_zero_point" not in entries["w1"]
    expected = (q.qparams["x"].scale * q.qparams["w1"].scale).tolist()
    assert entries["b1"] == {"name": "b1", "output_dtype": "int32", "y_scale": expected, "axis": 0}
    assert not any("bw" in e for e in document["encodings"])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("bits", [8, 16])
def test_numbers_are_read_back_exactly(tmp_path: Path, form: str, bits: int) -> None:
    q, path, _ = written(tmp_path, form, act_bits=bits)
    read = BACKEND.formats[form].read
    assert read is not None
    again = read(path)
    sites = {s.tensor: q.qparams[s.name] for s in q.plan.sites if s.role != "bias" or form.endswith("2.0.0")}
    found = {s.tensor: again.qparams[s.name] for s in again.plan.sites}
    assert sites.keys() == found.keys()
    for name, qp in sites.items():
        np.testing.assert_array_equal(found[name].scale.reshape(-1), qp.scale.reshape(-1), name)
        np.testing.assert_array_equal(found[name].zero_point.reshape(-1), qp.zero_point.reshape(-1), name)
        assert found[name].spec.bits == qp.spec.bits and found[name].spec.signed == qp.spec.signed, name
    for feed in FEEDS:
        np.testing.assert_array_equal(
            Session(again.rendered(), optimize=False).run(feed)["y"],
            Session(q.rendered(), optimize=False).run(feed)["y"],
        )


def test_the_model_is_float_with_weights_on_their_grid(tmp_path: Path) -> None:
    q, path, _ = written(tmp_path, "encodings-1.0.0")
    model = onnx.load(path)
    assert {n.op_type for n in model.graph.node} == {"Conv", "Relu", "Mul", "ConvTranspose"}
    stored = constants_of(model)
    scale = q.qparams["w1"].scale.reshape(-1, 1, 1, 1)
    steps = stored["w1"] / scale
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
    assert np.abs(np.rint(steps)).max() == 127


def test_symmetric_activations_are_unsigned_too(tmp_path: Path) -> None:
    _, _, document = written(tmp_path, "encodings-1.0.0", symmetric=True)
    assert {(e["offset"][0], e["is_sym"]) for e in document["activation_encodings"]} == {(-128, False)}


def test_what_a_relu_is_computed_with_has_no_encoding_between(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(residual(), FEEDS, backend="snpe", output=path)
    document = json.loads(path.with_suffix(".encodings").read_text())
    names = {e["name"] for e in document["activation_encodings"]}
    assert names == {"x", "r", "c", "t", "p", "y"}


@pytest.mark.parametrize("form", FORMATS)
def test_another_version_is_not_taken_for_this_one(tmp_path: Path, form: str) -> None:
    _, path, _ = written(tmp_path, form)
    for other in FORMATS:
        read = BACKEND.formats[other].read
        assert read is not None
        if other != form:
            with pytest.raises(BackendError, match="are of version"):
                read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version="9.9"), "version '9.9' are unknown"),
        (lambda d: d["activation_encodings"][0].pop("scale"), "not encodings of version 1.0.0"),
        (lambda d: d["activation_encodings"][0].update(name="nowhere"), "nowhere"),
        (lambda d: d["activation_encodings"][0].update(dtype="FLOAT"), "not encodings of version 1.0.0"),
    ],
)
def test_faults_of_a_file_are_named(tmp_path: Path, change: Any, message: str) -> None:
    _, path, document = written(tmp_path, "encodings-1.0.0")
    change(document)
    path.with_suffix(".encodings").write_text(json.dumps(document))
    read = BACKEND.formats["encodings-1.0.0"].read
    assert read is not None
    with pytest.raises(BackendError, match=message):
        read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    _, path, _ = written(tmp_path, "encodings-1.0.0")
    path.with_suffix(".encodings").unlink()
    read = BACKEND.formats["encodings-1.0.0"].read
    assert read is not None
    with pytest.raises(BackendError, match="cannot be read"):
        read(path)


def test_fake_quantize_runs_by_itself_with_the_same_numbers(tmp_path: Path) -> None:
    options = Options(format="fake-quantize", effort="fast")
    onnxq.quantize(net(), FEEDS, backend="snpe", output=tmp_path / "fake.onnx", options=options)
    (tmp_path / "encodings").mkdir()
    beside, _, _ = written(tmp_path / "encodings", "encodings-1.0.0")
    for feed in FEEDS:
        alone = Session(tmp_path / "fake.onnx", optimize=False).run(feed)["y"]
        np.testing.assert_array_equal(alone, Session(beside.rendered(), optimize=False).run(feed)["y"])


def test_a_layer_is_counted_with_the_function_it_absorbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As aimet-onnx writes it: a quantizer behind the Relu, none between the two, stored integers for weights."""
    model = build(
        """(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y, float[1, 2, 4, 4] z) {
            w = DequantizeLinear (wq, s)
            a = Conv (x, w)
            r = Relu (a)
            rq = QuantizeLinear (r, s, o)
            rd = DequantizeLinear (rq, s, o)
            b = Conv (rd, w)
            y = Relu (b)
            yq = QuantizeLinear (y, s, o)
            c = Conv (rd, w)
            z = Neg (c)
            d = Relu (c)
            dq = QuantizeLinear (d, s, o)
            e = Conv (rd, v)
            eq = QuantizeLinear (e, s, o)
        }""",
        wq=np.ones((2, 2, 1, 1), np.int8),
        v=normal(2, 2, 1, 1),
        s=np.float32(0.1),
        o=np.uint8(0),
    )
    names = dict(zip("abrcyzde", ["first", "second", "relu", "many", "relu", "neg", "relu", "weight"], strict=True))
    for node in model.graph.node:
        node.name = names.get(node.output[0], "")
    monkeypatch.syspath_prepend(str(WORKERS))
    found = importlib.import_module("run_snpe").kinds(model)
    assert found["integer"] == ["Conv first", "Relu relu", "Conv second", "Relu relu", "Relu relu"]
    assert found["floating"] == ["Conv many", "Neg neg", "Conv weight"], "read twice; a weight in float"


def test_an_operator_of_another_domain_does_not_say_where_channels_lie(tmp_path: Path) -> None:
    """Its name may be that of a standard one, whose weights have their channels on another axis."""
    model = build("(float[2, 8] x) => (float[2, 8] y) { y = Gemm <transB = 1> (x, w) }", w=normal(8, 8))
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(model, images(2, 8, samples=2), backend="snpe", output=path, options=Options(per_channel=True))
    written = onnx.load(path)
    written.graph.node.insert(0, onnx.helper.make_node("MatMul", ["x", "w"], ["own"], domain="custom"))
    written.opset_import.append(onnx.helper.make_opsetid("custom", 1))
    onnx.save(written, path)
    read = BACKEND.format_named(q.format).read
    assert read is not None
    for result in (q, read(path)):
        (weight,) = (result.qparams[s.name] for s in result.plan.sites if s.role == "weight")
        assert weight.spec.granularity.axis == 0  # type: ignore[union-attr]


def _with_if() -> onnx.ModelProto:
    return build(
        """(float[3, 8] x) => (float[3, 8] y) {
            [outside] a = MatMul (x, w)
            s = ReduceSum <keepdims = 0> (x)
            c = Less (s, limit)
            y = If (c) <
                then_branch = g () => (float[3, 8] b) { [inside] b = MatMul (a, w) },
                else_branch = h () => (float[3, 8] d) { [too] e = Relu (a) [and] d = MatMul (e, v) }
            >
        }""",
        limit=np.float32(0),
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
    )


def _with_loop() -> onnx.ModelProto:
    return build(
        """(float[3, 8] x) => (float[3, 8] y) {
            [outside] a = MatMul (x, w)
            z = Loop (n, t, a) <
                body = g (int64 i, bool c, float[3, 8] b) => (bool d, float[3, 8] e) {
                    d = Identity (c)
                    [inside] e = MatMul (b, v)
                }
            >
            [behind] y = MatMul (z, w)
        }""",
        n=np.array(2),
        t=np.array(True),
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
    )


BODIES = {"If": _with_if, "Loop": _with_loop}


@pytest.mark.parametrize("kind", sorted(BODIES))
def test_what_stands_in_a_body_stays_float_with_the_reason(tmp_path: Path, kind: str) -> None:
    model = BODIES[kind]()
    q = onnxq.quantize(model, feeds_for(model), backend="snpe", output=tmp_path / "q.onnx")
    assert "outside" in q.plan.quantized and not {"inside", "too", "and"} & set(q.plan.quantized)
    assert ("behind" in q.plan.quantized) == (kind == "Loop")
    (kept,) = [kept for kept in q.plan.kept_float if kept.node == "inside"]
    assert "inside of an If, Loop or Scan" in kept.reason
    document = json.loads((tmp_path / "q.encodings").read_text())
    names = {e["name"] for key in ("activation_encodings", "param_encodings") for e in document[key]}
    assert "a" in names and not names & {"b", "d", "e", "v"}


def test_quantizers_in_a_body_of_a_model_given_are_left_out_and_told(tmp_path: Path) -> None:
    given = _with_loop()
    onnxq.quantize(given, feeds_for(given), backend="academic", output=tmp_path / "q.onnx",
                   options=Options(format="qdq"))  # fmt: skip
    made = onnxq.deploy(tmp_path / "q.onnx", backend="snpe", output=tmp_path / "d.onnx")
    assert "outside" in made.plan.quantized and "inside" not in made.plan.quantized
    assert any("snpe does not quantize 'b'" in str(note) for note in made.notes)
