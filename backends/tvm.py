"""Apache TVM (Relax): the QDQ model of onnxruntime's scheme, all that its table allows quantized.

TVM reads QuantizeLinear and DequantizeLinear as ``R.quantize`` and ``R.dequantize`` and computes between them in float:
it has no integer kernels for them, so no costs decide what is quantized. Model outputs are not quantized, and a Sigmoid
or Softmax that only makes one stays float. It is an independent interpreter of what a QDQ model means. Activations are
uint8 or uint16, weights int8 or int16; 4-bit integers it cannot load. The format ``fake-quantize`` is for onnxruntime:
TVM cannot read its functions.

A model with an operator that TVM's importer has not (LSTM, GRU and Loop among them) it refuses as a whole, float or
quantized: ``onnxq check --backend tvm`` names them. What it reads it may still not compile: of a detector with free
sizes the arithmetic that makes its anchors ("CodeGenVM cannot emit ... R.subtract"), in float too. With the sizes of
its inputs fixed it compiles: onnxq folds that then.

Verified on TVM 0.27.0.post1 (LLVM, x86-64), opsets 17 to 24: equal to onnxruntime without optimizations to the order in
which a convolution adds up. That moves a code by one where it is at a tie to the last bits of a float32: of an
EfficientNet-Lite0's and of a text detector's codes, layer by layer, one in a million.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend, OpRule
from onnxq.backends.onnxruntime import BACKEND as ONNXRUNTIME
from onnxq.checks.findings import Finding
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.constants import fold_constants
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.traverse import all_nodes, describe
from onnxq.graph.values import constant_array, replace_value, set_constant
from onnxq.options import Options
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.rows import only_an_output

__all__ = ["ABSENT", "BACKEND"]


_CUTS = ("Clip", "Relu")


_NAMES = (
    "Bernoulli BitCast BlackmanWindow CausalConvWithState Celu CenterCropPad Col2Im ConvInteger CumProd DFT "
    "DeformConv Det GRU HammingWindow HannWindow ImageDecoder LSTM LinearAttention Loop LpNormalization "
    "MelWeightMatrix Multinomial NegativeLogLikelihoodLoss QLinearConv QLinearMatMul RNN RandomNormal "
    "RandomNormalLike RandomUniform RandomUniformLike RegexFullMatch ReverseSequence RotaryEmbedding STFT Scan "
    "SequenceMap SoftmaxCrossEntropyLoss StringConcat StringNormalizer StringSplit SwiGLU Swish TensorScatter "
    "TfIdfVectorizer"
)
ABSENT = frozenset(_NAMES.split())
"""Operators of the standard up to opset 26 that the ONNX importer of TVM 0.27 has not."""


def _lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Operators for which TVM refuses a model."""
    what = "TVM's ONNX importer has no {}: it refuses the whole model, float or quantized"
    return [
        Finding("warning", describe(node), what.format(node.op_type), "Cut the model before it or after it")
        for node in all_nodes(model)
        if node.op_type in ABSENT and node.domain in ("", "ai.onnx")
    ]


def _tensors(node: ir.Node) -> tuple[int, ...]:
    """Positions of operands that are no scalars: TVM makes plain numbers of scalars that follow from shapes."""
    return tuple(k for k, v in enumerate(node.inputs) if v is not None and (v.shape is None or len(v.shape) > 0))


def _known_dimensions(model: ir.Model) -> list[Note]:
    """Compute what is picked from a shape where those dimensions are known, though others are free.

    TVM computes with picked dimensions in float64, which it then refuses to combine with a float32 tensor.
    """
    namer, picked = Namer(model), 0
    for node in list(model.graph):
        shape = node.inputs[0].producer() if node.op_type == "Gather" and node.inputs[0] is not None else None
        index = constant_array(node.inputs[1]) if shape is not None else None
        source = shape.inputs[0] if shape is not None and shape.op_type == "Shape" and not shape.attributes else None
        if source is None or source.shape is None or index is None or node.outputs[0].is_graph_output():
            continue
        rank = len(source.shape)
        dims = [source.shape[int(k) % rank] for k in index.reshape(-1) if -rank <= int(k) < rank]
        if len(dims) == index.size and all(isinstance(d, int) for d in dims):
            known = np.asarray(dims, np.int64).reshape(index.shape)
            replace_value(node.outputs[0], set_constant(model.graph, namer, node.outputs[0].name or "dims", known))
            picked += 1
    if not picked:
        return []
    remove_dead(model)
    return [Note("tvm", "", f"{picked} known dimensions became constants"), *fold_constants(model)]


def _read_on(node: ir.Node) -> bool:
    """Whether a node's output, or what a Relu or Clip makes of it, is more than a model output."""
    seen, stack = {node}, [node]
    while stack:
        readers = {use.node for value in stack.pop().outputs for use in value.uses()} - seen
        if any(reader.op_type not in _CUTS for reader in readers):
            return True
        seen |= readers
        stack += readers
    return False


def _rule(rule: OpRule) -> OpRule:
    """A row of onnxruntime's table, as it is here."""
    given = rule.when

    def quantizes_output(node: ir.Node) -> bool:
        return rule.needs_output(node) and _read_on(node)

    def why_not(node: ir.Node) -> str | None:
        """One that is read in the model: a model output alone is exact in float."""
        return only_an_output(node) or (given(node) if given is not None else None)

    if given is not None:
        why_not.__doc__ = f"{why_not.__doc__} {given.__doc__}"
    return replace(
        rule,
        data=_tensors if rule.op in ("Add", "Mul") else rule.data,
        output=rule.output and quantizes_output,
        when=why_not if rule.fixed is not None else given,
    )


BACKEND = Backend(
    name="tvm",
    title="Apache TVM (Relax)",
    activation=ONNXRUNTIME.activation,
    weight=ONNXRUNTIME.weight,
    weight_zero_points=True,
    rules={op: _rule(rule) for op, rule in ONNXRUNTIME.rules.items()},
    formats={"qdq": QDQ, "fake-quantize": FAKE_QUANTIZE},
    wide_domain="com.microsoft",
    weight_bits=frozenset(range(5, 17)),
    act_bits=frozenset({8, 16}),
    rewrite=_known_dimensions,
    lacks=_lacks,
    stores_weights=True,
    runtime="tvm",
    artifacts="model.onnx (QDQ)",
    verified="TVM 0.27.0 (LLVM, x86-64): numbers of onnxruntime, codes at ties aside",
)
