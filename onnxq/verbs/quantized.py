"""What is done with a model that is quantized already: ``onnxq deploy``, ``finetune`` and ``verify``."""

from __future__ import annotations

import argparse
import time

import onnxq
from onnxq import views
from onnxq.console.exit_codes import ExitCode
from onnxq.console.terminal import Screen
from onnxq.verbs.answer import Answer, reporter, shows
from onnxq.verbs.refused import refused, those_made
from onnxq.verify import TIMEOUT

__all__ = ["deploy", "finetune", "verify"]


def deploy(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq deploy``."""
    start, error = time.perf_counter(), None
    if len(args.backends) > 1:
        made, error = those_made(
            lambda: onnxq.deploy_all(args.model, backends=args.backends, output=args.output, options=args.options)
        )
        results = list(made.values())
    else:
        (name,) = args.backends
        results = [onnxq.deploy(args.model, backend=name, output=args.output, options=args.options)]
    seconds = time.perf_counter() - start
    if shows(args):
        for result in results:
            views.quantized(screen, args.model, args.output, result, seconds, verbose=args.verbose)
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3)}
    targets = [result.report() for result in results]
    code = ExitCode.OK if error is None else ExitCode.FAILED
    return code, {**document, "targets": targets, **refused(args, error)}


def finetune(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq finetune``."""
    start = time.perf_counter()
    result = onnxq.finetune(
        args.model,
        args.data,
        teacher=args.teacher,
        backend=args.backend,
        output=args.output,
        steps=args.steps,
        minutes=args.minutes,
        batch=args.batch,
        lr=args.lr,
        samples=args.options.samples,
        seed=args.seed,
        image=args.image,
        resume=args.resume,
        device=args.device,
        reporter=reporter(args),
    )
    seconds = time.perf_counter() - start
    if shows(args):
        views.quantized(screen, args.model, args.output, result, seconds, verbose=args.verbose)
        screen.line(f"  {result.notes[-1]}")
    return ExitCode.OK, {"model": args.model, "output": args.output, "seconds": round(seconds, 3), **result.report()}


def verify(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq verify``."""
    found = onnxq.verify(
        args.artifact,
        args.data,
        backend=args.backend,
        samples=args.options.samples,
        image=args.image,
        simulation=args.simulation,
        layers=args.layers,
        timeout=TIMEOUT if args.timeout is None else args.timeout,
        reporter=reporter(args),
    )
    floor = args.options.min_sqnr if args.min_sqnr is None and found.simulated else args.min_sqnr
    faults = found.faults(min_sqnr=floor, max_steps=args.max_steps)
    if shows(args):
        views.agreement(screen, found, faults, verbose=args.verbose)
    return (ExitCode.BELOW if faults else ExitCode.OK), {
        **found.to_dict(),
        "below_floor": bool(faults),
        "faults": faults,
    }
