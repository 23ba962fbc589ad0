"""Biases that an algorithm has fitted are not computed anew by the correction behind it; those it computed are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxq import Options
from onnxq.algorithm import Draft
from onnxq.algorithms import bias_correction, gptq
from onnxq.algorithms.biases.fitted import fitted_biases
from onnxq.graph.values import constant_array
from tests.algorithms.learned import correlated, draft_of, residual

FEW = Options(placement="all", weight_bits=3)
DATA = correlated(1, 6, 8, 8, samples=16, seed=2)


def bias(draft: Draft, name: str) -> np.ndarray:
    array = constant_array(draft.model.graph.initializers[name])
    assert array is not None
    return np.array(array)


def set_to(draft: Draft, name: str, array: np.ndarray) -> None:
    draft.model.graph.initializers[name].const_value = ir.Tensor(array, name=name)


def test_a_fitted_bias_stays_and_the_others_are_corrected() -> None:
    draft = draft_of(residual(), DATA, FEW)
    own = bias(draft, "b2") + 0.25
    set_to(draft, "b2", own)
    before = bias(draft, "b3")
    bias_correction.apply(draft)
    np.testing.assert_array_equal(bias(draft, "b2"), own)
    assert (bias(draft, "b3") != before).any()
    assert draft.notes == ["bias_correction: 2 layers; 1 left as an algorithm before it has fitted them"]


def test_a_bias_that_was_computed_is_computed_anew() -> None:
    draft = draft_of(residual(), DATA, FEW)
    bias_correction.apply(draft)
    first = bias(draft, "b2")
    assert not fitted_biases(draft.model, draft.reference)
    weight = constant_array(draft.model.graph.initializers["w2"])
    assert weight is not None
    set_to(draft, "w2", weight * np.float32(0.5))
    bias_correction.apply(draft)
    assert (bias(draft, "b2") != first).any()
    assert draft.notes == ["bias_correction: 3 layers"] * 2


def test_the_same_numbers_in_another_tensor_are_not_fitted() -> None:
    draft = draft_of(residual(), DATA, FEW)
    set_to(draft, "b", bias(draft, "b"))
    assert not fitted_biases(draft.model, draft.reference)


def test_correction_behind_gptq_leaves_its_biases() -> None:
    drafts = [draft_of(residual(), DATA, FEW) for _ in range(2)]
    for draft in drafts:
        gptq.apply(draft, **gptq.PARAMETERS)  # type: ignore[arg-type]
    learned = fitted_biases(drafts[0].model, drafts[0].reference)
    assert learned
    bias_correction.apply(drafts[1])
    for name in learned:
        np.testing.assert_array_equal(bias(drafts[1], name), bias(drafts[0], name))
