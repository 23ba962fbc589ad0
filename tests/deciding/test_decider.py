"""What a decider makes once for those that ask for the same again."""

from __future__ import annotations

import gc

import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.algorithm_choice import chosen
from onnxq.backends import onnxruntime
from onnxq.calibration.statistics import Statistics
from onnxq.deciding.decider import Decider
from onnxq.numbers import choose_numbers
from onnxq.plan import Plan
from onnxq.prepare import Prepared
from onnxq.qparams import QParams
from tests.models import build, images, normal

DATA = images(1, 3, 8, 8)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans whose numbers were chosen."""
    plans: list[Plan] = []

    def counted(model: ir.Model, plan: Plan, statistics: Statistics) -> dict[str, QParams]:
        plans.append(plan)
        return choose_numbers(model, plan, statistics)

    monkeypatch.setattr("onnxq.deciding.decider.choose_numbers", counted)
    return plans


def decider(*algorithms: str) -> Decider:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            [first] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [second] y = Conv <pads = [1, 1, 1, 1]> (a, v)
        }""",
        w=normal(4, 3, 3, 3),
        v=normal(4, 4, 3, 3, seed=1),
    )
    prepared = Prepared(model, Options())
    statistics = onnxq.calibrate(model, DATA)
    options = Options(placement="all")
    return Decider(prepared.model, onnxruntime.BACKEND, options, statistics, chosen(algorithms))


def test_the_same_is_made_once_while_it_is_in_use(planned: list[Plan]) -> None:
    decides = decider("bias_correction")
    made = decides.quick()
    assert decides.without(()) is made.quantized and decides.again().quantized is made.quantized
    assert decides.quick().said == made.said and len(planned) == 1
    del made
    gc.collect()
    decides.quick()
    assert len(planned) == 2, "nothing is kept for it"


def test_it_is_made_anew_where_something_else_is_asked_for(planned: list[Plan]) -> None:
    decides = decider()
    made = decides.quick()
    less = decides.without(["first"])
    assert "first" not in less.plan.quantized and decides.without(["first"]) is less
    assert decides.quick() != made and len(planned) == 3, "only what was made last is known"
    decides.keep_float({"second": "it is asked for"})
    assert "second" not in decides.quick().quantized.plan.quantized
    decides.options = Options(placement="all", weight_bits=4)
    four = decides.quick().quantized
    assert {qp.spec.bits for qp in four.qparams.values()} >= {4}
    other = decides.at(decides.model.clone())
    assert other.without(()).model is not four.model


def test_what_slow_algorithms_make_is_not_taken_for_what_quick_ones_do(planned: list[Plan]) -> None:
    decides = decider("adaround:sweeps=1")
    made = decides.quick()
    assert decides.again().quantized is not made.quantized
    assert decides.quick().quantized is made.quantized
