"""Does a model give the same twice? One exported in training mode does not, nor one that draws numbers."""

from __future__ import annotations

import onnx_ir as ir

from onnxq.checks.findings import Finding
from onnxq.console.terminal import counts, plural
from onnxq.graph.batch_norm import is_in_training
from onnxq.graph.recognition.dependence import nodes_behind
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array

__all__ = ["check_random", "drawn_outputs", "is_random", "two_draws"]

_DRAWS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_FIGURES = "outputs are random, so figures of accuracy compare two draws, and are not judged"
_EVAL = "Export the model after model.eval()."


def check_random(model: ir.Model) -> list[Finding]:
    """A warning for what is in training mode, and for what draws random numbers.

    Args:
        model: what is constant is known to be where it is normalized; left unchanged.
    """
    nodes = [*all_nodes(model), *(node for function in model.functions.values() for node in function.all_nodes())]
    dropouts = sum(map(_drops, nodes))
    batches = sum(map(is_in_training, nodes))
    draws = [node.op_type for node in nodes if node.domain == "" and node.op_type in _DRAWS]
    found = []
    if dropouts:
        what = f"{plural(dropouts, 'Dropout node')} {'has' if dropouts == 1 else 'have'} training_mode=true: {_FIGURES}"
        found.append(Finding("warning", "model", what, _EVAL))
    if batches:
        have = "is in training mode: it normalizes" if batches == 1 else "are in training mode: they normalize"
        what = f"{plural(batches, 'BatchNormalization node')} {have} by the batch at hand, not by what training found"
        found.append(Finding("warning", "model", what, _EVAL))
    if draws:
        what = f"{counts(draws)} {'draws' if len(draws) == 1 else 'draw'} random numbers: {_FIGURES}"
        found.append(Finding("warning", "model", what, "Make them an input, so that both models get the same."))
    return found


def two_draws(model: ir.Model) -> tuple[str, ...]:
    """What :func:`check_random` finds, as sentences."""
    return tuple(f"{found.what}. {found.hint.rstrip('.')}" for found in check_random(model))


def is_random(model: ir.Model) -> bool:
    """Whether a normalized model gives something else each time it runs."""
    return any(map(_draws, all_nodes(model)))


def drawn_outputs(model: ir.Model) -> frozenset[str]:
    """The outputs of a normalized model that random numbers are in: how far two models are apart there says nothing."""
    if not is_random(model):
        return frozenset()
    outputs = {str(value.name): value for value in model.graph.outputs}
    return frozenset(name for name, value in outputs.items() if any(map(_draws, nodes_behind(value))))


def _draws(node: ir.Node) -> bool:
    return _drops(node) or (node.domain == "" and node.op_type in _DRAWS)


def _drops(node: ir.Node) -> bool:
    """Whether a node is a Dropout that is known to drop something."""
    if node.op_type != "Dropout" or node.domain != "" or len(node.inputs) < 3:
        return False
    ratio, training = constant_array(node.inputs[1]), constant_array(node.inputs[2])
    keeps = ratio is not None and not float(ratio.reshape(-1)[0])
    return training is not None and bool(training.reshape(-1)[0]) and not keeps
