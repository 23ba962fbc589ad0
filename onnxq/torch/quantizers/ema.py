"""A grid that follows the running range of the tensor while training, or stays as calibrated."""

from __future__ import annotations

import numpy as np
import torch

from onnxq.ranged import from_range
from onnxq.torch.quantizers.base import Quantizer
from onnxq.torch.quantizers.lsq import learned_grid

__all__ = ["EMA", "Fixed"]

Tensor = torch.Tensor


class Fixed(Quantizer):
    """The grid of calibration; the gradient passes straight through inside it (Bengio et al., 2013)."""

    scale: Tensor
    zero_point: Tensor

    def build(self, channels: int) -> None:
        """See :meth:`Quantizer.build`."""
        shape = (channels,) if self.axis is not None else ()
        self.register_buffer("scale", torch.ones(shape))
        self.register_buffer("zero_point", torch.zeros(shape))

    def set_numbers(self, scale: Tensor, zero: Tensor) -> None:
        """See :meth:`Quantizer.set_numbers`."""
        self.scale.copy_(scale)
        self.zero_point.copy_(zero)

    def numbers(self) -> tuple[Tensor, Tensor]:
        """See :meth:`Quantizer.numbers`."""
        return self.scale, self.zero_point

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        scale, zero = self.shaped(self.scale, x), self.shaped(self.zero_point, x)
        return learned_grid(x, scale, zero, self.spec.qmin, self.spec.qmax)


class EMA(Fixed):
    """The range goes on following its observer in training mode (Jacob et al., 2018, section 3.1); weights by each
    step's own values."""

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        self.follow(x)
        return super().quantize(x)

    def follow(self, x: Tensor) -> None:
        """Let the grid follow what passes, in training mode."""
        if self.training and self.fixed is None:
            with torch.no_grad():
                if self.weight:
                    self.observer.forget()
                self.observer.watch(x.detach(), self.spec)
                self.start(from_range(*self.observer.range("a tensor in training"), self.spec))

    def get_extra_state(self) -> Tensor:
        """The running range, that a checkpoint goes on from: (numbers, channels) or (numbers,), float64."""
        held = np.broadcast_arrays(*self.observer.held())
        return torch.from_numpy(np.stack(held) if held else np.zeros(0))

    def set_extra_state(self, state: Tensor) -> None:
        """See :meth:`get_extra_state`."""
        self.observer.go_on([np.asarray(row) for row in state.cpu().numpy()], self.spec)

    def settle(self, where: str) -> None:
        """Take the range that was watched, and keep what was seen to go on from it."""
        if self.fixed is None:
            self.start(from_range(*self.observer.range(where), self.spec))
