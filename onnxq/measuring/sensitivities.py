"""What measuring the layers and activations of a model one at a time found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxq.measuring.metrics import jsonable
from onnxq.measuring.probe import Role

__all__ = ["Sensitivity", "SensitivityRow"]


@dataclass(frozen=True, slots=True)
class SensitivityRow:
    """What a layer's weights, or an activation, do to the outputs when they alone are quantized.

    Attributes:
        role: ``"weights"`` or ``"activations"``.
        nodes: the layers whose weights they are, or that read the activation; of all members where it is a group.
        ops: their operator types.
        tensors: the weights, or the activation and the tensors that share its scale.
        members: how many layers or activations were measured together, 1 unless there were too many.
        parameters: number of weights.
        sqnr: width in bits → SQNR at the worst output, dB; ``inf`` where nothing changed.
        outputs: width → output → SQNR, dB.
        local: width → SQNR of the layer's own output with its input in float, dB; empty where it was not measured.
    """

    role: Role
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    tensors: tuple[str, ...]
    members: int
    parameters: int
    sqnr: Mapping[int, float]
    outputs: Mapping[int, Mapping[str, float]]
    local: Mapping[int, float]

    @property
    def name(self) -> str:
        """The layer or the tensor; of a group the first, with the number of the others."""
        first = self.nodes[0] if self.role == "weights" else self.tensors[0]
        return first if self.members == 1 else f"{first} and {self.members - 1} more"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data; widths are strings, infinities ``"inf"``."""
        return {
            "name": self.name,
            "role": self.role,
            "nodes": list(self.nodes),
            "ops": list(self.ops),
            "tensors": list(self.tensors),
            "members": self.members,
            "parameters": self.parameters,
            "sqnr": {str(bits): jsonable(v) for bits, v in self.sqnr.items()},
            "outputs": {str(b): {n: jsonable(v) for n, v in found.items()} for b, found in self.outputs.items()},
            "local": {str(bits): jsonable(v) for bits, v in self.local.items()},
        }


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Which layers hurt.

    Attributes:
        backend: name of the target, which decides what is quantized.
        bits: the widths measured.
        rows: weights, then activations, in the order of the graph.
        together: role → width → SQNR at the worst output with all of that role quantized, dB.
        added: the same as the rows predict it, their noise added up: how far they can be trusted.
        samples: samples each measurement was made on.
        runs: measurements made.
        seconds: what they took.
        warnings: what a user should know of the figures.
    """

    backend: str
    bits: tuple[int, ...]
    rows: tuple[SensitivityRow, ...]
    together: Mapping[str, Mapping[int, float]]
    added: Mapping[str, Mapping[int, float]]
    samples: int
    runs: int
    seconds: float
    warnings: tuple[str, ...] = ()

    def of(self, role: str) -> list[SensitivityRow]:
        """The rows of a role, those that hurt most at the narrowest width first."""
        return sorted((row for row in self.rows if row.role == role), key=lambda row: row.sqnr[min(self.bits)])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        both = {"together": self.together, "added": self.added}
        totals = {
            key: {role: {str(b): jsonable(v) for b, v in found.items()} for role, found in table.items()}
            for key, table in both.items()
        }
        return {
            "backend": self.backend,
            "bits": list(self.bits),
            "samples": self.samples,
            "runs": self.runs,
            "seconds": round(self.seconds, 3),
            **totals,
            "warnings": list(self.warnings),
            "rows": [row.to_dict() for row in self.rows],
        }

    def to_svg(self) -> str:
        """The rows as a picture: a line a layer, a dot a width, further left hurts more."""
        from onnxq.measuring.sensitivity_plot import draw

        return draw(self)
