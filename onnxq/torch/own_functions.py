"""Users' functions with a backward pass of their own, as torch's TorchScript exporter takes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

__all__ = ["functions_opened"]


@contextmanager
def functions_opened() -> Iterator[None]:
    """``torch.autograd.Function`` without its backward pass: its calls are among those of the module.

    As a graph of their own inside the graph the exporter loses or refuses some of them where quantizers stand among
    them. What says by ``symbolic`` how it is exported is left alone.
    """
    own = Function.__dict__["apply"]

    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(function, "symbolic") or torch.is_grad_enabled():
            return own.__func__(function, *args, **kwargs)
        if function.setup_context is not Function.setup_context:
            return function.forward(*args, **kwargs)
        context: Any = FunctionCtx()
        context.needs_input_grad = (False,) * len(args)
        return function.forward(context, *args, **kwargs)

    Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Function.apply = own  # type: ignore[method-assign]
