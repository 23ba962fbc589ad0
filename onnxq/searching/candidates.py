"""What is tried at the speed of the default: other range methods, then algorithms, quick ones and those that train."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import onnx_ir as ir

from onnxq import plugins
from onnxq.algorithm_choice import whole_model
from onnxq.algorithms.channels.streams import quantized_streams
from onnxq.backend import Backend
from onnxq.catalog import installed_algorithms
from onnxq.errors import OptionError
from onnxq.options import Options
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared, needed_opset
from onnxq.rewritten import HOME
from onnxq.searching.attempt import Candidate
from onnxq.spec import USUAL_BITS

__all__ = ["Ways", "algorithms", "can_hold", "default", "ranges", "trained"]

_RANGES = ("minmax", "percentile:99.99", "percentile:99.9", "entropy", "lsq")
_OTHER_RANGES = ("mse", "std", "ema")
"""Installed, and left out: the default, and two that are hardly ever better than those tried."""

# Numbers first, which cost no speed; then what may add operators.
_QUICK = (
    ("equalize", "bias_correction"),
    ("rotate", "bias_correction"),
    ("seqmse", "bias_correction"),
    ("gptq", "bias_correction"),
    ("equalize", "gptq", "bias_correction"),
    ("rotate", "gptq", "bias_correction"),
    ("smoothquant", "bias_correction"),
    ("outliers", "bias_correction"),
)
_FEW_BITS = (("gptq:prefix=true", "bias_correction"),)
"""Of more use the fewer bits weights have: each layer makes up for what those before it lose."""
_TRAINED = (
    ("adaround", "bias_correction"),
    ("adaquant",),
    ("reconstruct",),
)


_WHOLE = ("dynamic",)
"""Pipelines of their own, as quick as the default, that run in integers what it may leave float."""


_STAGES = ("float", "numbers")
"""Of the algorithms tried: others make something else than a model with the same nodes in integers."""


def _anything(options: Options) -> bool:
    """Whatever options ask for."""
    return True


@dataclass(frozen=True)
class Ways:
    """What may be tried for a model on a target.

    Attributes:
        ranges: range methods that are installed.
        algorithms: algorithms that are installed, without those that find nothing to do in the model.
        whole: those that are pipelines of their own, which run in integers what the default may leave float.
        gains: these run in integers what the default leaves float: they may be faster than it even where it is accurate
            enough.
        functions: activation function → the layer that the target computes it together with.
        holds: whether the target can hold what options ask for; what it cannot is not tried.
    """

    ranges: Sequence[str]
    algorithms: Sequence[str]
    whole: Sequence[Candidate] = ()
    gains: bool = False
    functions: Mapping[str, str] = field(default_factory=dict)
    holds: Callable[[Options], bool] = _anything

    @classmethod
    def of(cls, options: Options, prepared: Prepared, target: Backend) -> Ways:
        """Those of this installation."""
        stages = {found.NAME: found.STAGE for found in installed_algorithms()}
        model = prepared.for_target(target, options).model
        plan = make_plan(model, target, options)
        in_vain = set() if quantized_streams(model, plan) else {"rotate"}
        runs = _whole(options, stages, prepared.model) if target.name == HOME else []
        left_float = {kept.node for kept in plan.kept_float}
        return cls(
            plugins.names("onnxq.ranges"),
            [name for name, stage in stages.items() if stage in _STAGES and name not in in_vain],
            [candidate for candidate, _ in runs],
            any(not nodes.isdisjoint(left_float) for _, nodes in runs),
            plan.absorbed,
            partial(can_hold, target),
        )

    @property
    def installed(self) -> tuple[list[str], list[str], list[str]]:
        """Names, by which a search tells whether it would try the same again."""
        return list(self.ranges), list(self.algorithms), [found.what for found in self.whole]


def default(options: Options) -> Candidate:
    """What the options ask for."""
    return Candidate("default", "", options)


def can_hold(target: Backend, options: Options) -> bool:
    """Whether a target can hold what options ask for: widths, a format, an opset that has them, a range method."""
    try:
        target.require(options)
        needed_opset(target, options)
    except OptionError:
        return False
    return True


def ranges(options: Options, installed: Collection[str]) -> list[Candidate]:
    """Other range methods; none where the user named one.

    Args:
        options: what the user asked for.
        installed: names of range methods.
    """
    if options.range != Options().range:
        return []
    known = {*(text.partition(":")[0] for text in _RANGES), *_OTHER_RANGES}
    wanted = [text for text in _RANGES if text.partition(":")[0] in installed]
    wanted += sorted(set(installed) - known)
    return [Candidate("range", text, replace(options, range=text)) for text in wanted]


def algorithms(options: Options, installed: Collection[str]) -> list[Candidate]:
    """Algorithms that take little longer than the default, alone and together; none where the user named some.

    Args:
        options: the best so far.
        installed: names of algorithms; the others are left out.
    """
    few = (options.weight_bits or USUAL_BITS) < USUAL_BITS
    return _algorithms(options, (*_QUICK, *_FEW_BITS) if few else _QUICK, installed)


def trained(options: Options, installed: Collection[str]) -> list[Candidate]:
    """Algorithms that take minutes, and those of others; see :func:`algorithms`."""
    known = {name for names in (*_QUICK, *_TRAINED) for name in names}
    others = [(name,) for name in sorted(set(installed) - known)]
    found = _algorithms(options, [*_TRAINED, *others], installed)
    if options.effort != "best" and not options.algorithms:
        found.append(Candidate("algorithm", "effort best", replace(options, effort="best")))
    return found


def _algorithms(options: Options, listed: Iterable[tuple[str, ...]], installed: Collection[str]) -> list[Candidate]:
    if options.algorithms:
        return []
    wanted = [texts for texts in listed if all(text.partition(":")[0] in installed for text in texts)]
    return [Candidate("algorithm", ", ".join(texts), replace(options, algorithms=texts)) for texts in wanted]


def _whole(options: Options, installed: Collection[str], model: ir.Model) -> list[tuple[Candidate, Set[str]]]:
    """Algorithms that are pipelines of their own, where they quantize anything of the model, and the nodes of that.

    None where the user named algorithms, or an option that has no effect on them.

    Args:
        options: what the user asked for.
        installed: names of algorithms.
        model: normalized.
    """
    found = []
    for name in () if options.algorithms else _WHOLE:
        plain = replace(options, algorithms=(name,), keep=None, samples=None, effort=Options().effort)
        choice = whole_model(plain.algorithms) if name in installed else None
        if choice is None or not _heeds(choice.algorithm, plain):
            continue
        if runs := choice.algorithm.runs_in_integers(model, plain):
            found.append((Candidate("algorithm", name, plain), runs.keys()))
    return found


def _heeds(algorithm: Any, options: Options) -> bool:
    """Whether no option would be given in vain."""
    try:
        algorithm.require(options)
    except OptionError:
        return False
    return True
