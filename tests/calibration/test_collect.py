from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.calibration import collect as module
from onnxq.calibration.collect import collect
from onnxq.calibration.statistics import Statistics, TensorStatistics, model_digest
from onnxq.errors import DataError, ExecutionError, ModelError
from onnxq.ort.session import Session

TEXT = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N, 4] x) => (float[N, 4] y)
    <float[4] w = {1.0, -2.0, 3.0, 0.5}>
    {
        a = Mul(x, w)
        b = Sub(a, w)
        s = Shape(b)
        y = Relu(b)
    }"""

Feeds = dict[str, np.ndarray[Any, Any]]


def _model() -> ir.Model:
    return ir.from_onnx_text(TEXT)


def _data(count: int = 10, rows: int = 3) -> list[Feeds]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((rows + i % 2, 4)).astype(np.float32)} for i in range(count)]


def _same(first: Statistics, second: Statistics) -> None:
    assert list(first.tensors) == list(second.tensors)
    for name, stats in first.tensors.items():
        other = second.tensors[name]
        assert np.array_equal(stats.counts, other.counts)
        assert (stats.min, stats.max, stats.sum, stats.samples) == (other.min, other.max, other.sum, other.samples)


def test_against_numpy() -> None:
    data = _data()
    seen: list[int] = []
    statistics = collect(_model(), ["x", "a", "b", "y"], data, progress=seen.append)
    assert seen == list(range(1, 11)) and statistics.samples == 10
    assert statistics.model_digest == model_digest(_model())
    w = np.array([1.0, -2.0, 3.0, 0.5], np.float32)
    expected = {"x": [d["x"] for d in data], "a": [d["x"] * w for d in data]}
    expected["b"] = [a - w for a in expected["a"]]
    expected["y"] = [np.maximum(b, 0) for b in expected["b"]]
    for name, arrays in expected.items():
        direct = TensorStatistics(name)
        for index, array in enumerate(arrays):
            direct.update(array, index)
        got = statistics.tensors[name]
        assert np.array_equal(got.counts, direct.counts), name
        assert (got.min, got.max, got.samples) == (direct.min, direct.max, 10)
        assert got.elements == 14 * got.samples
    assert statistics.warnings() == []


def test_kept_samples_hold_feeds_and_outputs() -> None:
    data = _data(20)
    statistics = collect(_model(), ["a"], data, keep=4)
    assert [k.index // 8 for k in statistics.kept] == [0, 1, 2]
    for kept in statistics.kept:
        assert np.array_equal(kept.feeds["x"], data[kept.index]["x"])
        w = np.array([1.0, -2.0, 3.0, 0.5], np.float32)
        assert np.allclose(kept.outputs["y"], np.maximum(kept.feeds["x"] * w - w, 0), atol=1e-6)


def test_groups_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    session = Session

    def counting(*args: Any, **kwargs: Any) -> Any:
        opened.append(1)
        return session(*args, **kwargs)

    monkeypatch.setattr(module, "open_anyhow", counting)
    names = ["x", "a", "b", "y"]
    whole = collect(_model(), names, _data())
    assert len(opened) == 1
    parts = collect(_model(), names, _data(), memory_budget=100)
    assert len(opened) == 1 + 2 + 4, "2 groups for the first sample, 4 from the larger second one on"
    _same(whole, parts)
    assert [k.index for k in parts.kept] == [k.index for k in whole.kept]
    for a, b in zip(parts.kept, whole.kept, strict=True):
        assert np.array_equal(a.outputs["y"], b.outputs["y"])


def test_groups_are_made_anew_when_a_later_sample_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = module._Runner._open

    def counting(self: Any) -> Any:
        groups = original(self)
        made.append(len(groups))
        return groups

    monkeypatch.setattr(module._Runner, "_open", counting)
    data = [*_data(2), {"x": np.ones((50, 4), np.float32)}, *_data(2)]
    parts = collect(_model(), ["a", "b"], data, memory_budget=1000)
    assert made == [1, 2]
    _same(parts, collect(_model(), ["a", "b"], data))


def test_no_samples() -> None:
    nothing: list[Feeds] = []
    for data in (nothing, iter(nothing)):
        with pytest.raises(DataError, match="no samples"):
            collect(_model(), ["a"], data)


def test_failing_data_names_the_sample() -> None:
    def source() -> Iterator[Feeds]:
        yield from _data(3)
        raise ZeroDivisionError("in the user's code")

    with pytest.raises(DataError, match=r"sample 3: .*ZeroDivisionError: in the user's code") as caught:
        collect(_model(), ["a"], source())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def own() -> Iterator[Feeds]:
        yield from _data(1)
        raise DataError("wrong shape", where="sample 1")

    with pytest.raises(DataError, match=r"^sample 1: wrong shape$"):
        collect(_model(), ["a"], own())


def test_failing_run_names_the_sample_and_the_node() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[N] x) => (float[2, 2] y)
        <int64[2] shape = {2, 2}> { [fold_it] y = Reshape(x, shape) }""")
    data = [{"x": np.zeros(n, np.float32)} for n in (4, 4, 5)]
    with pytest.raises(ExecutionError, match=r"sample 2: .*fold_it"):
        collect(model, ["y"], data)
    with pytest.raises(ExecutionError, match=r"sample 1: .*z"):
        collect(model, ["y"], [data[0], {**data[0], "z": data[0]["x"]}])


