"""Weights and activation grids as things that torch can learn."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.qparams import QParams
from onnxq.qparams import fake_quantize as fake_quantize_array
from onnxq.spec import PerTensor
from onnxq.torch.fake_quantize import Grid, fake_quantize
from onnxq.torch.rounded_up import rounded_up, start_of

__all__ = ["ActivationGrid", "FreeWeight", "LearnedWeight", "RoundedWeight", "tensor_of"]

Tensor = torch.Tensor
Floats = NDArray[np.float32]

_EXACT = 0.25
"""How far from the code that a weight is rounded to now towards the exact weight learning begins, 0 to 1.

A kernel's errors that make up for each other already, or what another algorithm has found, are the better start: where
learning began with the exact weight, 500 steps often did not lead back to what was there before.
"""


def tensor_of(array: NDArray[np.floating]) -> Tensor:
    """A float32 copy of an array."""
    return torch.from_numpy(np.array(array, np.float32))


class LearnedWeight(ABC):
    """A weight on its way to a grid.

    Args:
        weight: of the float model, float32.
        qp: its numbers.

    Attributes:
        learned: what the optimizer changes.
    """

    def __init__(self, weight: Floats, qp: QParams, device: str = "cpu") -> None:
        self.qp = qp
        self.weight = torch.from_numpy(np.array(weight, np.float32)).to(device)
        self.grid = Grid.of(qp, tuple(weight.shape), device)
        self.learned: list[Tensor] = []

    @abstractmethod
    def value(self) -> Tensor:
        """What the layer computes with while it learns, differentiable."""

    @abstractmethod
    def result(self) -> tuple[Floats, QParams]:
        """The weight on its grid, and the numbers of that."""


class RoundedWeight(LearnedWeight):
    """AdaRound: each weight is rounded up or down, and which of the two is learned.

    ``W = s clip(floor(W / s) + h(V), n - z, p - z)`` with ``h(V) = clip(1.2 sigmoid(V) - 0.1, 0, 1)`` (Nagel et al., Up
    or Down? Adaptive Rounding for Post-Training Quantization, 2020, equations 21 to 24).

    Args:
        weight: of the float model, float32.
        qp: its numbers.
        rounded: the weight on its grid, as it is rounded now: learning begins a quarter of the way from there to the
            weight, and up and down are those beside that place, not beside the weight. Without it learning begins with
            the weight itself.
        device: of torch.
    """

    def __init__(self, weight: Floats, qp: QParams, rounded: Floats | None = None, device: str = "cpu") -> None:
        super().__init__(weight, qp, device)
        begin = self.weight / self.grid.scale
        if rounded is not None:
            codes = torch.round(tensor_of(rounded).to(device) / self.grid.scale)
            begin = codes + _EXACT * (begin - codes).clamp(-1.0, 1.0)
        self.floor = torch.floor(begin)
        self.v = start_of(begin - self.floor)
        self.v.requires_grad_()
        self.learned = [self.v]

    def up(self) -> Tensor:
        """How far each weight is rounded up, 0 to 1."""
        return rounded_up(self.v)

    def value(self) -> Tensor:
        """See :meth:`LearnedWeight.value`."""
        return self._on_grid(self.up())

    def result(self) -> tuple[Floats, QParams]:
        """See :meth:`LearnedWeight.result`."""
        with torch.no_grad():
            found = self._on_grid((self.v >= 0).to(torch.float32))
        return fake_quantize_array(found.cpu().numpy(), self.qp), self.qp

    def _on_grid(self, up: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(self.floor + up, self.grid.low), self.grid.high) * self.grid.scale


class FreeWeight(LearnedWeight):
    """AdaQuant and LSQ: the weight moves freely behind a straight-through rounding, and its scales with it."""

    def __init__(self, weight: Floats, qp: QParams, device: str = "cpu") -> None:
        super().__init__(weight, qp, device)
        self.steps = torch.zeros_like(self.weight, requires_grad=True)
        learn = not qp.spec.power_of_two and qp.scale.ndim < 2  # scales of blocks stay as they are
        self.stretch = torch.zeros_like(self.grid.scale, requires_grad=learn)
        self.learned = [self.steps]

    def scale(self) -> Tensor:
        """The scale as learned so far."""
        return self.grid.scale * torch.exp(self.stretch)

    def value(self) -> Tensor:
        """See :meth:`LearnedWeight.value`."""
        return fake_quantize(self.weight + self.steps * self.grid.scale, self.grid, self.scale())

    def result(self) -> tuple[Floats, QParams]:
        """See :meth:`LearnedWeight.result`."""
        with torch.no_grad():
            found = (self.weight + self.steps * self.grid.scale).cpu().numpy()
            stretch = torch.exp(self.stretch).cpu().numpy()
        qp = self.qp
        if self.stretch.requires_grad:
            qp = replace(qp, scale=np.asarray(qp.scale * stretch.reshape(qp.scale.shape), np.float32))
        return fake_quantize_array(found, qp), qp


class ActivationGrid:
    """A quantizer of activations: its scale may be learned, and some of its work be dropped while learning.

    Args:
        qp: its numbers.
        learn: whether the scale is to be learned.

    Attributes:
        stretch: logarithm of the factor on the scale, a scalar to be learned; None where it is not.
        drop: share of the values that are left as they are (Wei et al., QDrop: Randomly Dropping Quantization for
            Extremely Low-bit Post-Training Quantization, 2022, equation 7); 0 outside learning.
        generator: of what is dropped.
    """

    def __init__(self, qp: QParams, *, learn: bool = False, device: str = "cpu") -> None:
        learn = learn and isinstance(qp.spec.granularity, PerTensor) and not qp.spec.power_of_two
        self.qp, self.device = qp, device
        self.stretch = torch.zeros((), device=device, requires_grad=True) if learn else None
        self.drop = 0.0
        self.generator: torch.Generator | None = None
        self._grids: dict[tuple[int, ...], Grid] = {}

    def __call__(self, x: Tensor) -> Tensor:
        key = tuple(x.shape) if self.qp.scale.ndim else ()
        if key not in self._grids:
            self._grids[key] = Grid.of(self.qp, tuple(x.shape), self.device)
        grid = self._grids[key]
        scale = None if self.stretch is None else grid.scale * torch.exp(self.stretch)
        y = fake_quantize(x, grid, scale)
        if not self.drop:
            return y
        kept = torch.rand(x.shape, generator=self.generator, device=x.device) >= self.drop
        return torch.where(kept, y, x)

    def scale(self) -> Tensor:
        """The scale as learned so far."""
        scale = tensor_of(self.qp.scale).to(self.device)
        return scale if self.stretch is None else scale * torch.exp(self.stretch)

    def saturated(self, x: Tensor) -> Tensor:
        """Values within the grid's range as learned so far, not rounded; whatever their size where it has channels."""
        if self.qp.scale.ndim:
            return x
        qp = self.result()
        return x.clamp(float(qp.lo), float(qp.hi))

    def result(self) -> QParams:
        """Its numbers as learned so far."""
        if self.stretch is None:
            return self.qp
        return replace(self.qp, scale=np.asarray(self.qp.scale * np.float32(math.exp(self.stretch.item())), np.float32))
