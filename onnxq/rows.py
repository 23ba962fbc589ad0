"""What the rows of many targets' tables share: operators alike, channel axes of weights, what a kernel asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxq.backend import Kind, OpRule

__all__ = [
    "Never",
    "conv_axis",
    "conv_transpose_axis",
    "each",
    "gemm_axis",
    "matmul_axis",
    "nearest",
    "only_an_output",
    "plain_average_pool",
    "plain_gemm",
    "plain_max_pool",
    "recurrent_axis",
]


@dataclass(frozen=True, slots=True)
class Never:
    """What a row has as its ``when`` that is only there to say why its operator is not quantized.

    Attributes:
        reason: the same for every node.
        fate: what becomes of it, for the target's page.
    """

    reason: str
    fate: str = "stays float"

    def __call__(self, node: ir.Node) -> str:
        """The reason."""
        return self.reason


def each(kind: Kind, names: str, **fields: Any) -> tuple[OpRule, ...]:
    """A row for each of several operators that differ in nothing but their name.

    Args:
        kind: of all of them.
        names: operator types, separated by blanks.
        **fields: the other fields of :class:`onnxq.backend.OpRule`.
    """
    return tuple(OpRule(name, kind, **fields) for name in names.split())


def conv_axis(node: ir.Node, position: int) -> int | None:
    """Output channels of a Conv weight (M, C, ...)."""
    return 0


def conv_transpose_axis(node: ir.Node, position: int) -> int | None:
    """Output channels of a ConvTranspose weight (C, M / group, ...): no axis has them where there are groups."""
    return 1 if node.attributes.get_int("group", 1) == 1 else None


def gemm_axis(node: ir.Node, position: int) -> int | None:
    """Output channels of a Gemm weight, (N, K) or (K, N)."""
    return 0 if node.attributes.get_int("transB", 0) else 1


def matmul_axis(node: ir.Node, position: int) -> int | None:
    """Output channels of a MatMul weight (K, N); one with batches has a scale for all."""
    shape = node.inputs[position].shape if node.inputs[position] is not None else None  # type: ignore[union-attr]
    return 1 if shape is not None and len(shape) == 2 else None


def recurrent_axis(node: ir.Node, position: int) -> int | None:
    """Gates of an LSTM, GRU or RNN weight (directions, gates, ...)."""
    return 1


def plain_gemm(node: ir.Node) -> str | None:
    """A Gemm that is x @ w + b."""
    if node.attributes.get_float("alpha", 1.0) != 1.0 or node.attributes.get_float("beta", 1.0) != 1.0:
        return "alpha or beta could not be folded into its constants"
    return "its first input is transposed" if node.attributes.get_int("transA", 0) else None


def nearest(node: ir.Node) -> str | None:
    """A Resize that picks elements of its input, the nearest ones."""
    if node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return "it fills in a value that its input need not hold"
    mode = node.attributes.get_string("mode", "nearest")
    return None if mode == "nearest" else f"{mode} interpolation has no integer kernel"


def only_an_output(node: ir.Node) -> str | None:
    """One that is read in the model: a model output alone is as cheap in float, and exact.

    A grid of the range that a Sigmoid or Softmax can have is coarse for scores near 0, and one of the range that it had
    cuts off what samples do not show: a word to be heard, say, in samples of silence.
    """
    if any(value.uses() for value in node.outputs):
        return None
    return "only a model output, which is exact in float"


def plain_max_pool(node: ir.Node) -> str | None:
    """A MaxPool whose indices are not used."""
    return "its indices are used" if len(node.outputs) > 1 and node.outputs[1].name else None


def plain_average_pool(node: ir.Node) -> str | None:
    """An AveragePool that onnxruntime 1.31's QLinearAveragePool computes as the operator's definition says."""
    get = node.attributes
    if any(step > 1 for step in get.get_ints("dilations", ())):
        return "onnxruntime's integer kernel has no dilations"
    beyond = get.get_int("ceil_mode", 0) == 1 or _outgrows(node)
    if beyond and get.get_int("count_include_pad", 0) == 1:
        return "onnxruntime's integer kernel divides by other counts where windows reach beyond the padding"
    return None


def _outgrows(node: ir.Node) -> bool:
    """Whether the window of a pool is larger than its input with the padding, which onnxruntime takes."""
    x, kernel = node.inputs[0], node.attributes.get_ints("kernel_shape", ())
    sizes = x.shape[2:] if x is not None and x.shape is not None else ()
    pads = node.attributes.get_ints("pads", ()) or (0,) * 2 * len(kernel)
    if len(sizes) != len(kernel) or len(pads) != 2 * len(kernel):
        return False
    both = [before + after for before, after in zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)]
    return any(
        isinstance(size, int) and window > size + pad for size, window, pad in zip(sizes, kernel, both, strict=True)
    )
