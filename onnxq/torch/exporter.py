"""A module as ONNX by one of torch's exporters, whatever its caller has turned on around it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch

from onnxq.errors import ModelError
from onnxq.torch.dynamo import Axes, positional, write_by_dynamo
from onnxq.torch.nodes import DOMAIN
from onnxq.torch.own_functions import functions_opened

__all__ = ["in_evaluation", "in_float32", "to_onnx", "uncompiled"]

_LAST_OPSET = 20
"""That torch's TorchScript exporter knows."""


def to_onnx(
    module: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    opset: int,
    of: str,
    dynamo: bool = False,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Axes | None = None,
) -> onnx.ModelProto:
    """A module in evaluation mode as ONNX, its own mode left as it was.

    Args:
        module: to export.
        example_inputs: of its forward.
        opset: of the standard operators; a later one where torch knows an operator of the module in that alone.
        of: name of the user's class, for messages.
        dynamo: by the exporter that stands on torch.export; else by that of TorchScript.
        input_names: of the graph.
        output_names: of the graph.
        dynamic_axes: as ``torch.onnx.export`` takes them.

    Raises:
        ModelError: torch cannot export it.
        OptionError: what the exporter needs is not installed, or an axis is of an input that there is not.
    """
    with (
        in_evaluation(module),
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
        in_float32(),
        _inputs_alone(module, example_inputs) as tensors,
    ):
        warnings.simplefilter("ignore")
        names = {"input_names": input_names, "output_names": output_names}
        given: dict[str, Any] = {key: list(value) for key, value in names.items() if value is not None}
        path = Path(folder) / "model.onnx"
        if dynamo:
            write_by_dynamo(module, tensors, path, opset=opset, of=of, axes=dynamic_axes or {}, names=given)
        else:
            axes = {} if dynamic_axes is None else {"dynamic_axes": dynamic_axes}
            _write_by_torchscript(module, tensors, path, opset=opset, of=of, **axes, **given)
        return onnx.load(path)


def _write_by_torchscript(
    module: torch.nn.Module, example_inputs: tuple[Any, ...], path: Path, *, opset: int, of: str, **names: Any
) -> None:
    given = {"dynamo": False, "custom_opsets": {DOMAIN: 1}, **names}
    try:
        with _unprinted(), functions_opened():
            try:
                torch.onnx.export(module, positional(example_inputs), path, opset_version=opset, **given)
            except torch.onnx.errors.UnsupportedOperatorError:
                torch.onnx.export(module, positional(example_inputs), path, opset_version=_LAST_OPSET, **given)
    except Exception as error:  # torch raises errors of many kinds, and its own on top of a user's
        raise ModelError(
            f"torch cannot export it to ONNX ({type(error).__name__}: {error})",
            where=f"module {of}",
            hint="torch.onnx.export(module, example_inputs, path, dynamo=False) must work on the float module; "
            "dynamo=True takes torch's other exporter",
        ) from error


@contextmanager
def in_evaluation(module: torch.nn.Module) -> Iterator[None]:
    """A module in evaluation mode; each part of it gets its own mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def uncompiled(module: torch.nn.Module) -> Iterator[None]:
    """Without what ``Module.compile`` has set, which no exporter follows."""
    name = "_compiled_call_impl"
    compiled = {part: found for part in module.modules() if (found := getattr(part, name, None)) is not None}
    for part in compiled:
        setattr(part, name, None)
    try:
        yield
    finally:
        for part, found in compiled.items():
            setattr(part, name, found)


@contextmanager
def in_float32() -> Iterator[None]:
    """No gradients, and no autocast, of the caller's or inside a module: what is written computes in float32."""
    enter = torch.autocast.__enter__

    def disabled(self: torch.autocast) -> Any:
        enabled, self._enabled = self._enabled, False
        try:
            return enter(self)
        finally:
            self._enabled = enabled

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        torch.autocast.__enter__ = disabled  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.autocast.__enter__ = enter  # type: ignore[method-assign]


@contextmanager
def _unprinted() -> Iterator[None]:
    """Without torch's log, which goes to the standard output and holds the whole graph where an export fails.

    The exporter turns it on, and leaves it on.
    """
    switch = "_jit_set_onnx_log_enabled"
    turn, is_on = getattr(torch._C, switch, None), getattr(torch._C, "_jit_is_onnx_log_enabled", None)
    if turn is None or is_on is None:
        yield
        return
    before = is_on()
    turn(False)
    setattr(torch._C, switch, lambda on: None)
    try:
        yield
    finally:
        setattr(torch._C, switch, turn)
        turn(before)


@contextmanager
def _inputs_alone(module: torch.nn.Module, example: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Arguments that hold tensors; the others are fixed for a while: torch gives them names of inputs too."""
    places = [k for k, value in enumerate(example) if isinstance(value, (torch.Tensor, list, tuple, dict))]
    if len(places) == len(example):
        yield example
        return
    forward = module.forward

    def filled(*inputs: Any) -> Any:
        args = list(example)
        for place, value in zip(places, inputs, strict=True):
            args[place] = value
        return forward(*args)

    module.forward = filled  # type: ignore[method-assign]
    try:
        yield tuple(example[place] for place in places)
    finally:
        del module.forward
