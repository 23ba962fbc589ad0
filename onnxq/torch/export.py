"""A trained module as ONNX with a call of ``onnxq::FakeQuantize`` at every quantizer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from onnxq.graph.edits import rename_output, set_constant
from onnxq.graph.files.load import load
from onnxq.graph.files.save import save
from onnxq.graph.namer import Namer, unique_names
from onnxq.graph.passes.normalize import normalize
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array
from onnxq.locations import made_folder, require_file
from onnxq.planning.uneven import too_uneven
from onnxq.render import fake_quantize, nnie_quantize
from onnxq.torch.agreement import quantized_values, require_same
from onnxq.torch.feeding import example_of
from onnxq.torch.finite import require_finite, require_float32
from onnxq.torch.insertion import tensors_of
from onnxq.torch.module import QuantizedModule, require_prepared
from onnxq.torch.prepare import OPSET
from onnxq.torch.quantizers.adaround import AdaRound
from onnxq.torch.recurrent_weights import quantize_at_the_layer
from onnxq.torch.traced import traced

__all__ = ["export"]

Tensor = torch.Tensor
_UNDECIDED = 0.05
"""Share of a weight's numbers that may be between two integers after a training."""
_FUNCTIONS = ((fake_quantize.DOMAIN, fake_quantize.NAME), (fake_quantize.DOMAIN, nnie_quantize.NAME))


def export(
    module: torch.nn.Module,
    path: str | os.PathLike[str],
    example_inputs: Tensor | tuple[Any, ...] | Mapping[str, Any],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    dynamo: bool = False,
) -> Path:
    """Write a trained module as ONNX; ``onnxq deploy`` makes a target's artifact of it.

    The file is run in onnxruntime on the example and compared with the module in evaluation mode.

    Args:
        module: what :func:`onnxq.torch.prepare` gave, calibrated, or what wraps it (``AveragedModel``,
            ``DistributedDataParallel``, ``torch.compile``); left unchanged.
        path: of the file; its folder is made where it is missing.
        example_inputs: of its forward, a tuple, a dictionary of arguments or the one tensor; the branch that they take
            is the one exported.
        input_names: of the graph.
        output_names: of the graph.
        dynamic_axes: as ``torch.onnx.export`` takes them.
        dynamo: by torch's newer exporter, which needs onnxscript and torch 2.8, and takes no branches on data; else by
            that of TorchScript.

    Returns:
        The path.

    Raises:
        ModelError: torch cannot export it.
        OptionError: it is not prepared, or not calibrated, its training has diverged, it was made another type than
            float32, or onnxscript is not installed.
        OutputError: it cannot be written.
        VerificationError: onnxruntime computes something else than torch.
    """
    prepared = require_prepared(module)
    example = example_of(example_inputs, prepared.module)
    require_float32(prepared.module, where="export")
    require_finite(prepared, where="export")
    _tell_of_rounding(prepared)
    target = Path(path)
    require_file(path, "Give the path of the .onnx file to write")
    names = {"input_names": input_names, "output_names": output_names, "dynamic_axes": dynamic_axes}
    proto, wanted, calls = traced(prepared, example, dynamo=dynamo, **names)
    model = load(proto)
    unique_names(model)
    quantized = quantized_values(model, calls)
    _plain_names(model)
    _register(model)
    normalize(model, min_opset=OPSET, keep=_FUNCTIONS, unfit=too_uneven)
    _move_first(model)
    quantize_at_the_layer(model)
    _register(model)
    require_same(model, tensors_of(list(example)), wanted, quantized)
    with made_folder(target):
        save(model, target)
    return target


def _tell_of_rounding(prepared: QuantizedModule) -> None:
    """Warn where AdaRound trained without what drives its weights to whole numbers."""
    open_ = {n: q.undecided for n, q in prepared.observing() if isinstance(q, AdaRound) and q.undecided > _UNDECIDED}
    if open_:
        name = max(open_, key=lambda n: open_[n])
        warnings.warn(
            f"onnxq: weights of {len(open_)} layers trained between two numbers and are rounded now, of {name!r} "
            f"{open_[name]:.0%}: the loss was without onnxq.torch.rounding_loss, and the file is worse than it",
            stacklevel=3,
        )


def _plain_names(model: ir.Model) -> None:
    """Names as the user's module alone would have them."""
    taken = {v.name for v in model.graph.initializers.values()} | {v.name for n in all_nodes(model) for v in n.outputs}
    for value in [*model.graph.initializers.values(), *(v for n in all_nodes(model) for v in n.outputs)]:
        short = (value.name or "").replace("/module/", "/", 1).removeprefix("module.")
        if short != value.name and short not in taken:
            taken.add(short)
            value.name = short
    nodes = {n.name for n in all_nodes(model)}
    for node in all_nodes(model):
        short = (node.name or "").replace("/module/", "/", 1)
        if short != node.name and short not in nodes:
            nodes.add(short)
            node.name = short


def _register(model: ir.Model) -> None:
    """Add the functions that are called."""
    called = {(node.domain, node.op_type) for node in all_nodes(model)}
    for key, part in zip(_FUNCTIONS, (fake_quantize, nnie_quantize), strict=True):
        if key in called:
            part.register(model)


def _move_first(model: ir.Model) -> None:
    """Weights are moved before they are quantized, so that the quantizer stands at the layer."""
    namer = Namer(model)
    for node in list(all_nodes(model)):
        if (node.domain, node.op_type) not in _FUNCTIONS or node.graph is None:
            continue
        arrays = [constant_array(v) for v in node.inputs]
        readers = [use.node for use in node.outputs[0].uses()]
        moved = [r for r in readers if r.op_type == "Transpose" and r.domain == ""]
        if any(a is None for a in arrays) or not moved or not isinstance(node.graph, ir.Graph):
            continue
        for transpose in moved:
            _quantize_behind(node, transpose, [np.asarray(array) for array in arrays], node.graph, namer)
    remove_dead(model)


def _quantize_behind(
    node: ir.Node, transpose: ir.Node, arrays: Sequence[NDArray[Any]], graph: ir.Graph, namer: Namer
) -> None:
    """Put a quantizer of a moved weight in the place of a Transpose behind one.

    Args:
        node: the quantizer.
        transpose: reads it.
        arrays: the weight, its scales and its zero points; those with the axes of the weight are moved as well.
        graph: of both.
        namer: of the model.
    """
    rank = arrays[0].ndim
    order = list(transpose.attributes.get_ints("perm", list(range(rank))[::-1]))
    parts = [array.transpose(order) if array.ndim == rank else array for array in arrays]
    base = node.inputs[0].name if node.inputs[0] is not None else "weight"
    values = [
        set_constant(graph, namer, f"{base}_{k}", np.ascontiguousarray(p)) for k, p in zip("wsz", parts, strict=False)
    ]
    attributes = {k: node.attributes.get_int(k, 0) for k in node.attributes if k != "axis"}
    axis = node.attributes.get_int("axis", -1)
    if axis >= 0:
        attributes["axis"] = order.index(axis)
    name = namer.node(f"{node.name}_moved")
    made = ir.node(node.op_type, values, attributes=attributes, domain=fake_quantize.DOMAIN, name=name)
    made.outputs[0].name = namer.fresh(f"{transpose.outputs[0].name}_quantized")
    graph.insert_before(transpose, [made])
    rename_output(made.outputs[0], transpose.outputs[0])
