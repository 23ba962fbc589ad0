"""Effort: what each runs, and that more of it is never worse."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.algorithms import reconstruct
from onnxq.calibration.roles import to_learn_from
from onnxq.calibration.statistics import KeptSample
from onnxq.errors import ModelError, OptionError
from onnxq.measuring.metrics import ErrorMeter
from onnxq.measuring.score import Score
from tests.models import build, images, normal, selecting, verified_sqnr

Feeds = list[dict[str, np.ndarray[Any, np.dtype[Any]]]]


def net() -> onnx.ModelProto:
    return build(
        """(float[1, 3, 12, 12] x) => (float[1, 10] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            b = Relu (a)
            c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (b, w2, b2)
            d = Relu (c)
            e = GlobalAveragePool (d)
            f = Flatten (e)
            y = Gemm (f, w3, b3)
        }""",
        w1=normal(16, 3, 3, 3),
        b1=normal(16),
        w2=normal(16, 16, 3, 3),
        b2=normal(16),
        w3=normal(16, 10),
        b3=normal(10),
    )


def with_a_spike(count: int, seed: int) -> Feeds:
    """Normal inputs; the first sample holds a single value far out, which spoils minimum and maximum as a range."""
    x = np.random.default_rng(seed).standard_normal((count, 1, 3, 12, 12)).astype(np.float32)
    x[0, 0, 1, 5, 5] = 150.0
    return [{"x": sample} for sample in x]


def fresh_sqnr(quantized: onnxq.Quantized, feeds: Feeds) -> float:
    meter = ErrorMeter()
    reference, result = onnxq.Session(net().SerializeToString()), onnxq.Session(quantized.qdq())
    for index, sample in enumerate(feeds):
        meter.update(reference.run(sample)["y"], result.run(sample)["y"], index)
    return meter.result().sqnr


@pytest.mark.parametrize(("effort", "recipe"), [("fast", ("minmax",)), ("default", ("minmax", "bias_correction"))])
def test_each_effort_says_what_it_runs(effort: Any, recipe: tuple[str, ...]) -> None:
    options = Options(placement="all", range="minmax", effort=effort)
    made = onnxq.quantize(net(), with_a_spike(8, 0), options=options)
    assert made.recipe == recipe
    assert made.report()["recipe"] == list(recipe)


def test_best_is_better_on_data_that_it_has_not_seen() -> None:
    data, fresh = with_a_spike(64, 0), with_a_spike(65, 1)[1:]
    default = onnxq.quantize(net(), data, options=Options(placement="all", range="minmax"))
    best = onnxq.quantize(net(), data, options=Options(placement="all", range="minmax", effort="best"))
    assert any(note.startswith("best: default") for note in best.notes)
    assert best.recipe[0] != "minmax"
    assert fresh_sqnr(best, fresh) > fresh_sqnr(default, fresh) + 3
    assert best.plan.quantized == default.plan.quantized, "as fast as before"


def test_a_gain_that_chance_may_give_is_not_believed() -> None:
    """Rare large values in every sample: whether clipping them helps depends on the samples that judge."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((64, 1, 3, 12, 12)) * np.where(rng.random((64, 1, 3, 12, 12)) < 0.002, 40.0, 1.0)
    data = [{"x": sample.astype(np.float32)} for sample in x]
    options = Options(placement="all", range="minmax", weight_bits=8, effort="best", reduce_range=True)
    best = onnxq.quantize(net(), data, options=options)
    assert best.recipe[0] == "minmax"
    assert any("undone: within chance" in note for note in best.notes)


def test_a_range_that_loses_rare_loud_samples_is_refused_and_said() -> None:
    """One sample in 64 is six times as loud, none of them among those that judge: fine steps suit these alone."""
    rng = np.random.default_rng(0)
    loud = {7, 70, 133, 196, 259}
    data = [
        {"x": (rng.standard_normal((1, 3, 12, 12)) * (6 if k in loud else 1)).astype(np.float32)} for k in range(320)
    ]
    made = {
        effort: onnxq.quantize(net(), data, options=Options(placement="all", effort=effort))
        for effort in ("default", "best")
    }
    sqnr = {
        effort: onnxq.compare(net(), result, data, tensors=False).outputs["y"].sqnr for effort, result in made.items()
    }
    assert sqnr["best"] > sqnr["default"] - 1
    said = [note for note in made["best"].notes if "dB on all the data" in note]
    assert said and all(note.startswith("best: entropy +") and ", undone: tensor '" in note for note in said)


