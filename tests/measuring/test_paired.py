"""Pairs of tensors of two models: their arrays, in groups that stay below a budget, and what cannot be shown."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.measuring import paired
from onnxq.measuring.paired import paired_tensors
from tests import pairs

WANTED = [("h", "h"), ("h", "h_dequantized"), ("r", "r"), ("y", "y")]


@pytest.mark.parametrize(
    ("budget", "weights", "groups"),
    [(1 << 20, 0, [4]), (128, 0, [2, 2]), (1, 0, [1, 1, 1, 1]), (1, 128, [2, 2]), (1, 1 << 20, [4])],
)
def test_arrays_of_both_models_in_groups(
    monkeypatch: pytest.MonkeyPatch, budget: int, weights: int, groups: list[int]
) -> None:
    """A group more holds the weights once more, so that it may as well hold as many bytes of tensors."""
    monkeypatch.setattr(paired, "_BUDGET", budget)
    monkeypatch.setattr(paired, "serialized_size", lambda model: weights)
    first, second = (ir.from_proto(model) for model in (pairs.float_model(), pairs.quantized_model()))
    feed = pairs.data()[0]
    size = 4 * 4 * pairs.BATCH
    seen, counts = {}, []
    for group in paired_tensors(first, second, WANTED, dict.fromkeys(["h", "r", "y"], size)):
        found = list(group.run(feed))
        counts.append(len(found))
        seen.update({pair: (a, b) for pair, a, b in found})
    assert counts == groups and list(seen) == WANTED
    h, rounded = seen["h", "h_dequantized"]
    np.testing.assert_allclose(rounded, seen["h", "h"][1], atol=pairs.SCALE)
    np.testing.assert_array_equal(seen["r", "r"][0], np.maximum(h, 0))
    np.testing.assert_array_equal(seen["r", "r"][1], np.maximum(rounded, 0))
    assert [len(model.graph.outputs) for model in (first, second)] == [2, 2]


def test_what_one_model_cannot_show_is_left_out() -> None:
    first, second = (ir.from_proto(model) for model in (pairs.float_model(), pairs.quantized_model()))
    (group,) = paired_tensors(first, second, [("top", "top"), ("r", "r")], {})
    assert [pair for pair, _, _ in group.run(pairs.data()[0])] == [("r", "r")]
    assert list(paired_tensors(first, second, [("top", "top")], {})) == []
    assert list(paired_tensors(first, second, [], {})) == []
