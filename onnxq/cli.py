"""The command line: parse, call the API, print. Every verb is a function of the same name in `onnxq`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onnxq import __version__
from onnxq.config import Config
from onnxq.errors import OnnxqError, OptionError
from onnxq.options import EFFORTS, PLACEMENTS, ImageOptions, Options
from onnxq.terminal import Screen

__all__ = ["main"]

OK, FAILED, USAGE, BELOW, UNMET, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 130, 141

_EPILOG = """\
DATA is a .npz file (an array per input, first axis = samples), a .npy file (one input), a folder of .npz files (a
file per sample), of .npy files or of pictures, or FILE.py:FUNCTION that gives an iterable of feeds.

exit codes:
  0    done
  1    an error: the message says what, where and what to do (-v adds the traceback)
  2    wrong usage
  3    quantize, verify: the result is below --min-sqnr; check: something was found
  4    quantize --max-drop: nothing tried meets the target; the best was written
  130  interrupted
  141  the reader of the output went away
"""


_SEARCH = ("max_drop", "metric", "eval_data", "resume_dir", "max_minutes")
_NUMBERS = ("max_drop", "max_minutes")
_SEVERAL = ("quantize", "deploy")
"""Verbs that take several targets."""
_PLACEMENT = "auto: what runs faster (default); all: whatever can be; compute: convolutions and matrix products"
_EFFORT = "fast: ranges only; default; best: minutes, algorithms are tried and kept where they are better"
_FORMAT = "one of the target's formats (see 'onnxq backends'); fake-quantize: float arithmetic on rounded values"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments without the program's name; None takes the process's.

    Returns:
        The exit code, see the epilog of ``--help``.
    """
    args = _parser().parse_args(argv)  # exits with 2
    verbose = args.verbose and not args.quiet
    complaints = Screen(sys.stderr)
    try:
        with _log_to(complaints, logging.ERROR if args.quiet else logging.WARNING):
            code = _run(args)
        sys.stdout.flush()
    except _UsageError as error:
        complaints.line(f"onnxq: {complaints.style('error', 'bold', 'red')}: {error}")
        code = USAGE
    except OnnxqError as error:
        complaints.line(f"onnxq: {complaints.style('error', 'bold', 'red')}: {error}")
        code = FAILED
        _trace(complaints, verbose)
    except KeyboardInterrupt:
        complaints.line("\nonnxq: interrupted; nothing half-written is left")
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that closing it is quiet
        code = BROKEN_PIPE
    except Exception as error:  # a bug: a message is kinder than a traceback
        complaints.line(f"onnxq: {complaints.style('internal error', 'bold', 'red')}: {type(error).__name__}: {error}")
        complaints.line("This is a fault of onnxq. Please report it, with what -v prints.")
        code = FAILED
        _trace(complaints, verbose)
    return code


class _UsageError(Exception):
    """The flags make no sense; exit code 2."""


def _trace(screen: Screen, verbose: bool) -> None:
    if verbose:
        screen.line(traceback.format_exc())


def _run(args: argparse.Namespace) -> int:
    from onnxq import verbs  # knows what to call and how to show it

    _settle(args)
    run: Callable[[argparse.Namespace, Screen], tuple[int, dict[str, Any] | None]] = getattr(verbs, args.verb)
    code, document = run(args, Screen(sys.stdout))
    if args.json and document is not None:
        json.dump(document, sys.stdout, ensure_ascii=True, allow_nan=False)
        sys.stdout.write("\n")
    return code


