"""A search without a metric of a model that picks: what it picks from is judged, on samples held back or given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options, Search
from onnxq.measuring.metrics import sqnr
from tests.models import images
from tests.picking_nets import detector, labels, picked_from

pytestmark = pytest.mark.usefixtures("quick")

FEEDS = list(images(1, 16, 8, 8, samples=24))
OTHERS = list(images(1, 16, 8, 8, samples=6, seed=99))


def find(folder: Path, model: onnx.ModelProto, max_drop: float, *, others: bool = True) -> Search:
    return onnxq.search(
        model,
        FEEDS,
        output=folder / "q.onnx",
        max_drop=max_drop,
        eval_data=OTHERS if others else None,
        options=Options(placement="compute"),
    )


@pytest.mark.parametrize("others", [False, True])
def test_boxes_that_change_places_are_no_loss(tmp_path: Path, others: bool) -> None:
    """Rounding changes which boxes are found; of the numbers that they are found by hardly anything is lost."""
    found = find(tmp_path, detector(), 0.003, others=others)
    assert found.met and found.best is not None and [attempt.level for attempt in found.attempts] == ["default"]
    assert found.metric == "1 - noise/signal"


def test_the_measure_is_that_of_the_tensors(tmp_path: Path) -> None:
    found = find(tmp_path, detector(), 0.003)
    assert found.best is not None and found.best.metric is not None
    written = onnx.load(tmp_path / "q.onnx")
    assert [value.name for value in written.graph.output] == ["found_boxes", "found_scores"]
    decibels = [
        sqnr(*(np.stack(picked_from(model, name, OTHERS)) for model in (detector(), written)))
        for name in ("boxes", "scores")
    ]
    assert found.best.metric == pytest.approx(1 - 10 ** (-min(decibels) / 10), abs=1e-3)


def test_of_labels_the_numbers_that_they_are_picked_by_are_judged(tmp_path: Path) -> None:
    """A model whose only output is labels has a measure."""
    found = find(tmp_path, labels(), 0.01)
    assert found.met and found.metric == "1 - noise/signal"
