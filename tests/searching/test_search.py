"""The search on a small model: what it tries, what wins, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import DataError, MetricError, OptionError, Options
from onnxq.searching import candidates, trials
from onnxq.searching.user_metric import Run
from tests.models import build, images, normal, untouched
from tests.searching.hunting import decibels, find, names, small_model

Array = NDArray[Any]

pytestmark = pytest.mark.usefixtures("quick")


def test_another_search_into_the_same_output_is_refused(model: Path) -> None:
    """And disturbs nothing, whatever it asks for; a third is welcome when the first has ended."""
    refused: list[str] = []

    def nested(run: Run) -> float:
        if not refused:
            for options in (Options(placement="all"), Options(weight_bits=4)):
                with pytest.raises(OptionError, match="another search is at work there") as error:
                    find(model, 80.0, options=options)
                refused.append(str(error.value.where))
        return 1.0

    assert find(model, 80.0, metric=nested).met
    assert refused == [str(model.with_name("q.onnx.search").absolute())] * 2
    assert find(model, 80.0).met


def test_the_default_wins_where_it_meets_the_target(model: Path) -> None:
    found = find(model, 80.0)
    assert found.met and found.best is not None
    assert names(found) == ["default"]
    assert found.baseline == 100.0
    assert found.best.metric == decibels(model)(Run(model.with_name("q.onnx"))), "what was measured is what was written"
    assert found.files == (model.with_name("q.onnx").absolute(),)
    assert not model.with_name("q.onnx.search").exists()
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.timed_on == "x 2x8x6x6"


def test_levels_go_from_cheap_to_dear(model: Path) -> None:
    told: list[str] = []
    all_of_them = find(model, 1.0, tell=lambda attempt: told.append(attempt.level))
    order = list(dict.fromkeys(names(all_of_them)))
    assert order == ["default", "range", "algorithm", "16 bits", "float"]
    assert told == names(all_of_them)
    assert not all_of_them.met and all_of_them.best is not None
    assert all_of_them.best.metric == max(a.metric or -math.inf for a in all_of_them.attempts)
    assert decibels(model)(Run(model.with_name("q.onnx"))) == all_of_them.best.metric, "the best is written anyway"


def test_among_dear_ways_the_faster_one_wins(model: Path) -> None:
    """All layers at 16 bits are more accurate; leaving layers float is what the stand-in for time calls faster."""
    tried = find(model, 1.0).attempts
    by_float = [a for a in tried if a.level == "float" and a.metric is not None]
    most = max(by_float, key=lambda a: a.metric or 0.0)
    assert most.drop is not None
    found = find(model, most.drop)
    assert found.best is not None and found.met
    assert found.best.level == "float"
    others = [a for a in found.attempts if a.meets]
    assert found.best.time == min(a.time for a in others if a.time is not None)


def test_a_range_that_meets_the_target_ends_the_search(model: Path) -> None:
    poor = Options(placement="all", weight_bits=7)
    tried = find(model, 68.0, options=poor).attempts  # 32 dB take layers in float, and none that is trained
    best_range = max((a for a in tried if a.level == "range"), key=lambda a: a.metric or 0.0)
    assert best_range.metric is not None and tried[0].metric is not None and best_range.metric > tried[0].metric
    found = find(model, 100.0 - best_range.metric, options=poor)
    assert found.best is not None and found.best.what == best_range.what
    assert set(names(found)) == {"default", "range"}
    direct = onnxq.quantize(
        model, images(2, 8, 6, 6, samples=8), output=model.with_name("d.onnx"),
        options=Options(placement="all", weight_bits=7, range=best_range.what, keep=64),
    )  # fmt: skip
    assert direct.verification is not None
    assert model.with_name("d.onnx").read_bytes() == model.with_name("q.onnx").read_bytes()


def test_the_same_bytes_give_the_same_metric_without_asking(model: Path) -> None:
    calls: list[str] = []
    measure = decibels(model)

    def counted(run: Run) -> float:
        calls.append(run.path)
        return measure(run)

    found = find(model, 1.0, metric=counted)
    assert len(calls) == 1 + len({a.digest for a in found.attempts if a.digest})


@pytest.fixture
def recurrent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An LSTM, with ranges at each run among the algorithms and a time that counts what runs in float."""
    proto = build(
        """(float[6, 1, 32] x) => (float[6, 1, 1, 8] y) {
            s, h, c = LSTM <hidden_size = 24> (x, w, r)
            y = MatMul (s, m)
        }""",
        w=normal(1, 96, 32),
        r=normal(1, 96, 24, seed=1),
        m=normal(24, 8, seed=2),
    )
    onnx.save(proto, tmp_path / "m.onnx")
    names = ("bias_correction", "dynamic")
    monkeypatch.setattr(
        candidates, "installed_algorithms", lambda: [a for a in onnxq.installed_algorithms() if a.NAME in names]
    )

    def time(self: trials.Trials, model: Path, options: Options) -> float:
        return 1.0 if "LSTM" in {node.op_type for node in onnx.load(model).graph.node} else 0.6

    monkeypatch.setattr(trials.Trials, "_time", time)
    return tmp_path / "m.onnx"