def test_a_step_that_is_no_better_is_undone_and_said() -> None:
    """Uniform data in fixed bounds: no range is better than its minimum and maximum."""
    rng = np.random.default_rng(0)
    data = [{"x": rng.uniform(-1, 1, (1, 3, 12, 12)).astype(np.float32)} for _ in range(32)]
    best = onnxq.quantize(net(), data, options=Options(placement="all", effort="best"))
    tried = [note for note in best.notes if note.startswith("best: ")]
    assert len(tried) >= 3 and any(note.endswith("undone") for note in tried)


def score(**noise: list[float]) -> Score:
    return Score({name: np.array(ratios) for name, ratios in noise.items()})


def test_a_sample_of_which_only_rounding_is_left_tells_nothing() -> None:
    """As of a Sigmoid far from its middle: one result happens to be exact there, another one off by a last bit."""
    start = score(y=[0.1, 0.12, 0.09, 0.11] * 3 + [1e-16, 0.0])
    better = score(y=[0.05, 0.06, 0.05, 0.05] * 3 + [0.0, 1e-15])
    assert better.no_better_than(start) is None
    assert start.no_better_than(better) == ""


def test_of_what_is_undone_the_reason_is_said() -> None:
    start = score(y=[0.1, 0.1, 0.1, 0.1], z=[0.01] * 4)
    assert score(y=[0.05] * 4, z=[0.01] * 4).no_better_than(start) is None
    assert score(y=[0.2] * 4, z=[0.01] * 4).no_better_than(start) == "", "its figure tells"
    assert score(y=[0.0999] * 4, z=[0.01] * 4).no_better_than(start) == "too little"
    assert score(y=[np.inf] * 4, z=[0.01] * 4).no_better_than(start) == "it gives no numbers to compare"
    chance = score(y=[0.001, 0.1, 0.15, 0.1], z=[0.01] * 4).no_better_than(start)
    assert chance == "within chance: 4.6 dB a sample at 'y', with a standard error of 5.2 dB over 4 samples"
    lost = score(y=[0.09] * 4, z=[0.02] * 4).no_better_than(start)
    assert lost == "output 'z' loses 3.0 dB, and the outputs together more than is gained"


def test_numbers_where_there_were_none_are_better() -> None:
    """A sample of the one is broken, and no longer in the other: that is no matter of chance."""
    broken, whole = score(y=[np.inf, 0.1, 0.1]), score(y=[0.2, 0.1, 0.1])
    assert whole.no_better_than(broken) is None and not whole.open(broken, share=0.5)
    assert broken.no_better_than(whole) is not None and not broken.open(whole, share=0.5)


def test_no_gain_is_said_where_there_are_no_numbers() -> None:
    model = build(
        """(float[1, 16, 12] x) => (y) {
            a = MatMul (x, w)
            b = Transpose <perm = [0, 2, 1]> (a)
            y = Reciprocal (b)
        }""",
        w=normal(12, 8),
    )
    made = onnxq.quantize(model, images(1, 16, 12, samples=8), backend="vitis", options=Options(effort="best"))
    assert verified_sqnr(made) == -np.inf
    tried = [note for note in made.notes if note.startswith("best: ")]
    assert any("it gives no numbers to compare" in note for note in tried)
    assert not [note for note in tried if "nan" in note]


def test_what_chance_may_give_is_looked_at_on_more_samples() -> None:
    start, sure = score(y=[0.1] * 4), score(y=[0.05] * 4)
    unsure, none = score(y=[0.001, 0.1, 0.15, 0.05]), score(y=[0.03, 0.2, 0.03, 0.08])
    assert unsure.open(start, 0.25), "four times the samples might tell"
    assert not sure.open(start, 0.25), "they tell already"
    assert not unsure.open(start, 1.0) and not none.open(score(y=[0.01, 0.3, 0.01, 0.08]), 0.25), "nothing to hope for"
    joined = unsure.joined(score(y=[0.05] * 12))
    assert len(joined.noise["y"]) == 16 and joined.no_better_than(start.joined(score(y=[0.1] * 12))) is None


