"""GPTQ: the rounding against the textbook's, the error against what layers give, layers made better or left alone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.algorithm import Draft
from onnxq.algorithms.common.quantized_layer import quantized_layers
from onnxq.algorithms.gptq import solve
from onnxq.algorithms.layerwise import improve as layerwise
from onnxq.algorithms.layerwise.beam import beam
from onnxq.algorithms.layerwise.hessian import Seen, moments_of
from onnxq.algorithms.layerwise.improve import Answer, Problem, _Trial
from onnxq.algorithms.layerwise.moments import Moments
from onnxq.algorithms.layerwise.rounding import Grid, damped, descend, errors, feed_back
from onnxq.algorithms.layerwise.scales import fit_scales
from onnxq.backend_choice import backend_named
from onnxq.calibration.roles import samples_to_verify
from onnxq.errors import OptionError
from onnxq.graph.values import constant_array
from onnxq.qparams import fake_quantize
from tests.contract import infer, quantize_checked, sqnr
from tests.models import build, normal

Doubles = NDArray[np.float64]
Feeds = list[dict[str, NDArray[Any]]]

LAYERS = {
    "conv": ("float[2, 8, 9, 9]", "Conv <pads = [1, 1, 1, 1]> (x, w, b)", (6, 8, 3, 3)),
    "groups": ("float[2, 8, 9, 9]", "Conv <group = 2, strides = [2, 2]> (x, w, b)", (6, 4, 3, 3)),
    "depthwise": ("float[2, 8, 9, 9]", "Conv <group = 8> (x, w, b)", (8, 1, 3, 3)),
    "gemm": ("float[40, 12]", "Gemm <transB = 1> (x, w, b)", (6, 12)),
    "matmul": ("float[4, 10, 12]", "MatMul (x, w)", (12, 6)),
}


def related(*shape: int, axis: int, samples: int = 12) -> Feeds:
    """Inputs whose channels, and in pictures neighbours, are correlated: rounding errors can make up for each other."""
    rng = np.random.default_rng(5)
    mixing = rng.standard_normal((shape[axis], shape[axis])) * 0.15 + np.ones((shape[axis], 1)) * 0.5
    found = []
    for _ in range(samples):
        noise = rng.standard_normal(shape)
        for spatial in range(2, len(shape)) if axis == 1 else ():
            noise = np.sum([np.roll(noise, step, spatial) for step in range(4)], axis=0) / 2.0
        values = np.moveaxis(noise, axis, -1) @ mixing + 0.5
        found.append({"x": np.ascontiguousarray(np.moveaxis(values, -1, axis), np.float32)})
    return found


def chain() -> tuple[onnx.ModelProto, Feeds]:
    model = build(
        """(float[N, 16] x) => (float[N, 8] y) {
            a = Gemm <transB = 1> (x, w1, b1)
            b = Relu (a)
            c = Gemm <transB = 1> (b, w2, b2)
            d = Relu (c)
            y = Gemm <transB = 1> (d, w3, b3)
        }""",
        w1=normal(24, 16), b1=normal(24, scale=0.3), w2=normal(24, 24, seed=1), b2=normal(24, seed=2, scale=0.3),
        w3=normal(8, 24, seed=3), b3=normal(8, seed=4),
    )  # fmt: skip
    return model, related(64, 16, axis=-1, samples=16)


def case(name: str) -> tuple[onnx.ModelProto, Feeds]:
    given, call, shape = LAYERS[name]
    dims = [int(d) for d in given[6:-1].split(",")]
    constants: dict[str, Any] = {} if name == "matmul" else {"b": normal(shape[0])}
    rank = ", ".join("ABCD"[: len(dims)])
    model = build(f"({given} x) => (float[{rank}] y) {{ y = {call} }}", w=normal(*shape, scale=0.3), **constants)
    return model, related(*dims, axis=1 if len(dims) == 4 else -1)


def random_problem(inputs: int = 12, groups: int = 2, outputs: int = 3) -> tuple[Doubles, Doubles, Grid]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((groups, inputs, inputs)) @ rng.standard_normal((groups, inputs, 200))
    weight = rng.standard_normal((groups, outputs, inputs))
    scale = np.abs(weight).max(axis=2, keepdims=True) / 7
    return weight, x @ x.transpose(0, 2, 1) / 200, Grid(scale, np.zeros_like(scale), -8, 7)


@pytest.mark.parametrize("by_activation", [False, True])
@pytest.mark.parametrize("inputs", [12, 150])
def test_feedback_rounds_as_the_paper_does(by_activation: bool, inputs: int) -> None:
    weight, hessian, grid = random_problem(inputs)
    got = feed_back(weight, hessian, grid, by_activation=by_activation)
    for g in range(2):
        order = np.argsort(-np.diagonal(hessian[g]), kind="stable") if by_activation else np.arange(inputs)
        # algorithm 1 of the paper, without blocks
        factor = np.linalg.cholesky(np.linalg.inv(hessian[g][np.ix_(order, order)])).T
        left = weight[g][:, order].copy()
        want = np.empty_like(left)
        for k in range(inputs):
            want[:, k] = np.clip(np.rint(left[:, k] / grid.scale[g, :, 0]), -8, 7) * grid.scale[g, :, 0]
            left[:, k:] -= ((left[:, k] - want[:, k]) / factor[k, k])[:, None] * factor[k, None, k:]
        np.testing.assert_allclose(got[g][:, order], want, atol=1e-9)


def test_coordinate_descent_ends_where_no_single_change_helps() -> None:
    weight, hessian, grid = random_problem(70)
    start = grid.nearest(weight)
    end = descend(weight, start, hessian, grid, sweeps=1000)
    assert (errors(end - weight, hessian) <= errors(start - weight, hessian)).all()
    least = errors(end - weight, hessian)
    for k, sign in itertools.product(range(70), (-1, 1)):
        moved = end.copy()
        moved[:, :, k] += sign * grid.scale[:, :, 0]
        moved = np.clip(moved, -8 * grid.scale, 7 * grid.scale)
        assert (errors(moved - weight, hessian) >= least * (1 - 1e-9)).all()


def test_few_positions_zero_and_equal_inputs_are_no_trouble() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1, 20, 5))
    x[0, 3] = 0.0
    x[0, 8] = x[0, 9]
    hessian = x @ x.transpose(0, 2, 1)
    weight = rng.standard_normal((1, 4, 20))
    grid = Grid(np.full((1, 4, 1), 0.3), np.zeros((1, 4, 1)), -8, 7)
    got = feed_back(weight, hessian, grid)
    assert np.isfinite(got).all()
    got = descend(weight, feed_back(weight, damped(hessian, 0.0), grid), damped(hessian, 0.0), grid)
    assert np.isfinite(got).all()
    assert (errors(got - weight, hessian) <= errors(grid.nearest(weight) - weight, hessian)).all()
    np.testing.assert_array_equal(got[:, :, 3], grid.nearest(weight)[:, :, 3])


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_layers_output_comes_closer(name: str, bits: int) -> None:
    model, feeds = case(name)
    scores = []
    for algorithm in ("bias_correction", "gptq"):
        options = Options(
            placement="all", weight_bits=bits, act_bits=16, algorithms=(algorithm,), format="fake-quantize"
        )
        scores.append(quantize_checked(model, feeds, options, least=None).worst)
    assert scores[1] > scores[0] + (0.5 if name == "depthwise" else 1.5)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("name", ["conv", "gemm", "matmul"])
def test_weights_lie_on_their_grid(name: str, per_channel: bool) -> None:
    model, feeds = case(name)
    options = Options(placement="all", weight_bits=4, per_channel=per_channel, algorithms=("gptq",))
    q = onnxq.quantize(model, feeds, options=options)
    (layer,) = quantized_layers(q.model, q.plan, stored=True)
    np.testing.assert_array_equal(fake_quantize(layer.array(), q.qparams[layer.site]), layer.array())
    nearest = fake_quantize(onnx.numpy_helper.to_array(model.graph.initializer[0]), q.qparams[layer.site])
    assert (layer.array() != nearest).any()


def draft_of(model: onnx.ModelProto, feeds: Feeds, **asked: Any) -> Draft:
    options = Options(placement="all", bias_correction=False, keep=len(feeds), **asked)
    statistics = onnxq.calibrate(model, feeds, options=options)
    q = onnxq.quantize(model, statistics=statistics, options=options)
    copy, numbers = q.model.clone(), dict(q.qparams)
    return Draft(copy, q.model, q.plan, numbers, backend_named("onnxruntime"), options, statistics, {})


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("prefix", [False, True])
def test_moments_tell_the_error_of_any_change(name: str, prefix: bool) -> None:
    model, feeds = case(name)
    draft = draft_of(model, feeds, act_bits=8)
    (layer,) = quantized_layers(draft.model, draft.plan)
    (seen,) = moments_of(draft, [layer], prefix=prefix)
    weight = layer.matrix().astype(np.float64)
    rng = np.random.default_rng(4)
    changes = [rng.standard_normal(weight.shape) * 0.1 for _ in range(2)]
    measured = []
    for change in changes:
        total = 0.0
        for sample in draft.held:
            x = sample.feeds["x"]
            site = next(s for s in draft.plan.sites if s.tensor == "x")
            read = fake_quantize(x, draft.numbers[site.name]) if prefix else x
            wrong = (weight + change) @ layer.inputs(read) + 0.25 - weight @ layer.inputs(x)
            total += float(np.square(wrong).sum() / wrong.shape[2] / len(draft.held))
        measured.append(total)
    told = [float(seen.held.error(change, 0.25).sum()) for change in changes]
    # what does not depend on the change is left out
    assert told[0] - told[1] == pytest.approx(measured[0] - measured[1], rel=1e-4, abs=1e-5 * measured[0])
    if not prefix:
        assert told[0] == pytest.approx(measured[0], rel=1e-4)


def far(offset: float) -> tuple[onnx.ModelProto, Feeds]:
    """A layer half of whose inputs vary by 1 about a large number, which its bias takes off again."""
    mixing = np.eye(32) + np.random.default_rng(7).normal(size=(32, 32)) / 8
    mean = np.where(np.arange(32) < 16, offset, 0.0)
    weight = normal(32, 32, scale=1.0)
    model = build("(float[64, 32] x) => (float[64, 32] y) { y = Gemm (x, w, b) }", w=weight,
                  b=(-mean @ weight.astype(np.float64)).astype(np.float32))  # fmt: skip
    rng = np.random.default_rng(1)
    return model, [{"x": (rng.normal(size=(64, 32)) @ mixing + mean).astype(np.float32)} for _ in range(24)]


@pytest.mark.parametrize("offset", [0.0, 300.0, 10_000.0])
@pytest.mark.parametrize("algorithm", ["gptq", "adaround", "seqmse"])
def test_inputs_far_from_zero_gain_as_those_around_it(algorithm: str, offset: float) -> None:
    model, feeds = far(offset)
    scores = []
    for names in (("bias_correction",), (algorithm, "bias_correction")):
        q = onnxq.quantize(model, feeds[:16], options=Options(weight_bits=4, algorithms=names))
        assert q.plan.stored and not q.plan.quantized
        want, got = (infer(m, feeds[16:], optimize=False)["y"] for m in (model, ir.to_proto(q.rendered())))
        scores.append(sqnr(want, got))
    assert scores[1] > scores[0] + (0.1 if algorithm == "seqmse" else 0.5)


@pytest.mark.parametrize("prefix", [False, True])
def test_moments_of_inputs_far_from_zero(prefix: bool) -> None:
    draft = draft_of(*far(10_000.0), act_bits=16)
    (layer,) = quantized_layers(draft.model, draft.plan)
    (seen,) = moments_of(draft, [layer], prefix=prefix)
    exact = np.concatenate([sample.feeds["x"] for sample in draft.held]).astype(np.float64)
    x = exact
    if prefix:
        (site,) = [s for s in draft.plan.sites if s.tensor == "x"]
        x = fake_quantize(exact.astype(np.float32), draft.numbers[site.name]).astype(np.float64)
    np.testing.assert_allclose(seen.held.mean[0], x.mean(axis=0), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(seen.held.spread[0], np.cov(x.T, bias=True), atol=1e-4)
    if prefix:
        assert seen.held.shift is not None and seen.held.drift is not None
        moved = x - exact
        off = moved @ layer.matrix()[0].T.astype(np.float64)
        np.testing.assert_allclose(seen.held.shift[0], off.mean(axis=0), atol=1e-5)
        centred = (off - off.mean(axis=0)).T @ (x - x.mean(axis=0)) / len(x)
        np.testing.assert_allclose(seen.held.drift[0], centred, atol=1e-4)


def test_what_is_worse_on_samples_held_back_is_undone() -> None:
    draft = draft_of(*case("conv"), weight_bits=4)
    before = draft.model.graph.initializers["w"].const_value
    layerwise.improve(draft, lambda problem: Answer(np.zeros_like(problem.weight), problem.qparams), "zeros")
    assert draft.model.graph.initializers["w"].const_value is before
    assert "1 undone" in draft.notes[0]


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_is_put_right_where_no_better_weight_is_found(bias: bool) -> None:
    draft = draft_of(*case("conv"), weight_bits=4)
    value = draft.model.graph.initializers["b"]
    exact = constant_array(value)
    assert exact is not None
    value.const_value = ir.tensor(exact + np.float32(0.5), name="b")
    layerwise.improve(draft, lambda problem: Answer(np.zeros_like(problem.weight), problem.qparams), "zeros", bias=bias)
    assert "1 undone" in draft.notes[0]
    got = constant_array(value)
    assert got is not None
    np.testing.assert_allclose(got, exact if bias else exact + 0.5, atol=1e-6)


@pytest.mark.parametrize("samples", [12, 24])
def test_what_is_decided_is_learned_from_the_samples_that_decided_it_too(samples: int) -> None:
    model, _ = case("gemm")
    feeds = related(40, 12, axis=-1, samples=samples)
    draft, counts = draft_of(model, feeds, weight_bits=4), []

    def solve(problem: Problem) -> Answer:
        counts.append(problem.moments.count)
        return Answer(problem.weight, problem.qparams)

    layer = draft.model.graph.initializers["w"]
    layer.const_value = ir.tensor(np.zeros((6, 12), np.float32), name="w")
    layerwise.improve(draft, solve, "exact")
    others = {sample.index for sample in samples_to_verify(draft.statistics.kept, learned=True)}
    assert not others & {sample.index for sample in draft.fitting}
    assert counts[0] == 40 * len(draft.fitting)
    assert counts[1:] == ([40 * (samples - len(others))] if samples > 16 else [])


def test_moments_of_two_parts_are_those_of_all_positions() -> None:
    rng = np.random.default_rng(0)
    x, off = rng.standard_normal((90, 5)) + 3.0, rng.standard_normal((90, 2)) - 1.0
    x[30:] *= 2.0

    def moments(part: slice) -> Moments:
        here, by = x[part], off[part]
        centred = here - here.mean(axis=0)
        spread, drift = (left.T @ centred / len(here) for left in (centred, by - by.mean(axis=0)))
        return Moments(len(here), here.mean(axis=0)[None], spread[None], by.mean(axis=0)[None], drift[None])

    got, want = moments(slice(30)).joined(moments(slice(30, None))), moments(slice(None))
    assert got.count == want.count
    for name in ("mean", "spread", "shift", "drift"):
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), rtol=1e-12)


@pytest.mark.parametrize("agreeing", [1.0, 0.3, -1.0])
def test_so_much_is_made_up_for_as_helps_on_samples_held_back(agreeing: float) -> None:
    rng = np.random.default_rng(0)
    (layer,) = quantized_layers((draft := draft_of(*case("conv"), weight_bits=4)).model, draft.plan, stored=True)
    weight = layer.matrix().astype(np.float64)
    learned, pull = (rng.standard_normal(weight.shape) for _ in range(2))
    x = rng.standard_normal((weight.shape[2], 500))
    spread = (x @ x.T / 500)[None]
    mean, shift = np.zeros((1, weight.shape[2])), np.zeros(weight.shape[:2])
    fitting = Moments(500, mean, spread, shift, learned)
    held = Moments(500, mean, spread, shift, agreeing * -pull @ spread)
    trial = _Trial(Seen(layer, fitting, held, fitting), 0.0, free=True)
    share = trial.share(pull)
    every = np.linspace(0.0, 1.0, 101)
    assert trial.error(share * pull) <= min(trial.error(part * pull) for part in every) + 1e-9
    assert share == pytest.approx(max(agreeing, 0.0), abs=1e-6)


def problem_of(name: str, **asked: Any) -> Problem:
    """What the only layer of a case asks to be solved."""
    model, feeds = case(name)
    seen: list[Problem] = []

    def solve(problem: Problem) -> Answer:
        seen.append(problem)
        return Answer(problem.grid.nearest(problem.target), problem.qparams)

    layerwise.improve(draft_of(model, feeds, effort="fast", **asked), solve, "test")
    (problem,) = seen
    return problem


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_scales_are_fitted_to_the_integers(name: str, per_channel: bool) -> None:
    problem = problem_of(name, weight_bits=4, per_channel=per_channel)
    rounded = problem.grid.nearest(problem.target)
    fitted, weight = fit_scales(problem.layer, problem.qparams, rounded, problem.target, problem.hessian)
    np.testing.assert_allclose(Grid.of(problem.layer, fitted).nearest(weight), weight, rtol=1e-6, atol=1e-9)
    steps, before = (x / g.scale for x, g in ((weight, Grid.of(problem.layer, fitted)), (rounded, problem.grid)))
    np.testing.assert_allclose(steps, before, atol=1e-6)
    least = errors(weight - problem.target, problem.hessian)
    for other in (rounded, weight * 1.01, weight * 0.99):
        found = errors(other - problem.target, problem.hessian)
        assert (least <= found + 1e-12).all() if per_channel else least.sum() <= found.sum()


@pytest.mark.parametrize("name", LAYERS)
def test_each_output_takes_the_scale_that_suits_it(name: str) -> None:
    problem = problem_of(name, weight_bits=4, per_channel=True)
    plain, searched = (solve(problem, by_activation=True, search=search, sweeps=2) for search in (False, True))
    before, after = (errors(answer.weight - problem.target, problem.hessian) for answer in (plain, searched))
    assert (after <= before + 1e-12).all() and after.sum() < 0.98 * before.sum()
    grid = Grid.of(problem.layer, searched.qparams)
    np.testing.assert_allclose(grid.nearest(searched.weight), searched.weight, rtol=1e-6, atol=1e-9)


def test_kernels_of_few_weights_are_rounded_by_a_wider_search() -> None:
    problem = problem_of("depthwise", weight_bits=3)
    wider = errors(beam(problem.target, problem.hessian, problem.grid) - problem.target, problem.hessian)
    got = solve(problem, by_activation=True, search=False, sweeps=2).weight
    assert (errors(got - problem.target, problem.hessian) <= wider * (1 + 1e-9)).all()


def test_weights_that_layers_share_are_left_alone() -> None:
    model = build(
        "(float[4, 8] x) => (float[4, 8] y) { a = MatMul (x, w)\n y = MatMul (a, w) }", w=normal(8, 8, scale=0.4)
    )
    draft = draft_of(model, [{"x": normal(4, 8, seed=s, scale=1.0)} for s in range(6)], weight_bits=4)

    def never(problem: Problem) -> Answer:
        raise AssertionError(problem)

    layerwise.improve(draft, never, "none")
    assert draft.notes == ["none: 0 layers; 2 left alone: its weight is shared"]


def test_weights_that_are_only_stored_as_integers_are_rounded_too() -> None:
    model = build("(float[4, 64] x) => (float[4, 256] y) { y = MatMul (x, w) }", w=normal(64, 256, scale=0.2))
    feeds = related(4, 64, axis=-1)
    q = onnxq.quantize(model, feeds, options=Options(weight_bits=4, algorithms=("gptq",)))
    assert q.plan.stored and not q.plan.quantized
    assert any(note.startswith("gptq: 1 layer") for note in q.notes)


def test_the_same_again() -> None:
    model, feeds = chain()
    options = Options(placement="all", weight_bits=4, algorithms=("gptq",))
    first, second = (onnxq.quantize(model, feeds, options=options) for _ in range(2))
    assert ir.to_proto(first.rendered()).SerializeToString() == ir.to_proto(second.rendered()).SerializeToString()


@pytest.mark.parametrize("wrong", ["order=best", "damping=2", "sweeps=-1", "depth=3"])
def test_wrong_parameters(wrong: str) -> None:
    model, feeds = case("gemm")
    with pytest.raises(OptionError, match="gptq"):
        onnxq.quantize(model, feeds, options=Options(algorithms=(f"gptq:{wrong}",)))
