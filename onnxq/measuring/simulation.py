"""A quantized model loaded in onnxruntime, to measure what its target would compute."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from onnxq.calibration.statistics import KeptSample
from onnxq.errors import ExecutionError
from onnxq.graph.picking import sized_by_numbers
from onnxq.measuring.as_read import show_as_read
from onnxq.measuring.chosen_rows import chosen_rows
from onnxq.measuring.outputs import worst_sqnr
from onnxq.options import Options
from onnxq.ort.session import Session, open_anyhow
from onnxq.quantized import Quantized

__all__ = ["fuses", "output_sqnr", "simulation"]


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
    model = quantized.with_tensors() if shown else quantized.simulated()
    show_as_read(model, shown)
    return opened(model, fuse_quantizers=fuses(quantized), **options)


def output_sqnr(quantized: Quantized, samples: Sequence[KeptSample], options: Options) -> float:
    """SQNR in dB of the worst float output; ``-inf`` where the model does not run.

    Args:
        quantized: what to run.
        samples: with the float model's outputs.
        options: execution providers and the library of custom operators.
    """
    try:
        session = simulation(quantized, **options.session)
        pairs = ((sample.feeds, sample.outputs) for sample in samples)
        return worst_sqnr(session.run, pairs, chosen_rows(quantized.model))
    except ExecutionError:
        return -math.inf


def fuses(quantized: Quantized) -> bool:
    """Whether onnxruntime's integer kernels compute what a model is written as, and do not fail on empty tensors.

    What is made for onnxruntime keeps to their limits by itself.
    """
    return not quantized.is_simulated and (quantized.backend.at_home or not sized_by_numbers(quantized.model))
