"""Bias correction: take out the mean shift that rounding the weights gives every output channel.

For a layer ``y = W x + b`` the expected error of channel ``o`` is ``sum_i (Wq - W)[o, i] E[x_i]``, with the mean of the
input over samples and positions. It is subtracted from the bias (Nagel et al., Data-Free Quantization Through Weight
Equalization and Bias Correction, 2019, section 4.2; here with measured means).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.statistics import KeptSample
from onnxq.calibration.taps import tap
from onnxq.graph.values import constant_array, is_constant
from onnxq.plan import Plan
from onnxq.qparams import QParams, fake_quantize
from onnxq.session import Session

__all__ = ["correct_biases"]


def correct_biases(
    model: ir.Model,
    plan: Plan,
    numbers: Mapping[str, QParams],
    samples: Sequence[KeptSample],
    *,
    providers: Sequence[str] | None = None,
    custom_op_library: str | None = None,
) -> int:
    """Correct the biases of convolutions and Gemms that have a bias of their own.

    Args:
        model: the float model; the biases are changed in place.
        plan: where it is quantized.
        numbers: parameters by site name.
        samples: samples to measure the mean of each layer's input on.
        providers: execution providers of onnxruntime.
        custom_op_library: shared library with the model's custom operators.

    Returns:
        Number of layers corrected.
    """
    layers = list(_layers(model, plan, numbers))
    inputs = list(dict.fromkeys(node.inputs[0].name or "" for node, _ in layers if node.inputs[0] is not None))
    if not layers or not samples:
        return 0
    means = _means(model, inputs, samples, providers, custom_op_library)
    done = 0
    for node, qparams in layers:
        data, weight, bias = node.inputs[0], node.inputs[1], node.inputs[2]
        assert data is not None and weight is not None and bias is not None
        mean = means.get(data.name or "")
        array, old = constant_array(weight), constant_array(bias)
        if mean is None or array is None or old is None:
            continue
        error = fake_quantize(array, qparams).astype(np.float64) - array
        shift = _shift(node, error, mean)
        corrected = (old.astype(np.float64) - shift.reshape(old.shape)).astype(np.float32)
        bias.const_value = ir.tensor(corrected, name=bias.name)
        done += 1
    return done


def _layers(model: ir.Model, plan: Plan, numbers: Mapping[str, QParams]) -> Sequence[tuple[ir.Node, QParams]]:
    """Quantized layers with a weight and a bias that belong to them alone."""
    weights = {(e.node, e.index): s.name for s in plan.sites if s.role == "weight" for e in s.readers}
    found = []
    for node in model.graph.all_nodes():
        site = weights.get((node.name or "", 1))
        if site is None or node.op_type not in ("Conv", "Gemm") or len(node.inputs) < 3:
            continue
        bias = node.inputs[2]
        if bias is not None and is_constant(bias) and len(bias.uses()) == 1 and site in numbers:
            found.append((node, numbers[site]))
    return found


def _means(
    model: ir.Model,
    tensors: Sequence[str],
    samples: Sequence[KeptSample],
    providers: Sequence[str] | None,
    custom_op_library: str | None,
) -> dict[str, NDArray[np.float64]]:
    """Mean of each channel (axis 1) of each tensor, over samples and positions."""
    tapped, names = tap(model, tensors)
    session = Session(tapped, providers=providers, custom_op_library=custom_op_library)
    sums: dict[str, NDArray[np.float64]] = {}
    counts: dict[str, int] = {}
    for sample in samples:
        got = session.run(sample.feeds, list(names.values()))
        for tensor, output in names.items():
            values = got[output]
            if values.size == 0 or values.ndim < 2 or not np.isfinite(values).all():
                continue
            axes = tuple(a for a in range(values.ndim) if a != 1)
            total = values.sum(axis=axes, dtype=np.float64)
            sums[tensor] = sums.get(tensor, 0.0) + total
            counts[tensor] = counts.get(tensor, 0) + values.size // values.shape[1]
    return {name: total / counts[name] for name, total in sums.items()}


def _shift(node: ir.Node, error: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Expected error of each output channel."""
    if node.op_type == "Gemm":
        matrix = error if node.attributes.get_int("transB", 0) else error.T
        return np.asarray(matrix @ mean)
    group = node.attributes.get_int("group", 1)
    per_input = error.reshape(error.shape[0], error.shape[1], -1).sum(axis=2)
    outputs = per_input.shape[0] // group
    channels = mean.reshape(group, -1)
    return np.concatenate([per_input[g * outputs : (g + 1) * outputs] @ channels[g] for g in range(group)])
