"""Quantized layers as matrix products: weights as (groups, outputs, inputs), data as (groups, inputs, positions)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.algorithms.common.windows import kernel_windows
from onnxq.graph.traverse import all_nodes, subgraphs, with_subgraphs
from onnxq.graph.values import constant_array, input_of, is_constant
from onnxq.plan import Edge, Plan
from onnxq.qparams import QParams
from onnxq.spec import PerBlock, PerChannel, Scheme

__all__ = ["QuantizedLayer", "depends_on", "is_behind", "quantized_layers", "why_not_alone"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedLayer:
    """A Conv, Gemm or MatMul whose constant weight is quantized.

    Attributes:
        node: the operator.
        data: its input.
        weight: its weight: Conv (M, C/g, ...), Gemm (K, N) or (N, K), MatMul (K, N).
        bias: its constant bias of one number an output channel, which no other node reads; else None. For a MatMul the
            constant of the Add behind it.
        site: name of the weight's site.
    """

    node: ir.Node
    data: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    site: str

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.node.name or ""

    @property
    def groups(self) -> int:
        """Groups of a convolution, 1 for the rest."""
        return int(self.node.attributes.get_int("group", 1)) if self.node.op_type == "Conv" else 1

    @property
    def transposed(self) -> bool:
        """Whether the weight is stored as (inputs, outputs)."""
        return self.node.op_type == "MatMul" or (
            self.node.op_type == "Gemm" and not self.node.attributes.get_int("transB", 0)
        )

    def array(self) -> Floats:
        """The weight as it is now, float32."""
        array = constant_array(self.weight)
        assert array is not None
        return np.asarray(array, np.float32)

    def matrix(self, weight: NDArray[np.floating] | None = None) -> Floats:
        """The weight (or an array of its shape) as (groups, outputs of a group, inputs of a group)."""
        array = self.array() if weight is None else np.asarray(weight, np.float32)
        if self.transposed:
            return np.ascontiguousarray(array.T)[None]
        return array.reshape(self.groups, array.shape[0] // self.groups, -1)

    def weight_of(self, matrix: NDArray[np.floating]) -> Floats:
        """The inverse of :meth:`matrix`: an array of the weight's shape."""
        shape = self.array().shape
        if self.transposed:
            return np.ascontiguousarray(np.asarray(matrix, np.float32)[0].T)
        return np.asarray(matrix, np.float32).reshape(shape)

    def set_weight(self, weight: NDArray[np.floating]) -> None:
        """Give the weight other numbers, of its shape."""
        _set(self.weight, weight)

    def set_bias(self, bias: NDArray[np.floating]) -> None:
        """Give the bias other numbers, one an output channel."""
        assert self.bias is not None
        old = constant_array(self.bias)
        assert old is not None
        _set(self.bias, np.asarray(bias).reshape(old.shape))

    def rows(self, qp: QParams) -> tuple[Floats, Floats]:
        """Scale and zero point of :meth:`matrix`: (groups, outputs, 1), or (groups, outputs, inputs) for blocks.

        Args:
            qp: of the weight.
        """
        shape = self.matrix().shape
        granularity = qp.spec.granularity
        if isinstance(granularity, PerBlock):
            weight = self.array().shape
            cut = tuple(slice(0, n) for n in weight)
            parts = (qp.scale, qp.zero_point.astype(np.float32))
            scale, zero = (np.repeat(part, granularity.size, granularity.axis)[cut] for part in parts)
            return self.matrix(scale), self.matrix(zero)
        if isinstance(granularity, PerChannel) and qp.scale.ndim:
            scale, zero = qp.scale, qp.zero_point.astype(np.float32)
            return scale.reshape(shape[0], -1, 1), zero.reshape(shape[0], -1, 1)
        ones = np.ones((shape[0], shape[1], 1), np.float32)
        return ones * np.float32(qp.scale), ones * np.float32(qp.zero_point)

    def inputs(self, x: NDArray[np.floating], most: int | None = None, phase: float = 0.0) -> Floats:
        """What the layer multiplies its weight with, for one sample: (groups, inputs of a group, positions).

        Args:
            x: the value of ``data``: Conv (N, C, ...), Gemm (N, K), MatMul (..., K). What a Loop or Scan collects has
                one more axis in front.
            most: at most so many positions, evenly spaced; the same ones for every ``x`` of one shape.
            phase: where in the first interval the first of them lies, 0 to below 1.
        """
        array = np.asarray(x, np.float32)
        if self.node.op_type != "Conv":
            rows = array.reshape(-1, array.shape[-1])
            if most is not None and len(rows) > most:
                rows = rows[_spaced(len(rows), most, phase)]
            return np.ascontiguousarray(rows.T)[None]
        kernel = self.array().shape[2:]
        windows, spatial = kernel_windows(self.node, array, kernel), len(kernel)
        # (N, C, *positions, *kernel) -> (groups, C/g * kernel, N * positions)
        inputs = windows.shape[1] // self.groups * int(np.prod(kernel, dtype=np.int64))
        places = (windows.shape[0], *windows.shape[2 : 2 + spatial])
        count = int(np.prod(places, dtype=np.int64))
        if most is not None and count > most:
            at, *where = np.unravel_index(_spaced(count, most, phase), places)
            index: tuple[Any, ...] = (at, slice(None), *where)
            picked = windows[index]  # (positions, C, *kernel)
            columns = picked.transpose((*range(1, picked.ndim), 0))
        else:
            columns = windows.transpose((1, *range(2 + spatial, 2 + 2 * spatial), 0, *range(2, 2 + spatial)))
        return np.ascontiguousarray(columns).reshape(self.groups, inputs, -1)

    def beside(
        self, x: NDArray[np.floating], y: NDArray[np.floating], most: int | None = None, phase: float = 0.0
    ) -> Floats | None:
        """What is added to the output at the positions that :meth:`inputs` takes: (groups, outputs, positions).

        Args:
            x: the value of ``data``, as for :meth:`inputs`.
            y: a value of the output's shape; None comes of any other one.
            most: as for :meth:`inputs`.
            phase: the same.
        """
        array = np.asarray(x, np.float32)
        outputs = self.groups * self.matrix().shape[1]
        if self.node.op_type != "Conv":
            if y.shape != (*array.shape[:-1], outputs):
                return None
            columns = np.asarray(y, np.float32).reshape(-1, outputs).T
        else:
            kernel = self.array().shape[2:]
            windows = kernel_windows(self.node, array, kernel)
            if y.shape != (windows.shape[0], outputs, *windows.shape[2 : 2 + len(kernel)]):
                return None
            columns = np.moveaxis(np.asarray(y, np.float32), 1, 0).reshape(outputs, -1)
        if most is not None and columns.shape[1] > most:
            columns = columns[:, _spaced(columns.shape[1], most, phase)]
        return np.ascontiguousarray(columns).reshape(self.groups, -1, columns.shape[1])