@contextmanager
def _log_to(screen: Screen, level: int) -> Iterator[None]:
    """Send the library's warnings to stderr, one line each, for as long as the command runs."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            screen.line(f"{screen.style(record.levelname.lower(), 'yellow')}: {record.getMessage()}")

    logger = logging.getLogger("onnxq")
    before = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:], logger.propagate = [Handler()], False
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


# -- flags


def _settle(args: argparse.Namespace) -> None:
    """Join flags and configuration file (flags win) into ``args.options``, ``args.image`` and the rest.

    Raises:
        _UsageError: a flag has a wrong value, or one that is needed is missing.
    """
    run_keys = [key for key in ("model", "data", "output", "statistics", "backend", *_SEARCH) if hasattr(args, key)]
    config = Config.read(args.config, run_keys=run_keys) if getattr(args, "config", None) else Config()
    for key in run_keys:
        if getattr(args, key) is None and key in config.run:
            value = config.run[key]
            kind: Any = (int, float) if key in _NUMBERS else str
            word = "number" if key in _NUMBERS else "string"
            if key == "backend" and args.verb in _SEVERAL:
                kind, word = (str, list), "string or a list of them"
            if not isinstance(value, kind) or isinstance(value, bool):
                raise OptionError(f"{value!r} is not a {word}", where=f"config file {args.config!r}, {key}")
            setattr(args, key, value)
    if hasattr(args, "backend"):
        _settle_backend(args)
    needed = {"model": "MODEL", "output": "-o OUT", "data": "--data DATA"}
    optional = {"plan": {"data"}, "check": {"data"}, "verify": {"data"}}
    if args.verb == "quantize" and _decides_alone(args.opt_algorithms or config.options.get("algorithms")):
        optional["quantize"] = {"data"}
    if args.__dict__.get("statistics"):
        optional |= {"quantize": {"data"}, "sensitivity": {"data"}}
    for key, flag in needed.items():
        if hasattr(args, key) and getattr(args, key) is None and key not in optional.get(args.verb, set()):
            if key == "output" and args.verb == "demo":
                continue
            raise _UsageError(f"{flag} is missing (onnxq {args.verb} --help)")
    _spare_inputs(args)
    lone = [key for key in _SEARCH if getattr(args, key, None) is not None] if args.verb == "quantize" else []
    if lone and args.max_drop is None:
        raise _UsageError(f"--{lone[0].replace('_', '-')} needs --max-drop")
    given = {key.removeprefix("opt_"): v for key, v in vars(args).items() if key.startswith("opt_") and v is not None}
    image = {
        key.removeprefix("image_"): v for key, v in vars(args).items() if key.startswith("image_") and v is not None
    }
    try:
        Options(**given), ImageOptions(**image)
    except OptionError as error:
        raise _UsageError(str(error)) from error
    args.options = Options(**{**config.options, **given})
    args.image = ImageOptions(**{**config.image, **image})


def _settle_backend(args: argparse.Namespace) -> None:
    """One target's name in ``args.backend``; several, where a verb takes them, in ``args.backends``."""
    several = args.verb in _SEVERAL
    given = [args.backend] if isinstance(args.backend, str) else args.backend or ["onnxruntime"]
    if not all(isinstance(name, str) for name in given):
        raise OptionError(f"{given!r} is not a list of names", where="backend")
    if not several and len(given) > 1:
        raise _UsageError(f"onnxq {args.verb} takes one --backend")
    args.backend, args.backends = given[0], list(dict.fromkeys(given))


def _decides_alone(algorithms: Any) -> bool:
    """Whether the algorithm asked for is a pipeline of its own, which says itself whether it needs data."""
    if not isinstance(algorithms, (list, tuple)) or len(algorithms) != 1 or not isinstance(algorithms[0], str):
        return False
    from onnxq.algorithms.choice import whole_model

    return whole_model(algorithms) is not None


