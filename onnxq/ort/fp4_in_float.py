"""Models with 4-bit floating-point numbers as float ones, which plain onnxruntime computes: NVFP4 in simulation.

onnxruntime 1.32 has no kernel of these numbers. Weights are those that their bits stand for, which float32 holds
exactly. What TensorRT rounds at run time (``trt::TRT_FP4DynamicQuantize``) is rounded by a function of standard
operators: of each block the largest magnitude over 6, as a number of E4M3 times the unit, is the scale, and the numbers
over the scale are rounded to the nearest of E2M1, of two equally near to the even one. TensorRT documents these
roundings and that magnitude, but not in which order its kernels multiply and divide: at ties they may go the other way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import onnx.parser
import onnx_ir as ir

from onnxq.graph.domains import TENSORRT
from onnxq.graph.edits import remove_nodes, rename_output, replace_value
from onnxq.graph.fake_quantize_function import DOMAIN, VERSION
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes, with_subgraphs

__all__ = ["BLOCK", "DYNAMIC", "in_float", "is_fp4"]

DYNAMIC = "TRT_FP4DynamicQuantize"
"""TensorRT's own operator that makes numbers, and scales of their blocks, while a model runs."""
BLOCK = 16
"""Numbers of a block of NVFP4."""
_NUMBER, _SCALE = ir.DataType.FLOAT4E2M1, ir.DataType.FLOAT8E4M3FN
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
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
    """The float model that computes what one with NVFP4 does, as onnxq and NVIDIA's Model Optimizer write it.

    Args:
        model: the model, serialized, or the path of its file; left as it is.

    Returns:
        None where there are no 4-bit floating-point numbers, or where they are outputs of the model. Those that are
        used in another way are left as they are.

    Raises:
        ModelError: it cannot be read.
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
        elif node.op_type == "DequantizeLinear" and (parts := _parts(node)) is not None:
            gone += _unpacked(node, parts, namer)
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


def _is_dynamic(node: ir.Node) -> bool:
    return node.op_type == DYNAMIC and node.domain == TENSORRT


def _parts(node: ir.Node) -> list[ir.TensorProtocol] | None:
    """Numbers and scales of blocks, and the unit of these where a DequantizeLinear makes them; None of all others."""
    maker = _maker_of_scales(node)
    values = (node.inputs[0], *(maker or node).inputs[maker is None :])
    tensors = [value.const_value for value in values if value is not None and value.const_value is not None]
    known = len(node.inputs) == 2 and len(tensors) == len(values) == (2 if maker is None else 3)
    blocks = node.attributes.get_int("block_size", 0) > 0
    return tensors if known and blocks and tensors[0].dtype is _NUMBER and tensors[-1].dtype in _FLOATS else None


def _maker_of_scales(node: ir.Node) -> ir.Node | None:
    scales = node.inputs[1]
    maker = scales.producer() if scales is not None else None
    return maker if maker is not None and maker.op_type == "DequantizeLinear" else None


def _unpacked(node: ir.Node, parts: Sequence[ir.TensorProtocol], namer: Namer) -> list[ir.Node]:
    """A constant in the place of DequantizeLinear, made whenever it is read; these, which are of no use then."""
    assert isinstance(node.graph, ir.Graph)
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
    maker = _maker_of_scales(node)
    return [node] if maker is None else [node, maker]


def _rounded(node: ir.Node, namer: Namer) -> list[ir.Node]:
    """A call of the function in the place of the operator and two DequantizeLinear, which are of no use then."""
    made = [reader for value in node.outputs for reader in value.consumers()]
    if [reader.op_type for reader in made] != ["DequantizeLinear"] * 2:
        return []
    assert isinstance(node.graph, ir.Graph)
    numbers, scales = made
    call = ir.node(_NAME, list(node.inputs), domain=DOMAIN, name=namer.node(f"{node.name}_in_float"))
    node.graph.insert_before(node, call)
    rename_output(call.outputs[0], numbers.outputs[0])
    return [numbers, scales, node]
