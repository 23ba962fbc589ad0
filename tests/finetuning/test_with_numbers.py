"""Samples of which the float model makes no number are left out of a training, and that is said."""

from __future__ import annotations

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import DataError
from tests.models import feeds_for
from tests.targets import residual

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

FEEDS = feeds_for(residual(), samples=24)
W3A4 = Options(placement="all", weight_bits=3, act_bits=4, weight_symmetric=True, format="fake-quantize")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("at", [[0], [5, 6, 7, 11], [2, 3, 22, 23]])
def test_what_is_trained_is_as_if_they_had_not_been_given(at: list[int], wrong: float) -> None:
    quantized = onnxq.quantize(residual(), FEEDS, options=W3A4)
    bad = [{"x": np.full_like(f["x"], wrong)} if k in at else f for k, f in enumerate(FEEDS)]
    trained = onnxq.finetune(quantized, bad, teacher=residual(), steps=30)
    same = onnxq.finetune(quantized, [f for k, f in enumerate(FEEDS) if k not in at], teacher=residual(), steps=30)
    assert trained.model is not quantized.model
    for name, qp in same.qparams.items():
        np.testing.assert_array_equal(qp.scale, trained.qparams[name].scale)
    many = f"{len(at)} samples" if len(at) > 1 else "1 sample"
    assert f"finetune: {many} with NaN or infinity left out, the first is sample {at[0]}; 30 steps" in trained.notes[-1]


def test_samples_that_are_all_so_are_refused() -> None:
    quantized = onnxq.quantize(residual(), FEEDS, options=W3A4)
    with pytest.raises(DataError, match="each sample holds NaN or infinity"):
        onnxq.finetune(quantized, [{"x": f["x"] * np.nan} for f in FEEDS], teacher=residual(), steps=5)


def test_infinite_inputs_of_which_the_model_makes_numbers_stay() -> None:
    from onnxq.finetuning.with_numbers import with_numbers

    feeds = [{"mask": np.array([0, -np.inf], np.float32)}] * 2
    assert with_numbers(feeds, lambda sample: [np.zeros(2, np.float32)]) == (feeds, "")
