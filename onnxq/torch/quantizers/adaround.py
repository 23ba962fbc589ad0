"""AdaRound: for every weight it is learned whether it is rounded up or down.

Nagel et al., Up or Down? Adaptive Rounding for Post-Training Quantization, 2020, equations 21 to 24:
``W = s clip(floor(W0 / s) + h(V) + z, n, p)`` less ``z``, with ``h(V) = clip(1.2 sigmoid(V) - 0.1, 0, 1)``, and a
regularizer ``sum of 1 - |2 h(V) - 1| ** beta`` that drives ``h`` to 0 or 1, which the user adds to the loss::

    loss = task(model(x), y) + 0.01 * onnxq.torch.rounding_loss(model, onnxq.torch.rounding_beta(step, steps))
"""

from __future__ import annotations

import torch

from onnxq.errors import OptionError
from onnxq.qparams import QParams
from onnxq.torch.quantizers.base import Tensor
from onnxq.torch.quantizers.ema import Fixed
from onnxq.torch.rounded_up import rounded_up, start_of

__all__ = ["AdaRound", "rounding_beta", "rounding_loss"]

_STIFFEST, _SOFTEST = 20.0, 2.0
"""First and last exponent of the regularizer."""
_ROUNDED = 0.05
"""How near to 0 or 1 a weight counts as rounded."""


class AdaRound(Fixed):
    """A weight at the numbers next to the calibrated one: in between while training, at one of them in evaluation.

    The weight itself is not trained: it gets no gradient, and what is computed does not depend on it any more.

    Attributes:
        v: what is learned, of the weight's shape; rounded up where it is 0 or more.
        trained: it ran in training mode.
        regularized: the regularizer was asked for.
    """

    by_element = True
    floor: Tensor

    def build(self, channels: int) -> None:
        """See :meth:`Quantizer.build`."""
        if not self.weight:
            raise OptionError("AdaRound is for weights", where="prepare", hint="Activations take 'qdrop' or 'lsq'")
        if self.shape is None:
            raise OptionError("AdaRound needs the shape of the weight", where="quantizer 'adaround'")
        super().build(channels)
        self.v = torch.nn.Parameter(torch.zeros(self.shape))
        self.register_buffer("floor", torch.zeros(self.shape))
        self._seen: Tensor | None = None
        self.trained = self.regularized = False

    def watch(self, x: Tensor) -> None:
        """See :meth:`Quantizer.watch`; remembers the weight."""
        super().watch(x)
        self._seen = x

    def settle(self, where: str) -> None:
        """See :meth:`Quantizer.settle`; rounding starts from the weight watched."""
        super().settle(where)
        if self._seen is not None:
            self.round_from(self._seen)
        self._seen = None

    def start_weight(self, qp: QParams, weight: Tensor) -> None:
        """See :meth:`Quantizer.start_weight`."""
        self.start(qp)
        self.round_from(weight)

    def round_from(self, weight: Tensor) -> None:
        """Begin with what gives this weight, where it is within the grid."""
        with torch.no_grad():
            ratio = weight.to(self.floor.dtype) / self.shaped(self.scale, weight)
            self.floor.copy_(torch.floor(ratio))
            self.v.copy_(start_of(ratio - self.floor))

    def up(self) -> Tensor:
        """How far each weight is rounded up, 0 to 1, differentiable."""
        return rounded_up(self.v)

    def regularizer(self, beta: float) -> Tensor:
        """``sum of 1 - |2 h(V) - 1| ** beta``: 0 where every weight is rounded."""
        self.regularized = True
        return (1 - (2 * self.up() - 1).abs().pow(beta)).sum()

    @property
    def undecided(self) -> float:
        """Share of the weights that trained between two numbers, where the regularizer was left out."""
        if self.regularized or not self.trained:
            return 0.0
        with torch.no_grad():
            up = self.up()
            return float(((up > _ROUNDED) & (up < 1 - _ROUNDED)).float().mean())

    def grid_input(self, x: Tensor) -> Tensor:
        """The weight as rounded up or down."""
        return self._on_grid((self.v >= 0).to(self.floor.dtype)).detach()

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        self.trained = self.trained or self.training
        return self._on_grid(self.up()) if self.training else self.grid_input(x)

    def _on_grid(self, up: Tensor) -> Tensor:
        scale, zero = self.shaped(self.scale, self.floor), self.shaped(self.zero_point, self.floor)
        return torch.minimum(torch.maximum(self.floor + up, self.spec.qmin - zero), self.spec.qmax - zero) * scale


def rounding_loss(module: torch.nn.Module, beta: float) -> Tensor:
    """The regularizer of all AdaRound quantizers of a module, a scalar to be added to the loss.

    Args:
        module: with quantizers in it.
        beta: exponent, see :func:`rounding_beta`.

    Raises:
        OptionError: it has none.
    """
    found = [part.regularizer(beta) for part in module.modules() if isinstance(part, AdaRound)]
    if not found:
        raise OptionError("the module has no AdaRound quantizers", hint="Prepare it with weight_quantizer='adaround'")
    return torch.stack(found).sum()


def rounding_beta(step: int, steps: int, warmup: float = 0.2) -> float:
    """The exponent at a step: 20 for a share of the steps, then falling linearly to 2.

    Args:
        step: from 0 on.
        steps: in all.
        warmup: share of the steps at 20; the paper leaves the regularizer out there.
    """
    share = (step / max(steps, 1) - warmup) / max(1 - warmup, 1e-9)
    return _STIFFEST + (_SOFTEST - _STIFFEST) * min(max(share, 0.0), 1.0)
