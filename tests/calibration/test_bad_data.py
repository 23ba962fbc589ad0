"""Calibration data that does not fit: refused by name, before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onnxq.calibration.data import open_data
from onnxq.errors import DataError, OptionError
from onnxq.ort.inputs import InputInfo
from tests.calibration.test_data import IMAGE, IMAGES, STATE, STATES, Loader, feeds, same


def test_wrong_name_gives_the_models_names() -> None:
    with pytest.raises(DataError, match=r"sample 0.*'x'") as caught:
        feeds([{"X": IMAGES[0]}])
    assert "Did you mean 'X'" in str(caught.value)
    with pytest.raises(DataError, match="'h'"):
        feeds([{"x": IMAGES[0]}], IMAGE, STATE)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((4, 5, 3), "channels last"),
        ((1, 4, 5, 3), "channels last"),
        ((3, 4, 6), r"1x3x4x6.*\?x3x4x5|1x3x4x6.*Nx3x4x5"),
        ((1, 1, 3, 4, 5), "axis 0, of 1, is one too many"),
        ((1, 3, 4, 5, 1), "axis 4, of 1, is one too many"),
        ((1, 3, 1, 4, 6), "wants Nx3x4x5$"),
        ((4, 5), r"4x5.*a single sample needs one more in front, array\[None\]"),
        ((4, 6), "wants Nx3x4x5$"),
        ((), "scalar"),
    ],
)
def test_wrong_shapes_say_sample_input_and_both_shapes(shape: tuple[int, ...], words: str) -> None:
    good = IMAGES[0]
    with pytest.raises(DataError, match=words) as caught:
        feeds([good, np.zeros(shape, np.float32)])
    assert "sample 1, input 'x'" in str(caught.value)


def test_channels_first_for_a_model_with_channels_last() -> None:
    info = InputInfo("x", np.dtype(np.float32), (1, 4, 5, 3))
    with pytest.raises(DataError, match="channels first"):
        feeds([IMAGES[0]], info)


def test_a_fixed_batch_is_explained() -> None:
    info = InputInfo("x", np.dtype(np.float32), (8, 3, 4, 5))
    with pytest.raises(DataError, match="batch is fixed to 8: each sample has to have the shape 8x3x4x5"):
        feeds([IMAGES[0]], info)


def test_too_few_arrays_and_a_single_array_for_two_inputs() -> None:
    with pytest.raises(DataError, match="2 inputs"):
        feeds([(IMAGES[0],)], IMAGE, STATE)
    with pytest.raises(DataError, match=r"'x', 'h': in a dict, or in an \.npz file"):
        feeds([IMAGES[0]], IMAGE, STATE)


def test_an_unknown_rank_takes_anything() -> None:
    info = InputInfo("x", np.dtype(np.float32), None)
    assert feeds([np.zeros((2, 3), np.float32)], info)[0]["x"].shape == (2, 3)


@pytest.mark.parametrize("source", [[], {}, IMAGES[:0], np.zeros((0, 3)), list, iter([]), ()])
def test_no_samples(source: Any) -> None:
    with pytest.raises(DataError, match="no samples"):
        feeds(source)


def test_empty_files_and_folders(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz")
    np.savez(tmp_path / "z.npz", x=IMAGES[:0])
    (tmp_path / "empty").mkdir()
    for name in ("e.npz", "z.npz", "empty"):
        with pytest.raises(DataError, match="no samples"):
            feeds(tmp_path / name)


def test_a_folder_for_each_input_says_what_is_read(tmp_path: Path) -> None:
    for name, arrays in (("x", IMAGES), ("h", STATES)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "0.npy", arrays[0])
    with pytest.raises(DataError, match=r"not from those in it \('h', 'x'\): .*write a file .npz for each"):
        feeds(tmp_path, IMAGE, STATE)


def test_different_lengths_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=IMAGES, h=STATES[:5])
    with pytest.raises(DataError, match="'x' has 7, 'h' has 5"):
        feeds(tmp_path / "d.npz", IMAGE, STATE)


def test_missing_and_unknown_kinds(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", IMAGES)
    with pytest.raises(DataError, match=r"Did you mean 'data\.npy'"):
        feeds(tmp_path / "dta.npy")
    (tmp_path / "d.csv").write_text("1")
    with pytest.raises(DataError, match="not a kind of data that onnxq reads"):
        feeds(tmp_path / "d.csv")
    for nothing in (None, 5):
        with pytest.raises(DataError, match=r"no data|not a kind of data that onnxq reads"):
            feeds(nothing)
    np.savez(tmp_path / "d.npz", x=IMAGES)
    with pytest.raises(DataError, match=r"mixes 1 npz file, 1 npy file"):
        feeds(tmp_path)


def test_the_users_exception_is_reported_with_its_sample() -> None:
    def source() -> Iterator[np.ndarray]:
        yield IMAGES[0]
        yield IMAGES[1]
        raise ValueError("disk on fire")

    with pytest.raises(DataError, match="sample 2: the data raised ValueError: disk on fire") as caught:
        feeds(source())
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_exit_in_the_users_code_is_reported_with_its_sample() -> None:
    """Else its code would be taken for one of onnxq's."""

    def source() -> Iterator[np.ndarray]:
        yield IMAGES[0]
        sys.exit(3)

    with pytest.raises(DataError, match="sample 1: the data raised SystemExit: 3"):
        feeds(source())


