"""Dynamic quantization as ``--algorithm dynamic``: int8 weights, and ranges of activations taken at each run.

The work is done by ``onnxruntime.quantization.quantize_dynamic``. Around it come what every result of onnxq has: the
input stays untouched, names stay, what stays float is said with its reason, the result is checked and, where there is
data, measured, and nothing half-written is left. For transformers on a CPU, whose activations vary too much from one
input to the next for fixed ranges.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxq.calibration.data import open_data
from onnxq.calibration.statistics import KeptSample
from onnxq.errors import ModelError, OutputError, VerificationError
from onnxq.final_check import final_check
from onnxq.graph.load import load
from onnxq.graph.region import ELEMENTWISE
from onnxq.graph.save import MAX_PROTO_BYTES, save, serialized_size
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.split_gemm import split_gemm
from onnxq.graph.traverse import all_nodes, subgraphs
from onnxq.graph.values import is_constant
from onnxq.options import ImageOptions, Options
from onnxq.plan import Kept
from onnxq.prepare import Prepared
from onnxq.progress import Reporter, Silent
from onnxq.rewritten import Rewritten, refuse_unused
from onnxq.selection import Selection
from onnxq.session import Session, inputs_of

__all__ = ["NAME", "PARAMETERS", "STAGE", "TITLE", "require", "rewrite"]

NAME = "dynamic"
TITLE = "int8 weights, ranges of activations taken at each run: for transformers on a CPU; needs no data"
STAGE = "model"
PARAMETERS: Mapping[str, object] = {"per_channel": True, "reduce_range": False}

_USED = ("include", "exclude", "samples", "opset", "simplify", "providers", "custom_op_library")
_HINTS = {"per_channel": "Write dynamic:per_channel={value}"}
_OPS = ("MatMul", "Gemm", "LSTM", "Attention", "EmbedLayerNormalization")
"""What is faster so. Conv can be asked for by ``include``; its integer kernel is slower than the float one."""
_SAMPLES = 8
_PREPROCESSED = ("onnx.infer", "onnxruntime.quant")
"""Metadata by which onnxruntime knows a model that is normalized already."""
_LEAST = 2


def require(options: Options) -> None:
    """Refuse options that have no effect here.

    Raises:
        OptionError: one was given.
    """
    refuse_unused(options, NAME, _USED, _HINTS)


def rewrite(
    model: str | os.PathLike[str],
    data: Any = None,
    *,
    output: str | os.PathLike[str],
    options: Options | None = None,
    image: ImageOptions | None = None,
    reporter: Reporter | None = None,
    per_channel: bool = True,
    reduce_range: bool = False,
) -> Rewritten:
    """Quantize a model dynamically.

    Args:
        model: the float model; left unchanged.
        data: samples that the result is judged on, see :func:`onnxq.calibration.data.open_data`; None: it is only
            loaded, not run.
        output: the file to write.
        options: ``include``, ``exclude``, ``samples``, ``opset``, ``simplify``, ``providers`` and
            ``custom_op_library`` count.
        image: how pictures are read.
        reporter: shows progress.
        per_channel: weights have a scale for each output.
        reduce_range: 7 bits, which processors without VNNI cannot overflow.

    Returns:
        What was done, what stays float and why, and what running the result showed.

    Raises:
        OptionError: an option has no effect here, or a pattern matches nothing.
        ModelError: the model is unreadable, or onnxruntime's quantizer does not manage it.
        OutputError: the result cannot be written.
        VerificationError: the result cannot be loaded or run, or has other inputs or outputs.
    """
    options, reporter = Options.of(options), reporter or Silent()
    require(options)
    _require_target(output, model)
    prepared = Prepared(model, options)
    float_model = prepared.at_opset(prepared.model.opset_imports.get("", 14), options.opset)
    kept = _samples(prepared.model, data, options, image, reporter)
    chosen, refused = _choose(float_model, options)
    with reporter.phase("quantize", total=1, unit="models") as advance:
        result = _quantize(float_model, chosen, per_channel=per_channel, reduce_range=reduce_range)
        advance(1)
    _restore(result, float_model)
    done = _quantized(result, chosen)
    for name, op in chosen.items():
        if name not in done:
            refused.append(Kept(name, op, "onnxruntime's quantize_dynamic leaves it float"))
    forget_shapes(result)
    checked = final_check(
        prepared.model,
        result,
        kept,
        float_bytes=prepared.bytes,
        providers=options.providers,
        custom_op_library=options.custom_op_library,
    )
    files = save(result, output)
    notes = [] if done else ["nothing is quantized: the model has no constant weights that can be"]
    title = f"dynamic: int8 weights per {'channel' if per_channel else 'tensor'}{', 7 bits' if reduce_range else ''}"
    return Rewritten(title, files, done, refused, notes, prepared.notes, checked)


def _require_target(output: str | os.PathLike[str], model: Any) -> None:
    path = Path(output)
    if not path.absolute().parent.is_dir():
        raise OutputError("the folder does not exist", where=str(path.parent), hint="Create it first")
    if isinstance(model, (str, os.PathLike)) and path.exists() and path.samefile(model):
        raise OutputError("this file is the model that is read", where=f"'{output}'", hint="Give another name")


def _samples(
    model: ir.Model, data: Any, options: Options, image: ImageOptions | None, reporter: Reporter
) -> list[KeptSample]:
    """At most 8 samples, evenly spaced, with what the float model makes of them."""
    if data is None:
        return []
    feeds = open_data(data, inputs_of(model), image=image, samples=min(options.samples or _SAMPLES, _SAMPLES))
    session = Session(model, providers=options.providers, custom_op_library=options.custom_op_library)
    kept = []
    with reporter.phase("run float", total=feeds.length) as advance:
        for position, feed in enumerate(feeds):
            kept.append(KeptSample(feeds.index_of(position), feed, session.run(feed)))
            advance(position + 1)
    return kept


def _choose(model: ir.Model, options: Options) -> tuple[dict[str, str], list[Kept]]:
    """Node name → operator of what is to be quantized, and what is not, with the reason."""
    nodes = list(all_nodes(model))
    selection = Selection(model, nodes, Options(exclude=options.exclude, include=options.include))
    chosen: dict[str, str] = {}
    refused: list[Kept] = []
    for node in nodes:
        weights = any(_is_weight(value) for value in node.inputs)
        product = node.op_type in ("MatMul", "Gemm")
        if node.op_type in ELEMENTWISE or not (weights or product):
            continue
        reason = _refusal(node, selection)
        if reason is None:
            chosen[node.name or ""] = node.op_type
        else:
            refused.append(Kept(node.name or "", node.op_type, reason))
    return chosen, refused


def _refusal(node: ir.Node, selection: Selection) -> str | None:
    if node in selection.excluded:
        return f"excluded by {selection.excluded[node]!r}"
    if selection.included is not None and node not in selection.included:
        return "not among those to be quantized"
    if node.op_type == "Conv" and not selection.forced(node):
        return "slower with ranges taken at run time than in float (--include quantizes it all the same)"
    if node.op_type not in (*_OPS, "Conv"):
        return "onnxruntime has no dynamically quantized kernel for it"
    if node.op_type in ("MatMul", "Gemm") and not is_constant(node.inputs[1]):
        return "it has no constant weight on the right"
    factors = (node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0))
    if node.op_type == "Gemm" and (factors != (1.0, 1.0) or node.attributes.get_int("transA", 0) == 1):
        return "its alpha, beta or transA is set"
    return None


def _is_weight(value: ir.Value | None) -> bool:
    if value is None or value.const_value is None or value.const_value.dtype != ir.DataType.FLOAT:
        return False
    return sum(n > 1 for n in value.const_value.shape.numpy()) >= _LEAST


def _quantize(model: ir.Model, chosen: Mapping[str, str], *, per_channel: bool, reduce_range: bool) -> ir.Model:
    """onnxruntime's quantizer, by way of files in a folder of its own.

    Raises:
        ModelError: it raises anything.
    """
    if not chosen:
        return model.clone()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    large = serialized_size(model) > MAX_PROTO_BYTES
    marked = model.clone()
    split_gemm(marked)  # onnxruntime's own way of doing this leaves stale shapes behind, over which it then stumbles
    marked.metadata_props[_PREPROCESSED[0]] = _PREPROCESSED[1]
    nested = any(True for node in model.graph for _ in subgraphs(node))
    with tempfile.TemporaryDirectory(prefix="onnxq-") as folder, _quiet():
        source, made = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        save(marked, source)
        try:
            quantize_dynamic(
                source,
                made,
                op_types_to_quantize=sorted({"MatMul" if op == "Gemm" else op for op in chosen.values()}),
                per_channel=per_channel,
                reduce_range=reduce_range,
                weight_type=QuantType.QInt8,
                nodes_to_quantize=list(chosen),
                use_external_data_format=large,
                extra_options={"EnableSubgraph": nested},
            )
        except Exception as error:  # whatever it raises: it is a boundary
            text = next(iter(str(error).strip().splitlines()), "")
            raise ModelError(
                f"onnxruntime's quantize_dynamic does not manage it ({type(error).__name__}: {text})",
                where="algorithm dynamic",
                hint="Leave out what it names with --exclude, or quantize without --algorithm dynamic",
            ) from error
        result = load(made)
        if large:  # the folder is about to go
            for value in result.graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    value.const_value = ir.Tensor(value.const_value.numpy().copy(), name=value.name)
        return result


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """onnxruntime's quantizer logs to the root logger, what it says is reported here in other words."""
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]


