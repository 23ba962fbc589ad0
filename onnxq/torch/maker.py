"""From the names of a quantizer and an observer to the quantizers of a module."""

from __future__ import annotations

from onnxq.errors import OptionError
from onnxq.spec import PerBlock, QuantSpec, Scheme
from onnxq.torch.observers import observer_named
from onnxq.torch.quantizers import Quantizer, quantizer_named

__all__ = ["Maker"]

_WIDEST = 16
"""Bits up to which float32 holds every integer of a grid."""


class Maker:
    """Makes quantizers of one kind.

    Args:
        quantizer: name and parameters; what suits the grid if None.
        observer: name and parameters.
        target: whose grids they are, for messages.

    Raises:
        OptionError: there are none of that name.
    """

    def __init__(self, quantizer: str | None, observer: str, target: str) -> None:
        self.name, self.observer_name, self.target = quantizer, observer, target
        self.kinds = {
            Scheme.UNIFORM: quantizer_named(quantizer or "lsq"),
            Scheme.LOGARITHMIC: quantizer_named(quantizer or "logarithmic"),
        }
        self.observer = observer_named(observer)

    def make(
        self,
        spec: QuantSpec,
        channels: int,
        *,
        weight: bool,
        fixed: tuple[float, float] | None,
        shape: tuple[int, ...] | None,
    ) -> Quantizer:
        """A quantizer; see :class:`onnxq.torch.quantizers.Quantizer` for the arguments.

        Raises:
            OptionError: the method or its observer does not know such a grid.
        """
        if spec.bits > _WIDEST or isinstance(spec.granularity, PerBlock) or spec.scheme not in self.kinds:
            raise OptionError(f"no quantizer trains the grid that {self.target} wants: {spec}", where="prepare")
        observer = self.observer()
        made = self.kinds[spec.scheme](
            spec, channels, weight=weight, observer=observer, fixed=fixed, shape=shape if weight else None
        )
        if made.scheme is not spec.scheme:
            raise OptionError(
                f"{self.target} wants a {spec.scheme.value} grid, and {self.name!r} is for {made.scheme.value} ones",
                where="quantizer",
                hint="Leave the quantizer out to get one that fits",
            )
        if observer.uniform_only and spec.scheme is not Scheme.UNIFORM:
            raise OptionError(
                f"{self.observer_name!r} is for uniform grids, and {self.target} wants a {spec.scheme.value} one",
                where="observer",
                hint="Use minmax, ema or quantile",
            )
        return made
