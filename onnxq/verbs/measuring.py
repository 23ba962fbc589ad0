"""What is found out about a model: ``onnxq calibrate``, ``plan``, ``check``, ``compare`` and ``sensitivity``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import onnxq
from onnxq import views
from onnxq.console.exit_codes import ExitCode
from onnxq.console.terminal import Screen
from onnxq.verbs.answer import Answer, reporter, shows

__all__ = ["calibrate", "check", "compare", "plan", "sensitivity"]


def calibrate(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq calibrate``."""
    start = time.perf_counter()
    made = onnxq.calibrate(
        args.model, args.data, output=args.output, options=args.options, image=args.image, reporter=reporter(args)
    )
    seconds = time.perf_counter() - start
    size = Path(args.output).stat().st_size
    if shows(args):
        views.calibrated(screen, args.model, args.output, made, size, seconds)
    return ExitCode.OK, {
        "model": args.model,
        "output": args.output,
        "file_bytes": size,
        "seconds": round(seconds, 3),
        "samples": made.samples,
        "tensors": len(made.tensors),
        "unobservable": dict(made.unobservable),
        "warnings": made.warnings(),
    }


def plan(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq plan``."""
    made = onnxq.plan(args.model, backend=args.backend, options=args.options)
    if shows(args):
        views.plan(screen, args.model, made, verbose=args.verbose)
    return ExitCode.OK, made.to_dict()


def check(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq check``."""
    findings = onnxq.check(args.model, backend=args.backend, data=args.data, options=args.options, image=args.image)
    if not args.json:
        views.findings(screen, args.model, [f for f in findings if not (args.quiet and f.level == "note")])
    bad = any(f.level != "note" for f in findings)
    return (ExitCode.BELOW if bad else ExitCode.OK), {
        "model": args.model,
        "ok": not bad,
        "findings": [f.to_dict() for f in findings],
    }


def compare(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq compare``."""
    made = onnxq.compare(
        args.reference,
        args.quantized,
        args.data,
        backend=args.backend,
        tensors=not args.outputs_only,
        samples=args.options.samples,
        image=args.image,
        providers=args.options.providers,
        custom_op_library=args.options.custom_op_library,
        reporter=reporter(args),
    )
    if shows(args):
        views.comparison(screen, made, everything=args.all)
    return ExitCode.OK, made.to_dict()


def sensitivity(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq sensitivity``."""
    made = onnxq.sensitivity(
        args.model,
        args.data,
        backend=args.backend,
        bits=args.bits,
        statistics=args.statistics,
        runs=args.runs,
        plot=args.plot,
        options=args.options,
        image=args.image,
        reporter=reporter(args),
    )
    if shows(args):
        views.sensitivity(screen, args.model, args.plot, made, everything=args.all)
    return ExitCode.OK, {"model": args.model, "plot": args.plot, **made.to_dict()}
