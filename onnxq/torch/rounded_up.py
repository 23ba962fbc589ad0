"""How far AdaRound rounds a weight up: a sigmoid stretched and cut off at 0 and 1 (Nagel et al., 2020, equation 23)."""

from __future__ import annotations

import torch

__all__ = ["rounded_up", "start_of"]

_ZETA, _GAMMA = 1.1, -0.1
"""Ends to which the sigmoid is stretched."""


def rounded_up(v: torch.Tensor) -> torch.Tensor:
    """How far each weight is rounded up, 0 to 1, differentiable."""
    return (torch.sigmoid(v) * (_ZETA - _GAMMA) + _GAMMA).clamp(0.0, 1.0)


def start_of(share: torch.Tensor) -> torch.Tensor:
    """What is rounded up so far."""
    return -torch.log((_ZETA - _GAMMA) / (share - _GAMMA) - 1)
