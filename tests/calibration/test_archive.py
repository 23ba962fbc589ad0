from __future__ import annotations

import io
import json
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxq.calibration import archive
from onnxq.calibration.statistics import KeptSample, Statistics, TensorStatistics
from onnxq.errors import OutputError, StatisticsError


def _statistics() -> Statistics:
    rng = np.random.default_rng(0)
    result = Statistics("ab" * 32, samples=3, unobservable={"s/ü '\"": "it is int64"}, meta={"note": "text"})
    for name in ("a", "b/c", "..//d é"):
        stats = TensorStatistics(name)
        for index in range(3):
            stats.update(rng.standard_normal(500).astype(np.float32), index)
        result.tensors[name] = stats
    result.tensors["never"] = TensorStatistics("never")
    for index in (0, 2):
        feeds = {"x": rng.standard_normal((1, 4)).astype(np.float32), "n": np.asarray(index)}
        result.kept.append(
            KeptSample(index, feeds, {"y": np.zeros((0, 3), np.float32), "t": np.array(["a", "bc"], object)})
        )
    return result


def test_round_trip(tmp_path: Path) -> None:
    before = _statistics()
    path = tmp_path / "s.npz"
    before.save(path)
    after = Statistics.load(path)
    assert (after.model_digest, after.samples, after.unobservable, after.meta) == (
        before.model_digest,
        before.samples,
        before.unobservable,
        before.meta,
    )
    assert list(after.tensors) == list(before.tensors)
    for name, stats in before.tensors.items():
        for field in fields(TensorStatistics):
            assert np.array_equal(getattr(after.tensors[name], field.name), getattr(stats, field.name))
    for a, b in zip(after.kept, before.kept, strict=True):
        assert a.index == b.index
        for mine, theirs in ((a.feeds, b.feeds), (a.outputs, b.outputs)):
            assert list(mine) == list(theirs)
            for key in mine:
                assert mine[key].shape == theirs[key].shape and (mine[key] == theirs[key]).all()


def test_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _statistics().save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    Statistics.load(tmp_path / "one").save(tmp_path / "three")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "three").read_bytes()


def test_numpy_reads_it_without_pickle(tmp_path: Path) -> None:
    _statistics().save(tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz", allow_pickle=False) as data:
        assert all(data[name] is not None for name in data.files)
        assert json.loads(data["header"].tobytes())["format"] == "onnxq statistics"


def test_nothing_is_left_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.npz"
    _statistics().save(path)
    old = path.read_bytes()
    with pytest.raises(OutputError, match="missing"):
        _statistics().save(tmp_path / "missing" / "s.npz")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    for error in (full, _interrupt):
        monkeypatch.setattr(archive, "_write", error)
        with pytest.raises((OutputError, KeyboardInterrupt), match=r"No space|^$"):
            _statistics().save(path)
        assert path.read_bytes() == old and [p.name for p in tmp_path.iterdir()] == ["s.npz"]


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "s.npz"
    _statistics().save(path)
    return path.read_bytes()


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(StatisticsError, match=r"no such file.*onnxq calibrate"):
        Statistics.load(tmp_path / "none.npz")
    with pytest.raises(StatisticsError, match=r"^'.*': cannot be read: [A-Z][a-z ]+$"):
        Statistics.load(tmp_path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_damaged_files_are_an_error_or_sound(good: bytes, tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(good), len(good), len(good) // 2, 10, 0]))
    path = tmp_path / "damaged.npz"
    path.write_bytes(bytes(damaged[:end]))
    try:
        loaded = Statistics.load(path)
    except StatisticsError:
        return
    assert all(stats.counts.sum() == stats.count for stats in loaded.tensors.values())


def _rewrite(good: bytes, path: Path, changes: dict[str, Any]) -> None:
    """The good file with some members replaced; header changes are given as a dict."""
    with zipfile.ZipFile(io.BytesIO(good)) as source, zipfile.ZipFile(path, "w") as target:
        for info in source.infolist():
            name = info.filename.removesuffix(".npy")
            content = source.read(info)
            if name in changes:
                new = changes[name]
                if isinstance(new, dict):
                    header = json.loads(np.load(io.BytesIO(content)).tobytes())
                    new = np.frombuffer(json.dumps({**header, **new}).encode(), np.uint8)
                if isinstance(new, bytes):
                    content = new
                else:
                    buffer = io.BytesIO()
                    np.save(buffer, new, allow_pickle=True)
                    content = buffer.getvalue()
            target.writestr(info.filename, content)


BAD: dict[str, dict[str, Any]] = {
    "other format": {"header": {"format": "x"}},
    "newer version": {"header": {"version": 2}},
    "missing tensor": {"header": {"tensors": ["a", "b"]}},
    "names twice": {"header": {"tensors": ["a", "a", "b", "c"]}},
    "names not text": {"header": {"tensors": [1, 2, 3, 4]}},
    "negative samples": {"header": {"samples": -1}},
    "samples not a number": {"header": {"samples": "3"}},
    "kept not a list": {"header": {"kept": 3}},
    "kept without arrays": {"header": {"kept": [{"index": 0, "feeds": ["x", "y", "z"], "outputs": []}]}},
    "header not json": {"header": np.frombuffer(b"{", np.uint8)},
    "header not an object": {"header": np.frombuffer(b"[1]", np.uint8)},
    "deep header": {"header": np.frombuffer(b"[" * 100000, np.uint8)},
    "pickled": {"reals": np.array([{}, {}], object)},
    "reals with nan": {"reals": np.full((4, 9), np.nan)},
    "keys out of range": {"hist_keys": np.full(3, 60000, np.uint16)},
    "counts negative": {"hist_counts": np.array([-1])},
    "offsets wrong": {"hist_offsets": np.array([0, 5, 3, 2, 1])},
    "wrong dimensions": {"integers": np.zeros(3, np.int64)},
    "kept of pickles": {"kept/0/feed/0": np.array([print], object)},
    "huge claim": {
        "hist_keys": b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999,), }".ljust(117)
        + b"\n"
    },
    "no array": {"integers": b"nonsense"},
}


@pytest.mark.parametrize("what", BAD)
def test_malformed_members(good: bytes, tmp_path: Path, what: str) -> None:
    path = tmp_path / "bad.npz"
    _rewrite(good, path, BAD[what])
    with pytest.raises(StatisticsError, match=r"bad\.npz.*not a sound statistics file"):
        Statistics.load(path)


def test_unchanged_rewrite_loads(good: bytes, tmp_path: Path) -> None:
    _rewrite(good, tmp_path / "same.npz", {})
    assert len(Statistics.load(tmp_path / "same.npz").tensors) == 4


def test_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.npy", bytes(1 << 20))
    monkeypatch.setattr(archive, "_EXPANDED_LIMIT", 1 << 19)
    with pytest.raises(StatisticsError, match="expand to more than"):
        Statistics.load(path)
