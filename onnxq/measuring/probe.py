"""What quantizing a part of a model alone does to its outputs.

A part is a layer's weights or an activation with the tensors tied to it. It alone is fake-quantized, everything else
stays float, and the noise at each output is measured on a few samples. What comes before the part is computed once, and
what comes behind it is loaded once, see :mod:`onnxq.measuring.variants`: loading a whole model costs a few runs of it,
while a single one in which every quantizer can be switched runs several times slower, because weights that may change
cannot be packed in advance.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backend import Backend
from onnxq.calibration.statistics import KeptSample, Statistics
from onnxq.graph.traverse import all_constants, all_nodes
from onnxq.graph.values import constant_array
from onnxq.measuring.decibels import noise_of
from onnxq.measuring.variants import Variants
from onnxq.numbers import choose_numbers
from onnxq.options import Options
from onnxq.options.selection import Selection
from onnxq.plan import Plan, Site
from onnxq.planning.specs import weight_at
from onnxq.planning.table_rows import weight_row
from onnxq.qparams import QParams, fake_quantize
from onnxq.quantized import Quantized
from onnxq.spec import QuantSpec

__all__ = ["Part", "Probe", "Role", "Setting", "end_layers", "parts_of"]

Role = Literal["weights", "activations"]
Correct = Callable[[ir.Model, Plan, Mapping[str, QParams]], object]


@dataclass(frozen=True, slots=True)
class Part:
    """What is quantized together.

    Attributes:
        role: ``"weights"``, those of a layer (or of layers that share one), or ``"activations"``, a tensor with those
            that share its scale.
        nodes: the layers whose weights they are; for an activation those that read it.
        ops: their operator types.
        tensors: the weights, or the tensor and those tied to it.
        sites: names of the sites.
        elements: number of weights; 0 for an activation.
    """

    role: Role
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    tensors: tuple[str, ...]
    sites: tuple[str, ...]
    elements: int = 0

    @property
    def name(self) -> str:
        """The layer, or the tensor."""
        return self.nodes[0] if self.role == "weights" else self.tensors[0]


@dataclass(frozen=True, slots=True)
class Setting:
    """A part at a width."""

    part: Part
    bits: int


def parts_of(model: ir.Model, plan: Plan) -> list[Part]:
    """What a plan quantizes, in parts that can be quantized alone: weights, then activations, in the graph's order."""
    ops = {node.name or "": node.op_type for node in model.graph.all_nodes()}
    return [*_weights(model, plan, ops), *_activations(plan, ops)]


def _weights(model: ir.Model, plan: Plan, ops: Mapping[str, str]) -> list[Part]:
    """Layers that share a weight are one part, and so are the weights of one layer."""
    groups: list[tuple[set[str], list[Site]]] = []
    for site in plan.sites:
        if site.role == "weight":
            nodes, sites = {e.node for e in site.readers}, [site]
            for group in [g for g in groups if g[0] & nodes]:
                nodes, sites = nodes | group[0], group[1] + sites
                groups.remove(group)
            groups.append((nodes, sites))
    order = {name: position for position, name in enumerate(ops)}
    constants = all_constants(model)
    parts = []
    for nodes, sites in sorted(groups, key=lambda group: min(order.get(n, 0) for n in group[0])):
        names = tuple(sorted(nodes, key=lambda n: order.get(n, 0)))
        tensors = tuple(dict.fromkeys(site.tensor for site in sites))
        kinds = tuple(ops.get(n, "") for n in names)
        count = sum(_size(constants[name]) for name in tensors)
        parts.append(Part("weights", names, kinds, tensors, tuple(s.name for s in sites), count))
    return parts


def _activations(plan: Plan, ops: Mapping[str, str]) -> list[Part]:
    tied: dict[str, list[Site]] = {}
    for site in plan.sites:
        if site.role == "activation":
            tied.setdefault(plan.root(site).name, []).append(site)
    parts = []
    for root, sites in tied.items():
        sites.sort(key=lambda site: site.name != root)
        readers = tuple(dict.fromkeys(e.node for site in sites for e in site.readers))
        tensors = tuple(dict.fromkeys(site.tensor for site in sites))
        kinds = tuple(ops.get(n, "") for n in readers)
        parts.append(Part("activations", readers, kinds, tensors, tuple(site.name for site in sites)))
    return parts


def _size(value: ir.Value) -> int:
    """Number of elements of a constant."""
    return 0 if value.const_value is None else int(value.const_value.size)


def end_layers(model: ir.Model, layers: Sequence[Part]) -> set[Part]:
    """The layers with no other layer before them, or none behind them."""
    owner = {name: part for part in layers for name in part.nodes}
    nodes = list(model.graph.all_nodes())
    after: set[ir.Node] = set()
    before: set[ir.Node] = set()
    for node in nodes:
        producers = [v.producer() for v in node.inputs if v is not None]
        if any(p is not None and (p in after or p.name in owner) for p in producers):
            after.add(node)
    for node in reversed(nodes):
        readers = [use.node for v in node.outputs for use in v.uses()]
        if any(r in before or r.name in owner for r in readers):
            before.add(node)
    return {owner[n.name] for n in nodes if n.name in owner and (n not in after or n not in before)}


