"""A bias of its own for every quantized layer: shared ones are copied, missing ones added as zeros."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.algorithm import Draft
from onnxq.algorithms.common.quantized_layer import QuantizedLayer, quantized_layers
from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.values import constant_array, input_of, is_constant
from onnxq.plan import Edge, Site
from onnxq.qparams import QParams
from onnxq.spec import PerChannel, PerTensor, QuantSpec

__all__ = ["give_biases", "remove_zero_biases"]


def give_biases(draft: Draft) -> list[str]:
    """Give layers biases that nothing else reads, with sites in the plan where the target stores biases as integers.

    Convolutions and Gemms get one; of other layers, and of those whose third input is no row of numbers, nothing
    changes. What the model computes stays the same.

    Args:
        draft: its model and plan are changed; scales of the new biases come with :func:`onnxq.numbers.fit_biases`.

    Returns:
        Names of the biases that were added, all zero.
    """
    namer = Namer(draft.model)
    added = []
    for layer in quantized_layers(draft.model, draft.plan, stored=True):
        node = layer.node
        if layer.bias is not None or node.op_type == "MatMul" or node.graph is not draft.model.graph:
            continue
        if node.op_type == "Gemm" and node.attributes.get_float("beta", 1.0) != 1.0:
            continue
        groups, outputs, _ = layer.matrix().shape
        old = input_of(node, 2)
        if old is None:
            value = set_constant(draft.model.graph, namer, f"{layer.name}/bias", np.zeros(groups * outputs, np.float32))
            node.resize_inputs(3)
            added.append(value.name or "")
        else:
            array = constant_array(old)
            row = array is not None and array.dtype == np.float32 and array.shape == (groups * outputs,)
            if array is None or not row or not is_constant(old):
                continue
            value = set_constant(draft.model.graph, namer, f"{layer.name}/bias", array)
        node.replace_input_with(2, value)
        _plan_bias(draft, layer, value)
    return added


def remove_zero_biases(draft: Draft, added: list[str]) -> None:
    """Take back those of the biases added that are still zero."""
    for name in added:
        value = draft.model.graph.initializers[name]
        array = constant_array(value)
        if array is not None and not array.any():
            for node, index in value.uses():
                node.replace_input_with(index, None)
                node.resize_inputs(index)
            del draft.model.graph.initializers[name]
            gone = [s.name for s in draft.plan.sites if s.role == "bias" and s.tensor == name]
            draft.plan = replace(draft.plan, sites=tuple(s for s in draft.plan.sites if s.name not in gone))
            for site in gone:
                draft.numbers.pop(site, None)


def _plan_bias(draft: Draft, layer: QuantizedLayer, value: ir.Value) -> None:
    """Let the bias site of a layer speak of its new bias; make one where there is none."""
    edge = Edge(layer.name, 2)
    sites = []
    found = False
    for site in draft.plan.sites:
        if site.role == "bias" and edge in site.readers:
            others = tuple(e for e in site.readers if e != edge)
            if others:
                sites.append(replace(site, readers=others))
                site = replace(site, name=f"{layer.name}/bias", readers=(edge,))
            sites.append(replace(site, tensor=value.name or ""))
            found = True
        else:
            sites.append(site)
    if not found and (new := _new_site(draft, layer, value, edge)) is not None:
        sites.append(new)
    draft.plan = replace(draft.plan, sites=tuple(sites))
    fresh = [site for site in sites if site.name not in draft.numbers]
    for site in fresh:  # numbers until they are fitted
        draft.numbers[site.name] = QParams(site.spec, np.ones((), np.float32), np.zeros((), np.int64))


def _new_site(draft: Draft, layer: QuantizedLayer, value: ir.Value, edge: Edge) -> Site | None:
    """``None`` where the bias stays float: in a float layer, or for a target whose biases are not integers."""
    if draft.target.bias != "int32" or layer.name not in draft.plan.quantized:
        return None
    data = _data_site(draft, layer)
    weight = draft.plan.by_name[layer.site]
    if data is None:
        return None
    granularity = PerChannel(0) if isinstance(weight.spec.granularity, PerChannel) else PerTensor()
    factors = (data, weight.name) if weight.spec.bits <= 8 else None
    spec = QuantSpec(bits=32, granularity=granularity)
    return Site(value.name or "", value.name or "", "bias", spec, (edge,), factors=factors)


def _data_site(draft: Draft, layer: QuantizedLayer) -> str | None:
    """The site of what a layer reads."""
    sites = [s for s in draft.plan.sites if s.role == "activation" and s.tensor == layer.data.name]
    reading = [s for s in sites if Edge(layer.name, 0) in s.readers] or [s for s in sites if s.produced]
    return reading[0].name if reading else None
