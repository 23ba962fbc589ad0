"""Block reconstruction: better on data not seen, on the grid, undone where it does not help, the same every time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from onnxq import Options, quantize
from onnxq.errors import OptionError
from onnxq.graph.values import constant_array
from onnxq.qparams import fake_quantize
from tests.algorithms.learned import correlated, draft_of, fresh_sqnr, residual
from tests.models import build, normal

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

from onnxq.algorithm import Draft
from onnxq.algorithm_choice import chosen
from onnxq.algorithms import reconstruct
from onnxq.algorithms.blockwise.learn_blocks import Learning, adaround_on_data, learn_blocks

torch.set_num_threads(1)

FEW = Options(placement="all", weight_bits=3, weight_symmetric=True)
DATA = correlated(1, 6, 8, 8, samples=16, seed=2)
UNSEEN = correlated(1, 6, 8, 8, samples=8, seed=3)
QUICK = {**reconstruct.PARAMETERS, "iterations": 80, "batch": 8, "lr": 3e-2}


def weights_of(draft: Draft) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    found = {name: constant_array(value) for name, value in draft.model.graph.initializers.items()}
    return {name: array for name, array in found.items() if array is not None}


def test_data_not_seen_gains() -> None:
    draft = draft_of(residual(), DATA, FEW)
    before = fresh_sqnr(residual(), draft, UNSEEN)
    reconstruct.apply(draft, **QUICK)
    assert fresh_sqnr(residual(), draft, UNSEEN) > before + 2
    assert draft.notes[0].startswith("reconstruct: 1 blocks") and "undone" not in draft.notes[0]


def test_few_steps_are_better_than_a_rounding_that_was_good_already() -> None:
    """A kernel's errors make up for each other on bright pictures; learning goes on from there, not from the float."""
    bright, unseen = (
        [{"x": sample["x"] * np.float32(0.3) + 2} for sample in correlated(1, 3, 12, 12, samples=16, seed=seed)]
        for seed in (2, 3)
    )
    model = build(
        """(float[1, 3, 12, 12] x) => (float[1, 4, 12, 12] y) {
            a = Conv <pads = [2, 2, 2, 2]> (x, w)
            r = Tanh (a)
            y = Conv <pads = [1, 1, 1, 1]> (r, v)
        }""",
        w=normal(16, 3, 5, 5),
        v=normal(4, 16, 3, 3, seed=1),
    )
    draft = draft_of(model, bright, FEW)
    before = fresh_sqnr(model, draft, unseen)
    reconstruct.apply(draft, **QUICK)
    assert fresh_sqnr(model, draft, unseen) > before + 0.5


def test_weights_lie_on_the_grid_beside_where_they_were() -> None:
    draft = draft_of(residual(), DATA, FEW)
    before = weights_of(draft)
    reconstruct.apply(draft, **QUICK)
    after = weights_of(draft)
    for name in ("w", "w2", "w3"):
        qp = draft.numbers[name]
        np.testing.assert_array_equal(fake_quantize(after[name], qp), after[name])
        step = qp.scale.reshape(-1, 1, 1, 1)
        low, high = qp.lo.reshape(-1, 1, 1, 1), qp.hi.reshape(-1, 1, 1, 1)
        assert (np.abs(after[name] - np.clip(before[name], low, high)) <= step * 1.001).all()
    assert any((after[name] != fake_quantize(before[name], draft.numbers[name])).any() for name in ("w", "w2", "w3"))


def test_the_same_every_time_and_another_seed_differs() -> None:
    results = []
    for seed in (0, 0, 1):
        options = Options(placement="all", weight_bits=3, seed=seed)
        draft = draft_of(residual(), DATA, options)
        reconstruct.apply(draft, **{**QUICK, "iterations": 20})
        results.append(weights_of(draft))
    assert all((results[0][name] == results[1][name]).all() for name in results[0])
    assert any((results[0][name] != results[2][name]).any() for name in results[0])


def test_what_does_not_help_is_undone() -> None:
    draft = draft_of(residual(), DATA, Options(placement="all", weight_bits=8))
    before, numbers = weights_of(draft), dict(draft.numbers)
    wild = Learning("wild", "block", "free", 3, 2, lr=1e4, scale_lr=0.0)
    learn_blocks(draft, wild)
    after = weights_of(draft)
    assert all((after[name] == before[name]).all() for name in before)
    assert draft.numbers == numbers
    assert draft.notes == ["wild: 0 blocks; 1 undone where it was not lower"]


def test_scales_of_a_block_are_learned_and_those_seen_outside_stay() -> None:
    draft = draft_of(residual(), DATA, Options(placement="all", weight_bits=3, act_bits=4))
    before = dict(draft.numbers)
    reconstruct.apply(draft, **{**QUICK, "scale_lr": 1e-2})
    activations = [s for s in draft.plan.sites if s.role == "activation"]
    changed = {s.name for s in activations if draft.numbers[s.name].scale != before[s.name].scale}
    assert changed
    for site in activations:
        assert draft.numbers[site.name].scale == draft.numbers[draft.plan.root(site).name].scale
        assert draft.numbers[site.name].zero_point == before[site.name].zero_point
    assert "y" not in changed


