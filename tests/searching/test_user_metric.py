"""A user's metric: found, called, and refused with its file and function where it gives no number."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq import MetricError
from onnxq.searching.user_metric import Run, load_metric
from tests import pairs


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(pairs.float_model(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def write(folder: Path, body: str) -> str:
    (folder / "score.py").write_text(f"import sys\ndef score(run):\n    {body}\n")
    return f"{folder / 'score.py'}:score"


def test_run_gives_the_outputs_and_the_file(tmp_path: Path, model: Path) -> None:
    feed = pairs.data()[0]

    def score(run: Run) -> Any:
        assert run.path == str(model)
        got = run(feed)
        assert set(got) == {"y", "top"}
        return got["y"].max()

    expected = 1 / (1 + np.exp(-np.maximum(feed["x"] @ pairs._WEIGHTS, 0)))
    assert load_metric(score)(Run(model), "float model") == pytest.approx(float(expected.max()), rel=1e-6)


@pytest.mark.parametrize("body", ["return 0.5", "import numpy; return numpy.float32(0.5)", "print('hi'); return 0.5"])
def test_numbers(tmp_path: Path, model: Path, body: str, capsys: pytest.CaptureFixture[str]) -> None:
    metric = load_metric(write(tmp_path, body))
    assert metric(Run(model), "float model") == 0.5
    assert capsys.readouterr().out == "", "what a metric prints goes to stderr"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return float('nan')", "nan"),
        ("return float('inf')", "inf"),
        ("return None", "None"),
        ("return '0.5'", "'0.5'"),
        ("return True", "True"),
        ("return [1]", "list"),
        ("import numpy; return numpy.zeros(1)", "shape (1,)"),
        ("raise KeyError('x')", "line 3"),
        ("return run({})['y']", "ExecutionError"),
        ("sys.exit(1)", "SystemExit"),
    ],
)
def test_what_is_no_number_names_file_and_function(tmp_path: Path, model: Path, body: str, words: str) -> None:
    with pytest.raises(MetricError) as caught:
        load_metric(write(tmp_path, body))(Run(model), "float model")
    assert "score.py:score" in str(caught.value)
    assert "float model" in str(caught.value)
    assert words in str(caught.value)


def test_a_metric_that_cannot_be_found(tmp_path: Path) -> None:
    spec = write(tmp_path, "return 1")
    for wrong, words in (
        (str(tmp_path / "none.py:score"), "does not exist"),
        (spec.replace(":score", ":scroe"), "Did you mean 'score'"),
        (str(tmp_path / "score.py"), "FILE.py:FUNCTION"),
        ("score", "FILE.py:FUNCTION"),
    ):
        with pytest.raises(MetricError, match=words):
            load_metric(wrong)
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(MetricError, match=r"bad\.py:f.*ZeroDivisionError"):
        load_metric(str(tmp_path / "bad.py:f"))
    with pytest.raises(MetricError, match="not a function"):
        load_metric(3)  # type: ignore[arg-type]


def test_modules_beside_the_file_can_be_imported_when_it_runs(tmp_path: Path, model: Path) -> None:
    (tmp_path / "beside_the_metric.py").write_text("VALUE = 0.25")
    before = list(sys.path)
    metric = load_metric(write(tmp_path, "import beside_the_metric; return beside_the_metric.VALUE"))
    assert metric(Run(model), "float model") == 0.25
    assert sys.path == before


def test_the_digest_changes_with_the_source(tmp_path: Path) -> None:
    first = load_metric(write(tmp_path, "return 1")).digest
    assert load_metric(write(tmp_path, "return 1")).digest == first
    assert load_metric(write(tmp_path, "return 2")).digest != first
    one = load_metric(lambda run: 1.0).digest
    two = load_metric(lambda run: 2.0).digest
    assert one != two


@pytest.mark.parametrize("returned", ["{'accuracy': 0.9}", "(0.9, 1)", "[0.9]", "None", "'0.9'"])
def test_whoever_returns_something_else_is_told_what_to_return(tmp_path: Path, model: Path, returned: str) -> None:
    metric = load_metric(write(tmp_path, f"return {returned}"))
    with pytest.raises(MetricError, match=r"it gave .*, not a number\. Return a float, higher is better") as caught:
        metric(Run(model), "float model")
    assert "score.py:score" in str(caught.value)
