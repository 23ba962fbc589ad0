"""Whether training has made a model better, in onnxruntime, on samples that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.statistics import KeptSample
from onnxq.console.terminal import decibel, decibels
from onnxq.finetuning.teacher import not_the_model_quantized
from onnxq.graph.shapes import forget_shapes
from onnxq.measuring.chosen_rows import chosen_rows
from onnxq.measuring.final_check import first_look
from onnxq.measuring.outputs import worst_sqnr
from onnxq.ort.session import Session
from onnxq.prepare import Prepared
from onnxq.quantized import Quantized

__all__ = ["Judge"]

_GAIN, _ROUGH = 0.5, 10.0
"""dB by which the trained model must be better, and a tenth of what the model given has beyond so many: the better it
is, the fewer decisions an error can change, and to the worse as often as to the better. An effnet_lite0 of 8 bits and
25.0 dB came to 25.9 dB, and agreed with the float model on 138 of 150 photographs instead of 143."""


class Judge:
    """Compares models with the float one on samples that nothing was chosen by.

    Args:
        given: the quantized model before training, which is run here.
        teacher: the float model, see :func:`onnxq.finetuning.teacher.teacher_of`.
        held: feeds to judge by, at least one.
        places: of these in the data.

    Attributes:
        rows: outputs whose rows a TopK picked, see :func:`onnxq.measuring.chosen_rows.chosen_rows`.

    Raises:
        ModelError: an output has another shape in the quantized model, for the first sample: two models may use the
            same names.
    """

    def __init__(
        self, given: Quantized, teacher: ir.Model, held: Sequence[Mapping[str, NDArray[Any]]], places: Sequence[int]
    ) -> None:
        session = Session(teacher, optimize=False)
        self._places, self.rows = places, chosen_rows(teacher)
        self._given, self._held, self._exact = given, held, [session.run(feeds) for feeds in held]
        self._require_same_shapes()
        self._before = self._sqnr(given)

    def better_of(self, trained: Quantized, note: str, *, any_gain: bool) -> Quantized:
        """The trained model where it is enough better than the one given, else that.

        Args:
            trained: the model given, with other numbers.
            note: beginning of the note that says which it is and why.
            any_gain: take the trained one in any case.
        """
        given, before, after = self._given, self._before, self._sqnr(trained)
        least = max(_GAIN, (before - _ROUGH) / 10)
        note += f"{decibel(before)} to {decibels(after)}"
        if any_gain or after > before + least:
            return replace(trained, notes=(*given.notes, note), recipe=(*given.recipe, "finetune"))
        note += f", not {least:.1f} dB better: the model given is kept"
        return replace(given, notes=(*given.notes, note))

    def verified(self, made: Quantized, prepared: Prepared) -> Quantized:
        """With its verification on these samples; ``prepared``: the float model."""
        samples = enumerate(zip(self._held, self._exact, self._places, strict=True))
        kept = [KeptSample(k, dict(feeds), dict(outputs), source=place) for k, (feeds, outputs, place) in samples]
        result = made.rendered()
        forget_shapes(result)
        checked = first_look(
            prepared.model,
            result,
            kept,
            float_bytes=prepared.bytes,
            given=prepared.given,
            at_home=made.backend.at_home,
        ).completed()
        return replace(made, verification=checked)

    def _require_same_shapes(self) -> None:
        found = Session(self._given.rendered(), optimize=False).run(self._held[0])
        for name, wanted in self._exact[0].items():
            if found[name].shape != wanted.shape:
                raise not_the_model_quantized(
                    f"its output {name!r} has shape {wanted.shape}, that of the quantized model {found[name].shape}"
                )

    def _sqnr(self, quantized: Quantized) -> float:
        """Of the worst output, dB."""
        session = Session(quantized.rendered(), optimize=False)
        return worst_sqnr(session.run, zip(self._held, self._exact, strict=True), self.rows)
