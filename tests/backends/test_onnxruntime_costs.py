"""Costs of processors with VNNI and without, where integers gain less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.onnxruntime import BACKEND, convolutions, costs
from onnxq.for_processor import for_processor, reduces
from onnxq.graph.traverse import all_nodes
from onnxq.planning.conversions import entering, reordering
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared
from tests.models import build, normal

TARGET = replace(BACKEND, overflowing=costs.without_vnni)  # as it is before tests go without


def _net() -> Prepared:
    return Prepared(
        build(
            """(float[1, 64, 28, 28] x, float[128, 256] u) => (float[1, 64, 28, 28] y, float[128, 256] v) {
                [wide] a = Conv <pads = [1, 1, 1, 1]> (x, w)
                [depthwise] b = Conv <pads = [1, 1, 1, 1], group = 64> (a, d)
                [again] c = Conv <pads = [1, 1, 1, 1]> (b, w)
                y = Relu (c)
                [product] p = MatMul (u, m)
                v = Neg (p)
            }""",
            w=normal(64, 64, 3, 3),
            d=normal(64, 1, 3, 3),
            m=normal(256, 256),
        ),
        Options(),
    )


@pytest.mark.parametrize("name", ["wide", "depthwise", "product"])
def test_integers_gain_less_than_with_vnni(name: str) -> None:
    model = _net().for_target(BACKEND, Options()).model
    (node,) = [node for node in all_nodes(model) if node.name == name]
    there = [for_processor(TARGET, Options(reduce_range=wanted)).rules[node.op_type] for wanted in (False, True)]
    ratios = [as_integer / as_float for as_float, as_integer in (rule.costs(node, 50_000) for rule in there)]
    assert 1.3 < ratios[1] / ratios[0] < 4.0


def test_the_options_say_which_processor_is_meant() -> None:
    model = _net().for_target(BACKEND, Options()).model
    plans = {wanted: make_plan(model, TARGET, Options(reduce_range=wanted)).quantized for wanted in (True, False, None)}
    assert {"wide", "again", "depthwise", "product"} <= plans[False].keys()
    assert plans[True].keys() < plans[False].keys() and "product" not in plans[True]
    assert plans[None] == plans[reduces(TARGET, Options())]


def test_the_conversions_are_those_of_the_processor_too() -> None:
    there = for_processor(TARGET, Options(reduce_range=True))
    large = ir.Value(name="large", shape=ir.Shape([1, 64, 1024, 1024]))
    assert (there.quantize_cost, there.dequantize_cost, there.spill(large, 1e8)) == (1.6, 1.7, 0.0)
    assert BACKEND.spill(large, 1e8) > 0.1
    assert for_processor(TARGET, Options(reduce_range=False)) is TARGET


def test_other_targets_have_one_table() -> None:
    tensorrt = onnxq.backend_choice.backend_named("tensorrt")
    assert for_processor(tensorrt, Options(reduce_range=True)) is tensorrt


def test_rows_of_other_costs_keep_them() -> None:
    rules = {"Conv": replace(BACKEND.rules["Conv"], cost=(1.0, 0.5)), "MatMul": BACKEND.rules["MatMul"]}
    own = for_processor(replace(TARGET, rules=rules), Options(reduce_range=True))
    assert own.rules["Conv"].cost == (1.0, 0.5) and own.rules["MatMul"].cost == costs.WITHOUT_VNNI["MatMul"]


OF_PLANES = {
    (64, 18, 1): 1.15, (64, 20, 1): 0.85, (38, 38, 1): 1.42, (128, 85, 1): 1.01, (128, 32, 1): 0.72, (3, 64, 1): 2.65,
    (64, 12, 3): 1.34, (64, 16, 3): 0.62, (64, 17, 3): 1.46, (64, 20, 3): 0.72, (64, 3, 3): 1.46, (18, 18, 3): 1.36,
    (38, 64, 3): 0.78, (72, 18, 3): 1.29, (128, 32, 3): 0.72, (3, 32, 3): 4.35,
}  # fmt: skip
"""Channels in and out, and edge of the kernel → time of an integer convolution over that of a float one, in onnxruntime
1.32 without VNNI."""
OF_PLANES_WITH: dict[tuple[int, ...], float] = {
    (18, 17, 1): 1.92, (64, 128, 1): 0.34, (256, 64, 1): 0.27, (128, 3, 1): 0.46, (32, 16, 1): 0.59, (64, 64, 3): 0.28,
    (64, 18, 3): 0.43, (30, 32, 3): 0.34, (3, 96, 5): 0.82, (16, 2, 5): 0.56, (12, 48, 1): 0.28, (96, 256, 1, 4): 1.00,
    (24, 48, 5, 2): 0.33, (48, 64, 3, 2): 0.32, (64, 64, 3, 16): 0.71, (128, 384, 3, 32): 1.16, (192, 64, 5, 16): 0.53,
    (100, 100, 3, 100): 4.51, (256, 256, 3, 256): 1.30, (100, 100, 7, 100): 6.74,
    (144, 144, 7, 144): 1.81,
}  # fmt: skip
"""The same of 56x56 positions with VNNI, of some in groups: behind the edge."""
OF_LINES_WITH: dict[tuple[int, ...], float] = {
    (64, 64, 3, 64): 0.36, (1, 512, 3): 4.00, (16, 512, 5): 0.31, (256, 128, 5): 0.21, (64, 512, 3, 16): 1.92,
    (128, 128, 5, 128): 0.26, (100, 100, 7, 100): 0.83,
}  # fmt: skip
OF_VOLUMES_WITH: dict[tuple[int, ...], float] = {
    (16, 64, 3): 0.58,
    (24, 24, 3): 0.56,
    (32, 24, 3): 0.50,
    (64, 32, 1): 0.29,
}
OF_LINES = {
    (64, 30, 1): 1.05, (64, 64, 3): 0.50, (64, 18, 3): 0.84, (32, 30, 3): 1.03, (64, 16, 7): 0.28, (128, 30, 7): 0.61,
}  # fmt: skip
OF_VOLUMES = {
    (24, 12, 3): 1.26, (24, 16, 3): 0.51, (16, 16, 3): 0.85, (32, 32, 3): 0.46, (64, 32, 3): 0.33, (128, 32, 3): 0.27,
    (4, 32, 3): 2.0, (12, 12, 3): 2.5, (64, 32, 1): 0.94,
}  # fmt: skip
"""Narrow ones gain in planes, wide ones gain less there."""


def costs_of_a_convolution(
    inputs: int, outputs: int, edge: int, axes: int, *, vnni: bool, group: int = 1, size: int = 16
) -> tuple[float, float]:
    sizes = ", ".join([str(size)] * axes)
    pads = ", ".join([str(edge // 2)] * 2 * axes)
    model = build(
        f"""(float[1, {inputs}, {sizes}] x) => (float[1, {outputs}, {sizes}] y) {{
            a = Relu (x)
            y = Conv <pads = [{pads}], group = {group}> (a, w)
        }}""",
        w=normal(outputs, inputs // group, *[edge] * axes),
    )
    _, node = all_nodes(Prepared(model, Options()).for_target(BACKEND, Options()).model)
    return for_processor(TARGET, Options(reduce_range=not vnni)).rules["Conv"].costs(node, outputs * size**axes)


@pytest.mark.parametrize(
    ("axes", "sizes"),
    [(axes, sizes) for axes, measured in enumerate((OF_LINES, OF_PLANES, OF_VOLUMES), 1) for sizes in measured],
    ids=str,
)
def test_convolutions_cost_what_was_measured(axes: int, sizes: tuple[int, int, int]) -> None:
    as_float, as_integer = costs_of_a_convolution(*sizes, axes, vnni=False)
    assert 0.69 < as_integer / as_float / (OF_LINES, OF_PLANES, OF_VOLUMES)[axes - 1][sizes] < 1.45


@pytest.mark.parametrize(
    ("axes", "sizes"),
    [
        (axes, sizes)
        for axes, measured in enumerate((OF_LINES_WITH, OF_PLANES_WITH, OF_VOLUMES_WITH), 1)
        for sizes in measured
    ],
    ids=str,
)
def test_convolutions_cost_what_was_measured_with_vnni(axes: int, sizes: tuple[int, ...]) -> None:
    inputs, outputs, edge, *groups = sizes
    of, size = ((OF_LINES_WITH, 1600), (OF_PLANES_WITH, 56), (OF_VOLUMES_WITH, 13))[axes - 1]
    as_float, as_integer = costs_of_a_convolution(
        inputs, outputs, edge, axes, vnni=True, group=groups[0] if groups else 1, size=size
    )
    assert 0.69 < as_integer / as_float / of[sizes] < 1.45


def test_large_float_tensors_cost_more() -> None:
    """Caches do not hold them: 64 channels of 320x320 took twice as long an element as of 56x56."""
    near, far = (costs_of_a_convolution(64, 64, 1, 2, vnni=True, size=size) for size in (56, 320))
    more = (320 / 56) ** 2
    assert 1.2 < far[0] / near[0] / more < 2.5 and far[1] / near[1] / more == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("size", "times"), [(56, 1.0), (64, 2.1)])
def test_planes_that_fall_on_the_same_lines_of_caches_cost_more_to_convert(size: int, times: float) -> None:
    """Behind a convolution: .50 ns an element where channels lie 4096 apart, .19 elsewhere."""
    value, elements = ir.Value(name="x", shape=ir.Shape([1, 32, size, size])), 32 * size**2
    took = entering(BACKEND, value, elements) + reordering(BACKEND, value, elements) - BACKEND.node_cost
    assert took / elements == pytest.approx(0.19 * times, rel=0.25)


def test_a_sum_that_a_convolution_adds_up_costs_nothing_in_float() -> None:
    model = build(
        """(float[1, 16, 640, 640] x) => (float[1, 16, 640, 640] y) {
            a = Conv (x, w)
            [fused] b = Add (a, x)
            [apart] c = Add (b, x)
            y = Conv (c, w)
        }""",
        w=normal(16, 16, 1, 1),
    )
    nodes = {node.name: node for node in all_nodes(Prepared(model, Options()).for_target(BACKEND, Options()).model)}
    fused, apart = (BACKEND.rules["Add"].costs(nodes[name], 1.0)[0] for name in ("fused", "apart"))
    assert fused < 0.05 and apart > 0.2


@pytest.mark.parametrize("vnni", [True, False])
@pytest.mark.parametrize("shape", [None, [], [4, 4], ["N", "C", "H", "W"], [8, 4, 0, 3], [8, 4, 3]])
@pytest.mark.parametrize("elements", [0, 1, 1000])
def test_convolutions_of_any_shape_have_a_cost(shape: list[int | str] | None, elements: int, vnni: bool) -> None:
    """A weight that is computed has no known rank, and an output may be empty."""
    x, w, y = (ir.Value(name=name) for name in "xwy")
    w.shape = None if shape is None else ir.Shape(shape)
    y.shape = ir.Shape([1, 8, 4, 0])
    node = ir.node("Conv", [x, w], outputs=[y])
    costs_of = for_processor(TARGET, Options(reduce_range=not vnni)).rules["Conv"].costs(node, elements)
    assert all(np.isfinite(cost) and cost >= 0 for cost in costs_of)


def test_weights_of_a_layer_of_few_elements_cost_more_than_its_products() -> None:
    """They come from afar: a net of lines of a few positions ran at .63 of float's time, and had nothing to gain."""
    few, many = (costs_of_a_convolution(128, 64, 3, 1, vnni=True, size=size) for size in (1, 1000))
    assert few[0] > 5 * many[0] / 1000 and few[0] - few[1] > 600


