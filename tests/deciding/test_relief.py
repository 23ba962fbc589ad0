"""Cheap arithmetic in integers that costs much of a result: found, priced, and left in float."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backends.onnxruntime import BACKEND
from onnxq.deciding.relief import costly_in_integers
from tests.models import build, images, normal, verified_sqnr

WIDTH, DEEP, SIDE, PATCH = 192, 4608, 96, 8
TOKENS = (SIDE // PATCH) ** 2


def tower(token: float) -> onnx.ModelProto:
    """An image tower: one row in front of those of the patches, normalized, is all that the output sees."""
    return build(
        f"""(float[1, 3, {SIDE}, {SIDE}] x) => (float[1, {WIDTH}] y) {{
            [patches] p = Conv <kernel_shape = [{PATCH}, {PATCH}], strides = [{PATCH}, {PATCH}]> (x, w)
            r = Reshape (p, rows)
            t = Transpose <perm = [0, 2, 1]> (r)
            [join] c = Concat <axis = 1> (token, t)
            [place] a = Add (c, position)
            n = LayerNormalization <axis = -1> (a, one, zero)
            h = MatMul (n, wide)
            g = Relu (h)
            m = MatMul (g, narrow)
            y = Gather <axis = 1> (m, first)
        }}""",
        w=normal(WIDTH, 3, PATCH, PATCH),
        rows=np.array([1, WIDTH, TOKENS]),
        token=normal(1, 1, WIDTH, scale=token),
        position=normal(1, TOKENS + 1, WIDTH, scale=0.02, seed=1),
        one=np.ones(WIDTH, np.float32),
        zero=np.zeros(WIDTH, np.float32),
        wide=normal(WIDTH, DEEP, seed=2),
        narrow=normal(DEEP, WIDTH, seed=3),
        first=np.array(0, np.int64),
    )


DATA = images(1, 3, SIDE, SIDE)


@pytest.fixture(autouse=True)
def _they_gain_in_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Concat and Add, by costs that are not those of a processor."""
    for op, cost in (("Concat", (0.3, 0.06)), ("Add", (0.3, 0.15))):
        monkeypatch.setitem(BACKEND.rules, op, replace(BACKEND.rules[op], cost=cost))


def test_a_concat_that_drowns_the_row_that_counts_stays_float() -> None:
    """Of the tensor as a whole next to nothing is lost, and the output is not poor enough for a search of layers."""
    result = onnxq.quantize(tower(0.1), DATA)
    assert verified_sqnr(result) > 30
    reasons = {kept.node: kept.reason for kept in result.plan.kept_float}
    assert "its integers leave output 'y'" in reasons["join"] and reasons["join"] == reasons["place"]
    assert list(result.plan.quantized.values()).count("MatMul") == 2


def test_what_was_asked_for_in_integers_stays_in_integers() -> None:
    asked = onnxq.quantize(tower(0.1), DATA, options=Options(include=("join", "place")))
    assert {"join", "place"} <= asked.plan.quantized.keys()
    everything = onnxq.quantize(tower(0.1), DATA, options=Options(placement="all"))
    assert {"join", "place"} <= everything.plan.quantized.keys()


def test_a_concat_that_costs_nothing_is_left_in_integers() -> None:
    assert {"join", "place"} <= onnxq.quantize(tower(10.0), DATA).plan.quantized.keys()


def test_decibels_that_cost_no_time_are_taken_of_good_results_too() -> None:
    asked = onnxq.quantize(tower(0.5), DATA, options=Options(include=("join", "place")))
    assert asked.verification is not None and asked.verification.worst is not None
    given = asked.verification.worst[1].sqnr
    assert given > 25
    result = onnxq.quantize(tower(0.5), DATA)
    assert verified_sqnr(result) > given + 6 and "join" not in result.plan.quantized


