"""A transposed convolution is a convolution of its phases, which has an integer kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.graph.files.save import to_proto
from onnxq.render.qdq import render
from tests.backends.test_onnxruntime import optimized
from tests.backends.test_onnxruntime_groups import in_integers
from tests.graph.helpers import run
from tests.models import build, f32, images, normal, verified_sqnr

ALL = Options(placement="all", effort="fast")
FORMS = [
    (2, 2, (0, 0, 0, 0), 0),
    (3, 2, (1, 1, 1, 1), 1),
    (3, 2, (0, 1, 1, 0), 0),
    (4, 2, (1, 1, 1, 1), 0),
    (4, 4, (0, 0, 0, 0), 0),
    (5, 3, (1, 1, 1, 1), 0),
    (8, 4, (2, 2, 2, 2), 0),
    (4, 2, (0, 0, 0, 0), 0),
    (8, 2, (1, 1, 1, 1), 0),
    (4, 2, (2, 2, 2, 2), 0),
    (2, 3, (0, 0, 0, 0), 1),
]
"""Edge, stride, pads and output padding."""


def net(
    form: tuple[int, int, Sequence[int], int] = FORMS[0],
    behind: str = "Relu (t)",
    sizes: str = "1, 16, 12, 14",
    more: str = "",
    inputs: int = 16,
    group: int = 1,
    outputs: int = 12,
) -> onnx.ModelProto:
    edge, stride, pads, padding = form
    attributes = f"strides = [{stride}, {stride}], pads = [{', '.join(map(str, pads))}], group = {group}{more}"
    attributes += f", output_padding = [{padding}, {padding}]" if padding else ""
    return build(
        f"""(float[{sizes}] x) => (float[B, 8, H, W] y) {{
            a = Conv (x, w)
            [up] t = ConvTranspose <{attributes}> (a, u, b)
            r = {behind}
            y = Conv (r, v)
        }}""",
        w=normal(inputs, 16, 1, 1),
        u=normal(inputs, outputs // group, edge, edge, seed=1),
        b=normal(outputs, seed=2),
        v=normal(8, outputs, 1, 1, seed=3),
        low=f32(-1),
        high=f32(2),
    )


def quantized(proto: onnx.ModelProto, options: Options = ALL, **shape: Any) -> Any:
    return onnxq.quantize(proto, images(*shape.get("shape", (1, 16, 12, 14))), options=options)


def close(got: np.ndarray, expected: np.ndarray, q: Any, *, rounded: bool = False) -> None:
    """Equal, but for sums of floats that fall on the other side of a tie: by one step of a few; or rounded before."""
    if rounded:
        assert got.shape == expected.shape and ((got - expected) ** 2).sum() < 1e-3 * (expected**2).sum()
        return
    (site,) = [s for s in q.plan.sites if s.role == "activation" and s.tensor == "y"] or [None]
    step = float(q.qparams[site.name].scale.max()) if site is not None else 0.05
    apart = np.abs(got - expected)
    assert got.shape == expected.shape and apart.max() <= 8 * step and (apart > step / 2).mean() < 0.01


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("per_channel", [True, False])
def test_it_computes_the_same(form: tuple[int, int, Sequence[int], int], per_channel: bool) -> None:
    q = quantized(net(form), replace(ALL, per_channel=per_channel))
    made, before = to_proto(q.qdq()), to_proto(render(q))
    assert "ConvTranspose" not in {node.op_type for node in made.graph.node}
    onnx.checker.check_model(made, full_check=True)
    for feeds in images(1, 16, 12, 14, samples=2, seed=5):
        expected = run(before, feeds)[0]
        close(run(made, feeds)[0], expected, q)
        close(in_integers(made, feeds), expected, q)


@pytest.mark.parametrize("behind", ["Identity (t)", "Clip (t, low, high)", "LeakyRelu (t)"])
def test_with_other_functions_behind(behind: str, tmp_path: Path) -> None:
    q = quantized(net(behind=behind))
    path = tmp_path / "q.onnx"
    q.save(path)
    assert optimized(path).count("QLinearConv") == 3
    (feeds,) = images(1, 16, 12, 14, samples=1, seed=5)
    close(in_integers(onnx.load(path), feeds), run(to_proto(render(q)), feeds)[0], q)


@pytest.mark.parametrize("sizes", ["N, 16, 12, 14", "1, 16, 12, W0", "N, 16, H0, W0"])
def test_free_sizes(sizes: str, tmp_path: Path) -> None:
    q = quantized(net(FORMS[1], sizes=sizes))
    made, path = to_proto(q.qdq()), tmp_path / "q.onnx"
    q.save(path)
    assert optimized(path).count("QLinearConv") == 3
    assert "ConvTranspose" not in {node.op_type for node in made.graph.node}
    for shape in [
        (1, 16, 12, 14),
        *([(1, 16, 12, 20)] if "W0" in sizes else []),
        *([(3, 16, 12, 14)] * ("N" in sizes)),
    ]:
        (feeds,) = images(*shape, samples=1)
        close(in_integers(made, feeds), run(to_proto(render(q)), feeds)[0], q)


@pytest.mark.parametrize("more", [', auto_pad = "SAME_UPPER"', ", output_shape = [24, 28]"])
def test_padding_that_is_said_by_the_size(more: str) -> None:
    """As converters from TensorFlow write it."""
    proto = net(FORMS[1], more=more)
    for node in proto.graph.node:
        if node.op_type == "ConvTranspose":
            kept = [a for a in node.attribute if a.name not in ("pads", "output_padding")]
            del node.attribute[:]
            node.attribute.extend(kept)
    q = quantized(proto)
    made = to_proto(q.qdq())
    assert "ConvTranspose" not in {node.op_type for node in made.graph.node}
    (feeds,) = images(1, 16, 12, 14, samples=1, seed=5)
    close(in_integers(made, feeds), run(proto, feeds)[0], q, rounded=True)


def test_names_stay(tmp_path: Path) -> None:
    """The node's, and that of the tensor behind it, which has its shape."""
    path = tmp_path / "q.onnx"
    quantized(net()).save(path)
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    assert {node.op_type for node in model.graph.node if node.name == "up"} == {"Conv"}
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    assert shapes["r"] == [1, 12, 24, 28]
    found: Any = onnxq.compare(net(), path, images(1, 16, 12, 14))
    assert {tensor.tensor: tensor.errors.sqnr > 25 for tensor in found.tensors}["r"]