def _spare_inputs(args: argparse.Namespace) -> None:
    """Refuse to write the result over what it is made from.

    Raises:
        _UsageError: the output is the model, the data, the statistics or the configuration file.
    """
    output = getattr(args, "output", None)
    for key in ("model", "data", "statistics", "eval_data", "config"):
        path = getattr(args, key, None)
        if output and path and os.path.isfile(output) and os.path.isfile(path) and os.path.samefile(output, path):
            raise _UsageError(f"-o {output} would overwrite the {key}; give another name")


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _words(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="onnxq",
        description="Quantize an ONNX model for the chip it will run on.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"onnxq {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
        made.add_argument("--json", action="store_true", help="print one JSON object, nothing else, on stdout")
        made.add_argument(
            "-v", "--verbose", action="store_true", help="say more: notes of passes, every node, tracebacks"
        )
        made.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
        return made

    quantize = verb("quantize", "quantize a float model: the main job")
    _model(quantize)
    _data(quantize)
    quantize.add_argument("--statistics", metavar="STATS", help="what 'onnxq calibrate' wrote, instead of data")
    quantize.add_argument("-o", "--output", metavar="OUT", help="where to write the result, a file or a folder")
    _backend(quantize)
    _options(quantize)
    _search(quantize)
    _runtime(quantize)

    deploy = verb("deploy", "write a model that is quantized already, by training or another tool, for a target")
    deploy.add_argument("model", metavar="MODEL", help="a .onnx model with QDQ pairs or onnxq::FakeQuantize functions")
    deploy.add_argument("-o", "--output", metavar="OUT", help="where to write the result, a file or a folder")
    _backend(deploy)
    deploy.add_argument("--format", dest="opt_format", metavar="NAME", help=_FORMAT)
    deploy.add_argument("--opset", dest="opt_opset", type=int, metavar="N", help="opset of the result")
    _runtime(deploy)

    finetune = verb("finetune", "train a quantized model to give what the float one gives; no labels, needs torch")
    finetune.add_argument(
        "model", metavar="QUANTIZED", help="a .onnx model that onnxq quantized, or any with QDQ pairs"
    )
    finetune.add_argument("--float", dest="teacher", metavar="MODEL", required=True, help="the float model")
    finetune.add_argument("-o", "--output", metavar="OUT", help="where to write the result, a file or a folder")
    _data(finetune)
    _backend(finetune)
    finetune.add_argument("--steps", type=int, default=400, metavar="N", help="default 400")
    finetune.add_argument("--minutes", type=float, metavar="M", help="stop after M minutes, with the best so far")
    finetune.add_argument("--batch", type=int, default=8, metavar="N", help="samples in a step, default 8")
    finetune.add_argument("--lr", type=float, default=0.01, metavar="X", help="step of weights in units of their scale")
    finetune.add_argument("--seed", type=int, default=0, metavar="N", help="of the samples drawn")
    finetune.add_argument("--resume", metavar="FILE", help="keep the state here, and go on from it where it exists")
    finetune.add_argument("--device", default="cpu", metavar="NAME", help="where torch trains, default cpu")

    verify = verb("verify", "load an artifact in the runtime it was made for, and compare with onnxruntime")
    verify.add_argument("artifact", metavar="OUT", help="the .onnx model that was written, or its folder")
    _data(verify)
    _backend(verify)
    verify.add_argument("--simulation", action="store_true", help="do not ask for the runtime, simulate only")
    verify.add_argument(
        "--min-sqnr",
        type=float,
        metavar="DB",
        help="exit code 3 below this (default 30 between two runtimes, 10 between a simulation and the float model)",
    )
    verify.add_argument(
        "--timeout", type=float, default=900.0, metavar="S", help="seconds for the runtime, default 900"
    )

    calibrate = verb("calibrate", "run the float model over data once; the statistics serve any target and bit width")
    _model(calibrate)
    _data(calibrate)
    calibrate.add_argument("-o", "--output", metavar="STATS", help="where to write the statistics (.npz)")
    _runtime(calibrate)

    plan = verb("plan", "what will be quantized how, what stays float and why; needs no data")
    _model(plan)
    _backend(plan)
    _options(plan)
    _runtime(plan)

    check = verb("check", "everything that could go wrong, at once, in seconds")
    _model(check)
    _data(check)
    _backend(check)
    _options(check)
    _runtime(check)

    compare = verb("compare", "float against quantized on data: per output and per tensor")
    compare.add_argument("reference", metavar="FLOAT", help="the float model")
    compare.add_argument("quantized", metavar="QUANTIZED", help="the model that was made from it")
    _data(compare)
    compare.add_argument("--outputs-only", action="store_true", help="leave out the tensors in between")
    compare.add_argument("--all", action="store_true", help="list every tensor")
    _runtime(compare)

    sensitivity = verb("sensitivity", "which layers hurt: weights and activations quantized one at a time")
    _model(sensitivity)
    _data(sensitivity)
    sensitivity.add_argument("--statistics", metavar="STATS", help="what 'onnxq calibrate' wrote, instead of data")
    _backend(sensitivity)
    sensitivity.add_argument(
        "--bits", type=_whole_numbers, default=(4, 8), metavar="N,N", help="the widths to measure, default 4,8"
    )
    sensitivity.add_argument("--plot", metavar="FILE", help="write a picture here (.svg)")
    sensitivity.add_argument(
        "--runs", type=int, default=512, metavar="N", help="at most N measurements, default 512; beyond: groups first"
    )
    sensitivity.add_argument("--all", action="store_true", help="list every layer and activation")
    _options(sensitivity)
    _runtime(sensitivity)

    show = verb("show", "a model's quantization, or a statistics file")
    show.add_argument("file", metavar="FILE", help="a .onnx model or a .npz statistics file")
    show.add_argument("--all", action="store_true", help="list every tensor")

    backends = verb("backends", "table of targets")
    backends.add_argument("names", metavar="NAME", nargs="*", help="these only")

    verb("algorithms", "table of algorithms and their parameters")

    demo = verb("demo", "quantize a small packaged model: accuracy, size and speed")
    demo.add_argument("-o", "--output", metavar="OUT", help="keep the quantized model here")
    _backend(demo)
    return parser


def _model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help="the float .onnx model")
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same keys as these flags; flags win")


def _backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        action="append",
        metavar="NAME",
        help="the target (default onnxruntime; see 'onnxq backends'); quantize and deploy take several",
    )


