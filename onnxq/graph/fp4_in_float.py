"""Models with 4-bit floating-point numbers as float ones, which plain onnxruntime computes: NVFP4 in simulation.

onnxruntime 1.32 has no kernel of these numbers. Weights are those that their bits stand for, which float32 holds
exactly. What TensorRT rounds at run time (``trt::TRT_FP4DynamicQuantize``) is rounded by a function of standard
operators: of each block the largest magnitude over 6, as a number of E4M3 times the unit, is the scale, and the numbers
over the scale are rounded to the nearest of E2M1, of two equally near to the even one. TensorRT documents these
roundings and that magnitude, but not in which order its kernels multiply and divide: at ties they may go the other way.
"""

from __future__ import annotations

import os

import numpy as np
import onnx.parser
import onnx_ir as ir

from onnxq.graph.domains import TENSORRT
from onnxq.graph.fake_quantize_function import DOMAIN, VERSION
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes, with_subgraphs
from onnxq.graph.values import remove_nodes, replace_value

__all__ = ["BLOCK", "DYNAMIC", "in_float", "is_fp4"]

DYNAMIC = "TRT_FP4DynamicQuantize"
"""TensorRT's own operator that makes numbers, and scales of their blocks, while a model runs."""
BLOCK = 16
"""Numbers of a block of NVFP4."""
_NAME = "NVFP4"
_FUNCTION = f"""
<domain: "{DOMAIN}", opset_import: ["" : OPSET]>
{_NAME} (data, factor) => (y)
{{
    half = Constant <value_float = 0.5> ()
    one = Constant <value_float = 1.0> ()
    two = Constant <value_float = 2.0> ()
    four = Constant <value_float = 4.0> ()
    six = Constant <value_float = 6.0> ()
    least = Constant <value_float = {np.finfo(np.float32).tiny}> ()
    last = Constant <value_ints = [-1]> ()
    x = Cast <to = {int(ir.DataType.FLOAT)}> (data)
    unit = Cast <to = {int(ir.DataType.FLOAT)}> (factor)
    shape = Shape (x)
    lead = Shape <end = -1> (x)
    two_axes = Constant <value_ints = [-1, {BLOCK}]> ()
    apart = Concat <axis = 0> (lead, two_axes)
    blocks = Reshape (x, apart)
    sizes = Abs (blocks)
    largest = ReduceMax (sizes, last)
    share = Div (largest, six)
    in_units = Div (share, unit)
    stored = Cast <to = {int(ir.DataType.FLOAT8E4M3FN)}> (in_units)
    number = Cast <to = {int(ir.DataType.FLOAT)}> (stored)
    scale = Mul (number, unit)
    above_0 = Max (scale, least)
    ratio = Div (blocks, above_0)
    size = Abs (ratio)
    is_small = Less (size, two)
    is_middle = Less (size, four)
    wide = Where (is_middle, one, two)
    step = Where (is_small, half, wide)
    steps = Div (ratio, step)
    whole = Round (steps)
    exact = Mul (whole, step)
    below = Neg (six)
    held = Clip (exact, below, six)
    numbers = Mul (held, scale)
    rounded = Reshape (numbers, shape)
    y = CastLike (rounded, factor)
}}
"""


def is_fp4(model: ir.Model) -> bool:
    """Whether a model holds 4-bit floating-point numbers, or makes some."""
    graphs = with_subgraphs(model.graph)
    constants = (v.const_value for graph in graphs for v in graph.initializers.values())
    held = any(tensor is not None and tensor.dtype is ir.DataType.FLOAT4E2M1 for tensor in constants)
    return held or any(_is_dynamic(node) for node in all_nodes(model))


