"""Apache TVM (Relax): the QDQ model of onnxruntime's scheme, all that its table allows quantized.

TVM reads QuantizeLinear and DequantizeLinear as ``R.quantize`` and ``R.dequantize`` and computes between them in float:
it has no integer kernels for them, so no costs decide what is quantized. Model outputs are not quantized, and a Sigmoid
or Softmax that only makes one stays float. It is an independent interpreter of what a QDQ model means. Activations are
uint8 or uint16, weights int8 or int16; 4-bit integers it cannot load. The format ``fake-quantize`` is for onnxruntime:
TVM cannot read its functions.

A model with an operator that TVM's importer has not (LSTM, GRU and Loop among them) it refuses as a whole, float or
quantized: ``onnxq check --backend tvm`` names them. What it reads it may still not compile: of a detector with free
sizes the arithmetic that makes its anchors ("CodeGenVM cannot emit ... R.subtract"), in float too. With the sizes of
its inputs fixed it compiles: onnxq folds that then. A Resize it computes by the ratio of the sizes: where a scale that
is given leads to no whole size, the numbers are others, which ``onnxq check`` tells.

Verified on TVM 0.27.0.post1 (LLVM, x86-64), opsets 17 to 24: equal to onnxruntime without optimizations to the order in
which a convolution adds up. That moves a code by one where it is at a tie to the last bits of a float32: of an
EfficientNet-Lite0's and of a text detector's codes, layer by layer, one in a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx
import onnx_ir as ir

from onnxq.backend import Backend, OpRule
from onnxq.backends.onnxruntime import BACKEND as ONNXRUNTIME
from onnxq.backends.onnxruntime.limits import several
from onnxq.checks.findings import Finding
from onnxq.checks.nodes import warn_of_nodes
from onnxq.graph.batch_norm import is_in_training
from onnxq.graph.domains import MICROSOFT
from onnxq.graph.passes.explicit_pads import explicit_pads
from onnxq.graph.traverse import full_type
from onnxq.graph.values import constant_array, input_of
from onnxq.options import Options
from onnxq.render.formats import FAKE_QUANTIZE, QDQ
from onnxq.rows import only_an_output

__all__ = ["ABSENT", "BACKEND"]


_CUTS = ("Clip", "Relu")


_WHOLE = 1e-4
"""How far a size times a scale may be from a whole number for rounding in float32."""
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


_MICROSOFT = frozenset(
    {
        "AllClassNMS",
        "Attention",
        "BiasGelu",
        "EmbedLayerNormalization",
        "FastGelu",
        "MatMulInteger16",
        "SkipLayerNormalization",
    }
)
"""Operators of onnxruntime's own that the importer has, beside those named like one of the standard."""


def _lacks(model: ir.Model, options: Options) -> list[Finding]:
    """Operators for which TVM refuses a model, or computes something else."""
    return warn_of_nodes(model, _refused)


def _refused(node: ir.Node) -> tuple[str, str] | None:
    """What TVM makes of an operator that it does not take as it is, and what to do; None for all others."""
    cut = "Cut the model before it or after it"
    if not _is_known(node):
        name = full_type(node)
        return f"TVM's ONNX importer has no {name}: it refuses the whole model, float or quantized", cut
    if node.domain != "":
        return None
    if node.op_type == "TopK" and constant_array(node.inputs[1]) is None:
        return "TVM's ONNX importer refuses a model with a TopK whose k is computed", "Make its k a constant"
    if node.op_type == "MaxPool" and len(node.outputs) > 1 and node.outputs[1].name:
        return "TVM's ONNX importer refuses a model with a MaxPool that gives indices", cut
    if node.op_type == "Attention":
        return "TVM's ONNX importer takes it for onnxruntime's own Attention, and refuses the model", cut
    if is_in_training(node):
        return "TVM gives other running means and variances", "Export the model in inference mode"
    if node.op_type == "ConvTranspose" and "output_shape" in node.attributes:
        return "TVM ignores its output_shape, and gives another size", "Fix the sizes of the inputs"
    if node.op_type == "Resize" and (what := _resized_otherwise(node)) is not None:
        return what, "Export it with sizes that are whole multiples, or cut the model there"
    if node.op_type == "NonMaxSuppression" and node.outputs[0].uses():
        what = "what reads it gets a row for every box of every class in TVM, chosen or not, or cannot be compiled"
        return what, "Cut the model before it, or let it compute an output"
    return None


def _resized_otherwise(node: ir.Node) -> str | None:
    """What TVM makes of a Resize: its scales are the ratios of the sizes, whatever it is given."""
    data, scales = node.inputs[0], constant_array(input_of(node, 2))
    if data is None or data.shape is None:
        return None
    axes = node.attributes.get_ints("axes", ()) or range(len(data.shape))
    sizes = constant_array(input_of(node, 3))
    if node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "align_corners":
        pairs = zip(axes, sizes, strict=True) if sizes is not None else ()
        alone = any(size == 1 != data.shape[axis] for axis, size in pairs)
        return "TVM divides by zero where it aligns the corners of a single element" if alone else None
    if scales is None or not scales.size:
        return None
    for axis, scale in zip(axes, map(float, scales), strict=True):
        size = data.shape[axis]
        ends = scale * size if isinstance(size, int) else scale
        if abs(ends - round(ends)) > _WHOLE:
            known = isinstance(size, int)
            given, other = (f"{scale:g} of {size}", "other") if known else (f"{scale:g} of a free size", "maybe other")
            return f"TVM resizes by the ratio of the sizes, not by the scale that is given ({given}): {other} numbers"
    return None


def _is_known(node: ir.Node) -> bool:
    if node.domain == "":
        return node.op_type not in ABSENT
    if node.domain == MICROSOFT:
        return node.op_type in _MICROSOFT or (onnx.defs.has(node.op_type) and node.op_type not in ABSENT)
    return node.domain == "onnxq"


def _tensors(node: ir.Node) -> tuple[int, ...]:
    """Positions of operands that are no scalars: TVM makes plain numbers of scalars that follow from shapes."""
    return tuple(k for k, v in enumerate(node.inputs) if v is not None and (v.shape is None or len(v.shape) > 0))


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
    """A row of onnxruntime's table, as it is here: without the fault of its kernel in a Softmax of single elements."""
    given = rule.when if rule.when is not several else None

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


def _rows() -> Iterator[OpRule]:
    """Those of onnxruntime's table; of a ConvTranspose the one for its weights alone, since here it is no Conv."""
    for op, rule in ONNXRUNTIME.rules.items():
        name = op.removesuffix(":stored")
        if f"{op}:stored" not in ONNXRUNTIME.rules:
            yield replace(rule, op=name)


BACKEND = Backend(
    name="tvm",
    title="Apache TVM (Relax)",
    activation=ONNXRUNTIME.activation,
    weight=ONNXRUNTIME.weight,
    weight_zero_points="channel",
    rules={rule.op: _rule(rule) for rule in _rows()},
    formats={"qdq": QDQ, "fake-quantize": FAKE_QUANTIZE},
    wide_domain=MICROSOFT,
    weight_bits=frozenset(range(5, 17)),
    act_bits=frozenset({8, 16}),
    rewrite=explicit_pads,
    lacks=_lacks,
    stores_weights=True,
    runtime_operators=True,
    runtime="tvm",
    artifacts="model.onnx (QDQ)",
    verified="TVM 0.27.0 (LLVM, x86-64): numbers of onnxruntime, codes at ties aside",
)
