"""SNPE, QNN and QAIRT converters with ``--quantization_overrides``: a float ONNX model and an encodings file.

``<model>.onnx`` holds the weights as their quantized values, ``<model>.encodings`` beside it scale and offset of every
graph input, operator output and constant that is quantized, keyed by its name in that model. Activations are unsigned,
of 8 or 16 bits, weights int8 without a zero point, per channel for convolutions, Gemm, and a MatMul by a matrix, as in
Qualcomm's AIMET for the HTP from version 69 on; for an older one, or a processor that has them for convolutions alone,
there is ``--override 'MatMul=per_channel=false'``, and the same for Gemm. Relu and Clip are computed with the operator
in front of them: what is between has no encoding. So have the insides of GELU and of normalizations that are written as
chains, which converters recognise. A Concat of which 8 bits would lose a branch (scores beside boxes) has 16, as what
it joins: a tensor has one width for all that read it, and converters put a Convert in front of readers of another.
Where 8 bits leave less than 12 dB of what varies in an output, all activations have 16, if 3 dB are gained so.

What stands inside of an If, a Loop or a Scan stays float: aimet-onnx's parser refuses a file that names a tensor there.
It also ends with an IndexError at a ReduceMin that has no second input, as below opset 18.

Formats are the versions of the file:

* ``encodings-1.0.0``, the default: what AIMET writes unless told otherwise; for ``qairt-converter`` and QNN converters.
* ``encodings-0.6.1``: the only one that SNPE's own converters take.
* ``encodings-2.0.0``: for ``qairt-converter`` of QAIRT 2.36 and above. It is strict: what has no encoding stays float,
  so that it holds the int32 biases, too; with the other two the converter quantizes biases (``--bias_bitwidth 32``).

``fake-quantize`` is for onnxruntime: the same numbers in a model that runs by itself. No converter reads its functions.

Convert with, for instance, ``qairt-converter -i model.onnx --quantization_overrides model.encodings``, or for SNPE
``snpe-onnx-to-dlc --quantization_overrides``, then ``snpe-dlc-quantize --override_params --bias_bitwidth 32``.

Verified with the encodings parser of aimet-onnx 2.42, Qualcomm's own: it takes all three versions, and the QDQ model it
makes of them agrees with the simulation here. The converters themselves are known from documents only.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from onnxq.backend import Backend, Format, Kind
from onnxq.backends.qnn import RULES
from onnxq.backends.qnn.limits import keep_to_limits
from onnxq.errors import BackendError
from onnxq.graph.files.load_named import load_named
from onnxq.graph.files.save import save
from onnxq.graph.passes.lone_norms import lone_norms
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_constants
from onnxq.planning.table_rows import row
from onnxq.quantized import Quantized
from onnxq.render.encodings import Version, parse, to_document
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.render.sidecar import put_together, take_apart, write_json
from onnxq.rows import each
from onnxq.spec import PerChannel, QuantSpec

__all__ = ["BACKEND"]

_MORE = (
    *each(Kind.ELEMENTWISE, "Celu CumSum Erf Mish ReduceL2 ReduceProd Reciprocal Round Selu Softsign Tan"),
    *each(Kind.ELEMENTWISE, "ThresholdedRelu LRN Log"),
    *each(Kind.ELEMENTWISE, "GridSample PRelu", data=(0, 1)),
    *each(Kind.ELEMENTWISE, "ScatterElements ScatterND", data=(0, 2)),
    *each(Kind.ELEMENTWISE, "Einsum Sum", data=None),
    *each(Kind.MOVEMENT, "GatherND TopK Trilu"),
)
"""What the HTP has in float, wrongly or not at all, and other processors that the converters serve may have."""


def _write(version: Version, quantized: Quantized, path: Path) -> list[Path]:
    parts = take_apart(quantized, "grid")
    channels = any(isinstance(qp.spec.granularity, PerChannel) for qp in parts.weights.values())
    document = to_document(parts, version, writer=quantized.version, per_channel=channels)
    model = parts.model
    forget_shapes(model)
    return [*save(model, path), write_json(path.with_suffix(".encodings"), document)]


def _read(version: Version, path: Path) -> Quantized:
    model = load_named(path)
    constants = all_constants(model)

    def axis(name: str, scales: int) -> int:
        """The channel axis by the operator that reads a constant."""
        for use in constants[name].uses():
            rule = row(BACKEND, use.node)
            if rule is not None and rule.weight_axis is not None and use.idx in rule.weights:
                found = rule.weight_axis(use.node, use.idx)
                if found is not None:
                    return found
        raise ValueError(f"it is not clear which axis of {name!r} the {scales} scales are for")

    tables = parse(path.with_suffix(".encodings"), set(constants), axis)
    if tables.version != version:
        raise BackendError(f"the encodings are of version {tables.version}, not {version}", where=f"'{path}'")
    return put_together(model, BACKEND, tables.activations, tables.weights, tables.biases)


def _format(version: Version) -> Format:
    write, read = partial(_write, version), partial(_read, version)
    return Format(Quantized.fake_quantize, write, read, simulated=True, beside=(".encodings",))


_VERSIONS: tuple[Version, ...] = ("1.0.0", "0.6.1", "2.0.0")

BACKEND = Backend(
    name="snpe",
    title="SNPE, QNN and QAIRT converters: quantization overrides",
    activation=QuantSpec(signed=False, symmetric=False),
    weight=QuantSpec(signed=True, symmetric=True, narrow_range=True),
    weight_zero_points="tensor",
    rules={rule.op: rule for rule in (*RULES, *_MORE)},
    formats={**{f"encodings-{version}": _format(version) for version in _VERSIONS}, "fake-quantize": FAKE_QUANTIZE},
    unsigned=True,
    whole=frozenset({"gelu", "layernorm", "rmsnorm"}),
    mixes=False,
    bodies=False,
    weight_bits=frozenset({4, 8, 16}),
    act_bits=frozenset({8, 16}),
    rewrite=lone_norms,
    adjust=keep_to_limits,
    runtime="snpe",
    artifacts="model.onnx (float) and model.encodings",
    next_step="qairt-converter -i MODEL.onnx --quantization_overrides MODEL.encodings",
    verified="encodings parser of aimet-onnx 2.42, all three versions",
    unverified="qairt-converter, SNPE's and QNN's converters",
)
