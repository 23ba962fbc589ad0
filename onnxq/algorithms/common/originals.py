"""Constants of the float model, which algorithms have changed in the draft since."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxq.algorithm import Draft
from onnxq.graph.traverse import all_graphs
from onnxq.graph.values import constant_array

__all__ = ["original"]


def original(draft: Draft, name: str | None) -> NDArray[np.float32]:
    """A constant of the float model, by the name that it has in the draft too."""
    found = (g.initializers[name] for g in all_graphs(draft.reference) if name is not None and name in g.initializers)
    array = constant_array(next(found, None))
    assert array is not None
    return np.asarray(array, np.float32)