def test_ranges_at_each_run_win_where_the_default_leaves_the_work_float(recurrent: Path) -> None:
    data = [{"x": normal(6, 1, 32, seed=k, scale=1.0)} for k in range(8)]
    output, kept = recurrent.with_name("q.onnx"), recurrent.with_name("kept")
    found = onnxq.search(recurrent, data, output=output, max_drop=0.01, folder=kept)
    assert [a.name for a in found.attempts] == ["default", "algorithm dynamic"]
    assert found.met and found.best is not None and found.best.what == "dynamic"
    assert "DynamicQuantizeLSTM" in {node.op_type for node in onnx.load(output).graph.node}
    assert found.report["quantized_ops"] == {"LSTM": 1, "MatMul": 1}
    again = onnxq.search(recurrent, data, output=output, max_drop=0.01, folder=kept)
    assert again.resumed == 2 and again.best == found.best


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        (Options(act_bits=16), "onnxruntime"),
        (Options(range="minmax"), "onnxruntime"),
        (Options(algorithms=("bias_correction",)), "onnxruntime"),
        (Options(), "tvm"),
    ],
)
def test_ranges_at_each_run_are_not_what_was_asked_for(recurrent: Path, options: Options, backend: str) -> None:
    data = [{"x": normal(6, 1, 32, seed=k, scale=1.0)} for k in range(8)]
    found = onnxq.search(
        recurrent, data, output=recurrent.with_name("q.onnx"), max_drop=0.5, options=options, backend=backend
    )
    assert [a.name for a in found.attempts] == ["default"]


def test_what_changed_is_refused(model: Path) -> None:
    folder = model.with_name("memory")
    measure = decibels(model)
    find(model, 80.0, metric=measure, folder=folder)
    assert find(model, 80.0, metric=measure, folder=folder).resumed == 1, "a named folder stays"
    for change, words in (
        ({"options": Options(placement="all", weight_bits=4)}, "different options"),
        ({"metric": lambda run: 1.0}, "different metric"),
        ({"metric": None}, "different metric"),
    ):
        with pytest.raises(OptionError, match=words):
            find(model, 80.0, **{"metric": measure, "folder": folder, **change})
    with pytest.raises(OptionError, match="different target"):
        find(model, 81.0, metric=measure, folder=folder)
    onnx.save(build("(float[2, 8, 6, 6] x) => (float[2, 8, 6, 6] y) { y = Relu (x) }"), model)
    with pytest.raises(OptionError, match="different model"):
        find(model, 80.0, metric=measure, folder=folder)


def test_the_metric_is_asked_for_the_float_model_before_any_work(model: Path) -> None:
    def data() -> Any:
        raise AssertionError("calibration has begun")

    def broken(run: Run) -> float:
        return math.nan

    with pytest.raises(MetricError, match=r"broken.*float model.*nan"):
        onnxq.search(model, data, output=model.with_name("q.onnx"), max_drop=0.1, metric=broken)


def test_a_search_that_cannot_begin_leaves_no_folder(model: Path, tmp_path: Path) -> None:
    def broken(run: Run) -> float:
        raise ValueError("no labels")

    more: dict[str, Any] = {"output": tmp_path / "q.onnx", "max_drop": 1.0}
    for data, metric, error in (("none.npz", None, DataError), ("none.npz", decibels(model), DataError)):
        with pytest.raises(error):
            onnxq.search(model, data, metric=metric, **more)
    with pytest.raises(MetricError):
        find(model, 1.0, metric=broken)
    with pytest.raises(DataError):
        onnxq.search(model, "none.npz", output=tmp_path / "new" / "out", max_drop=1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError):
        onnxq.search(model, "none.npz", folder=tmp_path / "mine", **more)
    assert (tmp_path / "mine").is_dir()


