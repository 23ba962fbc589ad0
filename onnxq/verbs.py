"""What the command line does for each verb: call the API, show the result, give the exit code and the JSON document."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import onnxq
from onnxq import views
from onnxq.algorithms.choice import Choice
from onnxq.compare import TensorErrors
from onnxq.errors import OnnxqError, OptionError
from onnxq.locations import is_folder
from onnxq.prepare import backend_named
from onnxq.progress import Reporter, make_reporter
from onnxq.quantized import Quantized
from onnxq.rewritten import pipeline_of, samples_of
from onnxq.search import view as search_view
from onnxq.terminal import Screen

__all__ = [
    "algorithms",
    "backends",
    "calibrate",
    "check",
    "compare",
    "demo",
    "deploy",
    "finetune",
    "plan",
    "quantize",
    "sensitivity",
    "show",
    "verify",
]

Answer = tuple[int, dict[str, Any] | None]

_OK, _BELOW, _UNMET = 0, 3, 4
_SUSPECT_SAMPLES = 4
_AGREEMENT = 30.0
"""dB to which a runtime and onnxruntime agree on the same integers."""


def _reporter(args: argparse.Namespace) -> Reporter:
    return make_reporter(quiet=args.quiet)


def _shows(args: argparse.Namespace) -> bool:
    return not (args.json or args.quiet)


def quantize(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq quantize``."""
    if len(args.backends) > 1:
        return _several(args, screen)
    if args.max_drop is not None:
        return _search(args, screen)
    whole = pipeline_of(args.options)
    if whole is not None:
        return _rewrite(args, screen, whole)
    start = time.perf_counter()
    result = onnxq.quantize(
        args.model,
        args.data,
        backend=args.backend,
        output=args.output,
        statistics=args.statistics,
        options=args.options,
        image=args.image,
        reporter=_reporter(args),
    )
    seconds = time.perf_counter() - start
    worst = result.verification.worst if result.verification else None
    below = worst is not None and worst[1].sqnr < args.options.min_sqnr
    suspects = _suspects(args, result) if below else []
    if _shows(args):
        views.quantized(screen, args.model, args.output, result, seconds, verbose=args.verbose)
        if below and worst is not None:
            views.below_floor(screen, worst[0], worst[1].sqnr, args.options.min_sqnr, suspects)
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3), **result.report()}
    document["below_floor"] = below
    document["suspects"] = [t.tensor for t in suspects]
    return (_BELOW if below else _OK), document


def _several(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq quantize`` for several targets."""
    if args.max_drop is not None or pipeline_of(args.options) is not None:
        raise OptionError("takes one --backend", where="quantize --max-drop, or an algorithm of the whole model")
    start = time.perf_counter()
    results = onnxq.quantize_all(
        args.model,
        args.data,
        backends=args.backends,
        output=args.output,
        statistics=args.statistics,
        options=args.options,
        image=args.image,
        reporter=_reporter(args),
    )
    seconds = time.perf_counter() - start
    if _shows(args):
        views.several(screen, args.model, args.output, results, seconds, verbose=args.verbose)
    worst = [r.verification.worst for r in results.values() if r.verification is not None]
    below = any(w is not None and w[1].sqnr < args.options.min_sqnr for w in worst)
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3), "below_floor": below}
    return (_BELOW if below else _OK), {**document, "targets": [result.report() for result in results.values()]}


def deploy(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq deploy``."""
    start = time.perf_counter()
    if len(args.backends) > 1 and not is_folder(args.output):
        raise OptionError(f"'{args.output}' is no folder", where="-o", hint="Several targets need one")
    results = {
        name: onnxq.deploy(args.model, backend=name, output=args.output, options=args.options) for name in args.backends
    }
    seconds = time.perf_counter() - start
    if _shows(args):
        for result in results.values():
            views.quantized(screen, args.model, args.output, result, seconds, verbose=args.verbose)
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3)}
    return _OK, {**document, "targets": [result.report() for result in results.values()]}


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
        reporter=_reporter(args),
    )
    seconds = time.perf_counter() - start
    if _shows(args):
        views.quantized(screen, args.model, args.output, result, seconds, verbose=args.verbose)
        screen.line(f"  {result.notes[-1]}")
    return _OK, {"model": args.model, "output": args.output, "seconds": round(seconds, 3), **result.report()}


