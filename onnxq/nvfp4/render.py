"""Puts NVFP4 into a graph, as NVIDIA's Model Optimizer writes it and TensorRT's parser reads it.

* A weight is two DequantizeLinear in a row: one multiplies the scales of its blocks (E4M3) by the unit of the tensor,
  the other the numbers (E2M1, opset 23) by these, in blocks of 16 along the axis of inputs.
* What it is multiplied with goes through ``trt::TRT_FP4DynamicQuantize``, which makes numbers and scales of blocks
  along the last axis at run time, of tensors of two or three axes, and two DequantizeLinear of the same kind. Layers
  that read the same tensor share them. The size of that axis is to be known when a model is compiled: where it is free,
  a Reshape says it.

Sources: onnx-tensorrt, ``onnxOpImporters.cpp``, TRT_FP4DynamicQuantize; TensorRT's operator reference, DynamicQuantize;
Model Optimizer, ``modelopt/onnx/export/nvfp4_exporter.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.domains import TENSORRT
from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.grids import float4, float8
from onnxq.ort.fp4_in_float import BLOCK, DYNAMIC
from onnxq.weight_only.find import Matrix
from onnxq.weight_only.float_blocks import unit_of
from onnxq.weight_only.grid import Coded
from onnxq.weight_only.recipe import Recipe
from onnxq.weight_only.render import Parts, constant, product
from onnxq.weight_only.tensors import pack

__all__ = ["rewrite", "tensors_of"]

_SCALE, _NUMBER = ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT4E2M1


def tensors_of(coded: Coded, recipe: Recipe, matrix: Matrix) -> dict[str, ir.TensorProtocol]:
    """The constants that stand for a matrix, (inputs, outputs): ``"codes"``, ``"scale"`` and ``"unit"``.

    Args:
        coded: (outputs, inputs), in whole blocks.
        recipe: not asked.
        matrix: not asked.
    """
    codes = float4.bytes_of(np.ascontiguousarray(coded.codes.T))
    scale = float8.quantize(np.ascontiguousarray(coded.scale.T) * np.float32(2), coded.unit)
    return {
        "codes": ir.PackedTensor(pack(codes.reshape(-1)), _NUMBER, shape=ir.Shape(codes.shape)),
        "scale": ir.Tensor(scale.view(_SCALE.numpy()), dtype=_SCALE),
        "unit": ir.Tensor(np.asarray(coded.unit, np.float32)),
    }


def rewrite(model: ir.Model, made: Sequence[tuple[Matrix, Parts]], largest: Mapping[Matrix, float]) -> None:
    """Let the readers of matrices multiply with NVFP4; weights that nothing reads any more are removed.

    Args:
        model: holds the nodes of the matrices; changed in place. Node and tensor names stay.
        made: matrices with what :func:`tensors_of` gave.
        largest: largest magnitude of what is multiplied with a matrix; it stays float where that is not known.
    """
    writer = _Writer(Namer(model))
    for matrix, parts in made:
        weights: dict[ir.Graph, ir.Value] = {}
        for node in matrix.nodes:
            graph, data = node.graph, node.inputs[0]
            assert isinstance(graph, ir.Graph) and data is not None
            if graph not in weights:
                weights[graph] = writer.weight(node, parts, matrix.value.name or "weight")
            if matrix in largest:
                rounded = writer.rounded(graph, data, unit_of(largest[matrix]), matrix.shape[1])
                node.replace_input_with(0, rounded)
            product(node, (), weights[graph], writer.namer, Recipe(), matrix)
        home = matrix.value.graph
        if isinstance(home, ir.Graph) and not matrix.value.uses():
            home.initializers.pop(matrix.value.name or "", None)
    if largest:
        model.graph.opset_imports[TENSORRT] = 1


class _Writer:
    """Makes floats of NVFP4."""

    def __init__(self, namer: Namer) -> None:
        self.namer = namer
        self._rounded: dict[tuple[ir.Graph, ir.Value], ir.Value] = {}

    def weight(self, reader: ir.Node, parts: Parts, base: str) -> ir.Value:
        """A weight in float, made before its first reader in a graph."""
        graph = reader.graph
        assert isinstance(graph, ir.Graph)
        words = {"codes": "quantized", "scale": "scale", "unit": "unit"}
        codes, scale, unit = (constant(graph, self.namer, f"{base}_{words[key]}", parts[key]) for key in words)
        nodes = self._unpack(codes, scale, unit, base, axis=0)
        graph.insert_before(reader, nodes)
        return nodes[-1].outputs[0]

    def rounded(self, graph: ir.Graph, data: ir.Value, unit: float, inputs: int) -> ir.Value:
        """A tensor of so many inputs rounded at run time, once for all in a graph; with the unit asked for first."""
        if (graph, data) not in self._rounded:
            base = data.name or "data"
            sized = self._sized(graph, data, inputs)
            factor = constant(graph, self.namer, f"{base}_unit", ir.Tensor(np.asarray(unit, np.float32)))
            attributes = {"axis": -1, "block_size": BLOCK, "scale_type": int(_SCALE)}
            name = self.namer.node(f"{base}_quantize")
            source = sized[0].outputs[0] if sized else data
            node = ir.node(DYNAMIC, [source, factor], attributes, domain=TENSORRT, num_outputs=2, name=name)
            for value, kind, word in zip(node.outputs, (_NUMBER, _SCALE), ("quantized", "scale"), strict=True):
                value.name, value.type = self.namer.fresh(f"{base}_{word}"), ir.TensorType(kind)
            nodes = [*sized, node, *self._unpack(node.outputs[0], node.outputs[1], factor, base, axis=-1)]
            producer = data.producer()
            if producer is not None and producer.graph is graph:
                graph.insert_after(producer, nodes)
            else:
                graph.insert_before(graph[0], nodes)
            self._rounded[graph, data] = nodes[-1].outputs[0]
        return self._rounded[graph, data]

    def _sized(self, graph: ir.Graph, data: ir.Value, inputs: int) -> list[ir.Node]:
        """What says the size of a tensor's last axis, where that is free."""
        assert data.shape is not None
        if isinstance(data.shape[-1], int):
            return []
        sizes: NDArray[np.int64] = np.asarray([0] * (len(data.shape) - 1) + [inputs], np.int64)  # 0: as it is
        shape = set_constant(graph, self.namer, f"{data.name}_shape", sizes)
        node = ir.node("Reshape", [data, shape], name=self.namer.node(f"{data.name}_sized"))
        node.outputs[0].name, node.outputs[0].type = self.namer.fresh(f"{data.name}_sized"), data.type
        return [node]

    def _unpack(self, codes: ir.Value, scale: ir.Value, unit: ir.Value, base: str, *, axis: int) -> list[ir.Node]:
        """Two DequantizeLinear in a row."""
        scales = ir.node("DequantizeLinear", [scale, unit], name=self.namer.node(f"{base}_scales"))
        floats = scales.outputs[0]
        attributes = {"axis": axis, "block_size": BLOCK}
        numbers = ir.node("DequantizeLinear", [codes, floats], attributes, name=self.namer.node(f"{base}_dequantize"))
        for value, word in ((floats, "scales"), (numbers.outputs[0], "dequantized")):
            value.name, value.type = self.namer.fresh(f"{base}_{word}"), ir.TensorType(ir.DataType.FLOAT)
        return [scales, numbers]
