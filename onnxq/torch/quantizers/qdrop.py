"""QDrop: in training, activations are quantized at random, value by value.

Wei et al., QDrop: Randomly Dropping Quantization for Extremely Low-bit Post-Training Quantization, 2022, equation 7:
a value passes as it is with probability ``drop``, else on the grid. The scale is learned as in LSQ.
"""

from __future__ import annotations

from typing import Any

import torch

from onnxq.errors import OptionError
from onnxq.spec import QuantSpec
from onnxq.torch.parameters import require
from onnxq.torch.quantizers.base import Tensor
from onnxq.torch.quantizers.lsq import LSQ

__all__ = ["QDrop"]


class QDrop(LSQ):
    """LSQ's learned grid; in training mode a share of the values is not quantized. In evaluation mode all are.

    Gradients: a value left out passes its gradient on whole and gives none to the scale; the others do as in LSQ.

    Args:
        drop: probability that a value is left out, 0 to 1.
        grad_scaling: see :class:`LSQ`.
    """

    def __init__(
        self, spec: QuantSpec, channels: int, *, drop: float = 0.5, grad_scaling: bool = True, **given: Any
    ) -> None:
        require("quantizer 'qdrop', drop", drop, 0, 1)
        super().__init__(spec, channels, grad_scaling=grad_scaling, **given)
        self.drop = drop

    def build(self, channels: int) -> None:
        """See :meth:`Quantizer.build`."""
        if self.weight:
            raise OptionError("QDrop is for activations", where="prepare", hint="Weights take 'adaround' or 'lsq'")
        super().build(channels)

    def quantize(self, x: Tensor) -> Tensor:
        """See :meth:`Quantizer.quantize`."""
        found = super().quantize(x)
        if not self.training or not self.drop:
            return found
        return torch.where(torch.rand_like(x) >= self.drop, found, x)
