"""The search for each kind of target: what is judged is what the artifact stands for, by a metric and without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import OptionError, Options, Search
from onnxq.ort.session import Session
from onnxq.quantized import Quantized
from onnxq.searching import candidates, trials
from onnxq.searching.user_metric import Run
from tests.models import build, images, normal

DATA = images(2, 3, 6, 6, samples=8)
HELD = images(2, 3, 6, 6, samples=4, seed=7)

KINDS = [
    "snpe",
    "ppl",
    "ncnn",
    "nnie",
    "tengine",
    "openvino",
    "qonnx",
    "tensorrt",
    "tensorrt_fp8",
    "tvm",
    "onnx_qnn",
    "onnxruntime",
]
"""Numbers beside a float model, FakeQuantize of the vendor's, QDQ for elsewhere, and onnxruntime's own."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = build(
        """(float[2, 3, 6, 6] x) => (float[2, 5, 4, 4] y) {
            [one] a = Conv <pads = [1, 1, 1, 1]> (x, u, a1)
            r = Relu (a)
            [two] b = Conv (r, v, b1)
            s = Relu (b)
            [last] y = Conv (s, w, c)
        }""",
        u=normal(8, 3, 3, 3, seed=1),
        a1=normal(8, seed=4),
        v=normal(12, 8, 3, 3, seed=2),
        b1=normal(12, seed=5),
        w=normal(5, 12, 1, 1, seed=3),
        c=normal(5, seed=6),
    )
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "installed_algorithms", list)
    monkeypatch.setattr(trials.Trials, "_time", lambda *_: 0.5)


def closeness(model: Path) -> Callable[[Any], float]:
    """Minus the largest error on samples held out."""
    expected = [Session(str(model)).run(feed)["y"] for feed in HELD]

    def measure(run: Run | Callable[[Any], Any]) -> float:
        return -max(float(np.abs(run(feed)["y"] - y).max()) for feed, y in zip(HELD, expected, strict=True))

    return measure


def find(model: Path, backend: str, max_drop: float, **more: Any) -> Search:
    more = {
        "metric": closeness(model),
        "output": model.with_name("q.onnx"),
        "options": Options(placement="all"),
        **more,
    }
    return onnxq.search(model, DATA, max_drop=max_drop, backend=backend, **more)


def direct(model: Path, backend: str) -> Quantized:
    return onnxq.quantize(model, DATA, backend=backend, options=Options(placement="all", keep=64))


@pytest.mark.parametrize("backend", KINDS)
def test_it_judges_what_the_artifact_stands_for(model: Path, backend: str) -> None:
    found = find(model, backend, 1e3)
    made = direct(model, backend)
    session = Session(made.simulated(), optimize=made.backend.at_home)
    first = found.attempts[0]
    assert first.metric is not None and first.metric == closeness(model)(session.run)
    assert -10.0 < first.metric < -1e-4, "not the float model"
    again = find(model, backend, 1e3, metric=None, eval_data=HELD)
    assert again.attempts[0].metric is not None and again.attempts[0].metric < 1.0
    home = made.backend.at_home
    assert (first.time, first.quantized is None, bool(found.timed_on)) == (
        (0.5, True, True) if home else (None, False, False)
    )


@pytest.mark.parametrize("backend", KINDS)
def test_what_ruins_the_model_does_not_meet_the_target(model: Path, backend: str) -> None:
    options = Options(range="percentile:60", placement="all", effort="fast", algorithms=("bias_correction",))
    found = find(model, backend, 0.05, options=options, max_minutes=0.0)
    assert not found.met and found.attempts[0].drop is not None and found.attempts[0].drop > 0.1
    found = find(model, backend, 0.01, metric=None, eval_data=HELD, options=options, max_minutes=0.0,
                 output=model.with_name("again.onnx"))  # fmt: skip
    assert not found.met and found.attempts[0].metric is not None and found.attempts[0].metric < 0.95


def test_the_metric_is_given_a_file_of_what_is_computed(model: Path) -> None:
    seen: list[tuple[set[str], bool]] = []

    def metric(run: Run) -> float:
        seen.append(({node.op_type for node in onnx.load(run.path).graph.node}, run.optimize))
        return 1.0

    find(model, "ncnn", 1.0, metric=metric)
    (first, home), (judged, elsewhere) = seen
    assert not first & {"FakeQuantize", "QuantizeLinear"} and judged & {"FakeQuantize", "QuantizeLinear"}
    assert home and not elsewhere


@pytest.mark.parametrize("name", ["model.onnx", "report.onnx"])
def test_files_of_any_name_are_those_of_the_target(model: Path, name: str) -> None:
    """Neither the simulation nor the report of an attempt takes their place."""
    place = model.with_name("out")
    place.mkdir()
    found = find(model, "ppl", 1e3, output=place / name)
    made = direct(model, "ppl").written(model.with_name(name))
    assert [path.name for path in found.files] == [path.name for path in made.files]
    assert [path.read_bytes() for path in found.files] == [path.read_bytes() for path in made.files]
    assert sorted(path.name for path in place.iterdir()) == sorted(path.name for path in found.files)


@pytest.mark.parametrize("backend", ["tensorrt", "snpe"])
def test_only_what_the_target_can_hold_is_tried(model: Path, backend: str) -> None:
    found = find(model, backend, 0.0)
    levels = {attempt.level for attempt in found.attempts}
    assert "float" in levels and ("16 bits" in levels) == (backend == "snpe")
    floats = [a for a in found.attempts if a.level == "float" and a.quantized is not None]
    assert floats and all(a.quantized < 1.0 for a in floats if a.quantized is not None)
    assert not any(a.failed for a in found.attempts if a.level == "float"), "also where a Relu stands behind the layer"
    assert found.attempts[0].quantized == 1.0


@pytest.mark.parametrize("backend", ["snpe", "tensorrt", "onnxruntime"])
def test_a_search_goes_on_where_it_was(model: Path, backend: str) -> None:
    folder = model.with_name("memory")
    whole = find(model, backend, 0.0, folder=folder)
    again = find(model, backend, 0.0, folder=folder)
    assert len(whole.attempts) > 1 and again.resumed == len(whole.attempts)
    assert (again.best, again.report, again.timed_on) == (whole.best, whole.report, whole.timed_on)


def as_before(folder: Path) -> None:
    """Make the memory of a search one of before what stands for an artifact was judged."""
    document = json.loads((folder / "state.json").read_text())
    for made in document["attempts"]:
        del made["quantized"]
    document["of"].pop("way of judging", None)
    (folder / "state.json").write_text(json.dumps(document))
    for report in folder.glob("attempts/*/onnxq/report.json"):
        report.rename(report.parents[1] / report.name)
        report.parent.rmdir()


def test_a_search_begun_before_goes_on_where_it_judged_the_same(model: Path) -> None:
    folder = model.with_name("memory")
    whole = find(model, "onnxruntime", 0.0, folder=folder)
    as_before(folder)
    again = find(model, "onnxruntime", 0.0, folder=folder)
    assert again.resumed == len(whole.attempts) > 1
    assert (again.best, again.report) == (whole.best, whole.report)


@pytest.mark.parametrize("backend", ["snpe", "tensorrt"])
def test_a_search_begun_before_is_refused_where_it_judged_something_else(model: Path, backend: str) -> None:
    folder = model.with_name("memory")
    find(model, backend, 1e3, folder=folder)
    as_before(folder)
    with pytest.raises(OptionError, match="different way of judging"):
        find(model, backend, 1e3, folder=folder)
