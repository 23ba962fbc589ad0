"""A user's Python file: run, and a function of it found. What it prints goes to stderr: stdout is onnxq's own."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from onnxq.errors import OnnxqError
from onnxq.file_system import is_there
from onnxq.suggest import nearest

__all__ = ["at_home", "function_of", "split_name"]


def split_name(text: str) -> tuple[Path, str | None]:
    """``"a.py:f"`` → (a.py, f); anything else is a path, without a name."""
    file, colon, name = text.rpartition(":")
    return (Path(file), name) if colon and file.endswith(".py") else (Path(text), None)


def function_of(path: Path, name: str, *, where: str, error: type[OnnxqError]) -> Any:
    """What a Python file has under a name.

    Args:
        path: the file; the modules beside it can be imported while it runs.
        name: of a function or of any other object.
        where: what the errors are about.
        error: the class of the errors.

    Raises:
        OnnxqError: of class ``error``: there is no such file or name, or the file raises.
    """
    if not is_there(path, error) or not path.is_file():
        raise error("the Python file does not exist", where=where)
    module = _run(path, where, error)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise error(f"the file has no function {name!r}", where=where, hint=nearest(name, known, title="it has"))
    return getattr(module, name)


def _run(path: Path, where: str, error: type[OnnxqError]) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_onnxq_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise error("the Python file cannot be loaded", where=where)
    module = importlib.util.module_from_spec(spec)
    try:
        with at_home(str(path.absolute().parent)):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as raised:
        raise error(f"the Python file raised {type(raised).__name__}: {raised}", where=where) from raised
    return module


@contextlib.contextmanager
def at_home(folder: str | None) -> Iterator[None]:
    """The modules in the folder of a user's file can be imported meanwhile, and what is printed goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        if folder is None:
            yield
            return
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)
