"""Loading a model that is taken as it is: nothing is folded or rewritten, but every tensor can be found by name."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.graph.files.exporter_notes import drop_exporter_notes
from onnxq.graph.files.load import ModelSource, load
from onnxq.graph.namer import unique_names
from onnxq.graph.passes.constants import lift_constants
from onnxq.graph.passes.defaults import drop_initializer_inputs
from onnxq.graph.shapes import infer_shapes

__all__ = ["load_named"]


def load_named(source: ModelSource) -> ir.Model:
    """A model whose names are unique, whose constants are initializers, and whose shapes are known where they can be.

    Constants that the form of the file forced onto the inputs are none of them, see
    :func:`onnxq.graph.passes.defaults.drop_initializer_inputs`.
    Notes of PyTorch's exporter are left out, see :func:`onnxq.graph.files.exporter_notes.drop_exporter_notes`.

    Args:
        source: see :func:`onnxq.graph.files.load.load`.

    Raises:
        ModelError: it is unreadable or invalid.
    """
    model = load(source)
    drop_exporter_notes(model)
    drop_initializer_inputs(model)
    unique_names(model)
    lift_constants(model)
    infer_shapes(model)
    return model
