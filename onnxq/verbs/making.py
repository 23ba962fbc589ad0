"""``onnxq quantize``, in all its ways: one target or several, an algorithm of the whole model, a search."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import onnxq
from onnxq import views
from onnxq.algorithms.choice import Choice
from onnxq.compare import TensorErrors
from onnxq.console.exit_codes import ExitCode
from onnxq.console.terminal import Screen
from onnxq.errors import OnnxqError, OptionError
from onnxq.graph.files.save import MAX_PROTO_BYTES
from onnxq.locations import artifact_path, made_folder, require_output
from onnxq.quantized import Quantized
from onnxq.rewritten import HOME, pipeline_of, require_home, samples_of
from onnxq.search import view as search_view
from onnxq.verbs.answer import Answer, reporter, shows

__all__ = ["quantize"]

_SUSPECT_SAMPLES = 4


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
        reporter=reporter(args),
    )
    seconds = time.perf_counter() - start
    worst = result.verification.worst if result.verification else None
    below = worst is not None and worst[1].sqnr < args.options.min_sqnr
    suspects = _suspects(args, result, {*result.plan.quantized, *result.plan.absorbed}) if below else {}
    if shows(args):
        views.quantized(screen, args.model, args.output, result, seconds, verbose=args.verbose)
        if below and worst is not None:
            tries = ["what the hint above says"] if result.hints else []
            views.below_floor(screen, worst[0], worst[1].sqnr, args.options.min_sqnr, suspects, tries=tries)
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3), **result.report()}
    document["below_floor"] = below
    document["suspects"] = [t.tensor for t in suspects.values()]
    return (ExitCode.BELOW if below else ExitCode.OK), document


def _suspects(
    args: argparse.Namespace, result: Quantized | Path, integer: Collection[str | None]
) -> dict[str, TensorErrors]:
    """Where the error of a bad result arises, on a few samples, by what to exclude; empty if they cannot be had.

    That is the node, or the tensor where its node is float and the quantizer behind it a reader's.

    Args:
        args: the model and its data.
        result: what was made of it.
        integer: names of nodes that run in integers.
    """
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
        return {}  # the result and its figure stand without it
    lost = [t for t in found.largest_drops(50) if t.quantized or t.node in integer]
    return {t.node if t.node and t.node in integer else t.tensor: t for t in lost[:5]}


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
        reporter=reporter(args),
    )
    seconds = time.perf_counter() - start
    if shows(args):
        views.several(screen, args.model, args.output, results, seconds, verbose=args.verbose)
    worst = [r.verification.worst for r in results.values() if r.verification is not None]
    below = any(w is not None and w[1].sqnr < args.options.min_sqnr for w in worst)
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3), "below_floor": below}
    return (ExitCode.BELOW if below else ExitCode.OK), {
        **document,
        "targets": [result.report() for result in results.values()],
    }


def _rewrite(args: argparse.Namespace, screen: Screen, whole: Choice) -> Answer:
    """``onnxq quantize --algorithm`` with an algorithm that is a pipeline of its own."""
    require_home(args.backend, whole)
    start = time.perf_counter()
    require_output(args.output)
    path = artifact_path(args.output, args.model, HOME)
    with made_folder(path):
        result = whole.algorithm.rewrite(
            args.model,
            samples_of(args.data, args.statistics, args.image),
            output=path,
            options=args.options,
            image=args.image,
            reporter=reporter(args),
            **whole.parameters,
        )
    seconds = time.perf_counter() - start
    worst = result.verification.worst
    below = worst is not None and worst[1].sqnr < args.options.min_sqnr
    cheap = result.verification.float_bytes < MAX_PROTO_BYTES  # others are made without being loaded whole
    suspects = _suspects(args, result.files[0], result.quantized.keys()) if below and cheap else {}
    if shows(args):
        views.rewritten(screen, args.model, args.output, result, seconds, verbose=args.verbose)
        if below and worst is not None:
            views.below_floor(screen, worst[0], worst[1].sqnr, args.options.min_sqnr, suspects, whole=whole.name)
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3), **result.report()}
    document["below_floor"] = below
    document["suspects"] = [t.tensor for t in suspects.values()]
    return (ExitCode.BELOW if below else ExitCode.OK), document


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
        reporter=reporter(args),
        tell=None if args.quiet else lambda attempt: search_view.attempt(errors, attempt),
    )
    seconds = time.perf_counter() - start
    if shows(args):
        search_view.searched(screen, args.model, args.output, found, seconds)
    document = {"model": args.model, "output": args.output, "seconds": round(seconds, 3), **found.to_dict()}
    return (ExitCode.OK if found.met else ExitCode.UNMET), document
