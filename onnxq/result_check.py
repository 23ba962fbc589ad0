"""The check of a run's results: in full only that of the one which is taken.

A poor result is mended step by step, and looked at after each. That it loads and how far it is from float decides what
comes next; its speed, and whether it runs without graph optimizations, are measured once the steps are done.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from onnxq.calibration.roles import samples_to_verify
from onnxq.calibration.statistics import Statistics
from onnxq.console.progress import Reporter
from onnxq.deciding.relief import FINE
from onnxq.effort import learns
from onnxq.graph.shapes import forget_shapes
from onnxq.measuring.final_check import FirstLook, first_look
from onnxq.measuring.verification import Verification
from onnxq.options import Options
from onnxq.prepare import Prepared
from onnxq.quantized import Quantized

__all__ = ["ResultCheck"]


class ResultCheck:
    """Checks results of one float model.

    Args:
        prepared: the float model.
        statistics: of it, with the samples that results are run on.
        options: what the user asked for.
        reporter: shows progress.
        picked: outputs that are not compared, see :mod:`onnxq.graph.picking`.
        searched: poor results are searched for better ones, which takes memory: only one that is good enough as it is
            stays loaded.
    """

    def __init__(
        self,
        prepared: Prepared,
        statistics: Statistics,
        options: Options,
        reporter: Reporter,
        picked: Collection[str] = (),
        *,
        searched: bool = False,
    ) -> None:
        self._prepared, self._statistics, self._options = prepared, statistics, options
        self._reporter, self._picked, self._searched = reporter, picked, searched
        self._last: tuple[Quantized, FirstLook] | None = None

    def look(self, quantized: Quantized) -> Verification:
        """How far a result is from float.

        Raises:
            VerificationError: it is not valid, or does not run.
        """
        self.forget()
        with self._reporter.phase("check", total=1, unit="models") as advance:
            seen = self._looked(quantized)
            advance(1)
        worst = seen.verification.worst
        if not self._searched or worst is None or worst[1].sqnr >= FINE:
            self._last = quantized, seen
        return seen.verification

    def complete(self, quantized: Quantized, verification: Verification) -> Verification:
        """What :meth:`look` gave for a result, with all that the full check tells besides.

        Raises:
            VerificationError: the result does not run without graph optimizations.
        """
        last = self._last
        self.forget()
        if not quantized.backend.at_home:
            return verification  # there is no more to tell
        with self._reporter.phase("measure speed", total=1, unit="models") as advance:
            seen = last[1] if last is not None and last[0] is quantized else self._looked(quantized, again=True)
            full = seen.completed()
            advance(1)
        return _told_all(verification, seen, full)

    def complete_as(self, written: Quantized, verification: Verification) -> Verification:
        """What :meth:`complete` gives, where the result that was looked at had outputs that the written one has not.

        Args:
            written: the result without these outputs: it is checked from the start, its size and speed are told.
            verification: how far the one with them is from float.

        Raises:
            VerificationError: the result is not valid, or does not run.
        """
        self.forget()
        with self._reporter.phase("measure speed", total=1, unit="models") as advance:
            seen = self._looked(written)
            full = seen.completed()
            advance(1)
        return _told_all(verification, seen, full)

    def forget(self) -> None:
        """Let go of the result that was looked at last, which is still loaded."""
        self._last = None

    def _looked(self, quantized: Quantized, *, again: bool = False) -> FirstLook:
        result = quantized.simulated() if quantized.is_simulated else quantized.rendered()
        forget_shapes(result)
        return first_look(
            self._prepared.model,
            result,
            samples_to_verify(self._statistics.kept, learns(self._options), quantized.backend.at_home),
            float_bytes=self._prepared.bytes,
            given=self._prepared.given,
            **self._options.session,
            at_home=quantized.backend.at_home,
            picked=self._picked,
            again=again,
        )


def _told_all(verification: Verification, seen: FirstLook, full: Verification) -> Verification:
    """A verification, with what the full check of the result tells beside what a look at it did."""
    names = ("plain_sqnr", "quantized_bytes", "speedup", "float_seconds", "other_size")
    lost = full.warnings[len(seen.verification.warnings) :]
    more: dict[str, Any] = {name: getattr(full, name) for name in names}
    return replace(verification, warnings=(*verification.warnings, *lost), **more)
