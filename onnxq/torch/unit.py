"""A block of a model made ready to learn, and the samples that go through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.plan import Edge
from onnxq.torch.executor import Executor
from onnxq.torch.weights import ActivationGrid, LearnedWeight

__all__ = ["OtherShapeError", "Samples", "Unit"]

Tensor = torch.Tensor
Arrays = Mapping[str, NDArray[np.generic]]


class OtherShapeError(Exception):
    """What a block gives has another shape than in the float model: a size inside it is computed from its numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """What goes into a block and what should come out, sample by sample.

    Attributes:
        inputs: as the quantized model in front of it gives them.
        floats: as the float model gives them.
        targets: the float model's output.
    """

    inputs: Sequence[Mapping[str, Tensor]]
    floats: Sequence[Mapping[str, Tensor]]
    targets: Sequence[Tensor]

    @classmethod
    def of(cls, inputs: Sequence[Arrays], floats: Sequence[Arrays], targets: Sequence[NDArray[np.generic]]) -> Samples:
        """Samples from arrays."""
        made = [
            [{n: torch.from_numpy(np.array(a)) for n, a in row.items()} for row in rows] for rows in (inputs, floats)
        ]
        return cls(made[0], made[1], [torch.from_numpy(np.array(t)) for t in targets])

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(eq=False)
class Unit:
    """A block made ready to learn.

    Attributes:
        executor: of its nodes, to one output.
        weights: weights to learn, by name.
        biases: biases to learn by name, with the unit in which each moves; shapes of the model.
        grids: quantizers of activations and of constants that are not learned, by input of a node.
        present: constants as they are now, on their grids.
        fitting: samples to learn from.
        held: samples to judge by.
        moves: how far biases have moved, in their units, by name; learned.
    """

    executor: Executor
    weights: Mapping[str, LearnedWeight]
    biases: Mapping[str, tuple[Tensor, Tensor]]
    grids: Mapping[Edge, ActivationGrid]
    present: Mapping[str, Tensor]
    fitting: Samples
    held: Samples
    moves: Mapping[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.moves = {name: torch.zeros_like(b, requires_grad=True) for name, (b, _) in self.biases.items()}

    @property
    def distinct_grids(self) -> list[ActivationGrid]:
        """Quantizers without repeats."""
        return list({id(grid): grid for grid in self.grids.values()}.values())

    def bias(self, name: str) -> Tensor:
        """A bias as learned so far."""
        start, unit = self.biases[name]
        return start + self.moves[name] * unit

    def soft(self) -> dict[str, Tensor]:
        """Constants to learn with."""
        return {**{n: w.value() for n, w in self.weights.items()}, **{n: self.bias(n) for n in self.biases}}

    def hard(self) -> dict[str, Tensor]:
        """Constants as they would be written now."""
        with torch.no_grad():
            rounded = {n: torch.from_numpy(w.result()[0]) for n, w in self.weights.items()}
            return {**rounded, **{n: self.bias(n).detach() for n in self.biases}}

    def output(self, feeds: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> Tensor:
        """What the quantized block gives."""
        (name,) = self.executor.outputs
        return self.executor.run(feeds, weights=constants, quantizers=self.grids)[name]

    def gap(self, feeds: Mapping[str, Tensor], constants: Mapping[str, Tensor], target: Tensor) -> Tensor:
        """What the quantized block gives, less what it should give.

        Raises:
            OtherShapeError: the two have not one shape.
        """
        made = self.output(feeds, constants)
        if made.shape != target.shape:
            raise OtherShapeError(f"{tuple(made.shape)}, not {tuple(target.shape)}")
        return made - target

    def error(self, samples: Samples, constants: Mapping[str, Tensor]) -> float:
        """Mean squared error of the block's output over samples, float64; see :meth:`gap`."""
        total, count = 0.0, 0
        with torch.no_grad():
            for feeds, target in zip(samples.inputs, samples.targets, strict=True):
                gap = self.gap(feeds, constants, target)
                total += float(gap.double().square().sum())
                count += gap.numel()
        return total / max(count, 1)
