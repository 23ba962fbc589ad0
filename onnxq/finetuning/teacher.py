"""The float model that a quantized one learns from."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.console.terminal import counts
from onnxq.errors import ModelError
from onnxq.integer_operators import quantizing
from onnxq.measuring.rescaled import rescaled_apart
from onnxq.options import Options
from onnxq.ort.inputs import inputs_of
from onnxq.prepare import Prepared
from onnxq.quantized import Quantized

__all__ = ["features_of", "not_the_model_quantized", "teacher_of"]

_MOST_FEATURES = 16


def teacher_of(given: Quantized, prepared: Prepared) -> ir.Model:
    """The float model as the target of a quantized one wants it.

    Raises:
        ModelError: it is quantized, or another model than the one that was, or the one to train is not quantized.
    """
    if not given.qparams:
        raise _nothing_to_train(given)
    if carried := quantizing(prepared.model):
        raise not_the_model_quantized(f"it is quantized itself: {counts(carried)}")
    teacher = prepared.for_target(given.backend, Options()).model
    _require_same_names(given.model, teacher)
    return teacher


def _nothing_to_train(given: Quantized) -> ModelError:
    """The error for a model of which no quantizer was read."""
    left = quantizing(given.model)
    if not left:
        return ModelError("the model carries no quantizers", hint="Quantize it first, with 'onnxq quantize'")
    what = f"it quantizes with {counts(left)}, in a way that is not trained: in blocks, say, or while it runs"
    return ModelError(what, where="the quantized model", hint="Quantize the float model with 'onnxq quantize'")


def features_of(given: Quantized, teacher: ir.Model) -> list[str]:
    """Tensors that both graphs make alike and a quantizer stands behind, evenly spaced over the depth."""
    there = {v.name for node in teacher.graph for v in node.outputs} - rescaled_apart(given.model, teacher)
    sites = {s.tensor for s in given.plan.sites if s.role == "activation"}
    outputs = {v.name for v in given.model.graph.outputs}
    made = [v.name or "" for node in given.model.graph for v in node.outputs if v.dtype in (None, ir.DataType.FLOAT)]
    found = [name for name in made if name in sites and name in there and name not in outputs]
    count = min(_MOST_FEATURES, len(found))
    return [found[round(k * (len(found) - 1) / max(count - 1, 1))] for k in range(count)]


def not_the_model_quantized(what: str) -> ModelError:
    """The error of a teacher that cannot be the model that was quantized."""
    return ModelError(what, where="the float model", hint="Give the float model that was quantized")


def _require_same_names(model: ir.Model, teacher: ir.Model) -> None:
    """Of inputs and outputs."""
    pairs = {
        "inputs": ([i.name for i in inputs_of(model)], [i.name for i in inputs_of(teacher)]),
        "outputs": ([v.name or "" for v in model.graph.outputs], [v.name or "" for v in teacher.graph.outputs]),
    }
    for word, (names, wanted) in pairs.items():
        if names != wanted:
            its, those = (", ".join(each) or "none" for each in (wanted, names))
            raise not_the_model_quantized(f"its {word} are {its}, those of the quantized model {those}")
