"""What a case is, and how one is declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, ParamSpec

import onnx
from numpy.typing import NDArray

__all__ = ["CASES", "Case", "Given", "Way", "case"]

P = ParamSpec("P")
Way = Literal[
    "memory",
    "file",
    "link",
    "overwrite",
    "external",
    "external overwrite",
    "bare external",
    "short external",
    "missing external",
    "full disk",
]
"""How the model is given: as a protobuf, a file, a link to one, the file to be overwritten; with its weights in a
second file, the same to be overwritten, files without offset and length, one that is too short, or gone; a file, and a
disk that is full before the result is written."""


class Given(NamedTuple):
    """What a quantizer is given.

    Attributes:
        model: the float model.
        feeds: calibration data; the result is judged on it too.
    """

    model: onnx.ModelProto
    feeds: Sequence[dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class Case:
    """A model on which quantizers are known to fail.

    Attributes:
        group: ``G1`` to ``G16``.
        name: of the function that makes it.
        about: what is special, and what is right.
        make: builds the model and its data.
        asked: what is asked for beside the defaults, as of `onnxq.Options`.
        least: dB that every float output must reach, over all samples; ``None`` where the numbers cannot be compared.
        median: dB that the median sample of every float output must reach, unless the loss is said.
        channel: dB that every channel (axis 1) of every float output must reach, unless the loss is said.
        say: words (a regular expression) that say it; they excuse numbers below ``least`` too.
        refuse: an error with these words (a regular expression) is right; empty where only a result is.
        way: how the model is given.
        theirs: why onnxruntime's quantizer cannot be asked for it; empty where it can.
        same: makes a model that computes the same, where onnxruntime does not run the one given.
    """

    group: str
    name: str
    about: str
    make: Callable[[], Given]
    asked: dict[str, Any] = field(default_factory=dict)
    least: float | None = 20.0
    median: float | None = None
    channel: float | None = None
    say: str = ""
    refuse: str = ""
    way: Way = "memory"
    theirs: str = ""
    same: Callable[[], onnx.ModelProto] | None = None


CASES: list[Case] = []
"""All of them, in order of their groups once `tests.cases` is imported."""


def case(group: str, **settings: Any) -> Callable[[Callable[P, Given]], Callable[P, Given]]:
    """Adds a function to `CASES`; called without arguments it makes the case.

    Args:
        group: ``G1`` to ``G16``.
        settings: fields of `Case` that differ from their defaults.
    """

    def add(make: Callable[P, Given]) -> Callable[P, Given]:
        about = " ".join((make.__doc__ or "").split())

        def given() -> Given:
            return make()  # type: ignore[call-arg]

        CASES.append(Case(group, make.__name__, about, given, **settings))
        return make

    return add
