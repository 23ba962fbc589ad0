"""The contract that every model and every run must satisfy, checked from outside.

What is checked here is computed from the result itself with onnx, onnxruntime and numpy, not asked of onnxq:

* the result passes the checker in full and runs in onnxruntime with all graph optimizations and with none, finite
  and agreeing;
* graph inputs and outputs keep names, order, types and shapes, and the model keeps its metadata; constants are taken
  off the inputs where a file lists all of them there;
* the model that was given, in memory or as a file, is unchanged;
* every scale is finite and positive;
* every node with float arithmetic in the result is in the plan with its reason.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from onnxq import Options, Quantized, quantize
from onnxq.ort.overflow import products_overflow
from tests.running import Feeds, infer

__all__ = ["ALL", "Outcome", "assert_contract", "infer", "quantize_checked", "sqnr"]

Array = NDArray[Any]

ALL = Options(placement="all")
"""Quantizes whatever can be quantized, however little a tiny model gains from it."""
GIVEN = 10.0 if products_overflow() else 25.0
"""dB between the results with and without graph optimizations where weights were quantized before, or by onnxruntime
itself as it does between quantizers: some processors cut off sums of products with them."""

_PLACING = ("Concat", "Mul", "Reshape", "Shape", "Slice", "Transpose")
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear", "FakeQuantize")
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True)
class Outcome:
    """A result that satisfies the contract.

    Attributes:
        quantized: what onnxq gave.
        proto: its rendering.
        sqnr: float output → dB against the float model, over all samples given.
        reasons: node that stayed float → its reason.
    """

    quantized: Quantized
    proto: onnx.ModelProto
    sqnr: dict[str, float]

    @property
    def reasons(self) -> dict[str, str]:
        return {kept.node: kept.reason for kept in self.quantized.plan.kept_float}

    @property
    def ops(self) -> list[str]:
        """Operator types of the result, subgraphs included, in order."""
        return [node.op_type for graph in _graphs(self.proto.graph) for node in graph.node]

    @property
    def notes(self) -> str:
        """Everything that onnxq said beside the reasons."""
        verification = self.quantized.verification
        return "\n".join((*self.quantized.notes, *(verification.warnings if verification else ())))

    @property
    def worst(self) -> float:
        """The lowest SQNR of a float output."""
        return min(self.sqnr.values())


def quantize_checked(
    source: onnx.ModelProto | Path,
    feeds: Sequence[Feeds],
    options: Options = ALL,
    *,
    least: float | None = 20.0,
    agree: float = 25.0,
    output: Path | None = None,
) -> Outcome:
    """Quantize and hold the result to the contract.

    Args:
        source: the float model or its file.
        feeds: calibration data, also what the result is judged on.
        options: how to quantize; at least one node must end up in integers where ``least`` is given.
        least: dB that every float output must reach; ``None`` where nothing needs to be quantized or kept.
        agree: dB between the results with and without graph optimizations.
        output: where to write the result; else only its rendering is looked at.
    """
    before = _snapshot(source, output)
    reference = source if isinstance(source, onnx.ModelProto) else onnx.load(source)
    quantized = quantize(source, feeds, options=options, output=output)
    assert _snapshot(source, output) == before, "the model given was changed"
    result = onnx.load(output) if output is not None else ir.to_proto(quantized.rendered())
    scores = assert_contract(reference, result, quantized, feeds, agree=agree)
    if least is not None:
        assert quantized.plan.quantized or quantized.plan.stored, f"nothing was quantized: {quantized.plan.kept_float}"
        for name, score in scores.items():
            assert score >= least, f"output {name!r}: {score:.1f} dB, expected at least {least:g}"
    return Outcome(quantized, result, scores)


def assert_contract(
    source: onnx.ModelProto,
    result: onnx.ModelProto,
    quantized: Quantized,
    feeds: Sequence[Feeds],
    *,
    agree: float = 25.0,
    library: Path | None = None,
    optimize: bool = True,
) -> dict[str, float]:
    """Hold a result to the contract.

    Args:
        source: the float model.
        result: what was made of it.
        quantized: what onnxq says of it.
        feeds: samples to run.
        agree: dB between the results with and without graph optimizations.
        library: custom operators of the model.
        optimize: run it with graph optimizations too; not where onnxruntime only shows what another runtime computes.

    Returns:
        SQNR in dB of every float output against the float model, all graph optimizations on if they are used.
    """
    onnx.checker.check_model(result, full_check=True)
    _assert_same_interface(source, result, quantized)
    _assert_scales(result)
    written = quantized.format or next(iter(quantized.backend.formats))
    _assert_reasons(result, quantized, dequantized=optimize and written in ("qdq", "fake-quantize"))
    expected = infer(source, feeds, optimize=False, library=library)
    optimized = infer(result, feeds, optimize=optimize, library=library)
    plain = infer(result, feeds, optimize=False, library=library)
    scores: dict[str, float] = {}
    for name, reference in expected.items():
        for want, got, other in zip(reference, optimized[name], plain[name], strict=True):
            assert got.ndim == other.ndim == want.ndim, name
            assert got.dtype == other.dtype == want.dtype, name
            if want.dtype.kind == "f":
                assert got.shape == other.shape == want.shape, name
                finite = np.isfinite(want)
                assert np.isfinite(got[finite]).all(), f"output {name!r} is not finite where the float model's is"
                assert np.isfinite(other[finite]).all(), f"output {name!r} is not finite without graph optimizations"
        if all(array.dtype.kind == "f" for array in reference):
            scores[name] = sqnr(reference, optimized[name])
            between = sqnr(plain[name], optimized[name])
            assert between >= agree, f"output {name!r}: optimizations on and off differ, {between:.1f} dB"
    return scores


def sqnr(reference: Sequence[Array], got: Sequence[Array]) -> float:
    """Signal over noise in dB, over all samples, where the reference is finite; infinite for equal numbers."""
    signal = noise = 0.0
    for want, have in zip(reference, got, strict=True):
        finite = np.isfinite(want)
        exact = want[finite].astype(np.float64)
        signal += float(np.square(exact).sum())
        noise += float(np.square(exact - have[finite].astype(np.float64)).sum())
    if noise == 0:
        return float("inf")
    return 10 * float(np.log10(max(signal, 1e-300)) - np.log10(noise))


def _snapshot(source: onnx.ModelProto | Path, output: Path | None) -> dict[str, str]:
    """Digests of the model given: of its protobuf, or of all files beside it except the one to be written."""
    if isinstance(source, onnx.ModelProto):
        return {"": hashlib.sha256(source.SerializeToString(deterministic=True)).hexdigest()}
    files = sorted(path for path in source.parent.iterdir() if path.is_file() and path != output)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _assert_same_interface(source: onnx.ModelProto, result: onnx.ModelProto, quantized: Quantized) -> None:
    """Names, types and shapes are those of the source; a free size may be a number where a note says so."""
    fixed = any("that convolutions fix" in note for note in quantized.notes)
    constants = {t.name for t in source.graph.initializer}
    all_listed = len(constants) > 1 and constants <= {v.name for v in source.graph.input}
    dropped = constants if source.ir_version < 4 or all_listed else set[str]()

    def types(values: Any) -> list[tuple[str, bytes]]:
        return [(v.name, v.type.SerializeToString(deterministic=True)) for v in values if v.name not in dropped]

    for now, before in ((result.graph.input, source.graph.input), (result.graph.output, source.graph.output)):
        if fixed:
            now = [_with_free_sizes(value, named) for value, named in zip(now, before, strict=True)]
        assert types(now) == types(before)
    kept = {p.key: p.value for p in result.metadata_props}
    assert {p.key: p.value for p in source.metadata_props}.items() <= kept.items()
    for field in ("doc_string", "domain", "model_version"):
        assert getattr(result, field) == getattr(source, field), field


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _assert_scales(result: onnx.ModelProto) -> None:
    constants = {t.name: t for graph in _graphs(result.graph) for t in graph.initializer}
    for graph in _graphs(result.graph):
        for node in graph.node:
            if node.op_type not in _QUANTIZERS or node.input[1] not in constants:
                continue  # a scale that is computed is the float model's own
            scale = numpy_helper.to_array(constants[node.input[1]]).astype(np.float64)
            assert scale.size, node.name
            assert np.isfinite(scale).all(), node.name
            assert (scale > 0).all(), node.name


def _with_free_sizes(value: onnx.ValueInfoProto, named: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """A declaration whose numbers are names again where another has them."""
    made = onnx.ValueInfoProto()
    made.CopyFrom(value)
    for dim, other in zip(made.type.tensor_type.shape.dim, named.type.tensor_type.shape.dim, strict=False):
        if dim.HasField("dim_value") and other.HasField("dim_param"):
            dim.CopyFrom(other)
    return made


def _assert_reasons(result: onnx.ModelProto, quantized: Quantized, *, dequantized: bool) -> None:
    """Nodes of the result that compute in float are listed; those said to be quantized read ``dequantized`` tensors."""
    plan = quantized.plan
    reasons = {kept.node: kept.reason for kept in plan.kept_float}
    assert all(reason.strip() for reason in reasons.values())
    assert not reasons.keys() & {*plan.quantized, *plan.absorbed}
    types = _types(result)
    made_by = {name: node.op_type for graph in _graphs(result.graph) for node in graph.node for name in node.output}
    seen = set()
    placed = [n for n, op in plan.quantized.items() if op in ("ConvTranspose", "DepthToSpace", "Resize")]
    stored = [tensor for graph in _graphs(result.graph) for tensor in graph.initializer]
    constants = {tensor.name for tensor in stored}
    zeros = {tensor.name for tensor in stored if tensor.data_type == TensorProto.INT64 and not any(_numbers(tensor))}
    for graph in _graphs(result.graph):
        for node in graph.node:
            seen.add(node.name)
            assert node.name, f"a {node.op_type} has no name"
            if node.op_type in ("Cast", "Mul") and {*node.input} <= constants:
                constants |= {*node.output}  # a stored weight, unpacked once at load
                continue
            if node.op_type in (*_QUANTIZERS, "NNIEQuantize", "Constant"):
                continue
            if node.op_type == "Reshape" and node.input[1] in zeros:
                continue  # to the shape that it has: it computes nothing
            if node.op_type == "Sum" and len(node.input) == 1:
                continue  # nor does this
            if node.op_type in _PLACING and any(node.name.startswith(f"{n}_{node.op_type}") for n in placed):
                continue  # puts side by side what that one makes, on its grid
            known = node.name in plan.quantized or node.name in plan.absorbed
            part_of = re.sub(r"_[A-Za-z0-9]+(_\d+)?$", "", node.name)
            known = known or part_of in reasons  # a part of that node, written as several
            if dequantized and node.name in plan.quantized:
                assert any(made_by.get(name) in ("DequantizeLinear", "FakeQuantize") for name in node.input), node.name
            inputs = [types.get(name, TensorProto.FLOAT) for name in node.input if name]
            outputs = [types.get(name, TensorProto.FLOAT) for name in node.output if name]
            if set(inputs) & set(_FLOATS) and set(outputs) & set(_FLOATS):
                assert known or node.name in reasons, f"node {node.name!r} ({node.op_type}) stayed float, unsaid"
    assert plan.quantized.keys() | reasons.keys() <= seen, "the plan speaks of nodes that are not there"


def _numbers(tensor: TensorProto) -> list[int]:
    return [int(number) for number in numpy_helper.to_array(tensor).reshape(-1)]


def _types(result: onnx.ModelProto) -> dict[str, int]:
    """Element types of all tensors that shape inference knows; initializers included."""
    inferred = onnx.shape_inference.infer_shapes(result)
    found: dict[str, int] = {}
    for graph in _graphs(inferred.graph):
        found.update({t.name: t.data_type for t in graph.initializer})
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
                found[value.name] = value.type.tensor_type.elem_type
            elif not value.type.HasField("tensor_type") and value.type.WhichOneof("value"):
                found[value.name] = TensorProto.UNDEFINED
    return found
