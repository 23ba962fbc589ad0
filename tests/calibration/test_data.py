"""Calibration data: every source gives the same feeds, and what does not fit is refused by name."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxq.calibration.data import open_data
from onnxq.errors import DataError
from onnxq.ort.inputs import InputInfo

IMAGE = InputInfo("x", np.dtype(np.float32), ("N", 3, 4, 5))
STATE = InputInfo("h", np.dtype(np.float32), (2, None))
RATE = InputInfo("sr", np.dtype(np.int64), ())
FLAT = InputInfo("f", np.dtype(np.float32), ("N", 4))

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(7, 3, 4, 5)).astype(np.float32)
STATES = RNG.normal(size=(7, 2, 6)).astype(np.float32)
RATES = np.arange(7)


def feeds(source: Any, *inputs: InputInfo, **options: Any) -> list[dict[str, np.ndarray]]:
    return list(open_data(source, inputs or (IMAGE,), **options))


def same(got: list[dict[str, np.ndarray]], indices: Any = range(7)) -> None:
    assert len(got) == len(indices)
    for feed, i in zip(got, indices, strict=True):
        assert list(feed) == ["x"]
        assert feed["x"].dtype == np.float32
        np.testing.assert_array_equal(feed["x"], IMAGES[i : i + 1])


# -- sources


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, save: Callable[..., None], batched: bool) -> None:
    save(tmp_path / "d.npz", x=IMAGES[:, None] if batched else IMAGES)
    data = open_data(tmp_path / "d.npz", [IMAGE])
    assert (data.length, data.repeatable) == (7, True)
    same(list(data))
    same(list(data))  # a second time


def test_npz_of_several_inputs_with_scalars(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=IMAGES[:, None], h=STATES, sr=RATES)
    got = feeds(tmp_path / "d.npz", IMAGE, STATE, RATE)
    assert [feed["sr"].shape for feed in got] == [()] * 7
    assert [int(feed["sr"]) for feed in got] == list(range(7))
    np.testing.assert_array_equal(got[3]["h"], STATES[3])


def test_npz_array_without_axes_serves_every_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=IMAGES, sr=np.int64(16000))
    assert [int(feed["sr"]) for feed in feeds(tmp_path / "d.npz", IMAGE, RATE)] == [16000] * 7


def test_npz_without_names_is_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", IMAGES, STATES)
    got = feeds(tmp_path / "d.npz", IMAGE, STATE)
    np.testing.assert_array_equal(got[2]["h"], STATES[2])


@pytest.mark.parametrize("samples", [1, 3, 7, 100])
def test_samples_are_spread_over_all(tmp_path: Path, samples: int) -> None:
    np.save(tmp_path / "d.npy", IMAGES)
    count = min(samples, 7)
    data = open_data(tmp_path / "d.npy", [IMAGE], samples=samples)
    assert data.length == count
    expected = [data.index_of(i) for i in range(count)]
    assert all(i * 7 // count <= index < (i + 1) * 7 // count for i, index in enumerate(expected))
    same(list(data), expected)
    same(feeds(list(IMAGES), samples=samples), expected)
    same(feeds(IMAGES, samples=samples), expected)
    same(feeds(iter(IMAGES), samples=samples), range(count))


def test_fortran_order_and_other_byte_order(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.asfortranarray(IMAGES))
    same(feeds(tmp_path / "f.npy"))
    np.save(tmp_path / "b.npy", IMAGES.astype(">f4"))
    same(feeds(tmp_path / "b.npy"))


def test_folders_of_npz_and_npy(tmp_path: Path) -> None:
    for kind in ("npz", "npy"):
        folder = tmp_path / kind
        folder.mkdir()
        for i in reversed(range(7)):
            if kind == "npz":
                np.savez(folder / f"{i}.npz", x=IMAGES[i : i + 1])
            else:
                np.save(folder / f"{i}.npy", IMAGES[i])
        (folder / ".hidden.npz").write_bytes(b"junk")
        (folder / "README.txt").write_text("not data")
        same(feeds(folder))
        two = open_data(str(folder), [IMAGE], samples=2)
        same(feeds(str(folder), samples=2), [two.index_of(0), two.index_of(1)])


def test_the_file_of_a_sample_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """By the order of names 10 comes before 2, so that a number alone would mislead."""
    for index in range(12):
        np.savez(tmp_path / f"{index}.npz", x=np.zeros((1, 3), np.float32))
    np.savez(tmp_path / "2.npz", z=np.zeros((1, 3), np.float32))
    with pytest.raises(DataError, match=r"^sample 4 \(2\.npz\): the data has no array for the model's input 'x'"):
        list(open_data(tmp_path, [InputInfo("x", np.dtype(np.float32), ("N", 3))]))


def test_shapes_may_differ_in_a_folder(tmp_path: Path) -> None:
    info = InputInfo("x", np.dtype(np.float32), (1, None))
    for i in range(1, 4):
        np.savez(tmp_path / f"{i}.npz", x=np.zeros((1, i), np.float32))
    assert [feed["x"].shape for feed in feeds(tmp_path, info)] == [(1, 1), (1, 2), (1, 3)]


def test_function_in_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", IMAGES)
    (tmp_path / "helper.py").write_text("NAME = 'd.npy'\n")
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\nimport numpy as np\nfrom helper import NAME\n"
        "ALL = np.load(Path(__file__).with_name(NAME))\n"
        "def generate():\n    for x in ALL:\n        yield {'x': x}\n"
        "def give():\n    return list(ALL)\n"
        "def number():\n    return 5\n"
    )
    same(feeds(f"{tmp_path}/mine.py:generate"))
    same(feeds(f"{tmp_path}/mine.py:give"))
    same(feeds(f"{tmp_path}/mine.py:ALL"))
    with pytest.raises(DataError, match="Did you mean 'generate'"):
        feeds(f"{tmp_path}/mine.py:generat")
    with pytest.raises(DataError, match="returned int"):
        feeds(f"{tmp_path}/mine.py:number")
    with pytest.raises(DataError, match="FUNCTION"):
        feeds(f"{tmp_path}/mine.py")


def test_a_function_in_a_file_runs_among_its_modules_and_what_it_prints_goes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """stdout is onnxq's own, of --json above all."""
    (tmp_path / "beside_the_data.py").write_text("WIDTH = 2.0\n")
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def generate():\n"
        "    print('begun')\n"
        "    from beside_the_data import WIDTH\n"
        "    for i in range(2):\n        print(i)\n        yield {'x': np.full(SHAPE, WIDTH, np.float32)}\n"
        f"SHAPE = {IMAGES[0].shape}\n"
        "class Own:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, at):\n        print('at', at)\n        return np.full(SHAPE, at, np.float32)\n"
        "own = Own()\n"
        "size = 3\n"
    )
    for feed in open_data(f"{tmp_path}/mine.py:generate", [IMAGE]):
        sys.stdout.write("between\n")
        assert feed["x"].max() == 2.0
    assert capsys.readouterr() == ("between\nbetween\n", "begun\n0\n1\n")
    assert len(feeds(f"{tmp_path}/mine.py:own")) == 2
    assert capsys.readouterr() == ("", "at 0\nat 1\n")
    with pytest.raises(DataError, match=r"mine\.py:size': int is not a kind of data"):
        feeds(f"{tmp_path}/mine.py:size")


