"""A model with quantizers taken apart at them: every layer reads integers that are given and gives integers.

Two runtimes that compute the same integers differ where a sum lies on the border between two codes, and everything
behind it then differs as well. With the codes of every quantizer given from outside, each layer is compared by itself,
and all of them in one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.namer import Namer
from onnxq.graph.traverse import describe, subgraphs
from onnxq.graph.values import input_of
from onnxq.qparams import QParams
from onnxq.render.reading.parameters import pair_parameters

__all__ = ["Cut", "find_cuts", "showing", "taken_apart"]

_SIZES = frozenset({"Shape", "Size"})
_CODES = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})


@dataclass(frozen=True, slots=True)
class Cut:
    """A place between a QuantizeLinear and the DequantizeLinear nodes that read it.

    Attributes:
        tensor: the float tensor that is quantized; the model's output where it becomes one.
        codes: the integers of it, the output of the QuantizeLinear.
        given: name under which :func:`taken_apart` takes the integers for the readers.
        layer: the node that makes the float tensor, as messages name it.
        numbers: of the quantizer, one scale.
    """

    tensor: str
    codes: str
    given: str
    layer: str
    numbers: QParams


def find_cuts(model: ir.Model) -> list[Cut]:
    """Where a model can be taken apart, in its order: quantizers of one scale, of 8 or 16 bits, in the main graph.

    Left out are tensors that no data goes into, such as the zeros that a recurrent layer begins with: runtimes compute
    them in advance, and some drop them from their outputs.

    Args:
        model: with QuantizeLinear and DequantizeLinear; left unchanged.
    """
    namer, moving = Namer(model), _with_data(model)
    found = []
    for node in model.graph:
        if node.op_type != "QuantizeLinear" or node.inputs[0] not in moving:
            continue
        assert node.inputs[0] is not None
        codes, zero = node.outputs[0], input_of(node, 2)
        if codes.is_graph_output() or not codes.uses() or zero is None or zero.dtype not in _CODES:
            continue
        numbers = pair_parameters(node, zero.dtype)
        if isinstance(numbers, str) or numbers.scale.shape:
            continue
        readers = [user for user, _ in codes.uses()]
        if any(reader.op_type != "DequantizeLinear" for reader in readers):
            continue
        made = node.inputs[0].producer()
        layer = "graph input" if made is None else describe(made)
        shown = next((reader.outputs[0] for reader in readers if reader.outputs[0].is_graph_output()), node.inputs[0])
        name = codes.name or ""
        found.append(Cut(shown.name or "", name, namer.fresh(f"{name}_given"), layer, numbers))
    return found


def _with_data(model: ir.Model) -> set[ir.Value | None]:
    """Tensors that depend on what inputs hold, not on their sizes alone."""
    found: set[ir.Value | None] = {v for v in model.graph.inputs if v.name not in model.graph.initializers}
    for node in model.graph:
        read = {value for value in node.inputs if value is not None}
        within = any(True for _ in subgraphs(node))
        if within or (read & found and not (node.op_type in _SIZES and node.domain == "")):
            found.update(node.outputs)
    return found


def showing(model: ir.Model, cuts: Sequence[Cut]) -> ir.Model:
    """A copy of a model that gives the integers at the cuts as well, under the name ``codes``."""
    clone = model.clone()
    values = _outputs(clone)
    clone.graph.outputs.extend(values[cut.codes] for cut in cuts)
    return clone


def taken_apart(
    model: ir.Model, cuts: Sequence[Cut], sample: Mapping[str, NDArray[Any]], *, floats: bool = False
) -> ir.Model:
    """A copy of a model whose layers read the integers at the cuts from inputs, and give theirs as outputs.

    Args:
        model: left unchanged.
        cuts: of this model.
        sample: what :func:`showing` computed, and the feeds: type and sizes of the inputs.
        floats: the inputs are the numbers that the integers stand for, each quantized again in front of its layers.

    Returns:
        The inputs and outputs are those of the model and, behind them, ``given`` and ``codes`` of every cut.
    """
    clone = model.clone()
    values, namer = _outputs(clone), Namer(clone)
    for value in clone.graph.inputs:
        if value.name is not None and value.name in sample:
            value.shape = ir.Shape(sample[value.name].shape)
    for cut in cuts:
        made, array = values[cut.codes], sample[cut.codes]
        made.type, made.shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape(array.shape)
        kind = ir.TensorType(ir.DataType.FLOAT) if floats else made.type
        given = ir.Value(name=cut.given, type=kind, shape=ir.Shape(array.shape))
        read = _quantized(given, made, namer) if floats else given
        for user, position in list(made.uses()):
            user.replace_input_with(position, read)
        clone.graph.inputs.append(given)
        clone.graph.outputs.append(made)
    return clone


def _quantized(given: ir.Value, like: ir.Value, namer: Namer) -> ir.Value:
    """A value by the same quantizer as another, which a QuantizeLinear makes."""
    node = like.producer()
    assert node is not None and isinstance(node.graph, ir.Graph)
    again = ir.node("QuantizeLinear", [given, *node.inputs[1:]], node.attributes, name=namer.fresh(f"{given.name}/q"))
    result = again.outputs[0]
    result.name, result.type, result.shape = namer.fresh(f"{given.name}/codes"), like.type, like.shape
    node.graph.insert_before(node, [again])
    return result


def _outputs(model: ir.Model) -> dict[str, ir.Value]:
    return {value.name or "": value for node in model.graph for value in node.outputs}
