"""Bias correction: take out the mean shift that rounding the weights gives every output channel.

For a layer ``y = W x + b`` the expected error of channel ``o`` is ``sum_i (Wq - W)[o, i] E[x_i]``, with the mean of the
input over samples and positions. It is subtracted from the bias (Nagel et al., Data-Free Quantization Through Weight
Equalization and Bias Correction, 2019, section 4.2; here with measured means). Biases that an algorithm before it has
fitted to the data are left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.algorithm import Draft
from onnxq.algorithms.biases.empirical import correct_empirically
from onnxq.algorithms.biases.fitted import fitted_biases, set_computed
from onnxq.algorithms.biases.means import means_of
from onnxq.algorithms.biases.shift import expected_shift
from onnxq.calibration.measured import Measured
from onnxq.calibration.roles import few
from onnxq.calibration.statistics import KeptSample
from onnxq.errors import OptionError
from onnxq.graph.traverse import all_graphs, all_nodes
from onnxq.graph.values import constant_array, is_constant
from onnxq.numbers import fit_biases
from onnxq.options import Options
from onnxq.plan import Edge, Plan
from onnxq.qparams import QParams, fake_quantize

__all__ = ["HELP", "NAME", "PARAMETERS", "STAGE", "TITLE", "apply", "check", "correct_biases", "quick"]

NAME = "bias_correction"
TITLE = "take out the mean error that rounding the weights gives each output channel"
STAGE = "numbers"
PARAMETERS: Mapping[str, object] = {"method": "analytic", "runs": 64}
HELP: Mapping[str, str] = {
    "method": "analytic (computed from the mean of each layer's input) or empirical (measured by running the quantized "
    "model)",
    "runs": "runs of the quantized model at most, 1 or more; with method=empirical",
}


@dataclass(frozen=True, slots=True)
class _Layer:
    """A quantized layer and the bias that belongs to it alone.

    Attributes:
        node: Conv or Gemm.
        data: its input.
        weight: its weight.
        bias: the constant to correct.
        qparams: of the weight.
    """

    node: ir.Node
    data: ir.Value
    weight: ir.Value
    bias: ir.Value
    qparams: QParams


def quick(**parameters: object) -> bool:
    """Whether it is cheap enough to run each time a plan is tried."""
    return parameters.get("method", "analytic") == "analytic"


def check(*, method: str, runs: int) -> None:
    """See :func:`apply`.

    Raises:
        OptionError: a value is out of range.
    """
    if method not in ("analytic", "empirical"):
        where = "algorithm bias_correction, method"
        raise OptionError(f"{method!r} is not a method", where=where, hint="analytic or empirical")
    if runs < 1:
        raise OptionError(f"{runs!r} is below 1", where="algorithm bias_correction, runs")


def apply(draft: Draft, *, method: str = "analytic", runs: int = 64) -> None:
    """Correct the biases of a draft, and give them the scales that fit.

    Args:
        draft: changed in place.
        method: ``analytic``: what rounding a layer's weights does to its output's mean; ``empirical``: what the
            quantized model's means are measured to be, see :mod:`onnxq.algorithms.biases.empirical`.
        runs: how often the quantized model is run at most, by ``empirical``.
    """
    if method == "empirical":
        if draft.fitting:
            draft.notes.append(f"bias_correction: {correct_empirically(draft, runs)}")
        return
    fitted = fitted_biases(draft.model, draft.reference)
    done = correct_biases(
        draft.model,
        draft.plan,
        draft.numbers,
        few(draft.statistics.kept),
        reference=draft.reference,
        measured=draft.statistics.measured,
        sizes=draft.sizes,
        options=draft.options,
        leave=fitted,
    )
    fit_biases(draft.model, draft.plan, draft.numbers)
    if done or fitted:
        left = f"; {len(fitted)} left as an algorithm before it has fitted them" if fitted else ""
        draft.notes.append(f"bias_correction: {done} layers{left}")


def correct_biases(
    model: ir.Model,
    plan: Plan,
    numbers: Mapping[str, QParams],
    samples: Sequence[KeptSample],
    *,
    reference: ir.Model | None = None,
    measured: Measured | None = None,
    sizes: Mapping[str, int] | None = None,
    options: Options | None = None,
    leave: Collection[str] = (),
) -> int:
    """Correct the biases of convolutions and Gemms that have a bias of their own.

    Args:
        model: the float model; the biases are changed in place.
        plan: where it is quantized.
        numbers: parameters by site name.
        samples: samples to measure the mean of each layer's input on.
        reference: holds the weights and biases to compare with, where those of ``model`` have been changed before.
        measured: what is known of the reference; added to where ``model`` is still an unchanged copy of it.
        sizes: tensor name → number of elements, to bound the memory that measuring takes.
        options: execution providers and the library of custom operators.
        leave: names of biases that stay as they are.

    Returns:
        Number of layers corrected.
    """
    layers = [layer for layer in _layers(model, plan, numbers) if layer.bias.name not in leave]
    if not layers or not samples:
        return 0
    source, shared = reference or model, measured or Measured()
    if reference is None or not _unchanged(model, reference, shared):
        shared = Measured()
    known, biases = shared.means.setdefault(source, {}), shared.biases.setdefault(source, {})
    ranks = {layer.data.name or "": len(layer.weight.shape or ()) for layer in layers}
    means = means_of(source, ranks, samples, known, sizes=sizes or {}, options=Options.of(options))
    done = 0
    original = _constants(reference, layers) if reference is not None else {}
    for layer in layers:
        mean = means.get(layer.data.name or "")
        key = (layer.node.name or "", layer.qparams)
        if key not in biases:
            biases[key] = _corrected(layer, mean, original) if mean is not None else None
        corrected = biases[key]
        if corrected is not None:
            set_computed(layer.bias, ir.Tensor(corrected, name=layer.bias.name))
            done += 1
    return done


def _corrected(
    layer: _Layer, mean: NDArray[np.float64], original: Mapping[str, NDArray[np.float32]]
) -> NDArray[np.float32] | None:
    """The bias of a layer less the error to expect, ``None`` where it has not one finite value an output channel."""
    weight, bias = constant_array(layer.weight), constant_array(layer.bias)
    if weight is None or bias is None:
        return None
    exact, start = original.get(layer.weight.name or "", weight), original.get(layer.bias.name or "", bias)
    error = fake_quantize(weight, layer.qparams)
    error -= exact
    shift = expected_shift(layer.node, error, mean)
    if bias.size != shift.size or bias.shape[-1:] != shift.shape:
        return None
    corrected = (start.astype(np.float64) - shift.reshape(bias.shape)).astype(np.float32)
    return corrected if np.isfinite(corrected).all() else None


def _layers(model: ir.Model, plan: Plan, numbers: Mapping[str, QParams]) -> list[_Layer]:
    weights = plan.by_edge("weight")
    found = []
    for node in all_nodes(model):
        site = weights.get(Edge(node.name or "", 1))
        if site is None or site.name not in numbers or node.op_type not in ("Conv", "Gemm") or len(node.inputs) < 3:
            continue
        data, weight, bias = node.inputs[0], node.inputs[1], node.inputs[2]
        if data is None or weight is None or bias is None or not is_constant(bias):
            continue
        if len(bias.uses()) != 1 or bias.is_graph_output():
            continue
        found.append(_Layer(node, data, weight, bias, numbers[site.name]))
    return found


def _unchanged(model: ir.Model, reference: ir.Model, measured: Measured) -> bool:
    """Whether a copy of a model still holds the very constants of that model, or its kernels rounded without data."""
    own, theirs = ({n: v for g in all_graphs(m) for n, v in g.initializers.items()} for m in (model, reference))
    rounded = {id(tensor) for _, tensor in measured.kernels.get(reference, {}).values()}
    return own.keys() == theirs.keys() and all(
        own[n].const_value is v.const_value or id(own[n].const_value) in rounded for n, v in theirs.items()
    )


def _constants(model: ir.Model, layers: Sequence[_Layer]) -> dict[str, NDArray[np.float32]]:
    """Weights and biases of layers in another model, by name."""
    names = {value.name for layer in layers for value in (layer.weight, layer.bias)}
    values = (v for graph in all_graphs(model) for name, v in graph.initializers.items() if name in names)
    found = {value.name or "": constant_array(value) for value in values}
    return {name: np.asarray(array, np.float32) for name, array in found.items() if array is not None}
