"""Does a batch normalization normalize by the batch at hand, as in training?"""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["is_in_training"]


def is_in_training(node: ir.Node) -> bool:
    """Whether a node is a batch normalization in training mode: its attribute says so, before opset 14 its outputs."""
    if node.op_type != "BatchNormalization" or node.domain != "":
        return False
    several = sum(bool(value.name) for value in node.outputs) > 1
    return several or node.attributes.get_int("training_mode", 0) == 1