def test_a_function_file_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0\n")
    with pytest.raises(DataError, match=r"bad\.py:f.*ZeroDivisionError"):
        feeds(f"{tmp_path}/bad.py:f")
    with pytest.raises(DataError, match="does not exist"):
        feeds(f"{tmp_path}/none.py:f")


class Tensor:
    """What torch gives: no __array__, a gradient to detach from."""

    def __init__(self, x: np.ndarray) -> None:
        self._x, self.shape, self.dtype = x, x.shape, "torch.float32"

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self._x


class Loader:
    """A data loader: iterable again and again, with a length, giving (batch, labels)."""

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[Any]:
        return iter([Tensor(x[None]), np.int64(3)] for x in IMAGES)


@pytest.mark.parametrize(
    "source",
    [
        IMAGES,
        {"x": IMAGES},
        list(IMAGES),
        [{"x": x} for x in IMAGES],
        [({"x": x}, 3) for x in IMAGES],
        [(x, 3) for x in IMAGES],
        [x.tolist() for x in IMAGES],
        lambda: (x for x in IMAGES),
        Loader(),
    ],
)
def test_python_objects(source: Any) -> None:
    data = open_data(source, [IMAGE])
    same(list(data))
    assert data.repeatable
    same(list(data))


def test_generators_are_used_once() -> None:
    data = open_data(({"x": x} for x in IMAGES), [IMAGE])
    assert not data.repeatable
    assert data.length is None
    same(list(data))
    with pytest.raises(DataError, match="no samples"):
        list(data)


