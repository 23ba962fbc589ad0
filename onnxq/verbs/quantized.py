"""What is done with a model that is quantized already: ``onnxq deploy``, ``finetune`` and ``verify``."""

from __future__ import annotations

import argparse
import time

import onnxq
from onnxq import plugins, views
from onnxq.console.exit_codes import ExitCode
from onnxq.console.terminal import Screen
from onnxq.errors import OptionError
from onnxq.locations import artifact_path, is_folder, require_output, spare
from onnxq.prepare import backend_named
from onnxq.quantized import Quantized
from onnxq.runtimes.runtime import Runtime
from onnxq.several import for_each_target
from onnxq.verbs.answer import Answer, reporter, shows

__all__ = ["deploy", "finetune", "verify"]

_AGREEMENT = 30.0
"""dB to which a runtime and onnxruntime agree on the same integers."""


def deploy(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq deploy``."""
    start = time.perf_counter()
    several = len(args.backends) > 1
    if several and not is_folder(args.output, several=True):
        raise OptionError(f"'{args.output}' is not a folder", where="-o", hint="Several targets need one")
    require_output(args.output, several=several)
    paths = {name: artifact_path(args.output, args.model, name, several=several) for name in args.backends}

    def deployed(name: str) -> Quantized:
        form = backend_named(name).format_named(args.options.format)
        spare(beside=form.sidecars(paths[name]), model=args.model)
        return onnxq.deploy(args.model, backend=name, options=args.options)

    made = for_each_target(args.backends, args.backends, deployed)
    results = [result.written(path) for result, path in zip(made, paths.values(), strict=True)]
    seconds = time.perf_counter() - start
    if shows(args):
        for result in results:
            views.quantized(screen, args.model, args.output, result, seconds, verbose=args.verbose)
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3)}
    return ExitCode.OK, {**document, "targets": [result.report() for result in results]}


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
        timeout=args.timeout,
        reporter=reporter(args),
    )
    if shows(args):
        views.agreement(screen, found, verbose=args.verbose)
    floor = args.min_sqnr
    if floor is None and not found.layers:
        floor = args.options.min_sqnr if found.simulated else _AGREEMENT
    below = floor is not None and found.worst is not None and found.worst[1].sqnr < floor
    below |= any(layer.steps > _most_steps(args) for layer in found.layers) or found.layers_missing is not None
    below |= not found.simulated and any(errors.reshaped for errors in found.outputs.values())
    return (ExitCode.BELOW if below else ExitCode.OK), {**found.to_dict(), "below_floor": below}


def _most_steps(args: argparse.Namespace) -> int:
    """How far an integer of a layer may be off: what was asked for, else what is known of the runtime."""
    if args.max_steps is not None:
        return int(args.max_steps)
    runtime: Runtime = plugins.find("onnxq.runtimes", backend_named(args.backend).runtime or "")
    return runtime.steps
