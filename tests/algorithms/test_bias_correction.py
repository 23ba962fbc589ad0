"""Bias correction: the mean error of every output channel vanishes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.algorithms.bias_correction import correct_biases
from onnxq.algorithms.biases import empirical
from onnxq.calibration.statistics import KeptSample
from onnxq.calibration.taps import Tapped, tap
from onnxq.errors import OptionError
from onnxq.measuring.simulation import output_sqnr
from onnxq.qparams import fake_quantize
from onnxq.ranged import from_range
from onnxq.spec import PerChannel, QuantSpec
from tests.contract import infer, quantize_checked
from tests.models import build, f32, normal

Feeds = list[dict[str, np.ndarray[Any, np.dtype[Any]]]]


def shifted(*shape: int, samples: int = 8) -> Feeds:
    """Inputs whose mean is far from zero, different by channel."""
    rng = np.random.default_rng(3)
    mean = rng.uniform(0.5, 3.0, (1, shape[1], *([1] * (len(shape) - 2))))
    return [{"x": (rng.standard_normal(shape) + mean).astype(np.float32)} for _ in range(samples)]


def plain(groups: int) -> onnx.ModelProto:
    return build(
        f"(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) {{ y = Conv <group = {groups}> (x, w, b) }}",
        w=normal(16, 16 // groups, 1, 1),
        b=normal(16),
    )


@pytest.mark.parametrize("groups", [1, 2, 16])
def test_the_mean_error_of_rounding_weights_vanishes(groups: int) -> None:
    model = ir.serde.deserialize_model(plain(groups))
    model.graph[0].name = "conv"
    feeds = shifted(1, 16, 8, 8)
    options = Options(placement="all", weight_bits=4, bias_correction=False)
    q = onnxq.quantize(plain(groups), feeds, options=options)
    kept = [KeptSample(i, f, {}) for i, f in enumerate(feeds[:3])]
    changed = q.model.clone()
    assert correct_biases(changed, q.plan, q.qparams, kept) == 1
    weight = normal(16, 16 // groups, 1, 1).astype(np.float64)
    error = fake_quantize(weight.astype(np.float32), q.qparams["w"]).astype(np.float64) - weight
    measured = np.stack([f["x"] for f in feeds[:3]]).astype(np.float64)
    mean: np.ndarray[Any, np.dtype[np.float64]] = measured.mean(axis=(0, 1, 3, 4))
    per_group = 16 // groups
    shift = [error[o, :, 0, 0] @ mean[(o // per_group) * per_group :][:per_group] for o in range(16)]
    tensor = changed.graph.initializers["b"].const_value
    assert tensor is not None
    np.testing.assert_allclose(tensor.numpy(), normal(16) - shift, atol=1e-5)


def test_it_helps_and_can_be_left_out() -> None:
    feeds = shifted(1, 16, 8, 8)
    model = plain(1)
    scores = []
    for wanted in (False, True):
        options = Options(placement="all", weight_bits=4, act_bits=16, bias_correction=wanted)
        check = onnxq.quantize(model, feeds, options=options).verification
        assert check is not None and check.worst is not None
        scores.append(check.worst[1].sqnr)
    assert scores[1] > scores[0] + 3


@pytest.mark.parametrize("shape", [(6, 1), (6, 6)])
def test_what_is_added_to_a_gemm_row_by_row_stays(shape: tuple[int, ...]) -> None:
    model = build("(float[6, 8] x) => (float[6, 6] y) { y = Gemm (x, w, c) }", w=normal(8, 6), c=normal(*shape))
    q = onnxq.quantize(model, shifted(6, 8), options=Options(placement="all", weight_bits=4))
    assert q.plan.quantized
    tensor = q.model.graph.initializers["c"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), normal(*shape))


def test_a_bias_that_two_layers_share_stays() -> None:
    model = build(
        "(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { a = Conv (x, w, b)\n y = Conv (a, w, b) }",
        w=normal(8, 8, 1, 1),
        b=normal(8),
    )
    q = onnxq.quantize(model, shifted(1, 8, 4, 4), options=Options(placement="all"))
    tensor = q.model.graph.initializers["b"].const_value
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), normal(8))


def test_the_callers_model_keeps_its_bias() -> None:
    model = plain(1)
    before = model.SerializeToString()
    onnxq.quantize(model, shifted(1, 16, 8, 8), options=Options(placement="all"))
    assert model.SerializeToString() == before
    assert from_range(-1, 1, QuantSpec(granularity=PerChannel(0))).scale.shape == ()


def mean_shift(model: onnx.ModelProto, q: onnxq.Quantized, feeds: Feeds) -> float:
    """Root mean square over channels (axis 1) of how far the means of the output are off."""
    want, got = (infer(m, feeds, optimize=False)["y"] for m in (model, ir.to_proto(q.rendered())))
    axes = (0, *range(2, want[0].ndim))
    error = np.mean([(g - w).mean(axis=axes) for w, g in zip(want, got, strict=True)], axis=0)
    return float(np.sqrt(np.square(error).mean()))


TWO = "a = Conv <pads = [1, 1, 1, 1]> (x, w1{0})\n r = Relu (a)\n y = Conv (r, w2{1})"


@pytest.mark.parametrize("biases", [("", ""), (", b1", ", b2"), (", b1", ", b1"), ("", ", b2")])
def test_measured_means_come_closer_whatever_biases_there_are(biases: tuple[str, str]) -> None:
    constants: dict[str, Any] = {name.removeprefix(", "): normal(16, scale=0.5) for name in biases if name}
    model = build(
        f"(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) {{ {TWO.format(*biases)} }}",
        w1=normal(16, 16, 3, 3), w2=normal(16, 16, 1, 1, seed=2), **constants,
    )  # fmt: skip
    feeds = shifted(1, 16, 8, 8, samples=40)
    found = []
    for algorithm in ("bias_correction", "bias_correction:method=empirical"):
        options = Options(placement="all", weight_bits=4, act_bits=4, algorithms=(algorithm,), format="fake-quantize")
        outcome = quantize_checked(model, feeds[:32], options, least=None)
        found.append(mean_shift(model, outcome.quantized, feeds[32:]))
    assert found[1] < max(0.75 * found[0], 0.04)  # or as close as samples that neither has seen can show


def test_added_biases_are_integers_behind_a_scale() -> None:
    model = build("(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) { y = Conv (x, w) }", w=normal(16, 16, 1, 1))
    feeds = shifted(1, 16, 8, 8, samples=16)
    options = Options(placement="all", weight_bits=4, algorithms=("bias_correction:method=empirical",))
    outcome = quantize_checked(model, feeds, options)
    (site,) = (s for s in outcome.quantized.plan.sites if s.role == "bias")
    assert site.factors is not None
    scales = [outcome.quantized.qparams[name].scale for name in site.factors]
    np.testing.assert_array_equal(outcome.quantized.qparams[site.name].scale, scales[0] * scales[1])


def test_what_gains_nothing_is_undone() -> None:
    weight = np.tile(f32([[1.0, -1.0]]), (8, 4)).T  # lies on the grid
    model = build("(float[4, 8] x) => (float[4, 8] y) { y = Gemm (x, w) }", w=np.ascontiguousarray(weight))
    rng = np.random.default_rng(0)
    feeds: Feeds = [{"x": rng.choice(f32([0, 1, 255]), (4, 8))} for _ in range(8)]
    options = Options(placement="all", algorithms=("bias_correction:method=empirical",), range="minmax")
    q = onnxq.quantize(model, feeds, options=options)
    assert not [s for s in q.plan.sites if s.role == "bias"]
    assert len(q.model.graph[0].inputs) == 2
    assert any("bias_correction: " in note for note in q.notes)


def test_analytic_correction_behind_another_algorithm_sees_the_original_weights() -> None:
    feeds = shifted(1, 16, 8, 8)
    model = plain(1)
    shifts = []
    for algorithms in (("gptq:bias=false",), ("gptq:bias=false", "bias_correction")):
        options = Options(placement="all", weight_bits=3, act_bits=16, algorithms=algorithms, format="fake-quantize")
        shifts.append(mean_shift(model, onnxq.quantize(model, feeds, options=options), feeds))
    assert shifts[1] < 0.1 * shifts[0]


@pytest.mark.parametrize("wrong", ["method=guess", "runs=0"])
def test_wrong_parameters(wrong: str) -> None:
    with pytest.raises(OptionError, match="bias_correction"):
        onnxq.quantize(plain(1), shifted(1, 16, 8, 8), options=Options(algorithms=(f"bias_correction:{wrong}",)))


def test_several_targets_with_one_model_measure_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets what it would get alone, bit for bit."""
    model = build(
        """(float[1, 4, 6, 6] x, int64[2] k) => (float[1, 8] y) {
            c = Conv (x, w, b)
            f = Reshape (c, k)
            y = Gemm (f, v, e)
        }""",
        w=normal(4, 4, 1, 1),
        b=normal(4),
        v=normal(144, 8),
        e=normal(8, seed=5),
    )
    feeds = [{**feed, "k": np.array([1, 144])} for feed in shifted(1, 4, 6, 6)]
    names = ("tensorrt", "snpe", "ppl")
    alone = {name: onnxq.quantize(model, feeds, backend=name) for name in names}
    measured: list[list[str]] = []

    def counted(of: ir.Model, tensors: list[str]) -> Tapped:
        measured.append(list(tensors))
        return tap(of, tensors)

    monkeypatch.setattr("onnxq.algorithms.biases.means.tap", counted)
    together = onnxq.quantize_all(model, feeds, backends=names)
    assert measured == [["f"]], "its size is not known when the model is calibrated"
    for name in names:
        for bias in ("b", "e"):
            one, other = (q[name].model.graph.initializers[bias].const_value for q in (alone, together))
            assert one is not None and other is not None
            np.testing.assert_array_equal(one.numpy(), other.numpy())
            assert (one.numpy() != {"b": normal(4), "e": normal(8, seed=5)}[bias]).any()


