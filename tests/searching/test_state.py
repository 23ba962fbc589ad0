"""The memory of a search: what it keeps, what it refuses, what it throws away."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxq import OptionError, OutputError
from onnxq.deciding.rescue import Blame
from onnxq.searching.attempt import Attempt
from onnxq.searching.claim import claiming
from onnxq.searching.sources import digest_of_data
from onnxq.searching.state import State, file_digest

OF = {"model": "m", "options": "o"}


def attempt_in(state: State, number: int, content: bytes) -> Attempt:
    path = state.place(number) / "q.onnx"
    path.write_bytes(content)
    made = Attempt(number, "range", f"r{number}", metric=0.5, drop=0.1, time=0.5)
    return dataclasses.replace(made, files=("q.onnx",), digest=file_digest([path]))


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    state = State(tmp_path / "s", OF)
    assert (state.baseline, state.blame, state.statistics, state.resumed) == (None, None, None, 0)
    state.statistics_file().write_bytes(b"stats")
    state.keep_statistics()
    state.baseline, state.blame = 0.1 + 0.2, [Blame(("a", "b"), float("inf"), 1 / 3)]
    first = attempt_in(state, 1, b"one")
    state.add(first, [first])
    second = attempt_in(state, 2, b"two")
    state.add(second, [first, second])
    again = State(tmp_path / "s", OF)
    assert (again.baseline, again.blame, again.resumed) == (state.baseline, state.blame, 2)
    assert again.statistics == state.statistics_file()
    assert list(again.attempts.values()) == [first, second]
    assert [p.read_bytes() for p in again.files(second)] == [b"two"]


def test_files_of_losers_and_of_interrupted_steps_go(tmp_path: Path) -> None:
    state = State(tmp_path / "s", OF)
    first = attempt_in(state, 1, b"one")
    state.add(first, [first])
    second = attempt_in(state, 2, b"two")
    state.add(second, [second])
    with pytest.raises(OutputError, match="gone"):
        state.files(first)
    state.place(3)
    (state.folder / ".left.tmp").touch()
    State(tmp_path / "s", OF)
    assert {p.name for p in (tmp_path / "s").rglob("*")} == {"state.json", "attempts", "002", "q.onnx"}
    state.remove()
    assert list(tmp_path.iterdir()) == []


def test_another_search_is_refused_by_name(tmp_path: Path) -> None:
    state = State(tmp_path / "s", OF)
    state.add(first := attempt_in(state, 1, b"one"), [first])
    with pytest.raises(OptionError, match=r"state\.json.*different options.*--resume-dir"):
        State(tmp_path / "s", {"model": "m", "options": "other"})
    with pytest.raises(OptionError, match="different model, metric"):
        State(tmp_path / "s", {"model": "n", "options": "o", "metric": "f"})


def test_another_search_that_has_tried_nothing_is_replaced(tmp_path: Path) -> None:
    state = State(tmp_path / "s", OF)
    state.statistics_file().write_bytes(b"stats")
    state.baseline, state.blame = 0.5, [Blame(("a",), 1.0, 1.0)]
    state.keep_statistics()
    for name in ("float.onnx", "float.onnx.data"):
        (state.folder / name).touch()
    other = {"model": "n", "options": "o"}
    again = State(tmp_path / "s", other)
    assert (again.baseline, again.blame, again.statistics, again.resumed) == (None, None, None, 0)
    assert {p.name for p in again.folder.iterdir()} == {"state.json", "attempts"}
    again.add(first := attempt_in(again, 1, b"one"), [first])
    assert State(tmp_path / "s", other).resumed == 1


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OptionError, match="does not hold a search"):
        State(tmp_path, OF)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(OptionError, match="does not hold a search"):
        State(tmp_path / "mine.txt", OF)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "onnxq search", "version": 2}', "null"])
def test_a_broken_state_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(OptionError, match="not the state of a search"):
        State(tmp_path, OF)


def test_the_state_of_another_version_is_refused(tmp_path: Path) -> None:
    State(tmp_path, OF)
    document = json.loads((tmp_path / "state.json").read_text())
    for key, value in (("version", document["version"] + 1), ("format", "another search")):
        (tmp_path / "state.json").write_text(json.dumps({**document, key: value}))
        with pytest.raises(OptionError, match="of another version"):
            State(tmp_path, OF)


def test_changed_files_are_refused(tmp_path: Path) -> None:
    state = State(tmp_path / "s", OF)
    state.statistics_file().write_bytes(b"stats")
    state.keep_statistics()
    first = attempt_in(state, 1, b"one")
    state.add(first, [first])
    state.files(first)[0].write_bytes(b"1")
    with pytest.raises(OutputError, match="changed"):
        state.files(first)
    state.statistics_file().write_bytes(b"other")
    with pytest.raises(OptionError, match="statistics"):
        State(tmp_path / "s", OF)


def test_the_state_is_plain_json_without_what_json_lacks(tmp_path: Path) -> None:
    state = State(tmp_path / "s", OF)
    state.blame = [Blame(("a",), 1.0, 2.0)]
    state.save()
    assert json.loads((tmp_path / "s" / "state.json").read_text())["of"] == OF


def test_digests_of_data(tmp_path: Path) -> None:
    data = [{"x": np.arange(4.0)}, {"x": np.arange(4.0)}]
    other = [{"x": np.arange(4.0)}, {"x": np.arange(4.0) + 1}]
    assert digest_of_data(data) == digest_of_data([dict(d) for d in data]) != digest_of_data(other)
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    before = digest_of_data(tmp_path / "a.npz")
    in_folder = digest_of_data(tmp_path)
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    assert digest_of_data(str(tmp_path / "a.npz")) != before
    np.savez(tmp_path / "b.npz", x=np.ones(3))
    assert digest_of_data(tmp_path) != in_folder
    (tmp_path / "f.py").write_text("def f(): ...\ndef g(): ...")
    assert digest_of_data(f"{tmp_path / 'f.py'}:f") != digest_of_data(f"{tmp_path / 'f.py'}:g")


def test_a_folder_has_one_search_at_a_time(tmp_path: Path) -> None:
    """Of this process or another; and however it ends, the next one is let in."""
    folder = tmp_path / "s"
    other = (
        f"import onnxq.searching.state as s, onnxq.searching.claim as c; c.claiming(s.State)({str(folder)!r}, {OF!r})"
    )

    def elsewhere() -> str:
        return subprocess.run([sys.executable, "-c", other], check=False, capture_output=True, text=True).stderr

    @claiming
    def search(fails: bool) -> None:
        State(folder, OF)
        with pytest.raises(OptionError, match=r"is at work there\. Wait until it has ended, or give another output"):
            claiming(State)(folder, OF)
        assert "another search is at work there" in elsewhere()
        if fails:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        search(fails=True)
    search(fails=False)
    assert elsewhere() == ""
    claiming(lambda: State(folder, OF).remove())()
    assert not folder.exists()