def quantized_layers(model: ir.Model, plan: Plan, *, stored: bool = False) -> list[QuantizedLayer]:
    """The layers of a model whose weights are quantized, in the order of the graph.

    Args:
        model: holds the nodes of the plan.
        plan: where it is quantized.
        stored: those too that run in float with weights stored as integers.
    """
    weights = plan.by_edge("weight")
    running = plan.quantized.keys() | (plan.stored.keys() if stored else frozenset())
    found = []
    repeated = _repeated(model)
    for node in all_nodes(model):
        site = weights.get(Edge(node.name or "", 1))
        if site is None or node.name not in running or not _is_plain(node):
            continue
        data, weight = node.inputs[0], node.inputs[1]
        array = constant_array(weight)
        if data is None or weight is None or array is None:
            continue
        if node in repeated and (data.shape is None or not data.shape.is_static()):
            continue  # what is collected over the iterations is one row of numbers
        first = node.op_type == "Conv" or node.attributes.get_int("transB", 0) == 1
        found.append(QuantizedLayer(node, data, weight, _bias(node, array.shape[0 if first else -1]), site.name))
    return found


def _is_plain(node: ir.Node) -> bool:
    """Whether a node is a convolution, or a product of rows with a matrix, of constant float32 weights."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.domain != "":
        return False
    array, get = constant_array(node.inputs[1]), node.attributes
    if array is None or array.dtype != np.float32 or not array.size:
        return False
    if node.op_type == "Gemm":
        return get.get_int("transA", 0) != 1 and get.get_float("alpha", 1.0) == 1.0
    return node.op_type == "Conv" or array.ndim == 2


def _repeated(model: ir.Model) -> set[ir.Node]:
    """The nodes inside of Loops and Scans."""
    bodies = [body for node in all_nodes(model) if node.op_type in ("Loop", "Scan") for body in subgraphs(node)]
    return {node for body in bodies for graph in with_subgraphs(body) for node in graph}


def is_behind(layer: QuantizedLayer, others: Collection[QuantizedLayer], top: ir.Graph) -> bool:
    """Whether what a layer reads depends on one of the others; taken for granted outside the graph ``top``."""
    nodes = {other.node for other in others} - {layer.node}
    if layer.node.graph is not top:
        return bool(nodes)
    return depends_on(layer.data, nodes)


def depends_on(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
    """Whether one of some nodes has a part in making a value."""
    stack, seen = [value], set[ir.Value]()
    while stack:
        found = stack.pop()
        producer = found.producer()
        if found in seen or producer is None:
            continue
        seen.add(found)
        if producer in nodes:
            return True
        inside = [node for outer in subgraphs(producer) for graph in with_subgraphs(outer) for node in graph]
        if any(node in nodes for node in inside):
            return True
        stack += [v for node in (producer, *inside) for v in node.inputs if v is not None]
    return False


def _bias(node: ir.Node, outputs: int) -> ir.Value | None:
    if node.op_type != "MatMul":
        bias = input_of(node, 2)
        if node.op_type == "Gemm" and node.attributes.get_float("beta", 1.0) != 1.0:
            return None
    else:
        readers = list(node.outputs[0].uses())
        if len(readers) != 1 or readers[0].node.op_type != "Add" or node.outputs[0].is_graph_output():
            return None
        bias = next((v for v in readers[0].node.inputs if v is not None and is_constant(v)), None)
    array = constant_array(bias)
    if bias is None or array is None or len(bias.uses()) != 1 or bias.is_graph_output():
        return None
    alone = array.size == outputs and array.shape[-1:] == (outputs,)
    return bias if alone and array.dtype == np.float32 else None


def _set(value: ir.Value, array: NDArray[np.floating]) -> None:
    value.const_value = ir.tensor(np.ascontiguousarray(array, np.float32), name=value.name)


def _spaced(count: int, most: int, phase: float) -> NDArray[np.int64]:
    """``most`` of ``count`` indices, evenly spaced, without repeats."""
    return np.minimum(((np.arange(most) + phase) * (count / most)).astype(np.int64), count - 1)


def why_not_alone(layer: QuantizedLayer, plan: Plan) -> str | None:
    """Why a layer's weight cannot be changed for itself: others have it too, or its grid is not uniform; else None."""
    site = plan.by_name[layer.site]
    tied = site.tied_to is not None or any(s.tied_to == site.name for s in plan.sites)
    if len(layer.weight.uses()) > 1 or layer.weight.is_graph_output() or tied:
        return "its weight is shared"
    if site.spec.scheme is not Scheme.UNIFORM:
        return f"its weight is on a {site.spec.scheme.value} grid"
    return None
