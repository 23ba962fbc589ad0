"""AdaQuant: weights, scales and biases learned layer by layer, better on data not seen."""

from __future__ import annotations

import numpy as np
import pytest

from onnxq import Options
from onnxq.graph.values import constant_array
from onnxq.qparams import fake_quantize
from tests.algorithms.learned import correlated, draft_of, fresh_sqnr, residual, rows_by_number

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

from onnxq.algorithms import adaquant

torch.set_num_threads(1)

DATA = correlated(1, 6, 8, 8, samples=16, seed=2)
UNSEEN = correlated(1, 6, 8, 8, samples=8, seed=3)
QUICK = {**adaquant.PARAMETERS, "iterations": 100, "batch": 8, "lr": 3e-2, "scale_lr": 3e-3}


@pytest.mark.parametrize("unit", ["layer", "block"])
def test_data_not_seen_gains(unit: str) -> None:
    draft = draft_of(residual(), DATA, Options(placement="all", weight_bits=3))
    before = fresh_sqnr(residual(), draft, UNSEEN)
    adaquant.apply(draft, **{**QUICK, "unit": unit})  # type: ignore[arg-type]
    assert fresh_sqnr(residual(), draft, UNSEEN) > before + 2
    assert draft.notes[0].startswith("adaquant: 1 blocks" if unit == "block" else "adaquant: 3 layers")


def test_what_is_learned_is_what_is_written() -> None:
    draft = draft_of(residual(), DATA, Options(placement="all", weight_bits=3))
    before = dict(draft.numbers)
    adaquant.apply(draft, **QUICK)  # type: ignore[arg-type]
    for name, bias in (("w", "b"), ("w2", "b2"), ("w3", "b3")):
        weight = constant_array(draft.model.graph.initializers[name])
        assert weight is not None
        assert (draft.numbers[name].scale != before[name].scale).any()
        np.testing.assert_array_equal(fake_quantize(weight, draft.numbers[name]), weight)
        old = constant_array(draft.reference.graph.initializers[bias])
        new = constant_array(draft.model.graph.initializers[bias])
        assert old is not None and new is not None and (old != new).any()
        (site,) = [s for s in draft.plan.sites if s.tensor == bias]
        assert site.factors is not None
        expected = draft.numbers[site.factors[0]].scale * draft.numbers[name].scale
        np.testing.assert_array_equal(draft.numbers[site.name].scale, expected)


def test_what_is_not_to_be_learned_stays() -> None:
    draft = draft_of(residual(), DATA, Options(placement="all", weight_bits=3))
    before = dict(draft.numbers)
    adaquant.apply(draft, **{**QUICK, "iterations": 20, "scale_lr": 0.0, "bias_lr": 0.0})  # type: ignore[arg-type]
    assert all((draft.numbers[name].scale == qp.scale).all() for name, qp in before.items())
    for name in ("b", "b2", "b3"):
        old, new = (constant_array(m.graph.initializers[name]) for m in (draft.reference, draft.model))
        np.testing.assert_array_equal(old, new)


def test_a_layer_that_reads_other_rows_once_quantized_is_left_alone() -> None:
    data = [{"x": x["x"][:, :, 0, 0]} for x in correlated(100, 8, 1, 1, samples=16, seed=2)]
    draft = draft_of(rows_by_number(), data, Options(placement="all", weight_bits=3))
    adaquant.apply(draft, **{**QUICK, "iterations": 20})  # type: ignore[arg-type]
    assert "1 left alone: its input has another shape once quantized" in draft.notes[0]
    old, new = (constant_array(m.graph.initializers["w2"]) for m in (draft.reference, draft.model))
    np.testing.assert_array_equal(old, new)