def _data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument("--data", metavar="DATA", help="the samples; see 'onnxq --help'")
    group.add_argument(
        "--samples", dest="opt_samples", type=int, metavar="N", help="use at most N samples, evenly spaced"
    )
    group.add_argument(
        "--image-resize", metavar="SIZE", help="pictures: SIDE (shorter side) or HxW; default the model's"
    )
    group.add_argument("--image-crop", metavar="SIZE", help="pictures: SIDE or HxW cut from the centre")
    group.add_argument("--image-mean", type=_numbers, metavar="M,M,M", help="pictures: subtracted, after scaling")
    group.add_argument("--image-std", type=_numbers, metavar="S,S,S", help="pictures: divided by, after scaling")
    group.add_argument("--image-scale", type=float, metavar="X", help="pictures: factor on 0..255 (default 1/255)")
    group.add_argument("--image-layout", choices=("nchw", "nhwc"), help="pictures: default from the model's input")
    group.add_argument(
        "--image-channels", choices=("rgb", "bgr", "gray"), help="pictures: default rgb, or gray for one"
    )


def _options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to quantize (default: as the target likes it)")
    own = "2 to 16; default the target's own, mostly 8"
    group.add_argument("--weight-bits", dest="opt_weight_bits", type=int, metavar="N", help=f"weights: {own}")
    group.add_argument("--act-bits", dest="opt_act_bits", type=int, metavar="N", help=f"activations: {own}")
    sign = group.add_mutually_exclusive_group()
    sign.add_argument(
        "--symmetric",
        dest="opt_symmetric",
        action="store_const",
        const=True,
        help="activations: zero point in the middle",
    )
    sign.add_argument(
        "--asymmetric",
        dest="opt_symmetric",
        action="store_const",
        const=False,
        help="activations: zero point where the range wants it",
    )
    grain = group.add_mutually_exclusive_group()
    grain.add_argument(
        "--per-channel", dest="opt_per_channel", action="store_const", const=True, help="weights: a scale per channel"
    )
    grain.add_argument(
        "--per-tensor", dest="opt_per_channel", action="store_const", const=False, help="weights: one scale per tensor"
    )
    group.add_argument(
        "--range",
        dest="opt_range",
        metavar="METHOD",
        help="range of activations: mse (default), minmax, ema, percentile[:P], entropy, std[:K], lsq, or a plugin's",
    )
    pattern = "node name, tensor name or op type, wildcards allowed; may be repeated"
    for flag, text in (("exclude", f"stays float: {pattern}"), ("include", f"only this is quantized: {pattern}")):
        group.add_argument(f"--{flag}", dest=f"opt_{flag}", action="append", metavar="PATTERN", help=text)
    group.add_argument(
        "--override",
        dest="opt_override",
        action="append",
        metavar="PATTERN=KEY=VALUE,...",
        help="different there: bits, weight_bits, act_bits, symmetric, per_channel, range, float",
    )
    group.add_argument("--effort", dest="opt_effort", choices=EFFORTS, help=_EFFORT)
    group.add_argument(
        "--algorithm",
        dest="opt_algorithms",
        action="append",
        metavar="NAME[:KEY=VALUE,...]",
        help="run this instead of what the effort runs; may be repeated, in order (see 'onnxq algorithms')",
    )
    group.add_argument("--placement", dest="opt_placement", choices=PLACEMENTS, help=_PLACEMENT)
    group.add_argument("--format", dest="opt_format", metavar="NAME", help=_FORMAT)
    group.add_argument("--opset", dest="opt_opset", type=int, metavar="N", help="opset of the result")
    group.add_argument(
        "--min-sqnr", dest="opt_min_sqnr", type=float, metavar="DB", help="floor of the result's SQNR (default 10)"
    )


def _search(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "search: from cheap to dear until accuracy is right (range methods, algorithms, 16 bits, float layers)"
    )
    group.add_argument(
        "--max-drop", type=float, metavar="X", help="how far the metric may fall below the float model's, e.g. 0.005"
    )
    group.add_argument(
        "--metric",
        metavar="FILE.py:FUNCTION",
        help="function(run) -> float, higher is better; run(feeds) gives the outputs, run.path is the model's file; "
        "default: agreement with the float model",
    )
    group.add_argument("--eval-data", metavar="DATA", help="samples for the agreement (default calibration's)")
    group.add_argument("--resume-dir", metavar="DIR", help="memory of the search, to go on later (default OUT.search)")
    group.add_argument("--max-minutes", type=float, metavar="M", help="begin nothing more after so long")


def _runtime(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument("--providers", dest="opt_providers", type=_words, metavar="A,B", help="e.g. cuda (default cpu)")
    group.add_argument("--custom-op-library", dest="opt_custom_op_library", metavar="FILE", help="custom operators")
    group.add_argument(
        "--keep", dest="opt_keep", type=int, metavar="N", help="samples to hold back for algorithms (default 8 or 64)"
    )
    group.add_argument("--simplify", dest="opt_simplify", action="store_const", const=True, help="run onnxsim first")
    group.add_argument("--seed", dest="opt_seed", type=int, metavar="N", help="of everything random (default 0)")
