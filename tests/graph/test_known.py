"""What is known of a constant, and for how long."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import numbers
from onnxq.calibration.weights import weight_range
from onnxq.graph.known import array_once, once
from onnxq.graph.values import array_of
from onnxq.qparams import QParams, quantize
from onnxq.render import qdq
from tests.models import build, images, normal


def constant() -> ir.Value:
    return ir.Value(name="w", const_value=ir.tensor(np.arange(4, dtype=np.float32), name="w"))


def test_an_answer_is_looked_for_once_for_each_question_and_tensor() -> None:
    value, asked = constant(), list[str]()

    def find(what: str) -> str:
        asked.append(what)
        return what

    assert [once(value, what, partial(find, what)) for what in "abab"] == list("abab")
    assert asked == ["a", "b"]
    copy = ir.Value(name="w", const_value=value.const_value)
    assert once(copy, "a", lambda: find("c")) == "a", "copies of a model share its tensors"
    assert once(constant(), "a", lambda: find("d")) == "d", "another tensor, of the same numbers"
    assert once(ir.Value(name="x"), "a", lambda: find("e")) == "e"


def test_arrays_are_known_as_long_as_somebody_holds_them() -> None:
    value, made = constant(), list[int]()

    def find() -> NDArray[Any]:
        made.append(1)
        return np.zeros(4)

    held = array_once(value, "a", find)
    assert array_once(value, "a", find) is held and len(made) == 1
    del held
    gc.collect()
    assert array_once(value, "a", find).shape == (4,) and len(made) == 2


def test_a_model_that_is_planned_and_written_again_looks_at_its_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched, stored = list[Any](), list[Any]()

    def ranged(w: NDArray[Any], spec: Any) -> Any:
        searched.append(spec)
        return weight_range(w, spec)

    def counted(x: NDArray[Any], qp: QParams) -> NDArray[Any]:
        stored.append(qp)
        return quantize(x, qp)

    monkeypatch.setattr(numbers, "weight_range", ranged)
    monkeypatch.setattr(qdq, "quantize", counted)
    model = build("(float[1, 3, 6, 6] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=normal(4, 3, 1, 1))
    made = onnxq.quantize(model, images(1, 3, 6, 6), options=onnxq.Options(placement="all"))
    before = len(searched), len(stored)
    assert before == (1, 1)
    again = numbers.choose_numbers(made.model, made.plan, onnxq.calibrate(made.model, images(1, 3, 6, 6)))
    assert again.keys() == made.qparams.keys()
    first, second = made.qdq(), made.qdq()
    assert (len(searched), len(stored)) == before
    held = [
        array_of(tensor)
        for made_now in (first, second)
        for name, value in made_now.graph.initializers.items()
        if name.endswith("w_quantized") and (tensor := value.const_value) is not None
    ]
    assert len(held) == 2 and held[0] is held[1]
