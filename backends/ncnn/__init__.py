"""ncnn int8: a float model with the calibration table of ``ncnn2int8``.

For each convolution, depthwise or not, and each fully connected layer, first ``<layer>_param_0 s0 s1 ...``, the
inverse scales ``127 / max|w|`` of its weights, one for each output channel, or for each group of a grouped
convolution; then, when all of these are written, ``<layer> s``, that of its input. Integers are -127 to 127, outputs
and biases are float, and a layer without lines stays float. Weights in the model are on their grids, so that ncnn's
rounding finds the same integers.

**Names.** The table names layers, not tensors: as the nodes of ``model.onnx`` are named. ``onnx2ncnn`` and
``ncnnoptimize`` keep these names, ``pnnx``, which ncnn recommends, gives its own, and then ``ncnn2int8`` finds none of
them. Blanks and ``_param_`` in a node's name, which the table cannot hold, are replaced in the model too.

Formats: ``ncnn``; ``int8`` adds ``<model>.param`` and ``<model>.bin``, the int8 model that ncnn loads: pnnx converts,
and each layer gets the lines of its node whatever pnnx calls it. Both programs are Python packages and must be
installed (``pip install ncnn pnnx``; pnnx names torch as well, and does without it here: ``--no-deps``). Free sizes of
inputs become 1 then.

**Operators that ncnn lacks** end the conversion of a whole model, float or not, as do forms of others (a recurrent
layer whose last state is read), and some pnnx converts wrongly without a word (a Gather of a constant list, a GRU
without linear_before_reset, a recurrent layer whose steps are the first axis of what other operators give): ``onnxq
check`` names both, and inputs of other types than int32 and float, as they were tried with pnnx, each alone. What can
be said otherwise is: reductions of a single axis that is an input, of which pnnx sees none, a LayerNormalization
without a bias, a Pad without a mode, a Gather of rows that says its axis, Reshapes in a row and Transposes between two
that have more axes than ncnn. ``onnx2ncnn`` may have others. ncnn's layers read integers of 32 bits: where the model
has an input of int64, as token numbers are, give it int32, as ``verify`` does.

**What is quantized** is what has scales of its own in ncnn: convolutions over two axes, and products with a constant
matrix of one row of numbers for each sample, an InnerProduct. Of several rows pnnx makes a Gemm, whose int8 form takes
its scales from the data of each run: ``ncnn2int8`` makes one of each, and of each LSTM, GRU, RNN, Embed and
MultiHeadAttention, with or without a table. The format ``int8`` leaves them in float.

Verified on ncnn 1.0.20261020 and pnnx 20261020, x86-64: layer by layer the int8 model computes what the simulation
does, to the last bits of float32, but for integers at ties and for depthwise kernels of x86, which multiply by
approximate reciprocals of scales (up to 4e-4 off; not where ncnn's option ``use_packing_layout`` is off). What that
moves adds up in a deep net, at no loss: EfficientNet-Lite0 has 23.8 dB to the float model in ncnn, and 24.0 in the
simulation. ``ncnn2int8`` is a C++ program and in no package: the files are written as its source does.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.backends.ncnn.lacks import lacks
from onnxq.backends.ncnn.rewrites import for_pnnx
from onnxq.backends.ncnn.views import fewer_axes
from onnxq.errors import BackendError
from onnxq.file_system import write_text
from onnxq.graph.files.load_named import load_named
from onnxq.graph.files.save import save
from onnxq.graph.layer import replace_constant
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import OTHER_AXES, constant_array, input_of, is_constant, rank_of
from onnxq.plan import Edge, Plan
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.render.ncnn_table import read_table, table_text
from onnxq.render.sidecar import put_together, take_apart
from onnxq.render.tables import float32s, granularity, symmetric_only, weighted
from onnxq.rows import conv_axis, gemm_axis, matmul_axis, plain_gemm
from onnxq.runtimes.child import examine, require
from onnxq.runtimes.ncnn import RUNTIME
from onnxq.spec import QuantSpec

if TYPE_CHECKING:
    from onnxq.options import Options

__all__ = ["BACKEND"]

_LONGEST = 200
"""Bytes of a layer's name; ncnn2int8 reads 255, the ending of a line's key included."""


def _groups(node: ir.Node) -> int:
    return int(node.attributes.get_int("group", 1)) if node.op_type == "Conv" else 1


def _rewrite(model: ir.Model) -> list[Note]:
    """Fully connected layers as ncnn's converter takes them, with weights (N, K)."""
    namer, turned = Namer(model), 0
    for node in all_nodes(model):
        weight = node.inputs[1] if node.op_type == "Gemm" and node.domain == "" else None
        array = constant_array(weight)
        if weight is None or array is None or weight.dtype is None or node.attributes.get_int("transB", 0) == 1:
            continue
        replace_constant(node, 1, np.ascontiguousarray(array.T), namer, f"{weight.name}_transposed", weight.dtype)
        now = node.inputs[1]
        assert now is not None
        now.meta[OTHER_AXES] = (weight.name, (1, 0))
        node.attributes["transB"] = ir.AttrInt64("transB", 1)
        turned += 1
    notes = [
        Note("ncnn", "", "the table names layers as the nodes are named, which pnnx does not keep: see --format int8")
    ]
    if turned:
        notes.append(Note("ncnn", "", f"the weights of {turned} Gemm were transposed: InnerProduct has (N, K)"))
    return [*notes, *for_pnnx(model), *fewer_axes(model)]


