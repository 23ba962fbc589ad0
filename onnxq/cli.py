"""The command line: parse, call the verb, print, end with a code. Every verb is a function of that name in `onnxq`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from onnxq.arguments.parser import make_parser
from onnxq.arguments.settled import UsageError, settle
from onnxq.console.collector import keep_loaded, seldom_collecting
from onnxq.console.deferred import defer_imports
from onnxq.console.exit_codes import ExitCode
from onnxq.console.records import IN_REPORT
from onnxq.console.signals import Terminated, heed_signals, ignore_signals
from onnxq.console.streams import close_stdout, give_streams, stdout_error
from onnxq.console.terminal import Screen, decibels
from onnxq.errors import OnnxqError
from onnxq.file_system import cause_outside

__all__ = ["main"]

Stop = TypeVar("Stop", bound=KeyboardInterrupt)

_UNSAID = (ExitCode.BELOW, ExitCode.UNMET)
"""Codes of results that are not as they were asked for: --quiet does not keep this to itself."""
_CALM = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Environment for libraries that are loaded later, where the user has set nothing: torch's threads sleep while they
wait. Spinning, they take each other's cores as soon as anything else runs: a finetune of a small net took 6 times the
processor time, and 5 times as long."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments without the program's name; None takes the process's.

    Returns:
        The exit code, see :class:`ExitCode`.
    """
    program, argv = argv is None, sys.argv[1:] if argv is None else argv
    give_streams()
    if program:
        heed_signals()
    for name, value in _CALM.items():
        os.environ.setdefault(name, value)
    defer_imports()
    complaints = Screen(sys.stderr)
    verbose, as_json = False, "--json" in argv  # until the flags are read
    try:
        args = make_parser().parse_args(argv)
        verbose, as_json = args.verbose and not args.quiet, args.json
        with seldom_collecting(), _log_to(complaints, logging.ERROR if args.quiet else logging.WARNING):
            code = _run(args)
        sys.stdout.flush()
    except UsageError as error:
        complaints.error(error)
        code = ExitCode.USAGE
        _document(as_json, error)
    except OnnxqError as error:
        complaints.error(error)
        code = ExitCode.FAILED
        _document(as_json, error)
        _trace(complaints, verbose)
    except KeyboardInterrupt as error:
        code = _interrupted(complaints, error, program=program, as_json=as_json)
    except BrokenPipeError:
        close_stdout()
        code = ExitCode.BROKEN_PIPE
    except Exception as error:
        if _behind(error, KeyboardInterrupt) is not None:
            return _interrupted(complaints, error, program=program, as_json=as_json)
        code = ExitCode.FAILED
        outside = stdout_error(error) or cause_outside(error)
        if outside is not None:
            complaints.error(outside)
            _document(as_json, outside)
            _trace(complaints, verbose)
            return code
        # a bug: a message is kinder than a traceback
        complaints.line(f"onnxq: {complaints.style('internal error', 'bold', 'red')}: {type(error).__name__}: {error}")
        complaints.line("This is a fault of onnxq. Please report it, with what -v prints.")
        _document(as_json, error)
        _trace(complaints, verbose)
    return code


def _interrupted(complaints: Screen, error: BaseException, *, program: bool, as_json: bool) -> int:
    """What is said after Ctrl-C, or a signal like it; a program that ends pays no heed to another."""
    if program:
        ignore_signals()
    ended = _behind(error, Terminated)
    kept = str(error) if isinstance(error, KeyboardInterrupt) else ""
    what = "interrupted" if ended is None else "terminated"
    complaints.line(f"\nonnxq: {what}; nothing half-written is left{kept and f'; {kept}'}")
    _document(as_json, KeyboardInterrupt(what), hint=kept or None)
    return ExitCode.INTERRUPTED if ended is None else ended.code


def _behind(error: BaseException | None, kind: type[Stop]) -> Stop | None:
    """The signal behind an error: libraries make one of their own of Ctrl-C while they are imported."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _document(wanted: bool, error: BaseException, hint: str | None = None) -> None:
    """Print what went wrong where ``--json`` asks for it; the message for people is on stderr as always."""
    if not wanted:
        return
    said = {"kind": type(error).__name__, "what": str(error), "where": None, "hint": hint}
    if isinstance(error, OnnxqError):
        said = error.report()
    with suppress(OSError):
        _print({"error": said})


def _print(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, ensure_ascii=True, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _trace(screen: Screen, verbose: bool) -> None:
    if verbose:
        screen.line(traceback.format_exc())


def _run(args: argparse.Namespace) -> int:
    settle(args)
    from onnxq import verbs  # loads what the flags above need not wait for

    keep_loaded()
    run: Callable[[argparse.Namespace, Screen], tuple[int, dict[str, Any] | None]] = getattr(verbs, args.verb)
    code, document = run(args, Screen(sys.stdout))
    if args.json and document is not None:
        _print(document)
    found = document or {}
    unsaid = code in _UNSAID or found.get("below_floor", False)
    if args.quiet and unsaid and args.verb != "check":  # whose findings are printed all the same
        errors = Screen(sys.stderr)
        errors.line(f"onnxq: {errors.style('warning', 'yellow')}: {_shortfall(args, code, found)}")
    return code


def _shortfall(args: argparse.Namespace, code: int, document: Mapping[str, Any]) -> str:
    """What is not as it was asked for, of a result that ends with another code than 0."""
    if document.get("faults"):
        return "; ".join(document["faults"])
    checks = [part.get("verification") or {} for part in (document, *document.get("targets", ()))]
    told = ((errors["sqnr"], name) for check in checks for name, errors in check.get("outputs", {}).items())
    found = [(float(sqnr), name) for sqnr, name in told if sqnr is not None]  # infinite ones are text in JSON
    low = [pair for pair in found if pair[0] < args.options.min_sqnr]
    if code != ExitCode.UNMET and low and args.verb == "quantize":
        sqnr, name = min(low)
        return f"output {name!r} has {decibels(sqnr)}, below --min-sqnr {args.options.min_sqnr:g}"
    return next(known.meaning for known in ExitCode if known == code)


@contextmanager
def _log_to(screen: Screen, level: int) -> Iterator[None]:
    """Send the library's warnings to stderr, one line each and each once, for as long as the command runs.

    What onnx-ir says of a model stays unsaid: onnxq looks for the same, and says what to do.
    """
    said: set[str] = set()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, IN_REPORT, False):
                return
            if record.getMessage() in said:  # a model is loaded, or data opened, for more than one purpose
                return
            said.add(record.getMessage())
            screen.line(f"{screen.style(record.levelname.lower(), 'yellow')}: {record.getMessage()}")

    logger = logging.getLogger("onnxq")
    before = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:], logger.propagate = [Handler()], False
    logger.setLevel(level)
    reader, silent = logging.getLogger("onnx_ir"), logging.NullHandler()
    reader.addHandler(silent)
    try:
        yield
    finally:
        reader.removeHandler(silent)
        logger.handlers[:], logger.propagate = before[0], before[2]
        logger.setLevel(before[1])