@pytest.mark.parametrize(
    ("change", "form"),
    [
        ({"group": 2}, FORMS[0]),
        ({"more": ", dilations = [2, 2]"}, FORMS[0]),
        ({}, (3, 2, (0, 0, 0, 0), 0)),
        ({}, (3, 1, (1, 1, 1, 1), 0)),
        ({"inputs": 15}, FORMS[3]),
    ],
    ids=str,
)
def test_others_stay_float_and_are_said_to(change: dict[str, Any], form: Any) -> None:
    plan = onnxq.plan(net(form, **change), options=ALL)
    (kept,) = [kept for kept in plan.kept_float if kept.node == "up"]
    assert kept.reason.startswith("in integers only as a Conv")


def test_the_weights_of_others_are_not_rounded_with_one_scale() -> None:
    """As onnxruntime does to a ConvTranspose between quantizers; of 16 bits there is no integer kernel."""
    q = quantized(net(), replace(ALL, act_bits=16, override=(("a", onnxq.Override(act_bits=8)),)))
    made = to_proto(q.qdq())
    assert "ConvTranspose" in {node.op_type for node in made.graph.node}
    (feeds,) = images(1, 16, 12, 14, samples=1, seed=5)
    np.testing.assert_allclose(in_integers(made, feeds), run(made, feeds)[0], rtol=1e-3, atol=1e-2)


def test_weights_of_4_bits() -> None:
    q = quantized(net(), replace(ALL, weight_bits=4))
    made = to_proto(q.qdq())
    assert "ConvTranspose" not in {node.op_type for node in made.graph.node}
    (feeds,) = images(1, 16, 12, 14, samples=1, seed=5)
    close(in_integers(made, feeds), run(to_proto(render(q)), feeds)[0], q)


