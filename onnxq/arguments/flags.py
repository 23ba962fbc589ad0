"""Flags that several verbs share, in groups.

The names of those that are fields of `Options` begin with ``opt_``, of `ImageOptions` with ``image_``.
"""

from __future__ import annotations

import argparse

from onnxq.options import EFFORTS, PLACEMENTS
from onnxq.options.override import Override

__all__ = [
    "SEARCH",
    "SEVERAL_BACKENDS",
    "add_backend",
    "add_data",
    "add_format",
    "add_model",
    "add_options",
    "add_output",
    "add_processor",
    "add_runtime",
    "add_search",
    "add_shapes",
    "add_statistics",
]

SEARCH = ("max_drop", "metric", "eval_data", "resume_dir", "max_minutes")
"""What :func:`add_search` adds, by the names in a configuration file."""
_PLACEMENT = (
    "auto (default): on onnxruntime what runs faster in integers, on other targets all that can be quantized; all: all "
    "that can be; compute: convolutions and matrix products only"
)
_EFFORT = (
    "fast: ranges only; default: also bias correction, rotated channels where a transformer gains, and a search where "
    "the result is poor; best: tries more algorithms and keeps what is better, takes minutes"
)
_BACKEND = "the target (default onnxruntime; see 'onnxq backends')"
SEVERAL_BACKENDS = f"{_BACKEND}; may be repeated"
_FORMAT = "one of the target's formats (see 'onnxq backends'); fake-quantize: float arithmetic on rounded values"


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _words(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def add_model(parser: argparse.ArgumentParser) -> None:
    """The float model, and a file with flags."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="the float .onnx model")
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same keys as these flags; flags win")


def add_backend(parser: argparse.ArgumentParser, help: str = _BACKEND) -> None:
    """The target."""
    parser.add_argument("--backend", action="append", metavar="NAME", help=help)


def add_format(parser: argparse._ActionsContainer) -> None:
    """The form of the result."""
    parser.add_argument("--format", dest="opt_format", metavar="NAME", help=_FORMAT)
    parser.add_argument("--opset", dest="opt_opset", type=int, metavar="N", help="opset of the result")


def add_shapes(parser: argparse._ActionsContainer) -> None:
    """Sizes of inputs."""
    what = "fix an input's free sizes, x=1x3x480x480, or one by its name, batch=1; may be repeated"
    parser.add_argument("--shape", dest="opt_shapes", action="append", metavar="NAME=SIZES", help=what)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Where the result goes."""
    what = "where to write the result: NAME.onnx, or a file that lies beside it, or a folder; folders are made"
    parser.add_argument("-o", "--output", metavar="OUT", help=what)


def add_statistics(parser: argparse.ArgumentParser) -> None:
    """What was calibrated before."""
    parser.add_argument("--statistics", metavar="STATS", help="what 'onnxq calibrate' wrote, instead of data")


def add_data(parser: argparse.ArgumentParser) -> None:
    """The samples, and how pictures become samples."""
    group = parser.add_argument_group("data")
    group.add_argument("--data", metavar="DATA", help="the samples; see 'onnxq --help'")
    group.add_argument(
        "--samples", dest="opt_samples", type=int, metavar="N", help="use at most N samples, spread over all of them"
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


def add_processor(parser: argparse._ActionsContainer) -> None:
    """Which kind of processor a result is made for."""
    reduced = "weights: no sums overflow on x86 without VNNI; default for onnxruntime and OpenVINO on such a processor"
    _add_either(parser, "reduce_range", ("reduce-range", reduced), ("full-range", "weights: all of their range"))


def _add_either(parser: argparse._ActionsContainer, field: str, yes: tuple[str, str], no: tuple[str, str]) -> None:
    """Two flags for a field of the options that is true, false or left to the target, each with its help."""
    either = parser.add_mutually_exclusive_group()
    for (flag, text), value in ((yes, True), (no, False)):
        either.add_argument(f"--{flag}", dest=f"opt_{field}", action="store_const", const=value, help=text)


def add_options(parser: argparse.ArgumentParser, *, result: bool = True) -> None:
    """How to quantize: a flag for every field of :class:`onnxq.Options` that says it.

    Args:
        parser: of a verb.
        result: the verb speaks of a result: its widths, what makes it better, its form and its floor.
    """
    group = parser.add_argument_group("quantization options (default: the target's own)")
    if result:
        own = "2 to 16; default the target's own, mostly 8"
        group.add_argument("--weight-bits", dest="opt_weight_bits", type=int, metavar="N", help=f"weights: {own}")
        group.add_argument("--act-bits", dest="opt_act_bits", type=int, metavar="N", help=f"activations: {own}")
    free, even = "any range, with a zero point", "range symmetric about zero"
    few = f"weights: {free}; default on onnxruntime for those of at most 4 bits"
    for field, yes, no, texts in (
        ("symmetric", "symmetric", "asymmetric", (f"activations: {even}", f"activations: {free}")),
        ("per_channel", "per-channel", "per-tensor", ("weights: a scale per channel", "weights: one scale per tensor")),
        ("weight_symmetric", "symmetric-weights", "asymmetric-weights", (f"weights: {even}", few)),
    ):
        _add_either(group, field, (yes, texts[0]), (no, texts[1]))
    add_processor(group)
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
        help=f"other settings there: {', '.join(Override.KEYS)}",
    )
    group.add_argument("--placement", dest="opt_placement", choices=PLACEMENTS, help=_PLACEMENT)
    if not result:
        return
    group.add_argument("--effort", dest="opt_effort", choices=EFFORTS, help=_EFFORT)
    group.add_argument(
        "--algorithm",
        dest="opt_algorithms",
        action="append",
        metavar="NAME[:KEY=VALUE,...]",
        help="run this instead of what the effort runs; may be repeated, in order (see 'onnxq algorithms')",
    )
    add_format(group)
    group.add_argument(
        "--min-sqnr", dest="opt_min_sqnr", type=float, metavar="DB", help="floor of the result's SQNR (default 10)"
    )


def add_search(parser: argparse.ArgumentParser) -> None:
    """The search behind ``--max-drop``: a flag for each of ``SEARCH``."""
    group = parser.add_argument_group(
        "search: cheapest changes first (ranges, algorithms, 16 bits, float layers), until accuracy is good enough"
    )
    group.add_argument(
        "--max-drop", type=float, metavar="X", help="how far the metric may fall below the float model's, e.g. 0.005"
    )
    group.add_argument(
        "--metric",
        metavar="FILE.py:FUNCTION",
        help="function(run) -> float, higher is better; run(feeds) gives a dict of arrays by output name, run.path is "
        "the model's file; default: agreement with the float model",
    )
    group.add_argument("--eval-data", metavar="DATA", help="samples for the agreement (default calibration's)")
    group.add_argument("--resume-dir", metavar="DIR", help="folder to resume the search from (default OUT.search)")
    group.add_argument(
        "--max-minutes",
        type=float,
        metavar="M",
        help="with --max-drop or --effort best: end after M minutes with the best so far; a search makes its first "
        "attempt all the same",
    )


def add_runtime(parser: argparse.ArgumentParser, *, floats: bool = True) -> None:
    """How models are run, whatever is done with them.

    Args:
        parser: of a verb.
        floats: the verb runs the float model over the data, to quantize by what it sees.
    """
    group = parser.add_argument_group("running")
    group.add_argument("--providers", dest="opt_providers", type=_words, metavar="A,B", help="e.g. cuda (default cpu)")
    group.add_argument("--custom-op-library", dest="opt_custom_op_library", metavar="FILE", help="custom operators")
    if not floats:
        return
    group.add_argument(
        "--keep",
        dest="opt_keep",
        type=int,
        metavar="N",
        help="samples to hold back for verification and algorithms (default 32; 64 with effort best or algorithms, "
        "256 of them where weights have 4 bits or fewer); a statistics file contains them",
    )
    add_shapes(group)
    group.add_argument("--simplify", dest="opt_simplify", action="store_const", const=True, help="run onnxsim first")
    group.add_argument("--seed", dest="opt_seed", type=int, metavar="N", help="random seed (default 0)")
