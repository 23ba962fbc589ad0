"""A model that carries quantizers, from training or another tool, as the object that everything else works on."""

from __future__ import annotations

from dataclasses import replace

from onnxq.backend_choice import backend_named
from onnxq.given.fold_quantized import fold_into_quantized
from onnxq.graph.files.load_named import load_named
from onnxq.graph.passes.opset import raise_opset
from onnxq.prepare import Source
from onnxq.quantized import Quantized
from onnxq.render.reading.nodes import sort_nodes
from onnxq.render.reading.read import read as read_quantizers
from onnxq.spec import USUAL_BITS, WIDE_OPSET

__all__ = ["read", "read_folded"]


def read(model: Source, *, backend: str = "onnxruntime") -> Quantized:
    """Read a model that carries quantizers (QDQ, or ``onnxq::FakeQuantize``) back into a :class:`Quantized`.

    Batch normalizations behind quantized weights are folded into their integers and scales, exactly, see
    :func:`onnxq.given.fold_quantized.fold_into_quantized`. A model whose opset has no integers of the widths found, as
    where Brevitas bounds weights of 4 bits in 8, is raised to one that has them.

    Args:
        model: path, bytes, ``ModelProto`` or ``ir.Model``; left unchanged.
        backend: the target it will be rendered for.

    Returns:
        The float model, a site for every quantizer found, and their numbers; ``notes`` say what was folded, and what
        was left as it is. Its format is the target's own, but ``"fake-quantize"`` where the model has such nodes.

    Raises:
        OnnxqError: the model is unreadable or invalid.
    """
    found = read_folded(model, backend=backend)
    if found.model.opset_imports.get("", 0) >= (least := _least_opset(found)):
        return found
    raised = load_named(model)
    notes = raise_opset(raised, minimum=least)
    found = read_folded(raised, backend=backend)
    return replace(found, notes=(*map(str, notes), *found.notes))


def read_folded(model: Source, *, backend: str, arithmetic: bool = False) -> Quantized:
    """See :func:`read`; what ``arithmetic`` is, see :func:`onnxq.given.fold_quantized.fold_into_quantized`."""
    found = read_quantizers(load_named(model), backend_named(backend))  # its model is nobody else's
    kinds = {"arithmetic": arithmetic, "powers_of_two": found.backend.weight.power_of_two}
    plan, numbers, notes = fold_into_quantized(found.model, found.plan, found.qparams, **kinds)
    plan = sort_nodes(found.model, found.backend, plan)  # anew: some are folded
    return replace(found, plan=plan, qparams=numbers, notes=(*found.notes, *map(str, notes)))


def _least_opset(found: Quantized) -> int:
    """The opset from which on there are integers of all widths that were found; 0 where any has them."""
    target, numbers = found.backend, found.qparams
    widths = {numbers[site.name].spec.storage_bits for site in found.plan.sites if site.role != "bias"}
    if target.wide_domain or widths <= {USUAL_BITS} or not target.format_named(found.format).integers:
        return 0
    return WIDE_OPSET
