"""Quantizers of a recurrent layer's weights, moved to the layer.

torch has a weight a direction with its gates in an order of its own; ONNX has one tensor of all directions. The
exporter cuts and joins what the quantizers give; here the weights, scales and zero points are cut and joined instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array
from onnxq.render import fake_quantize
from onnxq.torch.marks import RECURRENT

__all__ = ["quantize_at_the_layer"]

Array = NDArray[Any]

_WEIGHTS = (1, 2)
_GATES = 1
"""Axis of the gates in (directions, gates, ...)."""


def quantize_at_the_layer(model: ir.Model) -> None:
    """Put one quantizer at each weight of a recurrent layer in place of those behind what cuts and joins it.

    Args:
        model: exported; changed in place.
    """
    namer = Namer(model)
    for node in list(all_nodes(model)):
        if node.op_type not in RECURRENT or node.domain != "" or not isinstance(node.graph, ir.Graph):
            continue
        for index in _WEIGHTS:
            value = node.inputs[index]
            calls = _calls(value)
            parts = [_moved(value, part) for part in range(3)] if calls else []
            arrays = [part for part in parts if part is not None]
            if not calls or len(arrays) < len(parts):
                continue
            weight, *numbers = arrays
            per_channel = calls[0].attributes.get_int("axis", -1) >= 0
            size = (1, weight.shape[_GATES], *[1] * (weight.ndim - 2)) if per_channel else ()
            spread = [number[:1, :, :1] if per_channel else number.reshape(-1)[0] for number in numbers]
            attributes = {k: calls[0].attributes.get_int(k, 0) for k in ("quant_min", "quant_max")}
            given = [weight, *(np.asarray(part, np.float32).reshape(size) for part in spread)]
            base = f"{node.name}_{'wr'[index - 1]}"
            made = ir.node(
                fake_quantize.NAME,
                [set_constant(node.graph, namer, base, np.ascontiguousarray(part)) for part in given],
                attributes={**attributes, **({"axis": _GATES} if per_channel else {})},
                domain=fake_quantize.DOMAIN,
                name=namer.node(f"{base}_quantized"),
            )
            made.outputs[0].name = namer.fresh(f"{base}_quantized")
            node.graph.insert_before(node, [made])
            node.replace_input_with(index, made.outputs[0])
    remove_dead(model)


def _calls(value: ir.Value | None) -> list[ir.Node]:
    """The quantizers that a tensor comes from, if there are nodes between."""
    node = value.producer() if value is not None else None
    if node is None or node.domain != "":
        return []
    found = []
    for source in node.inputs:
        behind = source.producer() if source is not None else None
        direct = behind is not None and (behind.domain, behind.op_type) == (fake_quantize.DOMAIN, fake_quantize.NAME)
        found += [behind] if behind is not None and direct else _calls(source)
    return found


def _moved(value: ir.Value | None, part: int) -> Array | None:
    """The weight (0), its scales (1) or zero points (2) behind what cuts and joins; None where it is no such thing."""
    array = constant_array(value)
    node = value.producer() if value is not None else None
    if array is not None or node is None:
        return array
    if node.domain == fake_quantize.DOMAIN:
        weight, own = constant_array(node.inputs[0]), constant_array(node.inputs[part])
        return None if weight is None or own is None else np.broadcast_to(own, weight.shape)
    inputs = [_moved(v, part if k == 0 or node.op_type == "Concat" else 0) for k, v in enumerate(node.inputs)]
    arrays = [a for a in inputs if a is not None]
    if len(arrays) < len(inputs):
        return None
    if node.op_type == "Concat":
        return np.concatenate(arrays, axis=node.attributes.get_int("axis", 0))
    if node.op_type == "Unsqueeze":
        return np.expand_dims(arrays[0], tuple(int(a) for a in arrays[1]))
    if node.op_type == "Slice":
        data, starts, ends, axes = arrays[:4]
        cut = [slice(None)] * data.ndim
        for start, end, axis in zip(starts, ends, axes, strict=True):
            cut[int(axis)] = slice(int(start), int(end))
        return data[tuple(cut)] if len(arrays) == 4 else None
    return None
