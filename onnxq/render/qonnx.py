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
from onnxq.graph.edits import replace_nodes, set_constant
from onnxq.graph.fake_quantize_function import DOMAIN as OWN
from onnxq.graph.fake_quantize_function import NAME as FAKE_QUANTIZE
from onnxq.graph.files.qonnx import DOMAIN
from onnxq.graph.files.save import save
from onnxq.graph.namer import Namer
from onnxq.graph.passes.prune import remove_unread
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.graph.values import is_constant
from onnxq.quantized import Quantized
from onnxq.render.limits import bounds
from onnxq.render.on_its_grid import stored_on_grid
from onnxq.render.repeats import without_repeats
from onnxq.render.wiring import describe, numbers

__all__ = ["QONNX", "clips_left", "write_quant_nodes"]

_VERSION = 1
_NAMED = 3
_WINDOWED = ("AveragePool", "Conv", "ConvTranspose", "MaxPool")


def write_quant_nodes(model: ir.Model, path: Path) -> list[Path]:
    """Write a model with Quant in the place of every call of ``onnxq::FakeQuantize``.

    Args:
        model: left unchanged; what it calls on constants is stored rounded.
        path: the ``.onnx`` file.

    Raises:
        OutputError: it cannot be written; nothing half-written is left.
    """
    return save(_in_quant_nodes(model), path)


def clips_left(quantized: Quantized) -> list[str]:
    """Names of the nodes that stay Clip in a result that is written in QONNX, since no quantizer ends before them."""
    nodes = all_nodes(_in_quant_nodes(_simulate(quantized)))
    return [node.name or "" for node in nodes if (node.domain, node.op_type) == ("", "Clip")]


def _in_quant_nodes(model: ir.Model) -> ir.Model:
    model = model.clone()
    namer = Namer(model)
    for node in [n for n in all_nodes(model) if (n.domain, n.op_type) == (OWN, FAKE_QUANTIZE)]:
        _to_quant(node, namer)
    for node in list(all_nodes(model)):
        _say_all(node)
        if node.domain == "" and node.op_type == "Clip" and _saturated(node):
            replace_nodes([node], ir.node("Relu", node.inputs[:1], name=node.name))
    model.functions.pop((OWN, FAKE_QUANTIZE, ""), None)
    model.opset_imports.pop(OWN, None)
    model.opset_imports[DOMAIN] = _VERSION
    for graph in all_graphs(model):
        remove_unread(graph)
    forget_shapes(model)
    return model


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
    assert isinstance(graph, ir.Graph) and data is not None and node.inputs[2] is not None
    zero = numbers(node.inputs[2])
    low, high = (node.attributes.get_int(name, 0) for name in ("quant_min", "quant_max"))
    name = node.outputs[0].name or "quant"
    stored = is_constant(data)
    if stored:
        data = stored_on_grid(node, namer)
    low, high, zero = _from_zero(low, high, zero)
    bits = high.bit_length() + (low < 0)
    attributes: dict[str, int | str] = {"rounding_mode": "ROUND", "signed": int(low < 0)}
    attributes["narrow"] = int(low == 1 - (1 << (bits - 1)))
    width = set_constant(graph, namer, f"{name}_bitwidth", np.float32(bits).reshape(()))
    zeropt = set_constant(graph, namer, f"{name}_zeropt", zero.astype(np.float32))
    operands = [data, node.inputs[1], zeropt, width]
    readers = list(node.outputs[0].uses()) if stored else []
    replace_nodes([node], made := ir.node("Quant", operands, attributes, domain=DOMAIN, name=node.name))
    for reader, position in readers[1:]:  # FINN refuses a weight that several read
        again = ir.node("Quant", operands, attributes, domain=DOMAIN, name=namer.node(name))
        describe(again.outputs[0], namer.fresh(name), ir.DataType.FLOAT, data.shape)
        graph.insert_after(made, [again])
        reader.replace_input_with(position, again.outputs[0])


def _saturated(clip: ir.Node) -> bool:
    """Whether all that reads a Clip from 0 is a Quant that ends where it does or before: for those it is a Relu."""
    low, high = bounds(clip) if all(value is None or is_constant(value) for value in clip.inputs[1:]) else (-1.0, 0.0)
    readers = [(use.node, use.idx) for use in clip.outputs[0].uses()]
    if low != 0 or clip.outputs[0].is_graph_output() or not readers:
        return False
    for node, position in readers:
        if node.domain != DOMAIN or position or node.attributes.get_int("signed", 1):
            return False
        scale, zero, width = (numbers(value).astype(np.float64) for value in node.inputs[1:] if value is not None)
        if zero.any() or ((2.0**width - 1.5) * scale > high).any():
            return False
    return True


def _say_all(node: ir.Node) -> None:
    """Write out the attributes of a convolution or pool that have their defaults: qonnx and FINN ask for them."""
    automatic = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    if node.domain != "" or node.op_type not in _WINDOWED or automatic:
        return
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    kernel = node.attributes.get_ints("kernel_shape", ()) or (
        weight.shape.numpy()[2:] if weight is not None and weight.shape is not None and weight.shape.is_static() else ()
    )
    ones = [1] * len(kernel)
    said: dict[str, int | list[int]] = {"kernel_shape": list(kernel), "strides": ones, "pads": [0] * (2 * len(kernel))}
    said |= {"dilations": ones, "group": 1} if weight is not None else {}
    for name, value in said.items() if kernel else ():
        node.attributes.setdefault(name, ir.convenience.convert_attribute(name, value))


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