def test_what_is_dear_in_float_is_not_even_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxq.deciding.cheap_pieces._SHARE", 0.001)
    monkeypatch.setattr("onnxq.deciding.what_hurts.costly_in_integers", None)
    assert {"join", "place"} <= onnxq.quantize(tower(0.1), DATA).plan.quantized.keys()


class Outputs:
    """SQNR by noise that adds up: node → output → noise in integers."""

    def __init__(self, noise: dict[str, dict[str, float]], rest: dict[str, float]) -> None:
        self.noise, self.rest = noise, rest
        self.asked: list[set[str]] = []

    def __call__(self, kept: Iterable[str]) -> dict[str, float]:
        self.asked.append(set(kept))
        loud = [found for node, found in self.noise.items() if node not in self.asked[-1]]
        sums = {out: rest + sum(found.get(out, 0.0) for found in loud) for out, rest in self.rest.items()}
        return {out: float(-10 * np.log10(noise)) for out, noise in sums.items()}


def test_only_the_pieces_to_blame_stay_float() -> None:
    outputs = Outputs({"a": {"y": 0.03}, "b": {"y": 1e-5}, "c": {"y": 0.02}}, {"y": 1e-3})
    assert costly_in_integers([("a",), ("b",), ("c",)], outputs).keys() == {"a", "c"}
    assert outputs.asked[-1] == {"a", "c"}, "the choice is measured"


def test_of_two_that_share_a_scale_one_is_enough() -> None:
    asked: list[set[str]] = []

    def measure(kept: Iterable[str]) -> dict[str, float]:
        asked.append(set(kept))
        return {"y": 36.0 if asked[-1] else 21.0}

    found = costly_in_integers([("a",), ("b",)], measure, cause="one scale leaves {}")
    assert found == {"a": "one scale leaves output 'y' 21 dB of 36 dB"}
    assert asked[-1] == {"a"}, "the choice is measured"


def test_pieces_that_share_no_scale_are_measured_once() -> None:
    """Together they cost 6 dB, but none of them a tenth of the noise that stays."""
    noise = {f"n{k}": {"y": 5e-5} for k in range(30)}
    pieces, outputs = [(name,) for name in noise], Outputs(noise, {"y": 5e-4})
    assert costly_in_integers(pieces, outputs, tied=False) == {}
    assert len(outputs.asked) == 2 + 19, "the other 11 cannot bring what is asked for"
    outputs.noise["n29"], outputs.asked = {"y": 5e-3}, []
    assert costly_in_integers(pieces, outputs, tied=False).keys() == {"n29"}
    assert len(outputs.asked) == 2 + 30 + 1


def test_an_output_may_be_helped_that_is_not_the_worst() -> None:
    outputs = Outputs({"a": {"y": 0.03}, "b": {"y": 0.0}}, {"y": 1e-3, "z": 0.1})
    found = costly_in_integers([("a",), ("b",)], outputs)
    assert list(found) == ["a"] and "output 'y' 15 dB of 30 dB" in found["a"]


def test_without_a_gain_two_measurements_are_all() -> None:
    outputs = Outputs({"a": {"y": 1e-3}, "b": {"y": 1e-3}}, {"y": 0.1})
    assert costly_in_integers([("a",), ("b",)], outputs) == {} and len(outputs.asked) == 2


def test_no_other_output_may_pay_for_it() -> None:
    outputs = Outputs({"a": {"y": 0.03, "z": -0.05}}, {"y": 1e-3, "z": 0.1})
    assert costly_in_integers([("a",)], outputs) == {}


def test_what_does_not_run_helps_nobody() -> None:
    assert costly_in_integers([("a",)], lambda kept: {} if set(kept) else {"y": 10.0}) == {}
    assert costly_in_integers([], lambda kept: {}) == {}


