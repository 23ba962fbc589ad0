"""A quantized model loaded in onnxruntime, to measure what its target would compute."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from onnxq.graph.picking import sized_by_numbers
from onnxq.measuring.as_read import show_as_read
from onnxq.ort.session import Session, open_anyhow
from onnxq.quantized import Quantized

__all__ = ["fuses", "simulation"]


def simulation(quantized: Quantized, *, shown: Collection[str] = (), **options: Any) -> Session:
    """A session of what a quantized model is written as.

    Graph optimizations may be left out where onnxruntime is not what the result is made for.

    Args:
        quantized: what to run.
        shown: names of tensors inside that it gives as well, as their readers see them.
        options: of :class:`onnxq.ort.session.Session`.

    Raises:
        ExecutionError: onnxruntime cannot load it.
    """
    opened = Session if quantized.backend.at_home else open_anyhow
    model = quantized.simulated()
    show_as_read(model, shown)
    return opened(model, fuse_quantizers=fuses(quantized), **options)


def fuses(quantized: Quantized) -> bool:
    """Whether onnxruntime's integer kernels compute what a model is written as, and do not fail on empty tensors.

    What is made for onnxruntime keeps to their limits by itself.
    """
    return not quantized.is_simulated and (quantized.backend.at_home or not sized_by_numbers(quantized.model))
