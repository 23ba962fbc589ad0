"""Results below the floor: where their error arises, and what may be tried."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxq
from onnxq.algorithm_choice import Choice
from onnxq.compare import TensorErrors
from onnxq.errors import OnnxqError
from onnxq.graph.files.save import MAX_PROTO_BYTES
from onnxq.notes.cautions import below
from onnxq.notes.commands import compare_command
from onnxq.notes.hints import ways_out
from onnxq.notes.remedies import Shortfall, ahead, blamed, more_bits, remedies
from onnxq.quantized import Quantized
from onnxq.rewritten import Rewritten

__all__ = ["fields", "said_of_floor", "shortfall", "shortfall_of_whole"]

_SAMPLES, _OF_LARGE = 4, 2
_LARGE = 128 << 20
"""Bytes of a float model from which on fewer samples are looked at: with all tensors shown a run takes several times as
long. Of a diffusion UNet of 333 MB four samples took 47 CPU s, two 28, where calibration with sixteen took 8."""
_NAMED = 5
"""Suspects at most."""
_OTHERS = ("another --range", "more data")


def fields(found: Shortfall | None) -> dict[str, Any]:
    """What ``--json`` says of it."""
    return {"below_floor": found is not None, "suspects": list(found.suspects) if found is not None else []}


def said_of_floor(args: argparse.Namespace, result: Quantized | Rewritten) -> frozenset[str]:
    """The warnings and hints of a result that its shortfall, if it has one, says again: beside it they stay unsaid."""
    worst = result.verification.worst if result.verification else None
    if worst is None or worst[1].sqnr >= args.options.min_sqnr:
        return frozenset()
    (name, errors), options = worst, args.options
    if isinstance(result, Rewritten):
        return frozenset((below(name, errors.sqnr, options.min_sqnr),))
    compare = compare_command(result.backend, options.format)
    return frozenset((below(name, errors.sqnr, options.min_sqnr, compare), *ways_out(result.hints, name, errors.sqnr)))


def shortfall(args: argparse.Namespace, result: Quantized, *, until: float = math.inf) -> Shortfall | None:
    """What is wrong with a result; None where it is not below the floor.

    Args:
        args: the model, its data and the options.
        result: what was made of it.
        until: time of :func:`time.perf_counter` after which suspects are not looked for.
    """
    worst = result.verification.worst if result.verification else None
    if worst is None or worst[1].sqnr >= args.options.min_sqnr:
        return None
    plan, options = result.plan, args.options
    suspects: dict[str, TensorErrors] = {}
    if time.perf_counter() < until:

        def name_of(t: TensorErrors) -> str | None:
            if (before := ahead(result, t)) is not None:
                return before
            name = blamed(plan, t.node, t.tensor)
            return name if t.quantized or name in plan.quantized or name in plan.stored else None

        size = result.verification.float_bytes if result.verification else 0
        suspects = _suspects(args, result, size, name_of)
    flags = next(filter(None, (remedies(result, options, name, t.tensor) for name, t in suspects.items())), [])
    command = compare_command(result.backend, options.format)
    if not flags:
        flags = [f"'{command}' to see where", *more_bits(result, options)]
    others = _OTHERS if any(site.role == "activation" for site in plan.sites) else _OTHERS[1:]
    ways = tuple(ways_out(result.hints, worst[0], worst[1].sqnr).values())
    return Shortfall(worst[0], worst[1].sqnr, options.min_sqnr, suspects, (*flags, *others), ways, command)


def shortfall_of_whole(args: argparse.Namespace, result: Rewritten, whole: Choice) -> Shortfall | None:
    """The same of what an algorithm made that is a pipeline of its own."""
    worst = result.verification.worst
    if worst is None or worst[1].sqnr >= args.options.min_sqnr:
        return None
    suspects: dict[str, TensorErrors] = {}
    if result.verification.float_bytes < MAX_PROTO_BYTES:  # others are made without being loaded whole
        integer = result.quantized.keys()
        suspects = _suspects(
            args,
            result.files[0],
            result.verification.float_bytes,
            lambda t: t.node if t.node in integer else t.tensor if t.quantized else None,
        )
    worst_node = next(iter(suspects), None)
    first = "'onnxq compare' to see where" if worst_node is None else f"--exclude '{worst_node}'"
    tries = (result.wider.get(worst_node or "", first), result.all_wider or f"--algorithm {whole.name} left out")
    return Shortfall(worst[0], worst[1].sqnr, args.options.min_sqnr, suspects, tries)


def _suspects(
    args: argparse.Namespace, result: Quantized | Path, size: int, name_of: Callable[[TensorErrors], str | None]
) -> dict[str, TensorErrors]:
    """Where the error of a bad result arises, on a few samples, by what is to blame; empty if they cannot be had.

    Args:
        args: the model and its data.
        result: what was made of it.
        size: bytes of the float model.
        name_of: tensor → the name of what is to blame for what is lost there; None for none.
    """
    data: Any = args.data
    if args.statistics is not None:
        data = [kept.feeds for kept in onnxq.Statistics.load(args.statistics).kept]
    try:
        found = onnxq.compare(
            args.model,
            result,
            data,
            samples=_SAMPLES if size < _LARGE else _OF_LARGE,
            image=args.image,
            providers=args.options.providers,
            custom_op_library=args.options.custom_op_library,
        )
    except OnnxqError:
        return {}  # the result and its figure stand without it
    suspects: dict[str, TensorErrors] = {}
    for tensor in found.largest_drops(10 * _NAMED):
        name = name_of(tensor)
        if name is not None and len(suspects) < _NAMED:
            suspects.setdefault(name, tensor)
    return suspects
