"""Scales and zero points in the model that is written: one pair for all tensors that share a grid."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import onnx_ir as ir

from onnxq.graph.namer import Namer
from onnxq.plan import Site
from onnxq.quantized import Quantized
from onnxq.render.wiring import add_initializer

__all__ = ["SharedNumbers"]


class SharedNumbers:
    """The initializers that hold the numbers of sites, made when they are first asked for.

    Args:
        quantized: the plan and its numbers.
        model: the model that is written.
        namer: of that model.
        values: its tensors by name, as they are while it is written.
    """

    def __init__(self, quantized: Quantized, model: ir.Model, namer: Namer, values: Mapping[str, ir.Value]) -> None:
        self.plan, self.qparams = quantized.plan, quantized.qparams
        self.model, self.namer, self.values = model, namer, values
        self.made: dict[str, tuple[ir.Value, ir.Value]] = {}

    def of(self, site: Site, home: ir.Value | None = None) -> tuple[ir.Value, ir.Value]:
        """Scale and zero point as initializers of the graph that holds the tensor; ties share those of their root."""
        root = self.plan.root(site)
        value = home if home is not None else self.values[root.tensor]
        if root.name not in self.made:
            qp = self.qparams[site.name]
            integer = ir.DataType[site.spec.dtype.upper()]
            top = self.values[root.tensor] if value.graph is None else value
            graph = top.graph if isinstance(top.graph, ir.Graph) and root.name not in self._spread else self.model.graph
            self.made[root.name] = (
                add_initializer(graph, self.namer.fresh(f"{root.name}_scale"), qp.scale, ir.DataType.FLOAT),
                add_initializer(graph, self.namer.fresh(f"{root.name}_zero_point"), qp.zero_point, integer),
            )
        return self.made[root.name]

    @cached_property
    def _spread(self) -> set[str]:
        """Sites whose numbers are shared across graphs."""
        homes: dict[str, set[int]] = {}
        for site in self.plan.sites:
            homes.setdefault(self.plan.root(site).name, set()).add(id(self.values[site.tensor].graph))
        return {name for name, graphs in homes.items() if len(graphs) > 1}
