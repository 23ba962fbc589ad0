"""Quantized → ONNX with QuantizeLinear and DequantizeLinear.

Around each site a pair Q, DQ; weights and biases are stored as integers behind a DQ; what Q and DQ cannot say (a grid
narrower than its integer type) becomes an ``onnxq::FakeQuantize`` function, which any onnxruntime runs. Names: a tensor
``t`` keeps its name at its producer; ``t_quantized`` and ``t_dequantized`` come behind it. A model output keeps its
name at the very end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import remove_nodes, rename_output
from onnxq.graph.known import array_once
from onnxq.graph.namer import Namer
from onnxq.graph.order import sort_nodes
from onnxq.graph.passes.prune import remove_unread
from onnxq.graph.values import is_constant
from onnxq.plan import Site
from onnxq.qparams import QParams, quantize
from onnxq.quantized import Quantized
from onnxq.render import fake_quantize, nnie_quantize
from onnxq.render.bits_kept import mark_bits
from onnxq.render.clips_kept import mark_clip
from onnxq.render.limits import bounds, saturates, speakable
from onnxq.render.reading.parameters import at_border
from onnxq.render.shared_numbers import SharedNumbers
from onnxq.render.wiring import add_initializer, describe, insert_behind, numbers, take_over_output
from onnxq.spec import WIDE_OPSET, PerChannel, Scheme

__all__ = ["render"]


def render(quantized: Quantized, *, fake: bool = False) -> ir.Model:
    """The quantized model as ONNX.

    Args:
        quantized: left unchanged.
        fake: write every site as an ``onnxq::FakeQuantize`` function over float tensors.

    Returns:
        A new model, with the names, types and order of the float model's inputs and outputs.
    """
    return _Renderer(quantized, fake).run()


class _Renderer:
    def __init__(self, quantized: Quantized, fake: bool) -> None:
        self.q, self.fake = quantized, fake
        self.model = quantized.model.clone()
        self.namer = Namer(self.model)
        self.nodes = {n.name or "": n for n in self.model.graph.all_nodes()}
        self.order = {n: i for i, n in enumerate(self.model.graph.all_nodes())}
        self.values: dict[str, ir.Value] = {v.name: v for v in self.model.graph.inputs if v.name}
        for graph in (self.model.graph, *self.model.graph.subgraphs()):
            self.values.update({v.name: v for v in (*graph.inputs, *graph.initializers.values()) if v.name})
        self.values.update({v.name: v for n in self.nodes.values() for v in n.outputs if v.name})
        self.parameters = SharedNumbers(quantized, self.model, self.namer, self.values)
        self.made: dict[str, ir.Value] = {}  # tensor -> what the pair behind its producer gives
        self.sites: dict[str, list[Site]] = {}  # tensor -> its sites
        for site in quantized.plan.sites:
            self.sites.setdefault(site.tensor, []).append(site)

    def run(self) -> ir.Model:
        plan = self.q.plan
        for name in plan.absorbed:
            if not self._drop_if_saturated(name) and self.q.backend.complete_units:
                self._pair_in_front(name)
        for site in plan.sites:
            if site.name not in self.q.qparams:
                continue
            if not self._speakable(site):
                self._fake_site(site)
            elif site.role == "activation":
                self._pair(site)
            else:
                self._stored(site)
        touched = {site.tensor for site in plan.sites if site.role != "activation"}
        for graph in (self.model.graph, *self.model.graph.subgraphs()):
            remove_unread(graph, touched)  # float weights that only quantized copies are read of now
        sort_nodes(self.model.graph)
        self.model.producer_name, self.model.producer_version = "onnxq", self.q.version
        return self.model

    # -- activations

    def _speakable(self, site: Site) -> bool:
        return not self.fake and speakable(site, self.q.backend.quantizer_bits)

    def _drop_if_saturated(self, name: str) -> bool:
        """Remove a Relu or Clip that all quantizers behind it make superfluous, and say so.

        Not at 16 bits: no kernel gains by it, and some runtimes strip such quantizers and would lose the function.
        Where every operator needs a quantizer directly behind it, it goes at any width.
        """
        node = self.nodes[name]
        if not self.q.backend.drops_absorbed or node.op_type not in ("Relu", "Clip"):
            return False
        most = 16 if self.q.backend.complete_units else 8
        output, source = node.outputs[0], node.inputs[0]
        tensor = output.name or ""
        sites = self.sites.get(tensor, [])
        if source is None or not any(s.produced for s in sites):
            return False
        fit = (s.spec.bits <= most and self._speakable(s) and saturates(node, self.q.qparams[s.name]) for s in sites)
        if not all(fit):
            return False
        mark_clip(source, *bounds(node))
        rename_output(source, output)
        remove_nodes([node])
        del self.nodes[name]
        self.values[tensor] = source
        return True

    def _pair_in_front(self, name: str) -> None:
        """A pair in front of a Relu or Clip that stays, with the numbers of the one behind it.

        Those hold all that the function lets through, so that what they saturate it would clip as well.
        """
        node = self.nodes[name]
        source, output = node.inputs[0], node.outputs[0]
        site = next((s for s in self.sites.get(output.name or "", []) if s.produced), None)
        if source is None or site is None or site.name not in self.q.qparams or not self._speakable(site):
            return
        scale, zero = self.parameters.of(site)
        made: list[ir.Node] = []
        for op, dtype in (("Quantize", ir.DataType[site.spec.dtype.upper()]), ("Dequantize", ir.DataType.FLOAT)):
            fed = made[-1].outputs[0] if made else source
            name = self.namer.node(f"{source.name}_{op}Linear")
            made.append(ir.node(f"{op}Linear", [fed, scale, zero], name=name, domain=self._domain(site)))
            describe(made[-1].outputs[0], self.namer.fresh(f"{source.name}_{op.lower()}d"), dtype, source.shape)
        insert_behind(source, made)
        node.replace_input_with(0, made[-1].outputs[0])

    def _pair(self, site: Site) -> None:
        value = self.values[site.tensor]
        qp = self.q.qparams[site.name]
        if site.produced and site.tensor in self.made:
            return
        readers = [edge for edge in self._readers(site, value) if not at_border(edge[0], "QuantizeLinear", qp)]
        if not readers and not (site.produced and (value.is_graph_output() or self._converted(site))):
            return
        if at_border(value.producer(), "DequantizeLinear", qp):
            return
        scale, zero = self.parameters.of(site)
        integer = ir.DataType[site.spec.dtype.upper()]
        name = self.namer.node(f"{site.tensor}_QuantizeLinear")
        source = self._behind_its_producer(site, value)
        q = ir.node("QuantizeLinear", [source, scale, zero], name=name, domain=self._domain(site))
        describe(q.outputs[0], self.namer.fresh(f"{site.tensor}_quantized"), integer, value.shape)
        insert_behind(source, [q])
        self._connect(site, value, q.outputs[0], scale, zero, readers)

    def _converted(self, site: Site) -> bool:
        """Whether what the pair behind a producer gives is brought to another grid for some that read the tensor."""
        others = (other for other in self.sites[site.tensor] if other is not site and other.role == "activation")
        return self.q.backend.complete_units and any(other.spec != site.spec for other in others)

    def _behind_its_producer(self, site: Site, value: ir.Value) -> ir.Value:
        """What the quantizer of a site reads: of a target whose operators write one grid what comes in that one."""
        before = next((other for other in self.sites[site.tensor] if other.produced and other is not site), None)
        if before is None or site.produced or before.name not in self.q.qparams or not self._converted(before):
            return value
        self._pair(before)
        return self.made.get(site.tensor, value)

    def _connect(
        self,
        site: Site,
        value: ir.Value,
        integer: ir.Value,
        scale: ir.Value,
        zero: ir.Value,
        readers: Sequence[tuple[ir.Node, int]],
    ) -> None:
        """One DequantizeLinear in each graph that reads, then the readers moved to it."""
        home, grain = value.graph, site.spec.granularity
        by_graph: dict[ir.Graph, list[tuple[ir.Node, int]]] = {}
        for node, index in readers:
            graph = node.graph
            assert isinstance(graph, ir.Graph)
            by_graph.setdefault(graph, []).append((node, index))
        is_output = site.produced and value.is_graph_output()
        if (is_output or (site.produced and self._converted(site))) and isinstance(home, ir.Graph):
            by_graph.setdefault(home, [])
        for graph, edges in by_graph.items():
            dq = ir.node(
                "DequantizeLinear",
                [integer, scale, zero],
                attributes={"axis": grain.axis} if isinstance(grain, PerChannel) else None,
                name=self.namer.node(f"{site.tensor}_DequantizeLinear"),
                domain=self._domain(site),
            )
            describe(dq.outputs[0], self.namer.fresh(f"{site.tensor}_dequantized"), ir.DataType.FLOAT, value.shape)
            if is_output and graph is home:
                take_over_output(value, dq.outputs[0], self.namer)
            if site.produced and graph is home:
                self.made[site.tensor] = dq.outputs[0]
            producer = integer.producer()
            if producer is not None and producer.graph is graph:
                graph.insert_after(producer, [dq])
            elif edges:
                graph.insert_before(min((n for n, _ in edges), key=self.order.__getitem__), [dq])
            for node, index in edges:
                node.replace_input_with(index, dq.outputs[0])

    def _readers(self, site: Site, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """The inputs that read a site: its own, and for a quantizer behind the producer all that have no other site."""
        if site.produced:
            taken = {(e.node, e.index) for s in self.sites[site.tensor] if s is not site for e in s.readers}
            uses = [(use.node, use.idx) for use in value.uses() if use.node in self.order]
            return [(node, index) for node, index in uses if (node.name, index) not in taken]
        edges = [(self.nodes[e.node], e.index) for e in site.readers if e.node in self.nodes]
        return [(node, index) for node, index in edges if node.inputs[index] is value]

    # -- stored integers

    def _stored(self, site: Site) -> None:
        value = self.values[site.tensor]
        qp = self.q.qparams[site.name]
        readers = self._readers(site, value)
        if not readers:
            return
        integers = array_once(value, qp, lambda: quantize(numbers(value), qp))
        stored = self._initializer(value, f"{site.tensor}_quantized", integers, ir.DataType[site.spec.dtype.upper()])
        mark_bits(stored, site.spec)
        scale, zero = self.parameters.of(site, value)
        self._connect(site, value, stored, scale, zero, readers)

    # -- what Q and DQ cannot say

    def _fake_site(self, site: Site) -> None:
        value = self.values[site.tensor]
        qp = self.q.qparams[site.name]
        readers = self._readers(site, value)
        is_output = site.produced and value.is_graph_output()
        if not readers and not is_output:
            return
        node = self._fake_node(site, value, qp)
        describe(node.outputs[0], self.namer.fresh(f"{site.tensor}_fake_quantized"), ir.DataType.FLOAT, value.shape)
        if is_output:
            take_over_output(value, node.outputs[0], self.namer)
        if value.producer() is None and is_constant(value):
            graph = readers[0][0].graph if value.graph is None else value.graph
            assert isinstance(graph, ir.Graph)
            here = all(reader.graph is graph for reader, _ in readers)
            first = min((reader for reader, _ in readers), key=self.order.__getitem__) if here else graph[0]
            graph.insert_before(first, [node])
        else:
            insert_behind(value, [node])
        for reader, index in readers:
            reader.replace_input_with(index, node.outputs[0])

    def _fake_node(self, site: Site, value: ir.Value, qp: QParams) -> ir.Node:
        """A call of the function that quantizes a tensor, not yet in a graph."""
        if site.spec.scheme is Scheme.LOGARITHMIC:
            nnie_quantize.register(self.model)
            clip = self._initializer(value, f"{site.tensor}_clip", qp.scale, ir.DataType.FLOAT)
            return nnie_quantize.node(value, clip, self.namer.node(f"{site.tensor}_NNIEQuantize"))
        fake_quantize.register(self.model)
        scale, zero = (
            self._initializer(value, f"{site.tensor}_{name}", array, ir.DataType.FLOAT)
            for name, array in fake_quantize.parameters(qp, value).items()
        )
        return fake_quantize.node(value, scale, zero, site.spec, self.namer.node(f"{site.tensor}_FakeQuantize"))

    # -- helpers

    def _domain(self, site: Site) -> str:
        """The domain of Q and DQ: the standard one, unless its operators have no such integers yet."""
        domain = self.q.backend.wide_domain
        if not domain or site.spec.storage_bits not in (4, 16) or self.model.opset_imports.get("", 0) >= WIDE_OPSET:
            return ""
        self.model.opset_imports.setdefault(domain, 1)
        return domain

    def _initializer(self, home: ir.Value, base: str, array: NDArray[np.generic], dtype: ir.DataType) -> ir.Value:
        graph = home.graph if isinstance(home.graph, ir.Graph) else self.model.graph
        return add_initializer(graph, self.namer.fresh(base), array, dtype)
