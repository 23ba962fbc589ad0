"""Learning a block: weights, biases and scales by gradient, so that its output comes close to the float model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from onnxq.torch.training import Annealed, may_be_joined
from onnxq.torch.unit import OtherShapeError, Samples, Unit
from onnxq.torch.weights import FreeWeight, RoundedWeight

__all__ = ["Fit", "OtherShapeError", "Samples", "Settings", "Unit", "learn"]

Tensor = torch.Tensor

_CHECKS = 10
"""How often the samples held back are looked at."""
_STIFFEST, _SOFTEST = 20.0, 2.0
"""First and last exponent of AdaRound's regularizer (Nagel et al., 2020, section 3.4)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to learn.

    Attributes:
        iterations: steps of Adam.
        batch: samples in a step.
        lr: step of what decides the rounding, or of weights in units of their scale.
        scale_lr: step of the logarithm of a scale, annealed to zero; 0 leaves scales alone.
        bias_lr: step of a bias in units of the noise that rounding makes; 0 leaves biases alone.
        drop: share of the activations that are not quantized in a step.
        warmup: share of the iterations without regularizer.
        regularize: strength of the regularizer, relative to the gradient of the error.
        seed: of the samples drawn and of what is dropped.
    """

    iterations: int
    batch: int
    lr: float
    scale_lr: float
    bias_lr: float
    drop: float
    warmup: float
    regularize: float
    seed: int


@dataclass(frozen=True, slots=True)
class Fit:
    """What learning did.

    Attributes:
        before: mean squared error on the samples held back, as the block was.
        after: the least error that was reached there; that state is left in the unit.
    """

    before: float
    after: float


def learn(unit: Unit, settings: Settings, advance: Callable[[int], None] = lambda step: None) -> Fit:
    """Learn a block; the state that was best on the samples held back is left in it.

    The error is the squared distance to the float model's output, summed over channels (axis 1) and averaged over the
    rest (Li et al., BRECQ, 2021, equation 10, without the Fisher weights).

    Args:
        unit: its weights, biases and grids are changed.
        settings: how.
        advance: told of each step.

    Raises:
        OtherShapeError: its output has another shape than the float model's.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    trainer = _Trainer(unit, settings, generator)
    before = unit.error(unit.held, unit.present)
    best, best_state = unit.error(unit.held, unit.hard()), trainer.annealed.state()
    every = max(settings.iterations // _CHECKS, 1)
    for step in range(settings.iterations):
        trainer.step(step)
        advance(step + 1)
        if (step + 1) % every == 0 or step + 1 == settings.iterations:
            trainer.dropping(0.0)
            now = unit.error(unit.held, unit.hard())
            if now < best:
                best, best_state = now, trainer.annealed.state()
    trainer.dropping(0.0)
    trainer.annealed.restore(best_state)
    return Fit(before, best)


class _Trainer:
    def __init__(self, unit: Unit, settings: Settings, generator: torch.Generator) -> None:
        self.unit, self.settings, self.generator = unit, settings, generator
        self.rounded = [w for w in unit.weights.values() if isinstance(w, RoundedWeight)]
        scales = [g.stretch for g in unit.distinct_grids if g.stretch is not None] if settings.scale_lr else []
        if settings.scale_lr:
            scales += [
                w.stretch for w in unit.weights.values() if isinstance(w, FreeWeight) and w.stretch.requires_grad
            ]
        biases = list(unit.moves.values()) if settings.bias_lr else []
        weights = [p for w in unit.weights.values() for p in w.learned]
        of_weights = (weights, settings.lr, not self.rounded)
        self.annealed = Annealed((of_weights, (scales, settings.scale_lr, True), (biases, settings.bias_lr, True)))
        for grid in unit.distinct_grids:
            grid.generator = generator
        self.joined = _joins(unit)
        self.pull = [0.0] * len(self.rounded)
        self.unit_of_error = _power(unit.fitting.targets)

    def dropping(self, share: float) -> None:
        for grid in self.unit.distinct_grids:
            grid.drop = share

    def step(self, step: int) -> None:
        settings = self.settings
        share = step / settings.iterations
        self.annealed.begin(share)
        self.dropping(settings.drop)
        self._error().backward()  # type: ignore[no-untyped-call]
        self._regularize(share)
        self.annealed.end()

    def _error(self) -> Tensor:
        samples, settings = self.unit.fitting, self.settings
        order = torch.randperm(len(samples), generator=self.generator)[: settings.batch].tolist()
        constants = self.unit.soft()
        if self.joined:
            feeds = {n: torch.cat([samples.inputs[i][n] for i in order]) for n in self.unit.executor.inputs}
            floats = {n: torch.cat([samples.floats[i][n] for i in order]) for n in self.unit.executor.inputs}
            return self._loss(feeds, floats, torch.cat([samples.targets[i] for i in order]), constants)
        parts = [self._loss(samples.inputs[i], samples.floats[i], samples.targets[i], constants) for i in order]
        return torch.stack(parts).mean()

    def _loss(
        self, feeds: Mapping[str, Tensor], floats: Mapping[str, Tensor], target: Tensor, constants: Mapping[str, Tensor]
    ) -> Tensor:
        if self.settings.drop:
            feeds = {n: self._mixed(x, floats[n]) for n, x in feeds.items()}
        gap = self.unit.gap(feeds, constants, target).square()
        channels = target.shape[1] if target.ndim > 1 else 1
        return gap.mean() * channels / self.unit_of_error

    def _mixed(self, quantized: Tensor, exact: Tensor) -> Tensor:
        if not quantized.is_floating_point():
            return quantized
        dropped = torch.rand(quantized.shape, generator=self.generator) < self.settings.drop
        return torch.where(dropped, exact, quantized)

    def _regularize(self, share: float) -> None:
        """Add the gradient of ``lambda sum(1 - |2 h - 1|^b)``, by which weights end up at 0 or 1.

        ``lambda`` follows the size of the error's own gradient, so that it suits layers of any size and scale.
        """
        settings = self.settings
        if not settings.regularize:
            return
        past = (share - settings.warmup) / max(1 - settings.warmup, 1e-9)
        exponent = _SOFTEST + (_STIFFEST - _SOFTEST) * (1 - min(max(past, 0.0), 1.0))
        for index, weight in enumerate(self.rounded):
            v = weight.v
            assert v.grad is not None
            with torch.no_grad():
                sigmoid = torch.sigmoid(v)
                slope = 1.2 * sigmoid * (1 - sigmoid)
                up = (1.2 * sigmoid - 0.1).clamp(0, 1)
                size = float(v.grad.abs().sum() / slope.sum().clamp(min=1e-12))
                self.pull[index] = size if not self.pull[index] else 0.9 * self.pull[index] + 0.1 * size
                if past < 0:
                    continue
                far = 2 * up - 1
                force = -2 * exponent * far.sign() * far.abs().pow(exponent - 1)
                inside = (up > 0) & (up < 1)
                v.grad += settings.regularize * self.pull[index] * force * slope * inside


def _power(targets: Sequence[Tensor]) -> float:
    """Mean square of what is to be reached: Adam takes gradients of small numbers for none (its epsilon is 1e-8)."""
    count = sum(target.numel() for target in targets)
    total = sum(float(target.double().square().sum()) for target in targets)
    return total / count if total > 0 else 1.0


def _joins(unit: Unit) -> bool:
    """Whether samples may be run together, joined along the first axis."""
    samples = unit.fitting
    rows = [{n: row[n] for n in unit.executor.inputs} for row in samples.inputs]
    alike = len({tuple(target.shape) for target in samples.targets}) == 1
    return alike and may_be_joined(rows, lambda feeds: {"": unit.output(feeds, unit.present)})
