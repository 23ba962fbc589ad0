"""``onnxq quantize``, in all its ways: one target or several, an algorithm of the whole model, a search."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import Any

import onnxq
from onnxq import views
from onnxq.algorithm_choice import Choice, whole_model
from onnxq.console.exit_codes import ExitCode
from onnxq.console.terminal import Screen
from onnxq.errors import OptionError
from onnxq.locations import artifact_path, made_folder, require_output
from onnxq.rewritten import require_home, samples_of
from onnxq.searching import view as search_view
from onnxq.verbs.answer import Answer, reporter, shows
from onnxq.verbs.refused import refused, those_made
from onnxq.verbs.shortfall import fields, said_of_floor, shortfall, shortfall_of_whole

__all__ = ["quantize"]

_SUSPECT_SECONDS = 30.0
"""After which it is no more looked for where results of further targets are bad."""


def quantize(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq quantize``."""
    if len(args.backends) > 1:
        return _several(args, screen)
    if args.max_drop is not None:
        return _search(args, screen)
    whole = whole_model(args.options.algorithms)
    if whole is not None:
        return _rewrite(args, screen, whole)
    start = time.perf_counter()
    result = onnxq.quantize(args.model, args.data, backend=args.backend, **_asked(args))
    seconds = time.perf_counter() - start
    below = shortfall(args, result)
    if shows(args):
        unsaid = said_of_floor(args, result)
        views.quantized(screen, args.model, args.output, result, seconds, verbose=args.verbose, unsaid=unsaid)
        if below is not None:
            tries = ["what the hint above says"] if set(result.hints) - unsaid else []
            views.below_floor(screen, replace(below, tries=(*tries, *below.tries)))
    return (ExitCode.BELOW if below else ExitCode.OK), _document(args, seconds, **result.report(), **fields(below))


def _several(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq quantize`` for several targets."""
    if (whole := whole_model(args.options.algorithms)) is not None:
        raise OptionError("takes one --backend", where=f"--algorithm {whole.name}")
    start = time.perf_counter()
    results, error = those_made(
        lambda: onnxq.quantize_all(args.model, args.data, backends=args.backends, **_asked(args))
    )
    seconds = time.perf_counter() - start
    if shows(args):
        unsaid = {name: said_of_floor(args, result) for name, result in results.items()}
        views.several(screen, args.model, args.output, results, seconds, verbose=args.verbose, unsaid=unsaid)
    until = time.perf_counter() + _SUSPECT_SECONDS
    found = {name: shortfall(args, result, until=until) for name, result in results.items()}
    for name, below in found.items():
        if below is not None and shows(args):
            views.below_floor(screen, below, of=name)
    bad = any(found.values())
    targets = [{**result.report(), **fields(found[name])} for name, result in results.items()]
    code = ExitCode.FAILED if error is not None else ExitCode.BELOW if bad else ExitCode.OK
    return code, _document(args, seconds, below_floor=bad, targets=targets, **refused(args, error))


def _rewrite(args: argparse.Namespace, screen: Screen, whole: Choice) -> Answer:
    """``onnxq quantize --algorithm`` with an algorithm that is a pipeline of its own."""
    home = require_home(args.backend, whole)
    start = time.perf_counter()
    require_output(args.output)
    path = artifact_path(args.output, args.model, home)
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
    below = shortfall_of_whole(args, result, whole)
    if shows(args):
        unsaid = said_of_floor(args, result)
        views.rewritten(screen, args.model, args.output, result, seconds, verbose=args.verbose, unsaid=unsaid)
        if below is not None:
            views.below_floor(screen, below)
    return (ExitCode.BELOW if below else ExitCode.OK), _document(args, seconds, **result.report(), **fields(below))


def _search(args: argparse.Namespace, screen: Screen) -> Answer:
    """``onnxq quantize --max-drop``."""
    start = time.perf_counter()
    errors = Screen(sys.stderr)
    found = onnxq.search(
        args.model,
        args.data,
        max_drop=args.max_drop,
        metric=args.metric,
        eval_data=args.eval_data,
        backend=args.backend,
        folder=args.resume_dir,
        tell=None if args.quiet else lambda attempt: search_view.attempt(errors, attempt, args.max_drop),
        **_asked(args),
    )
    seconds = time.perf_counter() - start
    if shows(args):
        search_view.searched(screen, args.model, args.output, found, seconds)
    return (ExitCode.OK if found.met else ExitCode.UNMET), _document(args, seconds, **found.to_dict())


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that making a model takes for one target, for several and in a search."""
    names = ("output", "statistics", "options", "image", "max_minutes")
    return {name: getattr(args, name) for name in names} | {"reporter": reporter(args)}


def _document(args: argparse.Namespace, seconds: float, **more: Any) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {"model": args.model, "output": args.output, "seconds": round(seconds, 3), **more}
