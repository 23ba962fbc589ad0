"""Code that ``torch.compile`` leaves alone.

A compiled module's code is cut into functions of other names, by which no call is found again: quantizers would be
lost without a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from onnxq.torch.nodes import is_exporting

__all__ = ["eagerly"]


def eagerly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that runs as it is written, and all that it calls, where ``torch.compile`` is around it."""

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() and not is_exporting():
            return torch.compiler.disable(method)(*args, **kwargs)
        return method(*args, **kwargs)

    return run
