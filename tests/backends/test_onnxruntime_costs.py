"""Costs of processors without VNNI, where integers gain less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.onnxruntime import BACKEND, costs
from onnxq.for_processor import for_processor, reduces
from onnxq.graph.traverse import all_nodes
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared
from tests.models import build, normal

SLOWER = dict(costs.WITHOUT_VNNI)  # as it is before tests go without
TARGET = replace(BACKEND, overflowing_costs=SLOWER)


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
def test_integers_cost_more_than_with_vnni_and_floats_the_same(name: str) -> None:
    model = _net().for_target(BACKEND, Options()).model
    (node,) = [node for node in all_nodes(model) if node.name == name]
    one, other = (
        for_processor(TARGET, Options(reduce_range=wanted)).rules[node.op_type].costs(node) for wanted in (False, True)
    )
    assert one[0] == other[0] and 1.3 < other[1] / one[1] < 4.0


def test_the_options_say_which_processor_is_meant() -> None:
    model = _net().for_target(BACKEND, Options()).model
    plans = {wanted: make_plan(model, TARGET, Options(reduce_range=wanted)).quantized for wanted in (True, False, None)}
    assert {"wide", "again", "depthwise", "product"} <= plans[False].keys()
    assert plans[True].keys() < plans[False].keys() and "product" not in plans[True]
    assert plans[None] == plans[reduces(TARGET, Options())]


def test_the_conversions_are_those_of_the_processor_too() -> None:
    there = for_processor(TARGET, Options(reduce_range=True))
    assert (there.quantize_cost, there.dequantize_cost) == BACKEND.overflowing_conversions
    assert for_processor(TARGET, Options(reduce_range=False)) is TARGET
    same = for_processor(replace(TARGET, overflowing_conversions=None), Options(reduce_range=True))
    assert (same.quantize_cost, same.dequantize_cost) == (BACKEND.quantize_cost, BACKEND.dequantize_cost)


def test_other_targets_have_one_table() -> None:
    tensorrt = onnxq.backend_choice.backend_named("tensorrt")
    assert for_processor(tensorrt, Options(reduce_range=True)) is tensorrt


def test_rows_of_other_costs_keep_them() -> None:
    rules = {"Conv": replace(BACKEND.rules["Conv"], cost=(1.0, 0.5)), "MatMul": BACKEND.rules["MatMul"]}
    own = for_processor(replace(TARGET, rules=rules), Options(reduce_range=True))
    assert own.rules["Conv"].cost == (1.0, 0.5) and own.rules["MatMul"].cost in SLOWER.values()


OF_PLANES = {
    (64, 18, 1): 1.15, (64, 20, 1): 0.85, (38, 38, 1): 1.42, (128, 85, 1): 1.01, (128, 32, 1): 0.72, (3, 64, 1): 2.65,
    (64, 12, 3): 1.34, (64, 16, 3): 0.62, (64, 17, 3): 1.46, (64, 20, 3): 0.72, (64, 3, 3): 1.46, (18, 18, 3): 1.36,
    (38, 64, 3): 0.78, (72, 18, 3): 1.29, (128, 32, 3): 0.72, (3, 32, 3): 4.35,
}  # fmt: skip
"""Channels in and out, and edge of the kernel → time of an integer convolution over that of a float one, in onnxruntime
1.32 without VNNI."""
OF_LINES = {
    (64, 30, 1): 1.05, (64, 64, 3): 0.50, (64, 18, 3): 0.84, (32, 30, 3): 1.03, (64, 16, 7): 0.28, (128, 30, 7): 0.61,
}  # fmt: skip
OF_VOLUMES = {
    (24, 12, 3): 1.26, (24, 16, 3): 0.51, (16, 16, 3): 0.85, (32, 32, 3): 0.46, (64, 32, 3): 0.33, (128, 32, 3): 0.27,
    (4, 32, 3): 2.0, (12, 12, 3): 2.5, (64, 32, 1): 0.94,
}  # fmt: skip
"""Narrow ones gain in planes, wide ones gain less there."""


def costs_of_a_convolution(
    inputs: int, outputs: int, edge: int, axes: int, *, vnni: bool, group: int = 1
) -> tuple[float, float]:
    sizes = ", ".join(["16"] * axes)
    pads = ", ".join([str(edge // 2)] * 2 * axes)
    model = build(
        f"""(float[1, {inputs}, {sizes}] x) => (float[1, {outputs}, {sizes}] y) {{
            y = Conv <pads = [{pads}], group = {group}> (x, w)
        }}""",
        w=normal(outputs, inputs // group, *[edge] * axes),
    )
    (node,) = all_nodes(Prepared(model, Options()).for_target(BACKEND, Options()).model)
    return for_processor(TARGET, Options(reduce_range=not vnni)).rules["Conv"].costs(node)


@pytest.mark.parametrize(
    ("axes", "sizes"),
    [(axes, sizes) for axes, measured in enumerate((OF_LINES, OF_PLANES, OF_VOLUMES), 1) for sizes in measured],
    ids=str,
)
def test_convolutions_cost_what_was_measured(axes: int, sizes: tuple[int, int, int]) -> None:
    as_float, as_integer = costs_of_a_convolution(*sizes, axes, vnni=False)
    assert 0.69 < as_integer / as_float / (OF_LINES, OF_PLANES, OF_VOLUMES)[axes - 1][sizes] < 1.45


@pytest.mark.parametrize("vnni", [True, False])
def test_channels_that_do_not_come_in_fours_cost_more_in_integers(vnni: bool) -> None:
    """There the kernels that follow pointers do not take them."""
    (_, four), (_, odd) = (costs_of_a_convolution(64, outputs, 3, 2, vnni=vnni) for outputs in (64, 63))
    assert odd > 1.3 * four
    as_float, as_integer = costs_of_a_convolution(18, 18, 1, 2, vnni=vnni)
    assert as_integer > 1.5 * as_float


GROUPS = {
    (64, 2, 3): 2.32, (64, 4, 3): 5.19, (96, 4, 3): 1.39, (128, 32, 3): 9.03, (64, 2, 1): 1.72, (64, 8, 1): 3.48,
    (64, 64, 3): 2.24, (240, 240, 3): 1.72, (38, 38, 3): 1.29, (162, 162, 3): 0.56, (54, 54, 5): 0.78,
}  # fmt: skip
"""Channels, groups and edge of the kernel → the same ratio."""


@pytest.mark.parametrize("sizes", GROUPS, ids=str)
def test_convolutions_of_groups_cost_what_was_measured(sizes: tuple[int, int, int]) -> None:
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
