"""What the data decides: noise amplifiers, lost branches of a Concat, layers that hurt."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Kind, OpRule, Options
from onnxq.backend_choice import backend_named
from onnxq.calibration.collect import collect
from onnxq.deciding.decide import decide
from onnxq.deciding.decider import Decider
from onnxq.deciding.rescue import Blame, blame, groups, to_keep_float
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared
from tests.models import build, f32, images, normal, verified_sqnr

Feeds = list[dict[str, np.ndarray[Any, np.dtype[Any]]]]


def spectrum() -> onnx.ModelProto:
    """A filter bank as a convolution, log power, then a layer: most power sits in the first filter."""
    bank = normal(64, 16, 3, 3) * np.geomspace(1, 1e-3, 64, dtype=np.float32)[:, None, None, None]
    return build(
        """(float[1, 16, 32, 32] x) => (float[1, 64, 32, 32] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, bank)
            p = Mul (a, a)
            e = Add (p, eps)
            l = Log (e)
            n = Mul (l, tenth)
            b = Conv <pads = [1, 1, 1, 1]> (n, w)
            r = Relu (b)
            y = Conv <pads = [1, 1, 1, 1]> (r, v)
        }""",
        bank=bank.astype(np.float32),
        eps=f32(1e-12),
        tenth=f32(0.1),
        w=normal(64, 64, 3, 3, seed=1),
        v=normal(64, 64, 3, 3, seed=2),
    )


def test_what_stands_before_a_noise_amplifier_stays_float() -> None:
    q = onnxq.quantize(spectrum(), images(1, 16, 32, 32))
    reasons = {k.node: k.reason for k in q.plan.kept_float}
    first = next(n.name for n in q.model.graph if n.op_type == "Conv")
    assert first in reasons and "amplifies" in reasons[first] and "Log" in reasons[first]
    assert "Conv" in q.plan.quantized.values(), "what stands behind it is quantized"
    assert verified_sqnr(q) > 25


def powers() -> onnx.ModelProto:
    """Filters of powers, their logarithm, then layers: no power is made of large ones that cancel out."""
    model = spectrum()
    for tensor in model.graph.initializer:
        if tensor.name == "bank":
            bank = np.abs(onnx.numpy_helper.to_array(tensor))
            tensor.CopyFrom(onnx.numpy_helper.from_array(bank, "bank"))
    return model


def loud_and_quiet() -> Feeds:
    rng = np.random.default_rng(0)
    level = np.geomspace(1, 1e-4, 32).astype(np.float32)
    return [{"x": np.square(rng.standard_normal((1, 16, 32, 32))).astype(np.float32) * level} for _ in range(6)]


def stored(q: onnxq.Quantized) -> list[str]:
    """Operators of the layers that noise amplifiers keep float and whose weights are stored as integers."""
    return [q.plan.stored[k.node] for k in q.plan.kept_float if k.node in q.plan.stored and "amplifies" in k.reason]


def bank_of(q: onnxq.Quantized) -> list[ir.DataType]:
    """The type that the filters are written in."""
    weights = [v.const_value for v in q.rendered().graph.initializers.values() if v.const_value is not None]
    return [weight.dtype for weight in weights if weight.size == 64 * 16 * 9]


@pytest.mark.parametrize("effort", ["fast", "default"])
def test_what_stays_float_before_a_noise_amplifier_stores_its_weights(effort: Literal["fast", "default"]) -> None:
    q = onnxq.quantize(powers(), loud_and_quiet(), options=Options(effort=effort))
    assert stored(q) == ["Conv"] and verified_sqnr(q) > 25
    assert bank_of(q) == [ir.DataType.INT8]


def test_weights_before_a_noise_amplifier_take_16_bits_where_8_would_spoil_it() -> None:
    q = onnxq.quantize(spectrum(), images(1, 16, 32, 32))
    assert stored(q) == ["Conv"] and bank_of(q) == [ir.DataType.INT16] and verified_sqnr(q) > 35
    assert any(note.startswith("16 bits for the stored weights of 'Conv': Log 'Log' after it") for note in q.notes)
    assert "opset: raised from 17 to 21, which has integers of 16 bits for weights" in q.notes


@pytest.mark.parametrize("options", [Options(weight_bits=8), Options(opset=17)])
def test_weights_before_a_noise_amplifier_stay_float_where_16_bits_are_ruled_out(options: Options) -> None:
    q = onnxq.quantize(spectrum(), images(1, 16, 32, 32), options=options)
    assert stored(q) == [] and bank_of(q) == [ir.DataType.FLOAT] and verified_sqnr(q) > 35
    assert q.rendered().opset_imports[""] == 17


def test_placement_all_leaves_float_what_would_give_infinite_values() -> None:
    q = onnxq.quantize(spectrum(), images(1, 16, 32, 32), options=Options(placement="all"))
    reasons = {k.node: k.reason for k in q.plan.kept_float}
    first = next(n.name or "" for n in q.model.graph if n.op_type == "Conv")
    assert "infinite" in reasons[first] and "Log" in reasons[first]
    assert verified_sqnr(q) > 25


def far_apart(ratio: float) -> onnx.ModelProto:
    return build(
        """(float[1, 32, 16, 16] x) => (float[1, 32, 16, 16] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            b = Conv <pads = [1, 1, 1, 1]> (x, w2)
            c = Concat <axis = 1> (a, b)
            y = Conv <pads = [1, 1, 1, 1]> (c, w3)
        }""",
        w1=normal(32, 32, 3, 3),
        w2=(normal(32, 32, 3, 3, seed=1) / ratio).astype(np.float32),
        w3=normal(32, 64, 3, 3, seed=2),
    )


def test_an_operator_of_another_domain_stays_float_before_an_amplifier() -> None:
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 8, 8, 8] y, float[1, 64, 8, 8] z) {
            [most] z = Conv <pads = [1, 1, 1, 1]> (x, v)
            [conv] a = Conv <pads = [1, 1, 1, 1]> (x, w)
            [act] b = com.microsoft.QuickGelu (a)
            [square] c = Mul (b, b)
            [log] y = Log (c)
        }""",
        domains={"com.microsoft": 1},
        v=normal(64, 3, 3, 3, seed=1),
        w=normal(8, 3, 3, 3),
    )
    known = backend_named("tensorrt")
    rows = {**known.rules, "com.microsoft::QuickGelu": OpRule("QuickGelu", Kind.ELEMENTWISE)}
    target = replace(known, rules=rows)
    fitted = Prepared(model, Options()).for_target(target, Options())[0]
    tensors = make_plan(fitted, target).observed()
    statistics = collect(fitted, tensors, images(1, 3, 8, 8, samples=8))
    plan = decide(Decider(fitted, target, Options(), statistics)).plan
    assert "act" not in plan.quantized
    assert next(kept.reason for kept in plan.kept_float if kept.node == "act").startswith(
        "Log 'log' after it amplifies"
    )


