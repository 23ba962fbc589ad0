"""Tensors whose quantizers were taken out of a model, and the sites of a plan that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.plan import Edge, Role, Site
from onnxq.planning.table_rows import row
from onnxq.qparams import QParams
from onnxq.render.reading.relations import related

__all__ = ["Found", "role_of_constant", "sites_of"]

_BIAS_BITS = 32


@dataclass(slots=True)
class Found:
    """A tensor that was quantized.

    Attributes:
        value: the float tensor.
        role: what it is to those who read it.
        qparams: its numbers.
        readers: inputs that read it by these numbers.
        alone: nothing but quantizers of this grid reads the value, which a node makes.
    """

    value: ir.Value
    role: Role
    qparams: QParams
    readers: list[tuple[ir.Node, int]]
    alone: bool = False


def role_of_constant(backend: Backend, edges: Sequence[tuple[ir.Node, int]], qparams: QParams) -> Role:
    """What a constant is to the inputs that read it: a bias by its bits, a weight by the target's table."""
    if qparams.spec.bits == _BIAS_BITS:
        return "bias"
    for node, index in edges:
        rule = row(backend, node)
        if rule is not None and index in rule.weights:
            return "weight"
    return "constant"


def sites_of(found: Sequence[Found], model: ir.Model, backend: Backend) -> tuple[tuple[Site, ...], dict[str, QParams]]:
    """The sites of a plan, and their numbers by name: a tensor that has several grids has a site for each."""
    sites: list[Site] = []
    numbers: dict[str, QParams] = {}
    for one in found:
        tensor = one.value.name or ""
        name, count = tensor, 1
        while name in numbers:
            count += 1
            name = f"{tensor}#{count}"
        numbers[name] = one.qparams
        edges = tuple(Edge(n.name or "", i) for n, i in one.readers)
        sites.append(Site(name, tensor, one.role, one.qparams.spec, edges, produced=one.alone))
    return related(model, backend, sites, numbers), numbers
