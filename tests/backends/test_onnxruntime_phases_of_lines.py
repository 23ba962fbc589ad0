"""A transposed convolution of lines, as vocoders and audio codecs have them, is a convolution of its phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq.graph.files.save import to_proto
from onnxq.render.qdq import render
from tests.backends.test_onnxruntime import optimized
from tests.backends.test_onnxruntime_groups import in_integers
from tests.backends.test_onnxruntime_phases import ALL, close
from tests.graph.helpers import run
from tests.models import build, f32, images, normal, verified_sqnr

FORMS = [
    (2, 2, (0, 0), 0),
    (3, 2, (1, 1), 1),
    (3, 2, (0, 1), 0),
    (4, 2, (1, 1), 0),
    (16, 8, (4, 4), 0),
    (8, 4, (0, 0), 0),
    (6, 2, (0, 0), 0),
    (4, 2, (1, 3), 0),
    (4, 2, (2, 2), 0),
    (5, 3, (1, 1), 0),
    (2, 3, (0, 0), 1),
]
"""Taps, stride, pads and output padding."""


def net(
    form: tuple[int, int, Sequence[int], int] = FORMS[3],
    sizes: str = "1, 16, 24",
    behind: str = "LeakyRelu (t)",
    inputs: int = 16,
    group: int = 1,
) -> onnx.ModelProto:
    taps, stride, pads, padding = form
    attributes = f"strides = [{stride}], pads = [{', '.join(map(str, pads))}], group = {group}"
    attributes += f", output_padding = [{padding}]" if padding else ""
    return build(
        f"""(float[{sizes}] x) => (float[B, 8, L] y) {{
            a = Conv (x, w)
            [up] t = ConvTranspose <{attributes}> (a, u, b)
            r = {behind}
            y = Conv (r, v)
        }}""",
        w=normal(inputs, 16, 1),
        u=normal(inputs, 12 // group, taps, seed=1),
        b=normal(12, seed=2),
        v=normal(8, 12, 1, seed=3),
        low=f32(-1),
        high=f32(2),
    )


def operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("per_channel", [True, False])
def test_it_computes_the_same(form: tuple[int, int, Sequence[int], int], per_channel: bool) -> None:
    q = onnxq.quantize(net(form), images(1, 16, 24), options=replace(ALL, per_channel=per_channel))
    made, before = to_proto(q.qdq()), to_proto(render(q))
    assert "ConvTranspose" not in operators(made)
    onnx.checker.check_model(made, full_check=True)
    for feeds in images(1, 16, 24, samples=2, seed=5):
        expected = run(before, feeds)[0]
        close(run(made, feeds)[0], expected, q)
        close(in_integers(made, feeds), expected, q)


@pytest.mark.parametrize("sizes", ["N, 16, 24", "1, 16, L0", "N, 16, L0"])
@pytest.mark.parametrize("behind", ["Identity (t)", "Clip (t, low, high)"])
def test_free_sizes(sizes: str, behind: str, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(net(sizes=sizes, behind=behind), images(1, 16, 24), options=ALL, output=path)
    assert optimized(path).count("QLinearConv") == 3
    assert not {"QuantizeLinear", "DequantizeLinear"} & operators(to_proto(onnxq.read(path).model))
    made = onnx.load(path)
    assert "ConvTranspose" not in operators(made)
    onnx.checker.check_model(made, full_check=True)
    for n, length in [(1, 24), *([(1, 40)] if "L0" in sizes else []), *([(3, 24)] if "N" in sizes else [])]:
        (feeds,) = images(n, 16, length, samples=1)
        close(in_integers(made, feeds), run(to_proto(render(q)), feeds)[0], q)
    if "N" in sizes:
        empty = {"x": np.zeros((0, 16, 24), np.float32)}
        assert run(made, empty)[0].shape == in_integers(made, empty).shape == (0, 8, 48)


@pytest.mark.parametrize(
    ("form", "more"),
    [((3, 2, (0, 0), 0), {}), ((3, 1, (1, 1), 0), {}), (FORMS[3], {"group": 2}), (FORMS[3], {"inputs": 15})],
    ids=str,
)
def test_others_stay_float_and_are_said_to(form: tuple[int, int, Sequence[int], int], more: dict[str, int]) -> None:
    plan = onnxq.plan(net(form, **more), options=ALL)  # type: ignore[arg-type]
    (kept,) = [kept for kept in plan.kept_float if kept.node == "up"]
    assert kept.reason.startswith("in integers only as a Conv: of lines or planes")


def test_the_decoder_of_a_vocoder_is_in_integers() -> None:
    """.61 of float's time with the transposed convolution in float, .34 with it in integers."""
    proto = build(
        """(float[1, 64, 480] x) => (float[1, 32, 3840] y) {
            [one] a = Conv <pads = [1, 1]> (x, w)
            f = LeakyRelu (a)
            [up] t = ConvTranspose <strides = [8], pads = [4, 4]> (f, u)
            r = LeakyRelu (t)
            [two] y = Conv <pads = [1, 1]> (r, v)
        }""",
        w=normal(64, 64, 3),
        u=normal(64, 32, 16, seed=1),
        v=normal(32, 32, 3, seed=2),
    )
    q = onnxq.quantize(proto, images(1, 64, 480, samples=12))
    assert {"one", "up", "two"} <= set(q.plan.quantized)
    assert verified_sqnr(q) > 30