def in_float(model: ir.Model | bytes | str | os.PathLike[str]) -> ir.Model | None:
    """The float model that computes what one with 4-bit floating-point numbers does.

    Args:
        model: the model, serialized, or the path of its file; left as it is.

    Returns:
        None where there are no such numbers, or some are outputs of the model.
    """
    from onnxq.graph.files.load import load

    loaded = model if isinstance(model, ir.Model) else load(model, again=True)
    if not is_fp4(loaded):
        return None
    result = loaded.clone()
    namer = Namer(result)
    gone: list[ir.Node] = []
    for node in list(all_nodes(result)):
        if _is_dynamic(node):
            gone += _rounded(node, namer)
        elif node.op_type == "DequantizeLinear" and _is_weight(node):
            gone += _unpacked(node, namer)
    if any(value.is_graph_output() for node in gone for value in node.outputs):
        return None
    remove_nodes(dict.fromkeys(gone))
    for graph in with_subgraphs(result.graph):
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output() and value.dtype in (_NUMBER, _SCALE):
                del graph.initializers[name]
    text = _FUNCTION.replace("OPSET", str(result.opset_imports[""]))
    function = ir.serde.deserialize_function(onnx.parser.parse_function(text))
    result.functions[function.identifier()] = function
    result.opset_imports[DOMAIN] = VERSION
    return result


_NUMBER, _SCALE = ir.DataType.FLOAT4E2M1, ir.DataType.FLOAT8E4M3FN


def _is_dynamic(node: ir.Node) -> bool:
    return node.op_type == DYNAMIC and node.domain == TENSORRT


def _is_weight(node: ir.Node) -> bool:
    """Whether a DequantizeLinear unpacks constant numbers."""
    parts = _parts(node)
    return parts is not None and parts[0].dtype is _NUMBER


def _parts(node: ir.Node) -> list[ir.TensorProtocol] | None:
    """Numbers, scales and, where a DequantizeLinear in front makes these of others, its factor; None if any varies."""
    maker = _maker_of_scales(node)
    values = (node.inputs[0], *(maker.inputs if maker is not None else node.inputs[1:]))
    tensors = [value.const_value if value is not None else None for value in values]
    found = [tensor for tensor in tensors if tensor is not None]
    return found if len(found) == len(tensors) else None


def _maker_of_scales(node: ir.Node) -> ir.Node | None:
    scales = node.inputs[1]
    maker = scales.producer() if scales is not None else None
    return maker if maker is not None and maker.op_type == "DequantizeLinear" else None


def _unpacked(node: ir.Node, namer: Namer) -> list[ir.Node]:
    """A constant in the place of DequantizeLinear, made whenever it is read; these, which are of no use then."""
    parts, maker = _parts(node), _maker_of_scales(node)
    assert parts is not None and isinstance(node.graph, ir.Graph)
    axis, size = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    shape, kind = ir.Shape(parts[0].shape.numpy()), parts[-1].dtype

    def made() -> ir.TensorProtocol:
        numbers, scale, *unit = (part.numpy().astype(np.float32) for part in parts)
        spread = np.repeat(scale * unit[0] if unit else scale, size, axis=axis)
        return ir.Tensor((numbers * spread).astype(kind.numpy()))

    name = namer.fresh(f"{node.outputs[0].name}_in_float")
    held = ir.LazyTensor(made, dtype=kind, shape=shape, name=name)
    value = ir.Value(name=name, shape=shape, type=ir.TensorType(kind), const_value=held)
    node.graph.register_initializer(value)
    replace_value(node.outputs[0], value)
    return [node, *([maker] if maker is not None else [])]


def _rounded(node: ir.Node, namer: Namer) -> list[ir.Node]:
    """A call of the function in the place of the operator and two DequantizeLinear, which are of no use then."""
    (scales,) = node.outputs[1].consumers()
    (numbers,) = node.outputs[0].consumers()
    assert isinstance(node.graph, ir.Graph)
    call = ir.node(_NAME, list(node.inputs), domain=DOMAIN, name=namer.node(f"{node.name}_in_float"))
    call.outputs[0].type = numbers.outputs[0].type
    node.graph.insert_before(node, call)
    numbers.outputs[0].replace_all_uses_with(call.outputs[0], replace_graph_outputs=True)
    call.outputs[0].name, numbers.outputs[0].name = numbers.outputs[0].name, None
    return [numbers, scales, node]
