"""The only place that uses torch: ONNX graphs run in torch with gradients, fake-quantization, learning by gradient.

For a module and a training loop of one's own there are ``prepare``, ``calibrate`` and ``export``, see
:mod:`onnxq.torch.prepare`. Everything in here needs the extra ``torch``: without it the import raises an
:class:`onnxq.errors.OptionError`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from onnxq.errors import OptionError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise OptionError("this needs torch, which is not installed", hint='pip install "onnxq[torch]"') from error

if TYPE_CHECKING:
    from onnxq.torch.export import export
    from onnxq.torch.graph_module import GraphModule
    from onnxq.torch.module import QuantizedModule
    from onnxq.torch.prepare import calibrate, prepare
    from onnxq.torch.quantizers.adaround import rounding_beta, rounding_loss

__all__ = ["GraphModule", "QuantizedModule", "calibrate", "export", "prepare", "rounding_beta", "rounding_loss"]

_HOMES = {
    "GraphModule": "graph_module",
    "QuantizedModule": "module",
    "calibrate": "prepare",
    "export": "export",
    "prepare": "prepare",
    "rounding_beta": "quantizers.adaround",
    "rounding_loss": "quantizers.adaround",
}


class _Package(ModuleType):
    """``prepare`` and ``export`` are functions; importing the modules they live in must not hide them."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
