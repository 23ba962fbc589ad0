"""Nodes of onnxq's own in the graph of a module that torch exports, by either of its exporters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["DOMAIN", "is_exporting", "own_node"]

Tensor = torch.Tensor
DOMAIN = "onnxq"
_SUFFIXES = {int: "i", str: "s"}
is_exporting = getattr(torch.compiler, "is_exporting", bool)
"""Whether torch.export runs, which torch before 2.7 does not tell: it is not used there."""


class _Traced(torch.autograd.Function):
    """What the TorchScript exporter writes as a node."""

    @staticmethod
    def forward(
        ctx: Any, name: str, attributes: dict[str, Any], compute: Callable[..., Tensor], *inputs: Tensor
    ) -> Tensor:
        return compute(*inputs)

    @staticmethod
    def symbolic(g: Any, name: str, attributes: dict[str, Any], compute: Callable[..., Tensor], *inputs: Any) -> Any:
        named = {f"{key}_{_SUFFIXES[type(value)]}": value for key, value in attributes.items()}
        return g.op(f"{DOMAIN}::{name}", *inputs, **named).setType(inputs[0].type())


def own_node(
    name: str, inputs: tuple[Tensor, ...], attributes: dict[str, Any], compute: Callable[..., Tensor]
) -> Tensor:
    """A call of an operator of the domain :data:`DOMAIN`, which torch's exporters write as one node.

    Args:
        name: of the operator.
        inputs: tensors; the result has the shape and the type of the first.
        attributes: of the node, integers and texts.
        compute: inputs → what the node gives, a tensor of its own.
    """
    if is_exporting():  # torch.export looks at no autograd.Function's symbolic
        first = inputs[0]
        made: Tensor = torch.onnx.ops.symbolic(
            f"{DOMAIN}::{name}", inputs, attributes, dtype=first.dtype, shape=first.shape, version=1
        )
        return made.clone()  # the exporter adds and compares what standard operators gave, and fails at others' results
    return _Traced.apply(name, attributes, compute, *inputs)  # type: ignore[no-any-return]
