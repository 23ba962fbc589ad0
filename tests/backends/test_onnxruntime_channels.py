"""Channels of zeros fill up blocks between convolutions, and change no other number."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.onnxruntime import channels
from onnxq.backends.onnxruntime.channels import filled_up
from onnxq.backends.onnxruntime.convolutions import conv_cost
from onnxq.calibration.reduced import overflows
from onnxq.graph.files.save import to_proto
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array
from onnxq.prepare import Prepared
from onnxq.render.qdq import render
from tests.backends.test_onnxruntime_groups import in_integers, unchanged
from tests.graph.helpers import run
from tests.models import build, f32, images, normal, verified_sqnr

ALL = Options(placement="all", effort="fast")
DEPTHWISE = "d = Conv <pads = [1, 1, 1, 1], group = {0}> (r, wd, bd)"
SQUEEZED = f"{DEPTHWISE} \n p = GlobalAveragePool (d) \n q = Conv (p, ws) \n s = HardSigmoid (q) \n t = Mul (d, s)"
THROUGH = {
    "depthwise": f"{DEPTHWISE} \n t = Clip (d, low, high)",
    "squeezed": SQUEEZED,
    "pooled": f"{DEPTHWISE} \n h = HardSwish (d) \n t = MaxPool <kernel_shape = [2, 2]> (h)",
    "resized": f'{DEPTHWISE} \n t = Resize <mode = "nearest"> (d, , doubled)',
    "added": f"{DEPTHWISE} \n e = Conv (x, we) \n t = Add (d, e)",
}
STAYS = {
    "concatenated": f"{DEPTHWISE} \n t = Concat <axis = 1> (d, x)",
    "scaled by channel": f"{DEPTHWISE} \n n = Neg (d) \n t = Mul (n, each)",
    "divided": f"{DEPTHWISE} \n t = Reciprocal (d)",
    "of one channel": f"{DEPTHWISE} \n o = ReduceMax <axes = [1]> (d) \n t = Mul (d, o)",
}


def net(body: str, channels: int = 72, outputs: str = "float[1, 8, M, N] y", wide: int = 0) -> onnx.ModelProto:
    return build(
        f"""(float[1, 16, 28, 28] x) => ({outputs}) {{
            a = Conv (x, w, b)
            r = Relu (a)
            {body.format(channels)}
            y = Conv (t, v)
        }}""",
        opset=14,
        w=normal(channels, 16, 1, 1),
        b=normal(channels, seed=1),
        wd=normal(channels, 1, 3, 3, seed=2),
        bd=normal(channels, seed=3),
        ws=normal(channels, channels, 1, 1, seed=4),
        we=normal(channels, 16, 1, 1, seed=5),
        v=normal(8, channels + wide, 1, 1, seed=6),
        each=normal(1, channels, 1, 1, seed=7),
        low=f32(0),
        high=f32(6),
        doubled=np.array([1, 1, 2, 2], np.float32),
    )


def groups(model: onnx.ModelProto) -> set[int]:
    return {int(a.i) for node in model.graph.node for a in node.attribute if a.name == "group"} - {1}


@pytest.mark.parametrize("body", THROUGH.values(), ids=THROUGH)
@pytest.mark.parametrize("per_channel", [True, False])
def test_the_numbers_stay(body: str, per_channel: bool) -> None:
    data = images(1, 16, 28, 28)
    q = onnxq.quantize(net(body), data, options=replace(ALL, per_channel=per_channel))
    filled, before = unchanged(q, data[:2])
    assert groups(before) == {72} and groups(filled) == {80}


@pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
def test_where_anything_else_reads_the_channels_there_are_none(body: str) -> None:
    wide = 16 if "Concat" in body else 0
    q = onnxq.quantize(net(body, wide=wide), images(1, 16, 28, 28), options=ALL)
    assert groups(to_proto(q.qdq())) == {72}


def test_what_the_model_gives_keeps_its_channels() -> None:
    outputs = "float[1, 8, M, N] y, float[1, 72, M, N] d"
    q = onnxq.quantize(net(THROUGH["depthwise"], outputs=outputs), images(1, 16, 28, 28), options=ALL)
    assert groups(to_proto(q.qdq())) == {72}


@pytest.mark.parametrize(
    ("channels", "body", "filled"),
    [
        (24, "depthwise", 32),
        (20, "depthwise", None),
        (18, None, 20),
        (10, None, 12),
        (9, None, 12),
        (6, None, 8),
        (5, None, None),
    ],
)
def test_how_many(channels: int, body: str | None, filled: int | None) -> None:
    """A third of the channels there are, at most."""
    model = Prepared(net(THROUGH[body] if body else "t = Identity (r)", channels), Options()).model
    (value,) = [value for node in all_nodes(model) for value in node.outputs if value.name == "r"]
    assert filled_up(value) == filled


@pytest.mark.parametrize(
    ("excluded", "filled"), [(("depthwise",), 72), (("made", "read"), 80), (("made", "depthwise", "read"), 72)]
)
def test_only_where_a_kernel_is_an_integer_one(excluded: tuple[str, ...], filled: int) -> None:
    """Float kernels fill up blocks by themselves."""
    proto = net(THROUGH["depthwise"])
    for node in proto.graph.node:
        if node.op_type == "Conv":
            node.name = {"a": "made", "d": "depthwise", "y": "read"}[node.output[0]]
    data = images(1, 16, 28, 28)
    q = onnxq.quantize(proto, data, options=replace(ALL, exclude=excluded, min_sqnr=0))
    found = to_proto(q.qdq())
    assert groups(found) == {filled}
    expected, got = (run(model, data[0])[0] for model in (to_proto(render(q)), found))
    np.testing.assert_allclose(got, expected, atol=0.02 * np.abs(expected).max())


def test_depthwise_in_float_takes_fours() -> None:
    """It computes others one by one."""
    proto = net(THROUGH["depthwise"], 18)
    q = onnxq.quantize(proto, images(1, 16, 28, 28), options=Options(exclude=("Conv",)))
    assert not q.plan.quantized and groups(to_proto(q.qdq())) == {20}
    (feeds,) = images(1, 16, 28, 28, samples=1)
    np.testing.assert_allclose(run(to_proto(q.qdq()), feeds)[0], run(to_proto(render(q)), feeds)[0], atol=1e-3)


def test_constants_that_others_read_too_keep_their_size() -> None:
    """Exporters store equal ones once."""
    proto = net(THROUGH["added"].replace("(x, we)", "(x, we, b)"))
    data = images(1, 16, 28, 28)
    q = onnxq.quantize(proto, data, options=replace(ALL, exclude=("a", "e")))
    found = to_proto(q.qdq())
    assert groups(found) == {80}
    np.testing.assert_array_equal(in_integers(found, data[0]), in_integers(to_proto(render(q)), data[0]))


def test_a_convolution_costs_what_it_takes_with_them() -> None:
    def depthwise(body: str, channels: int) -> ir.Node:
        model = Prepared(net(body, channels), Options()).model
        return next(node for node in all_nodes(model) if node.attributes.get_int("group", 1) > 1)

    costs = {
        channels: conv_cost(depthwise(THROUGH["depthwise"], channels), channels * 784.0)[1] * channels
        for channels in (72, 80)
    }
    assert costs[72] == pytest.approx(costs[80])
    assert conv_cost(depthwise(STAYS["divided"], 72), 72 * 784.0)[1] * 72 > 1.5 * costs[72]


def test_they_are_left_out_where_models_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    data = images(1, 16, 28, 28)
    onnxq.quantize(net(THROUGH["depthwise"]), data, options=ALL, output=path)
    found: Any = onnxq.compare(net(THROUGH["depthwise"]), path, data)
    levels = {tensor.tensor: tensor.errors.sqnr for tensor in found.tensors}
    assert levels["r"] > 30 and levels["t"] > 25


@pytest.mark.parametrize("channels", [72, 1])
def test_weights_that_were_given_keep_their_zero_points(channels: int) -> None:
    """Of each channel, or of all."""
    rng = np.random.default_rng(0)
    pair = "{0}q = QuantizeLinear ({0}, s, z) \n {0}d = DequantizeLinear ({0}q, s, z)"
    constants: dict[str, Any] = {}
    for name, shape in {"w": (72, 16, 1, 1), "v": (72, 1, 3, 3), "u": (8, 72, 1, 1)}.items():
        count = min(channels, shape[0])
        constants |= {
            name: rng.integers(0, 255, shape).astype(np.uint8),
            f"{name}s": np.full(count, 0.002, np.float32) if count > 1 else f32(0.002),
            f"{name}z": np.full(count if count > 1 else (), 117, np.uint8),
        }
    unpacked = "\n".join(f"{n}d = DequantizeLinear <axis = 0> ({n}, {n}s, {n}z)" for n in "wvu")
    model = build(
        f"""(float[1, 16, 28, 28] x) => (float[1, 8, 28, 28] y) {{
            {unpacked}
            {pair.format("x")}
            a = Conv (xd, wd)
            {pair.format("a")}
            b = Conv <pads = [1, 1, 1, 1], group = 72> (ad, vd)
            {pair.format("b")}
            c = Conv (bd, ud)
            {pair.format("c")}
            y = Relu (cd)
        }}""",
        s=f32(0.05),
        z=np.uint8(128),
        **constants,
    )
    filled = to_proto(onnxq.deploy(model, backend="onnxruntime").qdq())
    assert groups(filled) == {80}
    for feeds in images(1, 16, 28, 28, samples=2):
        np.testing.assert_array_equal(in_integers(filled, feeds), in_integers(model, feeds))


@pytest.mark.parametrize(("channels", "edge", "filled"), [(15, 3, 15), (15, 1, 16), (18, 3, 20)])
def test_odd_channels_are_not_filled_in_front_of_several_taps(channels: int, edge: int, filled: int) -> None:
    """Without VNNI neighbours are added in 16 bits, and would be others."""
    proto = build(
        f"""(float[1, 16, 12, 14] x) => (float[1, 8, 12, 14] y) {{
            a = Conv (x, w)
            r = Relu (a)
            [read] y = Conv <pads = [{", ".join([str(edge // 2)] * 4)}]> (r, v)
        }}""",
        w=normal(channels, 16, 1, 1),
        v=normal(8, channels, edge, edge, seed=1),
    )
    q = onnxq.quantize(proto, images(1, 16, 12, 14), options=replace(ALL, reduce_range=True))
    (reader,) = [node for node in all_nodes(q.qdq()) if node.name == "read"]
    unpack = reader.inputs[1].producer() if reader.inputs[1] is not None else None
    weight = constant_array(unpack.inputs[0]) if unpack is not None else None
    assert weight is not None and weight.shape[1] == filled
    assert not overflows(reader, weight.astype(np.float32), np.zeros(1, np.int64))


def test_a_weight_that_the_model_gives_keeps_its_shape() -> None:
    proto = net(THROUGH["depthwise"])
    proto.graph.node[-1].name = "head"
    proto.graph.output.append(onnx.helper.make_tensor_value_info("v", 1, [8, 72, 1, 1]))
    q = onnxq.quantize(proto, images(1, 16, 28, 28), options=replace(ALL, exclude=("head",)))
    found = run(to_proto(q.qdq()), images(1, 16, 28, 28, samples=1)[0])
    assert [array.shape for array in found] == [(1, 8, 28, 28), (8, 72, 1, 1)]


def test_planning_takes_as_much_longer_as_there_are_more_nodes() -> None:
    """What has its channels in common is found once, not for each convolution."""

    def steps(blocks: int) -> int:
        body = "\n".join(
            f"a{k} = Conv (r{k}, w) \n b{k} = Relu (a{k}) \n c{k} = Conv (b{k}, w) \n r{k + 1} = Add (r{k}, c{k})"
            for k in range(blocks)
        )
        body = f"r0 = Conv (x, w) \n {body} \n y = Conv (r{blocks}, w)"
        proto = build(
            f"(float[1, 24, 8, 8] x) => (float[1, 24, 8, 8] y) {{ {body} }}",
            w=normal(24, 24, 1, 1),
        )
        model = Prepared(proto, Options()).model
        count = 0

        def follow(*given: Any) -> Any:
            nonlocal count
            count += 1
            return found(*given)

        found = channels._follow
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(channels, "_follow", follow)
            for node in all_nodes(model):
                channels.filled_up(node.outputs[0])
        return count

    assert steps(80) < 5 * steps(20)


def test_no_model_is_held() -> None:
    def planned() -> Any:
        model = Prepared(net(THROUGH["depthwise"]), Options()).model
        for node in all_nodes(model):
            filled_up(node.outputs[0])
        return weakref.ref(model.graph)

    graph = planned()
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize(
    "algorithms", [("bias_correction:method=empirical",), ("gptq:prefix=true",), ("gptq", "bias_correction")]
)
@pytest.mark.parametrize("body", ["depthwise", "squeezed"])
def test_algorithms_see_the_tensors_without_them(algorithms: tuple[str, ...], body: str) -> None:
    """They compare channels with those of the float model."""
    q = onnxq.quantize(net(THROUGH[body]), images(1, 16, 28, 28), options=replace(ALL, algorithms=algorithms))
    assert groups(to_proto(q.qdq())) == {80}
    assert {channels for v in all_nodes(q.with_tensors()) if (channels := v.attributes.get_int("group", 1)) > 1} == {72}
    assert verified_sqnr(q) > 20
