"""What an algorithm that is a pipeline of its own has made: a model file, what in it is quantized, what stays float."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from onnxq.algorithm_choice import Choice
from onnxq.backend_choice import backend_named
from onnxq.calibration.statistics import Statistics
from onnxq.console.terminal import counts
from onnxq.errors import OptionError
from onnxq.measuring.verification import Verification
from onnxq.notes.aloud import say
from onnxq.notes.cautions import poor, vague
from onnxq.notes.reasons import by_reason
from onnxq.observe import require_one
from onnxq.options import ImageOptions, Options
from onnxq.plan import Kept
from onnxq.planning.weightless import ALREADY

__all__ = ["HOME", "Rewritten", "nothing_done", "refuse_unused", "require_home", "samples_of", "told"]

HOME = "onnxruntime"
"""The target that an algorithm which is a pipeline of its own writes for, unless its ``TARGET`` says another."""


@dataclass(frozen=True)
class Rewritten:
    """A model that was written and checked.

    Attributes:
        algorithm: what made it, for people.
        files: what was written, the model first.
        quantized: node name → operator, of the nodes whose weights are integers now.
        kept_float: nodes whose weights stay float, and why.
        notes: what a user should know of how it went.
        details: what the passes did, in order.
        verification: what running the result showed.
        stored: node name → operator, of the nodes that compute in float and whose weights are stored as integers.
        wider: node name → flag that gives its weight 8 bits, of the nodes whose weights take fewer.
        all_wider: the flag that gives all of them 8 bits; empty where there are none.
    """

    algorithm: str
    files: Sequence[Path]
    quantized: Mapping[str, str]
    kept_float: Sequence[Kept]
    notes: Sequence[str]
    details: Sequence[str]
    verification: Verification
    stored: Mapping[str, str] = field(default_factory=dict)
    wider: Mapping[str, str] = field(default_factory=dict)
    all_wider: str = ""

    def report(self) -> dict[str, Any]:
        """JSON-ready data: counts, every node that stayed float and why, and the verification."""
        ops: dict[str, int] = {}
        for op in self.quantized.values():
            ops[op] = ops.get(op, 0) + 1
        return {
            "algorithm": self.algorithm,
            "files": [str(path) for path in self.files],
            "quantized_nodes": len(self.quantized),
            "quantized_ops": dict(sorted(ops.items())),
            "stored_nodes": len(self.stored),
            "kept_float": [{"node": k.node, "op": k.op, "reason": k.reason} for k in self.kept_float],
            "notes": [*self.details, *self.notes],
            "verification": self.verification.to_dict(),
        }


def nothing_done(kept: Sequence[Kept], otherwise: str) -> str:
    """What to warn of where a result is the float model: the reason of most nodes that could have been quantized.

    Args:
        kept: what stays float.
        otherwise: what is said where that is nothing.
    """
    found = by_reason(kept)
    why = f"{counts(k.op for k in found[0][1])}: {found[0][0]}" if found else otherwise
    given = found and found[0][0] == ALREADY
    hint = "Give the float model" if given else "Without --algorithm, all operators are looked at"
    return f"nothing was quantized: the result is the float model; {why}. {hint}"


def told(
    verification: Verification,
    options: Options,
    before: Sequence[str],
    *,
    slow: Iterable[str] = (),
    there: int | None,
) -> Verification:
    """What was verified, with all that there is to warn of, which is said.

    Args:
        verification: of the result.
        options: the floor is one of them.
        before: warnings from before it was verified.
        slow: what it says of the time that a run takes.
        there: how many samples there are; None where nobody knows.
    """
    warnings = (
        *before,
        *verification.warnings,
        *slow,
        *vague(verification, there),
        *poor(verification, options),
    )
    verification = replace(verification, warnings=warnings)
    say(verification)
    return verification


def require_home(backend: str, choice: Choice) -> str:
    """Refuse a target that an algorithm which is a pipeline of its own does not write for.

    Args:
        backend: name of the target asked for.
        choice: the algorithm.

    Returns:
        The name of the target that it writes for.

    Raises:
        OptionError: there is no such target, or it is another.
    """
    target, home = backend_named(backend), str(getattr(choice.algorithm, "TARGET", HOME))
    if target.name != home:
        raise OptionError(
            f"algorithm {choice.name!r} writes models for {home} alone, not for {target.name}",
            where="backend",
            hint="Leave the backend out, or the algorithm" if home == HOME else f"Write --backend {home}",
        )
    return home


def refuse_unused(options: Options, name: str, used: Sequence[str], hints: Mapping[str, str]) -> None:
    """Make sure that nothing was asked for in vain.

    Args:
        options: what the user asked for.
        name: of the algorithm.
        used: the fields of the options that it heeds.
        hints: field → what to give instead, with ``{value}`` where the value asked for belongs.

    Raises:
        OptionError: an option has another value than its default, and no effect.
    """
    default = Options()
    for one in fields(Options):
        if one.name in (*used, "algorithms", "min_sqnr", "seed"):
            continue
        value = getattr(options, one.name)
        if value != getattr(default, one.name):
            raise OptionError(
                f"has no effect on the algorithm {name!r}",
                where=one.name,
                hint=hints.get(one.name, "Leave it out").replace("{value}", str(value).lower()),
            )


def samples_of(data: Any, statistics: Statistics | str | None, image: ImageOptions | None = None) -> Any:
    """The data, or the samples that statistics hold back where there is none.

    Raises:
        OptionError: both were given, or how pictures are read and no data.
    """
    if data is not None and statistics is not None:
        require_one(data, statistics)
    if data is None:
        ImageOptions.refuse(image, "a run without data" if statistics is None else "statistics, which replace the data")
    if data is not None or statistics is None:
        return data
    held = statistics if isinstance(statistics, Statistics) else Statistics.load(statistics)
    return [sample.feeds for sample in held.kept]