def test_batches_are_fed_as_they_are() -> None:
    got = feeds([IMAGES[:4], IMAGES[4:]])
    assert [feed["x"].shape[0] for feed in got] == [4, 3]


def test_tuples_follow_the_inputs() -> None:
    got = feeds([(IMAGES[0], STATES[0], 9)], IMAGE, STATE)
    np.testing.assert_array_equal(got[0]["h"], STATES[0])


def test_only_one_sample_at_a_time_is_taken_from_a_generator() -> None:
    taken = []

    def source() -> Iterator[np.ndarray]:
        for i, x in enumerate(IMAGES):
            taken.append(i)
            yield x

    samples = iter(open_data(source(), [IMAGE], samples=3))
    assert taken == []
    next(samples)
    assert taken == [0]
    assert len(list(samples)) == 2
    assert taken == [0, 1, 2]


def test_a_loader_without_a_length_is_fine() -> None:
    class Endless(Loader):
        def __len__(self) -> int:
            raise TypeError("no length")

    data = open_data(Endless(), [IMAGE])
    assert data.length is None
    same(list(data))


@pytest.mark.parametrize("made", [False, True])
def test_a_source_of_known_length_is_not_cut_behind_its_first_samples(made: bool) -> None:
    """Data may be sorted: a loader gives the samples that a list gives, and so does a function that returns one."""
    wanted = open_data(list(IMAGES), [IMAGE], samples=3)
    data = open_data((lambda: Loader()) if made else Loader(), [IMAGE], samples=3)
    for _ in range(2):  # the same each time
        found = list(data)
        indices = [data.index_of(position) for position in range(3)]
        assert indices == [wanted.index_of(position) for position in range(3)] != [0, 1, 2]
        same(found, indices)


def test_a_loader_is_read_no_further_than_its_last_sample_used() -> None:
    read: list[int] = []

    class Slow(Loader):
        def __iter__(self) -> Iterator[Any]:
            for k, x in enumerate(IMAGES):
                read.append(k)
                yield x

    data = open_data(Slow(), [IMAGE], samples=2)
    assert len(list(data)) == 2
    assert read == list(range(data.index_of(1) + 1))


