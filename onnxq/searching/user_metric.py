"""A user's own measure of a model, ``FILE.py:FUNCTION`` or a function: ``function(run) -> float``, higher is better.

``run(feeds)`` runs the model on a dict of complete arrays by input name and gives a dict of arrays by output name;
``run.path`` is the model as an ONNX file, for code that opens models itself. It is what the target computes: where the
artifact of another target than onnxruntime is no such file, it is a simulation, and onnxruntime is to compute it as it
is written, without graph optimizations (``run.optimize`` is false)::

    def accuracy(run):
        hits = sum(run({"image": image})["logits"].argmax() == label for image, label in test_set())
        return hits / len(test_set())
"""

from __future__ import annotations

import hashlib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.errors import ExecutionError, MetricError, OnnxqError
from onnxq.graph.files.load import load
from onnxq.measuring.as_read import show_as_read
from onnxq.ort.session import Session
from onnxq.user_code import at_home, function_of, split_name

__all__ = ["Metric", "Run", "load_metric"]

_WANTED = "Return a float, higher is better"


class Run:
    """A model for a metric to judge.

    Args:
        path: its ONNX file.
        providers: execution providers of onnxruntime.
        custom_op_library: shared library with the model's custom operators.
        optimize: with onnxruntime's graph optimizations; only for models that onnxruntime is the target of.
        shown: names of tensors inside the model, of its main graph, that it gives besides its outputs.

    Attributes:
        path: the file, for code that opens models itself.
        optimize: as given.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        providers: Sequence[str] | None = None,
        custom_op_library: str | None = None,
        optimize: bool = True,
        shown: Sequence[str] = (),
    ) -> None:
        self.path, self.optimize = os.fspath(path), optimize
        self._providers, self._library = providers, custom_op_library
        self._shown = tuple(shown)
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
            self._session = Session(
                self._source(), optimize=self.optimize, providers=self._providers, custom_op_library=self._library
            )
        return self._session.run(feeds)

    def showing(self, tensors: Sequence[str]) -> Run:
        """The same model, which gives tensors inside it besides its outputs, as their readers see them.

        Args:
            tensors: names, of its main graph.
        """
        return Run(
            self.path,
            providers=self._providers,
            custom_op_library=self._library,
            optimize=self.optimize,
            shown=tensors,
        )

    def _source(self) -> str | ir.Model:
        if not self._shown:
            return self.path
        model = load(self.path)
        show_as_read(model, self._shown)
        missing = set(self._shown) - {value.name for value in model.graph.outputs}
        if missing:
            raise ExecutionError(f"there is no tensor {min(missing)!r} to compare", where=self.path)
        return model


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
            with at_home(self.folder):
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
    where = f"metric {source!r}"
    path, name = split_name(source)
    if not name:
        raise MetricError("is not FILE.py:FUNCTION", where=where, hint="For example 'score.py:accuracy'")
    function = function_of(path, name, where=where, error=MetricError)
    if not callable(function):
        raise MetricError(f"{name!r} is {type(function).__name__}, no function", where=where)
    text, folder = path.read_bytes(), str(path.absolute().parent)
    return Metric(source, hashlib.sha256(text + name.encode()).hexdigest(), function, folder)


def _from_function(function: object) -> Metric:
    if not callable(function):
        raise MetricError(f"{type(function).__name__} is not a function", hint="Give FILE.py:FUNCTION or a function")
    name = str(getattr(function, "__qualname__", type(function).__name__))
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = name
    return Metric(name, hashlib.sha256(text.encode()).hexdigest(), function)


def _number(given: object, where: str) -> float:
    shape = getattr(given, "shape", ())
    if isinstance(given, (bool, str, bytes)) or given is None or len(shape):
        what = f"an array of shape {tuple(shape)}" if len(shape) else repr(given)
        raise MetricError(f"it gave {what}, not a number", where=where, hint=_WANTED)
    try:
        value = float(given)  # type: ignore[arg-type]  # what cannot be converted raises
    except (TypeError, ValueError) as error:
        raise MetricError(f"it gave a {type(given).__name__}, not a number", where=where, hint=_WANTED) from error
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
