"""Convolutions and pools of floats, as LiteRT's interpreter computes them, against onnxruntime."""

from __future__ import annotations

import onnx
import pytest

from tests.backends.litert_interpreter import agrees, one, refusal
from tests.models import normal

pytest.importorskip("ai_edge_litert")

_PADDING = (
    "",
    "pads = [1, 1, 1, 1]",
    "pads = [0, 1, 2, 1]",
    'auto_pad = "SAME_UPPER"',
    'auto_pad = "SAME_LOWER"',
    'auto_pad = "VALID"',
)
_STEPS = ("", "strides = [2, 2]", "strides = [1, 3]")
_GROUPS = {"plain": (1, 4, 8), "depthwise": (4, 4, 4), "multiplied": (4, 4, 8), "grouped": (2, 4, 6)}
_ALONG_LINES = ("", "pads = [1, 1]", "pads = [0, 2], strides = [2]", "dilations = [2], pads = [2, 1]")


def said(*attributes: str) -> str:
    """Attributes of a node, some of which may be empty."""
    return f"<{', '.join(filter(None, attributes))}>" if any(attributes) else ""


def convolution(sizes: str, kernel: tuple[int, ...], groups: tuple[int, int, int], *attributes: str) -> onnx.ModelProto:
    """A convolution over a plane, or what has the kernel's axes."""
    count, given, made = groups
    where = said(*attributes, f"group = {count}" if count > 1 else "")
    weight, bias = normal(made, given // count, *kernel), normal(made, seed=2)
    return one(f"Conv {where} (x, w, b)", f"2, {given}, {sizes}", w=weight, b=bias)


@pytest.mark.parametrize("groups", _GROUPS)
@pytest.mark.parametrize("padding", _PADDING)
@pytest.mark.parametrize("step", _STEPS)
def test_a_convolution_pads_and_steps(padding: str, step: str, groups: str) -> None:
    agrees(convolution("9, 8", (3, 2), _GROUPS[groups], padding, step))


@pytest.mark.parametrize("groups", _GROUPS)
@pytest.mark.parametrize("padding", [one for one in _PADDING if "SAME" not in one])
def test_a_convolution_with_gaps(padding: str, groups: str) -> None:
    agrees(convolution("9, 8", (3, 2), _GROUPS[groups], padding, "dilations = [1, 2]"))


@pytest.mark.parametrize("groups", _GROUPS)
@pytest.mark.parametrize("attributes", _ALONG_LINES)
def test_a_convolution_along_a_line(attributes: str, groups: str) -> None:
    agrees(convolution("11", (3,), _GROUPS[groups], attributes))


@pytest.mark.parametrize(
    "attributes", ["", "pads = [1, 1, 1, 1, 1, 1]", "pads = [0, 1, 0, 2, 1, 0], strides = [2, 1, 2]"]
)
def test_a_convolution_of_volumes(attributes: str) -> None:
    agrees(convolution("6, 7, 5", (3, 2, 3), (1, 3, 4), attributes))
    agrees(convolution("6, 7, 5", (3, 2, 3), (2, 4, 4), attributes))


_TRANSPOSED = (
    "",
    "strides = [2, 2]",
    "strides = [2, 3], pads = [1, 1, 1, 1]",
    "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]",
    "strides = [4, 5]",
    "pads = [0, 1, 2, 1]",
    "dilations = [2, 3], strides = [2, 1]",
)


@pytest.mark.parametrize(("groups", "made"), [(1, 5), (2, 6), (4, 4)])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 3), (1, 1)])
@pytest.mark.parametrize("attributes", _TRANSPOSED)
def test_a_transposed_convolution(attributes: str, kernel: tuple[int, int], groups: int, made: int) -> None:
    if kernel == (1, 1) and "pads = [0" in attributes:
        kernel = (4, 4)
    where = said(attributes, f"group = {groups}" if groups > 1 else "")
    weight = normal(4, made // groups, *kernel)
    agrees(one(f"ConvTranspose {where} (x, w, b)", "2, 4, 4, 5", w=weight, b=normal(made, seed=2)))
    agrees(one(f"ConvTranspose {where} (x, w)", "2, 4, 4, 5", w=weight))


@pytest.mark.parametrize("attributes", ["", "strides = [2], pads = [1, 1]", "strides = [3], output_padding = [1]"])
def test_a_transposed_convolution_along_a_line(attributes: str) -> None:
    agrees(one(f"ConvTranspose {said(attributes)} (x, w)", "2, 4, 6", w=normal(4, 3, 3)))


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ('auto_pad = "SAME_UPPER"', "its padding is automatic"),
        ("output_shape = [9, 10], strides = [2, 2]", "its padding is automatic"),
    ],
)
def test_a_transposed_convolution_that_tensorflow_lite_has_not(attributes: str, why: str) -> None:
    """The sizes are those that the target writes as padding before."""
    assert why in refusal(one(f"ConvTranspose <{attributes}> (x, w)", "1, 4, 4, 5", w=normal(4, 6, 3, 3)))


