"""Costs of processors without VNNI, where integers gain less."""

from __future__ import annotations

from dataclasses import replace

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