class Probe:
    """Measures parts of a model, quantized alone or together.

    Args:
        model: the float model, normalized; left unchanged.
        plan: where it would be quantized.
        target: the backend.
        options: providers and the library of custom operators.
        statistics: of this model.
        samples: what to measure on, with the float model's outputs.
        correct: changes the biases of a model whose weights have the given numbers; they then come with the weights.

    Attributes:
        reshaped: outputs that had another shape than the float model's somewhere in what was measured.
    """

    def __init__(
        self,
        model: ir.Model,
        plan: Plan,
        target: Backend,
        options: Options,
        statistics: Statistics,
        samples: Sequence[KeptSample],
        correct: Correct | None = None,
    ) -> None:
        self.model, self.target, self.options, self.statistics = model, target, options, statistics
        self.samples, self._correct = samples, correct
        self._variants: Variants | None = None
        self.plan = plan
        self._biases = {s.name: s for s in plan.sites if s.role == "bias"}
        self._numbers: dict[int, dict[str, QParams]] = {}
        self._corrected: dict[int, dict[str, NDArray[np.float32]]] = {}
        self.reshaped: set[str] = set()

    def noise(self, settings: Iterable[Setting]) -> dict[str, float]:
        """Noise over signal at each float output, a power ratio, with some parts quantized and the rest float.

        Returns:
            Output name → noise; infinite where the model does not run or gives no numbers, and that of a sample of
            another shape as :class:`onnxq.measuring.metrics.Errors` scores it.
        """
        sites, numbers, biases = [], {}, {}
        for setting in settings:
            chosen = self._numbers_at(setting.bits)
            for name in setting.part.sites:
                sites.append(replace(self.plan.by_name[name], spec=chosen[name].spec))
                numbers[name] = chosen[name]
            if setting.part.role == "weights":
                biases.update(self._biases_of(setting))
        model = self.model
        if biases:
            model = model.clone()
            for name, array in biases.items():
                value = model.graph.initializers[name]
                value.const_value = ir.tensor(array, name=name)
        order = {site.name: position for position, site in enumerate(self.plan.sites)}
        sites.sort(key=lambda site: order[site.name])
        return self._measured(Quantized(model, replace(self.plan, sites=tuple(sites)), numbers, self.target))

    def on(self, samples: Sequence[KeptSample]) -> Probe:
        """A probe of the same parts on other samples."""
        other = copy.copy(self)
        other.samples, other._variants = samples, None
        return other

    def errors(self, part: Part, widths: Sequence[int]) -> list[float]:
        """Sum of the squared errors of a part's weights at each width; of an activation, what they go by: 4**-bits."""
        if part.role == "activations":
            return [4.0**-bits for bits in widths]
        values = all_constants(self.model)
        errors = []
        for bits in widths:
            chosen, total = self._numbers_at(bits), 0.0
            for name in part.sites:
                array = constant_array(values[self.plan.by_name[name].tensor])
                assert array is not None
                array = np.asarray(array, np.float32)
                error = (fake_quantize(array, chosen[name]) - array).ravel()
                total += float(np.dot(error, error))
            errors.append(total)
        return errors

    def qparams(self, site: str, bits: int) -> QParams:
        """The numbers of a site at a width."""
        return self._numbers_at(bits)[site]

    def _measured(self, quantized: Quantized) -> dict[str, float]:
        if self._variants is None:
            self._variants = Variants(self.model.clone(), self.samples, **self.options.session)
        found = self._variants.errors(quantized.fake_quantize())
        if not found:
            return {n: math.inf for n, values in self.samples[0].outputs.items() if values.dtype.kind == "f"}
        self.reshaped.update(name for name, errors in found.items() if errors.reshaped)
        return {name: noise_of(errors.score) for name, errors in found.items()}

    def _numbers_at(self, bits: int) -> dict[str, QParams]:
        """Numbers of all sites but biases at a width."""
        if bits not in self._numbers:
            sites = [replace(s, spec=self._spec(s, bits)) for s in self.plan.sites if s.role != "bias"]
            plan = replace(self.plan, sites=tuple(sites))
            self._numbers[bits] = choose_numbers(self.model, plan, self.statistics)
        return self._numbers[bits]

    def _spec(self, site: Site, bits: int) -> QuantSpec:
        """The spec of a site at a width; weights have zero points where the target gives such ones to that width."""
        spec = replace(site.spec, bits=bits)
        found = weight_row(self.target, site, self._nodes)
        if found is None:
            return spec
        return weight_at(self.target, self.options, self._selection, found, spec)

    @cached_property
    def _nodes(self) -> dict[str, ir.Node]:
        return {node.name or "": node for node in all_nodes(self.model)}

    @cached_property
    def _selection(self) -> Selection:
        return Selection(self.model, tuple(self._nodes.values()), self.options)

    def _biases_of(self, setting: Setting) -> dict[str, NDArray[np.float32]]:
        """The biases of a part's layers as they are corrected where its weights have a width."""
        if self._correct is None:
            return {}
        if setting.bits not in self._corrected:
            changed = self.model.clone()
            self._correct(changed, self.plan, self._numbers_at(setting.bits))
            before, found = self.model.graph.initializers, {}
            for name, value in changed.graph.initializers.items():
                if value.const_value is not before[name].const_value:
                    found[name] = np.asarray(constant_array(value), np.float32)
            self._corrected[setting.bits] = found
        nodes = set(setting.part.nodes)
        corrected = self._corrected[setting.bits]
        found = {}
        for name, array in corrected.items():
            readers = {use.node.name for use in self.model.graph.initializers[name].uses()}
            if readers <= nodes:
                found[name] = array
        return found
