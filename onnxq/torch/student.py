"""A quantized model as something that torch trains: weights, biases and scales of the whole graph at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import torch

from onnxq.errors import ModelError
from onnxq.graph.traverse import all_constants, all_nodes
from onnxq.graph.values import constant_array, input_of
from onnxq.numbers import fit_biases
from onnxq.plan import Edge, Plan, Site
from onnxq.planning.placement import elements
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.spec import PerBlock, PerChannel, Scheme
from onnxq.torch.executor import Executor
from onnxq.torch.places import quantized_places
from onnxq.torch.weights import ActivationGrid, FreeWeight, tensor_of

__all__ = ["Student"]

Tensor = torch.Tensor

_WIDEST = 16
"""Bits up to which float32 holds every integer of a grid."""
_LARGEST_TABLE = 1 << 20
"""Numbers of a table up to which its rows are learned."""


class Student:
    """What training changes of a quantized model, and how it runs in torch.

    A weight that one layer reads, its scales, that layer's bias and the scales of activations are learned; zero points,
    scales that are powers of two, fixed ranges and weights that are shared stay as they are, and so do large tables
    that a Gather reads: few of their rows occur in a sample, and all of them would be computed with in each step.

    Args:
        quantized: where the training starts; left unchanged.
        features: tensors inside, whose values :meth:`run` gives beside the outputs. They are cut off where their
            quantizers do, but not rounded: a Relu that a quantizer stands for is not in the graph.
        device: where to run, ``"cpu"`` or what torch offers.

    Attributes:
        executor: of the float graph.
        weights: weights that are learned, by name.
        grids: quantizers of activations, by site.

    Raises:
        ModelError: the graph has operators that torch cannot run; all of them are named.
        OptionError: torch is missing.
    """

    def __init__(self, quantized: Quantized, features: Sequence[str] = (), device: str = "cpu") -> None:
        self.quantized, self.device = quantized, device
        model, plan = quantized.model, quantized.plan
        self.outputs = tuple(v.name or "" for v in model.graph.outputs)
        self.executor = Executor(model, outputs=[*self.outputs, *features], device=device)
        self._constants = all_constants(model)
        self.weights: dict[str, FreeWeight] = {}
        self.grids: dict[str, ActivationGrid] = {}
        self._weight_sites: dict[str, Site] = {}
        self._biases: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._bias_sites = {site.tensor: site for site in plan.sites if site.role == "bias"}
        self._groups: dict[str, list[Site]] = {}  # root → sites with its numbers
        for site in plan.sites:
            self._groups.setdefault(plan.root(site).name, []).append(site)
        for site in plan.sites:
            if site.name in quantized.qparams and site.role != "bias":
                self._take(site, quantized.qparams[site.name])
        self._biases_of(plan, list(all_nodes(model)))
        edges, behind = quantized_places(model, plan)
        self._edges = self._quantizers(edges)
        self._behind = {tensor: self.grids[root] for tensor, root in behind.items() if root in self.grids}
        seen = {s.tensor: plan.root(s).name for s in reversed(plan.sites) if s.role == "activation"}
        self._cut = {name: self.grids[seen[name]] for name in features if seen.get(name) in self.grids}

    @property
    def learned(self) -> dict[str, list[Tensor]]:
        """What the optimizer changes: ``weights`` in units of their scales, ``scales`` as logarithms of factors,
        ``biases`` in units of the noise that rounding makes."""
        scales = [g.stretch for g in self.grids.values() if g.stretch is not None]
        scales += [w.stretch for w in self.weights.values() if w.stretch.requires_grad]
        return {
            "weights": [w.steps for w in self.weights.values()],
            "scales": scales,
            "biases": [move for _, _, move in self._biases.values()],
        }

    def constants(self) -> dict[str, Tensor]:
        """Weights and biases as the model computes with them now, differentiable; of use for several runs."""
        constants = {name: weight.value() for name, weight in self.weights.items()}
        return constants | {name: self._rounded(name, bias) for name, bias in self._present_biases().items()}

    def run(self, feeds: Mapping[str, Tensor], constants: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Outputs and features of the quantized model, differentiable.

        Args:
            feeds: input name → tensor.
            constants: what :meth:`constants` gave, or tensors in their place.
        """
        constants = self.constants() if constants is None else constants
        found = self.executor.run(feeds, weights=constants, quantizers=self._edges)
        found |= {n: self._behind[n](found[n]) for n in self.outputs if n in self._behind}
        return found | {name: grid.saturated(found[name]) for name, grid in self._cut.items()}

    def _present_biases(self) -> dict[str, Tensor]:
        return {name: start + move * unit for name, (start, unit, move) in self._biases.items()}

    def _rounded(self, name: str, bias: Tensor) -> Tensor:
        """A bias in whole units of data scale times weight scale where the target stores it so, straight through."""
        site = self._bias_sites.get(name)
        if site is None or site.factors is None:
            return bias
        data, weight = (self.quantized.plan.by_name[factor] for factor in site.factors)
        grid, learned = self.grids.get(self.quantized.plan.root(data).name), self.weights.get(weight.tensor)
        if grid is None or learned is None:
            return bias
        with torch.no_grad():
            unit = (grid.scale() * learned.scale().reshape(-1)).reshape(-1)
            gap = torch.round(bias.reshape(-1) / unit) * unit - bias.reshape(-1)
        return bias + gap.reshape(bias.shape)

    def result(self) -> Quantized:
        """The model as it is trained so far."""
        model = self.quantized.model.clone()
        constants = all_constants(model)
        numbers = dict(self.quantized.qparams)
        for name, weight in self.weights.items():
            array, numbers[self._weight_sites[name].name] = weight.result()
            constants[name].const_value = ir.tensor(array, name=name)
        for name, bias in self._present_biases().items():
            constants[name].const_value = ir.tensor(bias.detach().cpu().numpy().astype(np.float32), name=name)
        plan = self.quantized.plan
        for site in plan.sites:
            grid = self.grids.get(plan.root(site).name)
            if grid is not None and grid.stretch is not None and site.name in numbers:
                numbers[site.name] = replace(numbers[site.name], scale=grid.result().scale)
        fit_biases(model, plan, numbers)
        return replace(self.quantized, model=model, qparams=numbers, files=())

    def _take(self, site: Site, qp: QParams) -> None:
        plan = self.quantized.plan
        if qp.spec.scheme is not Scheme.UNIFORM or qp.spec.bits > _WIDEST:
            raise ModelError(
                f"tensor {site.tensor!r} is on a {qp.spec.scheme.value} grid of {qp.spec.bits} bits",
                hint="Only uniform grids of at most 16 bits are trained",
            )
        if site.role == "weight":
            value = self._constants[site.tensor]
            tied = len(self._groups[plan.root(site).name]) > 1
            if (
                len(value.uses()) == 1
                and not tied
                and not _is_large_table(value)
                and not isinstance(qp.spec.granularity, PerBlock)
            ):
                array = constant_array(value)
                assert array is not None
                self.weights[site.tensor] = FreeWeight(np.asarray(array, np.float32), qp, self.device)
                self._weight_sites[site.tensor] = site
                return
        root = plan.root(site)
        if root.name not in self.grids:
            learn = all(s.role == "activation" and s.fixed is None for s in self._groups[root.name])
            self.grids[root.name] = ActivationGrid(qp, learn=learn, device=self.device)

    def _quantizers(self, edges: Mapping[Edge, str]) -> dict[Edge, Callable[[Tensor], Tensor]]:
        """What is done to the tensors that nodes read; constants that are not learned are quantized once."""
        nodes = {node.name: node for node in all_nodes(self.quantized.model)}
        once: dict[tuple[str, str], _Once] = {}
        found: dict[Edge, Callable[[Tensor], Tensor]] = {}
        for edge, root in edges.items():
            grid, node = self.grids.get(root), nodes.get(edge.node)
            value = node.inputs[edge.index] if node is not None else None
            if grid is None:
                continue
            found[edge] = grid
            if value is not None and value.name in self._constants and value.is_initializer() and grid.stretch is None:
                found[edge] = once.setdefault((root, value.name), _Once(grid))
        return found

    def _biases_of(self, plan: Plan, nodes: Sequence[ir.Node]) -> None:
        """Biases of the layers whose weights are learned, where nothing else reads them."""
        data = {edge: plan.root(site).name for edge, site in plan.by_edge("activation").items()}
        behind = {s.tensor: plan.root(s).name for s in plan.sites if s.role == "activation" and s.produced}
        for node in nodes:
            weight = node.inputs[1].name if len(node.inputs) > 2 and node.inputs[1] is not None else None
            bias = input_of(node, 2)
            if (
                weight is None
                or weight not in self.weights
                or bias is None
                or bias.name not in self._constants
                or node.inputs[0] is None
            ):
                continue
            array = constant_array(bias)
            if array is None or array.dtype != np.float32 or len(bias.uses()) != 1 or bias.is_graph_output():
                continue
            root = data.get(Edge(node.name or "", 0)) or behind.get(node.inputs[0].name or "")
            unit = self._noise_of(weight, root)
            if unit.size not in (1, array.size):
                continue
            start = tensor_of(array).to(self.device)
            unit = np.broadcast_to(unit.reshape(-1), (array.size,)).reshape(array.shape)
            move = torch.zeros_like(start, requires_grad=True)
            self._biases[bias.name or ""] = (start, tensor_of(np.array(unit)).to(self.device), move)

    def _noise_of(self, weight: str, root: str | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """What rounding a weight does to each row of what it makes of data on the grid of a site."""
        grid = self.grids.get(root) if root is not None else None
        spread = float((grid.qp.hi - grid.qp.lo).max()) / 6 if grid is not None else 1.0
        return _row_noise(self.weights[weight]) * spread


def _is_large_table(value: ir.Value) -> bool:
    return elements(value) > _LARGEST_TABLE and all(use.node.op_type == "Gather" for use in value.uses())


class _Once:
    """A quantizer of one tensor that does not change."""

    def __init__(self, grid: ActivationGrid) -> None:
        self._grid = grid
        self._seen: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            return self._grid(x)
        if self._seen is None or self._seen[0] is not x:
            with torch.no_grad():
                self._seen = x, self._grid(x)
        return self._seen[1]


def _row_noise(weight: FreeWeight) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Noise that rounding a row of a weight makes for inputs of size 1: scale times sqrt(inputs / 12)."""
    scale, granularity = weight.qp.scale, weight.qp.spec.granularity
    rows = weight.weight.shape[granularity.axis] if isinstance(granularity, PerChannel) else weight.weight.shape[0]
    return np.asarray(scale * np.sqrt(weight.weight.numel() / max(rows, 1) / 12), np.float32)
