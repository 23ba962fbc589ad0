"""Flags and configuration file joined and judged, before anything heavy is loaded."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from onnxq.arguments.flags import SEARCH
from onnxq.effort import improves
from onnxq.errors import OptionError
from onnxq.options import ImageOptions, Options
from onnxq.options.config import Config
from onnxq.options.one_value import check_amount, check_bits, check_int

__all__ = ["UsageError", "settle"]

Made = TypeVar("Made", Options, ImageOptions)

_RUN_KEYS = ("model", "data", "output", "statistics", "backend", *SEARCH)
"""What a configuration file may say besides options."""
_NUMBERS = ("max_drop", "max_minutes")
_AMOUNTS = (*_NUMBERS, "minutes", "lr")
"""Flags that take a number of at least 0."""
_LEAST = {"steps": 1, "batch": 1, "runs": 1, "max_steps": 0, "seed": 0}
"""The least that flags take, which take whole numbers."""
_EITHER = ("data", "statistics")
_SEVERAL = ("quantize", "deploy")
"""Verbs that take several targets."""
_SPOKEN = {"teacher": "float model", "eval_data": "evaluation data", "config": "configuration file"}
"""What arguments are called, where not by their key."""


_SAMPLES = ": give samples, or --statistics STATS that 'onnxq calibrate' wrote"
_WITHOUT = "--algorithm dynamic or weight_only, for tensorrt nvfp4:activations=false"
_INSTEAD = {
    ("quantize", "data"): f"{_SAMPLES}, or an algorithm that can do without: {_WITHOUT}",
    ("sensitivity", "data"): _SAMPLES,
}
"""What would do in place of a flag that is missing, by verb and key."""


class UsageError(Exception):
    """The flags make no sense; exit code 2."""


def settle(args: argparse.Namespace) -> None:
    """Join flags and configuration file (flags win) into ``args.options``, ``args.image`` and the rest.

    Raises:
        UsageError: a flag has a wrong value, or one that is needed is missing.
    """
    _require_numbers(vars(args))
    run_keys = [key for key in _RUN_KEYS if hasattr(args, key)]
    config = _config(args, run_keys)
    _take_run(args, config, run_keys)
    if hasattr(args, "backend"):
        _settle_backend(args)
    _require_needed(args, config)
    _spare_inputs(args)
    _require_partners(args)
    given, image = _fields(args, "opt_"), _fields(args, "image_")
    try:
        Options(**given), ImageOptions(**image)
    except OptionError as error:
        raise UsageError(str(error)) from error
    args.options = _joined(Options, config.options, given, args)
    args.image = _joined(ImageOptions, config.image, image, args)
    if getattr(args, "max_minutes", None) is not None and args.max_drop is None and not improves(args.options):
        raise UsageError("--max-minutes needs --max-drop, or --effort best without --algorithm")


def _require_numbers(flags: Mapping[str, Any]) -> None:
    """Refuse numbers of the flags that are no field of the options and that no run could take.

    Raises:
        UsageError: one is too small or not finite.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        for key, value in given.items():
            if key in _AMOUNTS:
                check_amount(_flag(key), value)
            if key in _LEAST:
                check_int(_flag(key), value, _LEAST[key])
        for bits in given.get("bits", ()):
            check_bits("--bits", bits)
    except OptionError as error:
        raise UsageError(str(error)) from error
    if not given.get("timeout", 1.0) > 0:
        raise UsageError(f"--timeout: {given['timeout']:g} is not a number of seconds above 0")
    if math.isnan(given.get("min_sqnr", 0.0)):
        raise UsageError("--min-sqnr is not a number")


def _flag(key: str) -> str:
    return f"--{key.removeprefix('opt_').replace('_', '-')}"


def _fields(args: argparse.Namespace, prefix: str) -> dict[str, Any]:
    """The flags that were given whose names begin so, without the prefix."""
    return {k.removeprefix(prefix): v for k, v in vars(args).items() if k.startswith(prefix) and v is not None}


def _joined(kind: type[Made], said: Mapping[str, Any], given: Mapping[str, Any], args: argparse.Namespace) -> Made:
    """Options of the configuration file and of the flags, which are sound by themselves.

    Raises:
        OptionError: one of the file is wrong, or does not go with the flags.
    """
    try:
        return kind(**{**said, **given})
    except OptionError as error:
        file = f"config file {args.config!r}"
        where = f"{file}, {error.where}" if error.where else file
        raise OptionError(error.what, where=where, hint=error.hint) from error


def _take_run(args: argparse.Namespace, config: Config, run_keys: Sequence[str]) -> None:
    """Take from the configuration file what no flag says of the run, in place.

    Raises:
        OptionError: a value there is of the wrong kind.
    """
    calibrate = [key for key in _EITHER if getattr(args, key, None) is not None]
    for key in run_keys:
        if key in _EITHER and calibrate:
            continue  # a flag says what to calibrate with, whichever of the two the file names
        if getattr(args, key) is None and key in config.run:
            value = config.run[key]
            kind: Any = (int, float) if key in _NUMBERS else str
            word = "number" if key in _NUMBERS else "string"
            if key == "backend" and args.verb in _SEVERAL:
                kind, word = (str, list), "string or a list of them"
            if not isinstance(value, kind) or isinstance(value, bool):
                raise OptionError(f"{value!r} is not a {word}", where=f"config file {args.config!r}, {key}")
            setattr(args, key, value)


