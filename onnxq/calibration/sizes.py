"""How large tensors are on the data, where sizes differ from sample to sample."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxq.calibration.statistics import KeptSample
from onnxq.graph.shapes import sizes_at

__all__ = ["sizes_on", "typical"]


def typical(samples: Sequence[KeptSample]) -> KeptSample:
    """The first sample with the median number of input elements: data may be sorted by size.

    Args:
        samples: at least one.
    """
    elements = [sum(array.size for array in sample.feeds.values()) for sample in samples]
    return samples[elements.index(sorted(elements)[len(elements) // 2])]


def sizes_on(model: ir.Model, samples: Sequence[KeptSample]) -> dict[str, int]:
    """Tensor name → number of elements in the typical sample, as far as it is known; empty without samples.

    Args:
        model: left unchanged. Names must be unique over the model.
        samples: any number.
    """
    if not samples:
        return {}
    return sizes_at(model, {name: array.shape for name, array in typical(samples).feeds.items()})