@pytest.mark.parametrize("vnni", [True, False])
def test_channels_that_do_not_come_in_fours_cost_more_in_integers(vnni: bool) -> None:
    """There the kernels that follow pointers do not take them."""
    (_, four), (_, odd) = (costs_of_a_convolution(64, outputs, 3, 2, vnni=vnni, size=56) for outputs in (64, 63))
    assert odd > 1.3 * four
    as_float, as_integer = costs_of_a_convolution(18, 18, 1, 2, vnni=vnni, size=56)
    assert as_integer > 1.35 * as_float


GROUPS = {
    (64, 2, 3): 2.32, (64, 4, 3): 5.19, (96, 4, 3): 1.39, (128, 32, 3): 9.03, (64, 2, 1): 1.72, (64, 8, 1): 3.48,
    (64, 64, 3): 2.24, (240, 240, 3): 1.72, (38, 38, 3): 1.29, (162, 162, 3): 0.56, (54, 54, 5): 0.78,
}  # fmt: skip
"""Channels, groups and edge of the kernel → the same ratio, each group by itself."""


@pytest.mark.parametrize("sizes", GROUPS, ids=str)
def test_convolutions_of_groups_cost_what_was_measured(
    sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolutions, "_together", lambda *_: 1)
    channels, group, edge = sizes
    as_float, as_integer = costs_of_a_convolution(channels, channels, edge, 2, vnni=False, group=group)
    assert 0.69 < as_integer / as_float / GROUPS[sizes] < 1.45


def test_a_narrow_net_of_volumes_stays_float_and_a_wide_one_does_not() -> None:
    """The whole decision: 12 channels ran at 0.76 of float's speed in integers."""

    def quantized(channels: int) -> set[str]:
        model = build(
            f"""(float[1, {channels}, 16, 16, 16] x) => (float[1, {channels}, 16, 16, 16] y) {{
                [one] a = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, w)
                b = Relu (a)
                [two] c = Conv <pads = [1, 1, 1, 1, 1, 1]> (b, w)
                y = Relu (c)
            }}""",
            w=(0.1 * normal(channels, channels, 3, 3, 3)).astype(np.float32),
        )
        fitted = Prepared(model, Options()).for_target(BACKEND, Options()).model
        return {"one", "two"} & make_plan(fitted, TARGET, Options(reduce_range=True)).quantized.keys()

    assert quantized(12) == set() and quantized(32) == {"one", "two"}
