"""What training a whole model and learning a block of it have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from onnxq.errors import ModelError

__all__ = ["Annealed", "may_be_joined"]

Tensor = torch.Tensor
Tensors = Mapping[str, Tensor]


class Annealed:
    """Adam, whose learning rates fall to zero as half a cosine.

    Args:
        groups: what is learned, at which rate, and whether that falls; without anything or a rate a group is left out.

    Attributes:
        learned: all that is learned.

    Raises:
        ModelError: nothing is left.
    """

    def __init__(self, groups: Iterable[tuple[Sequence[Tensor], float, bool]]) -> None:
        kept = [(list(part), rate, falls) for part, rate, falls in groups if part and rate]
        self._rates = [(rate, falls) for _, rate, falls in kept]
        self.learned = [p for part, _, _ in kept for p in part]
        if not self.learned:
            raise ModelError("there is nothing to train", hint="No weight or scale of this model can be learned")
        self._adam = torch.optim.Adam([{"params": part, "lr": rate} for part, rate, _ in kept])

    def begin(self, share: float) -> None:
        """Begin a step at a share of the training: gradients are gathered from here on."""
        for group, (rate, falls) in zip(self._adam.param_groups, self._rates, strict=True):
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * share)) if falls else rate
        self._adam.zero_grad(set_to_none=True)

    def end(self) -> None:
        """Take the step, along the gradients."""
        self._adam.step()

    def state(self) -> list[Tensor]:
        """What has been learned by now."""
        return [p.detach().clone() for p in self.learned]

    def restore(self, state: Sequence[Tensor]) -> None:
        """Go back to a state."""
        with torch.no_grad():
            for p, saved in zip(self.learned, state, strict=True):
                p.copy_(saved)


def may_be_joined(samples: Sequence[Tensors], run: Callable[[Tensors], Tensors]) -> bool:
    """Whether samples may be run together, joined along the first axis: the first two give what each gives alone.

    Args:
        samples: to be run.
        run: gives the outputs.
    """
    if len(samples) < 2:
        return False
    shapes = [{n: tuple(x.shape) for n, x in sample.items()} for sample in samples]
    if any(s != shapes[0] for s in shapes) or not all(shapes[0].values()):
        return False
    first, second = samples[:2]
    try:
        with torch.no_grad():
            both = run({n: torch.cat([first[n], second[n]]) for n in first})
            apart = [run(sample) for sample in (first, second)]
    except (ModelError, RuntimeError):  # a shape written into the graph: samples are run one by one
        return False
    for name, x in both.items():
        if apart[0][name].ndim == 0:
            return False
        alone = torch.cat([a[name] for a in apart])
        largest = float(alone.abs().max()) if alone.numel() else 0.0
        if x.shape != alone.shape or not torch.allclose(x, alone, rtol=1e-3, atol=1e-4 * largest):
            return False
    return True
