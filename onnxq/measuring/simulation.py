"""A quantized model loaded in onnxruntime, to measure what its target would compute."""

from __future__ import annotations

from typing import Any

from onnxq.ort.session import Session, open_anyhow
from onnxq.quantized import Quantized

__all__ = ["simulation"]


def simulation(quantized: Quantized, **options: Any) -> Session:
    """A session of what a quantized model is written as.

    Graph optimizations may be left out where onnxruntime is not what the result is made for.

    Args:
        quantized: what to run.
        options: of :class:`onnxq.ort.session.Session`.

    Raises:
        ExecutionError: onnxruntime cannot load it.
    """
    opened = Session if quantized.backend.at_home else open_anyhow
    return opened(quantized.simulated(), fuse_quantizers=not quantized.is_simulated, **options)
