"""What is known of a quantizer in a model of any tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["QuantizedTensor", "kinds_said"]


@dataclass(frozen=True)
class QuantizedTensor:
    """A quantizer in a model.

    Attributes:
        tensor: name of the float tensor, or of the stored integers.
        role: ``"activation"``, ``"weight"`` or ``"bias"`` (a 32-bit constant).
        dtype: the integer type, e.g. ``"uint8"``; ``"log8"`` is the logarithmic grid of 8 bits, ``"16 levels"`` one of
            OpenVINO's that is none of integers.
        scales: number of scales; 1 is per tensor.
        axis: of the scales, None per tensor.
        scale: smallest and largest scale, None if they are computed by the model, or where there is none; of a
            logarithmic grid the clip value.
        zero_point: smallest and largest zero point, None if they are computed by the model, or where there is none.
        readers: operator types of the nodes that read it.
        output: it is an output of the model, quantized.
    """

    tensor: str
    role: str
    dtype: str
    scales: int
    axis: int | None
    scale: tuple[float, float] | None
    zero_point: tuple[int, int] | None
    readers: tuple[str, ...]
    output: bool = False


def kinds_said(found: Iterable[QuantizedTensor]) -> str:
    """How many of each role and type: ``2 int4 weights, 1 uint8 activation``."""
    kinds = Counter((q.role, q.dtype) for q in found)
    plurals = {"bias": "biases"}
    return ", ".join(
        f"{count} {dtype} {role if count == 1 else plurals.get(role, f'{role}s')}"
        for (role, dtype), count in kinds.items()
    )
