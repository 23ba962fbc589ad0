"""What of a prepared module is kept in files: the state of a checkpoint, or the module itself."""

from __future__ import annotations

import json
import warnings
from typing import Any

import torch

from onnxq.backend import Backend
from onnxq.backend_choice import backend_named
from onnxq.errors import OptionError
from onnxq.torch.quantizers import Quantizer

__all__ = ["Kept"]

Tensor = torch.Tensor


class Kept(torch.nn.Module):
    """A module with quantizers that is saved and loaded.

    Attributes:
        target: what it was prepared for.
        quantizers: by name.
    """

    target: Backend
    quantizers: torch.nn.ModuleDict

    def observing(self) -> list[tuple[str, Quantizer]]:
        """Its quantizers with their names."""
        return [(name, q) for name, q in self.quantizers.items() if isinstance(q, Quantizer)]

    def get_extra_state(self) -> Tensor:
        """The grids that it was prepared with, so that a checkpoint is taken up only where they are the same."""
        grids = {"backend": self.target.name, **{f"/{name}": str(q.spec) for name, q in self.observing()}}
        return torch.tensor(list(json.dumps(grids).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """See :meth:`get_extra_state`.

        Raises:
            OptionError: the checkpoint is of other grids; nothing was loaded then.
        """
        saved = json.loads(bytes(state.cpu().tolist()))
        own = {f"/{name}": str(quantizer.spec) for name, quantizer in self.observing()}
        other = [name for name, grid in own.items() if saved.get(name, grid) != grid]
        if other:
            more = f", and {len(other) - 1} more differ" if len(other) > 1 else ""
            raise OptionError(
                f"{other[0][1:]!r} is {saved[other[0]]} there and {own[other[0]]} here{more}; it was prepared for "
                f"{saved['backend']}, this module for {self.target.name}",
                where="the checkpoint",
                hint="Prepare with the options of the training that wrote it",
            )

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Checkpoints written before the grids were among them are loaded with a warning."""
        key = f"{prefix}_extra_state"
        if key not in state and any(name.startswith(f"{prefix}quantizers.") for name in state):
            warnings.warn(
                "onnxq: the checkpoint does not say what bits it was trained with; prepare with the options of then",
                stacklevel=2,
            )
            state[key] = self.get_extra_state()
        super()._load_from_state_dict(state, prefix, *rest)

    def __getstate__(self) -> dict[str, Any]:
        """The target by its name: its table holds functions, which no file does."""
        return {**self.__dict__, "target": self.target.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See :meth:`__getstate__`.

        Raises:
            OptionError: the target is not installed here.
        """
        super().__setstate__({**state, "target": backend_named(state["target"])})