def verify(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq verify``."""
    found = onnxq.verify(
        args.artifact,
        args.data,
        backend=args.backend,
        samples=args.options.samples,
        image=args.image,
        simulation=args.simulation,
        timeout=args.timeout,
        reporter=_reporter(args),
    )
    if _shows(args):
        views.agreement(screen, found, verbose=args.verbose)
    floor = args.min_sqnr if args.min_sqnr is not None else args.options.min_sqnr if found.simulated else _AGREEMENT
    below = found.worst is not None and found.worst[1].sqnr < floor
    return (_BELOW if below else _OK), {**found.to_dict(), "below_floor": below}


def _rewrite(args: argparse.Namespace, screen: Screen, whole: Choice) -> Answer:
    """``onnxq quantize --algorithm`` with an algorithm that is a pipeline of its own."""
    start = time.perf_counter()
    result = whole.algorithm.rewrite(
        args.model,
        samples_of(args.data, args.statistics),
        output=args.output,
        options=args.options,
        image=args.image,
        reporter=_reporter(args),
        **whole.parameters,
    )
    seconds = time.perf_counter() - start
    worst = result.verification.worst
    below = worst is not None and worst[1].sqnr < args.options.min_sqnr
    if _shows(args):
        views.rewritten(screen, args.model, args.output, result, seconds, verbose=args.verbose)
        if below and worst is not None:
            views.below_floor(screen, worst[0], worst[1].sqnr, args.options.min_sqnr, [])
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3), **result.report()}
    return (_BELOW if below else _OK), {**document, "below_floor": below}


def _search(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq quantize --max-drop``."""
    start = time.perf_counter()
    errors = Screen(sys.stderr)
    found = onnxq.search(
        args.model,
        args.data,
        output=args.output,
        max_drop=args.max_drop,
        metric=args.metric,
        eval_data=args.eval_data,
        backend=args.backend,
        statistics=args.statistics,
        options=args.options,
        image=args.image,
        folder=args.resume_dir,
        max_minutes=args.max_minutes,
        reporter=_reporter(args),
        tell=None if args.quiet else lambda attempt: search_view.attempt(errors, attempt),
    )
    seconds = time.perf_counter() - start
    if _shows(args):
        search_view.searched(screen, args.model, args.output, found, seconds)
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3), **found.to_dict()}
    return (_OK if found.met else _UNMET), document


def _suspects(args: argparse.Namespace, result: Quantized) -> list[TensorErrors]:
    """Where the error of a bad result arises, on a few samples; empty if they cannot be had."""
    data: Any = args.data
    if args.statistics is not None:
        data = [kept.feeds for kept in onnxq.Statistics.load(args.statistics).kept]
    try:
        found = onnxq.compare(
            args.model,
            result,
            data,
            samples=_SUSPECT_SAMPLES,
            image=args.image,
            providers=args.options.providers,
            custom_op_library=args.options.custom_op_library,
        )
    except OnnxqError:
        return []  # the result and its figure stand without it
    integer = {*result.plan.quantized, *result.plan.absorbed}
    return [t for t in found.largest_drops(50) if t.quantized or t.node in integer][:5]


def calibrate(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq calibrate``."""
    start = time.perf_counter()
    made = onnxq.calibrate(
        args.model, args.data, output=args.output, options=args.options, image=args.image, reporter=_reporter(args)
    )
    seconds = time.perf_counter() - start
    size = Path(args.output).stat().st_size
    if _shows(args):
        views.calibrated(screen, args.model, args.output, made, size, seconds)
    return _OK, {
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
    if _shows(args):
        views.plan(screen, args.model, made, verbose=args.verbose)
    return _OK, made.to_dict()


def check(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq check``."""
    findings = onnxq.check(args.model, backend=args.backend, data=args.data, options=args.options, image=args.image)
    if not args.json:
        views.findings(screen, args.model, [f for f in findings if not (args.quiet and f.level == "note")])
    bad = any(f.level != "note" for f in findings)
    return (_BELOW if bad else _OK), {"model": args.model, "ok": not bad, "findings": [f.to_dict() for f in findings]}


def compare(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq compare``."""
    made = onnxq.compare(
        args.reference,
        args.quantized,
        args.data,
        tensors=not args.outputs_only,
        samples=args.options.samples,
        image=args.image,
        providers=args.options.providers,
        custom_op_library=args.options.custom_op_library,
        reporter=_reporter(args),
    )
    if _shows(args):
        views.comparison(screen, made, everything=args.all)
    return _OK, made.to_dict()


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
        reporter=_reporter(args),
    )
    if _shows(args):
        views.sensitivity(screen, args.model, args.plot, made, everything=args.all)
    return _OK, {"model": args.model, "plot": args.plot, **made.to_dict()}


def show(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq show``."""
    view = onnxq.show(args.file)
    if _shows(args):
        views.shown(screen, view, everything=args.all or args.verbose)
    return _OK, view.to_dict()


def backends(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq backends``."""
    found = [backend_named(name) for name in args.names] if args.names else onnxq.backends()
    if _shows(args):
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
    return _OK, {"backends": rows}


def algorithms(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq algorithms``."""
    found = onnxq.installed_algorithms()
    if _shows(args):
        views.algorithms(screen, found)
    rows = [{"name": a.NAME, "title": a.TITLE, "stage": a.STAGE, "parameters": dict(a.PARAMETERS)} for a in found]
    return _OK, {"algorithms": rows}


def demo(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq demo``."""
    from onnxq.demo.run import demo as run

    result, quantized = run(args.output, backend=args.backend, reporter=_reporter(args))
    if _shows(args):
        views.demo(screen, result, quantized)
    sqnr = quantized.verification.worst[1].sqnr if quantized.verification and quantized.verification.worst else math.nan
    return _OK, {**result.to_dict(), "sqnr": None if not math.isfinite(sqnr) else sqnr}
