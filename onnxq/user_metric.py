"""A user's own measure of a model, ``FILE.py:FUNCTION`` or a function: ``function(run) -> float``, higher is better.

``run(feeds)`` runs the model on a dict of complete arrays by input name and gives a dict of arrays by output name;
``run.path`` is the model as an ONNX file, for code that opens models itself::

    def accuracy(run):
        hits = sum(run({"image": image})["logits"].argmax() == label for image, label in test_set())
        return hits / len(test_set())
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from onnxq.errors import MetricError, OnnxqError
from onnxq.session import Session
from onnxq.suggest import nearest

__all__ = ["Metric", "Run", "load_metric"]


class Run:
    """A model for a metric to judge.

    Args:
        path: its ONNX file.
        providers: execution providers of onnxruntime.
        custom_op_library: shared library with the model's custom operators.

    Attributes:
        path: the file, for code that opens models itself.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        providers: Sequence[str] | None = None,
        custom_op_library: str | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self._providers, self._library = providers, custom_op_library
        self._session: Session | None = None

    def __call__(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the model once.

        Args:
            feeds: input name → complete array, batch dimension included, of the input's type.

        Returns:
            Output name → array.

        Raises:
            ExecutionError: onnxruntime cannot load the model, or refuses the feeds.
        """
        if self._session is None:  # a metric may want the path alone
            self._session = Session(self.path, providers=self._providers, custom_op_library=self._library)
        return self._session.run(feeds)


@dataclass(frozen=True)
class Metric:
    """A measure of a model; higher is better.

    Attributes:
        name: as the user wrote it.
        digest: changes with the source of the function.
        function: what is called.
        folder: where the function's file lies, for its own imports.
        about: what is measured, where that is not the user's own.
        baseline: what the float model has by definition; None where it must be measured.
    """

    name: str
    digest: str
    function: Callable[[Run], object]
    folder: str | None = None
    about: str = ""
    baseline: float | None = None

    def __call__(self, run: Run, what: str) -> float:
        """The model's value.

        Args:
            run: the model.
            what: which one it is, for messages.

        Raises:
            MetricError: the function raises, or gives no finite number.
        """
        where = f"metric {self.name!r}, {what}"
        try:
            # What a metric prints must not mix with the command line's own output.
            with _importable(self.folder), contextlib.redirect_stdout(sys.stderr):
                given = self.function(run)
        except (Exception, SystemExit) as error:
            said = f"it raised {type(error).__name__}: {error}".rstrip(": ")
            raise MetricError(said, where=where, hint=_place(error, self.folder)) from error
        return _number(given, where)


def load_metric(source: str | Callable[[Run], object]) -> Metric:
    """Find a metric.

    Args:
        source: ``"FILE.py:FUNCTION"``, or the function.

    Raises:
        MetricError: there is no such file or function, or the file raises.
    """
    if not isinstance(source, str):
        return _from_function(source)
    file, colon, name = source.rpartition(":")
    where = f"metric {source!r}"
    if not colon or not file.endswith(".py") or not name:
        raise MetricError("is not FILE.py:FUNCTION", where=where, hint="For example 'score.py:accuracy'")
    path = Path(file)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise MetricError(f"the file cannot be read ({error.strerror or error})", where=where) from error
    folder = str(path.absolute().parent)
    spec = importlib.util.spec_from_file_location(f"_onnxq_metric_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise MetricError("the file cannot be loaded", where=where)
    module = importlib.util.module_from_spec(spec)
    try:
        with _importable(folder), contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise MetricError(f"the file raised {type(error).__name__}: {error}", where=where) from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise MetricError(f"the file has no function {name!r}", where=where, hint=nearest(name, known, title="it has"))
    return Metric(source, hashlib.sha256(text + name.encode()).hexdigest(), function, folder)


def _from_function(function: object) -> Metric:
    if not callable(function):
        raise MetricError(f"{type(function).__name__} is no function", hint="Give FILE.py:FUNCTION or a function")
    name = str(getattr(function, "__qualname__", type(function).__name__))
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = name
    return Metric(name, hashlib.sha256(text.encode()).hexdigest(), function)


@contextlib.contextmanager
def _importable(folder: str | None) -> Iterator[None]:
    """The modules beside the file can be imported meanwhile."""
    if folder is None:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _number(given: object, where: str) -> float:
    shape = getattr(given, "shape", ())
    if isinstance(given, (bool, str, bytes)) or given is None or len(shape):
        what = f"an array of shape {tuple(shape)}" if len(shape) else repr(given)
        raise MetricError(f"it gave {what}, not a number", where=where, hint="Return a float, higher is better")
    try:
        value = float(given)  # type: ignore[arg-type]  # what cannot be converted raises
    except (TypeError, ValueError) as error:
        raise MetricError(f"it gave {type(given).__name__}, not a number", where=where) from error
    if not math.isfinite(value):
        raise MetricError(f"it gave {value}, not a finite number", where=where)
    return value


def _place(error: BaseException, folder: str | None) -> str | None:
    """The last line of the user's own code that an error passed through."""
    if isinstance(error, OnnxqError) and folder is None:
        return None
    trace, last = error.__traceback__, None
    while trace is not None:
        if folder is not None and os.path.dirname(os.path.abspath(trace.tb_frame.f_code.co_filename)) == folder:
            last = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return f"At {last}" if last else None
