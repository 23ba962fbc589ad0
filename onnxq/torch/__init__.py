"""The only place that uses torch: ONNX graphs run in torch with gradients, fake-quantization, learning by gradient.

Everything in here needs the extra ``torch``: without it the import raises an :class:`onnxq.errors.OptionError`.
"""

from __future__ import annotations

from onnxq.errors import OptionError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise OptionError("this needs torch, which is not installed", hint="pip install onnxq[torch]") from error