def test_unknown_tensor_and_wrong_type() -> None:
    with pytest.raises(ModelError, match="no tensor named 'q'"):
        collect(_model(), ["q"], _data())
    statistics = collect(_model(), ["s", "a"], _data())
    assert list(statistics.tensors) == ["a"] and "int64, not float32" in statistics.unobservable["s"]


def test_nan_in_one_sample() -> None:
    data = _data(4)
    data[0]["x"][0, 0] = np.nan
    data[2]["x"][0, 1] = np.inf
    statistics = collect(_model(), ["x", "a"], data)
    stats = statistics.tensors["a"]
    assert (stats.nan, stats.nan_sample, stats.inf, stats.inf_sample) == (1, 0, 1, 2)
    assert np.isfinite([stats.min, stats.max]).all() and stats.samples == 4
    assert [k.index for k in statistics.kept] == [1, 2, 3], "a sample with NaN is no reference"
    assert any("NaN in tensor 'x'" in text for text in statistics.warnings())


def test_nan_inside_that_reaches_no_output_leaves_a_sample_a_reference() -> None:
    """A Where takes it out again: what masked means read, and values that are filled in where one is missing."""
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[N, 4] x, bool[N, 4] there) => (float[N, 4] y)
        {
            size = Shape(x)
            missing = ConstantOfShape <value = float[1] {nan}> (size)
            some = Where(there, x, missing)
            zero = Sub(x, x)
            y = Where(there, some, zero)
        }""")
    there = np.array([[True, True, False, True]] * 3)
    data: list[Feeds] = [{"x": np.ones((3, 4), np.float32), "there": there}] * 2
    statistics = collect(model, ["some", "y"], data)
    assert [k.index for k in statistics.kept] == [0, 1] and statistics.tensors["some"].nan == 6
    for sample in statistics.kept:
        np.testing.assert_array_equal(sample.outputs["y"], there)


def test_nan_that_an_imputer_replaces_leaves_a_sample_a_reference() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        agraph (float[N, 2] x) => (float[N, 2] y)
        {
            whole = ai.onnx.ml.Imputer <imputed_value_floats = [0.5, 1.5], replaced_value_float = nan> (x)
            y = Neg(whole)
        }""")
    statistics = collect(model, ["whole"], [{"x": np.array([[np.nan, 1], [2, np.nan]], np.float32)}])
    (sample,) = statistics.kept
    np.testing.assert_array_equal(sample.outputs["y"], [[-0.5, -1], [-2, -1.5]])


def test_branch_that_is_never_taken() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        agraph (float[N] x, bool c) => (float[N] y) {
            y = If (c) <then_branch = t () => (float[N] o) <float[N] a> { a = Neg(x) o = Exp(a) },
                        else_branch = e () => (float[N] p) <float[N] b> { b = Abs(x) p = Exp(b) }>
        }""")
    data = [{"x": np.ones(3, np.float32), "c": np.asarray(True)}] * 2
    statistics = collect(model, ["a", "b"], data)
    assert statistics.tensors["a"].samples == 2 and statistics.tensors["b"].count == 0


def test_outputs_of_a_sample_are_dropped_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []
    left: list[int] = []
    run = Session.run

    def watched(self: Any, feeds: Any) -> Any:
        left.append(sum(reference() is not None for reference in alive))
        outputs = run(self, feeds)
        alive[:] = [weakref.ref(array) for array in outputs.values()]
        return outputs

    monkeypatch.setattr(Session, "run", watched)
    collect(_model(), ["x", "a", "b", "y"], (feeds for feeds in _data()), keep=1)
    assert len(left) == 11 and not any(left)  # one run to measure sizes, then the samples


def test_merged_halves_equal_the_whole() -> None:
    data = _data(10)
    first, second = collect(_model(), ["a"], data[:5]), collect(_model(), ["a"], data[5:])
    first.merge(second)
    whole = collect(_model(), ["a"], data)
    assert np.array_equal(first.tensors["a"].counts, whole.tensors["a"].counts)
    assert first.tensors["a"].ema_min == pytest.approx(whole.tensors["a"].ema_min, rel=1e-12)
    assert first.samples == whole.samples == 10
