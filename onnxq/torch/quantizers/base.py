"""What every fake-quantizer is: a module with a grid, that first watches and then quantizes."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from onnxq.errors import DataError, OptionError
from onnxq.qparams import QParams
from onnxq.ranged import MIN_SCALE, from_range
from onnxq.spec import PerChannel, QuantSpec, Scheme
from onnxq.torch.observers.base import Observer

__all__ = ["Quantizer", "Tensor"]

Tensor = torch.Tensor


class Quantizer(torch.nn.Module, ABC):
    """A fake-quantizer of one tensor.

    Args:
        spec: its grid, uniform, per tensor or per channel.
        channels: channels along the spec's axis; 1 per tensor.
        weight: of a weight, else of an activation.
        observer: finds the range that the grid starts with.
        fixed: the real range where an operator's definition gives it; nothing is watched or learned then.
        shape: of the tensor, where it is known: that of a weight always is.

    Attributes:
        name: in its module, for messages.
        scheme: the kind of grid that the method is for.
        by_element: it has a number for every element of its weight.
        watching: values pass unchanged and are watched.
        ready: the grid has numbers.
    """

    scheme = Scheme.UNIFORM
    by_element = False

    def __init__(
        self,
        spec: QuantSpec,
        channels: int,
        *,
        weight: bool,
        observer: Observer,
        fixed: tuple[float, float] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.weight, self.observer, self.fixed = spec, weight, observer, fixed
        self.shape = None if shape is None else tuple(map(int, shape))  # the exporter's are tensors
        self.axis = spec.granularity.axis if isinstance(spec.granularity, PerChannel) else None
        self.name, self.channels = "", channels
        self.watching = False
        self._known_weights: list[Tensor] = []
        self.register_buffer("ready", torch.tensor(False))
        self.build(channels)
        if fixed is not None:
            self.start(from_range(*fixed, spec))

    ready: Tensor

    @property
    def learns(self) -> bool:
        """Whether the grid may change in training."""
        return self.fixed is None

    def forward(self, x: Tensor) -> Tensor:
        """Values on the grid, in the type of ``x``; computed in float32.

        Raises:
            DataError: what is watched has no range.
            OptionError: it was not calibrated, or the tensor is of another layer than it was made for.
        """
        self._require_fitting(x)
        try:
            if self.watching:
                if self.fixed is None and not self._is_known(x):
                    self.watch(x.detach().float())
                return x
            if not self._is_ready():
                raise OptionError(
                    "its quantizers have no scales yet", where="the module", hint="Call onnxq.torch.calibrate"
                )
            return self.quantize(x.float()).to(x.dtype)
        except DataError as error:
            raise DataError(error.what, where=f"quantizer {self.name!r}", hint=error.hint) from error

    def _require_fitting(self, x: Tensor) -> None:
        """Refuse a tensor of another size than the grid, as a layer has that was put in the place of another."""
        shape = tuple(x.shape)
        if shape == self.shape if self.by_element else self.axis is None or shape[self.axis] == self.channels:
            return
        made = f"shape {self.shape}" if self.by_element else f"{self.channels} channels"
        raise OptionError(
            f"it was made for a tensor of {made}, and is given one of shape {shape}",
            where=f"quantizer {self.name!r}",
            hint="Put a layer in the place of another before prepare, not after it",
        )

    def watch(self, x: Tensor) -> None:
        """Look at values that the grid shall hold."""
        self.observer.watch(x, self.spec)

    def settle(self, where: str) -> None:
        """Take the range that was watched.

        Raises:
            OptionError: nothing was watched.
        """
        if self.fixed is None:
            self.start(from_range(*self.observer.range(where), self.spec))
            self.observer.forget()

    def begin(self) -> None:
        """Watch from the next value on."""
        self.watching = True

    def end(self) -> None:
        """Watch no more."""
        self.watching, self._known_weights = False, []

    def start(self, qp: QParams) -> None:
        """Begin with these numbers."""
        self.set_numbers(torch.from_numpy(np.array(qp.scale, np.float32)), torch.from_numpy(qp.zero_point.astype("f4")))
        self.ready.fill_(True)
        self.__dict__["_known_ready"] = True

    def start_weight(self, qp: QParams, weight: Tensor) -> None:
        """Begin with these numbers of this weight."""
        self.start(qp)

    def shaped(self, number: Tensor, x: Tensor) -> Tensor:
        """A number a channel, or one, in a shape that broadcasts against ``x``."""
        if self.axis is None:
            return number
        shape = [1] * x.ndim
        shape[self.axis] = -1
        return number.reshape(shape)

    def qparams(self) -> QParams:
        """Its numbers now."""
        with torch.no_grad():
            scale, zero = self.numbers()
        points = np.rint(zero.cpu().numpy()).astype(np.int64)
        scales = np.maximum(scale.cpu().numpy().astype(np.float32), np.float32(MIN_SCALE))
        return QParams(self.spec, np.asarray(scales), np.broadcast_to(points, scales.shape).copy())

    def elements(self, x: Tensor, channels: int) -> float:
        """Elements of ``x`` to a scale, of a single sample where it is an activation (Esser et al., section 2.2)."""
        count = x.numel() / max(channels, 1)
        return count if self.weight or x.ndim < 2 else count / max(x.shape[0], 1)

    @abstractmethod
    def build(self, channels: int) -> None:
        """Make the parameters and buffers."""

    @abstractmethod
    def set_numbers(self, scale: Tensor, zero: Tensor) -> None:
        """Begin with a scale and a zero point, shape () or (channels,)."""

    @abstractmethod
    def numbers(self) -> tuple[Tensor, Tensor]:
        """Scale and whole zero point, shape () or (channels,), as :meth:`quantize` uses them."""

    @abstractmethod
    def quantize(self, x: Tensor) -> Tensor:
        """Values on the grid, float32, with gradients."""

    def grid_input(self, x: Tensor) -> Tensor:
        """What is rounded: ``x`` unless the method changes it first."""
        return x

    def _is_known(self, x: Tensor) -> bool:
        """Whether a weight was watched before: it is the same in every batch of a calibration."""
        if not self.weight:
            return False
        if any(known is x or torch.equal(known, x) for known in self._known_weights):
            return True
        self._known_weights.append(x.detach())
        return False

    def _is_ready(self) -> bool:
        if not self.__dict__.get("_known_ready"):
            self.__dict__["_known_ready"] = bool(self.ready)
        return bool(self.__dict__["_known_ready"])