def _require_needed(args: argparse.Namespace, config: Config) -> None:
    """Refuse to go on without what the verb needs, or with two things of which it takes one.

    Raises:
        UsageError: it says which.
    """
    needed = {"model": "MODEL", "output": "-o OUT", "data": "--data DATA"}
    optional = {"plan": {"data"}, "check": {"data"}, "verify": {"data"}, "demo": {"output"}}
    if args.verb == "quantize" and _decides_alone(args.opt_algorithms or config.options.get("algorithms")):
        optional["quantize"] = {"data"}
    if args.__dict__.get("statistics"):
        optional |= {"quantize": {"data"}, "sensitivity": {"data"}}
    for key, flag in needed.items():
        if hasattr(args, key) and getattr(args, key) is None and key not in optional.get(args.verb, set()):
            if key == "output" and args.verb == "calibrate":
                flag = "-o STATS"
            raise UsageError(f"{flag} is missing{_INSTEAD.get((args.verb, key), '')} (onnxq {args.verb} --help)")
    if all(getattr(args, key, None) is not None for key in _EITHER):
        raise UsageError("give --data or --statistics, not both: statistics replace the data")
    if (output := getattr(args, "output", None)) in ("", "-"):
        what = "nothing is written to stdout" if output else "-o is empty"
        raise UsageError(f"{what}; give a file or a folder ('.' is the current one)")


def _require_partners(args: argparse.Namespace) -> None:
    """Refuse a flag that says nothing without another, or beside another.

    Raises:
        UsageError: it names the two.
    """
    of_data = ("opt_samples", *(key for key in vars(args) if key.startswith("image_")))
    partners: dict[str, dict[str, Sequence[str]]] = {
        "quantize": {"max_drop": [key for key in SEARCH if key != "max_minutes"], "data": of_data},
        "sensitivity": {"data": of_data},
        "verify": {"layers": ("max_steps",), "data": of_data},
        "check": {"data": of_data},
    }
    for partner, keys in partners.get(args.verb, {}).items():
        lone = [key for key in keys if getattr(args, key) is not None]
        if lone and (getattr(args, partner) is None or getattr(args, partner) is False):
            statistics = partner == "data" and args.__dict__.get("statistics")
            more = ", and does nothing to statistics" if statistics else ""
            raise UsageError(f"{_flag(lone[0])} needs {_flag(partner)}{more}")
    if args.verb == "quantize" and args.max_drop is not None:
        if len(args.backends) > 1:
            raise UsageError("--max-drop takes one --backend")
        if args.metric is not None and args.eval_data is not None:
            raise UsageError("--eval-data is for the agreement, not for a --metric: leave one of the two out")
    if args.verb == "verify" and args.simulation and args.timeout is not None:
        raise UsageError("--timeout is for the runtime, which --simulation leaves out: leave one of the two out")


def _config(args: argparse.Namespace, run_keys: Sequence[str]) -> Config:
    """What the configuration file says, less what the verb has no use for, and what a flag has put out of use.

    Raises:
        OptionError: it cannot be read, or has a key that no verb knows.
    """
    if getattr(args, "config", None) is None:
        return Config()
    pictures = hasattr(args, "image_resize")
    others = {*_RUN_KEYS, "image"} - {*run_keys, *(("image",) if pictures else ())}
    config = Config.read(args.config, run_keys=run_keys, image=pictures, others=others)
    if getattr(args, "statistics", None) is not None:  # the file's data are not read, so it does not matter how
        config.image.clear()
        config.options.pop("samples", None)
    return config


def _settle_backend(args: argparse.Namespace) -> None:
    """One target's name in ``args.backend``; several, where a verb takes them, in ``args.backends``."""
    several = args.verb in _SEVERAL
    if args.backend is None and args.verb == "compare":
        return  # two models as they are
    given = [args.backend] if isinstance(args.backend, str) else args.backend or ["onnxruntime"]
    if not all(isinstance(name, str) for name in given):
        raise OptionError(f"{given!r} is not a list of names", where="backend")
    if not several and len(given) > 1:
        raise UsageError(f"onnxq {args.verb} takes one --backend")
    args.backend, args.backends = given[0], list(dict.fromkeys(given))


def _decides_alone(algorithms: Any) -> bool:
    """Whether the algorithm asked for is a pipeline of its own, which says itself whether it needs data."""
    if not isinstance(algorithms, (list, tuple)) or len(algorithms) != 1 or not isinstance(algorithms[0], str):
        return False
    from onnxq.algorithm_choice import whole_model

    return whole_model(algorithms) is not None


def _spare_inputs(args: argparse.Namespace) -> None:
    """Refuse to write the result over what it is made from: any file that another argument names.

    Raises:
        UsageError: the output is the model, the data, the statistics, the configuration file or the like.
    """
    output = getattr(args, "output", None)
    if not output or not os.path.isfile(output):
        return
    for key, path in vars(args).items():
        if key != "output" and isinstance(path, str) and os.path.isfile(path) and os.path.samefile(output, path):
            what = _SPOKEN.get(key, key.replace("_", " "))
            raise UsageError(f"-o {output} would overwrite the {what}; give another name")
