"""onnxruntime on a CPU: QDQ, uint8 activations, int8 weights per channel, int32 biases.

Verified on onnxruntime 1.31.1, x86-64 with AVX512-VNNI: which operators have integer kernels, and the costs of the
table (``tools/op_costs.py``: time per output element on one thread, QuantizeLinear = 1). onnxruntime makes a
QLinearConv only where the quantizer follows the Conv directly; uint8 activations let Relu and Clip vanish into the
zero point. ConvTranspose and recurrent layers have no integer kernel for static quantization: their weights are
stored as integers only.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.graph.namer import Namer
from onnxq.graph.prune import remove_dead
from onnxq.graph.save import save
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array, is_constant, remove_nodes, rename_output, set_constant
from onnxq.spec import QuantSpec

if TYPE_CHECKING:
    from onnxq.plan import Plan
    from onnxq.quantized import Quantized

__all__ = ["BACKEND"]


def _conv_axis(node: ir.Node, position: int) -> int | None:
    return 0


def _conv_transpose_axis(node: ir.Node, position: int) -> int | None:
    return 1 if node.attributes.get_int("group", 1) == 1 else None


def _gemm_axis(node: ir.Node, position: int) -> int | None:
    return 0 if node.attributes.get_int("transB", 0) else 1


def _matmul_axis(node: ir.Node, position: int) -> int | None:
    shape = node.inputs[position].shape if node.inputs[position] is not None else None  # type: ignore[union-attr]
    return 1 if shape is not None and len(shape) == 2 else None


def _recurrent_axis(node: ir.Node, position: int) -> int | None:
    return 1


_LEAST_TABLE = 1 << 14
"""Elements from which a table of embeddings is stored in integers."""
_QUANTIZE_NS = 0.22
"""Nanoseconds a QuantizeLinear takes for an element: the unit of all costs."""


def _conv_cost(node: ir.Node) -> tuple[float, float]:
    """A fit to measured kernels, in nanoseconds per output position, then per output element.

    Both kinds of kernels compute blocks of 16 output channels; float ones are slower where the input channels do not
    fill blocks. Integer kernels copy the input of each kernel tap, which is slow for three channels: first layers of
    image models are faster in float. Depthwise kernels gain nothing in integers.
    """
    weight = node.inputs[1]
    dims = [d if isinstance(d, int) else 16 for d in weight.shape] if weight is not None and weight.shape else [16, 16]
    group = node.attributes.get_int("group", 1)
    outputs, inputs, taps = max(dims[0] // group, 1), dims[1], math.prod(dims[2:])
    if inputs == 1 and group > 1:
        return 0.3 + 0.09 * taps, 0.8 + 0.1 * taps
    macs = inputs * taps
    padded = -(-outputs // 16) * 16
    as_float = (0.010 if inputs % 16 == 0 else 0.0155) * macs * padded + 0.22 * outputs
    as_integer = 0.0029 * macs * padded + 0.06 * outputs + 5.0
    if taps > 1:
        as_integer += taps * (3.2 if inputs % 4 else 1.2)
    if outputs < 16:
        as_integer += 14.0
    return as_float / outputs / _QUANTIZE_NS, as_integer / outputs / _QUANTIZE_NS


def _matmul_cost(node: ir.Node) -> tuple[float, float]:
    """By the inner dimension."""
    weight = node.inputs[1]
    inner = 64
    if weight is not None and weight.shape is not None and len(weight.shape) >= 2:
        position = -1 if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1 else -2
        dim = weight.shape[position]
        inner = dim if isinstance(dim, int) else inner
    return 0.045 * inner, 0.3 + 0.011 * inner


def _gemm(node: ir.Node) -> str | None:
    if node.attributes.get_float("alpha", 1.0) != 1.0 or node.attributes.get_float("beta", 1.0) != 1.0:
        return "alpha or beta could not be folded into its constants"
    return "its first input is transposed" if node.attributes.get_int("transA", 0) else None


def _nearest(node: ir.Node) -> str | None:
    if node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return "it fills in a value that its input need not hold"
    mode = node.attributes.get_string("mode", "nearest")
    return None if mode == "nearest" else f"{mode} interpolation has no integer kernel"


def _table(node: ir.Node) -> str | None:
    table = node.inputs[0]
    if table is None or table.shape is None or len(table.shape) != 2 or node.attributes.get_int("axis", 0) != 0:
        return "not a table of rows"
    size = math.prod(d for d in table.shape if isinstance(d, int))
    return "too small a table to store in integers" if size < _LEAST_TABLE else None


def _plain_max_pool(node: ir.Node) -> str | None:
    return "its indices are used" if len(node.outputs) > 1 and node.outputs[1].name else None


def _movement(op: str, cost: float = 0.27) -> OpRule:
    return OpRule(op, Kind.MOVEMENT, cost=(0.9, cost))


def _keep_apart(model: ir.Model) -> None:
    """Give the bias added to a quantized MatMul the rank of the sum.

    Adding a vector behind a MatMul of static shape is fused into a float Gemm before onnxruntime looks at Q and DQ,
    and the weights are then dequantized at every run. A bias of shape (1, 1, N) is left alone: MatMulIntegerToFloat,
    then Add.
    """
    for node in all_nodes(model):
        if node.op_type != "Add":
            continue
        for position in (0, 1):
            bias, other = node.inputs[position], node.inputs[1 - position]
            matmul = other.producer() if other is not None else None
            if (
                bias is not None
                and other is not None
                and matmul is not None
                and matmul.op_type == "MatMul"
                and is_constant(bias)
                and not bias.is_graph_output()
                and bias.shape is not None
                and len(bias.shape) == 1
                and other.shape is not None
                and len(other.shape) > 2
                and any(
                    v is not None and (p := v.producer()) and p.op_type == "DequantizeLinear" for v in matmul.inputs
                )
            ):
                array = constant_array(bias)
                if array is not None and isinstance(node.graph, ir.Graph):
                    shaped = array.reshape((1,) * (len(other.shape) - 1) + (-1,))
                    if len(bias.uses()) == 1 and isinstance(bias.graph, ir.Graph):
                        bias.const_value = ir.tensor(shaped, name=bias.name)
                        bias.shape = ir.Shape(shaped.shape)
                    else:
                        home = bias.graph if isinstance(bias.graph, ir.Graph) else node.graph
                        node.replace_input_with(position, set_constant(home, Namer(model), f"{bias.name}_row", shaped))


def _unpack_late(model: ir.Model) -> None:
    """Gather rows of a stored table as integers and dequantize only those."""
    namer = Namer(model)
    for node in list(all_nodes(model)):
        table = node.inputs[0] if node.op_type == "Gather" and node.inputs else None
        unpack = table.producer() if table is not None else None
        if table is None or unpack is None or unpack.op_type != "DequantizeLinear" or not is_constant(unpack.inputs[0]):
            continue
        stored, graph, rows = unpack.inputs[0], node.graph, node.outputs[0]
        if node.attributes.get_int("axis", 0) != 0:
            continue
        indices = node.inputs[1]
        rank = len(indices.shape) if indices is not None and indices.shape is not None else None
        axis = unpack.attributes.get_int("axis", 1)
        if stored is None or stored.dtype is None or not isinstance(graph, ir.Graph):
            continue
        if unpack.inputs[1] is not None and unpack.inputs[1].shape and (rank is None or axis != 1):
            continue  # a scale for each column, and no telling which axis the columns end up on
        gather = ir.node("Gather", [stored, indices], name=namer.node(f"{node.name}_rows"))
        gather.outputs[0].name = namer.fresh(f"{rows.name}_quantized")
        gather.outputs[0].type = ir.TensorType(stored.dtype)
        attributes = {"axis": rank} if rank is not None and unpack.inputs[1] is not None else None
        late = ir.node("DequantizeLinear", [gather.outputs[0], *unpack.inputs[1:]], attributes, name=node.name)
        graph.insert_before(node, [gather, late])
        rename_output(late.outputs[0], rows)
        remove_nodes([node])
        if not table.uses() and not table.is_graph_output():
            remove_nodes([unpack])


def _unpack_at_load(model: ir.Model, plan: Plan) -> None:
    """Write the unpacking of the stored weights of float layers as Cast and Mul.

    onnxruntime computes those once, when it loads the model; a DequantizeLinear it would compute at every run.
    """
    namer = Namer(model)
    unpacked: dict[ir.Value, ir.Value] = {}
    for node in list(all_nodes(model)):
        if node.name not in plan.stored or node.op_type == "Gather":
            continue
        for position, value in enumerate(node.inputs):
            dq = value.producer() if value is not None else None
            if value is None or dq is None or dq.op_type != "DequantizeLinear" or not is_constant(dq.inputs[0]):
                continue
            if value not in unpacked and (made := _cast_and_scale(dq, namer)) is not None:
                unpacked[value] = made
            if value in unpacked:
                node.replace_input_with(position, unpacked[value])
            if not value.uses() and not value.is_graph_output():
                remove_nodes([dq])
    remove_dead(model)


def _cast_and_scale(dq: ir.Node, namer: Namer) -> ir.Value | None:
    stored, graph = dq.inputs[0], dq.graph
    scale = constant_array(dq.inputs[1])
    zero = constant_array(dq.inputs[2]) if len(dq.inputs) > 2 else None
    if stored is None or stored.shape is None or scale is None or not isinstance(graph, ir.Graph):
        return None
    if (zero is not None and zero.any()) or stored.dtype not in (ir.DataType.INT8, ir.DataType.INT16):
        return None
    if scale.ndim:
        shape = [1] * len(stored.shape)
        shape[dq.attributes.get_int("axis", 1)] = -1
        scale = scale.reshape(shape)
    base = (dq.outputs[0].name or "weight").removesuffix("_dequantized")
    factor = set_constant(graph, namer, f"{base}_factor", scale)
    cast = ir.node("Cast", [stored], {"to": int(ir.DataType.FLOAT)}, name=namer.node(f"{base}_Cast"))
    scaled = ir.node("Mul", [cast.outputs[0], factor], name=namer.node(f"{base}_Mul"))
    for made, suffix in ((cast, "cast"), (scaled, "unpacked")):
        made.outputs[0].name = namer.fresh(f"{base}_{suffix}")
        made.outputs[0].type, made.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(stored.shape.dims)
    graph.insert_before(dq, [cast, scaled])
    return scaled.outputs[0]


def _write_signed_pairs(model: ir.Model) -> None:
    """Write quantizers of int8 activations in onnxruntime's own domain from opset 21 on.

    onnxruntime 1.31 moves such a pair past data movement with an ``output_dtype``, then makes it uint8 and finds that
    the two do not match: the session is not created. Its own operators know no ``output_dtype``.
    """
    if model.opset_imports.get("", 0) < 21:
        return
    for node in all_nodes(model):
        zero = node.inputs[2] if len(node.inputs) > 2 else None
        signed = zero is not None and zero.dtype is ir.DataType.INT8 and not is_constant(node.inputs[0])
        if signed and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = "com.microsoft"
            model.opset_imports["com.microsoft"] = 1


_MOVES = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""What onnxruntime moves a DequantizeLinear through."""