def test_both_are_made_again_with_others_to_learn_from_until_it_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judges of the first turn cannot tell; every sample held back judges once at most."""
    scored: list[list[int]] = []

    def scores(made: onnxq.Quantized, judges: Sequence[KeptSample], _: object) -> Score:
        scored.append([int(sample.feeds["x"].flat[0]) for sample in judges])
        tried = "gptq" in made.recipe
        return score(y=([0.001, 0.1, 0.15, 0.1] if tried else [0.1] * 4) * (len(judges) // 4))

    monkeypatch.setattr("onnxq.best.score_of", scores)
    data = images(1, 3, 12, 12, samples=64)
    for k, feed in enumerate(data):
        feed["x"].flat[0] = k
    options = Options(placement="all", effort="best", range="minmax")
    onnxq.quantize(net(), data, options=options)
    turns = [list(t) for t in dict.fromkeys(map(tuple, scored))]
    assert len(turns) > 1
    seen = [k for turn in turns for k in turn]
    assert len(seen) == len(set(seen)) > 16


@pytest.mark.parametrize(("target", "tried"), [("vitis", "gptq:prefix=true"), ("tensorrt", "gptq")])
def test_where_weights_have_one_scale_layers_learn_from_what_quantized_ones_give(target: str, tried: str) -> None:
    made = onnxq.quantize(net(), images(1, 3, 12, 12, samples=16), backend=target, options=Options(effort="best"))
    assert f"best: {tried} " in " ".join(f"{note} " for note in made.notes)


def test_ranges_are_not_tried_where_weights_alone_are_integers() -> None:
    model = build("(float[1, 64] x) => (float[1, 128] y) { y = Gemm (x, w, b) }", w=normal(64, 128), b=normal(128))
    made = onnxq.quantize(model, images(1, 64, samples=32), options=Options(effort="best"))
    assert made.plan.stored and not made.plan.quantized
    tried = [note.removeprefix("best: ").split()[0] for note in made.notes if note.startswith("best: ")]
    assert tried == ["default", "gptq", "bias_correction:method=empirical"]


def test_an_algorithm_that_fails_loses_nothing_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModelError("no such luck", where="conv")

    monkeypatch.setattr("onnxq.algorithms.gptq.apply", fail)
    best = onnxq.quantize(net(), with_a_spike(32, 0), options=Options(placement="all", effort="best"))
    assert best.verification is not None
    assert "best: gptq failed: conv: no such luck" in best.notes


def test_rows_that_depend_on_the_numbers_are_compared_sample_by_sample() -> None:
    """Steps change in which samples the number of rows is another."""
    best = onnxq.quantize(
        selecting(400), images(400, 8, samples=64), options=Options(placement="all", effort="best", weight_bits=4)
    )
    tried = [note for note in best.notes if note.startswith("best: ")]
    assert "samples of another shape counted as wrong" in tried[0] and not any(" failed" in note for note in tried)
    assert len(tried) > 5


def test_masked_scores_are_no_reason_to_try_nothing() -> None:
    """Scores that the model itself masks are infinite in both models, and tell nothing of either."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 10] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            b = Relu (a)
            c = GlobalAveragePool (b)
            d = Flatten (c)
            e = Gemm (d, v)
            y = Where (allowed, e, never)
        }""",
        w=normal(8, 3, 3, 3),
        v=normal(8, 10, seed=1),
        allowed=np.array([[True] * 8 + [False] * 2]),
        never=np.float32(-np.inf),
    )
    feeds = images(1, 3, 8, 8, samples=64)
    default, best = (
        onnxq.quantize(model, feeds, options=Options(placement="all", effort=effort)) for effort in ("default", "best")
    )
    assert not [note for note in best.notes if "nan" in note]
    found = [result.verification.outputs["y"].sqnr for result in (default, best) if result.verification is not None]
    assert found[1] > found[0] + 3


def test_what_a_step_builds_on_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPTQ, once it is kept, is what the correction of biases builds on; so is smoothing, of all that follows."""
    runs: dict[str, list[tuple[int, ...]]] = {"gptq": [], "smoothquant": []}

    def counted(name: str) -> None:
        module = importlib.import_module(f"onnxq.algorithms.{name}")
        apply = module.apply

        def spy(draft: Any, **parameters: object) -> None:
            runs[name].append(tuple(int(s.feeds["x"].flat[0]) for s in to_learn_from(draft.statistics.kept)))
            apply(draft, **parameters)

        monkeypatch.setattr(module, "apply", spy)

    def scores(made: onnxq.Quantized, judges: Sequence[KeptSample], _: object) -> Score:
        better = len([name for name in made.recipe if name in ("smoothquant", "gptq")])
        return score(y=[0.1 / 2**better] * len(judges))

    monkeypatch.setattr("onnxq.best.score_of", scores)
    for name in runs:
        counted(name)
    data = images(1, 3, 12, 12, samples=64)
    for k, feed in enumerate(data):
        feed["x"].flat[0] = k
    options = Options(placement="all", effort="best", range="minmax")
    made = onnxq.quantize(net(), data, options=options)
    assert made.recipe == ("minmax", "smoothquant", "gptq", "bias_correction")
    assert any(note.startswith("best: bias_correction:method=empirical") for note in made.notes)
    for name, learned_from in runs.items():
        assert 1 <= len(learned_from) == len(set(learned_from)), name


