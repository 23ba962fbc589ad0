"""The first result for a target: planned, given numbers, and planned again for what the data shows to be better float.

Here it is judged without the outputs: by weights, branches of Concats, and the tensors around float arithmetic. What
only the outputs show is mended later (:mod:`onnxq.deciding.mend`).
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxq.console.terminal import listed
from onnxq.deciding.amplifiers import OF_ANGLES, noise_amplifiers
from onnxq.deciding.branches import LostBranch, lost_branches, said_of, to_keep_float, told, with_wide_concats
from onnxq.deciding.coarse import coarse_weights
from onnxq.deciding.decider import SEARCH, Decider, Made
from onnxq.deciding.what_hurts import Raised, storable
from onnxq.graph.traverse import all_nodes
from onnxq.quantized import Quantized

__all__ = ["decide"]

_ROUNDS = 3
"""How often noise is looked for again after nodes were kept float."""
_LARGEST_SHARE = 0.5
"""Largest share of the quantized nodes' cost that may be kept float because of amplified noise."""
_NAMED = 6
"""Nodes that a warning names."""


def decide(decider: Decider, raised: Raised | None = None) -> Quantized:
    """The quantized model, not yet verified.

    Beyond what the decider itself rules out, these stay float: layers whose weights a grid is too coarse for, branches
    that a Concat's one scale loses, and nodes whose noise float arithmetic behind them amplifies. Where the last are
    most of the model they run in integers all the same: :mod:`onnxq.deciding.mend` finds which of them hurt.

    Args:
        decider: what makes it; from now on it keeps float what the result does. Notes and warnings go there.
        raised: the float model at an opset that has 16-bit weights; None where the result is to hold none.
    """
    made = decider.quick()
    made = _without_coarse_weights(decider, made)
    made = _without_lost_branches(decider, made)
    if decider.target.mixes:
        made = _without_amplifiers(decider, made, raised)
    else:
        decider.warnings += _coarse_angles(decider, made.quantized)
    if not all(choice.quick for choice in decider.choices):
        made = decider.again()
    quantized, said = made
    decider.notes += said
    decider.warnings += decider.masks.ignored(quantized.plan)
    return quantized


def _without_coarse_weights(decider: Decider, made: Made) -> Made:
    """Layers whose weights the grid is too coarse for stay float."""
    quantized = made.quantized
    coarse = coarse_weights(decider.model, quantized.plan, quantized.qparams, decider.samples)
    if not coarse or decider.options.placement == "all":
        return made
    decider.keep_float(coarse)
    return decider.quick()


def _without_lost_branches(decider: Decider, made: Made) -> Made:
    """A Concat whose one scale loses a branch stays float, or else takes 16 bits; what is still lost is warned of."""
    model, target = decider.model, decider.target
    lost = _lost(decider, made)
    keep = to_keep_float(model, made.quantized.plan, target, lost)
    if keep and decider.options.placement != "all":
        decider.keep_float(keep, store=True)  # it is what they read that hurts, not their weights
        made = decider.quick()
        lost = _lost(decider, made)
    elif lost and (wider := with_wide_concats(model, target, decider.options, lost)) is not None:
        before, decider.options = decider.options, wider
        wide = decider.quick()
        left = _lost(decider, wide)
        if len(left) < len(lost):
            made = wide
            kept = [branch for branch in lost if branch.concat not in {other.concat for other in left}]
            decider.notes += [f"16 bits for Concat {name!r}: {text}" for name, text in said_of(kept).items()]
            lost = left
        else:
            decider.options = before
    decider.warnings += told(model, made.quantized.plan, target, lost)
    return made


def _lost(decider: Decider, made: Made) -> list[LostBranch]:
    quantized = made.quantized
    return lost_branches(decider.model, quantized.plan, quantized.qparams, decider.statistics)


def _without_amplifiers(decider: Decider, made: Made, raised: Raised | None) -> Made:
    """What comes before float arithmetic that amplifies its noise stays float, unless that is most of the work."""
    forced = decider.options.placement == "all"
    kept: dict[str, str] = {}
    for _ in range(_ROUNDS):
        quantized = made.quantized
        with decider.reporter.phase(SEARCH, unit="runs") as advance:
            noisy = noise_amplifiers(
                decider.model, quantized, decider.samples, decider.options, decider.sizes, advance=advance
            )
        if not noisy:
            break
        costs = decider.costs(quantized.plan)
        share = sum(costs[n] for n in noisy) / max(sum(costs.values()), 1e-12)
        if share > _LARGEST_SHARE and not forced:
            why = next(iter(noisy.values()))
            decider.notes.append(
                f"{why}; {share:.0%} of the quantized work comes before it: too much to stay float for that"
            )
            break
        decider.keep_float(noisy)
        kept.update(noisy)
        made = decider.quick()
    return _stored(decider, made, kept, raised) if kept else made


def _coarse_angles(decider: Decider, quantized: Quantized) -> list[str]:
    """What to say of sines whose angles a grid is too coarse for, where no float node may stand among integer ones."""
    noisy = noise_amplifiers(
        decider.model, quantized, decider.samples, decider.options, decider.sizes, suspected=OF_ANGLES
    )
    if not noisy:
        return []
    names = [repr(node.name) for node in all_nodes(decider.model) if node.name in noisy]
    one = next(iter(noisy.values()))
    return [
        f"{listed(names, _NAMED)}: integers are too coarse for the angles of a Sin or Cos (one of them: {one}); "
        "--exclude keeps what makes the angles exact"
    ]


def _stored(decider: Decider, made: Made, kept: Mapping[str, str], raised: Raised | None) -> Made:
    """The weights of nodes kept float are stored in 8 bits, or else in 16, where these alone do no harm."""
    found, model = storable(decider, kept, None, raised)
    if not found:
        return made
    decider.keep_float(kept, store=True)
    if model is not None:
        decider.store_wide(model, {name: why for name, why in kept.items() if name in found})
    return decider.quick()
