"""A trained module as torch exports it: its quantizers are nodes with the numbers that they have now."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import torch

from onnxq.render import fake_quantize, nnie_quantize
from onnxq.spec import Scheme
from onnxq.torch.agreement import CALL
from onnxq.torch.exporter import in_evaluation, in_float32, to_onnx, uncompiled
from onnxq.torch.insertion import map_tensors, tensors_of
from onnxq.torch.module import QuantizedModule
from onnxq.torch.nodes import own_node
from onnxq.torch.prepare import OPSET
from onnxq.torch.quantizers import Quantizer
from onnxq.torch.quantizers.logarithmic import logarithmic_grid

__all__ = ["traced"]

Tensor = torch.Tensor


class _Calls:
    """Names of the calls of quantizers of activations: which quantizer, and the how manieth time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def begin(self, *_: Any) -> None:
        self.counts.clear()

    def next(self, quantizer: str) -> str:
        self.counts[quantizer] += 1
        return f"{quantizer}#{self.counts[quantizer]}"


class _Exported(torch.nn.Module):
    """A quantizer as it is exported.

    Args:
        name: of the quantizer.
        quantizer: trained.
        calls: gives the nodes their names.
    """

    watching = False

    def __init__(self, name: str, quantizer: Quantizer, calls: _Calls) -> None:
        super().__init__()
        self.name, self.quantizer, self.qp, self.calls = name, quantizer, quantizer.qparams(), calls

    def forward(self, x: Tensor) -> Tensor:
        made, spec = self.quantizer, self.qp.spec
        x = made.grid_input(x)
        scale = made.shaped(torch.from_numpy(self.qp.scale.copy()).to(x.device), x)
        call = {} if made.weight else {CALL: self.calls.next(self.name)}
        if spec.scheme is Scheme.LOGARITHMIC:
            return own_node(nnie_quantize.NAME, (x, scale), {**call}, logarithmic_grid)
        zero = made.shaped(torch.from_numpy(self.qp.zero_point.astype(np.float32)).to(x.device), x)

        def compute(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
            return (torch.clamp(torch.round(x / scale) + zero, spec.qmin, spec.qmax) - zero) * scale

        axis = {} if made.axis is None else {"axis": made.axis}
        grid = {"quant_min": spec.qmin, "quant_max": spec.qmax}
        return own_node(fake_quantize.NAME, (x, scale, zero), {**grid, **axis, **call}, compute)


def traced(
    prepared: QuantizedModule, example: tuple[Any, ...], **options: Any
) -> tuple[onnx.ModelProto, list[Tensor], dict[str, Tensor]]:
    """A prepared module as ONNX, its biases not rounded.

    Args:
        prepared: calibrated; left as it was.
        example: of its forward.
        options: of :func:`onnxq.torch.exporter.to_onnx`.

    Returns:
        The model, its outputs on the example, and what its quantizers of activations give on the way there, by
        :data:`CALL`.
    """
    quantizers = dict(prepared.observing())
    calls = _Calls()
    hook = prepared.register_forward_pre_hook(calls.begin)
    try:
        with in_evaluation(prepared), uncompiled(prepared), prepared.set(round_biases=False), in_float32():
            wanted, between = _run(prepared, example, calls)
            for name, quantizer in quantizers.items():
                prepared.quantizers[name] = _Exported(name, quantizer, calls)
            proto = to_onnx(prepared, example, opset=OPSET, of=type(prepared.module).__name__, **options)
            return proto, wanted, between
    finally:
        hook.remove()
        for name, quantizer in quantizers.items():
            prepared.quantizers[name] = quantizer


def _run(prepared: QuantizedModule, example: tuple[Any, ...], calls: _Calls) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs, and what the quantizers of activations give, by call."""
    between: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(quantizer: Quantizer, args: Any, result: Tensor) -> None:
            between[calls.next(name)] = result.detach().clone()

        return hook

    hooks = [made.register_forward_hook(keep(name)) for name, made in prepared.observing() if not made.weight]
    try:
        copies = map_tensors(list(example), lambda _, x: x.clone(), "")
        return tensors_of(prepared(*copies)), between
    finally:
        for hook in hooks:
            hook.remove()
