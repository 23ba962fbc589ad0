"""The memory of a search: a folder that is true after a crash at any moment, and refused where it is another's.

``state.json`` is replaced as a whole after every step; ``statistics.npz`` and ``attempts/<number>/`` are written before
it names them, and what it does not name is thrown away.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from onnxq.deciding.rescue import Blame
from onnxq.errors import OptionError, OutputError
from onnxq.file_system import is_there
from onnxq.searching.attempt import Attempt
from onnxq.searching.claim import LOCK, claim, remove_lock

__all__ = ["State", "file_digest"]

_FORMAT, _VERSION = "onnxq search", 2
_NAME, _STATISTICS, _ATTEMPTS = "state.json", "statistics.npz", "attempts"
_START = "Give another --resume-dir, or remove this folder to start over"
_ANOTHER = "Give another --resume-dir: one that is not there yet, or that is empty"


class State:
    """What is known of a search so far.

    Args:
        folder: made if it is missing.
        of: what the search depends on, by name; digests or short texts.

    Attributes:
        folder: the folder.
        baseline: the float model's metric, None until it is known.
        blame: what layers do to the outputs, None until it was measured.
        attempts: by level and what, in the order in which they were made.
        resumed: attempts that were there already.

    Raises:
        OptionError: the folder is of another search that has tried something, or that is at work, or holds something
            else.
        OutputError: it cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], of: Mapping[str, str]) -> None:
        self.folder = Path(folder)
        self.baseline: float | None = None
        self.blame: list[Blame] | None = None
        self.attempts: dict[tuple[str, str], Attempt] = {}
        self._of, self._statistics = dict(of), ""
        self._has_begun()  # nothing is written to a folder of something else
        self._made = not self.folder.exists()
        try:
            claim(self.folder)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        if self._has_begun():  # before it was claimed, another search may have
            self._read()
        self.resumed = len(self.attempts)
        try:
            (self.folder / _ATTEMPTS).mkdir(exist_ok=True)
            self.save()
            self._tidy()
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """What comes before the first attempt: where it fails, a folder made for it goes again.

        It stays after Ctrl-C where something was noted, and with statistics or attempts of an earlier run.
        """
        try:
            yield
        except BaseException as error:
            noted = bool(self.attempts or self._statistics)
            stopped = not isinstance(error, Exception)
            if self._made and not noted and not (stopped and self.baseline is not None):
                self.remove()
            raise

    @property
    def statistics(self) -> Path | None:
        """The file of statistics; None until they are there."""
        return self.folder / _STATISTICS if self._statistics else None

    def statistics_file(self) -> Path:
        """Where to write the statistics, before :meth:`keep_statistics`."""
        return self.folder / _STATISTICS

    def keep_statistics(self) -> None:
        """The statistics are written."""
        self._statistics = file_digest([self.statistics_file()])
        self.save()

    def place(self, number: int) -> Path:
        """An empty folder for the files of an attempt."""
        folder = self.folder / _ATTEMPTS / f"{number:03}"
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
        return folder

    def place_of(self, attempt: Attempt) -> Path:
        """The folder of an attempt's files."""
        return self.folder / _ATTEMPTS / f"{attempt.number:03}"

    def files(self, attempt: Attempt) -> list[Path]:
        """The files of an attempt.

        Raises:
            OutputError: they are gone, or are not what they were.
        """
        found = [self.place_of(attempt) / name for name in attempt.files]
        if not all(path.is_file() for path in found) or file_digest(found) != attempt.digest:
            raise OutputError("files of the search are gone or were changed", where=str(self.folder), hint=_START)
        return found

    def add(self, attempt: Attempt, keep: Sequence[Attempt]) -> None:
        """Note an attempt; the files of all attempts but those to keep are removed."""
        self.attempts[attempt.level, attempt.what] = attempt
        self.save()
        wanted = {f"{a.number:03}" for a in keep}
        for folder in (self.folder / _ATTEMPTS).iterdir():
            if folder.name not in wanted:
                shutil.rmtree(folder, ignore_errors=True)

    def save(self) -> None:
        """Write ``state.json`` as a whole.

        Raises:
            OutputError: it cannot be written.
        """
        document = {
            "format": _FORMAT,
            "version": _VERSION,
            "of": self._of,
            "statistics": self._statistics,
            "baseline": self.baseline,
            "blame": None if self.blame is None else [[list(b.nodes), b.noise, b.cost] for b in self.blame],
            "attempts": [attempt.to_dict() for attempt in self.attempts.values()],
        }
        temporary = self.folder / f".{_NAME}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.folder / _NAME)
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def remove(self) -> None:
        """Remove what the search wrote, and the folder where nothing else is in it; what cannot be removed stays."""
        with suppress(OSError):
            self._remove_files()
        with suppress(OSError):
            remove_lock(self.folder)
        with suppress(OSError):  # another search may have begun in it
            self.folder.rmdir()

    def _read(self) -> None:
        where = str(self.folder / _NAME)
        try:
            document: dict[str, Any] = json.loads((self.folder / _NAME).read_text(encoding="utf-8"))
            if document["format"] != _FORMAT or document["version"] != _VERSION:
                raise ValueError("of another version")
            before = dict(document["of"])
            self._statistics = str(document["statistics"])
            self.baseline = None if document["baseline"] is None else float(document["baseline"])
            if document["blame"] is not None:
                self.blame = [Blame(tuple(n), float(noise), float(cost)) for n, noise, cost in document["blame"]]
            made = [Attempt.from_dict(values) for values in document["attempts"]]
        except OSError as error:
            raise OptionError(f"cannot be read ({error.strerror or error})", where=where) from error
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(f"is not the state of a search ({error})", where=where, hint=_START) from error
        changed = [name for name in {**before, **self._of} if before.get(name) != self._of.get(name)]
        if changed and not made:  # nothing is lost: its settings, or a metric that failed at once, were mended
            self._forget()
            return
        if changed:
            raise OptionError(f"this is another search: different {', '.join(changed)}", where=where, hint=_START)
        if self._statistics and (
            not self.statistics_file().is_file() or file_digest([self.statistics_file()]) != self._statistics
        ):
            raise OptionError("its statistics are gone or were changed", where=where, hint=_START)
        self.attempts = {(a.level, a.what): a for a in made}

    def _forget(self) -> None:
        """Start anew in the folder of a search that has tried nothing yet."""
        self._statistics, self.baseline, self.blame = "", None, None
        try:
            self._remove_files()
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _remove_files(self) -> None:
        shutil.rmtree(self.folder / _ATTEMPTS, ignore_errors=True)
        for name in (_STATISTICS, "float.onnx", "float.onnx.data", _NAME):
            (self.folder / name).unlink(missing_ok=True)

    def _has_begun(self) -> bool:
        """Whether a search has noted something in the folder.

        Raises:
            OptionError: it holds something else, or cannot be looked at.
        """
        if not is_there(self.folder, OptionError):
            return False
        if not self.folder.is_dir():
            raise OptionError("does not hold a search: it is no folder", where=str(self.folder), hint=_ANOTHER)
        if (self.folder / _NAME).exists():
            return True
        if not self._is_a_start():
            raise OptionError("does not hold a search", where=str(self.folder), hint=_ANOTHER)
        return False

    def _is_a_start(self) -> bool:
        """Whether the folder holds no more than a search leaves that was stopped in its first moment."""
        return self.folder.is_dir() and {p.name for p in self.folder.iterdir()} <= {
            _ATTEMPTS,
            LOCK,
            f".{_NAME}.tmp",
        }

    def _tidy(self) -> None:
        """Throw away what an interrupted step left."""
        known = {f"{a.number:03}" for a in self.attempts.values()}
        for folder in (self.folder / _ATTEMPTS).iterdir():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)
        for left in self.folder.glob(".*.tmp"):
            left.unlink(missing_ok=True)


def file_digest(paths: Sequence[Path]) -> str:
    """SHA-256 of the contents of files, one after the other."""
    sha = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()


def _unwritable(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot be written ({error.strerror or error})", where=str(folder))