def test_an_interrupt_passes_through() -> None:
    def source() -> Iterator[np.ndarray]:
        yield IMAGES[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feeds(source())


def test_pickled_objects_are_never_read(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.write_text, (tmp_path / "sprung", "x"))

    trap = np.array([Trap()], object)
    np.save(tmp_path / "t.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "t.npz", x=trap)
    folder = tmp_path / "f"
    folder.mkdir()
    np.save(folder / "t.npy", trap, allow_pickle=True)
    for source in (tmp_path / "t.npy", tmp_path / "t.npz", folder):
        with pytest.raises(DataError):
            feeds(source)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_damaged_files_are_errors_not_tracebacks(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"d.{suffix}"
    np.save(path, IMAGES) if suffix == "npy" else np.savez_compressed(path, x=IMAGES)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [b"", b"junk", *(good[:n] for n in rng.integers(1, len(good), 20))]
    damaged += [good[:n] + bytes([good[n] ^ 0xFF]) + good[n + 1 :] for n in rng.integers(0, len(good), 150)]
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            feeds(path)
        except DataError:
            refused += 1
    assert refused >= 22


@pytest.mark.parametrize(("content", "why"), [(b"x,y\n1,2", "it begins with b'x,y"), (b"", "it is empty")])
def test_another_file_in_a_folder_is_no_pickle(tmp_path: Path, content: bytes, why: str) -> None:
    """numpy takes it for one, and would have the reader load it unsafely."""
    np.savez(tmp_path / "a.npz", x=IMAGES[0])
    (tmp_path / "b.npz").write_bytes(content)
    with pytest.raises(DataError, match=f"b.npz: is not a readable numpy file \\({why}") as caught:
        feeds(tmp_path)
    assert "pickle" not in str(caught.value)


def test_fewer_than_one_sample() -> None:
    with pytest.raises(DataError, match="0 samples"):
        feeds(IMAGES, samples=0)


def test_pictures_need_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(OptionError, match="Pillow"):
        feeds(tmp_path)


def test_an_object_that_is_no_array_is_refused() -> None:
    with pytest.raises(DataError, match="sample 0"):
        feeds([SimpleNamespace()])


def test_several_feeds_in_one_item_are_no_sample() -> None:
    """A label may be a dict of its own; two dicts of inputs are a batch, of which one would be run."""
    feed = {"x": IMAGES[0]}
    same(feeds([(feed, {"label": 3})]), [0])
    with pytest.raises(DataError, match=r"sample 0: an item holds 2 dicts.*one by one"):
        feeds([[feed, {"x": IMAGES[1]}]])


def test_what_a_loader_raises_names_the_sample_that_it_read() -> None:
    class Broken(Loader):
        def __iter__(self) -> Iterator[Any]:
            yield IMAGES[0]
            raise ValueError("broken")

    data = open_data(Broken(), [IMAGE], samples=2)
    with pytest.raises(DataError, match=r"sample 1: the data raised ValueError"):
        list(data)
