"""Convolutions, pooling, normalization, resizing and recurrent layers give what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.installed import has
from tests.models import f32, normal

pytest.importorskip("torch", reason="the extra torch is not installed")

from tests.torch.ops.helpers import case

X = normal(2, 4, 9, 8, scale=1.0)


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ("", (6, 4, 3, 3)),
        ("<pads = [1, 1, 1, 1]>", (6, 4, 3, 3)),
        ("<pads = [0, 1, 2, 1], strides = [2, 1]>", (6, 4, 3, 3)),
        ("<group = 2, dilations = [2, 1]>", (6, 2, 3, 3)),
        ("<group = 4>", (8, 1, 3, 3)),
        ('<auto_pad = "SAME_UPPER", strides = [2, 2]>', (6, 4, 3, 2)),
        ('<auto_pad = "SAME_LOWER", strides = [2, 2]>', (6, 4, 2, 3)),
        ('<auto_pad = "VALID">', (6, 4, 3, 3)),
    ],
)
def test_convolution(attributes: str, shape: tuple[int, ...]) -> None:
    text = f"(float[2, 4, 9, 8] x) => (float[N, C, H, W] y) {{ y = Conv {attributes} (x, w, b) }}"
    case(text, {"x": X}, w=normal(*shape), b=normal(shape[0]))


def test_convolution_of_one_and_three_axes() -> None:
    text = "(float[1, 3, 9] x) => (float[N, C, L] y) { y = Conv <pads = [1, 2], strides = [2]> (x, w) }"
    case(text, {"x": normal(1, 3, 9)}, w=normal(4, 3, 3))
    text = "(float[1, 2, 4, 5, 4] x) => (float[N, C, D, H, W] y) { y = Conv (x, w) }"
    case(text, {"x": normal(1, 2, 4, 5, 4)}, w=normal(3, 2, 2, 3, 2))


@pytest.mark.parametrize(
    "attributes",
    [
        "",
        "<strides = [2, 2]>",
        "<strides = [2, 3], pads = [1, 0, 0, 1], output_padding = [1, 2]>",
        "<group = 2, strides = [2, 2], dilations = [2, 1]>",
        "<strides = [2, 2], output_shape = [17, 18]>",
        '<strides = [2, 2], auto_pad = "SAME_UPPER">',
        '<strides = [2, 2], auto_pad = "SAME_LOWER">',
    ],
)
def test_transposed_convolution(attributes: str) -> None:
    outputs = 3 if "group" in attributes else 6
    text = f"(float[2, 4, 9, 8] x) => (float[N, C, H, W] y) {{ y = ConvTranspose {attributes} (x, w, b) }}"
    case(text, {"x": X}, w=normal(4, outputs, 3, 3), b=normal(6))


@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape = [2, 2]",
        "kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]",
        "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1",
        "kernel_shape = [2, 3], pads = [0, 1, 1, 1], strides = [3, 2], ceil_mode = 1",
        'kernel_shape = [3, 2], strides = [2, 2], auto_pad = "SAME_UPPER"',
        'kernel_shape = [3, 2], strides = [2, 2], auto_pad = "SAME_LOWER"',
    ],
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "AveragePool inside"])
def test_pooling(op: str, attributes: str) -> None:
    if "inside" in op and "SAME" in attributes and not has("onnxruntime", "1.25"):
        pytest.skip("onnxruntime before 1.25 divides by other counts")
    more = ", count_include_pad = 1" if "inside" in op else ""
    name = op.partition(" ")[0]
    case(
        f"(float[2, 4, 9, 8] x) => (float[N, C, H, W] y) {{ y = {name} <{attributes}{more}> (x) }}", {"x": X}, opset=19
    )


def test_pooling_with_gaps_and_over_everything() -> None:
    text = (
        "(float[2, 4, 9, 8] x) => (float[N, C, H, W] y) { y = MaxPool <kernel_shape = [2, 3], dilations = [2, 2]> (x) }"
    )
    case(text, {"x": X})
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        case(f"(float[2, 4, 9, 8] x) => (float[2, 4, 1, 1] y) {{ y = {op} (x) }}", {"x": X})


def test_normalizations() -> None:
    one, two = normal(4, seed=1), normal(4, seed=2)
    text = "(float[2, 4, 9, 8] x) => (float[2, 4, 9, 8] y) { y = BatchNormalization <epsilon = 0.01> (x, s, b, m, v) }"
    case(text, {"x": X}, s=one, b=two, m=normal(4, seed=3), v=np.abs(normal(4, seed=4)) + f32(0.1))
    case(
        "(float[2, 4, 9, 8] x) => (float[2, 4, 9, 8] y) { y = InstanceNormalization (x, s, b) }", {"x": X}, s=one, b=two
    )
    text = "(float[2, 4, 9, 8] x) => (float[2, 4, 9, 8] y) { y = LRN <size = 3, alpha = 0.1> (x) }"
    case(text, {"x": X})
    case("(float[2, 4, 9, 8] x) => (float[2, 4, 9, 8] y) { y = LpNormalization <axis = 1> (x) }", {"x": X})
    text = "(float[2, 4, 9, 8] x) => (float[2, 4, 9, 8] y) { y = GroupNormalization <num_groups = 2> (x, s, b) }"
    case(text, {"x": X}, opset=21, s=one, b=two)


@pytest.mark.parametrize("axis", [-1, 2])
def test_layer_normalization(axis: int) -> None:
    shape = X.shape[axis:]
    text = f"(float[2, 4, 9, 8] x) => (float[2, 4, 9, 8] y) {{ y = LayerNormalization <axis = {axis}> (x, s, b) }}"
    case(text, {"x": X}, s=normal(*shape, seed=1), b=normal(*shape, seed=2))


@pytest.mark.parametrize("how", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [(2.0, 2.0), (1.5, 0.5)])
def test_resize(how: str, mode: str, scales: tuple[float, float]) -> None:
    attributes = f'<mode = "{mode}", coordinate_transformation_mode = "{how}">'
    text = f"(float[2, 4, 9, 8] x) => (float[N, C, H, W] y) {{ y = Resize {attributes} (x, , s) }}"
    case(text, {"x": X}, s=f32([1, 1, *scales]))


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_to_a_size(nearest: str) -> None:
    text = f'(float[2, 4, 9, 8] x) => (float[N, C, H, W] y) {{ y = Resize <nearest_mode = "{nearest}"> (x, , , s) }}'
    case(text, {"x": X}, s=np.array([2, 4, 13, 5], np.int64))


def test_resize_leaving_out_what_is_outside() -> None:
    text = (
        '(float[2, 4, 9, 8] x) => (float[N, C, H, W] y) { y = Resize <mode = "cubic", exclude_outside = 1> (x, , s) }'
    )
    case(text, {"x": X}, s=f32([1, 1, 2, 0.7]))


def test_upsample_of_older_operator_sets() -> None:
    for mode in ("nearest", "linear"):
        text = f'(float[2, 4, 9, 8] x) => (float[N, C, H, W] y) {{ y = Upsample <mode = "{mode}"> (x, s) }}'
        case(text, {"x": X}, opset=9, s=f32([1, 1, 2, 3]))
    text = '(float[2, 4, 9, 8] x) => (float[N, C, H, W] y) { y = Resize <mode = "nearest"> (x, s) }'
    case(text, {"x": X}, opset=10, s=f32([1, 1, 2, 3]))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "GRU reset", "RNN"])
def test_recurrent(op: str, direction: str) -> None:
    name, _, reset = op.partition(" ")
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    count = 2 if direction == "bidirectional" else 1
    attributes = f'hidden_size = 6, direction = "{direction}"' + (", linear_before_reset = 1" if reset else "")
    starts = "h, c" if name == "LSTM" else "h"
    outputs = "y, u, v" if name == "LSTM" else "y, u"
    declared = "float[T, D, N, H] y, float[D, N, H] u" + (", float[D, N, H] v" if name == "LSTM" else "")
    text = f"(float[5, 2, 3] x) => ({declared}) {{ {outputs} = {name} <{attributes}> (x, w, r, b, , {starts}) }}"
    states = {"h": normal(count, 2, 6, seed=5), **({"c": normal(count, 2, 6, seed=6)} if name == "LSTM" else {})}
    rows = {"w": normal(count, 6 * gates, 3, seed=1), "r": normal(count, 6 * gates, 6, seed=2)}
    case(text, {"x": normal(5, 2, 3)}, opset=18, b=normal(count, 12 * gates, seed=3), **rows, **states)
