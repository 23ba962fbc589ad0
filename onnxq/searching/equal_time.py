"""Which models must take equally long."""

from __future__ import annotations

import hashlib

import onnx_ir as ir

__all__ = ["structure"]


def structure(model: ir.Model) -> str:
    """A digest of a model's operators and the types and shapes of its constants: what speed depends on.

    Models that differ in weights and scales only have the same one.
    """
    sha = hashlib.sha256()
    for graph in (model.graph, *model.graph.subgraphs()):
        for name, value in graph.initializers.items():
            sha.update(repr((name, str(value.dtype), str(value.shape))).encode())
    for node in model.graph.all_nodes():
        inputs = [None if value is None else value.name for value in node.inputs]
        sha.update(repr((node.domain, node.op_type, inputs, [value.name for value in node.outputs])).encode())
    return sha.hexdigest()