def test_adaround_on_data_lies_between_the_nearest_and_the_best_rounding() -> None:
    weight = normal(6, 8, seed=3, scale=0.4)
    model = build("(float[8, 8] x) => (float[8, 6] y) { y = Gemm <transB = 1> (x, w) }", w=weight)
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((8, 8)) * 0.3 + 0.6
    feeds = [{"x": (rng.standard_normal((8, 8)) @ mix).astype(np.float32)} for _ in range(32)]
    draft = draft_of(model, feeds, Options(placement="all", weight_bits=3, weight_symmetric=True, act_bits=16))
    qp = draft.numbers["w"]
    x = np.concatenate([sample.feeds["x"] for sample in draft.held]).astype(np.float64)

    def error(candidate: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
        """Mean squared error of each output on the samples held back."""
        return np.asarray(np.square(x @ (candidate.astype(np.float64) - weight).T).mean(0))

    scale = qp.scale.reshape(-1, 1)
    floor = np.floor(weight / scale)
    every = [error(np.clip(floor + np.array(up), -4, 3) * scale) for up in itertools.product((0, 1), repeat=8)]
    best, nearest = np.min(every, axis=0), error(fake_quantize(weight, qp))
    adaround_on_data(draft, iterations=200, batch=8)
    got = error(weights_of(draft)["w"])
    assert (got >= best * 0.999).all()
    assert got.sum() <= 0.75 * nearest.sum()


def test_a_net_of_small_numbers_learns_as_well() -> None:
    """A model whose numbers are all 2^-20 times another's has the same codes, so it ends at the same ones."""
    rounded = []
    for scale in (1.0, 2.0**-20):
        model, feeds = residual(), [{"x": feed["x"] * np.float32(scale)} for feed in DATA]
        for bias in model.graph.initializer:
            if len(bias.dims) == 1:
                bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) * np.float32(scale), bias.name))
        draft = draft_of(model, feeds, FEW)
        adaround_on_data(draft, iterations=80, batch=8)
        assert "undone" not in draft.notes[0]
        rounded.append(weights_of(draft))
    same = [np.mean(rounded[0][name] == rounded[1][name]) for name in ("w", "w2", "w3")]
    assert min(same) == 1


def test_by_name_with_a_note() -> None:
    options = Options(placement="all", weight_bits=3, algorithms=("reconstruct:iterations=10,batch=4",))
    quantized = quantize(residual(), DATA, options=options)
    assert any(note.startswith("reconstruct: ") for note in quantized.notes)


def test_without_samples_of_one_shape_they_run_one_by_one() -> None:
    feeds = [*correlated(1, 6, 8, 8, samples=8, seed=2), *correlated(2, 6, 8, 8, samples=8, seed=4)]
    draft = draft_of(residual(), [feeds[i] for i in np.random.default_rng(0).permutation(16)], FEW)
    before = fresh_sqnr(residual(), draft, UNSEEN)
    reconstruct.apply(draft, **{**QUICK, "iterations": 30})
    assert fresh_sqnr(residual(), draft, UNSEEN) > before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reconstruct:iterations=0", "iterations=0 is out of range.*at least 1"),
        ("reconstruct:drop=1", r"drop=1 is out of range.*from 0 to 0\.99"),
        ("reconstruct:lr=0", "lr=0 is out of range"),
        ("adaquant:unit=model", "unit=model is unknown.*layer, block"),
        ("adaquant:batch=-1", "batch=-1 is out of range"),
    ],
)
def test_parameters_are_checked_first(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        chosen([text])


def test_a_block_whose_output_is_as_long_as_its_numbers_say_is_left_alone() -> None:
    """As the frames of a synthesizer of speech are as many as the durations that it computes."""
    text = """(float[8, 8] x) => (float[M, 6] y) {
        a = Gemm (x, w, b)
        sums = ReduceSum <keepdims = 0> (a)
        size = Abs (sums)
        many = Cast <to = 7> (size)
        places = Range (zero, many, one)
        row = Cast <to = 1> (places)
        column = Unsqueeze (row, last)
        mean = ReduceMean <axes = [0]> (a)
        long = Mul (column, mean)
        y = Gemm (long, w2, b2)
    }"""
    model = build(
        text,
        w=normal(8, 16),
        b=normal(16, seed=1),
        w2=normal(16, 6, seed=2),
        b2=normal(6, seed=3),
        zero=np.array(0),
        one=np.array(1),
        last=np.array([-1]),
    )
    data = [{"x": x["x"][:, :, 0, 0] + 1} for x in correlated(8, 8, 1, 1, samples=16, seed=2)]
    draft = draft_of(model, data, Options(placement="all", weight_bits=3))
    reconstruct.apply(draft, **{**QUICK, "iterations": 20})
    assert "left alone: its output has another shape once quantized" in draft.notes[0]
