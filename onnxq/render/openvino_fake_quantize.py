"""OpenVINO's FakeQuantize as an ONNX operator, written and read; and Q/DQ without repeats, for OpenVINO.

``org.openvinotoolkit::FakeQuantize`` (operator set import 1), which OpenVINO's ONNX reader knows::

    FakeQuantize(x, input_low, input_high, output_low, output_high; levels)
        x <= input_low   output_low
        x >  input_high  output_high
        else             round((x - input_low) / (input_high - input_low) * (levels - 1))
                         / (levels - 1) * (output_high - output_low) + output_low

Here the outputs' range is the inputs', ``(qmin - zero_point) * scale`` to ``(qmax - zero_point) * scale``, shaped to
broadcast against ``x``, so that this is ``(q - zero_point) * scale`` on ``qmax - qmin + 1`` levels: what
``onnxq::FakeQuantize`` computes. OpenVINO scales with reciprocals, so that where ``x / scale`` is half-way between
integers to the last bits of a float32 it may take the other one. Weights are stored as numbers of their grid, on which
nothing depends on rounding. Source: docs.openvino.ai, FakeQuantize-1.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backend import Format
from onnxq.backend_choice import backend_named
from onnxq.errors import BackendError
from onnxq.graph.files.load_named import load_named
from onnxq.graph.files.save import save
from onnxq.graph.namer import Namer
from onnxq.graph.passes.prune import remove_unread
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.graph.values import constant_array, is_constant
from onnxq.qparams import QParams
from onnxq.quantized import Quantized
from onnxq.render import fake_quantize as function
from onnxq.render.formats import write_rendered
from onnxq.render.on_its_grid import stored_on_grid
from onnxq.render.reading.read import read as read_quantizers
from onnxq.render.repeats import without_repeats
from onnxq.spec import PerChannel, PerTensor, QuantSpec

__all__ = ["DOMAIN", "NAME", "OPENVINO_FAKE_QUANTIZE", "QDQ_ONCE", "numbers_of", "read", "render", "write"]

DOMAIN = "org.openvinotoolkit"
NAME = "FakeQuantize"
_FORMAT = "openvino-fake-quantize"
_VERSION = 1
_KEY = (function.DOMAIN, function.NAME, "")


def render(quantized: Quantized) -> ir.Model:
    """The model with OpenVINO's FakeQuantize at every site.

    Args:
        quantized: left unchanged.
    """
    model = without_repeats(quantized).fake_quantize()
    namer = Namer(model)
    for node in list(all_nodes(model)):
        if (node.domain, node.op_type) == _KEY[:2]:
            _to_openvino(node, namer)
    model.functions.pop(_KEY, None)
    model.opset_imports.pop(function.DOMAIN, None)
    model.opset_imports[DOMAIN] = _VERSION
    for graph in all_graphs(model):
        remove_unread(graph)
    return model


def write(quantized: Quantized, path: Path) -> list[Path]:
    """Write the model that :func:`render` gives.

    Raises:
        OutputError: it cannot be written; nothing half-written is left.
    """
    model = render(quantized)
    forget_shapes(model)
    return save(model, path)


def read(path: Path) -> Quantized:
    """The way back: the float model, a site for every FakeQuantize, and their numbers.

    Raises:
        BackendError: there is no FakeQuantize, or one that is no quantizer of 8 bits.
        ModelError: the model is unreadable.
    """
    model = load_named(path)
    found = [n for n in all_nodes(model) if (n.domain, n.op_type) == (DOMAIN, NAME)]
    if not found:
        raise BackendError(f"it holds no {DOMAIN}::{NAME}", where=f"'{path}'")
    namer = Namer(model)
    for node in found:
        _from_openvino(node, namer)
    function.register(model)
    model.opset_imports.pop(DOMAIN, None)
    for graph in all_graphs(model):
        remove_unread(graph)
    return replace(read_quantizers(model, backend_named("openvino")), format=_FORMAT)


def _simulate(quantized: Quantized) -> ir.Model:
    return without_repeats(quantized).fake_quantize()


def _qdq(quantized: Quantized) -> ir.Model:
    return without_repeats(quantized).qdq()


OPENVINO_FAKE_QUANTIZE = Format(_simulate, write, read, simulated=True)
"""FakeQuantize of OpenVINO at every site; rendered for onnxruntime as ``onnxq::FakeQuantize``."""

QDQ_ONCE = Format(_qdq, write_rendered, integers=True)
"""QDQ without repeated pairs behind data movement."""


def _to_openvino(node: ir.Node, namer: Namer) -> None:
    """Put OpenVINO's operator in the place of a call of ``onnxq::FakeQuantize``."""
    graph, value = node.graph, node.inputs[0]
    scale, zero = constant_array(node.inputs[1]), constant_array(node.inputs[2])
    assert isinstance(graph, ir.Graph) and value is not None and scale is not None and zero is not None
    low, high = node.attributes.get_int("quant_min", 0), node.attributes.get_int("quant_max", 0)
    if is_constant(value):
        value = stored_on_grid(node, namer)
        low, high = (min(low, -127), max(high, 127)) if not zero.any() and low < 0 else (low, high)
    name = value.name or "x"
    ends = [
        _initializer(node.inputs[1], namer.fresh(f"{name}_{end}"), (bound - zero) * scale)
        for end, bound in (("low", low), ("high", high))
    ]
    made = ir.node(
        NAME, [value, *ends, *ends], attributes={"levels": high - low + 1}, domain=DOMAIN, name=node.name or ""
    )
    _replace(node, made)


