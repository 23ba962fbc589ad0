"""onnxruntime on a CPU: QDQ, uint8 activations, int8 weights per channel, int32 biases.

Verified on onnxruntime 1.31.1 and 1.32, x86-64 with AVX512-VNNI: which operators have integer kernels, and the costs
of the table (nanoseconds per output element on one thread, with the layouts that nets have them in). onnxruntime makes
a QLinearConv only where the quantizer follows the Conv directly; uint8 activations let Relu and Clip vanish into the
zero point. A ConvTranspose has no integer kernel, and is written as a Conv of all phases of its stride, whose channels
are put side by side, as those of a DepthToSpace behind a Conv are; a Resize that repeats elements joins rows with
themselves. Recurrent layers have none for static quantization: their weights are stored as integers only (an LSTM has
one for ranges taken at each run: ``--algorithm dynamic``). A SiLU between integer convolutions runs as QLinearSigmoid
and QLinearMul. A GELU written as a chain of operators would fall apart there, since each reader of a tensor has a
DequantizeLinear of its own: behind a convolution it is written as Gelu, which takes opset 20. Elsewhere it is put in
an order that onnxruntime fuses, and a layer normalization behind a Transpose becomes LayerNormalization, which takes
opset 17. An Add in front of one is written as Sum: onnxruntime's kernel for the two together, SkipLayerNormalization,
takes eight times as long as they do.

Two things make convolutions slow in integers: small groups of channels, and channels left over of blocks, of 16 in
depthwise convolutions and of 4 in others. Several groups are put together, with weights of zero where they cross, until
that is fastest by the table; tensors between convolutions alone have channels of zeros behind their own, at most a
third of these. All other numbers stay the same, the file grows by the zeros.

An Add, Mul, Concat, Resize, Sigmoid, LeakyRelu, Softmax or GlobalAveragePool left in float between quantizers of other
operators, by ``--exclude`` say, onnxruntime fuses with these to its integer kernel all the same, on their grids. An
AveragePool is kept apart, and so are a Conv, ConvTranspose and Gemm, whose weights 1.32 would round with one scale.

On x86-64 without VNNI instructions the kernels add pairs of 8-bit products in 16 bits, which overflows, and are slower.
Where this processor is one, weights have a reduced range, as much as each channel needs, and layers the costs measured
there (onnxruntime 1.32, AVX-512 without VNNI). ``--reduce-range`` says that the model will run on such a processor,
``--full-range`` that it will run on another. Weights that a model given has are stored as uint8 where they would
overflow: the kernels for these are exact, and take up to twice the time.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from onnxq.backend import Backend, Kind, OpRule
from onnxq.backends.onnxruntime.costs import COSTS, MOVED, SHUFFLED, VIEWS, spill_of_conversions, without_vnni
from onnxq.backends.onnxruntime.limits import adjust, function_behind, several
from onnxq.backends.onnxruntime.phases import WHY_STORED, in_phases
from onnxq.backends.onnxruntime.processors import NO_VNNI
from onnxq.backends.onnxruntime.rewrites import finish, recast
from onnxq.graph.note import Note
from onnxq.graph.passes.explicit_pads import explicit_pads
from onnxq.graph.passes.fuse_gelu import GELU_OPSET, fuse_gelu, has_gelu_chain
from onnxq.graph.passes.fuse_gemm import fuse_gemm
from onnxq.graph.passes.fuse_layernorm import LAYERNORM_OPSET, fuse_layernorm, has_layernorm_chain
from onnxq.graph.passes.order_gelu import order_gelu
from onnxq.graph.passes.write_out import NEWEST
from onnxq.graph.recognition.groups import KINDS, Group
from onnxq.ort.overflow import products_overflow
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.render.microsoft import QDQ_MICROSOFT
from onnxq.render.qoperator import QOPERATOR, refuse_signed
from onnxq.rows import (
    conv_axis,
    conv_transpose_axis,
    gemm_axis,
    matmul_axis,
    nearest,
    plain_average_pool,
    plain_gemm,
    plain_max_pool,
    recurrent_axis,
)
from onnxq.spec import QuantSpec

__all__ = ["BACKEND"]


_LEAST_TABLE = 1 << 14
"""Elements from which a table of embeddings is stored in integers."""
_LSTM = "in integers only with --algorithm dynamic, which takes the ranges of activations at each run"
_BEFORE_GELU = ("Conv",)
"""Whose integers a GELU may have to read; a product of matrices leaves floats."""


def _clipped(node: ir.Node) -> bool:
    """Whether a Relu or Clip alone reads a product: onnxruntime computes both in float if no quantizer follows."""
    return function_behind(node) is not None


def _table(node: ir.Node) -> str | None:
    """A Gather that picks rows, or matrices, of a constant table, large enough to be worth storing in integers.

    Matrices have one scale for all: unpacking those of experts with a scale for each column takes onnxruntime 1.31 as
    long again as all the rest of the model, with one scale next to nothing. They are stored whatever their size: of a
    float model's speed, two layers of eight experts (Mixtral, onnxruntime 1.32, one thread) have, by a token and by 16,
    1.14 and 1.06 where matrices are of 2048 x 2048, 1.01 and 1.13 at 1024 x 2048, 1.40 and .95 at 512 x 1024, and 1.02
    and .84 at 128 x 256, which caches hold and float rows are copied from quickly; with tables left float they have
    1.06 and 1.02, 1.00 and .99, 1.21 and 1.03, and 1.20 and 1.16.
    """
    table = node.inputs[0]
    if table is None or table.shape is None or len(table.shape) < 2 or node.attributes.get_int("axis", 0) != 0:
        return "not a table of rows"
    size = math.prod(d for d in table.shape if isinstance(d, int))
    return "too small a table to store in integers" if size < _LEAST_TABLE else None


def _second_axis(node: ir.Node, position: int) -> int | None:
    """Output channels of an Attention's weight (inputs, 3 * hidden) and a MoE's (experts, outputs, inputs)."""
    return 1


def _rewrite(model: ir.Model) -> list[Note]:
    """GELU in one operator has one reader of its input, and one kernel behind integers too.

    onnxruntime fuses other GELUs in some orders, and a layer normalization as PyTorch writes it, not as Keras does, nor
    behind a Transpose.
    """
    fused = [*explicit_pads(model), *fuse_gemm(model), *fuse_gelu(model, behind=_BEFORE_GELU)]
    norms = fuse_layernorm(model) if has_layernorm_chain(model, _is_left_apart) else []
    return [*fused, *norms, *order_gelu(model)]


def _is_left_apart(group: Group) -> bool:
    """Whether onnxruntime computes a layer normalization as it is written.

    It finds those that square and divide, unless it has moved a Transpose in front of them through a part of them.
    """
    return not {"Pow", "Div"} <= {node.op_type for node in group.nodes} or _is_transposed(group.inputs[0])


def _is_transposed(value: ir.Value) -> bool:
    maker = value.producer()
    while maker is not None and maker.op_type in VIEWS and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    return maker is not None and maker.op_type == "Transpose"


def _rewrite_opset(model: ir.Model) -> int:
    if has_gelu_chain(model, behind=_BEFORE_GELU):
        return GELU_OPSET
    return LAYERNORM_OPSET if has_layernorm_chain(model, _is_left_apart) else 0


def _without_vnni(target: Backend) -> Backend:
    """The costs of a processor without VNNI, and groups of convolutions put together by these."""
    slower = without_vnni(target)
    return replace(slower, recast=partial(recast, products=NO_VNNI)) if target.recast is recast else slower


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, bias=2),
    OpRule(
        "Gemm",
        Kind.COMPUTE,
        weights=(1,),
        weight_axis=gemm_axis,
        bias=2,
        output=_clipped,
        when=plain_gemm,
    ),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis, output=_clipped),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1), output=False),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis, bias=2, when=in_phases),
    OpRule("ConvTranspose:stored", Kind.WEIGHT_ONLY, weights=(1,), weight_axis=conv_transpose_axis),
    OpRule("LSTM", Kind.WEIGHT_ONLY, weights=(1, 2), weight_axis=recurrent_axis),
    OpRule("GRU", Kind.WEIGHT_ONLY, weights=(1, 2), weight_axis=recurrent_axis),
    OpRule("RNN", Kind.WEIGHT_ONLY, weights=(1, 2), weight_axis=recurrent_axis),
    OpRule("Gather:constant", Kind.WEIGHT_ONLY, weights=(0,), weight_axis=matmul_axis, when=_table),
    OpRule("com.microsoft::Attention", Kind.WEIGHT_ONLY, data=(), weights=(1,), weight_axis=_second_axis),
    OpRule(
        "com.microsoft::EmbedLayerNormalization",
        Kind.WEIGHT_ONLY,
        data=(),
        weights=(2, 3, 4),
        weight_axis=matmul_axis,
    ),
    OpRule("com.microsoft::MoE", Kind.WEIGHT_ONLY, data=(), weights=(2, 4, 6), weight_axis=_second_axis),
    OpRule("Add", Kind.ELEMENTWISE, data=(0, 1)),
    OpRule("Mul", Kind.ELEMENTWISE, data=(0, 1)),
    OpRule("Concat", Kind.ELEMENTWISE, data=None),
    OpRule("GlobalAveragePool", Kind.ELEMENTWISE),
    OpRule("AveragePool", Kind.ELEMENTWISE, when=plain_average_pool),
    OpRule("LeakyRelu", Kind.ELEMENTWISE),
    OpRule("Sigmoid", Kind.ELEMENTWISE, fixed=(0.0, 1.0)),
    OpRule("Softmax", Kind.ELEMENTWISE, fixed=(0.0, 1.0), when=several),
    # A float MaxPool stays in front of its quantizer by a Sum behind it, see rewrites.py.
    OpRule("MaxPool", Kind.MOVEMENT, cost_behind=0.2, when=plain_max_pool),
    OpRule("Resize", Kind.MOVEMENT, when=nearest),
    *(OpRule(op, Kind.MOVEMENT) for op in (*MOVED, *SHUFFLED, *VIEWS)),
)

BACKEND = Backend(
    name="onnxruntime",
    title="onnxruntime on a CPU",
    activation=QuantSpec(signed=False, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    rules={rule.op: replace(rule, cost=COSTS.get(rule.op, rule.cost)) for rule in _RULES},
    formats={"qdq": QDQ, "qoperator": QOPERATOR, "qdq-microsoft": QDQ_MICROSOFT, "fake-quantize": FAKE_QUANTIZE},
    refuses=refuse_signed,
    absorbs_by_zero_point=True,
    whole=frozenset(KINDS) - {"silu"},
    weight_zero_points="channel",
    asymmetric_weights=frozenset({2, 3, 4}),
    overflows=products_overflow,
    overflowing=_without_vnni,
    moves_weights=True,
    by_cost=True,
    quantize_cost=0.11,
    dequantize_cost=0.17,
    split_cost={"gelu": 0.33, "layernorm": 0.24, "silu": 0.19},
    reorder_cost=0.08,
    node_cost=600.0,
    spill=spill_of_conversions,
    fused_float={("Conv", "HardSwish"): 0.05, ("Conv", "HardSigmoid"): 0.02, ("Conv", "Tanh"): 0.03},
    has_whole=NEWEST
    | {f"com.microsoft::{op}" for op in ("EmbedLayerNormalization", "MultiHeadAttention", "RotaryEmbedding")},
    runtime_operators=True,
    stores_weights=True,
    stored_because={"LSTM": _LSTM, "ConvTranspose": WHY_STORED},
    runtime="onnxruntime",
    rewrite=_rewrite,
    rewrite_opset=_rewrite_opset,
    adjust=adjust,
    recast=recast,
    finish=finish,
    artifacts="model.onnx (QDQ)",
    verified="onnxruntime 1.32.0 on x86-64, optimizations on and off",
)
