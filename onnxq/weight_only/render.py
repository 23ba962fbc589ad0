"""Puts integer weights into a graph, as standard DequantizeLinear or as onnxruntime's own operators.

Layouts, from the operators' documentation:

* DequantizeLinear (opset 21): ``y = (x - zero) * scale``, scale and zero point of the shape of ``x`` with the blocked
  axis divided by ``block_size``, rounded up; 4-bit integers two a byte over the whole tensor, lower half first, and
  2-bit ones (opset 25) four.
* com.microsoft::MatMulNBits: ``B`` uint8 (N, blocks, block_size * bits / 8), each block filled up and packed for
  itself, lower half first; ``scales`` (N, blocks); ``zero_points`` uint8 (N, ceil(blocks * bits / 8)), packed alike,
  and ``2^(bits - 1)`` where there are none.
* com.microsoft::GatherBlockQuantized: uint8 (V, ..., D * bits / 8), lower half first; zero points uint8
  (V, ..., ceil(blocks * bits / 8)), packed alike, and ``2^(bits - 1)`` where there are none.

A table dequantized as a whole would be so at every run: in the format qdq the integers and the scales of the rows are
gathered, then dequantized.

onnxruntime 1.31 fuses DequantizeLinear and MatMul only where both lie in one graph, with the integers, and nothing else
reads these: otherwise it unpacks the weight at each run. So each branch and loop body that reads a weight has its own;
in a data file they lie once, and there each reader has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.domains import MICROSOFT
from onnxq.graph.edits import replace_nodes
from onnxq.graph.namer import Namer
from onnxq.graph.values import input_of
from onnxq.weight_only.experts import as_qmoe, expert_tensors
from onnxq.weight_only.find import EXPERTS, Matrix
from onnxq.weight_only.fusible import let_fuse
from onnxq.weight_only.grid import Coded, block_size
from onnxq.weight_only.parted import part
from onnxq.weight_only.recipe import Recipe
from onnxq.weight_only.tensors import pack, packed_tensor
from onnxq.weight_only.tied import constants_of_both
from onnxq.weight_only.whole import unpack, whole_tensors

__all__ = ["Parts", "constant", "product", "rewrite", "tensors_of"]


Parts = Mapping[str, ir.TensorProtocol]


def tensors_of(coded: Coded, recipe: Recipe, matrix: Matrix) -> dict[str, ir.TensorProtocol]:
    """The constants that stand for a matrix: ``"codes"``, ``"scale"`` and, where there are any, ``"zero"``.

    Args:
        coded: (outputs, inputs).
        recipe: how it is rendered.
        matrix: what was coded.
    """
    if matrix.whole:
        return whole_tensors(coded, matrix)
    if matrix.experts:
        return expert_tensors(coded, _unsigned(coded.codes, coded.spec.bits), matrix)
    gathered = matrix.gathered
    bits, asymmetric = coded.spec.bits, not coded.spec.symmetric
    parts: dict[str, ir.TensorProtocol]
    if recipe.format == "qdq":
        turn = (lambda a: a) if gathered else (lambda a: np.ascontiguousarray(a.T))
        parts = {"codes": packed_tensor(turn(coded.codes), bits), "scale": ir.Tensor(turn(coded.scale))}
        if asymmetric:
            parts["zero"] = packed_tensor(turn(coded.zero), bits)
        return parts
    if gathered:
        codes, shape = _unsigned(coded.codes, bits), (*matrix.rows, -1)
        parts = {
            "codes": ir.Tensor(pack(codes.reshape(shape), bits)),
            "scale": ir.Tensor(coded.scale.reshape(shape)),
        }
        if asymmetric:
            parts["zero"] = ir.Tensor(pack(coded.zero.reshape(shape), bits))
        return parts
    size, (outputs, inputs) = block_size(coded.spec), coded.codes.shape
    codes = _unsigned(coded.codes, bits)
    filled = np.pad(codes, ((0, 0), (0, -inputs % size))) if inputs % size else codes
    blocks = filled.reshape(outputs, -1, size)
    parts = {"codes": ir.Tensor(pack(blocks, bits)), "scale": ir.Tensor(coded.scale)}
    if asymmetric:
        parts["zero"] = ir.Tensor(pack(coded.zero, bits))
    return parts


def _unsigned(codes: NDArray[np.int8] | NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    if codes.dtype == np.uint8:
        return codes  # type: ignore[return-value]
    return np.asarray((codes.view(np.uint8) + np.uint8(1 << (bits - 1))) & np.uint8((1 << bits) - 1), np.uint8)


def rewrite(model: ir.Model, made: Sequence[tuple[Matrix, Parts]], recipe: Recipe, *, in_file: bool = True) -> None:
    """Let the readers of matrices read their integers; weights that nothing reads any more are removed.

    Args:
        model: holds the nodes of the matrices; changed in place. Node and tensor names stay.
        made: matrices with what :func:`tensors_of` gave, wherever it lies by now; those that are tied to a table after
            it.
        recipe: how they are rendered.
        in_file: whether weights lie in the model file itself, where each one more makes it larger.
    """
    namer = Namer(model)
    readers = _Readers(namer, recipe, in_file)
    for matrix, parts in made:
        if matrix.whole:
            unpack(matrix, _constants(_home(matrix), namer, matrix.value.name or "weight", parts), namer)
        else:
            readers.read(matrix, parts)
    let_fuse(readers.unpacked, namer)
    for node, constants in readers.experts.items():
        qmoe = as_qmoe(node, constants, recipe.expert_bits, recipe.block)
        node.name = None
        replace_nodes([node], qmoe)
    for matrix, _ in made:
        name, home = matrix.value.name or "", matrix.value.graph
        if isinstance(home, ir.Graph) and not matrix.value.uses() and name in home.initializers:
            del home.initializers[name]
    if recipe.format == "matmulnbits" and made:
        model.graph.opset_imports[MICROSOFT] = 1


class _Readers:
    """Lets the readers of one matrix after another read its integers.

    Attributes:
        experts: nodes whose experts are packed, with the integers at the positions of their weights: what is to be
            written once all are known.
        unpacked: weights that a DequantizeLinear makes.
    """

    def __init__(self, namer: Namer, recipe: Recipe, in_file: bool) -> None:
        self._namer, self._recipe, self._in_file = namer, recipe, in_file
        self._tables: dict[str, list[ir.Value]] = {}
        self.experts: dict[ir.Node, dict[int, list[ir.Value]]] = {}
        self.unpacked: list[ir.Value] = []

    def read(self, matrix: Matrix, parts: Parts) -> None:
        """Let all that read a matrix read what stands for it, which each graph, or each of them, has for itself."""
        base = matrix.value.name or "weight"
        apart = self._recipe.format == "qdq" and not matrix.gathered
        both = self._tables[matrix.tied] if matrix.tied and self._in_file else None
        held: dict[ir.Graph | ir.Node, list[ir.Value]] = {}
        weights: dict[ir.Graph | ir.Node, ir.Value] = {}
        for node in matrix.nodes:
            graph = node.graph if apart else _home(matrix)
            assert isinstance(graph, ir.Graph)
            owner = node if apart and not self._in_file else graph
            if owner not in held and both is not None:
                held[owner] = constants_of_both(both, parts["codes"], self._namer)
            elif owner not in held:
                held[owner] = _constants(graph, self._namer, base, parts)
            constants = held[owner]
            if matrix.experts:
                positions = [p for p in EXPERTS if node.inputs[p] is matrix.value]
                self.experts.setdefault(node, {}).update(dict.fromkeys(positions, constants))
            elif matrix.gathered:
                self._tables[base] = constants
                _gather(node, constants, self._namer, self._recipe, matrix)
            else:
                if apart and owner not in weights:
                    block = matrix.block(self._recipe)
                    weights[owner] = _dequantize(node, self._namer, constants, f"{base}_dequantized", block)
                product(node, constants, weights.get(owner), self._namer, self._recipe, matrix)
        self.unpacked += weights.values()


def _home(matrix: Matrix) -> ir.Graph:
    """The graph that holds a matrix."""
    assert isinstance(matrix.value.graph, ir.Graph)
    return matrix.value.graph


def _constants(graph: ir.Graph, namer: Namer, base: str, parts: Parts) -> list[ir.Value]:
    """The integers, scales and zero points of a matrix as initializers of a graph."""
    words = (("codes", "quantized"), ("scale", "scale"), ("zero", "zero_point"))
    return [constant(graph, namer, f"{base}_{word}", parts[key]) for key, word in words if key in parts]


def constant(graph: ir.Graph, namer: Namer, base: str, part: ir.TensorProtocol) -> ir.Value:
    """A tensor as a new initializer of a graph, under a fresh name built on ``base``."""
    name = namer.fresh(base)
    tensor = copy(part)  # the same bytes, by another name in each graph
    tensor.name = name
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _dequantize(reader: ir.Node, namer: Namer, inputs: Sequence[ir.Value], base: str, block: int) -> ir.Value:
    """The weight in float, made before its first reader in a graph."""
    graph = reader.graph
    assert isinstance(graph, ir.Graph)
    node = ir.node("DequantizeLinear", list(inputs), {"axis": 0, "block_size": block}, name=namer.node(base))
    out = node.outputs[0]
    out.name, out.type, out.shape = namer.fresh(base), ir.TensorType(ir.DataType.FLOAT), inputs[0].shape
    graph.insert_before(reader, node)
    return out


def _packed(
    data: ir.Value | None, inputs: Sequence[ir.Value], recipe: Recipe, matrix: Matrix, name: str | None
) -> ir.Node:
    outputs, columns = matrix.shape
    attributes = {"K": columns, "N": outputs, "bits": matrix.bits(recipe), "block_size": matrix.block(recipe)}
    if recipe.accuracy_level:
        attributes["accuracy_level"] = recipe.accuracy_level
    return ir.node("MatMulNBits", [data, *inputs], attributes, domain=MICROSOFT, name=name)


def product(
    node: ir.Node,
    inputs: Sequence[ir.Value],
    weight: ir.Value | None,
    namer: Namer,
    recipe: Recipe,
    matrix: Matrix,
) -> None:
    """MatMul and Gemm become a product with the weight as it is stored, and an Add; for Attention see :func:`part`."""
    data = node.inputs[0]
    if node.op_type == "Attention":
        part(node, _packed(data, inputs, recipe, matrix, namer.node(f"{node.name}_MatMul")), namer)
        return
    bias = input_of(node, 2)
    name = node.name
    if weight is not None and node.op_type == "MatMul":
        node.replace_input_with(1, weight)
        return
    node.name = None
    if weight is not None:
        product = ir.node("MatMul", [data, weight], name=name)
    else:
        product = _packed(data, inputs, recipe, matrix, name)
    if bias is None:
        replace_nodes([node], product)
        return
    out = product.outputs[0]
    out.name = namer.fresh(f"{node.outputs[0].name}_product")
    out.type, out.shape = node.outputs[0].type, node.outputs[0].shape
    replace_nodes([node], product, ir.node("Add", [out, bias], name=namer.node(f"{name}_bias")))


def _gather(node: ir.Node, inputs: Sequence[ir.Value], namer: Namer, recipe: Recipe, matrix: Matrix) -> None:
    """Rows are picked as integers and unpacked, blocks lying along the last axis of the table."""
    indices = node.inputs[1]
    name, node.name = node.name, None
    if recipe.format == "matmulnbits":
        attributes = {"bits": matrix.bits(recipe), "block_size": recipe.block, "gather_axis": 0}
        attributes["quantize_axis"] = len(matrix.rows)
        operands = [inputs[0], indices, *inputs[1:]]
        replace_nodes([node], ir.node("GatherBlockQuantized", operands, attributes, domain=MICROSOFT, name=name))
        return
    base = node.outputs[0].name
    picked = []
    for value, word in zip(inputs, ("quantized", "scale", "zero_point"), strict=False):
        gather = ir.node("Gather", [value, indices], {"axis": 0}, name=namer.node(f"{name}_{word}"))
        gather.outputs[0].name = namer.fresh(f"{base}_{word}")
        gather.outputs[0].type = value.type
        picked.append(gather)
    attributes = {"axis": -1, "block_size": recipe.block}
    last = ir.node("DequantizeLinear", [g.outputs[0] for g in picked], attributes, name=name)
    replace_nodes([node], *picked, last)
