"""A float ONNX model with its numbers in a file beside it: taken apart for writing, put together when read.

Targets with a quantizer of their own (SNPE encodings, Tengine, PPL, NNIE ...) take the float model and a table of
numbers by tensor name. Names in the table are those of the model that ships with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.errors import BackendError
from onnxq.file_system import write_text
from onnxq.graph.namer import Namer
from onnxq.graph.passes.prune import remove_unread
from onnxq.graph.traverse import all_constants, all_graphs, all_nodes
from onnxq.graph.values import constant_array
from onnxq.plan import Edge, Plan, Role, Site
from onnxq.qparams import QParams, ends, fake_quantize
from onnxq.quantized import Quantized
from onnxq.render.reading.sound_numbers import check_table_numbers

__all__ = ["Parts", "put_together", "take_apart", "write_json"]

WeightForm = Literal["grid", "clipped", "float"]


@dataclass(frozen=True)
class Parts:
    """A float model and the numbers of its tensors, by the tensors' names there.

    Attributes:
        model: float; its weights as asked for.
        activations: graph inputs and outputs of operators, in the order of the graph.
        weights: weights, and constants quantized like activations.
        biases: biases.
        nodes: node name → operator type, of the nodes that are quantized.
    """

    model: ir.Model
    activations: Mapping[str, QParams]
    weights: Mapping[str, QParams]
    biases: Mapping[str, QParams]
    nodes: Mapping[str, str] = field(default_factory=dict)


def take_apart(quantized: Quantized, weights: WeightForm = "grid") -> Parts:
    """The float model of a quantized one, and its numbers by tensor name.

    Args:
        quantized: left unchanged.
        weights: ``"grid"`` writes weights and biases as their quantized values, ``"clipped"`` as they are within the
            range of their grid, ``"float"`` as they are.

    Raises:
        BackendError: a tensor is quantized in two ways, which no table by tensor name can say.
    """
    model = quantized.model.clone()
    namer = Namer(model)
    nodes = {n.name: n for n in all_nodes(model)}
    constants = all_constants(model)
    taken: dict[str, QParams] = {}
    found: dict[Role, dict[str, QParams]] = {"activation": {}, "constant": {}, "weight": {}, "bias": {}}
    for site in quantized.plan.sites:
        numbers = quantized.qparams.get(site.name)
        if numbers is None:
            continue
        name = site.tensor
        if site.role == "activation":
            if name in taken and taken[name] != numbers:
                raise BackendError(
                    f"tensor {name!r} is quantized in two ways, which {quantized.backend.name} cannot say",
                    hint="Give all its readers the same bits and symmetry",
                )
        else:
            value = constants[name]
            array = constant_array(value)
            assert array is not None
            in_float = len(site.readers) < len(value.uses()) or value.is_graph_output()
            if (name in taken and taken[name] != numbers) or in_float:
                value = _copy(value, namer)
                for edge in site.readers:
                    nodes[edge.node].replace_input_with(edge.index, value)
                name = value.name or ""
            form = array if weights == "float" else _formed(array, numbers, weights)
            value.const_value = ir.tensor(form, name=name)
        taken[name] = found[site.role][name] = numbers
    for graph in all_graphs(model):
        remove_unread(graph)
    model.producer_name, model.producer_version = "onnxq", quantized.version
    return Parts(
        model,
        found["activation"],
        {**found["weight"], **found["constant"]},
        found["bias"],
        dict(quantized.plan.quantized),
    )


def put_together(
    model: ir.Model,
    backend: Backend,
    activations: Mapping[str, QParams],
    weights: Mapping[str, QParams],
    biases: Mapping[str, QParams] | None = None,
) -> Quantized:
    """A float model and numbers by tensor name, as one.

    Args:
        model: left unchanged.
        backend: the target.
        activations: numbers of graph inputs and outputs of operators.
        weights: numbers of constants.
        biases: numbers of biases.

    Raises:
        BackendError: a name is of no tensor of the model, or its numbers are none to compute with.
    """
    values: dict[str, ir.Value] = {v.name: v for graph in all_graphs(model) for v in graph.inputs if v.name}
    values.update({v.name: v for n in all_nodes(model) for v in n.outputs if v.name})
    values.update(all_constants(model))
    sites: list[Site] = []
    numbers: dict[str, QParams] = {}
    tables: list[tuple[Role, Mapping[str, QParams]]] = [("activation", activations), ("weight", weights)]
    tables.append(("bias", biases or {}))
    for role, table in tables:
        for name, qp in table.items():
            if name not in values:
                what = f"the table names tensor {name!r}, which the model does not have"
                raise BackendError(what, where=backend.name)
            shape = values[name].shape
            beyond = role == "weight" and backend.weight_zero_points == "beyond"
            dims = shape.dims if shape is not None else None
            check_table_numbers(name, qp, dims, stored=role == "bias", beyond=beyond)
            readers = tuple(Edge(use.node.name or "", use.idx) for use in values[name].uses())
            made = role == "activation" and values[name].producer() is not None
            sites.append(Site(name, name, role, qp.spec, readers, produced=made and not backend.inputs_only))
            numbers[name] = qp
    read = {edge.node for site in sites if site.role != "bias" for edge in site.readers}
    quantized = {n.name or "": n.op_type for n in all_nodes(model) if n.name in read}
    plan = Plan(backend.name, tuple(sites), quantized)
    return Quantized(model.clone(), plan, numbers, backend)


def write_json(path: Path, document: Any) -> Path:
    """Write a JSON sidecar file, indented by one, keys in the order given.

    Raises:
        OutputError: it cannot be written.
    """
    return write_text(path, json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def _formed(array: Any, numbers: QParams, form: WeightForm) -> Any:
    if form == "grid":
        return fake_quantize(array, numbers).astype(array.dtype).reshape(array.shape)
    low, high = ends(numbers, array.shape)
    return np.clip(array, low, high).astype(array.dtype)


def _copy(value: ir.Value, namer: Namer) -> ir.Value:
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    name = namer.fresh(f"{value.name}_copy")
    made = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    graph.register_initializer(made)
    return made
