"""Training a quantized model to give what the float one gives: distillation, without labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from onnxq.errors import OptionError
from onnxq.measuring.chosen_rows import Rows
from onnxq.measuring.outputs import NONE
from onnxq.torch.executor import Executor
from onnxq.torch.in_order import in_order
from onnxq.torch.student import Student
from onnxq.torch.training import Annealed, may_be_joined
from onnxq.torch.vary import vary

__all__ = ["Loss", "Settings", "distill", "outputs_of"]

Tensor = torch.Tensor
Feeds = Mapping[str, NDArray[np.generic]]
Loss = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]
"""Outputs of the quantized and of the float model → a scalar to be made small."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to train.

    Attributes:
        steps: of Adam.
        batch: samples in a step.
        lr: step of weights, in units of their scale.
        scale_lr: step of the logarithm of scales.
        bias_lr: step of biases, in units of the noise that rounding makes.
        vary: share of the samples that are flipped, cropped, mixed (see :func:`onnxq.torch.vary.vary`).
        features: weight of the tensors inside beside the outputs.
        checks: how often the samples held back are looked at.
        seed: of the samples drawn and varied.
    """

    steps: int
    batch: int
    lr: float
    scale_lr: float
    bias_lr: float
    vary: float
    features: float
    checks: int
    seed: int


def distill(
    student: Student,
    teacher: Executor,
    fitting: Sequence[Feeds],
    held: Sequence[Feeds],
    settings: Settings,
    *,
    loss: Loss | None = None,
    rows: Mapping[str, Rows] = NONE,
    start: int = 0,
    advance: Callable[[int], None] = lambda step: None,
    spent: Callable[[], float] = lambda: 0.0,
    save: Callable[[int, float], None] = lambda step, error: None,
) -> tuple[float, float, int]:
    """Train; the state that was best on the samples held back is left in the student.

    The loss is the squared distance to the float model's tensors over their squared size, of the outputs and, with a
    weight, of the features.

    Args:
        student: changed.
        teacher: of the float graph, with the student's outputs and features.
        fitting: samples to learn from.
        held: samples to judge by.
        settings: how.
        loss: of the outputs, in place of the distance.
        rows: outputs whose rows a TopK picked: each row is compared with the nearest one, see
            :func:`onnxq.measuring.chosen_rows.chosen_rows`.
        start: steps that were done before, the learning rates' schedule goes on from there.
        advance: told of each step.
        spent: share of the time that has passed; the learning rates follow what is further, steps or time, and training
            ends at 1.
        save: called with the step and the error after each look at the samples held back, the best state in place.

    Returns:
        Relative error on the samples held back before and after, and the number of steps done.
    """
    trainer = _Trainer(student, teacher, fitting, held, settings, loss, rows)
    before = best = trainer.error()
    best_state = trainer.annealed.state()
    share = start / settings.steps
    looks, done = int(share * settings.checks), start
    for step in range(start, settings.steps):
        trainer.step(share)
        done = step + 1
        advance(done)
        share = max(done / settings.steps, min(spent(), 1.0))
        if int(share * settings.checks) > looks:
            looks = int(share * settings.checks)
            now = trainer.error()
            if now < best:
                best, best_state = now, trainer.annealed.state()
            current = trainer.annealed.state()
            trainer.annealed.restore(best_state)
            save(done, best)
            if share >= 1:
                break
            trainer.annealed.restore(current)
    trainer.annealed.restore(best_state)
    return before, best, done


class _Trainer:
    def __init__(
        self,
        student: Student,
        teacher: Executor,
        fitting: Sequence[Feeds],
        held: Sequence[Feeds],
        settings: Settings,
        loss: Loss | None,
        rows: Mapping[str, Rows] = NONE,
    ) -> None:
        self.student, self.teacher, self.settings, self.loss, self.rows = student, teacher, settings, loss, rows
        self.fitting = [_tensors(sample, student.device) for sample in fitting]
        self.generator = torch.Generator().manual_seed(settings.seed)
        rates = {"weights": settings.lr, "scales": settings.scale_lr, "biases": settings.bias_lr}
        self.annealed = Annealed((part, rates[name], True) for name, part in student.learned.items())
        self.joined = may_be_joined(self.fitting, teacher.run)
        self.held = [_tensors(sample, student.device) for sample in held]
        with torch.no_grad():
            self.exact = [self._outputs(teacher.run(feeds)) for feeds in self.held]

    def step(self, share: float) -> None:
        """One step, with the learning rates of a share of the training."""
        self.annealed.begin(share)
        order = torch.randperm(len(self.fitting), generator=self.generator)[: self.settings.batch].tolist()
        batch = [vary(self.fitting, index, self.settings.vary, self.generator) for index in order]
        if self.joined:
            batch = [{n: torch.cat([sample[n] for sample in batch]) for n in batch[0]}]
        constants = self.student.constants()
        ends = {name: c.detach().requires_grad_(c.requires_grad) for name, c in constants.items()}
        for feeds in map(_laid_out, batch):
            (self._loss(feeds, ends) / len(batch)).backward()  # type: ignore[no-untyped-call]
        reached = [(constants[name], end.grad) for name, end in ends.items() if end.grad is not None]
        if reached:
            torch.autograd.backward([c for c, _ in reached], [grad for _, grad in reached])
        self.annealed.end()

    def error(self) -> float:
        """Squared distance of the outputs over their squared size, on the samples held back; of the worst output."""
        noise: dict[str, float] = {}
        signal: dict[str, float] = {}
        custom = 0.0
        with torch.no_grad():
            constants = self.student.constants()
            for feeds, want in zip(self.held, self.exact, strict=True):
                got = self.student.run(feeds, constants)
                if self.loss is not None:
                    custom += float(self._asked(got, want))
                    continue
                for name, exact in want.items():
                    if exact.is_floating_point():
                        found = in_order(got[name], exact, self.rows.get(name))
                        noise[name] = noise.get(name, 0.0) + float((found - exact).double().square().sum())
                        signal[name] = signal.get(name, 0.0) + float(exact.double().square().sum())
        if self.loss is not None:
            return custom / max(len(self.held), 1)
        return max((noise[n] / max(signal[n], 1e-30) for n in noise), default=math.inf)

    def _outputs(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: found[name] for name in self.student.outputs}

    def _loss(self, feeds: Mapping[str, Tensor], constants: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad():
            want = self.teacher.run(feeds)
        got = self.student.run(feeds, constants)
        inner = [name for name in want if name not in self.student.outputs]
        total = torch.zeros((), device=self.student.device)
        if self.loss is not None:
            total = total + self._asked(got, want)
        else:
            for name, exact in self._outputs(want).items():
                if exact.is_floating_point():
                    total = total + _distance(in_order(got[name], exact, self.rows.get(name)), exact)
        for name in inner:
            total = total + self.settings.features / len(inner) * _distance(got[name], want[name])
        return total

    def _asked(self, got: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> Tensor:
        """The user's own loss.

        Raises:
            OptionError: it is no tensor with one number, or not finite.
        """
        assert self.loss is not None
        found: object = self.loss(self._outputs(got), self._outputs(want))
        if not isinstance(found, Tensor) or found.numel() != 1:
            kind = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            hint = "Compute it from the outputs by functions of torch, and take the mean or the sum"
            raise OptionError(f"gave {kind}, not a tensor with one number", where="loss", hint=hint)
        if not bool(torch.isfinite(found).all()):
            hint = "Guard divisions and logarithms in it, or train with a smaller learning rate"
            raise OptionError(f"gave {float(found)}", where="loss", hint=hint)
        return found.reshape(())


def outputs_of(teacher: Executor, sample: Feeds, outputs: Sequence[str], device: str) -> list[NDArray[np.generic]]:
    """What a model gives of one sample, at these of its outputs."""
    with torch.no_grad():
        found = teacher.run(_tensors(sample, device))
    return [found[name].cpu().numpy() for name in outputs]


def _tensors(sample: Feeds, device: str) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)).to(device) for name, array in sample.items()}


def _laid_out(feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pictures with their channels last in memory, which makes convolutions of CPUs faster."""
    last = torch.channels_last
    return {n: x.contiguous(memory_format=last) if x.ndim == 4 else x for n, x in feeds.items()}


def _distance(got: Tensor, exact: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(exact).square().clamp(min=1e-12)
    noise: Tensor = torch.nn.functional.mse_loss(got, exact, reduction="sum")
    return noise / size
