"""Where a result is poor: what of it hurts the outputs is found by measuring, and stays float.

The steps, each taken only where the result, as the steps before have left it, is below its level (dB of the worst
output):

- Below 40 dB (:mod:`onnxq.deciding.relief`): arithmetic stays float that costs next to nothing in float, between layers
  or at the end. On a target without a table of costs it is Concats whose one scale is far too large for some of what
  they read (:mod:`onnxq.deciding.ties`), and arithmetic just before float arithmetic that amplifies its noise
  (:mod:`onnxq.deciding.tails`).
- Below 30 dB: weights that float layers store as integers take 16 bits, where 8 cost as much as that. So they do once
  more behind the steps below, where these have left less in integers, which hid what the weights cost.
- Below 12 dB (:mod:`onnxq.deciding.rescue`): the layers to blame stay float; on a target without costs, other
  arithmetic too. Where no float may stand in between, all activations take 16 bits if the target has them
  (:mod:`onnxq.deciding.wide_activations`) and 3 dB come of it; it is the only step there.
- Only weights are quantized, where that gains 3 dB and the result is of no use otherwise (below 10 dB), or hardly
  faster than float (:mod:`onnxq.deciding.saving`): below 18 dB, which blaming layers aims for, where integers save less
  than a fifth of the time with conversions left out, which is next to nothing once these are paid; below 40 dB, where
  they save next to nothing with conversions counted. For less than 3 dB it is not done: most of the noise is then that
  of weights, which weights stored for float layers have as well, and all the speed would be given up for a hair.

The last two go by what varies in an output, since a large mean hides how much of that is lost; the first two by all of
it. An output's error is held against its signal over all the data (:mod:`onnxq.measuring.judging`), and the worst
output decides. An output that has another shape than the float model's in some sample decides nothing: its rows depend
on the numbers, and no layer is to blame.

Neither do the poor probabilities of a classifier that is sure of itself (:mod:`onnxq.deciding.sure_classes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from onnxq.calibration.roles import samples_to_verify
from onnxq.deciding.decide import decide
from onnxq.deciding.decider import Decider
from onnxq.deciding.relief import FINE
from onnxq.deciding.rescue import LEAST_GAIN, POOR, TARGET
from onnxq.deciding.saving import saving
from onnxq.deciding.sure_classes import sure_classes
from onnxq.deciding.what_hurts import Raised, storable, to_relieve, to_rescue, to_widen, worst_kept, worst_level
from onnxq.deciding.wide_activations import all_wide
from onnxq.effort import learns
from onnxq.errors import OptionError
from onnxq.graph.picking import PICKED_FROM
from onnxq.measuring.chosen_rows import chosen_rows, rows_said
from onnxq.measuring.judging import judged, lifts
from onnxq.measuring.metrics import kept_signal
from onnxq.measuring.verification import Verification
from onnxq.notes.reasons import LOST
from onnxq.planning.one_way import require_one_way
from onnxq.quantized import Quantized

__all__ = ["mend"]

_MANY_OUTPUTS = 4
_MANY = (
    "{} outputs are judged, and the worst of them decides what stays float: those that nobody reads are best taken out "
    "of the model first (onnx.utils.extract_model)"
)
_COARSE = 30.0
"""dB: only a result below this is worth weights of twice the size."""
_USELESS = 10.0
"""dB: below this a model is of no use, and weights alone are quantized where that leaves one that is."""
_LEAST_SAVED = 0.2
"""Of the time, that integers must save by the table to be worth less than is aimed for: five models of which they save
0.02, 0.10, 0.13, 0.14 and 0.16 ran 1.01, 1.10, 0.93, 1.15 and 1.2 times as fast."""
_LEAST_NET = 0.08
"""Of the time, that integers must save by the table, conversions paid, where they leave less than 40 dB. Five models of
which they save 0.01 to 0.07 (face, iris and portrait nets of MediaPipe, O-Net) have 2 to 26 dB more with weights
alone, and are 0.02 of the time slower to 0.07 faster; two of which they save 0.08 and 0.10 ran 0.09 faster by them."""
_HARDLY_BETTER = (
    "weights alone as integers would leave {:.1f} dB of the worst output in place of {:.1f}: not {:g} dB more, so "
    "layers compute in integers"
)
_WIDE = (
    "activations have 16 bits: with 8, {:.1f} dB are left of what varies in the worst output, and {:.1f} with 16; "
    "--act-bits 8 keeps 8"
)
_GIVEN_UP = (
    "layers stay float that would save about {:.0%} of the time in integers, since {:.1f} dB are too little of the "
    "worst output: --min-sqnr {} computes them in integers all the same"
)
_BY_ITS_MEAN = 1.0
"""dB that an output's SQNR is above that of what varies in it, from which on it is said which of the two is meant."""