def classes(one: float) -> onnx.ModelProto:
    """Scores of classes at each place, of which those of one are far larger: one scale leaves the others few steps."""
    head = normal(8, 64, 3, 3, scale=0.15, seed=3)
    head[0] *= one
    return build(
        """(float[1, 16, 32, 32] x) => (float[1, 8, 32, 32] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, first)
            r = Relu (a)
            b = Conv <pads = [1, 1, 1, 1]> (r, second)
            s = Relu (b)
            c = Conv <pads = [1, 1, 1, 1]> (s, third)
            t = Relu (c)
            [head] h = Conv <pads = [1, 1, 1, 1]> (t, head_w)
            y = Softmax <axis = 1> (h)
        }""",
        first=normal(256, 16, 3, 3, scale=0.1),
        second=normal(256, 256, 3, 3, scale=0.03, seed=1),
        third=normal(64, 256, 3, 3, scale=0.03, seed=2),
        head_w=head,
    )


def test_scores_of_classes_that_one_scale_drowns_stay_float() -> None:
    """The last layer in float costs next to nothing beside the others."""
    data = images(1, 16, 32, 32)
    assert "head" in onnxq.quantize(classes(1.0), data).plan.quantized
    result = onnxq.quantize(classes(200.0), data, options=Options(reduce_range=True))
    everything = onnxq.quantize(classes(200.0), data, options=Options(placement="all"))
    assert result.verification is not None and result.verification.worst is not None
    assert everything.verification is not None and everything.verification.worst is not None
    assert list(result.plan.quantized.values()) == ["Conv"] * 3 and "head" in everything.plan.quantized
    assert result.verification.worst[1].sqnr > everything.verification.worst[1].sqnr + 6
    assert result.plan.stored == {"head": "Conv"}, "its weights, with a scale for each class, are not to blame"


def _blamed() -> onnx.ModelProto:
    """Each class has a huge weight for what is never there, which leaves few steps for the others."""
    model = classes(200.0)
    for tensor in model.graph.initializer:
        weight = onnx.numpy_helper.to_array(tensor).copy()
        if tensor.name == "third":
            weight[0] = 0
        if tensor.name == "head_w":
            weight[:, 0] = 20 * np.abs(weight).max()
        tensor.CopyFrom(onnx.numpy_helper.from_array(weight, tensor.name))
    return model


def test_a_weight_that_is_to_blame_stays_float() -> None:
    result = onnxq.quantize(_blamed(), images(1, 16, 32, 32))
    assert "its integers leave output 'y'" in {kept.node: kept.reason for kept in result.plan.kept_float}["head"]
    assert result.plan.stored == {}


def test_it_stays_float_beside_a_worse_output_as_well() -> None:
    """The small difference of two great products has few dB, whatever becomes of the head's weights."""
    model, weight = _blamed(), (0.05 * normal(8, 256, 3, 3)).astype(np.float32)
    other = (weight * (1 + 0.1 * np.random.default_rng(6).normal(size=weight.shape))).astype(np.float32)
    for name, array in (("great", weight), ("greater", other)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        node = onnx.helper.make_node("Conv", ["r", name], [f"{name}_out"], name=name, pads=[1] * 4)
        model.graph.node.append(node)
    model.graph.node.append(onnx.helper.make_node("Sub", ["great_out", "greater_out"], ["z"], name="difference"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 8, 32, 32]))
    result = onnxq.quantize(model, images(1, 16, 32, 32))
    assert result.verification is not None and "head" not in result.plan.quantized
    outputs = result.verification.outputs
    assert outputs["z"].sqnr < outputs["y"].sqnr - 5 and "head" not in result.plan.stored


def test_the_measurements_before_the_first_group_show_that_it_goes_on() -> None:
    told: list[object] = []

    def measure(kept: Iterable[str]) -> dict[str, float]:
        names = set(kept)
        told.append(names)
        return {"y": 35.0 if "a" in names else 10.0}

    assert costly_in_integers([("a",), ("b",)], measure, told.append).keys() == {"a"}
    assert told[:6] == [{"a", "b"}, 0, set(), 0, {"b"}, 1]
