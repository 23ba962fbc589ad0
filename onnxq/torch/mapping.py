"""From a target's plan of the exported graph back to the calls of the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from onnxq.asked_scheme import for_given_numbers
from onnxq.backend import Backend, Kind
from onnxq.calibration.statistics import TensorStatistics
from onnxq.errors import ModelError
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import input_of
from onnxq.options import Options
from onnxq.plan import Edge, Plan, Site
from onnxq.planning.planner import make_plan
from onnxq.planning.table_rows import row
from onnxq.prepare import Prepared
from onnxq.spec import PerChannel, PerTensor
from onnxq.torch.composites import BETWEEN
from onnxq.torch.mapped import BiasRule, Mapped, Spot
from onnxq.torch.marks import RECURRENT, Marked, Marker, Place, without_marks
from onnxq.torch.masked import masked_tensors, no_grid
from onnxq.torch.places import shared_numbers

__all__ = ["LAYERS", "map_plan"]

_CHANNELS = {"linear": 0, "conv1d": 0, "conv2d": 0, "conv3d": 0, "embedding": 0}
_CHANNELS |= {"conv_transpose1d": 1, "conv_transpose2d": 1, "conv_transpose3d": 1}
_CHANNELS |= {"lstm": 0, "gru": 0, "rnn_tanh": 0, "rnn_relu": 0}
_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "addmm", "baddbmm")
HOISTED = "_hoisted"
"""End of a tensor's name where :mod:`onnxq.graph.passes.hoist` has put its operator in front of what moves values."""
LAYERS = frozenset({*_CHANNELS, *_PRODUCTS})
"""Functions that multiply and add."""


def map_plan(proto: Any, marker: Marker, backend: Backend, options: Options) -> Mapped:
    """Plan an exported module with marks, and find the plan's sites among its calls.

    Sites that no call shows (the inside of a function of torch) are left out and their nodes stay float.

    Args:
        proto: with marks.
        marker: that made them.
        backend: the target.
        options: bits, symmetry, granularity and exclusions.

    Raises:
        ModelError: nothing of the module can be quantized.
    """
    return _Mapper(without_marks(proto, marker.parameters), marker, backend, options).run()


