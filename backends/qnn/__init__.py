"""Qualcomm's HTP (Hexagon tensor processor) through onnxruntime's QNN execution provider: QDQ, nearly all operators.

Around every operator stand quantizers, on graph inputs and outputs too: the provider makes one HTP operator of a node
and the DequantizeLinear and QuantizeLinear around it, and what lacks one of them it computes wrongly or not at all.
Activations are uint8 with a zero point, or uint16 (``act_bits=16``), weights int8 without one: per channel for
convolutions, Gemm, and a MatMul by a matrix, which the provider makes a FullyConnected, per tensor for a MatMul by more
matrices than one. Biases are int32. Quantizers of 16 bits are those of the domain com.microsoft below opset 21.

With scales per channel, Gemm and MatMul agree with onnxruntime on the emulator for SoCs of HTP 68, 69, 73 and 75, with
data of one to four dimensions: to a step in 8 bits; in 16 to three, before 73 to 25 (12 with one scale). No device was
tried. Qualcomm's own configurations in AIMET have them from HTP 69 on, and for 68 those of convolutions alone;
onnxruntime's QNN configuration leaves MatMul per tensor. For a device that refuses them there is
``--override 'MatMul=per_channel=false'``, or ``--per-tensor`` for all. A weight of more matrices is a MatMul of QNN's:
with scales per channel the emulator takes that too, but devices of HTP 73 with QAIRT 2.35 are reported not to
(onnxruntime-qnn, pull request 587).

Weights of a model to deploy may have a zero point where they have one scale, as onnxruntime's QNN configuration gives
them: the emulator is within a step of onnxruntime in 8 bits, and at 46 to 65 dB beside activations of 16, where weights
without one have 82 to 88.

Limits from that configuration (``quantization/execution_providers/qnn/quant_config.py``): a real range is at least
1e-4 wide; a 16-bit Sigmoid has the scale 1/65536 and the zero point 0, a 16-bit Tanh 1/32768 and 32768. So has a 16-bit
HardSigmoid that of Sigmoid: the HTP computes it on that grid, whatever the model says. A 16-bit LpNormalization has a
grid with a step to spare at both ends of -1 to 1: at the ends of others the emulator wraps around.

The scale of a Softmax of 8 bits is a multiple of 2^-16: the emulator cuts others to one, and rows over many elements
came out 1 to 100 % too large, or 0. In 16 bits its products keep sums in multiples of 256, cut below, and cut a bias
alike: up to 770 steps of data times weight. That shows where these are not fine beside the result's, in channels of a
depthwise convolution with large weights and small data: up to 40 steps in a text detector, 41 dB at its output.
In 8 bits it cuts sums of convolutions to multiples of a power of two, 8 to 16 of which are a step of the result: 1 or 2
codes in a hundred are a step off. A deep net amplifies any such difference: the emulator is at 25 dB from onnxruntime
for EfficientNet-Lite0, whose artifact in onnxruntime with and without its optimizations is at 28 dB from itself.

An operator of the HTP reads and writes one width. One that ``--override NODE=act_bits=16`` (or ``=8``) asks for in
another has converters around it: a pair of quantizers of its width behind that of the operator before it. Named by a
tensor in place of a node, a width is refused by the HTP. Where 8 bits leave less than 12 dB of what varies in an
output, all operators have 16 that can, if 3 dB are gained so: Magika's net has 1 dB with 8 and 56 with 16, 57 on the
emulator. Not just those that hurt: with 16 bits for half of its operators, 39 dB in simulation, the emulator was at
0 dB from onnxruntime, though each of them alone is at 65 dB or more.

Formats: ``qdq``; ``context`` adds the graph compiled for the HTP, ``<model>_ctx.onnx`` with a ``.bin`` beside it;
``dlc`` adds QAIRT's container ``<model>.dlc``. onnxruntime-qnn writes those two and must be installed (see
:mod:`onnxq.runtimes.qnn`); they hold the sizes of the model's inputs, which must be fixed. They are compiled for the
provider's default architecture; for another, call the runtime with its options ``context`` or ``dlc``, ``arch`` and
``soc``.

Operators that stay float between integer ones the provider computes in half precision. Off a device it does so only
where its option ``soc_model`` names a chip that has it (43, the Snapdragon 8 Gen 2, say): without, one of them makes it
refuse the whole model, with "Failed to finalize QNN graph". The summary of a result names them. LSTM, GRU and STFT are
such, of any size, in a float model too: on the emulator HTP 69 and 73 compute them (an LSTM with 30 dB on 73, 60 on 69,
an STFT with 69 on both), and 68 refuses them, though the provider claims them. What only moves numbers from an input of
the model or from one of them to one of them (the Transpose of a net whose batch comes first) stays float with them: in
8 bits power spectra were lost in front of an LSTM for nothing (a speaker encoder 0.5 dB; now 32 as simulated, 15 on the
emulator).

What the HTP computes wrongly in some forms is written otherwise, or stays float: :mod:`onnxq.backends.qnn.rewrites`.
Wrong as well, and not told apart: mean pools that leave their padding out of the mean, where a side of the window is
odd (right in all trials with a stride of 1 and half a window of padding, and 3 by 3 with a stride of 2), a Softmax of
six dimensions over one element, a Pad below 0 behind a Softmax, an LpPool side by side with padding in front. A Cast
to integers and one back leave fractions: ``onnxq check`` warns of them. One ConvTranspose with groups and
output_padding ended the emulator. A Concat behind a shuffle of channels that no convolution feeds is wrong without a
word, 4 dB, where the shuffle's Transpose has five dimensions: it is written with four. Wrong too is a Pad of channels
behind a pool, a Resize, an LRN or a DepthToSpace that gives numbers below 0: a Concat takes its place. One of samples
with a Relu behind it, and one of channels and rows behind a pool, are left wrong.

In 16 bits, what a whole graph computes may be far from what its operators compute one by one: where the HTP makes one
operator of two, or computes a picture in strips. ``verify`` on the data shows it, ``verify --layers`` does not. Two
cases are known. x * Sigmoid(x) is kept two operators by an Abs between them: :mod:`onnxq.backends.qnn.unfused`. A
Softplus, at its best of 40 to 50 dB, may have 1 to 15 behind a convolution, where nothing else reads its input; in
Mish it is right. A form that the HTP computes rightly is a LogSoftmax of twice the size: it is warned of instead.

On onnxruntime's CPU provider the model is to run without graph optimizations, as onnxq simulates it. With them a
Softmax between quantizers becomes a QLinearSoftmax, which gives 0 where its step is finer than 1/148, divided by the
length of a row: this target's scales, made for the results that there are, may be.

Of five dimensions, those of a video or a scan, the HTP has fewer operators, and of six none but Reshape and some
Transposes. Functions of each element, a MatMul by one matrix, and normalizations and LogSoftmax along the last axis are
written with four. It has no MaxPool, GlobalMaxPool, InstanceNormalization, ArgMax or TopK of five, nor ConvTranspose,
MaxPool or AveragePool with dilations; ``onnxq check`` names what it lacks. A Gemm that adds a matrix, not a row, is
right in float alone.

Other operators that it has in no type run on the CPU, with what is around them in parts, on a device as well:
``onnxq check`` names them (41; Celu, Softsign, ReduceL1, OneHot and CenterCropPad among them), and forms of others.

Verified on the HTP emulator of onnxruntime-qnn 2.7.0 (x86-64 Linux): each row of the table, in 8 and 16 bits. A
GridSample it has right in 16 bits alone: in floats, which are of half precision there, and in 8 bits it samples beside
the place, in a net of optical flow 36 dB where the simulation has 58. Left out as the emulator rejects them: Erf, Celu,
Selu, Softsign, ThresholdedRelu, ReduceProd, Trilu, ScatterND, RMSNormalization; as it computes them wrongly: CumSum,
ScatterElements, Round of halves, Reciprocal (becomes Div); as it computes them in float: Mish, Einsum, GatherND, TopK,
Sum, ReduceL2, Tan.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx_ir as ir

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.backends.qnn.lacks import (
    ACTIVATION,
    COMPILED,
    FLAT,
    flat,
    lacks,
    refuse_free_sizes,
    samples_pictures,
    undilated,
)
from onnxq.backends.qnn.limits import keep_to_limits
from onnxq.backends.qnn.rewrites import (
    ends_at_its_result,
    gather_is_right,
    mean_is_right,
    product_is_flat,
    resize_is_right,
    rewrite,
)
from onnxq.backends.qnn.unfused import keep_apart
from onnxq.errors import VerificationError
from onnxq.graph.domains import MICROSOFT
from onnxq.graph.values import input_of
from onnxq.options import Options
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE, QDQ, write_rendered
from onnxq.rows import conv_axis, conv_transpose_axis, each, gemm_axis, matmul_axis, plain_gemm, plain_max_pool
from onnxq.runtimes.child import examine, require
from onnxq.runtimes.qnn import RUNTIME
from onnxq.spec import QuantSpec

__all__ = ["BACKEND", "RULES"]

_GAMMA = QuantSpec(signed=False, symmetric=False)
"""Scales of normalizations: beside uint8 and uint16 activations the HTP takes no int8."""
_EIGHT = frozenset({8})
_SIXTEEN = frozenset({16})
RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, bias=2),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis, bias=2),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, bias=2, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis, weight_bits=_EIGHT),
    OpRule("MatMul:product", Kind.PRODUCT, data=(0, 1)),
    OpRule("LayerNormalization", Kind.ELEMENTWISE, weights=(1,), bias=2, weight=_GAMMA, weight_bits=_EIGHT),
    OpRule("InstanceNormalization", Kind.ELEMENTWISE, weights=(1,), bias=2, weight=_GAMMA, weight_bits=_EIGHT),
    *each(Kind.ELEMENTWISE, "Relu Clip LeakyRelu Elu HardSigmoid HardSwish Gelu Softplus Sigmoid Tanh"),
    OpRule("Softmax", Kind.ELEMENTWISE, own_scale=True),  # the HTP writes it with the zero point 0, whatever is asked
    *each(Kind.ELEMENTWISE, "LogSoftmax LpNormalization Abs Neg Exp Sqrt Sin Cos Asin Atan"),
    *each(Kind.ELEMENTWISE, "Floor Ceil Sign"),
    OpRule("AveragePool", Kind.ELEMENTWISE, same_scale=ends_at_its_result),
    *each(Kind.ELEMENTWISE, "GlobalAveragePool GlobalMaxPool ReduceMean ReduceSum ReduceMax ReduceMin"),
    OpRule("Pad", Kind.ELEMENTWISE, same_scale=True),  # the HTP copies codes, also where the border goes beyond them
    *each(Kind.ELEMENTWISE, "Add Sub Mul Div Pow Max Min", data=(0, 1)),
    *each(Kind.ELEMENTWISE, "Concat", data=None),
    *each(Kind.ELEMENTWISE, "Where", data=(1, 2)),
    OpRule("GridSample", Kind.ELEMENTWISE, data=(0, 1), act_bits=_SIXTEEN),
    OpRule("PRelu", Kind.ELEMENTWISE, data=(0, 1), act_bits=_EIGHT),
    OpRule("LRN", Kind.ELEMENTWISE, act_bits=_EIGHT),
    OpRule("Log", Kind.ELEMENTWISE, act_bits=_EIGHT),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    *each(Kind.MOVEMENT, "Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Expand Tile"),
    *each(Kind.MOVEMENT, "Gather GatherElements DepthToSpace SpaceToDepth Identity"),
    OpRule("Resize", Kind.ELEMENTWISE, same_scale=True),  # where cubic, its output goes beyond its input
)
"""What the HTP computes in integers."""


def _average_pool(node: ir.Node) -> str | None:
    """An AveragePool without dilations, whose windows end where its input does, padding included."""
    return undilated(node) or mean_is_right(node)


def _max_pool(node: ir.Node) -> str | None:
    """A MaxPool without dilations, of four dimensions at most, whose indices are not used."""
    return plain_max_pool(node) or flat(node) or undilated(node)


def _gemm(node: ir.Node) -> str | None:
    """A Gemm that is x @ w + b, b one row."""
    bias = input_of(node, 2)
    rows = bias is not None and bias.shape is not None and len(bias.shape) > 1 and bias.shape[0] != 1
    return plain_gemm(node) or ("the HTP adds no matrix to a product in integers" if rows else None)


_RIGHT = {
    "AveragePool": _average_pool,
    "ConvTranspose": undilated,
    "Gather": gather_is_right,
    "GatherElements": gather_is_right,
    "Gemm": _gemm,
    "GridSample": samples_pictures,
    "MaxPool": _max_pool,
    "MatMul:product": product_is_flat,
    "Resize": resize_is_right,
}
"""Rows of which the HTP computes some nodes wrongly, or not at all: which it does not."""


def _refuse(options: Options) -> None:
    """Formats that only onnxruntime-qnn writes, where it is missing.

    Raises:
        VerificationError: it is, and one of them is asked for.
    """
    if options.format in COMPILED:
        require(RUNTIME)


def _compile(quantized: Quantized, path: Path, *, dlc: bool) -> list[Path]:
    """The QDQ model, and what onnxruntime-qnn makes of it; nothing is left where that fails."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as name:
        folder = Path(name)
        model = folder / path.name
        write_rendered(quantized, model)
        if dlc:
            made = [Path(file) for file in examine(RUNTIME, model, dlc=name, arch="", soc="").files]
        else:
            context = str(folder / f"{path.stem}_ctx.onnx")
            made = [Path(file) for file in examine(RUNTIME, model, context=context, arch="", soc="").files]
        if len(made) != (1 if dlc else 2):
            what = f"onnxruntime-qnn wrote {len(made)} files; it makes one graph of a model whose sizes are all fixed"
            raise VerificationError(what, where=f"'{path}'")
        names = [path.with_suffix(".dlc").name] if dlc else [file.name for file in made]
        return write_rendered(quantized, path) + [f.replace(path.parent / n) for f, n in zip(made, names, strict=True)]


