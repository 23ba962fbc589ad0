"""Whether an exported file computes in onnxruntime what the module computes in torch.

Both round sums of their own order, so a value at a tie between two integers may fall to either side, and what follows
then differs by more: in a deep net without end. Where the outputs differ, every quantizer is looked at alone, what is
behind it being given what torch gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from onnxq.errors import VerificationError
from onnxq.graph.files.load import load
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import is_constant
from onnxq.ort.session import Session
from onnxq.render import fake_quantize

__all__ = ["CALL", "apart", "arrays", "quantized_values", "require_same", "require_tensors"]

Tensor = torch.Tensor
Arrays = Mapping[str, NDArray[Any]]

CALL = "call"
"""Attribute of a quantizer's node on its way out of torch: which call it was, a name."""
_TOLERANCE = 1e-3
"""Share of the largest value by which torch and onnxruntime may differ where no step of a quantizer explains it."""
_AT_TIES = 0.01
"""Share of the values behind a quantizer that may differ by more: those at ties."""


def quantized_values(model: ir.Model, calls: Mapping[str, Tensor]) -> dict[ir.Value, Tensor]:
    """What torch gives at the outputs of an exported model's quantizers of activations.

    Args:
        model: exported; the attributes :data:`CALL` are taken out of it.
        calls: results, by call.
    """
    found = {}
    for node in all_nodes(model):
        call = node.attributes.pop(CALL, None) if node.domain == fake_quantize.DOMAIN else None
        if call is not None and not is_constant(node.inputs[0]) and node.graph is model.graph:
            found[node.outputs[0]] = calls[call.as_string()]
    return found


def require_same(
    model: ir.Model, example: Sequence[Tensor], wanted: Sequence[Tensor], quantized: Mapping[ir.Value, Tensor]
) -> None:
    """Run an exported model in onnxruntime.

    Args:
        model: exported; left unchanged.
        example: its inputs, in order.
        wanted: the outputs in torch, in order.
        quantized: see :func:`quantized_values`.

    Raises:
        VerificationError: it computes something else than torch.
    """
    names = [v.name or "" for v in model.graph.inputs]
    if len(names) != len(example):
        raise VerificationError(
            f"it has {len(names)} inputs, the example {len(example)} tensors",
            where="the exported model",
            hint="Give as example only tensors that the module reads",
        )
    require_tensors(model, wanted)
    feeds, outputs = arrays(model.graph.inputs, example), arrays(model.graph.outputs, wanted)
    if not apart(Session(model, optimize=False).run(feeds), outputs):
        return
    there = {v.name or "" for node in model.graph for v in node.outputs}
    between = {name: t.cpu().numpy() for v, t in quantized.items() if (name := v.name or "") in there}
    given = {_given(name): array for name, array in between.items()}
    got = Session(_takenapart(model, between), optimize=False).run({**feeds, **given})
    for reason in (*apart(got, between, _AT_TIES, spared=1), *apart(got, outputs)):
        raise VerificationError(
            f"onnxruntime gives another tensor {reason}",
            where="the exported model",
            hint="A tensor that is changed in place and read under another name is exported wrongly by torch",
        )


def require_tensors(model: ir.Model, wanted: Sequence[Tensor]) -> None:
    """Refuse a module that gives more than tensors: torch writes what else it gives as constants.

    Raises:
        VerificationError: the model has other outputs than these.
    """
    if len(model.graph.outputs) != len(wanted):
        raise VerificationError(
            f"it has {len(model.graph.outputs)} outputs, the module gives {len(wanted)} tensors",
            where="the exported model",
            hint="Let forward return tensors only: no numbers, no sizes",
        )


def arrays(values: Sequence[ir.Value], tensors: Sequence[Tensor]) -> dict[str, NDArray[Any]]:
    """Tensors as arrays, by the names of as many inputs or outputs of a graph."""
    return {v.name or "": t.detach().cpu().numpy() for v, t in zip(values, tensors, strict=True)}


def apart(
    got: Arrays, wanted: Arrays, share: float = 0.5, *, spared: int = 0, tolerance: float = _TOLERANCE
) -> list[str]:
    """What differs in more than a share of its values, and in more of them than are spared."""
    found = []
    for name, array in wanted.items():
        exact, other = array.astype(np.float64), np.asarray(got[name], np.float64)
        size = float(np.abs(exact[np.isfinite(exact)]).max(initial=0.0))
        error = _errors(exact, other) if other.shape == exact.shape else np.full(max(exact.size, 2), np.inf)
        beyond = np.count_nonzero(~(error <= tolerance * max(size, 1e-30)))
        if beyond > max(share * error.size, spared):
            median = float(np.median(error))
            found.append(f"{name!r} than torch: median difference {median:.3g}, largest value {size:.3g}")
    return found


def _errors(exact: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Absolute ones; infinite numbers and NaN at the same places are none."""
    same = (exact == other) | (np.isnan(exact) & np.isnan(other))
    found: NDArray[Any] = np.abs(np.subtract(other, exact, out=np.zeros_like(exact), where=~same))
    return found


def _given(name: str) -> str:
    return f"{name}_given"


def _takenapart(model: ir.Model, between: Arrays) -> ir.Model:
    """A copy whose quantizers are outputs, with inputs for what follows them."""
    copy = load(model)
    for node in copy.graph:
        value = node.outputs[0] if node.outputs else None
        name = value.name or "" if value is not None else ""
        if value is None or name not in between:
            continue
        shape = ir.Shape(between[name].shape)
        entry = ir.Value(name=_given(name), type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
        for reader, index in list(value.uses()):
            reader.replace_input_with(index, entry)
        copy.graph.inputs.append(entry)
        if not value.is_graph_output():
            value.type, value.shape = entry.type, shape
            copy.graph.outputs.append(value)
    return copy
