"""HiSilicon NNIE: weights and layer inputs on a logarithmic grid of 8 bits (GFPQ), one for all inputs of a layer.

The artifact is a float ONNX model whose weights are numbers of their grids, and a table of the clip values of layer
inputs by node name, in the schema that MQBench writes: ``{"nnie": {"gfpq_param_dict": {node: [c of each input]}}}``.
Clip values are ``2**(n/16)``, as the vendor's tool wants them; ``n`` is that of the largest magnitude seen, rounded to
nearest. Clip values of weights are not in the table: a tool finds them in the weights, whose largest magnitude is the
clip value.

A layer has one grid for all its inputs, so tensors that meet in an Add or Concat get the largest of their clip values.
Quantized are layer inputs only; the output of a layer is the input of the next one. Not in the table are the operators
for which MQBench writes no entry, and convolutions with groups, which would need a value for each group.

Known from documents only (MQBench's NNIE page, fake quantizer and deployment code): no mapper was at hand, and how it
takes up the table is not public. The arithmetic (:mod:`onnxq.grids.logarithmic`) is checked against exact numbers. The
grid of 16 bits that the hardware has as well is not described there, and absent here.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from onnxq.backend import Backend, Format, Kind, OpRule
from onnxq.checks.findings import Finding
from onnxq.errors import BackendError
from onnxq.graph.files.load_named import load_named
from onnxq.graph.files.save import save
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_constants, all_nodes
from onnxq.graph.values import constant_array, input_of, is_constant, rank_of, static_shape
from onnxq.grids import logarithmic
from onnxq.options import Options
from onnxq.plan import Plan, Site
from onnxq.planning.planner import make_plan
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.ranged import from_range
from onnxq.render.formats import FAKE_QUANTIZE
from onnxq.render.reading.planned import NO_ENTRY, planned
from onnxq.render.sidecar import take_apart, write_json
from onnxq.render.tables import read_json
from onnxq.rows import Never, each, plain_gemm, plain_max_pool
from onnxq.spec import QuantSpec, Scheme

__all__ = ["BACKEND", "table_path"]

_SPEC = QuantSpec(scheme=Scheme.LOGARITHMIC)
_BEYOND = 2.0**128
"""More than any float32 number."""
_NO_ENTRY = "Clip Flatten GlobalAveragePool Mul PRelu Relu Reshape Sigmoid Softmax"
"""Operators without an entry in the table."""
_DOUBLING = {
    "align_corners": ("round_prefer_floor", "round_prefer_ceil"),
    "half_pixel": ("round_prefer_floor", "round_prefer_ceil"),
    "half_pixel_symmetric": ("round_prefer_floor", "round_prefer_ceil"),
    "pytorch_half_pixel": ("round_prefer_floor", "round_prefer_ceil"),
    "asymmetric": ("floor", "round_prefer_floor"),
}
"""Coordinates of a Resize by 2 → the roundings that repeat every element."""


def _ungrouped(node: ir.Node) -> str | None:
    """A convolution of two dimensions without groups."""
    weight = node.inputs[1]
    if node.attributes.get_int("group", 1) != 1:
        return "a convolution with groups needs clip values for each group, which the table cannot say"
    return None if rank_of(weight) == 4 else "not 2-dimensional"


def _plain_matmul(node: ir.Node) -> str | None:
    """A product with a constant matrix."""
    weight = node.inputs[1]
    return None if rank_of(weight) == 2 else "its weight has batches"


def _eltwise(node: ir.Node) -> str | None:
    """A sum of feature maps of one shape."""
    if any(is_constant(value) for value in node.inputs):
        return "it adds a constant: an Eltwise layer adds feature maps"
    shapes = [value.shape for value in node.inputs if value is not None]
    known = [tuple(shape) for shape in shapes if shape is not None]
    return None if len(known) < 2 or known[0] == known[1] else "it broadcasts: an Eltwise layer adds maps of one shape"


def _variable(node: ir.Node) -> str | None:
    """A Concat of feature maps, none of them a constant."""
    return "it joins a constant to feature maps" if any(is_constant(value) for value in node.inputs) else None


def _doubling(node: ir.Node) -> str | None:
    """A Resize that repeats every element twice in both directions."""
    text = "only upsampling by 2, nearest, has a layer"
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    rounding = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    if node.attributes.get_string("mode", "nearest") != "nearest" or rounding not in _DOUBLING.get(mode or "", ()):
        return text
    scales = constant_array(input_of(node, 2))
    if scales is not None and scales.size:
        factors: Sequence[float] = [float(s) for s in scales]
    else:
        before, after = static_shape(node.inputs[0]), static_shape(node.outputs[0])
        if before is None or after is None or 0 in before:
            return f"{text}, and its factors are not known"
        factors = [b / a for a, b in zip(before, after, strict=True)]
    return None if list(factors) == [1.0, 1.0, 2.0, 2.0] else text


def _share_inputs(model: ir.Model, plan: Plan, numbers: MutableMapping[str, QParams]) -> list[str]:
    """Give all inputs of a layer the largest of their clip values, in place."""
    group = {site.name: {site.name} for site in plan.sites if site.role == "activation"}
    meeting: dict[str, list[str]] = {}
    for site in plan.sites:
        for edge in site.readers if site.role == "activation" else ():
            meeting.setdefault(edge.node, []).append(site.name)
    for first, *others in meeting.values():
        for other in others:
            if group[other] is not group[first]:
                group[first] |= group[other]
                group.update(dict.fromkeys(group[other], group[first]))
    for name, names in group.items():
        clip = max((numbers[other].scale for other in names), key=float)
        numbers[name] = replace(numbers[name], scale=clip)
    return []


def _lacks(model: ir.Model, options: Options) -> list[Finding]:
    found = []
    for node in all_nodes(model):
        where = f"node {node.name!r} ({node.op_type})"
        if node.op_type in ("Conv", "ConvTranspose") and node.attributes.get_int("group", 1) != 1:
            what = "it has groups: NNIE's table has no clip values for it"
            found.append(Finding("warning", where, what, "Avoid depthwise and grouped convolutions on this target."))
        elif node.op_type in ("MaxPool", "AveragePool") and _rounded_down(node):
            what = "its output is rounded down (ceil_mode=0), NNIE rounds up: the shapes after it differ"
            found.append(Finding("warning", where, what, "Export with ceil_mode=1, or choose another input size."))
        elif node.op_type in ("Resize", "Upsample") and (why := _doubling(node)) is not None:
            found.append(Finding("warning", where, why, "Upsample by 2, nearest, several times if need be."))
    return found


def _rounded_down(node: ir.Node) -> bool:
    """Whether a pool's output would be larger if it were rounded up; False where sizes are not known."""
    get = node.attributes.get_ints
    dims = static_shape(node.inputs[0])
    kernel = get("kernel_shape", None)
    explicit = node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if dims is None or not kernel or node.attributes.get_int("ceil_mode", 0) == 1 or not explicit:
        return False
    count = len(kernel)
    strides, dilations = get("strides", None) or [1] * count, get("dilations", None) or [1] * count
    pads = get("pads", None) or [0] * (2 * count)
    sizes = zip(dims[2:], kernel, strides, dilations, pads[:count], pads[count:], strict=True)
    return any((size + a + b - (k - 1) * d - 1) % s for size, k, s, d, a, b in sizes)


