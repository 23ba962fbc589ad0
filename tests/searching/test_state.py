"""The memory of a search: what it keeps, what it refuses, what it throws away."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from onnxq import OptionError, OutputError
from onnxq.deciding.rescue import Blame
from onnxq.searching import claim as claims
from onnxq.searching import state as states
from onnxq.searching.attempt import Attempt
from onnxq.searching.claim import LOCK, claim, claiming
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
    with pytest.raises(OptionError, match="does not hold a search: it is no folder") as raised:
        State(tmp_path / "mine.txt", OF)
    assert "remove" not in str(raised.value), "it is the user's"


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


def between_look_and_claim(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path], object]) -> None:
    """Before the next search claims its folder, something happens there."""

    def late(folder: Path) -> None:
        monkeypatch.setattr(states, "claim", claim)
        happens(folder)
        claim(folder)

    monkeypatch.setattr(states, "claim", late)


def test_what_another_search_noted_just_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @claiming
    def other(folder: Path) -> None:
        state = State(folder, OF)
        state.add(first := attempt_in(state, 1, b"one"), [first])

    between_look_and_claim(monkeypatch, other)
    state = claiming(State)(tmp_path / "s", OF)
    assert state.resumed == 1
    assert [p.read_bytes() for a in state.attempts.values() for p in state.files(a)] == [b"one"]


def test_what_another_search_removed_just_before_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = State(tmp_path / "s", OF)
    earlier.add(first := attempt_in(earlier, 1, b"one"), [first])
    between_look_and_claim(monkeypatch, shutil.rmtree)
    assert claiming(State)(tmp_path / "s", OF).resumed == 0
    assert (tmp_path / "s" / "state.json").is_file()


def test_what_a_user_put_there_just_before_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def happens(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "mine.txt").touch()

    between_look_and_claim(monkeypatch, happens)
    with pytest.raises(OptionError, match="does not hold a search"):
        claiming(State)(tmp_path / "s", OF)
    assert {p.name for p in (tmp_path / "s").iterdir()} <= {"mine.txt", LOCK}


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no open files, and forks no process")


@POSIX
def test_a_lock_is_held_until_its_file_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who locks it just before it goes would work in the folder beside who makes a new one."""
    refused = []

    @claiming
    def search() -> None:
        state, unlink = State(tmp_path / "s", OF), Path.unlink

        def late(path: Path, missing_ok: bool = False) -> None:
            if path.name == LOCK:
                with pytest.raises(OptionError, match="at work"):
                    claiming(claim)(path.parent)
                refused.append(path)
            unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", late)
            state.remove()

    search()
    assert refused == [tmp_path / "s" / LOCK]
    assert not (tmp_path / "s").exists()


@POSIX
def test_a_lock_on_a_removed_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search whose file it was has ended between opening and locking, and took the folder with it."""
    folder, lock = tmp_path / "s", claims._lock

    def late(file: object) -> bool:
        monkeypatch.setattr(claims, "_lock", lock)
        shutil.rmtree(folder)
        return lock(file)  # type: ignore[arg-type]

    monkeypatch.setattr(claims, "_lock", late)

    @claiming
    def search() -> None:
        State(folder, OF)
        with pytest.raises(OptionError, match="at work"):
            claiming(State)(folder, OF)

    search()
    assert (folder / "state.json").is_file()


def test_a_lock_that_is_removed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / LOCK).symlink_to(tmp_path / "nowhere" / "lock")
    with pytest.raises(OutputError, match="cannot be written"):
        claiming(State)(tmp_path / "s", OF)


@pytest.mark.parametrize("refused", ["unlink", "rmdir"])
def test_a_search_that_cannot_tidy_up_has_ended_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """As on Windows, where another one that is just refused has the lock's file open."""
    usual = getattr(Path, refused)

    def fail(path: Path, *args: object, **kwargs: object) -> object:
        if path.name in (LOCK, "s"):
            raise PermissionError(errno.EACCES, "in use", str(path))
        return usual(path, *args, **kwargs)

    @claiming
    def search() -> None:
        state = State(tmp_path / "s", OF)
        with monkeypatch.context() as patch:
            patch.setattr(Path, refused, fail)
            state.remove()

    search()
    claiming(lambda: State(tmp_path / "s", OF).remove())()
    assert not (tmp_path / "s").exists()


FORK = """
import os, sys
from onnxq import OptionError
from onnxq.searching.claim import claiming
from onnxq.searching.state import State

def let_in():
    try:
        claiming(State)(sys.argv[1], {{}})
    except OptionError as error:
        return "at work" not in str(error)
    return True

@claiming
def search():
    State(sys.argv[1], {{}})
    {}

try:
    search()
except KeyboardInterrupt:
    os._exit(0)
print("after it", let_in())
"""


def forked(folder: Path, body: str) -> list[str]:
    """What a program says whose search forks: whether another search is let in."""
    code = FORK.format(body.strip().replace("\n", "\n    "))
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, capture_output=True, text=True, timeout=100
    )
    return done.stdout.splitlines()


@POSIX
def test_a_worker_that_lives_on_keeps_nobody_out(tmp_path: Path) -> None:
    """It has the lock's file open as well, here until the program has ended."""
    body = """
reads, writes = os.pipe()
if os.fork() == 0:
    os.close(writes)
    os.read(reads, 1)
    os._exit(0)
"""
    assert forked(tmp_path / "s", body) == ["after it True"]


@POSIX
def test_a_worker_that_ends_early_gives_nothing_back(tmp_path: Path) -> None:
    """It leaves the search by the way that the search itself ends."""
    body = """
child = os.fork()
if child == 0:
    raise KeyboardInterrupt
os.waitpid(child, 0)
print("within", let_in())
"""
    assert forked(tmp_path / "s", body) == ["within False", "after it True"]


@pytest.mark.parametrize(
    ("number", "let_in"),
    [(errno.EACCES, False), (errno.EDEADLK, False), (errno.EINVAL, True), (errno.ENOSYS, True)],
)
def test_on_windows_only_what_is_held_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, let_in: bool
) -> None:
    """Not a file system that knows no locks."""

    def locking(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    monkeypatch.setattr(claims, "sys", SimpleNamespace(platform="win32"))
    if let_in:
        claiming(State)(tmp_path / "s", OF)
    else:
        with pytest.raises(OptionError, match="another search is at work there"):
            claiming(State)(tmp_path / "s", OF)


def test_on_windows_the_lock_is_closed_before_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open cannot be removed there."""
    numbers, unlink = list[int](), Path.unlink
    locks = SimpleNamespace(LK_NBLCK=2, locking=lambda number, mode, count: numbers.append(number))
    monkeypatch.setitem(sys.modules, "msvcrt", locks)
    monkeypatch.setattr(claims, "sys", SimpleNamespace(platform="win32"))

    def strict(path: Path, missing_ok: bool = False) -> None:
        if path.name == LOCK:
            with pytest.raises(OSError, match="descriptor"):
                os.fstat(numbers[0])
        unlink(path, missing_ok)

    @claiming
    def search() -> None:
        state = State(tmp_path / "s", OF)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", strict)
            state.remove()

    search()
    assert len(numbers) == 1 and not (tmp_path / "s").exists()
