"""Faults that random graphs showed on targets with shared scales, scales of powers of two, and grids of a least width,
each in its smallest form; and what the verdict on them must see and must know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from onnxq import Options, Quantized, plan, quantize
from onnxq.backends.vitis.positions import position
from tests.contract import infer, sqnr
from tests.fuzzing.dpu import as_dpu
from tests.fuzzing.graphs import Case
from tests.fuzzing.judge import judge
from tests.fuzzing.targets import steps_of
from tests.installed import needs
from tests.models import build, normal

ALL = Options(placement="all")
SHARING = ("openvino", "ppl_cuda", "stpu", "tensorrt", "vitis")


def scored(model: onnx.ModelProto, feeds: list[dict[str, NDArray[np.float32]]], backend: str) -> dict[str, float]:
    """dB of each output, by onnxruntime."""
    result = ir.to_proto(quantize(model, feeds, backend=backend, options=ALL).rendered())
    expected, got = infer(model, feeds, optimize=False), infer(result, feeds, optimize=False)
    return {name: sqnr(expected[name], got[name]) for name in expected}


def spread(shape: tuple[int, ...], samples: int = 4, **sizes: float) -> list[dict[str, NDArray[np.float32]]]:
    """Normal numbers for each input, times its size."""
    rng = np.random.default_rng(5)
    return [
        {n: (rng.standard_normal(shape) * size).astype(np.float32) for n, size in sizes.items()} for _ in range(samples)
    ]


# -- what onnxruntime's optimizations do with forms that are not its own


def test_a_simulation_runs_without_optimizations() -> None:
    """onnxruntime aborts the process where it moves a DequantizeLinear behind a Reshape and into an If."""
    model = build(
        """(float[1, 4, 4, 4] x, bool c) => (float[4, 16] y, float[1, 4, 4, 4] z) {
            a = Conv (x, w)
            r = Reshape (a, shape)
            y = If (c) <
                then_branch = one () => (float[4, 16] s) { s = Div (r, r) },
                else_branch = two () => (float[4, 16] t) { t = Neg (r) }
            >
            z = Conv (a, w)
        }""",
        w=normal(4, 4, 1, 1),
        shape=np.array([4, 16], np.int64),
    )
    feeds = [{**feed, "c": np.array(True)} for feed in spread((1, 4, 4, 4), x=1.0)]
    made = quantize(model, feeds, backend="openvino", options=ALL)
    assert "Conv" in made.plan.quantized.values()


# -- one scale for all that Concats join


def two_concats() -> onnx.ModelProto:
    return build(
        """(float[1, 4, 8, 8] x, float[1, 4, 8, 8] large, float[1, 4, 8, 8] small)
            => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z) {
            a = Concat <axis = 1> (x, large)
            y = Conv (a, v)
            b = Concat <axis = 1> (x, small)
            z = Conv (b, w)
        }""",
        v=normal(4, 8, 1, 1),
        w=normal(4, 8, 1, 1, seed=1),
    )


@pytest.mark.parametrize("backend", SHARING)
def test_concats_that_join_one_tensor_have_a_scale_for_all(backend: str) -> None:
    """The second took over the scale of the first, and cut off what is large in there: 0.3 to 0.7 dB."""
    scores = scored(two_concats(), spread((1, 4, 8, 8), x=1.0, large=10.0, small=1.0), backend)
    assert scores["y"] > 30 and scores["z"] > 15


def test_the_plan_says_what_a_scale_spans() -> None:
    made = plan(two_concats(), backend="openvino", options=ALL)
    assert {made.root(site).name for site in made.sites if site.role == "activation"} == {"b"}
    assert made.by_name["b"].spans == ("a",) and made.observed() == ["b", "a"]


@pytest.mark.parametrize("backend", SHARING)
def test_a_concat_of_a_part_has_a_scale_for_the_whole(backend: str) -> None:
    """The part behind the Split is small and below 0: a scale for it alone cuts off the rest, large and above."""
    model = build(
        """(float[1, 4, 8, 8] x, float[1, 4, 8, 8] other) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z) {
            a = Conv (x, w, far)
            up, down = Split <axis = 1> (a, sizes)
            b = Concat <axis = 1> (down, other)
            y = Conv (b, v)
            z = Conv (a, u)
        }""",
        w=normal(8, 4, 1, 1),
        far=np.array([20] * 4 + [-3] * 4, np.float32),
        sizes=np.array([4, 4], np.int64),
        v=normal(4, 8, 1, 1, seed=1),
        u=normal(4, 8, 1, 1, seed=2),
    )
    feeds = [{**feed, "other": -np.abs(feed["other"])} for feed in spread((1, 4, 8, 8), x=1.0, other=5.0)]
    scores = scored(model, feeds, backend)
    assert min(scores.values()) > 20, scores


def test_a_resize_that_drops_numbers_has_a_scale_for_them() -> None:
    """RKNN has one scale for input and output of a Resize; nearest to half the size, it drops three of four numbers."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 4, 4] y, float[1, 4, 8, 8] z) {
            s = Resize <nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"> (x, , half)
            y = Conv (s, w)
            z = Conv (x, w)
        }""",
        half=np.array([1, 1, 0.5, 0.5], np.float32),
        w=normal(4, 4, 1, 1),
    )
    feeds = spread((1, 4, 8, 8), x=10.0)
    for feed in feeds:
        feed["x"][:, :, ::2, ::2] /= 10  # what is kept
    assert scored(model, feeds, "rknn")["z"] > 30


# -- the shifters of the DPU


@pytest.mark.parametrize("layer", ["Conv", "Gemm"])
def test_a_bias_beside_tiny_weights_is_not_cut_off(layer: str) -> None:
    """Its position was raised until the shift was 15; 8 dB, and 6 where all that the output holds is the bias."""
    shape, bias = ((1, 6, 4, 5), np.array([0.207], np.float32)) if layer == "Conv" else ((4, 6), normal(1))
    weight = normal(1, 6, *([1, 1] if layer == "Conv" else []), scale=4e-5)
    text = {
        "Conv": "(float[1, 6, 4, 5] x) => (float[1, 1, 4, 5] y) { y = Conv (x, w, b) }",
        "Gemm": "(float[4, 6] x) => (float[4, 1] y) { y = Gemm <transB = 1> (x, w, b) }",
    }[layer]
    model, feeds = build(text, w=weight, b=bias), spread(shape, x=1.0)
    assert scored(model, feeds, "vitis")["y"] > 40
    found = quantize(model, feeds, backend="vitis").qparams
    x, w, b, y = (position(found[name]) for name in "xwby")
    assert 0 <= w + x - y <= 16 and 0 <= w + x - b <= 15


def test_a_hardsigmoid_leaves_a_concat_its_position() -> None:
    """It writes at position 7 at least: where that held for all that is joined, boxes were cut off at 1, 3 dB."""
    model = build(
        """(float[1, 4, 8, 8] boxes, float[1, 4, 8, 8] x) => (float[1, 8, 8, 8] y) {
            s = Sigmoid (x)
            y = Concat <axis = 1> (boxes, s)
        }"""
    )
    feeds = spread((1, 4, 8, 8), boxes=5.0, x=1.0)
    assert scored(model, feeds, "vitis")["y"] > 30
    found = quantize(model, feeds, backend="vitis").qparams
    assert position(found["s"]) == 7 and position(found["boxes"]) == position(found["y"]) <= 3


# -- what the verdict knows


def gate(text: str, x: NDArray[np.float32], **weights: NDArray[np.float32]) -> Case:
    model = build(text, opset=17)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return Case(1, model, [{"x": x}, {"x": x * np.float32(0.7)}])


def test_what_no_output_depends_on_holds_nothing() -> None:
    x = normal(4, 6, scale=400.0)
    dead = gate("(float[4, 6] x) => (float[4, 3] y) { s = Sigmoid (x) y = MatMul (x, w) }", x, w=normal(6, 3))
    live = gate("(float[4, 6] x) => (float[4, 6] y) { s = Sigmoid (x) y = Mul (x, s) }", x)
    assert [node.op_type for node in as_dpu(dead).model.graph.node] == ["MatMul"]
    assert [node.op_type for node in as_dpu(live).model.graph.node] == ["Clip", "HardSigmoid", "Mul"]
    assert judge(dead, "vitis").outcome == judge(live, "vitis").outcome == "quantized"


def test_hardswish_reads_what_a_hardsigmoid_can() -> None:
    """Position 0 at the lowest: beyond 127 it is held, which is 9 dB off the float model."""
    case = gate("(float[4, 6] x) => (float[4, 6] y) { y = HardSwish (x) }", normal(4, 6, scale=150.0))
    assert [node.op_type for node in as_dpu(case).model.graph.node] == ["Clip", "HardSigmoid", "Mul"]
    assert judge(case, "vitis").outcome == "quantized"


def test_a_sigmoid_of_doubles_stays_what_it_is() -> None:
    model = build("(double[4, 6] x) => (double[4, 6] y) { y = Sigmoid (x) }")
    case = Case(1, model, [{"x": np.random.default_rng(2).standard_normal((4, 6))}])
    assert [node.op_type for node in as_dpu(case).model.graph.node] == ["Sigmoid"]
    assert judge(case, "vitis").outcome == "untouched"


def test_a_logarithm_of_what_the_dpu_makes_0() -> None:
    case = gate("(float[4, 6] x) => (float[4, 6] y) { s = Sigmoid (x) y = Log (s) }", normal(4, 6, scale=4.0))
    assert not np.isfinite(infer(as_dpu(case).model, case.feeds, optimize=False)["y"][0]).all()
    assert judge(case, "vitis").outcome == "quantized"


def test_the_least_range_of_the_htp() -> None:
    case = gate(
        "(float[4, 6] x) => (float[4, 6] y) { s = Mul (x, x) y = LpNormalization (s) }", normal(4, 6, scale=1e-6)
    )
    assert steps_of("snpe", case.model).of({"s": 1e-14})["s"] == 1e-4 / 255
    assert judge(case, "snpe").outcome == "quantized"


def test_a_branch_that_rounding_takes() -> None:
    model = build(
        """(float[4] x) => (float[N] y) {
            m = ReduceMax <keepdims = 0> (x)
            c = Greater (m, half)
            y = If (c) <
                then_branch = one () => (float[4] a) { a = Neg (x) },
                else_branch = two () => (float[8] b) { b = Concat <axis = 0> (x, x) }
            >
        }""",
        half=np.array(0.501, np.float32),
    )
    x = np.array([0.1, 0.2, 0.3, 0.5], np.float32)
    assert judge(Case(1, model, [{"x": x}]), "vitis").outcome != "FAULT"


@pytest.mark.parametrize("backend", SHARING)
def test_the_verdict_still_sees_a_scale_that_cuts_off(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of every scale of activations, and of the ranges with it."""
    case = Case(1, two_concats(), spread((1, 4, 8, 8), x=1.0, large=10.0, small=1.0))
    assert judge(case, backend).outcome == "quantized"

    def narrow(*args: object, **more: object) -> Quantized:
        made = quantize(*args, **more)  # type: ignore[arg-type]
        small = {n: replace(qp, scale=qp.scale / np.float32(8)) for n, qp in made.qparams.items()}
        acts = {site.name for site in made.plan.sites if site.role == "activation"}
        return replace(made, qparams={n: small[n] if n in acts else qp for n, qp in made.qparams.items()})

    monkeypatch.setattr("tests.fuzzing.judge.quantize", narrow)
    verdict = judge(case, backend)
    assert verdict.outcome == "FAULT" and "where noise of a step gives" in verdict.text