def _restore(result: ir.Model, model: ir.Model) -> None:
    """Give the result the name, the metadata and the signature of the float model.

    Raises:
        VerificationError: its inputs or outputs have other names.
    """
    for word, ours, theirs in (
        ("inputs", model.graph.inputs, result.graph.inputs),
        ("outputs", model.graph.outputs, result.graph.outputs),
    ):
        names = [value.name for value in ours]
        if names != [value.name for value in theirs]:
            raise VerificationError(
                f"the {word} are called {_listed(theirs)} in place of {_listed(ours)}", where="algorithm dynamic"
            )
        for value, other in zip(ours, theirs, strict=True):
            other.type, other.shape, other.doc_string = value.type, value.shape, value.doc_string
    result.graph.name, result.graph.doc_string = model.graph.name, model.graph.doc_string
    result.producer_name, result.producer_version = model.producer_name, model.producer_version
    result.domain, result.model_version, result.doc_string = model.domain, model.model_version, model.doc_string
    result.metadata_props.clear()
    result.metadata_props.update(model.metadata_props)


def _listed(values: Sequence[ir.Value]) -> str:
    return ", ".join(str(value.name) for value in values)


def _quantized(result: ir.Model, chosen: Mapping[str, str]) -> dict[str, str]:
    """Node name → operator of what is no float operator any more."""
    left = {node.name for node in all_nodes(result) if node.op_type in (*_OPS, "Conv")}
    return {name: op for name, op in chosen.items() if name not in left}