def test_what_is_kept_of_earlier_steps_gives_what_its_recipe_gives() -> None:
    data, options = with_a_spike(64, 0), Options(placement="all", weight_bits=8, effort="best", seed=1)
    best = onnxq.quantize(net(), data, options=options)
    first, *rest = best.recipe
    alone = onnxq.quantize(net(), data, options=Options(placement="all", weight_bits=8, range=first, algorithms=rest))
    assert bytes_of(best) == bytes_of(alone)


def bytes_of(quantized: onnxq.Quantized) -> bytes:
    return bytes(ir.serde.serialize_model(quantized.rendered()).SerializeToString())


class Clock:
    """A clock that stands still until it is set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("onnxq.console.deadline.time", made)
    return made


def test_without_time_it_is_the_default_and_says_what_was_not_tried() -> None:
    data, options = with_a_spike(64, 0), Options(placement="all", range="minmax", keep=64)
    best = onnxq.quantize(net(), data, options=replace(options, effort="best"), max_minutes=0)
    assert best.recipe == ("minmax", "bias_correction")
    *_, untried = best.notes
    assert untried == (
        "best, not tried: percentile:99.99, entropy, smoothquant, gptq, bias_correction:method=empirical: "
        "the time was up"
    )
    assert not [note for note in best.notes if note.startswith("best: ") and "default" not in note]


def test_training_of_hours_is_not_tried_unless_a_limit_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the extra torch is not installed")
    options = Options(placement="all", effort="best", weight_bits=4)
    monkeypatch.setattr("onnxq.algorithms.reconstruct.seconds", lambda macs: 3 * 3600.0)
    monkeypatch.setitem(cast(dict[str, object], reconstruct.PARAMETERS), "iterations", 5)
    best = onnxq.quantize(net(), with_a_spike(32, 0), options=options)
    said = "best, not tried: reconstruct: it would take about 3 hours on one thread; with --max-minutes it is tried"
    assert said in best.notes and not [note for note in best.notes if note.startswith("best: reconstruct")]
    limited = onnxq.quantize(net(), with_a_spike(32, 0), options=options, max_minutes=60)
    assert said not in limited.notes and [note for note in limited.notes if note.startswith("best: reconstruct")]


def test_when_the_time_is_up_within_a_step_the_best_before_it_is_kept(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    from onnxq.algorithms import gptq

    apply = gptq.apply

    def slow(draft: Any, **parameters: Any) -> None:
        clock.now = 61.0
        apply(draft, **parameters)
        raise AssertionError("it went on to its end")

    monkeypatch.setattr(gptq, "apply", slow)
    best = onnxq.quantize(
        net(), with_a_spike(64, 0), options=Options(placement="all", range="minmax", effort="best"), max_minutes=1
    )
    assert best.recipe == ("percentile:99.99", "bias_correction")
    assert best.notes[-1] == "best, not tried: gptq, bias_correction:method=empirical: the time was up"
    assert best.verification is not None and best.verification.samples


def test_targets_share_the_time(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    ends = []

    def improve(first: onnxq.Quantized, decider: object, until: float) -> Any:
        ends.append(until)
        clock.now += 20.0  # of which it needs no more
        return first, []

    monkeypatch.setattr("onnxq.job.improve", improve)
    options = Options(effort="best")
    data = with_a_spike(16, 0)
    onnxq.quantize_all(net(), data, backends=["onnxruntime", "openvino"], options=options, max_minutes=2)
    assert ends == [60.0, 120.0]
    onnxq.quantize(net(), data, options=options)
    assert ends[-1] == np.inf


@pytest.mark.parametrize(
    ("options", "minutes", "said"),
    [
        (Options(), 1, "effort 'best' only"),
        (Options(effort="best", algorithms="gptq"), 1, "effort 'best' only"),
        (Options(effort="best"), -1, "not a number of at least 0"),
        (Options(effort="best"), "5", "not a number of at least 0"),
    ],
)
def test_a_limit_that_limits_nothing_is_refused(options: Options, minutes: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        onnxq.quantize(net(), with_a_spike(8, 0), options=options, max_minutes=minutes)