def test_a_metric_that_fails_later_says_where(model: Path) -> None:
    measure, fail = decibels(model), True

    def sometimes(run: Run) -> float:
        if fail and "q.onnx" in run.path:
            raise ValueError("disk")
        return measure(run)

    with pytest.raises(MetricError, match=r"sometimes.*attempt 1 .default.*ValueError: disk"):
        find(model, 80.0, metric=sometimes)
    fail = False
    assert find(model, 80.0, metric=sometimes).met


def test_a_candidate_that_fails_does_not_end_the_search(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = onnxq.quantize

    def failing(*args: Any, options: Options, **more: Any) -> Any:
        if options.range == "entropy":
            raise ZeroDivisionError("of a plugin")
        return real(*args, options=options, **more)

    monkeypatch.setattr(trials, "quantize", failing)
    found = find(model, 1.0)
    failed = [a for a in found.attempts if a.failed]
    assert [a.what for a in failed] == ["entropy"]
    assert "ZeroDivisionError: of a plugin" in failed[0].failed


@pytest.mark.parametrize("name", ["no.npz", "notes.txt"])
def test_evaluation_data_that_cannot_be_read_are_refused_before_any_are_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    model = build("(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) { y = Conv (x, w) }", w=normal(8, 8, 1, 1))
    with pytest.raises(DataError, match=rf"{name}.*: (does not exist|is not a kind of data)"):
        onnxq.search(model, untouched(), max_drop=1.0, output=tmp_path / "q.onnx", eval_data=tmp_path / name)


def test_evaluation_data_that_do_not_fit_are_refused_before_any_work(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", z=np.zeros((2, 8, 6, 6), np.float32))
    model = build("(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) { y = Conv (x, w) }", w=normal(8, 8, 1, 1))
    with pytest.raises(DataError, match="evaluation data, sample 0: the data has no array for the model's input 'x'"):
        onnxq.search(model, untouched(), max_drop=1.0, output=tmp_path / "q.onnx", eval_data=tmp_path / "e.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["e.npz"]


def test_without_a_metric_images_are_judged_by_error(model: Path) -> None:
    found = find(model, 0.001, metric=None)
    assert (found.metric, found.baseline) == ("1 - noise/signal", 1.0)
    assert found.best is not None and found.best.drop is not None
    eval_data = images(2, 8, 6, 6, samples=3, seed=77)
    found = find(model, 1.0, metric=None, eval_data=eval_data)
    expected = 1 - 10 ** (-decibels(model)(Run(model.with_name("q.onnx"))) / 10)
    assert found.best is not None and found.best.metric == pytest.approx(expected, abs=1e-6)
    with pytest.raises(DataError, match="only once"):
        find(model, 1.0, metric=None, eval_data=iter(eval_data))


def test_without_a_metric_classes_are_compared(tmp_path: Path) -> None:
    onnx.save(build("(float[N, 8] x) => (float[N, 5] y) { y = MatMul (x, w) }", w=normal(8, 5)), tmp_path / "c.onnx")
    data = images(16, 8, samples=8)
    options = Options(placement="all", weight_bits=2, act_bits=2, range="minmax", algorithms=("bias_correction",))
    found = onnxq.search(
        tmp_path / "c.onnx", data, output=tmp_path / "q.onnx", max_drop=1.0, eval_data=data, options=options
    )
    runs = [Run(tmp_path / name) for name in ("c.onnx", "q.onnx")]
    tops = [np.concatenate([run(feed)["y"].argmax(1) for feed in data]) for run in runs]
    assert found.metric == "agreement" and "classes" in found.about
    assert found.best is not None and found.best.metric is not None
    assert found.best.metric == pytest.approx((tops[0] == tops[1]).mean())
    assert 0.2 < found.best.metric < 1.0


def test_a_model_in_memory(tmp_path: Path) -> None:
    data = images(2, 8, 6, 6, samples=8)
    found = onnxq.search(small_model(), data, output=tmp_path / "q.onnx", max_drop=0.1)
    assert found.met
    assert [p.name for p in tmp_path.iterdir()] == ["q.onnx"]


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, True, "1"])
def test_a_wrong_drop(model: Path, value: Any) -> None:
    with pytest.raises(OptionError, match="max_drop"):
        find(model, value)


# -- the command line