def test_a_bias_that_is_an_output_of_the_model_keeps_its_numbers() -> None:
    model = build(
        "(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y, float[16] b) { y = Conv (x, w, b) }",
        w=normal(16, 16, 1, 1),
        b=normal(16),
    )
    q = onnxq.quantize(model, shifted(1, 16, 8, 8), options=Options(placement="all", algorithms=("bias_correction",)))
    assert q.plan.quantized
    bias = q.qdq().graph.initializers["b"].const_value
    assert bias is not None
    np.testing.assert_array_equal(bias.numpy(), normal(16))


def test_statistics_remember_nothing_of_models_that_are_gone() -> None:
    feeds = shifted(1, 16, 8, 8)
    statistics = onnxq.calibrate(plain(1), feeds)
    for _ in range(2):
        onnxq.quantize(plain(1), statistics=statistics, options=Options(placement="all", opset=17))
        gc.collect()
        assert not statistics.measured.means
        assert not statistics.measured.biases


def test_means_are_measured_all_over_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may be sorted: the first samples alone would tell of one kind."""
    seen: list[list[int]] = []

    def measured(quantized: Any, samples: Any, options: Options) -> float:
        seen.append([sample.index for sample in samples])
        return output_sqnr(quantized, samples, options)

    means = empirical._means

    def _means(draft: Any, layers: Any, samples: Any, **options: Any) -> Any:
        seen.append([sample.index for sample in samples])
        return means(draft, layers, samples, **options)

    monkeypatch.setattr(empirical, "output_sqnr", measured)
    monkeypatch.setattr(empirical, "_means", _means)
    options = Options(placement="all", weight_bits=4, algorithms=("bias_correction:method=empirical",), keep=64)
    onnxq.quantize(plain(1), shifted(1, 16, 8, 8, samples=64), options=options)
    for indices in seen:
        halves = [sum(index < 32 for index in indices), sum(index >= 32 for index in indices)]
        assert halves[0] == halves[1] == len(indices) // 2 >= 4


def test_means_that_calibration_has_not_are_taken_all_over_the_data() -> None:
    """The first half of the samples is silent."""
    feeds = shifted(1, 16, 8, 8)
    for feed in feeds[:4]:
        feed["x"][:] = 0
    options = Options(placement="all", weight_bits=4, bias_correction=False)
    q = onnxq.quantize(plain(1), feeds, options=options)
    changed = q.model.clone()
    assert correct_biases(changed, q.plan, q.qparams, [KeptSample(i, f, {}) for i, f in enumerate(feeds)]) == 1
    tensor = changed.graph.initializers["b"].const_value
    assert tensor is not None and not np.allclose(tensor.numpy(), normal(16), atol=1e-3)


@pytest.mark.parametrize("act", ["Relu (a)", "Clip (a, low, high)"])
def test_measured_means_in_front_of_an_activation_that_is_an_output(act: str) -> None:
    """The tensor behind a Relu that went into the quantizer is not the layer's own."""
    text = f"""{{
        a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
        r = {act}
        y = Conv <pads = [1, 1, 1, 1]> (r, w2, b2)
    }}"""
    constants: dict[str, Any] = {
        "w1": normal(16, 3, 3, 3),
        "b1": normal(16, scale=0.1),
        "w2": normal(8, 16, 3, 3, seed=2),
    }
    constants |= {"b2": normal(8, scale=0.1), "low": f32(0.0), "high": f32(6.0)}
    rng = np.random.default_rng(0)
    feeds: Feeds = [{"x": rng.standard_normal((1, 3, 10, 10)).astype(np.float32)} for _ in range(64)]
    how = ("bias_correction:method=empirical",)
    options = Options(placement="all", weight_bits=4, algorithms=how, effort="fast")  # kernels rounded to nearest
    said = []
    for more in ("", ", float[1, 16, 10, 10] r"):
        model = build(f"(float[1, 3, 10, 10] x) => (float[1, 8, 10, 10] y{more}) {text}", **constants)
        result = onnxq.quantize(model, feeds, options=options)
        said += [note for note in result.notes if note.startswith("bias_correction: ")]
    assert len(said) == 2 and all("layers by measured means" in note for note in said), said
