"""DoReFa: weights are squashed by tanh before they are rounded.

Zhou et al., DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth Gradients, 2016,
equation 9: ``w' = tanh(w) / max |tanh(w)|`` is rounded on a grid over [-1, 1]. The grid is the target's here; its
scales, one a channel or one for the tensor, follow from ``w'`` in each step.
"""

from __future__ import annotations

import torch

from onnxq.errors import OptionError
from onnxq.qparams import QParams
from onnxq.ranged import from_range
from onnxq.torch.quantizers.ema import Fixed

__all__ = ["DoReFa"]

Tensor = torch.Tensor


class DoReFa(Fixed):
    """Squashed weights. What is exported is the squashed weight, so nothing of tanh is left at run time.

    Equation 9 gives weights in [-1, 1] whatever they were; the sizes of the float weights are kept here, as a factor
    found at calibration, so that what was trained before is not lost.
    """

    size: Tensor

    def build(self, channels: int) -> None:
        """See :meth:`Quantizer.build`."""
        if not self.weight:
            raise OptionError("DoReFa is for weights", where="prepare", hint="Activations take 'pact' or 'lsq'")
        super().build(channels)
        self.register_buffer("size", torch.ones(()))

    def start_weight(self, qp: QParams, weight: Tensor) -> None:
        """See :meth:`Quantizer.start_weight`."""
        self.size.copy_(weight.abs().max())
        self.start(qp)

    def grid_input(self, x: Tensor) -> Tensor:
        """The squashed weight; one that is or was zero throughout has no size to keep and is left as it is."""
        size = torch.where(self.size > 0, self.size, torch.ones_like(self.size))
        squashed = torch.tanh(x / size)
        top = squashed.abs().max()
        none = (self.size == 0) | (top == 0)
        return torch.where(none, x, squashed / torch.where(none, torch.ones_like(top), top) * size)

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        x = self.grid_input(x)
        if self.training:
            with torch.no_grad():
                self.observer.forget()
                self.observer.watch(x.detach(), self.spec)
                self.start(from_range(*self.observer.range("a weight in training"), self.spec))
        return super().quantize(x)

    def watch(self, x: Tensor) -> None:
        """Watch the squashed weight, at the size that the weight has now."""
        self.size.copy_(x.abs().max())
        super().watch(self.grid_input(x))
