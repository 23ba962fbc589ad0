"""Rows of arrays for models whose batch is fixed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.calibration.data import open_data
from onnxq.errors import DataError
from onnxq.ort.inputs import InputInfo

ROWS = np.arange(7 * 6, dtype=np.float32).reshape(7, 3, 2)
PAIRS = InputInfo("x", np.dtype(np.float32), (2, 3, 2))


def feeds(source: Any, *inputs: InputInfo, **options: Any) -> list[dict[str, np.ndarray]]:
    return list(open_data(source, inputs or (PAIRS,), **options))


@pytest.mark.parametrize("own_axis", [False, True])
@pytest.mark.parametrize("kind", ["npz", "npy", "dict", "array"])
def test_single_samples_are_put_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, own_axis: bool
) -> None:
    rows = ROWS[:, None] if own_axis else ROWS
    np.savez(tmp_path / "d.npz", x=rows)
    np.save(tmp_path / "d.npy", rows)
    sources = {"npz": tmp_path / "d.npz", "npy": tmp_path / "d.npy", "dict": {"x": rows}, "array": rows}
    with caplog.at_level(logging.WARNING, "onnxq"):
        opened = open_data(sources[kind], [PAIRS])
    assert opened.length == 3
    for _ in range(2):
        got = [feed["x"] for feed in opened]
        np.testing.assert_array_equal(got, ROWS[:6].reshape(3, 2, 3, 2))
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the model's batch is fixed to 2: 7 rows of data make 3 samples; the last one is left out"]


def test_some_of_the_batches_are_whole_ones() -> None:
    got = [feed["x"] for feed in feeds({"x": np.tile(ROWS, (10, 1, 1))}, samples=5)]
    assert len(got) == 5
    whole = np.tile(ROWS, (10, 1, 1)).reshape(35, 2, 3, 2)
    assert all(any(np.array_equal(batch, other) for other in whole) for batch in got)


def test_every_input_is_put_together_and_what_has_no_axes_belongs_to_all() -> None:
    ids = InputInfo("ids", np.dtype(np.int64), (2,))
    scale = InputInfo("scale", np.dtype(np.float32), ())
    source = {"x": ROWS, "ids": np.arange(7), "scale": np.float32(0.5)}
    got = feeds(source, PAIRS, ids, scale)
    assert [feed["ids"].tolist() for feed in got] == [[0, 1], [2, 3], [4, 5]]
    assert [feed["scale"].item() for feed in got] == [0.5] * 3
    assert [feed["x"].shape for feed in got] == [(2, 3, 2)] * 3


def test_batches_given_as_such_are_left_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    assert len(feeds(ROWS[:6].reshape(3, 2, 3, 2))) == 3
    assert not caplog.records


def test_inputs_that_do_not_agree_are_left_to_the_user() -> None:
    sizes = InputInfo("sizes", np.dtype(np.int64), (4,))
    with pytest.raises(DataError, match="batch is fixed to 2: each sample has to have the shape 2x3x2"):
        feeds({"x": ROWS, "sizes": np.zeros((7, 4), np.int64)}, PAIRS, sizes)
    with pytest.raises(DataError, match="the model wants 3"):
        feeds(np.arange(6), InputInfo("x", np.dtype(np.int64), (3,)))


def test_fewer_rows_than_a_batch_has() -> None:
    with pytest.raises(DataError, match="1 row, and the model's batch is fixed to 2"):
        feeds({"x": ROWS[:1]})
