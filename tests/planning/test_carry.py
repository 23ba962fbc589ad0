"""Operators that hand numbers on are as fine as the layers around them: nothing is rounded to 8 bits, then to 16."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options, Plan
from onnxq.backend_choice import backend_named
from onnxq.options import Override
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared
from tests.models import build, images, normal

WIDE = Override(act_bits=16)
MOVES = {
    "Unsqueeze": "m = Unsqueeze (x, one)",
    "Reshape": "m = Reshape (x, shape)",
    "chain": "s = Transpose <perm = [1, 0, 2]> (x)\n t = Transpose <perm = [1, 2, 0]> (s)\n m = Reshape (t, shape)",
    "Concat": "u = Unsqueeze (x, one)\n h, k = Split <axis = 2> (u)\n m = Concat <axis = 2> (k, h)",
    "MaxPool": "u = Reshape (x, shape)\n m = MaxPool <kernel_shape = [1, 1]> (u)",
}


def moved(move: str) -> onnx.ModelProto:
    """Two layers behind data movement, the first of which reads 16 bits."""
    return build(
        f"""(float[4, 16, 24] x) => (float[4, 8, 16, 24] y, float[4, 8, 16, 24] z) {{
            {MOVES[move]}
            [fine] y = Conv (m, w)
            [coarse] z = Conv (m, v)
        }}""",
        one=np.array([1]),
        shape=np.array([4, 1, 16, 24]),
        w=normal(8, 1, 1, 1),
        v=normal(8, 1, 1, 1, seed=1),
    )


def asked(*pairs: tuple[str, Override]) -> Options:
    return Options(placement="all", override=pairs, bias_correction=False)


def widths(plan: Plan, tensor: str) -> set[int]:
    return {site.spec.bits for site in plan.sites if site.tensor == tensor and (site.readers or site.produced)}


@pytest.mark.parametrize("move", MOVES)
def test_a_layer_of_16_bits_behind_data_movement_reads_16_bits(move: str) -> None:
    model, feeds = moved(move), images(4, 16, 24)
    both, one = (asked((name, WIDE)) for name in ("Conv", "fine"))
    plan = onnxq.plan(model, options=both)
    assert widths(plan, "x") == widths(plan, "m") == {16}
    assert widths(onnxq.plan(model), "x") <= {8}
    for options, coarse in ((both, 70.0), (one, 35.0)):
        made = onnxq.compare(model, onnxq.quantize(model, feeds, options=replace(options, weight_bits=16)), feeds)
        assert made.outputs["y"].sqnr > 70, "the layer with 16 bits has them"
        assert made.outputs["z"].sqnr > coarse, "the other one has what was asked for"


def test_a_tensor_asked_for_by_name_is_as_fine_as_that() -> None:
    plan = onnxq.plan(moved("Unsqueeze"), options=asked(("m", WIDE)))
    assert widths(plan, "x") == {16}


def test_what_a_layer_gives_in_16_bits_is_handed_on_in_16() -> None:
    model = build(
        """(float[1, 8, 12, 12] x) => (float[12, 12, 8] y) {
            [layer] a = Conv (x, w)
            b = Transpose <perm = [2, 3, 1, 0]> (a)
            c = Squeeze (b, last)
            y = Sin (c)
        }""",
        w=normal(8, 8, 1, 1),
        last=np.array([3]),
    )
    plan = onnxq.plan(model, options=asked(("layer", WIDE)))
    assert widths(plan, "a") == widths(plan, "b") == widths(plan, "c") == {16}


@pytest.mark.parametrize("parts", ["a, b", "b, a"])
def test_a_model_output_is_as_fine_as_the_finest_that_is_joined_in_it(parts: str) -> None:
    """Whatever else reads it: the layer behind has its 8 bits from a quantizer of its own."""
    model = build(
        f"""(float[1, 8, 12, 12] x) => (float[1, 16, 12, 12] y, float[1, 8, 12, 12] z) {{
            [fine] a = Conv (x, w)
            [coarse] b = Conv (x, v)
            y = Concat <axis = 1> ({parts})
            [behind] z = Conv (y, u)
        }}""",
        w=normal(8, 8, 1, 1),
        v=normal(8, 8, 1, 1, seed=1),
        u=normal(8, 16, 1, 1, seed=2),
    )
    plan = onnxq.plan(model, options=asked(("fine", WIDE)))
    assert widths(plan, "a") == {16}
    assert {site.spec.bits for site in plan.sites if site.tensor == "y" and site.produced} == {16}


def test_a_range_asked_for_a_layer_holds_in_front_of_what_moves() -> None:
    change = Override(range="minmax")
    by_layer = onnxq.plan(moved("Unsqueeze"), options=asked(("Conv", change)))
    assert {site.spec.range for site in by_layer.sites if site.tensor in ("x", "m")} == {"minmax"}
    of_the_move = onnxq.plan(moved("Unsqueeze"), options=asked(("Unsqueeze", change)))
    assert {site.spec.range for site in of_the_move.sites if site.tensor == "x"} == {"minmax"}


def test_data_movement_without_such_a_kernel_stays_float() -> None:
    model = Prepared(moved("MaxPool"), Options()).model
    target = backend_named("onnxruntime")
    rules = {**target.rules, "MaxPool": replace(target.rules["MaxPool"], act_bits=frozenset({8}))}
    plan = make_plan(model, replace(target, rules=rules), asked(("fine", WIDE)))
    kept = {k.op: k.reason for k in plan.kept_float}
    assert kept["MaxPool"] == "MaxPool has no integer kernel for 16 bits on onnxruntime"
    assert "MaxPool" in make_plan(model, replace(target, rules=rules), asked()).quantized.values()
