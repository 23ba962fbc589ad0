"""Range methods: a pure function from a tensor's statistics to a range of real numbers, one a file.

A method is a module with a ``NAME`` and ``select(stats, spec, parameter) -> (lo, hi)``, registered under the
entry-point group ``onnxq.ranges``; another package may register its own. The range need not include 0: that is
:func:`onnxq.ranged.from_range`'s job.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

from onnxq import plugins
from onnxq.calibration.statistics import TensorStatistics
from onnxq.errors import OnnxqError, OptionError
from onnxq.spec import QuantSpec, Scheme

__all__ = ["check_range", "select_range"]

_GROUP = "onnxq.ranges"


class _Method(Protocol):
    """A module that is a range method.

    A function ``check(parameter)`` beside ``select`` may refuse a parameter before any work; ``PARAMETER = False`` says
    that there is none, ``UNIFORM = True`` that the method only knows uniform grids.
    """

    def select(self, stats: TensorStatistics, spec: QuantSpec, parameter: float | None) -> tuple[float, float]: ...


def select_range(stats: TensorStatistics, spec: QuantSpec) -> tuple[float, float]:
    """The range that the method named by ``spec.range`` picks for a tensor.

    Args:
        stats: statistics of the tensor; if no finite value was seen the range is ``(0.0, 0.0)``.
        spec: how the tensor is quantized; ``spec.range`` is ``"name"`` or ``"name:parameter"``.

    Returns:
        ``(lo, hi)`` in real units, ``lo <= hi``, both finite.

    Raises:
        OptionError: no such method, a parameter that is not a number or not allowed, a method that breaks its contract,
            or one that does not know the grid.
    """
    method, parameter = _parse(spec.range)
    _require_known(method, spec)
    if not stats.count:
        return 0.0, 0.0
    try:
        lo, hi = method.select(stats, spec, parameter)
        lo, hi = float(lo), float(hi)
    except OnnxqError:
        raise
    except Exception as error:
        raise OptionError(
            f"range method {spec.range!r} failed on tensor {stats.name!r} ({type(error).__name__}: {error})"
        ) from error
    if not (math.isfinite(lo) and math.isfinite(hi) and lo <= hi):
        raise OptionError(f"range method {spec.range!r} gave the range ({lo}, {hi}) for tensor {stats.name!r}")
    return lo, hi


def check_range(text: str, spec: QuantSpec | None = None) -> None:
    """Refuse a range option before any work.

    Args:
        text: ``"name"`` or ``"name:parameter"``.
        spec: of activations, where it is known.

    Raises:
        OptionError: no such method, a parameter that is not a number or not allowed by the method, or a method that
            does not know the grid.
    """
    method, _ = _parse(text)
    if spec is not None:
        _require_known(method, replace(spec, range=text))


def _require_known(method: _Method, spec: QuantSpec) -> None:
    if spec.scheme is not Scheme.UNIFORM and getattr(method, "UNIFORM", False):
        raise OptionError(
            f"range method {spec.range!r} is for uniform grids, this one is {spec.scheme.value}",
            where="range",
            hint="Use minmax or percentile",
        )


def _parse(text: str) -> tuple[_Method, float | None]:
    name, colon, tail = text.partition(":")
    method = plugins.find(_GROUP, name)
    if not callable(getattr(method, "select", None)):
        raise OptionError(f"range method {name!r} has no function `select(stats, spec, parameter)`")
    if not colon:
        return method, None
    try:
        parameter = float(tail)
    except ValueError:
        parameter = math.nan
    if not math.isfinite(parameter):
        raise OptionError(f"the parameter of range {text!r} is not a number", hint="Write for example percentile:99.9")
    if not getattr(method, "PARAMETER", True):
        raise OptionError(f"range method {name!r} takes no parameter")
    if (check := getattr(method, "check", None)) is not None:
        check(parameter)
    return method, parameter
