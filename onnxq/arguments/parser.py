"""The verbs of the command line and the arguments of each."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from onnxq import __version__
from onnxq.arguments.flags import (
    SEVERAL_BACKENDS,
    add_backend,
    add_data,
    add_format,
    add_model,
    add_options,
    add_output,
    add_processor,
    add_runtime,
    add_search,
    add_shapes,
    add_statistics,
)
from onnxq.arguments.settled import UsageError
from onnxq.console.exit_codes import ExitCode

__all__ = ["make_parser"]

_DATA = """\
DATA is a .npz file (an array per input, first axis = samples), a .npy file (one input), a folder of .npz files (a
file per sample), of .npy files or of pictures, or FILE.py:FUNCTION that gives an iterable of feeds.
"""


_KINDS = {
    "int": "not a whole number",
    "float": "not a number",
    "_numbers": "not a list of numbers such as 0.5,0.5,0.5",
    "_whole_numbers": "not a list of whole numbers such as 4,8",
}
"""What is said of an argument that is not what it should be, by the name of what reads it."""


class _Parser(argparse.ArgumentParser):
    """Raises what it finds wrong, so that it is told like every other error."""

    def error(self, message: str) -> NoReturn:
        for kind, words in _KINDS.items():
            message = re.sub(f"invalid {kind} value: (.*)", rf"\1 is {words}", message)
        raise UsageError(f"{message} ({self.prog} --help)")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As its base does, but what a verb does not take is told with the verb."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            raise UsageError(f"onnxq {found.verb} does not take {' '.join(rest)} (onnxq {found.verb} --help)")
        return found


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``onnxq``; the verb is in ``verb``. It raises :class:`UsageError`."""
    codes = "\n".join(f"  {code:<5}{code.meaning}" for code in ExitCode)
    parser = _Parser(
        prog="onnxq",
        description="Quantize an ONNX model for the chip it will run on.",
        epilog=f"{_DATA}\nexit codes:\n{codes}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"onnxq {__version__}")
    _add_common(parser, False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (text, add_arguments) in _VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
        _add_common(verb, argparse.SUPPRESS)  # or what is said in front of the verb would be unsaid by it
        add_arguments(verb)
    return parser


def _add_common(parser: argparse.ArgumentParser, default: object) -> None:
    """What all verbs take, in front of the verb or behind it."""
    for flags, text in (
        (("--json",), "print one JSON object, nothing else, on stdout"),
        (("-v", "--verbose"), "say more: notes of passes, every node, tracebacks"),
        (("-q", "--quiet"), "print only errors, findings and results that fall short"),
    ):
        parser.add_argument(*flags, action="store_true", default=default, help=text)


def _quantize(verb: argparse.ArgumentParser) -> None:
    add_model(verb)
    add_data(verb)
    add_statistics(verb)
    add_output(verb)
    add_backend(verb, SEVERAL_BACKENDS)
    add_options(verb)
    add_search(verb)
    add_runtime(verb)


def _deploy(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("model", metavar="MODEL", help="a .onnx model with QDQ pairs or onnxq::FakeQuantize functions")
    add_output(verb)
    add_backend(verb, SEVERAL_BACKENDS)
    add_format(verb)
    add_processor(verb)
    add_shapes(verb)
    add_runtime(verb, floats=False)


def _finetune(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("model", metavar="QUANTIZED", help="a .onnx model that onnxq quantized, or any with QDQ pairs")
    verb.add_argument("--float", dest="teacher", metavar="MODEL", required=True, help="the float model")
    add_output(verb)
    add_data(verb)
    add_backend(verb)
    verb.add_argument(
        "--steps", type=int, metavar="N", help="training steps, default 400, or as many as fit into --minutes"
    )
    verb.add_argument("--minutes", type=float, metavar="M", help="stop after M minutes, with the best so far")
    verb.add_argument("--batch", type=int, default=8, metavar="N", help="samples in a training step, default 8")
    verb.add_argument(
        "--lr", type=float, metavar="X", help="learning rate of weights in units of their scale; default by bits"
    )
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="seed for drawing samples, default 0")
    verb.add_argument(
        "--resume", metavar="FILE", help="keep the training state in FILE, and resume from it if it exists"
    )
    verb.add_argument("--device", default="cpu", metavar="NAME", help="where torch trains, default cpu")


def _verify(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "artifact", metavar="OUT", help="the .onnx model that was written, a file beside it, or its folder"
    )
    add_data(verb)
    add_backend(verb)
    verb.add_argument("--simulation", action="store_true", help="do not use the runtime, simulate only")
    verb.add_argument("--layers", action="store_true", help="compare layer by layer as well, each from equal integers")
    verb.add_argument(
        "--max-steps",
        type=int,
        metavar="N",
        help="with --layers: exit code 3 where an integer differs by more (default 1, or what is known of the runtime)",
    )
    verb.add_argument(
        "--min-sqnr",
        type=float,
        metavar="DB",
        help="exit code 3 below this (default 10 between a simulation and the float model, 30 between two runtimes "
        "unless no more is lost against float than in simulation)",
    )
    verb.add_argument("--timeout", type=float, metavar="S", help="seconds for the runtime, default 900")


def _calibrate(verb: argparse.ArgumentParser) -> None:
    add_model(verb)
    add_data(verb)
    verb.add_argument("-o", "--output", metavar="STATS", help="where to write the statistics (.npz)")
    add_runtime(verb)


def _plan(verb: argparse.ArgumentParser) -> None:
    add_model(verb)
    add_backend(verb)
    add_options(verb)
    add_runtime(verb)


def _check(verb: argparse.ArgumentParser) -> None:
    add_model(verb)
    add_data(verb)
    add_backend(verb)
    add_options(verb)
    add_runtime(verb)


def _compare(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("reference", metavar="FLOAT", help="the float model")
    verb.add_argument("quantized", metavar="QUANTIZED", help="the model that was made from it")
    add_data(verb)
    add_backend(verb, "the target it was made for, whose table of numbers beside it is read; default: as it is")
    verb.add_argument(
        "--outputs-only", action="store_true", help="compare only the outputs, not the tensors in between"
    )
    verb.add_argument("--all", action="store_true", help="list every tensor")
    add_runtime(verb, floats=False)


def _sensitivity(verb: argparse.ArgumentParser) -> None:
    add_model(verb)
    add_data(verb)
    add_statistics(verb)
    add_backend(verb)
    verb.add_argument(
        "--bits", type=_whole_numbers, default=(4, 8), metavar="N,N", help="the bit widths to measure, default 4,8"
    )
    verb.add_argument("--plot", metavar="FILE", help="write a picture here (.svg)")
    verb.add_argument(
        "--runs",
        type=int,
        default=512,
        metavar="N",
        help="at most N measurements, default 512; larger models are measured by groups of layers first",
    )
    verb.add_argument("--all", action="store_true", help="list every layer and activation")
    add_options(verb, result=False)
    add_runtime(verb)


def _show(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("file", metavar="FILE", help="a .onnx model or a .npz statistics file")
    verb.add_argument("--all", action="store_true", help="list every tensor")


def _backends(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("names", metavar="NAME", nargs="*", help="these only")


def _algorithms(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("names", metavar="NAME", nargs="*", help="these only, with what their parameters mean")


def _demo(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-o", "--output", metavar="OUT", help="keep the quantized model here")
    add_backend(verb)


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


_VERBS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "quantize": ("quantize a float model: the main job", _quantize),
    "deploy": ("write a model that is quantized already, by training or another tool, for a target", _deploy),
    "finetune": ("train a quantized model to give what the float one gives; no labels, needs torch", _finetune),
    "verify": ("load an artifact in the runtime it was made for, and compare with onnxruntime", _verify),
    "calibrate": ("run the float model over data once; the statistics serve any target and bit width", _calibrate),
    "plan": ("what will be quantized how, what stays float and why; needs no data", _plan),
    "check": ("everything that could go wrong, at once, in seconds", _check),
    "compare": ("float against quantized on data: per output and per tensor", _compare),
    "sensitivity": ("which layers hurt: weights and activations quantized one at a time", _sensitivity),
    "show": ("a model's quantization, or a statistics file", _show),
    "backends": ("table of targets", _backends),
    "algorithms": ("table of algorithms; with a name: what its parameters mean", _algorithms),
    "demo": ("quantize a small packaged model: accuracy, size and speed", _demo),
}