def _from_openvino(node: ir.Node, namer: Namer) -> None:
    """Put a call of ``onnxq::FakeQuantize`` in the place of OpenVINO's operator."""
    value, (numbers, shape) = node.inputs[0], numbers_of(node)
    assert value is not None
    scale = _initializer(node.inputs[1], namer.fresh(f"{value.name}_scale"), numbers.scale.reshape(shape))
    zero = _initializer(
        node.inputs[1], namer.fresh(f"{value.name}_zero_point"), numbers.zero_point.astype(np.float32).reshape(shape)
    )
    _replace(node, function.node(value, scale, zero, numbers.spec, node.name or ""))


def numbers_of(node: ir.Node) -> tuple[QParams, tuple[int, ...]]:
    """The grid that OpenVINO's FakeQuantize rounds to, and the shape of its scales in the model.

    Args:
        node: one of :data:`NAME` in :data:`DOMAIN`.

    Raises:
        BackendError: it is no quantizer of 8 bits.
    """
    bounds = [constant_array(v) for v in node.inputs[1:5]]
    levels = node.attributes.get_int("levels", 0)
    where = f"FakeQuantize {node.name!r}"
    if len(bounds) != 4 or any(b is None for b in bounds):
        raise BackendError("its ranges are not constant", where=where)
    low, high, *out = (np.asarray(b, np.float64) for b in bounds)
    if not (np.array_equal(low, out[0]) and np.array_equal(high, out[1])):
        raise BackendError("it maps one range to another: no quantizer", where=where)
    if levels not in (255, 256):
        raise BackendError(f"it has {levels} levels, not those of 8 bits", where=where)
    return _numbers(low, high, levels, where)


def _numbers(
    low: NDArray[np.float64], high: NDArray[np.float64], levels: int, where: str
) -> tuple[QParams, tuple[int, ...]]:
    """Scale and zero point of ranges, and their shape in the model.

    Raises:
        BackendError: they do not hold zero, or differ along more than one axis.
    """
    axes = [k for k, n in enumerate(low.shape) if n > 1]
    if len(axes) > 1 or low.shape != high.shape:
        raise BackendError(f"ranges of shape {low.shape} and {high.shape}", where=where)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise BackendError("a range is empty or not finite", where=where)
    scale = ((high - low) / (levels - 1)).astype(np.float32)
    codes = np.rint(-low / scale.astype(np.float64))
    if (codes < 0).any() or (codes > levels - 1).any():
        raise BackendError("a range does not hold zero", where=where)
    middle = 127 if levels == 255 else 128
    granularity = PerChannel(axes[0]) if axes else PerTensor()
    signed = bool((codes == middle).all())
    spec = QuantSpec(signed=signed, symmetric=signed, granularity=granularity, narrow_range=levels == 255)
    zero = (codes + spec.qmin).astype(np.int64)
    kept = (-1,) if axes else ()
    shape = tuple(-1 if k in axes else 1 for k in range(low.ndim)) if axes else ()
    return QParams(spec, scale.reshape(kept), zero.reshape(kept)), shape


def _replace(node: ir.Node, made: ir.Node) -> None:
    graph, output = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    made.outputs[0].type, made.outputs[0].shape = output.type, output.shape
    graph.insert_before(node, [made])
    ir.convenience.replace_all_uses_with(output, made.outputs[0], replace_graph_outputs=True)
    made.outputs[0].name = output.name
    graph.remove(node, safe=True)


def _initializer(like: ir.Value | None, name: str, array: NDArray[np.generic]) -> ir.Value:
    graph = like.graph if like is not None else None
    assert isinstance(graph, ir.Graph)
    tensor = ir.tensor(np.asarray(array, np.float32), name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )
    graph.register_initializer(value)
    return value
