"""What was measured of float models on the samples held back, so that several targets with one model measure once."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.qparams import QParams

__all__ = ["Measured"]


@dataclass(slots=True, eq=False)
class Measured:
    """Numbers of models as they were given; nothing here is of a model whose weights an algorithm has changed.

    What is known of a model is forgotten with it: statistics may serve many models, one after the other.

    Attributes:
        means: model → tensor → the mean of each of its channels, float64, where the samples held back have none.
        biases: model → (node, parameters of its weight) → the bias corrected for the rounding of the weight; None where
            there is none to be had.
        kernels: model → node → parameters of its weight and the weight as rounded by
            :mod:`onnxq.algorithms.layerwise.round_kernels`.
    """

    means: WeakKeyDictionary[ir.Model, dict[str, NDArray[np.float64]]] = field(default_factory=WeakKeyDictionary)
    biases: WeakKeyDictionary[ir.Model, dict[tuple[str, QParams], NDArray[np.float32] | None]] = field(
        default_factory=WeakKeyDictionary
    )

    kernels: WeakKeyDictionary[ir.Model, dict[str, tuple[QParams, ir.TensorProtocol]]] = field(
        default_factory=WeakKeyDictionary
    )

    def __reduce__(self) -> tuple[type[Measured], tuple[()]]:
        """Pickled and copied without what is known of models: those are others then."""
        return (Measured, ())

    def clear(self) -> None:
        """Forget everything: the samples are others."""
        self.means.clear()
        self.biases.clear()
        self.kernels.clear()