# -- the table


def table_path(model: Path) -> Path:
    """The table beside a model."""
    return model.with_name(f"{model.stem}_gfpq_param_dict.json")


def _inputs(plan: Plan) -> dict[str, list[Site]]:
    """Quantized node → the sites of its activations, in the order of its inputs."""
    found: dict[str, list[tuple[int, Site]]] = {}
    for site in plan.sites:
        for edge in site.readers if site.role == "activation" else ():
            found.setdefault(edge.node, []).append((edge.index, site))
    return {name: [site for _, site in sorted(pairs, key=lambda p: p[0])] for name, pairs in found.items()}


def _write(quantized: Quantized, path: Path) -> list[Path]:
    parts = take_apart(quantized, "grid")
    inputs = _inputs(quantized.plan)
    table: dict[str, list[float]] = {}
    upsamplings = 0
    for node in all_nodes(parts.model):
        name = node.name or ""
        if name not in inputs:
            continue
        clips = [quantized.qparams[site.name].scale for site in inputs[name]]
        table[name] = [float(logarithmic.clip_value(logarithmic.exponent(clip))) for clip in clips]
        if node.op_type == "Resize":  # becomes a Permute and the layer itself
            table[f"{name}_permute_{upsamplings}"] = table[name]
            upsamplings += 1
    forget_shapes(parts.model)
    return [*save(parts.model, path), write_json(table_path(path), {"nnie": {"gfpq_param_dict": table}})]