def _compiled(write: Callable[[Quantized, Path], list[Path]], *endings: str) -> Format:
    """A format of which the HTP runs files of these endings."""
    refuses = refuse_free_sizes
    return Format(Quantized.qdq, write, integers=True, beside=endings, compiled=endings, refuses=refuses)


BACKEND = Backend(
    name="qnn",
    title="Qualcomm HTP, onnxruntime's QNN execution provider",
    activation=ACTIVATION,
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    weight_zero_points="tensor",
    rules={rule.op: replace(rule, when=_RIGHT.get(rule.op, flat if rule.op in FLAT else rule.when)) for rule in RULES},
    formats={
        "qdq": QDQ,
        "fake-quantize": FAKE_QUANTIZE,
        "context": _compiled(partial(_compile, dlc=False), "_ctx.onnx", "_ctx_qnn.bin"),
        "dlc": _compiled(partial(_compile, dlc=True), ".dlc"),
    },
    unsigned=True,
    complete_units=True,
    whole=frozenset(),
    mixes=False,
    in_float=frozenset({"GRU", "LSTM"}),
    min_opset=20,
    wide_domain=MICROSOFT,
    weight_bits=frozenset({4, 8}),
    act_bits=frozenset({8, 16}),
    refuses=_refuse,
    rewrite=rewrite,
    adjust=keep_to_limits,
    finish=keep_apart,
    lacks=lacks,
    float_needs="the HTP computes that in half precision; off a device onnxruntime-qnn refuses the model unless its "
    "option soc_model names the chip (43, say)",
    runtime_operators=True,
    runtime="qnn",
    artifacts="model.onnx (QDQ), with format context also model_ctx.onnx and its .bin, with format dlc model.dlc",
    verified="onnxruntime-qnn 2.7.0 on x86-64, HTP emulator: placement, numbers, context binary, DLC",
    unverified="a device",
)
