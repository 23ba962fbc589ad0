"""A module as ONNX by the exporter of torch that stands on torch.export and onnxscript."""

from __future__ import annotations

import importlib.util
import io
import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

import onnxq
from onnxq.errors import ModelError, OptionError

__all__ = ["Axes", "positional", "write_by_dynamo"]

Axes = Mapping[str, Mapping[int, str] | Sequence[int]]
"""Input or output → its axes of any size, with names or without."""
_FIRST_OPSET = 18
"""That this exporter writes."""
_LONGEST = 400
"""Characters of an error of torch that are passed on: whole programs may follow."""
_BY_DATA = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")
"""Errors of torch.export where code asks for the value of a tensor."""


def write_by_dynamo(
    module: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    path: Path,
    *,
    opset: int,
    of: str,
    axes: Axes,
    names: dict[str, Any],
) -> None:
    """Export a module.

    Args:
        module: in evaluation mode; its forward takes any number of inputs.
        example_inputs: of its forward.
        path: of the file.
        opset: of the standard operators; 18 at least.
        of: name of the user's class, for messages.
        axes: of any size; those of outputs follow from those of inputs.
        names: ``input_names``, ``output_names`` of ``torch.onnx.export``.

    Raises:
        ModelError: torch cannot export it.
        OptionError: onnxscript is not installed, torch is too old, or an axis is of an input that there is not.
    """
    _require_installed()
    shapes = _dynamic_shapes(example_inputs, axes, names.get("input_names", []), names.get("output_names", []))
    try:
        with _quiet():
            torch.onnx.export(
                module,
                positional(example_inputs),
                path,
                opset_version=max(opset, _FIRST_OPSET),
                dynamo=True,
                verbose=False,
                dynamic_shapes=shapes,
                **names,
            )
    except Exception as error:  # torch raises errors of many kinds, and its own on top of a user's
        cause = _cause(error)
        by_data = type(cause).__name__ in _BY_DATA
        why = "its code asks for the values of a tensor" if by_data else f"{type(cause).__name__}: {_told(cause)}"
        raise ModelError(
            f"torch.export cannot follow it ({why}{_place(cause)})",
            where=f"module {of}",
            hint="Leave dynamo=True out: torch's other exporter takes the values, and the branch, of the example"
            if by_data
            else "torch.onnx.export(module, example_inputs, path, dynamo=True) must work on the float module; leave "
            "dynamo=True out for torch's other exporter",
        ) from error


def positional(example: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments as torch's exporters take them: a dictionary that is the last holds keyword arguments there."""
    return (*example, {}) if example and isinstance(example[-1], dict) else example


def _cause(error: BaseException) -> BaseException:
    """What went wrong first."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _told(error: BaseException) -> str:
    return " ".join(str(error).split())[:_LONGEST]


def _place(error: BaseException) -> str:
    """The line of the user's code, or of a library, that an error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(Path(onnxq.__file__).parent)]
    outside = [frame for frame in own if not Path(frame.filename).is_relative_to(Path(torch.__file__).parent)]
    return f", at {outside[-1].filename}:{outside[-1].lineno}: {outside[-1].line}" if outside else ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch prints and logs where it tries one way of following a module after the other."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def _require_installed() -> None:
    if importlib.util.find_spec("onnxscript") is None:
        raise OptionError(
            "dynamo=True needs onnxscript, which is not installed",
            hint='pip install "onnxq[torch]", which brings it, or leave dynamo=True out',
        )
    if not hasattr(torch.onnx, "ops"):
        raise OptionError(
            f"dynamo=True needs torch 2.8, this is {torch.__version__}", hint="Update torch, or leave dynamo=True out"
        )


def _dynamic_shapes(example: tuple[Any, ...], axes: Axes, inputs: list[str], outputs: list[str]) -> Any:
    """``dynamic_axes`` in the form of torch.export: a structure like that of the inputs.

    Raises:
        OptionError: an axis is of an input that there is not.
    """
    leaves, structure = _pytree.tree_flatten(example)
    unknown = [name for name in axes if name not in inputs and name not in outputs]
    if unknown:
        raise OptionError(
            f"there is no input {unknown[0]!r}", where="dynamic_axes", hint="Give input_names, a name a tensor"
        )
    given: list[Any] = [None] * len(leaves)
    for k, name in enumerate(inputs[: len(leaves)]):
        wanted = axes.get(name)
        if wanted is not None:
            any_size = torch.export.Dim.DYNAMIC
            given[k] = dict(wanted) if isinstance(wanted, Mapping) else dict.fromkeys(wanted, any_size)
    return (_pytree.tree_unflatten(given, structure),) if any(given) else None
