"""QONNX, which FINN and hls4ml read: a Quant operator at every site, at any width. The way back is that of loading.

``qonnx.custom_op.general::Quant`` (operator set import 1), as the package ``qonnx`` computes it::

    Quant(x, scale, zeropt, bitwidth; signed, narrow, rounding_mode = "ROUND")
        = (round_half_even(clip(x / scale + zeropt, low, high)) - zeropt) * scale

with ``low`` and ``high`` the ends of the integers of ``bitwidth`` bits, the lowest left out where ``narrow``. All is
float32; ``scale`` and ``zeropt`` broadcast against ``x``, ``bitwidth`` has no axes. At zero point 0, which FINN asks
for, that is what ``onnxq::FakeQuantize`` computes: a grid that zero point 0 can say is written with it, whatever it was
given with. With an odd zero point the two round an ``x / scale`` that is half-way between integers to different sides.

Weights are stored as numbers of their grid, so that nothing depends on how they are rounded again. Domains, names and
versions are those of Brevitas' ``export_qonnx``, whose import of version 2 is for Trunc. Source:
https://github.com/fastmachinelearning/qonnx, ``docs/qonnx-custom-ops/intquant_op.md``; :mod:`onnxq.graph.files.qonnx`
reads it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backend import Format
from onnxq.console.terminal import listed, plural
from onnxq.graph.fake_quantize_function import DOMAIN as OWN
from onnxq.graph.fake_quantize_function import NAME as FAKE_QUANTIZE
from onnxq.graph.files.qonnx import DOMAIN
from onnxq.graph.files.save import save
from onnxq.graph.namer import Namer
from onnxq.graph.passes.prune import remove_unread
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.graph.values import constant_array, replace_nodes, set_constant
from onnxq.quantized import Quantized
from onnxq.render.repeats import without_repeats
from onnxq.render.wiring import numbers

__all__ = ["QONNX", "write_quant_nodes"]

_VERSION = 1
_NAMED = 3


def write_quant_nodes(model: ir.Model, path: Path) -> list[Path]:
    """Write a model with Quant in the place of every call of ``onnxq::FakeQuantize``.

    Args:
        model: left unchanged; what it calls on constants is stored rounded.
        path: the ``.onnx`` file.

    Raises:
        OutputError: it cannot be written; nothing half-written is left.
    """
    model = model.clone()
    namer = Namer(model)
    for node in [n for n in all_nodes(model) if (n.domain, n.op_type) == (OWN, FAKE_QUANTIZE)]:
        _to_quant(node, namer)
    model.functions.pop((OWN, FAKE_QUANTIZE, ""), None)
    model.opset_imports.pop(OWN, None)
    model.opset_imports[DOMAIN] = _VERSION
    for graph in all_graphs(model):
        remove_unread(graph)
    forget_shapes(model)
    return save(model, path)


def _simulate(quantized: Quantized) -> ir.Model:
    return without_repeats(quantized).fake_quantize()


def _write(quantized: Quantized, path: Path) -> list[Path]:
    return write_quant_nodes(_simulate(quantized), path)


def _notes(quantized: Quantized) -> list[str]:
    """Which zero points the compilers refuse, as those of a model to deploy may be."""
    moved = [
        site.tensor
        for site in quantized.plan.sites
        if (found := quantized.qparams.get(site.name)) is not None
        and _from_zero(found.spec.qmin, found.spec.qmax, found.zero_point)[2].any()
    ]
    if not moved:
        return []
    what = f"{plural(len(moved), 'tensor')} with a zero point, which FINN refuses and hls4ml computes with more effort"
    return [f"{what}: {listed([repr(name) for name in moved], _NAMED)}"]


QONNX = Format(_simulate, _write, simulated=True, notes=_notes)
"""Quant of QONNX at every site; rendered for onnxruntime as ``onnxq::FakeQuantize``."""


def _to_quant(node: ir.Node, namer: Namer) -> None:
    """Put a Quant in the place of a call of ``onnxq::FakeQuantize``."""
    graph, data = node.graph, node.inputs[0]
    assert isinstance(graph, ir.Graph) and data is not None and node.inputs[1] is not None
    scale, zero = (numbers(value) for value in node.inputs[1:3] if value is not None)
    low, high = (node.attributes.get_int(name, 0) for name in ("quant_min", "quant_max"))
    name = node.outputs[0].name or "quant"
    weight = constant_array(data)
    if weight is not None:
        codes = np.clip(np.rint(weight.astype(np.float32) / scale) + zero, low, high) - zero
        data = set_constant(graph, namer, f"{data.name}_rounded", np.asarray((codes + np.float32(0)) * scale))
    low, high, zero = _from_zero(low, high, zero)
    bits = high.bit_length() + (low < 0)
    signs = {"signed": int(low < 0), "narrow": int(low == 1 - (1 << (bits - 1)))}
    width = set_constant(graph, namer, f"{name}_bitwidth", np.float32(bits).reshape(()))
    zeropt = set_constant(graph, namer, f"{name}_zeropt", zero.astype(np.float32))
    operands = [data, node.inputs[1], zeropt, width]
    made = ir.node("Quant", operands, {**signs, "rounding_mode": "ROUND"}, domain=DOMAIN, name=node.name)
    replace_nodes([node], made)


def _from_zero(low: int, high: int, zero: NDArray[np.generic]) -> tuple[int, int, NDArray[np.generic]]:
    """The ends and zero points of a grid, which are 0 where integers of some width and sign have it around 0."""
    points = {int(point) for point in zero.reshape(-1)}
    if len(points) == 1:
        (point,) = points
        ends = (low - point, high - point)
        top = ends[1] + 1
        if top & (top - 1) == 0 and ends[0] in (0, -top, 1 - top):
            return *ends, np.zeros_like(zero)
    return low, high, zero
