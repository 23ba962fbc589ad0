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


def test_other_targets_have_one_table() -> None:
    tensorrt = onnxq.backend_choice.backend_named("tensorrt")
    assert for_processor(tensorrt, Options(reduce_range=True)) is tensorrt


def test_rows_of_other_costs_keep_them() -> None:
    rules = {"Conv": replace(BACKEND.rules["Conv"], cost=(1.0, 0.5)), "MatMul": BACKEND.rules["MatMul"]}
    own = for_processor(replace(TARGET, rules=rules), Options(reduce_range=True))
    assert own.rules["Conv"].cost == (1.0, 0.5) and own.rules["MatMul"].cost in SLOWER.values()


MEASURED = {
    (24, 12, 3): 1.26, (24, 16, 3): 0.51, (16, 16, 3): 0.85, (32, 32, 3): 0.46, (64, 32, 3): 0.33, (128, 32, 3): 0.27,
    (4, 32, 3): 2.0, (12, 12, 3): 2.5, (64, 32, 1): 0.94,
}  # fmt: skip
"""Channels in and out, and edge of the kernel → time of an integer convolution of a volume over that of a float one, in
onnxruntime 1.32 without VNNI."""


@pytest.mark.parametrize("sizes", MEASURED, ids=str)
def test_convolutions_of_volumes_cost_what_was_measured(sizes: tuple[int, int, int]) -> None:
    """Of planes the same channels have other ratios: narrow ones gain there, wide ones gain less."""
    inputs, outputs, edge = sizes
    text = f"(float[1, {inputs}, 8, 8, 8] x) => (float[1, {outputs}, 8, 8, 8] y) {{ y = Conv <pads = [P]> (x, w) }}"
    model = build(text.replace("P", ", ".join([str(edge // 2)] * 6)), w=normal(outputs, inputs, edge, edge, edge))
    (node,) = all_nodes(Prepared(model, Options()).for_target(BACKEND, Options()).model)
    as_float, as_integer = for_processor(TARGET, Options(reduce_range=True)).rules["Conv"].costs(node)
    assert 0.7 < as_integer / as_float / MEASURED[sizes] < 1.45


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
