"""What a comparison of two models found: per output, and per tensor in between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxq.measuring.metrics import Errors, jsonable
from onnxq.measuring.outputs import worst_output

__all__ = ["Comparison", "TensorErrors"]


@dataclass(frozen=True)
class TensorErrors:
    """A tensor inside the model.

    Attributes:
        tensor: its name in the float model.
        node: name of the node that writes it, empty for a model input.
        op: that node's operator type, ``"Input"`` for a model input.
        quantized: it is quantized itself; else only what comes before it is.
        errors: how far it is from the float one.
        drop: dB lost at this node: the lowest SQNR of what it is computed from, at most 40 (model inputs and constants
            have that), less its own; NaN for a model input, where masks of the float model lie in other places, and
            within a normalization or another function that is written as a chain of operators, all of it in float.
    """

    tensor: str
    node: str
    op: str
    quantized: bool
    errors: Errors
    drop: float = math.nan


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        samples: number of samples compared.
        outputs: model output → its errors.
        tensors: tensors that both models have, in the order of the float graph.
        unmatched: float tensors of the float model that the quantized one has no more (fused or folded away).
        warnings: what a user should know.
        backend: the target by which the quantized model was read; None where it was taken as it is.
    """

    samples: int
    outputs: Mapping[str, Errors]
    tensors: tuple[TensorErrors, ...] = ()
    unmatched: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = ()
    backend: str | None = None

    @property
    def worst(self) -> tuple[str, Errors] | None:
        """The float output with the lowest SQNR, see :func:`onnxq.measuring.outputs.worst_output`."""
        return worst_output(self.outputs)

    def largest_drops(self, count: int = 5) -> list[TensorErrors]:
        """The tensors where most dB are lost at once, worst first."""
        found = [t for t in self.tensors if t.drop > 0]
        return sorted(found, key=lambda t: -t.drop)[:count]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data; see `onnxq.measuring.metrics.jsonable` for NaN and infinities."""
        return {
            "samples": self.samples,
            "backend": self.backend,
            "outputs": {name: errors.to_dict() for name, errors in self.outputs.items()},
            "tensors": [
                {
                    "tensor": t.tensor,
                    "node": t.node,
                    "op": t.op,
                    "quantized": t.quantized,
                    "drop": jsonable(t.drop),
                    **t.errors.to_dict(),
                }
                for t in self.tensors
            ],
            "unmatched": list(self.unmatched),
            "warnings": list(self.warnings),
        }