@pytest.mark.parametrize(("ratio", "lost"), [(1.0, False), (4.0, False), (1000.0, True)])
def test_a_small_branch_of_a_concat_is_not_lost(ratio: float, lost: bool) -> None:
    q = onnxq.quantize(far_apart(ratio), images(1, 32, 16, 16))
    assert ("Concat" not in q.plan.quantized.values()) == lost
    assert any("branch 'b'" in k.reason for k in q.plan.kept_float) == lost
    assert len(q.plan.stored) == lost  # the weights of what reads the Concat, which do no harm
    forced = onnxq.quantize(far_apart(ratio), images(1, 32, 16, 16), options=Options(placement="all"))
    assert forced.verification is not None
    assert any("branch 'b'" in w for w in forced.verification.warnings) == lost


def test_blame_is_measured_one_group_at_a_time() -> None:
    noise = {"a": 0.001, "b": 0.1, "c": 0.002}
    tried: list[set[str]] = []

    def attempt(kept: Any) -> float:
        tried.append(set(kept))
        return -10 * math.log10(0.0005 + sum(v for k, v in noise.items() if k not in tried[-1]))

    records, rest = blame({"a": 1.0, "b": 1.0, "c": 4.0}, groups(["a", "b", "c"]), attempt)
    assert [r.nodes for r in records] == [("a",), ("b",), ("c",)]
    assert [r.noise for r in records] == pytest.approx([0.001, 0.1, 0.002])
    assert rest == pytest.approx(0.0005)
    assert to_keep_float(records, rest) == ["b"]


def test_nothing_is_kept_where_it_would_not_help() -> None:
    even = [Blame((f"n{k}",), 0.01, 1.0) for k in range(40)]
    assert to_keep_float(even[:1]) == []
    chosen = to_keep_float(even)
    assert len(chosen) <= 20, "never more than half of the cost"


def test_many_layers_are_measured_in_groups() -> None:
    layers = {f"n{k}": 1.0 for k in range(100)}
    records, _ = blame(layers, groups(list(layers)), lambda kept: 30.0)
    assert len(records) <= 40
    assert [n for r in records for n in r.nodes] == [f"n{k}" for k in range(100)]


def test_a_layer_that_ruins_the_result_is_found() -> None:
    weight = normal(32, 32, 1, 1)
    weight[:, 0] *= 1e-4  # the first channel holds huge values that matter little
    model = build(
        """(float[1, 32, 24, 24] x) => (float[1, 32, 24, 24] y) {
            h = Mul (x, s)
            a = Conv (h, w)
            r = Relu (a)
            b = Conv <pads = [1, 1, 1, 1]> (r, v)
            q = Relu (b)
            y = Conv <pads = [1, 1, 1, 1]> (q, u)
        }""",
        s=f32([1e4] + [1] * 31).reshape(1, 32, 1, 1),
        w=weight,
        v=normal(32, 32, 3, 3, seed=1),
        u=normal(32, 32, 3, 3, seed=2),
    )
    q = onnxq.quantize(model, images(1, 32, 24, 24))
    kept = {k.node: k.reason for k in q.plan.kept_float if k.op == "Conv"}
    assert len(kept) == 1 and "quantized alone it leaves" in next(iter(kept.values()))
    assert verified_sqnr(q) > 18


def test_placement_all_does_as_told() -> None:
    q = onnxq.quantize(far_apart(1000.0), images(1, 32, 16, 16), options=Options(placement="all"))
    assert sorted(q.plan.quantized.values()) == ["Concat", "Conv", "Conv", "Conv"] and not q.plan.kept_float