Verify = Callable[[Quantized], Verification]


def mend(
    decider: Decider,
    quantized: Quantized,
    verification: Verification,
    verify: Verify,
    raised: Raised,
) -> tuple[Quantized, Verification]:
    """A better result, with more of it in float; the one given where that is good enough, or where nothing helps.

    Args:
        decider: what made it; from now on it keeps float what the mended result does. Notes and hints go there.
        quantized: the result.
        verification: of it.
        verify: verifies a result made on the way.
        raised: the float model at an opset that has 16-bit weights; None where the result may hold none.

    Returns:
        The result and its verification.
    """
    if verification.worst is None:
        return quantized, verification
    mending = _Mending(decider, quantized, verification, verify)
    if decider.target.mixes:
        mending.in_float(raised)
    else:
        mending.look_behind_softmax()
        mending.compute_wide()
    decider.notes += rows_said(chosen_rows(decider.model))
    return mending.quantized, mending.verification


class _Mending:
    """A poor result on its way to a better one: a step a method, each nothing where the result is good enough for it.

    Attributes:
        quantized: the result as it is now.
        verification: of it.
    """

    def __init__(self, decider: Decider, quantized: Quantized, verification: Verification, verify: Verify) -> None:
        self.quantized, self.verification = quantized, verification
        self._decider, self._verify = decider, verify
        outputs = verification.outputs.items()
        self._judges = {name for name, errors in outputs if not errors.reshaped and not math.isnan(errors.sqnr)}
        verified = samples_to_verify(decider.statistics.kept, learns(decider.options), decider.target.at_home)
        self._louder = lifts(verified, decider.statistics)
        self._rescued = False

    def in_float(self, raised: Raised) -> None:
        """All the steps that keep more of the model float, or its stored weights finer."""
        self.relieve()
        self.widen(raised)
        self.look_behind_softmax()
        looked_at = self.quantized
        self.rescue()
        self.store()
        if self.quantized is not looked_at:
            self.widen(raised)
        self.advise()

    def relieve(self) -> None:
        """Arithmetic that costs much in integers stays float, with its weights stored where these do no harm."""
        if self._score(self.verification) >= FINE:
            return
        reasons = to_relieve(self._decider, self.quantized, self._judges)
        if reasons:
            self._decider.keep_float(reasons, store=bool(storable(self._decider, reasons, self._judges, each=True)[0]))
            self._again()

    def widen(self, raised: Raised) -> None:
        """Weights that float layers store take 16 bits where 8 cost much."""
        if self._score(self.verification) >= _COARSE:
            return
        model, reasons = to_widen(self._decider, self.quantized, self._judges, raised)
        if reasons:
            self._decider.store_wide(model, reasons)
            self._again()

    def look_behind_softmax(self) -> None:
        """Probabilities that are all or nothing do not judge where the numbers that they are made of are good."""
        if self._kept(self.verification) < POOR:
            self._judges -= sure_classes(self._decider, self.quantized, self.verification).keys()

    def rescue(self) -> None:
        """The layers to blame stay float, where the result is better for it."""
        if self._kept(self.verification) >= POOR:
            return
        decider = self._decider
        reasons = to_rescue(decider, self.quantized, self._judges)
        if not reasons:
            return
        store = bool(storable(decider, reasons, self._judges)[0])
        rescued = decider.again(reasons, store=store).quantized
        better = self._verify(rescued)
        if self._kept(better) > self._kept(self.verification):
            self.quantized, self.verification = rescued, better
            decider.keep_float(reasons, store=store)
            self._rescued = True

    def compute_wide(self) -> None:
        """What a target without float in between computes has 16 bits, where that is better."""
        decider, before = self._decider, self._kept(self.verification)
        wider = all_wide(decider.model, self.quantized.plan, decider.target, decider.options) if before < POOR else None
        if wider is None:
            return
        wide = decider.asking(wider)
        result = decide(wide)
        try:
            require_one_way(result.plan, decider.target, wider)
        except OptionError:  # a node that the user wants in 8 bits, where a tensor has one width for all
            return
        better = self._verify(result)
        now = self._kept(better)
        if now >= before + LEAST_GAIN and now > -math.inf:
            decider.become(wide)
            self.quantized, self.verification = result, better
            decider.hints.append(_WIDE.format(before, now))

    def store(self) -> None:
        """Only weights are quantized where the result is of no use otherwise, or hardly faster than float.

        It has to be better then by 3 dB at least.
        """
        decider = self._decider
        if not decider.target.stores_weights:
            return
        useless = self._lost(self.verification, min(decider.options.min_sqnr, _USELESS))
        lost = useless or self._not_worth()
        if not lost:
            return
        reasons = dict.fromkeys(self.quantized.plan.quantized, lost)
        stored = decider.again(reasons, store=True).quantized
        better = self._verify(stored)
        if stored.plan.quantized or self._lost(better, decider.options.min_sqnr):
            return
        now, then = self._kept(self.verification), self._kept(better)
        if then < now + LEAST_GAIN:
            if self._lost(self.verification, TARGET):
                decider.hints.append(_HARDLY_BETTER.format(then, now, LEAST_GAIN))
            return
        saved = saving(decider.model, self.quantized.plan, decider.target, decider.sizes)
        if useless and math.isfinite(now) and saved.net >= _LEAST_NET:
            decider.hints.append(_GIVEN_UP.format(min(saved.net, saved.most), now, math.floor(now)))
        decider.keep_float(reasons, store=True)
        self.quantized, self.verification, self._rescued = stored, better, False

    def advise(self) -> None:
        """Where layers stay float for one output of many: say that outputs nobody reads are best cut off."""
        outputs = [v for v in self._decider.model.graph.outputs if v.name in self._judges and PICKED_FROM not in v.meta]
        if self._rescued and len(outputs) >= _MANY_OUTPUTS:
            self._decider.hints.append(_MANY.format(len(outputs)))

    def _not_worth(self) -> str:
        """Why integers are not worth what they cost the output that suffers most; empty where they are."""
        decider, options = self._decider, self._decider.options
        if options.min_sqnr < _USELESS or options.placement != "auto" or not decider.target.by_cost:
            return ""
        lost = self._lost(self.verification, FINE)
        if not lost:
            return ""
        saved = saving(decider.model, self.quantized.plan, decider.target, decider.sizes)
        if self._lost(self.verification, TARGET) and saved.most < _LEAST_SAVED:
            return f"{lost}, and they save {max(saved.most, 0.0):.0%} of the time at most"
        return f"{lost}, and they save {max(saved.net, 0.0):.0%} of the time" if saved.net < _LEAST_NET else ""

    def _again(self) -> None:
        self.quantized = self._decider.again().quantized
        self.verification = self._verify(self.quantized)

    def _score(self, verification: Verification) -> float:
        return worst_level(verification.outputs, self._louder, self._judges)

    def _kept(self, verification: Verification) -> float:
        return worst_kept(verification.outputs, self._louder, self._judges)

    def _lost(self, verification: Verification, floor: float) -> str:
        """What is left, its mean apart, of the output that suffers most; empty where all outputs have the floor."""
        outputs = verification.outputs.items()
        left = judged({name: kept_signal(e) for name, e in outputs if name in self._judges}, self._louder)
        worst = min(left, key=lambda name: left[name], default="")
        if not left or left[worst] >= floor:
            return ""
        errors = verification.outputs[worst]
        varying = "what varies in " if errors.sqnr - kept_signal(errors) > _BY_ITS_MEAN else ""
        level = f"{left[worst]:.1f} dB are" if math.isfinite(left[worst]) else "nothing is"
        return f"{LOST}{level} left of {varying}output {worst!r}"