def _shield_bodies(model: ir.Model) -> None:
    """Put a pair behind float data movement of which an If, Loop or Scan body reads the result.

    onnxruntime 1.31 moves the DequantizeLinear in front of it through to the reader, looks for that reader's input and
    aborts the process, since a body's tensors from outside are no inputs. A pair of the same parameters stops it there,
    and changes no number: what data movement gives back lies on the grid already.
    """
    namer = Namer(model)
    for node in list(all_nodes(model)):
        moved = node.outputs[0]
        inner = [use for use in moved.uses() if use.node.graph is not node.graph]
        dq = _dequantizer_before(node) if inner else None
        if dq is None or not isinstance(node.graph, ir.Graph):
            continue
        quantize = ir.node("QuantizeLinear", [moved, *dq.inputs[1:]], name=namer.node(f"{node.name}_QuantizeLinear"))
        back = ir.node(
            "DequantizeLinear",
            [quantize.outputs[0], *dq.inputs[1:]],
            name=namer.node(f"{node.name}_DequantizeLinear"),
        )
        for made, suffix, like in ((quantize, "quantized", dq.inputs[0]), (back, "dequantized", moved)):
            made.outputs[0].name = namer.fresh(f"{moved.name}_{suffix}")
            made.outputs[0].type = like.type if like is not None else None
            made.outputs[0].shape = moved.shape.copy() if moved.shape is not None else None
        node.graph.insert_after(node, [quantize, back])
        for use in inner:
            use.node.replace_input_with(use.idx, back.outputs[0])