_POOLS = (
    "kernel_shape = [2, 2], strides = [2, 2]",
    "kernel_shape = [3, 3], pads = [1, 1, 1, 1]",
    "kernel_shape = [3, 2], pads = [1, 0, 1, 1], strides = [2, 1]",
    "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1",
    "kernel_shape = [3, 3], pads = [0, 1, 1, 1], strides = [2, 3], ceil_mode = 1",
    'kernel_shape = [3, 3], auto_pad = "SAME_UPPER", strides = [2, 2]',
    'kernel_shape = [2, 3], auto_pad = "SAME_LOWER"',
    'kernel_shape = [3, 3], auto_pad = "VALID"',
)


@pytest.mark.parametrize("sizes", ["9, 8", "8, 9"])
@pytest.mark.parametrize("attributes", _POOLS)
def test_a_pool_takes_the_largest_and_means_with_and_without_padding(attributes: str, sizes: str) -> None:
    agrees(one(f"MaxPool <{attributes}> (x)", f"2, 3, {sizes}"))
    agrees(one(f"AveragePool <{attributes}> (x)", f"2, 3, {sizes}"))
    agrees(one(f"AveragePool <{attributes}, count_include_pad = 1> (x)", f"2, 3, {sizes}"))


@pytest.mark.parametrize("attributes", ["", "strides = [2], pads = [0, 1]", "strides = [3], ceil_mode = 1"])
def test_a_pool_along_a_line(attributes: str) -> None:
    for pool in ("MaxPool", "AveragePool"):
        agrees(one(f"{pool} {said('kernel_shape = [3]', attributes)} (x)", "2, 3, 11"))


@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape = [2, 2, 2], strides = [2, 2, 2]",
        "kernel_shape = [3, 2, 3], pads = [1, 0, 1, 1, 1, 1], ceil_mode = 1",
    ],
)
def test_a_pool_over_volumes(attributes: str) -> None:
    agrees(one(f"MaxPool <{attributes}> (x)", "2, 3, 4, 5, 6"))
    agrees(one(f"AveragePool <{attributes}> (x)", "2, 3, 4, 5, 6"))
    agrees(one(f"AveragePool <{attributes}, count_include_pad = 1> (x)", "2, 3, 4, 5, 6"))


@pytest.mark.parametrize("sizes", ["5", "4, 5", "2, 4, 5", "1, 1"])
def test_a_pool_over_all(sizes: str) -> None:
    agrees(one("GlobalMaxPool (x)", f"2, 3, {sizes}"))
    agrees(one("GlobalAveragePool (x)", f"2, 3, {sizes}"))


def test_pools_that_tensorflow_lite_has_not() -> None:
    indices = one("y, i = MaxPool <kernel_shape = [2, 2]> (x)", "1, 2, 4, 4", results="float[] y, int64[] i")
    assert "gives indices" in refusal(indices)
    dilated = one("MaxPool <kernel_shape = [2, 2], dilations = [2, 1]> (x)", "1, 2, 6, 6")
    assert refusal(dilated).endswith("no pool with dilations")
