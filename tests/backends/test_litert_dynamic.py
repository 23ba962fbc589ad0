"""LiteRT with ranges taken at each run: XNNPACK's kernels compute what the model beside the file says.

Sums of integers are exact in both, scales are multiplied in another order: 1e-5 of the largest number.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

import onnxq
from onnxq import Options
from onnxq.backends import litert
from onnxq.errors import OptionError
from tests.backends.litert_interpreter import computed, one
from tests.contract import infer, sqnr
from tests.models import build, feeds_for, images, normal, untouched
from tests.targets import GRAPHS

pytest.importorskip("ai_edge_litert")
NAME = "litert_dynamic"
_TOLERANCE = 1e-5

CASES = {
    "Gemm": one("Gemm (x, w, b)", "3, 16", w=normal(16, 8), b=normal(8)),
    "Gemm, weights turned": one("Gemm <transB = 1> (x, w)", "3, 16", w=normal(8, 16)),
    "MatMul of a vector": one("MatMul (x, w)", "16", w=normal(16, 8)),
    "MatMul of rows": one("MatMul (x, w)", "2, 5, 16", w=normal(16, 8)),
    "MatMul and a bias": one("a = MatMul (x, w)\n y = Add (a, b)", "2, 5, 16", w=normal(16, 8), b=normal(8)),
    "MatMul of heads": one("MatMul (x, w)", "2, 3, 5, 16", w=normal(16, 8)),
    "MatMul of turned rows": one(
        "t = Transpose <perm = [0, 2, 1]> (x)\n y = MatMul (t, w)", "2, 16, 5", w=normal(16, 8)
    ),
    "Conv": one("Conv <pads = [1, 1, 1, 1]> (x, w, b)", "2, 4, 8, 9", w=normal(8, 4, 3, 3), b=normal(8)),
    "Conv, steps": one("Conv <strides = [2, 2]> (x, w)", "1, 4, 8, 9", w=normal(8, 4, 3, 3)),
    "Conv and Relu": one("c = Conv (x, w)\n y = Relu (c)", "1, 4, 8, 9", w=normal(8, 4, 3, 3)),
    "Conv of single points": one("Conv (x, w)", "2, 4, 8, 9", w=normal(8, 4, 1, 1)),
    "Conv of points, steps": one("Conv <strides = [2, 2]> (x, w)", "1, 4, 8, 9", w=normal(8, 4, 1, 1)),
    "Conv of points in a line": one("Conv (x, w)", "2, 4, 9", w=normal(8, 4, 1)),
    "Conv of lines": one("Conv <pads = [1, 1]> (x, w, b)", "1, 4, 9", w=normal(8, 4, 3), b=normal(8)),
    "two readers": one(
        "a = MatMul (x, w)\n b = MatMul (x, v)\n y = Mul (a, b)", "5, 16", w=normal(16, 8), v=normal(16, 8, seed=1)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_file_computes_what_the_model_beside_it_says(name: str, tmp_path: Path) -> None:
    model = CASES[name]
    made = onnxq.quantize(model, feeds_for(model), backend=NAME, output=tmp_path / "q.tflite")
    assert made.plan.quantized and not any(site.role == "activation" for site in made.plan.sites)
    content = (tmp_path / "q.tflite").read_bytes()
    for feeds in feeds_for(model, seed=3):
        for scale in (1.0, 100.0):  # no range is fixed
            feed = {name: array * np.float32(scale) for name, array in feeds.items()}
            simulated = infer(onnx.load(tmp_path / "q.onnx"), [feed], optimize=False)["y"]
            (exact,) = infer(model, [feed], optimize=False)["y"]
            assert 30 < sqnr([exact], simulated) < 100, "rounded, and well"
            (wanted,) = simulated
            found = computed(content, feed)["y"]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=_TOLERANCE * np.abs(wanted).max())


def test_without_the_package_the_onnx_format_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litert, "find_spec", lambda name: None)
    model = CASES["Gemm"]
    with pytest.raises(OptionError, match="ai-edge-litert, which is not installed"):
        onnxq.quantize(model, untouched(), backend=NAME)
    made = onnxq.quantize(model, feeds_for(model), backend=NAME, options=Options(format="qdq"))
    assert made.plan.quantized


def test_zeros_have_no_range(tmp_path: Path) -> None:
    model = CASES["Gemm"]
    onnxq.quantize(model, feeds_for(model), backend=NAME, output=tmp_path / "q.onnx")
    feed = {"x": np.zeros((3, 16), np.float32)}
    (wanted,) = infer(onnx.load(tmp_path / "q.onnx"), [feed], optimize=False)["y"]
    (exact,) = infer(model, [feed], optimize=False)["y"]
    np.testing.assert_allclose(wanted, exact, atol=0.01)  # the bias is corrected for other inputs
    np.testing.assert_array_equal(computed((tmp_path / "q.tflite").read_bytes(), feed)["y"], wanted)


def test_branches_round_what_they_read_from_outside_each_for_itself(tmp_path: Path) -> None:
    model = build(
        """(float[2, 16] x, bool c) => (float[2, 8] y) {
            r = Relu (x)
            y = If (c) <
                then_branch = t () => (float[2, 8] a) { a = MatMul (r, w) },
                else_branch = e () => (float[2, 8] b) { b = MatMul (r, v) }
            >
        }""",
        w=normal(16, 8),
        v=normal(16, 8, seed=1),
    )
    feeds = [{"x": normal(2, 16, seed=k), "c": np.array(k % 2 == 0)} for k in range(4)]
    made = onnxq.quantize(model, feeds, backend=NAME, options=Options(format="qdq"), output=tmp_path / "q.onnx")
    assert [*made.plan.quantized.values()] == ["MatMul", "MatMul"]
    exact, found = (infer(given, feeds, optimize=False)["y"] for given in (model, onnx.load(tmp_path / "q.onnx")))
    assert 30 < sqnr(exact, found) < 100


def test_what_stays_float_and_why(tmp_path: Path) -> None:
    model = build(
        """(float[1, 8, 16, 16] x, float[1, 10, 4] z) => (float[1, 4] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            d = Conv <group = 8, pads = [1, 1, 1, 1]> (a, k)
            t = ConvTranspose <strides = [2, 2]> (d, u)
            g = GlobalAveragePool (t)
            f = Flatten (g)
            m = Gemm (f, v)
            r = Unsqueeze (m, one)
            p = MatMul (r, z)
            y = Squeeze (p, one)
        }""",
        w=normal(8, 8, 3, 3),
        k=normal(8, 1, 3, 3),
        u=normal(8, 4, 2, 2),
        v=normal(4, 10),
        one=np.array([1]),
    )
    made = onnxq.quantize(model, feeds_for(model), backend=NAME, output=tmp_path / "q.onnx")
    assert sorted(made.plan.quantized.values()) == ["Conv", "Gemm"]
    why = {kept.op: kept.reason for kept in made.plan.kept_float}
    assert "of groups is slower" in why["Conv"] and "computed at run time" in why["MatMul"]
    assert "not among the operators" in why["ConvTranspose"]
    stored = {t.name: t.data_type for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert stored["w_quantized"] == stored["v_quantized"] == TensorProto.INT8 and stored["k"] == TensorProto.FLOAT
    seen = onnxq.verify(tmp_path / "q.tflite", feeds_for(model, seed=3), backend=NAME)
    assert seen.outputs["y"].sqnr > 60
    assert [line.split()[0] for line in seen.integer] == ["CONV_2D", "FULLY_CONNECTED"]
    assert "DEPTHWISE_CONV_2D" in {line.split()[0] for line in seen.floating}


def test_a_transformer_is_more_accurate_than_with_fixed_ranges(tmp_path: Path) -> None:
    model = GRAPHS["attention"]()
    feeds = feeds_for(model)
    options = Options(placement="all")
    fixed = onnxq.quantize(model, feeds, backend="litert", options=options)
    made = onnxq.quantize(model, feeds, backend=NAME, output=tmp_path / "q.onnx")
    assert fixed.verification is not None and made.verification is not None
    assert fixed.verification.worst is not None and made.verification.worst is not None
    assert made.verification.worst[1].sqnr > fixed.verification.worst[1].sqnr
    seen = onnxq.verify(tmp_path / "q.tflite", feeds, backend=NAME)
    assert min(errors.sqnr for errors in seen.outputs.values()) > 60


def test_read_back_and_deployed_to_another(tmp_path: Path) -> None:
    model, feeds = CASES["Conv and Relu"], images(1, 4, 8, 9)
    made = onnxq.quantize(model, feeds, backend=NAME, output=tmp_path / "q.onnx")
    back = onnxq.read(tmp_path / "q.onnx", backend=NAME)
    assert {n.op_type for n in back.model.graph} == {"Conv", "Relu"} and not back.model.functions
    assert back.qparams["w"].scale.tolist() == made.qparams["w"].scale.tolist()
    np.testing.assert_array_equal(
        infer(onnx.load(tmp_path / "q.onnx"), feeds, optimize=False)["y"],
        infer(ir.to_proto(back.rendered()), feeds, optimize=False)["y"],
    )
    with pytest.raises(onnxq.OnnxqError, match="only weights are quantized"):
        onnxq.deploy(tmp_path / "q.onnx", backend="litert")


def test_opsets_that_cannot_say_it_are_refused() -> None:
    model = one("MatMul (x, w)", "5, 16", opset=17, w=normal(16, 8))
    with pytest.raises(onnxq.OptionError, match="opset 17 cannot say") as why:
        onnxq.quantize(model, feeds_for(model), backend=NAME, options=Options(opset=17))
    assert why.value.hint == "Leave it out or ask for 18 or more"
    made = onnxq.quantize(model, feeds_for(model), backend=NAME, options=Options(opset=18))
    assert made.model.opset_imports[""] == 18 and made.plan.quantized


def test_deployed_again_it_is_the_same_file(tmp_path: Path) -> None:
    model = CASES["Conv and Relu"]
    onnxq.quantize(model, images(1, 4, 8, 9), backend=NAME, output=tmp_path / "q.tflite")
    again = onnxq.deploy(tmp_path / "q.onnx", backend=NAME, output=tmp_path / "again.tflite")
    assert [*again.plan.quantized.values()] == ["Conv"] and [kept.op for kept in again.plan.kept_float] == ["Relu"]
    assert (tmp_path / "again.tflite").read_bytes() == (tmp_path / "q.tflite").read_bytes()


def test_weights_of_a_model_with_fixed_ranges_are_kept(tmp_path: Path) -> None:
    model, feeds = CASES["Gemm"], feeds_for(CASES["Gemm"])
    given = onnxq.quantize(model, feeds, backend="litert", options=Options(placement="all"))
    made = onnxq.deploy(given.rendered(), backend=NAME, output=tmp_path / "q.onnx")
    assert made.qparams["w"].scale.tolist() == given.qparams["w"].scale.tolist()
    assert [*made.plan.quantized.values()] == ["Gemm"]


def test_rows_of_an_int8_table_are_rounded_as_the_kernel_rounds_them(tmp_path: Path) -> None:
    """Some reach as far below 0 as above it: their zero point lies half-way between two integers."""
    model = build(
        "(int64[N, 8] ids) => (float[N, 8, 32] y) { e = Gather (t, ids) \n y = MatMul (e, w) }",
        opset=18,
        t=normal(200, 64, scale=1.0),
        w=normal(64, 32, seed=1, scale=0.2),
    )
    feeds = [{"ids": np.random.default_rng(k).integers(0, 200, (1, 8))} for k in range(24)]
    made = onnxq.quantize(model, feeds, backend="litert_dynamic", output=tmp_path / "q.onnx")
    table = made.plan.stored
    assert list(table.values()) == ["Gather"]
    seen = onnxq.verify(tmp_path / "q.onnx", feeds, backend="litert_dynamic", samples=24)
    assert seen.outputs["y"].worst > 120
