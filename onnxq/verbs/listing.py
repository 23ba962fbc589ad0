"""What there is: ``onnxq show``, ``backends``, ``algorithms`` and ``demo``."""

from __future__ import annotations

import argparse
import math

import onnxq
from onnxq import views
from onnxq.algorithm_choice import algorithm_named
from onnxq.algorithms.common.parameter_help import parameter_help
from onnxq.backend_choice import backend_named
from onnxq.console.exit_codes import ExitCode
from onnxq.console.terminal import Screen
from onnxq.verbs.answer import Answer, reporter, shows

__all__ = ["algorithms", "backends", "demo", "show"]


def show(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq show``."""
    view = onnxq.show(args.file)
    if shows(args):
        views.shown(screen, view, everything=args.all or args.verbose)
    return ExitCode.OK, view.to_dict()


def backends(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq backends``."""
    found = [backend_named(name) for name in args.names] if args.names else onnxq.backends()
    if shows(args):
        views.backends(screen, found)
    rows = [
        {
            "name": b.name,
            "title": b.title,
            "activation": str(b.activation),
            "weight": str(b.weight),
            "operators": sorted(b.rules),
            "formats": list(b.formats),
            "artifacts": b.artifacts,
            "runtime": b.runtime,
            "next_step": b.next_step,
            "verified": b.verified,
            "unverified": b.unverified,
        }
        for b in found
    ]
    return ExitCode.OK, {"backends": rows}


def algorithms(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq algorithms``."""
    if args.names:
        found = [algorithm_named(name.replace("-", "_")) for name in args.names]
    else:
        found = onnxq.installed_algorithms()
    if shows(args):
        (views.algorithms_in_detail if args.names else views.algorithms)(screen, found)
    rows = [
        {
            "name": a.NAME,
            "title": a.TITLE,
            "stage": a.STAGE,
            "parameters": dict(a.PARAMETERS),
            "help": parameter_help(a),
        }
        for a in found
    ]
    return ExitCode.OK, {"algorithms": rows}


def demo(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq demo``."""
    from onnxq.demo.run import demo as run

    result, quantized = run(args.output, backend=args.backend, reporter=reporter(args))
    if shows(args):
        views.demo(screen, result, quantized)
    sqnr = quantized.verification.worst[1].sqnr if quantized.verification and quantized.verification.worst else math.nan
    return ExitCode.OK, {**result.to_dict(), "sqnr": None if not math.isfinite(sqnr) else sqnr}