# -- what is tied to a tensor that does not hold it


@pytest.mark.parametrize("backend", ["qnn", pytest.param("rknn", marks=needs("onnxruntime", "1.24"))])
def test_a_pad_that_cuts_off_what_it_reads(backend: str) -> None:
    """Its output, all ones here, had the scale that the convolution's numbers got."""
    model = build(
        """(float[1, 2, 6, 6] x) => (float[1, 2, 6, 6] y, float[1, 2, 6, 6] z) {
            c = Conv (x, w)
            y = Pad (c, pads, one)
            z = Conv (c, w)
        }""",
        w=normal(2, 2, 1, 1),
        pads=np.array([1, 0, 0, 0, -1, 0, 0, 0], np.int64),
        one=np.float32(1),
    )
    assert scored(model, spread((1, 2, 6, 6), x=30.0), backend)["z"] > 30


def test_a_function_behind_a_concat_of_one_scale_is_not_computed_with_it() -> None:
    """What the Concat reads would have the range of a Sigmoid's results."""
    model = build(
        "(float[1, 8] a, float[1, 8] b) => (float[1, 16] y) { c = Concat <axis = 1> (a, b)\n y = Sigmoid (c) }"
    )
    feeds = spread((1, 8), a=3.0, b=3.0)
    assert scored(model, feeds, "ppl_cuda")["y"] > 30
    relu = build("(float[1, 8] a, float[1, 8] b) => (float[1, 16] y) { c = Concat <axis = 1> (a, b)\n y = Relu (c) }")
    assert quantize(relu, feeds, backend="ppl_cuda", options=ALL).plan.absorbed
    assert scored(relu, feeds, "ppl_cuda")["y"] > 30
