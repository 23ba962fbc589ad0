"""The state of a training on the ONNX graph, kept in a file that a later run goes on from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onnxq.calibration.numpy_files import BROKEN
from onnxq.errors import OptionError
from onnxq.file_system import whole_file
from onnxq.locations import made_folder
from onnxq.torch.distill import Settings
from onnxq.torch.student import Student

__all__ = ["resumed", "save", "told_of_state"]

_MAY_DIFFER = ("steps", "checks")
"""Settings that a training may go on with others of; looks at the samples held back follow from the steps."""

Where = str | os.PathLike[str] | None


def save(student: Student, path: Where, step: int, settings: Settings) -> None:
    """Write the state as an .npz file, whole or not at all; nothing where there is no path.

    Raises:
        OutputError: it cannot be written.
    """
    if path is None:
        return
    arrays: dict[str, Any] = {}
    for name, part in student.learned.items():
        arrays |= {f"{name}/{k}": p.detach().cpu().numpy() for k, p in enumerate(part)}
    with made_folder(Path(path)), whole_file(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, step=np.array(step), settings=np.array(repr(settings)), **arrays)


def resumed(student: Student, path: Where, settings: Settings) -> int:
    """Take up a state, begun with as many steps or fewer.

    Returns:
        The number of steps that were done; 0 where there is no file.

    Raises:
        OptionError: the file is none, or of another model, other options or more steps.
    """
    if path is None or not Path(path).is_file():
        return 0
    where = f"'{path}'"
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as saved:
            before = _parts(str(saved["settings"]))
            arrays = {name: saved[name] for name in saved.files if "/" in name}
            step = int(saved["step"])
    except BROKEN as error:
        hint = "Give the file that an earlier --resume wrote, or a name that is not taken"
        raise OptionError("is not the state of a training, or it was cut short", where=where, hint=hint) from error
    now = _parts(repr(settings))
    other = [n for n in now if n not in _MAY_DIFFER and before.get(n) != now[n]]
    if other:
        told = ", ".join(f"{name} {before.get(name, 'unknown')} and not {now[name]}" for name in other)
        hint = "Give the same options, or another file"
        raise OptionError(f"the state belongs to a training with {told}", where=where, hint=hint)
    if step > settings.steps:
        hint = f"Give at least --steps {step}, or another file"
        raise OptionError(
            f"the state is of {step} steps, more than the {settings.steps} asked for", where=where, hint=hint
        )
    wanted = {f"{n}/{k}": p for n, part in student.learned.items() for k, p in enumerate(part)}
    if wanted.keys() != arrays.keys() or any(tuple(p.shape) != arrays[n].shape for n, p in wanted.items()):
        raise OptionError(
            "the state belongs to another model", where=where, hint="Give the model that was trained, or another file"
        )
    with torch.no_grad():
        for name, p in wanted.items():
            p.copy_(torch.from_numpy(arrays[name]))
    return step


@contextmanager
def told_of_state(path: Where, start: int) -> Iterator[None]:
    """Say after Ctrl-C whether a state was kept, and how to go on.

    Raises:
        KeyboardInterrupt: with these words.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        step = _step(path)
        if path is None:
            told = "no state was kept; with --resume FILE the next run can go on where this one stops"
        elif step is None:
            told = "no state was kept yet: it is written at each look at the samples held back"
        else:
            new = "" if step > start else " (none was written since)"
            told = f"the state after {step} steps is in '{path}'{new}: the same command goes on from it"
        raise KeyboardInterrupt(told) from error


def _step(path: Where) -> int | None:
    if path is None or not Path(path).is_file():
        return None
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as saved:
            return int(saved["step"])
    except BROKEN:
        return None


def _parts(settings: str) -> Mapping[str, str]:
    """Settings as they are written out, by name."""
    return dict(re.findall(r"(\w+)=([^,)]+)", settings))