def _dequantizer_before(node: ir.Node) -> ir.Node | None:
    """The DequantizeLinear with one scale that data movement leads back to."""
    current: ir.Node | None = node
    while current is not None and current.op_type in _MOVES and current.inputs[0] is not None:
        current = current.inputs[0].producer()
    if current is None or current is node or current.op_type != "DequantizeLinear":
        return None
    scale = constant_array(current.inputs[1])
    return current if scale is not None and scale.ndim == 0 else None


def _finish(model: ir.Model, plan: Plan) -> None:
    _keep_apart(model)
    _unpack_late(model)
    _unpack_at_load(model, plan)
    _shield_bodies(model)
    _write_signed_pairs(model)


def _export(quantized: Quantized, path: Path) -> list[Path]:
    model = quantized.rendered()
    forget_shapes(model)
    return save(model, path)


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=_conv_axis, bias=2, cost=_conv_cost),
    OpRule(
        "Gemm", Kind.COMPUTE, weights=(1,), weight_axis=_gemm_axis, bias=2, output=False, cost=_matmul_cost, when=_gemm
    ),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=_matmul_axis, output=False, cost=_matmul_cost),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1), output=False),
    OpRule("ConvTranspose", Kind.WEIGHT_ONLY, weights=(1,), weight_axis=_conv_transpose_axis),
    OpRule("LSTM", Kind.WEIGHT_ONLY, weights=(1, 2), weight_axis=_recurrent_axis),
    OpRule("GRU", Kind.WEIGHT_ONLY, weights=(1, 2), weight_axis=_recurrent_axis),
    OpRule("RNN", Kind.WEIGHT_ONLY, weights=(1, 2), weight_axis=_recurrent_axis),
    OpRule("Gather:constant", Kind.WEIGHT_ONLY, weights=(0,), weight_axis=_matmul_axis, when=_table),
    OpRule("Add", Kind.ELEMENTWISE, data=(0, 1), cost=(1.4, 0.7)),
    OpRule("Mul", Kind.ELEMENTWISE, data=(0, 1), cost=(1.4, 1.1)),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, cost=(1.2, 0.25)),
    OpRule("GlobalAveragePool", Kind.ELEMENTWISE, cost=(3300, 720)),
    OpRule("AveragePool", Kind.ELEMENTWISE, cost=(5, 36)),
    OpRule("LeakyRelu", Kind.ELEMENTWISE, cost=(0.95, 1.05)),
    OpRule("Sigmoid", Kind.ELEMENTWISE, fixed=(0.0, 1.0), cost=(1.5, 1.05)),
    OpRule("Softmax", Kind.ELEMENTWISE, fixed=(0.0, 1.0), cost=(2.4, 9.6)),
    # Quantizers behind a float MaxPool are moved in front of it, where only convolutions' layout has a fast kernel.
    OpRule("MaxPool", Kind.MOVEMENT, cost=(1.0, 0.5), cost_behind=85.0, when=_plain_max_pool),
    OpRule("Resize", Kind.MOVEMENT, cost=(0.86, 0.2), when=_nearest),
    _movement("Transpose"),
    _movement("Reshape", 0.05),
    _movement("Flatten", 0.05),
    _movement("Squeeze", 0.05),
    _movement("Unsqueeze", 0.05),
    _movement("Slice"),
    _movement("Split"),
    _movement("Gather"),
    _movement("Expand"),
    _movement("DepthToSpace"),
    _movement("SpaceToDepth"),
)

BACKEND = Backend(
    name="onnxruntime",
    title="onnxruntime on a CPU",
    activation=QuantSpec(signed=False, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: rule for rule in _RULES},
    export=_export,
    quantize_cost=1.3,
    dequantize_cost=1.1,
    reorder_cost=1.0,
    node_cost=3000.0,
    fused_float={
        ("Conv", "HardSwish"): 2.0,
        ("Conv", "HardSigmoid"): 0.6,
        ("Conv", "LeakyRelu"): 0.95,
        ("Conv", "Sigmoid"): 1.5,
        ("Conv", "Tanh"): 2.0,
    },
    stores_weights=True,
    finish=_finish,
    artifacts="model.onnx (QDQ)",
    verified="onnxruntime 1.31.1 on x86-64, optimizations on and off",
)
