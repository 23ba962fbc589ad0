"""Models in NVFP4: what is in the file, what it computes by onnx's reference, what stays float, what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import OptionError, Options
from onnxq.measuring.metrics import sqnr
from onnxq.nvfp4 import quantize_nvfp4
from onnxq.nvfp4.algorithm import rewrite
from onnxq.ort.session import Session
from tests.installed import needs
from tests.models import build, normal
from tests.nvfp4.reference import REFERENCE, computed, feeds_of, mlp
from tests.weight_only.layers import save

DATA = feeds_of()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(mlp(), tmp_path / "m.onnx")


def types(path: Path) -> dict[str, str]:
    name = onnx.TensorProto.DataType.Name
    return {tensor.name: name(tensor.data_type) for tensor in onnx.load(path).graph.initializer}


@REFERENCE
def test_the_simulation_is_what_onnx_defines(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "q.onnx"
    result = quantize_nvfp4(source, output, data=DATA)
    onnx.checker.check_model(onnx.load(output), full_check=True)
    feeds = DATA[1]
    wanted = computed(output, feeds)
    got = Session(output).run(feeds)
    for name, array in zip(("y", "z"), wanted, strict=True):
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5 * np.abs(array).max())
    exact = Session(source).run(feeds)
    assert all(13 < sqnr(exact[name], got[name]) < 22 for name in exact), "4 bits twice, and thrice"
    assert result.verification.worst is not None and 13 < result.verification.worst[1].sqnr < 22
    assert result.verification.speedup is None and not result.verification.warnings


@REFERENCE
def test_weights_alone_need_no_data(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "q.onnx"
    result = quantize_nvfp4(source, output, activations=False)
    (y, z), got = computed(output, DATA[0]), Session(output).run(DATA[0])
    np.testing.assert_allclose(got["y"], y, rtol=1e-5, atol=1e-5 * np.abs(y).max())
    np.testing.assert_allclose(got["z"], z, rtol=1e-5, atol=1e-5 * np.abs(z).max())
    assert "trt" not in {entry.domain for entry in onnx.load(output).opset_import}
    assert any("unpacks the weights at every run" in note for note in result.notes)


def test_what_is_in_the_file(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "q.onnx"
    quantize_nvfp4(source, output, data=DATA)
    model = onnx.load(output)
    ops = Counter(node.op_type for node in model.graph.node)
    assert ops["TRT_FP4DynamicQuantize"] == 2, "the two products of x share one"
    assert ops["MatMul"] == 3 and ops["Gemm"] == 0 and ops["Add"] == 1
    held = types(output)
    assert [held[f"{name}_quantized"] for name in "wvu"] == ["FLOAT4E2M1"] * 3
    assert [held[f"{name}_scale"] for name in "wvu"] == ["FLOAT8E4M3FN"] * 3
    sizes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    assert sizes["v_quantized"] == (64, 48) and sizes["v_scale"] == (4, 48) and sizes["v_unit"] == ()
    assert not {"w", "v", "u"} & set(sizes)
    assert model.opset_import[0].version == 23
    assert [value.name for value in model.graph.output] == ["y", "z"]


def test_gptq_learns(source: Path, tmp_path: Path) -> None:
    made = {}
    for method in ("rtn", "gptq"):
        result = quantize_nvfp4(source, tmp_path / f"{method}.onnx", data=DATA, method=method, activations=False)
        made[method] = result.verification.outputs["z"].sqnr
    assert made["gptq"] > made["rtn"] + 3


def test_activations_beyond_those_seen_are_not_cut_off(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "q.onnx"
    quantize_nvfp4(source, output, data=DATA)
    loud = {"x": DATA[0]["x"] * np.float32(1.5)}
    assert sqnr(Session(source).run(loud)["z"], Session(output).run(loud)["z"]) > 15


@REFERENCE
def test_a_large_model_is_run_in_segments(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantize_nvfp4(source, tmp_path / "whole.onnx", data=DATA)
    big = save(mlp(), tmp_path / "big.onnx", external=True)
    monkeypatch.setattr("onnxq.weight_only.examine._WHOLE_BYTES", 0)
    result = quantize_nvfp4(big, tmp_path / "parts.onnx", data=DATA)
    assert (tmp_path / "parts.onnx.data").is_file()
    assert result.verification.worst is not None and whole.verification.worst is not None
    assert result.verification.worst[1].sqnr == pytest.approx(whole.verification.worst[1].sqnr, abs=0.01)
    for one, other in zip(computed(tmp_path / "parts.onnx", DATA[0]), computed(tmp_path / "whole.onnx", DATA[0]),
                          strict=True):  # fmt: skip
        np.testing.assert_array_equal(one, other)


@REFERENCE
def test_inside_a_branch(tmp_path: Path) -> None:
    model = build(
        """(float[4, 64] x, bool c) => (float[4, 32] y) {
            y = If (c) <
                then_branch = one () => (float[4, 32] a) { a = MatMul (x, w) },
                else_branch = two () => (float[4, 32] b) { t = Neg (x) b = MatMul (t, w) }
            >
        }""",
        w=normal(64, 32),
    )
    feeds = [{"x": DATA[k]["x"][:4], "c": np.array(k % 4 < 2)} for k in range(6)]
    output = tmp_path / "q.onnx"
    result = quantize_nvfp4(save(model, tmp_path / "m.onnx"), output, data=feeds)
    assert len(result.quantized) == 2
    for feed in feeds[:3]:
        (wanted,) = computed(output, feed)
        np.testing.assert_allclose(Session(output).run(feed)["y"], wanted, rtol=1e-4, atol=1e-4)


def test_what_stays_float_says_why(tmp_path: Path) -> None:
    model = build(
        """(int64[2, 3] ids, float[2, 3, 40] x, float[2, 2, 3, 64] d) =>
           (float[2, 3, 64] e, float[2, 3, 64] y, float[2, 2, 3, 32] f, int64[2, 3, 2] p) {
            [table] e = Gather (t, ids)
            [odd] y = MatMul (x, w)
            [deep] f = MatMul (d, v)
            [router] r = MatMul (e, u)
            two = Constant <value_ints = [2]> ()
            q, p = TopK (r, two)
        }""",
        t=normal(50, 64),
        w=normal(40, 64),
        v=normal(64, 32),
        u=normal(64, 16),
    )
    random = np.random.default_rng(0)
    shapes = {"x": (2, 3, 40), "d": (2, 2, 3, 64)}
    floats = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    feed = {"ids": random.integers(0, 50, (2, 3)), **floats}
    source = save(model, tmp_path / "m.onnx")
    result = quantize_nvfp4(source, tmp_path / "q.onnx", data=[feed])
    reasons = {kept.node: kept.reason for kept in result.kept_float}
    assert reasons == {
        "table": "NVFP4 is for the weights of MatMul and Gemm",
        "odd": "its weight has 40 inputs, which are no whole blocks of 16",
        "deep": "its data has 4 axes: TensorRT rounds what has 2 or 3",
        "router": "its product is picked from: what rounding changes there is another computation",
    }
    assert not result.quantized and result.verification.warnings[0].startswith("nothing was quantized")
    result = quantize_nvfp4(source, tmp_path / "q.onnx", activations=False)
    assert result.quantized == {"deep": "MatMul"}, "weights are unpacked whatever they are multiplied with"


def test_where_nothing_is_quantized_nothing_is_said_of_a_simulation(tmp_path: Path) -> None:
    source = save(build("(float[2, 64] x) => (float[2, 64] y) { y = Relu (x) }"), tmp_path / "m.onnx")
    result = quantize_nvfp4(source, tmp_path / "q.onnx", activations=False)
    assert not result.quantized and not result.notes
    assert any("nothing was quantized" in warning for warning in result.verification.warnings)


def test_what_is_found_at_run_time_is_not_deployed(source: Path, tmp_path: Path) -> None:
    quantize_nvfp4(source, tmp_path / "q.onnx", data=DATA)
    for backend in ("tensorrt", "onnxruntime"):
        with pytest.raises(onnxq.OnnxqError, match="2 TRT_FP4DynamicQuantize in the model compute their scales") as why:
            onnxq.deploy(tmp_path / "q.onnx", backend=backend)
        assert why.value.hint == f"Quantize the float model for {backend}"
    (finding,) = (f for f in onnxq.check(tmp_path / "q.onnx") if f.where == "model" and f.level == "warning")
    assert finding.hint == "Give the float model for the best result."


def test_written_for_onnxruntime_it_is_told_that_this_does_not_load_it(source: Path, tmp_path: Path) -> None:
    quantize_nvfp4(source, tmp_path / "q.onnx", data=DATA)
    made = onnxq.quantize(tmp_path / "q.onnx", DATA)
    assert made.verification is not None
    assert any("onnxruntime does not load the result" in warning for warning in made.verification.warnings)


def test_a_size_that_is_free_is_said_in_the_file(tmp_path: Path) -> None:
    """TensorRT wants to know that of the axis with blocks."""
    model = build(
        """(float[N, 4, 16] x, int64[2] shape) => (float[N, 96] y) {
            computed = Abs (shape)
            flat = Reshape (x, computed)
            y = MatMul (flat, w)
        }""",
        w=normal(64, 96),
    )
    source, output = save(model, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    feeds = [{"x": normal(5, 4, 16, seed=k, scale=1.0), "shape": np.array([5, 64])} for k in range(4)]
    quantize_nvfp4(source, output, data=feeds)
    (node,) = (n for n in onnx.load(output).graph.node if n.op_type == "Reshape" and n.input[0] == "flat")
    held = {
        t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(output).graph.initializer if t.name == node.input[1]
    }
    assert held[node.input[1]].tolist() == [0, 64]
    assert onnxq.compare(source, output, feeds).outputs["y"].sqnr > 15


def test_layers_can_be_left_float(source: Path, tmp_path: Path) -> None:
    result = quantize_nvfp4(source, tmp_path / "q.onnx", data=DATA, exclude=["w"])
    assert set(result.quantized.values()) == {"Gemm"} and types(tmp_path / "q.onnx")["w"] == "FLOAT"


def test_an_artifact_can_be_compared(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "q.onnx"
    quantize_nvfp4(source, output, data=DATA)
    found = onnxq.compare(source, output, DATA)
    assert 15 < found.outputs["z"].sqnr < 22
    agreement = onnxq.verify(output, DATA, backend="tensorrt", simulation=True)
    assert agreement.tensors == 0 and agreement.in_both == "2 float4e2m1 activations, 3 float4e2m1 weights"
    assert not [f for f in onnxq.check(output) if f.level == "error"]


@pytest.mark.parametrize(
    ("given", "data", "message"),
    [
        ({"method": "hqq"}, DATA, "method: 'hqq' is not one of rtn, gptq"),
        ({}, None, "the largest magnitudes of activations are taken from data, and none was given"),
        ({"method": "gptq", "activations": False}, None, "gptq learns from data, and none was given"),
    ],
    ids=str,
)
def test_what_is_refused(given: dict[str, Any], data: Any, message: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        quantize_nvfp4(source, tmp_path / "q.onnx", data=data, **given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(opset=21), "opset 21 has no 4-bit floating-point numbers. Leave it out or ask for 23"),
        pytest.param(Options(opset=26), "tensorrt reads models up to opset 25", marks=needs("onnx", "1.21")),
        (Options(act_bits=8), "act_bits: has no effect on the algorithm 'nvfp4'"),
        (Options(override=(("*", "float"),)), "override: has no effect .*--exclude keeps layers float"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(options: Options, message: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        rewrite(source, DATA, output=tmp_path / "q.onnx", options=options)


@needs("onnx", "1.20")
@needs("onnxruntime", "1.26")
def test_the_opset_asked_for_is_taken(source: Path, tmp_path: Path) -> None:
    rewrite(source, DATA, output=tmp_path / "q.onnx", options=Options(opset=25))
    assert onnx.load(tmp_path / "q.onnx").opset_import[0].version == 25
    (y, _), got = computed(tmp_path / "q.onnx", DATA[0]), Session(tmp_path / "q.onnx").run(DATA[0])
    np.testing.assert_allclose(got["y"], y, rtol=1e-5, atol=1e-5 * np.abs(y).max())
