"""An ONNX graph, or the part of it between some tensors and others, run in torch with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence

import numpy as np
import onnx_ir as ir
import torch

from onnxq.console.terminal import listed
from onnxq.errors import ModelError
from onnxq.graph.passes.constants import constant_tensor
from onnxq.graph.passes.fused_chains import FUSED
from onnxq.graph.passes.write_out import has_any, write_out
from onnxq.graph.pieces import reads
from onnxq.graph.shapes import infer_shapes
from onnxq.graph.traverse import all_graphs, describe, subgraphs, with_subgraphs
from onnxq.graph.values import array_of
from onnxq.plan import Edge
from onnxq.torch.attributes import DTYPES
from onnxq.torch.ops import indexing, layers, math, recurrent, resize, shape, spectra

__all__ = ["Executor", "unsupported_nodes"]

Tensor = torch.Tensor
Quantizer = Callable[[Tensor], Tensor]

_OPS = {**math.OPS, **shape.OPS, **indexing.OPS, **layers.OPS, **resize.OPS, **recurrent.OPS, **spectra.OPS}
_WRITTEN_OUT = frozenset({"Attention", "RotaryEmbedding"}) | FUSED
_CONTROL = ("Constant", "If", "Loop")
_LISTED = 8


def unsupported_nodes(nodes: Iterable[ir.Node]) -> list[str]:
    """What of some nodes, those inside them included, cannot be run: a text for each, the node and why."""
    found = []
    for node in nodes:
        standard = node.domain == ""
        if not standard or (node.op_type not in _OPS and node.op_type not in _CONTROL):
            found.append(describe(node))
            continue
        for module in (layers, resize, recurrent, shape, spectra):
            reason = module.unsupported(node)
            if reason is not None:
                found.append(f"{describe(node)} with {reason}")
        for graph in subgraphs(node):
            found += unsupported_nodes(graph)
    return found


class Executor:
    """Runs a graph or a region of it.

    Args:
        model: tensor names are unique over the whole of it; left unchanged.
        inputs: tensors where the region begins; the model's inputs if None. What the outputs need beside them must be
            constant.
        outputs: tensors where it ends; the model's outputs if None.
        device: where the constants live, ``"cpu"`` or what torch offers.

    Attributes:
        inputs: tensors to be fed.
        outputs: tensors that :meth:`run` gives.
        nodes: of the region, in order.
        parameters: float constants by name, leaves without gradient until the caller asks for one.
        buffers: all other constants by name.

    Raises:
        ModelError: there is no such tensor, the region needs a tensor that is not among its inputs, or it has operators
            that cannot be run; all of them are named.
    """

    def __init__(
        self,
        model: ir.Model,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        model = _written_out(model)
        graph = model.graph
        fed = [v.name or "" for v in graph.inputs if not v.is_initializer()] if inputs is None else list(inputs)
        self.inputs = tuple(dict.fromkeys(fed))
        self.outputs = tuple(dict.fromkeys(outputs or [v.name or "" for v in graph.outputs]))
        self.nodes = _region(graph, self.inputs, self.outputs)
        _require_supported(self.nodes)
        self.opset = model.opset_imports.get("", 1)
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self._load_constants(model, device)
        self._last = _last_reads(self.nodes, self.outputs)

    def run(
        self,
        feeds: Mapping[str, Tensor],
        *,
        weights: Mapping[str, Tensor] | None = None,
        quantizers: Mapping[Edge, Quantizer] | None = None,
    ) -> dict[str, Tensor]:
        """Run it.

        Args:
            feeds: input name → tensor.
            weights: constants to be used in place of the model's, by name.
            quantizers: input of a node → what is done to the tensor on its way there; one quantizer is applied to one
                tensor once, however many nodes read it.

        Returns:
            Output name → tensor.
        """
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            raise ModelError(f"no values were given for {', '.join(map(repr, missing))}", where="inputs")
        env: dict[str, Tensor] = {**self.parameters, **self.buffers, **feeds, **(weights or {})}
        self._run(self.nodes, env, quantizers or {}, self._last)
        return {name: env[name] for name in self.outputs}

    def _load_constants(self, model: ir.Model, device: str) -> None:
        needed = {value.name for node in self.nodes for value in reads(node)} | {*self.outputs}
        inner = {id(g) for node in self.nodes for body in subgraphs(node) for g in with_subgraphs(body)}
        for graph in all_graphs(model):
            for name, value in graph.initializers.items():
                if (name not in needed and id(graph) not in inner) or name in self.inputs or value.const_value is None:
                    continue
                tensor = _tensor(value.const_value, device)
                (self.parameters if tensor.is_floating_point() else self.buffers)[name] = tensor

    def _run(
        self,
        nodes: Sequence[ir.Node],
        env: MutableMapping[str, Tensor],
        quantizers: Mapping[Edge, Quantizer],
        last: Mapping[int, Sequence[str]],
    ) -> None:
        seen: dict[tuple[str, int], Tensor] = {}
        for position, node in enumerate(nodes):
            inputs: list[Tensor | None] = []
            for index, value in enumerate(node.inputs):
                if value is None or not value.name:
                    inputs.append(None)
                    continue
                tensor = env[value.name]
                quantizer = quantizers.get(Edge(node.name or "", index)) if quantizers else None
                if quantizer is not None:
                    key = (value.name, id(quantizer))
                    if key not in seen:
                        seen[key] = quantizer(tensor)
                    tensor = seen[key]
                inputs.append(tensor)
            results = self._apply(node, inputs, env, quantizers)
            for value, result in zip(node.outputs, results, strict=False):
                if value.name and result is not None:
                    env[value.name] = result
            for name in last.get(position, ()):
                env.pop(name, None)

    def _apply(
        self,
        node: ir.Node,
        inputs: Sequence[Tensor | None],
        env: Mapping[str, Tensor],
        quantizers: Mapping[Edge, Quantizer],
    ) -> Sequence[Tensor | None]:
        if node.op_type == "Constant":
            held = constant_tensor(node, node.outputs[0].name or "")
            assert held is not None
            return [_tensor(held, "cpu")]
        if node.op_type == "If":
            condition = inputs[0]
            assert condition is not None
            branch = node.attributes["then_branch" if bool(condition.item()) else "else_branch"].as_graph()
            return self._body(branch, {}, env, quantizers)
        if node.op_type == "Loop":
            return self._loop(node, inputs, env, quantizers)
        try:
            return _OPS[node.op_type](node, inputs, self.opset)
        except (RuntimeError, ValueError, IndexError, TypeError, KeyError) as error:
            raise ModelError(f"torch cannot run it: {error}", where=describe(node)) from error

    def _body(
        self,
        graph: ir.Graph,
        given: Mapping[str, Tensor],
        env: Mapping[str, Tensor],
        quantizers: Mapping[Edge, Quantizer],
    ) -> list[Tensor | None]:
        inner = {**env, **given}
        self._run(list(graph), inner, quantizers, {})
        return [inner[value.name or ""] for value in graph.outputs]

    def _loop(
        self,
        node: ir.Node,
        inputs: Sequence[Tensor | None],
        env: Mapping[str, Tensor],
        quantizers: Mapping[Edge, Quantizer],
    ) -> list[Tensor | None]:
        body = node.attributes["body"].as_graph()
        names = [value.name or "" for value in body.inputs]
        trips, condition = inputs[0], inputs[1]
        carried: list[Tensor | None] = list(inputs[2:])
        collected: list[list[Tensor]] = [[] for _ in range(len(node.outputs) - len(carried))]
        go_on = condition is None or bool(condition.item())
        count = 0
        while go_on and (trips is None or count < int(trips.item())):
            values = [torch.tensor(count), torch.tensor(True), *carried]
            given = {n: v for n, v in zip(names, values, strict=True) if v is not None}
            done = self._body(body, given, env, quantizers)
            assert done[0] is not None
            go_on = bool(done[0].item())
            carried = done[1 : 1 + len(carried)]
            for rows, row in zip(collected, done[1 + len(carried) :], strict=True):
                assert row is not None
                rows.append(row)
            count += 1
        return [*carried, *(torch.stack(rows) if rows else torch.zeros(0) for rows in collected)]


def _tensor(tensor: ir.TensorProtocol, device: str) -> Tensor:
    if tensor.dtype not in DTYPES:
        raise ModelError(f"torch has no type {str(tensor.dtype).lower()}", where=f"tensor '{tensor.name}'")
    wanted = DTYPES[tensor.dtype]
    array = array_of(tensor)
    plain = array.astype(np.float32) if wanted is torch.bfloat16 else array
    return torch.from_numpy(np.array(plain)).to(wanted).to(device)


def _written_out(model: ir.Model) -> ir.Model:
    """A model whose Attention, RotaryEmbedding and what onnxruntime fuses are the operators that they consist of."""
    if not has_any(model, _WRITTEN_OUT):
        return model
    model = model.clone()
    infer_shapes(model)
    write_out(model, _WRITTEN_OUT)
    return model


def _require_supported(nodes: Sequence[ir.Node]) -> None:
    bad = unsupported_nodes(nodes)
    if bad:
        raise ModelError(f"torch cannot run {listed(bad, _LISTED)}", hint="Leave these parts out")


def _region(graph: ir.Graph, inputs: Sequence[str], outputs: Sequence[str]) -> list[ir.Node]:
    values = {v.name: v for v in (*graph.inputs, *graph.initializers.values())}
    values.update({v.name: v for node in graph for v in node.outputs})
    for name in (*inputs, *outputs):
        if name not in values:
            raise ModelError(f"the graph has no tensor named {name!r}")
    found: set[ir.Node] = set()
    stack = [values[name] for name in outputs]
    while stack:
        value = stack.pop()
        if value.name in inputs or value.is_initializer():
            continue
        node = value.producer()
        if node is None and value.is_graph_input() and value.graph is graph:
            raise ModelError(f"it needs input {value.name!r} too", where=f"the graph from {', '.join(inputs)}")
        if node is not None and node.graph is graph and node not in found:
            found.add(node)
            stack.extend(reads(node))
    return [node for node in graph if node in found]


def _last_reads(nodes: Sequence[ir.Node], outputs: Sequence[str]) -> dict[int, list[str]]:
    """Position of a node → tensors made in the region that nobody needs after it."""
    made = {value.name for node in nodes for value in node.outputs}
    last: dict[str, int] = {}
    for position, node in enumerate(nodes):
        last.update({v.name: position for v in (*node.outputs, *reads(node)) if v.name and v.name in made})
    gone: dict[int, list[str]] = {}
    for name, position in last.items():
        if name not in outputs:
            gone.setdefault(position, []).append(name)
    return gone
