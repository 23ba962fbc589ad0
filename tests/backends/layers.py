"""Layers of a result in their own runtime, one by one."""

from __future__ import annotations

import onnx

import onnxq
from onnxq.measuring.layerwise import compare_layers
from onnxq.runtimes.runtime import Runtime
from tests.models import feeds_for

__all__ = ["all_but_ties_agree"]


def all_but_ties_agree(model: onnx.ModelProto, backend: str, runtime: Runtime) -> None:
    """Every layer gives the integers of onnxruntime, but for one in a thousand, a step off."""
    feeds = feeds_for(model, samples=2)
    layers = compare_layers(onnxq.quantize(model, feeds, backend=backend).qdq(), runtime, feeds, timeout=120)
    assert max(layer.steps for layer in layers) <= 1, layers
    assert sum(layer.differing for layer in layers) <= 0.001 * sum(layer.values for layer in layers)
