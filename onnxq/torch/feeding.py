"""What users give as examples and batches, as the arguments of a module's forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from onnxq.errors import DataError, OptionError

__all__ = ["example_of", "fed"]

Tensor = torch.Tensor
Args = tuple[Any, ...]


def example_of(given: Any, module: torch.nn.Module) -> Args:
    """An example as positional arguments of a module's forward; a tensor alone is the only one of them.

    Of a dictionary those in front of and between the given ones have their defaults.

    Raises:
        OptionError: it is neither a tensor nor a tuple, list or dictionary, or forward has no such arguments.
    """
    if isinstance(given, (Tensor, np.ndarray)):
        return (as_tensors(given),)
    if isinstance(given, Mapping):
        return _in_order(given, module)
    if not isinstance(given, (tuple, list)):
        raise OptionError(
            f"an example is a tuple of the inputs, not {type(given).__name__}",
            where="example_inputs",
            hint="Give (images,)",
        )
    return tuple(as_tensors(value) for value in given)


def _in_order(given: Mapping[str, Any], module: torch.nn.Module) -> Args:
    parameters = inspect.signature(module.forward).parameters.values()
    named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    if apart := [str(name) for name in given if name in named]:
        raise OptionError(
            f"{type(module).__name__}.forward takes {apart[0]!r} by keyword alone: inputs of a graph are in order",
            where="example_inputs",
            hint="Prepare a module whose forward takes it in order and calls this one",
        )
    ordered = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = [p.name for p in ordered]
    unknown = [str(name) for name in given if name not in names]
    last = max((k for k, name in enumerate(names) if name in given), default=-1)
    front = ordered[: last + 1]
    missing = [p.name for p in front if p.name not in given and p.default is p.empty]
    if unknown or missing or not given:
        wrong = (
            f"it has no argument {unknown[0]!r}" if unknown else f"there is no {missing[0]!r}" if missing else "empty"
        )
        raise OptionError(
            f"the example does not fit {type(module).__name__}.forward: {wrong}",
            where="example_inputs",
            hint=f"Its arguments are {', '.join(names)}; give a tuple in this order, or those of them by name",
        )
    return tuple(as_tensors(given[p.name]) if p.name in given else p.default for p in front)


def fed(batch: Any, example: Args, device: torch.device) -> tuple[Args, dict[str, Any]]:
    """Positional and keyword arguments that a batch of a loader holds.

    Args:
        batch: a tensor; a tuple or list that begins with the inputs, or with a tuple of them; or a dictionary of
            keyword arguments, or the one input where the example is a dictionary with such keys.
        example: the inputs that the module was prepared with: as many are taken.
        device: where to put them.

    Raises:
        DataError: there are fewer of them.
    """
    own = example[0] if len(example) == 1 and isinstance(example[0], Mapping) else {}
    if isinstance(batch, Mapping) and own.keys().isdisjoint(batch):
        return (), {str(name): as_tensors(value, device) for name, value in batch.items()}
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    wanted, of = len(example), "begins with"
    if parts and isinstance(parts[0], (tuple, list)) and not (example and isinstance(example[0], (tuple, list))):
        parts, of = tuple(parts[0]), "has"
    if len(parts) < wanted or (of == "has" and len(parts) > wanted):
        raise DataError(
            f"a batch {of} {len(parts)} of the inputs, the example that the module was prepared with {wanted}",
            where="calibrate",
            hint="Give batches of as many inputs, followed by labels if need be, or dictionaries of keyword arguments",
        )
    return tuple(as_tensors(value, device) for value in parts[:wanted]), {}


def as_tensors(value: Any, device: torch.device | None = None) -> Any:
    """A structure of lists, tuples and dictionaries with its arrays as tensors, on a device; doubles as float32."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value.astype(np.float32) if value.dtype == np.float64 else value)
    if isinstance(value, Tensor):
        return value if device is None else value.to(device)
    if type(value) in (list, tuple):
        return type(value)(as_tensors(v, device) for v in value)
    if type(value) is dict:
        return {k: as_tensors(v, device) for k, v in value.items()}
    return value