class _Mapper:
    def __init__(self, marked: Marked, marker: Marker, backend: Backend, options: Options) -> None:
        self.marked, self.marker, self.backend = marked, marker, backend
        self.norm_after = self._norms({n.name: n for n in all_nodes(marked.model)})
        self.options = for_given_numbers(backend, options)
        prepared = Prepared(marked.model, self.options, as_scaled=True)
        self.model, self.notes = prepared.for_target(backend, self.options)
        self.nodes = {n.name or "": n for n in all_nodes(self.model)}
        self.values = {v.name or "": v for n in all_nodes(self.model) for v in n.outputs}
        self.values |= {v.name or "": v for v in self.model.graph.inputs}
        self.opened: set[str] = set()
        self.hoisted = {n: n.removesuffix(HOISTED) for n in self.values if n.endswith(HOISTED) and n not in marked.made}
        self.displaced = self._displaced()
        self.masked = masked_tensors(self.model, self._telling())

    def run(self) -> Mapped:
        plan, placed, keep = self._settled()
        while opened := self._lost_products(keep) - self.opened:
            self.opened |= opened
            plan, placed, keep = self._settled()
        groups: dict[str, list[Site]] = {}
        roots = shared_numbers(plan)
        for site in plan.sites:
            if placed.get(site.name):
                groups.setdefault(roots[site.name], []).append(site)
        spots = [self._spot(group, plan.by_name[root], placed) for root, group in groups.items()]
        if not spots:
            raise ModelError(
                f"{self.backend.name} quantizes nothing of this module",
                hint="; ".join(f"{k.node}: {k.reason}" for k in plan.kept_float[:5]),
            )
        biases = [rule for site in plan.sites if (rule := self._bias(site, plan, placed)) is not None]
        weights = sorted(self._weighted().intersection(keep)) if keep else []
        return Mapped(spots, biases, keep, weights, plan, set(self.marker.names), self.notes, self._refolded(plan))

    def _settled(self) -> tuple[Plan, dict[str, list[Place] | None], dict[str, str]]:
        """The plan in which every site is somewhere in torch, where that is, and what stays float for it and why."""
        keep: dict[str, str] = {}
        while True:
            plan = make_plan(self.model, self.backend, self.options, keep_float=keep)
            placed = {site.name: self._places(site, plan) for site in plan.sites if site.role != "bias"}
            more: dict[str, str] = {}
            for site in plan.sites:
                where = placed.get(site.name, [])
                why = f"{site.tensor!r} is inside a function of torch" if where is None else ""
                why = self.masked.get(site.tensor) or why
                if any(place in self.marker.telling and no_grid(self.marker.telling[place]) for place in where or ()):
                    why = f"{site.tensor!r} holds infinite values, or masks beyond 1e30, which no grid does"
                for name in self._nodes_of(site, keep) if why else ():
                    more.setdefault(name, why)
            if not more.keys() - keep.keys():
                return plan, placed, keep
            keep.update(more)

    def _lost_products(self, keep: Mapping[str, str]) -> set[str]:
        """Calls whose product stays float: it may not have to where the tensor behind it is quantized too."""
        lost = set()
        for edge, places in self.marked.edges.items():
            node = self.nodes.get(edge.node)
            product = input_of(node, edge.index) if node is not None else None
            producer = product.producer() if product is not None else None
            if producer is not None and producer.name in keep:
                lost |= {place.call for place in places if place.position == BETWEEN}
        return lost

    def _weighted(self) -> set[str]:
        """Nodes whose weights the target stores as integers where all is quantized that can be."""
        plan = make_plan(self.model, self.backend, self.options)
        return {edge.node for edge in plan.by_edge("weight")}

    def _telling(self) -> dict[str, TensorStatistics]:
        """What the example shows of tensors that may hold masks."""
        where = [(name, places[-1]) for name, places in self.marked.made.items()]
        for edge, places in self.marked.edges.items():
            node = self.nodes.get(edge.node)
            value = input_of(node, edge.index) if node is not None else None
            where += [(value.name or "", places[0])] if value is not None else []
        seen = self.marker.telling
        return {name: seen[place] for name, place in where if place in seen}

    # -- places

    def _places(self, site: Site, plan: Plan) -> list[Place] | None:
        """Where a site is in torch; ``None`` where nowhere, nothing where the values are on its grid already."""
        if site.role in ("weight", "constant"):
            return self._read(site)
        if site.tensor in self.hoisted:
            last = self.hoisted[site.tensor]
            return self.marked.made.get(last, [])[-1:] or None if last in self.values else None
        if site.tensor in self.displaced:
            return [] if site.tied_to is not None else None
        if site.tied_to is not None and self._only_moved(site, plan):
            return []
        value = self.values.get(site.tensor)
        made = self.marked.made.get(site.tensor, [])[-1:]
        if site.produced and made:
            return made
        read = self._read(site)
        if value is not None and (read is None or site.produced):
            uses = {(n.name, i) for n, i in value.uses()}
            all_of_it = uses == {(e.node, e.index) for e in site.readers} and not value.is_graph_output()
            if not all_of_it:
                return None if site.produced or not made or site.readers else made
            return made or read
        return read

    def _displaced(self) -> set[str]:
        """Tensors that in torch are those before an operator which the graph has in front of what moves values."""
        found: set[str] = set()
        for name, last in self.hoisted.items():
            stack = [self.values[name]] if last in self.values else []
            while stack:
                made = [v for node, _ in stack.pop().uses() for v in node.outputs if v.name != last]
                stack += [v for v in made if (v.name or "") not in found]
                found.update(v.name or "" for v in made)
        return found

    def _read(self, site: Site) -> list[Place] | None:
        """The arguments that its readers read."""
        found: list[Place] = []
        for edge in site.readers:
            places = self.marked.edges.get(edge)
            if not places or (places[0].position == BETWEEN and places[0].call not in self.opened):
                return None
            node = self.nodes.get(edge.node)
            directions = node is not None and node.op_type in RECURRENT
            found += places if directions else places[:1]
        return found or None

    def _only_moved(self, site: Site, plan: Plan) -> bool:
        """Whether the node that makes a tensor moves values that are on the same grid."""
        value = self.values.get(site.tensor)
        node = value.producer() if value is not None else None
        rule = row(self.backend, node) if node is not None else None
        if node is None or rule is None or rule.kind is not Kind.MOVEMENT:
            return False
        edge, root = Edge(node.name or "", 0), plan.root(site).name
        return any(edge in s.readers and plan.root(s).name == root for s in plan.sites)

    def _nodes_of(self, site: Site, keep: Mapping[str, str]) -> list[str]:
        """Nodes to keep float for a site that is nowhere: what reads it, then what makes it."""
        names = [e.node for e in site.readers if e.node not in keep]
        value = self.values.get(site.tensor)
        producer = value.producer() if value is not None else None
        if not names and producer is not None:
            names.append(producer.name or "")
        return names

    def _spot(self, group: Sequence[Site], root: Site, placed: Mapping[str, list[Place] | None]) -> Spot:
        places = tuple(dict.fromkeys(place for site in group for place in placed[site.name] or ()))
        spec, weight = root.spec, group[0].role in ("weight", "constant")
        shape = self.marker.shapes[places[0]]
        alike = all(self.marker.shapes[place] == shape for place in places)
        several = weight and len({self.marker.parameters.get(place) for place in places}) > 1
        same = shape if alike and not several else None
        axis = self._axis(places[0], len(shape)) if isinstance(spec.granularity, PerChannel) else None
        if axis is None:
            return Spot(replace(spec, granularity=PerTensor()), weight, root.fixed, places, 1, same)
        return Spot(replace(spec, granularity=PerChannel(axis)), weight, root.fixed, places, shape[axis], same)

    def _axis(self, place: Place, rank: int) -> int | None:
        name = self.marker.names[place.call]
        if name in _PRODUCTS:
            return rank - 1
        return _CHANNELS.get(name)

    # -- biases and batch normalizations

    def _norms(self, nodes: Mapping[str | None, ir.Node]) -> dict[str, str]:
        """Layer's node → call of the batch normalization that alone reads it."""
        found: dict[str, str] = {}
        for edge, places in self.marked.edges.items():
            node = nodes.get(edge.node)
            if node is None or node.op_type != "BatchNormalization" or edge.index != 0:
                continue
            source = node.inputs[0]
            layer = source.producer() if source is not None else None
            if layer is not None and layer.op_type == "Add":  # of a MatMul and its bias
                inner = [v.producer() for v in layer.inputs if v is not None and v.producer() is not None]
                layer = inner[0] if len(inner) == 1 else layer
            if source is not None and layer is not None and len(source.uses()) == 1 and not source.is_graph_output():
                found[layer.name or ""] = places[0].call
        return found

    def _folded(self, layer: str) -> str | None:
        """The call of the batch normalization that went into a layer."""
        call = self.norm_after.get(layer)
        there = call is not None and any(
            n.op_type == "BatchNormalization" and any(p.call == call for p in self.marked.edges.get(Edge(name, 0), ()))
            for name, n in self.nodes.items()
        )
        return None if there else call

    def _bias(self, site: Site, plan: Plan, placed: Mapping[str, list[Place] | None]) -> BiasRule | None:
        if site.role != "bias" or site.factors is None or not site.readers:
            return None
        data, weight = (plan.by_name[name] for name in site.factors)
        layer = site.readers[0].node
        weights = placed.get(weight.name)
        group = [s.name for s in plan.sites if plan.root(s) is plan.root(data)]
        sources = next((p for name in group if (p := placed.get(name))), None)
        if not weights or not sources:
            return None
        calls = [p.call for edge in weight.readers if edge.node == layer for p in self.marked.edges.get(edge, ())]
        if not calls:
            return None
        own = next(p for p in weights if p.call == calls[0])
        read = self.marked.edges.get(site.readers[0], ())
        position = next((p.position for p in read if p.call == calls[0]), None)
        return BiasRule(calls[0], position, sources[0], own, self._folded(layer))

    def _refolded(self, plan: Plan) -> list[str]:
        """Layers whose quantized weights would not stay on their grid when the batch normalization folds into them."""
        found = []
        for site in plan.sites:
            spec = site.spec
            exact = isinstance(spec.granularity, PerChannel) and not spec.power_of_two
            exact = exact and (spec.narrow_range or not spec.symmetric)
            if site.role == "weight" and not exact:
                found += [e.node for e in site.readers if self._folded(e.node) is not None]
        return found
