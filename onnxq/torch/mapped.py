"""What a target's plan comes to among the calls of a module: quantizers, biases, and what stays float."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxq.plan import Plan
from onnxq.spec import QuantSpec
from onnxq.torch.marks import Place

__all__ = ["BiasRule", "Mapped", "Spot"]


@dataclass(frozen=True, slots=True)
class Spot:
    """A quantizer that the plan wants.

    Attributes:
        spec: its grid; the axis is that of torch's tensor.
        weight: of a weight, else of an activation.
        fixed: the range, where it is given by an operator's definition.
        places: tensors of calls that it quantizes.
        channels: along the axis, 1 per tensor.
        shape: of the tensor at its places, where it is the same at all of them, and one weight.
    """

    spec: QuantSpec
    weight: bool
    fixed: tuple[float, float] | None
    places: tuple[Place, ...]
    channels: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class BiasRule:
    """A bias in units of the scales of data and weight.

    Attributes:
        call: of the layer.
        position: of the bias among the call's arguments; None where it is not one of them.
        data: the data's place.
        weight: the weight's place.
        norm: the call of the batch normalization that folds into the layer.
    """

    call: str
    position: str | None
    data: Place
    weight: Place
    norm: str | None


@dataclass(slots=True)
class Mapped:
    """What is put where.

    Attributes:
        spots: quantizers.
        biases: rounded biases, by layer.
        left: node → why it stays float although the target would quantize it.
        weights: those of them whose weights the target would store as integers.
        plan: the plan itself, of the example's graph.
        calls: every call seen.
        notes: what is done to the graph for the target before it is quantized.
        refolded: layers whose weights have to be quantized behind the folding of their batch normalization.
    """

    spots: list[Spot]
    biases: list[BiasRule]
    left: dict[str, str]
    weights: list[str]
    plan: Plan
    calls: set[str]
    notes: list[str]
    refolded: list[str] = field(default_factory=list)