@pytest.mark.parametrize("form", ["qdq-microsoft", "qoperator", "fake-quantize"])
def test_other_formats(form: str) -> None:
    q = quantized(net(), replace(ALL, format=form))
    assert verified_sqnr(q) > 25


def test_weights_that_were_given_keep_their_zero_points() -> None:
    rng = np.random.default_rng(0)
    model = build(
        """(float[1, 16, 12, 14] x) => (float[1, 12, 24, 28] y) {
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            u = DequantizeLinear <axis = 1> (w, ws, wz)
            [up] c = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (d, u)
            e = QuantizeLinear (c, s, z)
            y = DequantizeLinear (e, s, z)
        }""",
        s=f32(0.05),
        z=np.uint8(128),
        w=rng.integers(0, 255, (16, 12, 4, 4)).astype(np.uint8),
        ws=np.full(12, 0.002, np.float32),
        wz=np.full(12, 117, np.uint8),
    )
    made = to_proto(onnxq.deploy(model, backend="onnxruntime").qdq())
    assert "ConvTranspose" not in {node.op_type for node in made.graph.node}
    for feeds in images(1, 16, 12, 14, samples=2):
        apart = np.abs(in_integers(made, feeds) - run(model, feeds)[0])
        assert apart.max() < 0.051 and (apart > 0.025).mean() < 0.01


def test_narrow_nets_gain_by_it_as_a_whole() -> None:
    """A decoder that stayed float between integer convolutions: .81 of float's time, .26 as integers."""
    proto = build(
        """(float[1, 64, 28, 28] x) => (float[1, 32, 56, 56] y) {
            [one] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [up] t = ConvTranspose <strides = [2, 2]> (a, u)
            r = Relu (t)
            [two] y = Conv <pads = [1, 1, 1, 1]> (r, v)
        }""",
        w=normal(64, 64, 3, 3),
        u=normal(64, 32, 2, 2, seed=1),
        v=normal(32, 32, 3, 3, seed=2),
    )
    assert {"one", "up", "two"} <= set(onnxq.plan(proto).quantized)


@pytest.mark.parametrize("form", ["input", "computed", "overridable"])
def test_a_bias_that_is_not_constant_leaves_it_float(form: str) -> None:
    proto = net()
    (bias,) = [tensor for tensor in proto.graph.initializer if tensor.name == "b"]
    if form == "computed":
        proto.graph.node.insert(0, onnx.helper.make_node("Neg", ["c"], ["b"]))
        proto.graph.input.append(onnx.helper.make_tensor_value_info("c", 1, [12]))
    else:
        proto.graph.input.append(onnx.helper.make_tensor_value_info("b", 1, [12]))
    if form != "overridable":
        proto.graph.initializer.remove(bias)
    given = {"input": {"b": normal(12, seed=2)}, "computed": {"c": normal(12, seed=2)}, "overridable": {}}[form]
    q = onnxq.quantize(proto, [{**feeds, **given} for feeds in images(1, 16, 12, 14)], options=ALL)
    assert "ConvTranspose" in {node.op_type for node in to_proto(q.qdq()).graph.node}
    assert "up" not in q.plan.quantized


def test_an_empty_batch() -> None:
    made = to_proto(quantized(net(sizes="N, 16, 12, W0")).qdq())
    assert run(made, {"x": np.zeros((0, 16, 12, 14), np.float32)})[0].shape == (0, 8, 24, 28)


@pytest.mark.parametrize("options", [{"symmetric": True}, {"act_bits": 16}])
def test_where_the_conv_would_have_no_integer_kernel_either(options: dict[str, Any]) -> None:
    """Behind int8 activations a Relu stays, and 16 bits have none: with zeros for taps floats take longer."""
    made = to_proto(quantized(net(FORMS[3]), replace(ALL, **options)).qdq())
    assert "ConvTranspose" in {node.op_type for node in made.graph.node}