@pytest.mark.parametrize(("count", "said"), [(3, True), (7, False), (9, False)])
def test_the_first_of_an_unknown_number_are_said_to_be_used(
    count: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = open_data(lambda: (x for x in IMAGES), [IMAGE], samples=count)
    for _ in range(2):
        same(list(data), range(min(count, 7)))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == said, "once"
    assert not said or ("the first 3 are used" in told[0] and "shuffle them" in told[0])


def test_a_fault_behind_the_first_samples_used_does_not_matter() -> None:
    def feeding() -> Iterator[Any]:
        yield from IMAGES[:3]
        raise ValueError("broken")

    same(list(open_data(feeding, [IMAGE], samples=3)), range(3))


# -- types


def test_float64_is_cast_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="onnxq"):
        same(feeds(IMAGES.astype(np.float64)))
    assert [r.getMessage() for r in caplog.records] == ["input 'x': the data is float64, cast to float32"]


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", "float16"])
def test_other_types_become_float_silently(dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    got = feeds([np.ones((3, 4, 5), dtype)])
    assert got[0]["x"].dtype == np.float32
    assert caplog.records == []


def test_whole_numbers_fit_an_integer_input() -> None:
    info = InputInfo("i", np.dtype(np.int32), (None,))
    assert feeds([np.array([1.0, 2.0])], info)[0]["i"].dtype == np.int32
    for bad in (np.array([1.5]), np.array([2**40]), np.array([np.nan])):
        with pytest.raises(DataError, match="int32"):
            feeds([bad], info)


def test_strings() -> None:
    info = InputInfo("s", np.dtype(object), ("N",))
    assert feeds([np.array(["a", "b"])], info)[0]["s"].tolist() == ["a", "b"]
    with pytest.raises(DataError, match="float64"):
        feeds([np.array([1.0])], info)
    with pytest.raises(DataError, match="model wants float32"):
        feeds([np.array(list("abcd"))], FLAT)


def test_a_dimension_name_of_two_sizes_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    other = InputInfo("y", np.dtype(np.float32), ("N", "K"))
    sizes = {"x": IMAGES[:2], "y": np.ones((2, 3, 2), np.float32)}
    with caplog.at_level(logging.WARNING, logger="onnxq"):
        found = feeds([{"x": x[None], "y": y} for x, y in zip(*sizes.values(), strict=True)], IMAGE, other)
    assert [feed["y"].shape for feed in found] == [(3, 2)] * 2
    (warning,) = [r.getMessage() for r in caplog.records if "onnxruntime may fail" in r.getMessage()]
    assert "axis 0 of 'y' and axis 0 of 'x' both 'N', in sample 0 they are 3 and 1" in warning


class Dataset:
    """Samples by index, with labels, as torch's map-style data sets have them: nothing to iterate over."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, np.dtype[Any]], int]:
        self.read.append(index)
        return IMAGES[index], index


def test_a_data_set_of_samples_by_index() -> None:
    same(feeds(Dataset()))


def test_of_a_data_set_only_the_samples_used_are_read() -> None:
    source = Dataset()
    opened = open_data(source, (IMAGE,), samples=3)
    assert len(list(opened)) == 3
    assert source.read == [opened.index_of(position) for position in range(3)]


def test_an_extra_array_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="onnxq"):
        same(feeds([{"x": x, "label": 3} for x in IMAGES]))
    assert [r.getMessage() for r in caplog.records] == [
        "the data's 'label' is no input that the model needs, and is not used"
    ]


def test_an_input_with_a_default_is_fed_where_the_data_has_it_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """A tuple, or an array for a model of one input, is in the order of those that must be fed."""
    gain = InputInfo("gain", np.dtype(np.float32), (), default=True)
    with caplog.at_level(logging.WARNING, logger="onnxq"):
        given = feeds([{"x": IMAGES[0], "gain": 3}, {"x": IMAGES[1]}, IMAGES[2], (IMAGES[3], 5)], IMAGE, gain)
    same([{"x": feed["x"]} for feed in given], range(4))
    assert [feed.get("gain") for feed in given] == [3, None, None, None]
    assert given[0]["gain"].dtype == np.float32 and not caplog.records


def test_a_state_whose_batch_is_another_axis(tmp_path: Path) -> None:
    """Layers by batch: along its own batch it does not say which axis counts samples, in front it does."""
    inputs = [InputInfo("x", np.dtype(np.float32), (1, 3)), InputInfo("h", np.dtype(np.float32), (2, 1, 4))]
    x, state = np.zeros((6, 3), np.float32), np.arange(48, dtype=np.float32).reshape(2, 6, 4)
    np.savez(tmp_path / "d.npz", x=x, h=state)
    with pytest.raises(DataError, match=r"'x' has 6, 'h' has 2\. .*batch is another axis.*on a new first axis"):
        list(open_data(tmp_path / "d.npz", inputs))
    np.savez(tmp_path / "d.npz", x=x, h=state.transpose(1, 0, 2)[:, :, None])
    read = [feeds["h"] for feeds in open_data(tmp_path / "d.npz", inputs)]
    np.testing.assert_array_equal(np.concatenate(read, axis=1), state)