def _read(path: Path) -> Quantized:
    where = f"'{table_path(path)}'"
    table = read_json(table_path(path), ["nnie"])["nnie"].get("gfpq_param_dict")
    if not isinstance(table, dict):
        raise BackendError("it has no object 'gfpq_param_dict'", where=where)
    model = load_named(path)
    nodes = {node.name or "": node for node in all_nodes(model)}
    twins = {f"{name}_permute_" for name in table if name in nodes}
    for name, clips in table.items():
        if name not in nodes and not any(name.startswith(twin) for twin in twins):
            raise BackendError(f"it names node {name!r}, which the model does not have", where=where)
        if not isinstance(clips, list) or not all(isinstance(c, (int, float)) and 0 < c < _BEYOND for c in clips):
            raise BackendError(f"the entry of {name!r} is not a list of positive numbers", where=where)
    quantized = make_plan(model, BACKEND, Options(placement="all"))
    for name, sites in _inputs(quantized).items():
        if name in table and len(table[name]) != len(sites):
            raise BackendError(f"node {name!r} has {len(sites)} inputs, its entry {len(table[name])}", where=where)
    if strange := [name for name in table if name in nodes and name not in quantized.quantized]:
        raise BackendError(f"it has an entry for {strange[0]!r}, which NNIE does not quantize", where=where)
    constants = all_constants(model)

    def find(site: Site) -> QParams | None:
        if site.role != "activation":
            array = constant_array(constants[site.tensor])
            return None if array is None else from_range(array.min(initial=0.0), array.max(initial=0.0), site.spec)
        clips = {table[edge.node][edge.index] for edge in site.readers if edge.node in table}
        if len(clips) > 1:
            raise BackendError(f"tensor {site.tensor!r} has several clip values: {sorted(clips)}", where=where)
        clip = max(clips, default=None)
        return None if clip is None else from_range(-clip, clip, site.spec)

    return planned(model, BACKEND, find, {name: NO_ENTRY for name in quantized.quantized if name not in table})


_RULES = (
    OpRule("Conv", Kind.COMPUTE, weights=(1,), output=False, when=_ungrouped),
    OpRule("ConvTranspose", Kind.COMPUTE, weights=(1,), output=False, when=_ungrouped),
    OpRule("Gemm", Kind.COMPUTE, weights=(1,), output=False, when=plain_gemm),
    OpRule("MatMul", Kind.COMPUTE, weights=(1,), output=False, when=_plain_matmul),
    OpRule("Add", Kind.ELEMENTWISE, data=(0, 1), output=False, when=_eltwise),
    OpRule("Concat", Kind.ELEMENTWISE, data=None, output=False, when=_variable),
    OpRule("MaxPool", Kind.ELEMENTWISE, output=False, when=plain_max_pool),
    OpRule("AveragePool", Kind.ELEMENTWISE, output=False),
    OpRule("Resize", Kind.ELEMENTWISE, output=False, when=_doubling),
    *each(Kind.ELEMENTWISE, _NO_ENTRY, output=False, when=Never("the table of clip values has no entry for it")),
)

BACKEND = Backend(
    name="nnie",
    title="HiSilicon NNIE (GFPQ, 8 bits, logarithmic)",
    activation=_SPEC,
    weight=_SPEC,
    rules={rule.op: rule for rule in _RULES},
    formats={
        "gfpq": Format(Quantized.fake_quantize, _write, _read, simulated=True, beside=("_gfpq_param_dict.json",)),
        "fake-quantize": FAKE_QUANTIZE,
    },
    bias="float",
    per_channel=False,
    absorbed=frozenset({"LeakyRelu", "PRelu", "Relu"}),
    drops_absorbed=False,
    mixes=False,
    all_integers=True,
    weight_bits=frozenset({8}),
    act_bits=frozenset({8}),
    adjust=_share_inputs,
    lacks=_lacks,
    artifacts="model.onnx (float), model_gfpq_param_dict.json",
    verified="arithmetic against exact numbers, all 256 codes",
    unverified="no mapper at hand; schema by MQBench's output",
)
