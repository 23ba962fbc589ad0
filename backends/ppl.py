"""PPL W8A16: uint16 activations, uint8 weights, both asymmetric per tensor; a float model with a JSON table.

The schema is that which MQBench writes for ``BackendType.PPLW8A16``: ``{"ppl": {tensor: {"step", "zero_point", "min",
"max", "bit", "type": "biased"}}}`` with ``x = (q - zero_point) * step``, q from 0 to ``2**bit - 1``; numbers are
lists where a weight has a scale for each channel. Weights in the model are clipped to their range. Quantized are
inputs and outputs of the operators below, more than MQBench's, which leaves Concat, Sigmoid and data movement out;
Relu and Clip are computed together with the operator in front of them.

Known from MQBench's source and output only: no runtime that reads the table was at hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.errors import BackendError
from onnxq.graph.files.load_named import load_named
from onnxq.graph.files.save import save
from onnxq.graph.shapes import forget_shapes
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.render.sidecar import put_together, take_apart, write_json
from onnxq.render.tables import granularity, qparams_of, read_json, unsigned, weights
from onnxq.rows import conv_axis, conv_transpose_axis, each, gemm_axis, matmul_axis, plain_gemm, plain_max_pool
from onnxq.spec import PerTensor, QuantSpec

__all__ = ["BACKEND"]

_KEYS = ("step", "zero_point", "min", "max", "bit", "type")


def _number(array: Any) -> Any:
    """A number, or a list of them, as JSON has it; float32 is written so that it is read back bit for bit."""
    return np.asarray(array).tolist()


def _entry(numbers: QParams) -> dict[str, Any]:
    qp = unsigned(numbers)
    values = (qp.scale, qp.zero_point, qp.lo, qp.hi, qp.spec.bits)
    return {**{key: _number(value) for key, value in zip(_KEYS, values, strict=False)}, "type": "biased"}


def _write(quantized: Quantized, path: Path) -> list[Path]:
    parts = take_apart(quantized, "clipped")
    table = {name: _entry(qp) for name, qp in {**parts.activations, **parts.weights}.items()}
    forget_shapes(parts.model)
    return [*save(parts.model, path), write_json(path.with_suffix(".json"), {"ppl": table})]


def _read(path: Path) -> Quantized:
    model = load_named(path)
    table = path.with_suffix(".json")
    constants = weights(model, BACKEND)
    activations: dict[str, QParams] = {}
    stored: dict[str, QParams] = {}
    for name, entry in read_json(table, ["ppl"])["ppl"].items():
        if not isinstance(entry, dict) or set(entry) != set(_KEYS) or entry["type"] != "biased":
            raise BackendError(f"the entry of {name!r} is not of the form {', '.join(_KEYS)}", where=f"'{table}'")
        many = isinstance(entry["step"], list)
        axis = granularity(*constants[name], BACKEND, per_channel=many) if name in constants else PerTensor()
        spec = QuantSpec(entry["bit"], signed=False, symmetric=False, granularity=axis)
        qp = qparams_of(name, table, spec, entry["step"], entry["zero_point"])
        (stored if name in model.graph.initializers else activations)[name] = qp
    return put_together(model, BACKEND, activations, stored)


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), weight_axis=conv_transpose_axis),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis),
    *each(Kind.ELEMENTWISE, "Add Mul", data=(0, 1)),
    *each(Kind.ELEMENTWISE, "PRelu LeakyRelu AveragePool GlobalAveragePool ReduceMean Resize"),
    OpRule("Concat", Kind.ELEMENTWISE, data=None),
    OpRule("Sigmoid", Kind.ELEMENTWISE, fixed=(0.0, 1.0)),
    OpRule("MaxPool", Kind.MOVEMENT, when=plain_max_pool),
    *each(Kind.MOVEMENT, "Flatten Reshape Slice Split Transpose"),
)

BACKEND = Backend(
    name="ppl",
    title="PPL W8A16, a JSON table",
    activation=QuantSpec(16, signed=False, symmetric=False),
    weight=QuantSpec(signed=False, symmetric=False),
    rules={rule.op: rule for rule in _RULES},
    formats={
        "ppl": Format(Quantized.fake_quantize, _write, _read, simulated=True, beside=(".json",)),
        "fake-quantize": FAKE_QUANTIZE,
    },
    bias="float",
    per_channel=False,
    drops_absorbed=False,
    artifacts="model.onnx (float), model.json",
    unverified="no runtime at hand; schema by MQBench's output",
)