def _adjust(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Grouped convolutions have a scale for each group: the largest of its channels."""
    groups = {node.name or "": _groups(node) for node in all_nodes(model)}
    for site in plan.sites:
        count = max((groups[edge.node] for edge in site.readers), default=1)
        qp = numbers.get(site.name)
        if site.role != "weight" or qp is None or count == 1 or not qp.scale.ndim:
            continue
        highest = qp.scale.reshape(count, -1).max(axis=1)
        numbers[site.name] = replace(qp, scale=np.repeat(highest, qp.scale.size // count))
    return []


def _clean(model: ir.Model) -> None:
    """Give nodes names that a line of the table can hold."""
    namer = Namer(model)
    for node in all_nodes(model):
        name = "_".join((node.name or "").split()).encode()[:_LONGEST].decode(errors="ignore")
        name = re.sub("_param(?=_|$)", "_par", name)  # also at its end, where a number may be added
        if name != node.name:
            node.name = namer.node(name)


def _layers(model: ir.Model) -> Iterator[tuple[ir.Node, str, str]]:
    """Nodes that may be layers of the table, the tensor each reads, and its weight."""
    for node, position in weighted(model, BACKEND):
        data, weight = node.inputs[0], node.inputs[position]
        if data is not None and weight is not None and not is_constant(data):
            yield node, data.name or "", weight.name or ""


def _write(quantized: Quantized, path: Path) -> list[Path]:
    parts = take_apart(quantized, "grid")
    symmetric_only({**parts.activations, **parts.weights}, BACKEND.name)
    chosen = [node for node in all_nodes(parts.model) if node.name in parts.nodes]
    _clean(parts.model)
    weights: dict[str, list[float]] = {}
    inputs: dict[str, float] = {}
    for node, data, weight in _layers(parts.model):
        if node not in chosen:
            continue
        qp, count = parts.weights[weight], _groups(node)
        channels = parts.weights[weight].scale.reshape(-1) if qp.scale.ndim else np.repeat(qp.scale, _outputs(node))
        weights[node.name or ""] = [float(s) for s in (channels if count == 1 else channels.reshape(count, -1)[:, 0])]
        inputs[node.name or ""] = float(parts.activations[data].scale)
    forget_shapes(parts.model)
    return [*save(parts.model, path), write_text(path.with_suffix(".table"), table_text(weights, inputs))]


def _outputs(node: ir.Node) -> int:
    array = constant_array(node.inputs[1])
    assert array is not None
    return int(array.shape[1 if node.op_type == "MatMul" else 0])


def _read(path: Path) -> Quantized:
    model = load_named(path)
    table = path.with_suffix(".table")
    weights, inputs = read_table(table)
    activations: dict[str, QParams] = {}
    stored: dict[str, QParams] = {}
    edges: set[Edge] = set()
    for node, data, weight in _layers(model):
        name = node.name or ""
        if name not in inputs:
            continue
        found, outputs, count = float32s(weights.pop(name)), _outputs(node), _groups(node)
        if found.size not in (outputs, count):
            raise BackendError(f"layer {name!r} has {found.size} scales for {outputs} channels", where=f"'{table}'")
        spec = replace(BACKEND.weight, granularity=granularity(node, 1, BACKEND, per_channel=True))
        scale = np.repeat(found, outputs // found.size)
        stored[weight] = QParams(spec, scale, np.zeros(scale.shape, np.int64))
        scale = float32s(inputs.pop(name))
        activations[data] = QParams(BACKEND.activation, scale, np.zeros((), np.int64))
        edges |= {Edge(name, 0), Edge(name, 1)}
    if inputs or weights:
        left = ", ".join(map(repr, {**inputs, **weights}))
        raise BackendError(f"the table names layers that the model does not have: {left}", where=f"'{table}'")
    made = put_together(model, BACKEND, activations, stored)
    sites = tuple(replace(s, readers=tuple(edge for edge in s.readers if edge in edges)) for s in made.plan.sites)
    nodes = {name: op for name, op in made.plan.quantized.items() if Edge(name, 0) in edges}
    return replace(made, plan=replace(made.plan, sites=sites, quantized=nodes))


def _refuse(options: Options) -> None:
    """The format that ncnn's packages write, where they are missing.

    Raises:
        VerificationError: they are, and it is asked for.
    """
    if options.format == "int8":
        require(RUNTIME)


def _convert(quantized: Quantized, path: Path) -> list[Path]:
    """The float model and its table, and ncnn's int8 model of them; nothing is left where that fails."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-") as name:
        model = Path(name) / path.name
        _write(quantized, model)
        made = [Path(file) for file in examine(RUNTIME, model, files=name).files]
        return _write(quantized, path) + [file.replace(path.parent / file.name) for file in made]


def _two_axes(node: ir.Node) -> str | None:
    """A convolution over two axes, height and width."""
    weight = input_of(node, 1)
    flat = rank_of(weight) == 4
    return None if flat else "ncnn has integers for convolutions over two axes only"


def _one_row(node: ir.Node) -> str | None:
    """One row of numbers for each sample: the axes but the last are 1, the first may be free."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if shape is not None and all(
        size == 1 or (k == 0 and not isinstance(size, int)) for k, size in enumerate(shape[:-1])
    ):
        return None
    return "no InnerProduct: of several rows pnnx makes a Gemm of ncnn, which has no scale for its data"


def _inner_gemm(node: ir.Node) -> str | None:
    """A Gemm that is x @ w + b, of one row for each sample."""
    return plain_gemm(node) or _one_row(node)


def _inner_matmul(node: ir.Node) -> str | None:
    """A product of one row for each sample with a constant matrix."""
    weight = node.inputs[1]
    flat = rank_of(weight) == 2
    return _one_row(node) if flat and is_constant(weight) else "no InnerProduct: its weight is not a constant matrix"


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), weight_axis=conv_axis, output=False, when=_two_axes),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), weight_axis=gemm_axis, output=False, when=_inner_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), weight_axis=matmul_axis, output=False, when=_inner_matmul),
)

_COMPILED = (".param", ".bin")

BACKEND = Backend(
    name="ncnn",
    title="ncnn int8, a calibration table",
    activation=QuantSpec(narrow_range=True),
    weight=QuantSpec(narrow_range=True),
    rules={rule.op: rule for rule in _RULES},
    formats={
        "ncnn": Format(Quantized.fake_quantize, _write, _read, simulated=True, beside=(".table",)),
        "int8": Format(
            Quantized.fake_quantize,
            _convert,
            _read,
            simulated=True,
            beside=(".table", *_COMPILED),
            compiled=_COMPILED,
        ),
        "fake-quantize": FAKE_QUANTIZE,
    },
    bias="float",
    inputs_only=True,
    absorbed=frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish", "Mish"}),
    drops_absorbed=False,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    rewrite=_rewrite,
    lacks=lacks,
    refuses=_refuse,
    adjust=_adjust,
    runtime="ncnn",
    artifacts="model.onnx (float), model.table, with format int8 also ncnn's model.param and model.bin",
    next_step="onnx2ncnn MODEL.onnx MODEL.param MODEL.bin"
    " && ncnn2int8 MODEL.param MODEL.bin MODEL-int8.param MODEL-int8.bin MODEL.table",
    verified="ncnn 1.0.20261020 with pnnx 20261020 on x86-64: placement, numbers, the int8 model",
    unverified="ncnn2int8, which is in no package; ARM",
)
