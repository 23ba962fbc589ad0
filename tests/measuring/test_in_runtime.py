"""An artifact timed in its runtime, beside the float model; what keeps it from that is no fault of the artifact."""

from __future__ import annotations

import importlib.util
import io
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import onnxq
from onnxq import Options, views
from onnxq.console.terminal import Screen
from onnxq.errors import OutputError
from onnxq.runtimes.runtime import WORKERS
from tests.models import build, feeds_for, images, normal
from tests.targets import residual


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact") / "out"
    onnxq.quantize(residual(), feeds_for(residual()), output=folder, options=Options(placement="all"))
    return folder


def test_it_is_timed_beside_the_float_model(artifact: Path) -> None:
    data = feeds_for(residual())
    found = onnxq.verify(artifact, data)
    assert found.speedup is not None and 0 < found.speedup < 1000
    written = io.StringIO()
    views.agreement(Screen(written), replace(found, speedup=1.5, timed="in bf16"), (), verbose=False)
    assert re.search(
        r"speed +1.50 times as fast as the float model inside, .+; in bf16\n",
        written.getvalue(),
    )
    assert onnxq.verify(artifact, data, simulation=True).speedup is None
    assert onnxq.verify(artifact).speedup is None, "there is nothing to run it on"


@pytest.mark.parametrize(
    ("sizes", "said"), [((3, 1), "on a sample with x 3x8, where others have other sizes"), ((3, 3), "")]
)
def test_of_samples_of_several_sizes_the_one_timed_is_told(sizes: tuple[int, int], said: str, tmp_path: Path) -> None:
    """A decoder is timed on a prompt or on a token, and these are far apart."""
    model = build("(float[N, 8] x) => (float[N, 8] y) { y = MatMul (x, w) }", w=normal(8, 8))
    data = [feed for size in sizes for feed in images(size, 8)[:1]]
    onnxq.quantize(model, data, output=tmp_path / "m.onnx", options=Options(placement="all"))
    assert onnxq.verify(tmp_path / "m.onnx", data).timed == said


def test_where_there_is_no_room_for_the_float_model(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Path:
        raise OutputError("no space left")

    monkeypatch.setattr("onnxq.measuring.in_runtime.save", full)
    found = onnxq.verify(artifact, feeds_for(residual()))
    assert found.ok and found.outputs and found.speedup is None
    assert "not timed: no space left" in found.remarks


def test_what_is_too_slow_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    common = _common()
    runs: list[str] = []
    times = common.best_times(lambda: runs.append("a"), lambda: runs.append("b"))
    assert len(times) == 2 and all(0 < time < 1 for time in times) and {"a", "b"} == set(runs)
    monkeypatch.setattr(common, "LONGEST", -1.0)
    with pytest.raises(common.TooSlowError, match="a run takes 0 s on one thread"):
        common.best_times(lambda: None)


def test_a_clock_that_stands_still_is_no_time_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    common = _common()
    monkeypatch.setattr(common, "BUDGET", 0.01)
    monkeypatch.setattr(common.time, "process_time", lambda: 1.0)
    assert min(common.best_times(lambda: None, lambda: None)) > 0


def _common() -> ModuleType:
    spec = importlib.util.spec_from_file_location("workers_common", WORKERS / "common.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
