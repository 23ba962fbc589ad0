"""A rendering that is run for its numbers alone, in a form that onnxruntime computes sooner; the numbers stay.

The functions :mod:`onnxq.render.fake_quantize` and :mod:`onnxq.render.nnie_quantize` are six and some twenty passes
over a tensor, and a session without graph optimizations repeats those over the weights at every run. Here

* a call on a constant becomes the constant that it gives;
* a call of ``FakeQuantize`` whose grid is all of an 8- or 16-bit integer becomes QuantizeLinear and DequantizeLinear,
  two passes. Not behind what may make a NaN of finite numbers: the function hands it on, integers have no code for it.

Both are bit-equal to the function.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.domains import MICROSOFT
from onnxq.graph.edits import remove_nodes, rename_output, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.passes.prune import remove_unread
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.graph.values import constant_array
from onnxq.grids import logarithmic
from onnxq.render import fake_quantize, nnie_quantize
from onnxq.render.wiring import add_initializer, describe
from onnxq.spec import WIDE_OPSET

__all__ = ["quicken"]

_INTEGERS = {
    (0, 255): ir.DataType.UINT8,
    (-128, 127): ir.DataType.INT8,
    (0, 65535): ir.DataType.UINT16,
    (-32768, 32767): ir.DataType.INT16,
}
_MAY_MAKE_NAN = frozenset(
    {"Acos", "Acosh", "Asin", "Atanh", "Div", "If", "Log", "Loop", "Mod", "Pow", "Reciprocal", "Scan", "Sqrt"}
)
"""Besides the normalizations."""
_KNOWN = frozenset({"", MICROSOFT, fake_quantize.DOMAIN})
Floats = NDArray[np.float32]


def quicken(model: ir.Model) -> None:
    """Replace calls of the quantizing functions by what is computed sooner.

    Args:
        model: changed in place; its inputs and outputs keep names, types and order.
    """
    namer = Namer(model)
    kinds: dict[str, Callable[[ir.Node], Floats | None]] = {
        fake_quantize.NAME: _uniform,
        nnie_quantize.NAME: _logarithmic,
    }
    for node in _calls(model, kinds):
        value = kinds[node.op_type](node)
        if value is not None and not node.outputs[0].is_graph_output():
            _hold(node, value, namer)
    doubtful = _doubtful(model)
    for node in _calls(model, {fake_quantize.NAME}):
        if node.outputs[0].name not in doubtful:
            _pair(model, node, namer)
    for graph in all_graphs(model):
        remove_unread(graph)


def _calls(model: ir.Model, names: Container[str]) -> list[ir.Node]:
    return [node for node in all_nodes(model) if node.domain == fake_quantize.DOMAIN and node.op_type in names]


def _doubtful(model: ir.Model) -> set[str]:
    """Names of the tensors that may hold a NaN though the inputs are finite: all behind the first that may."""
    found = {value.name or "" for graph in model.graph.subgraphs() for node in graph for value in node.outputs}
    for node in model.graph:
        risky = node.op_type in _MAY_MAKE_NAN or node.op_type.endswith("Normalization")
        makes = node.domain not in _KNOWN or (risky and not _divides_by_constant(node))
        if makes or any(value is not None and value.name in found for value in node.inputs):
            found.update(value.name or "" for value in node.outputs)
    return found


def _divides_by_constant(node: ir.Node) -> bool:
    divisor = constant_array(node.inputs[1]) if node.op_type == "Div" else None
    return divisor is not None and bool(np.all(divisor))


def _uniform(node: ir.Node) -> Floats | None:
    """What ``FakeQuantize`` gives for constants, step by step as its body has it."""
    x, scale, zero = (constant_array(value) for value in node.inputs)
    if x is None or scale is None or zero is None:
        return None
    with np.errstate(all="ignore"):
        result = np.asarray(x / scale, np.float32)
        np.rint(result, out=result)
        result += zero
        low, high = (np.float32(node.attributes[name].as_int()) for name in ("quant_min", "quant_max"))
        np.clip(result, low, high, out=result)
        result -= zero
        result *= scale
    return result


def _logarithmic(node: ir.Node) -> Floats | None:
    x, clip = (constant_array(value) for value in node.inputs)
    if x is None or clip is None:
        return None
    return logarithmic.dequantize(logarithmic.quantize(x, clip), clip)


def _hold(node: ir.Node, value: Floats, namer: Namer) -> None:
    """Put a constant in the place of a call."""
    graph, result = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    held = set_constant(graph, namer, f"{result.name}_held", value)
    for user, index in list(result.uses()):
        user.replace_input_with(index, held)
    remove_nodes([node])


def _pair(model: ir.Model, node: ir.Node, namer: Namer) -> None:
    """Put a pair of QuantizeLinear and DequantizeLinear in the place of a call, where they can say the same."""
    x, scale, zero = node.inputs
    assert x is not None
    dtype = _INTEGERS.get((node.attributes["quant_min"].as_int(), node.attributes["quant_max"].as_int()))
    steps, middle = constant_array(scale), constant_array(zero)
    graph = node.graph
    if dtype is None or steps is None or middle is None or steps.size != 1 or not isinstance(graph, ir.Graph):
        return
    wide = dtype in (ir.DataType.UINT16, ir.DataType.INT16) and model.opset_imports.get("", 0) < WIDE_OPSET
    domain = MICROSOFT if wide else ""
    if wide:
        model.opset_imports.setdefault(MICROSOFT, 1)
    result = node.outputs[0]
    numbers = [
        add_initializer(graph, namer.fresh(f"{result.name}_step"), steps.reshape(()), ir.DataType.FLOAT),
        add_initializer(graph, namer.fresh(f"{result.name}_middle"), middle.reshape(()), dtype),
    ]
    made: list[ir.Node] = []
    for op, kind in (("Quantize", dtype), ("Dequantize", ir.DataType.FLOAT)):
        fed = made[-1].outputs[0] if made else x
        name = namer.node(f"{node.name}_{op}Linear")
        made.append(ir.node(f"{op}Linear", [fed, *numbers], name=name, domain=domain))
        describe(made[-1].outputs[0], namer.fresh(f"{result.name}_{op.lower()}d"), kind, x.shape)
    graph.insert_after(node, made)
    rename_output(made[-1].outputs[0], result)
    remove_nodes([node])
