"""Plans of small graphs, as golden texts in ``tests/golden``; ``tools/update_golden.py`` writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.errors import OptionError
from onnxq.options import Override, Placement
from onnxq.planning.planner import Planner, activations_of, make_plan
from onnxq.prepare import Prepared
from tests.models import build, f32, normal

GOLDEN = Path(__file__).parents[1] / "golden"
ALL = Options(placement="all")


def conv_relu() -> onnx.ModelProto:
    return build(
        """(float[1, 16, 8, 8] x) => (float[1, 32, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            r = Relu (a)
            y = Conv <pads = [1, 1, 1, 1]> (r, w2)
        }""",
        w1=normal(32, 16, 3, 3),
        b1=normal(32),
        w2=normal(32, 32, 3, 3),
    )


def residual() -> onnx.ModelProto:
    return build(
        """(float[1, 16, 8, 8] x) => (float[1, 16, 4, 4] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            r = Clip (a, zero, six)
            c = Conv <pads = [1, 1, 1, 1]> (r, w2)
            s = Add (c, r)
            t = Relu (s)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (t)
            y = Conv <pads = [1, 1, 1, 1]> (p, w3)
        }""",
        w1=normal(16, 16, 3, 3),
        w2=normal(16, 16, 3, 3, seed=1),
        w3=normal(16, 16, 3, 3, seed=2),
        zero=f32(0),
        six=f32(6),
    )


def concat() -> onnx.ModelProto:
    return build(
        """(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            b = Conv <pads = [1, 1, 1, 1]> (x, w2)
            c = Concat <axis = 1> (a, b)
            y = Conv <pads = [1, 1, 1, 1]> (c, w3)
        }""",
        w1=normal(16, 16, 3, 3),
        w2=normal(16, 16, 3, 3, seed=1),
        w3=normal(16, 32, 3, 3, seed=2),
    )


def transformer() -> onnx.ModelProto:
    return build(
        """(float[1, 64, 128] x) => (float[1, 64, 128] y) {
            q = MatMul (x, wq)
            k = MatMul (x, wk)
            kt = Transpose <perm = [0, 2, 1]> (k)
            s = MatMul (q, kt)
            p = Softmax <axis = -1> (s)
            v = MatMul (x, wv)
            o = MatMul (p, v)
            r = Add (o, x)
            n = LayerNormalization <axis = -1> (r, g, b)
            h = MatMul (n, w1)
            hb = Add (h, b1)
            e = Erf (hb)
            e1 = Add (e, one)
            hg = Mul (hb, e1)
            y = MatMul (hg, w2)
        }""",
        wq=normal(128, 128),
        wk=normal(128, 128, seed=1),
        wv=normal(128, 128, seed=2),
        w1=normal(128, 256, seed=3),
        w2=normal(256, 128, seed=4),
        g=f32([1] * 128),
        b=f32([0] * 128),
        b1=normal(256),
        one=f32(1),
    )


def branches() -> onnx.ModelProto:
    return build(
        """(float[1, 16, 8, 8] x, bool flag) => (float[1, 16, 8, 8] y) {
            y = If (flag) <
                then_branch = yes () => (t) { t = Conv <pads = [1, 1, 1, 1]> (x, w) },
                else_branch = no () => (e) { e = Identity (x) }
            >
        }""",
        w=normal(16, 16, 3, 3),
    )


def recurrent() -> onnx.ModelProto:
    return build(
        "(float[7, 2, 32] x) => (float[7, 1, 2, 32] y) { y = GRU <hidden_size = 32> (x, w, r) }",
        w=normal(1, 96, 32),
        r=normal(1, 96, 32, seed=1),
    )


def table() -> onnx.ModelProto:
    return build(
        "(int64[1, 8] x) => (float[1, 8, 64] y) { e = Gather (t, x)\n y = MatMul (e, w) }",
        t=normal(1000, 64),
        w=normal(64, 64),
    )


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], Options]] = {
    "conv_relu": (conv_relu, ALL),
    "residual": (residual, ALL),
    "concat": (concat, ALL),
    "transformer": (transformer, Options()),
    "branches": (branches, ALL),
    "recurrent": (recurrent, Options()),
    "table": (table, Options()),
    "wide": (conv_relu, Options(placement="all", act_bits=16, weight_bits=4)),
}


def text_of(name: str) -> str:
    """The plan of a case as text."""
    make, options = CASES[name]
    return onnxq.plan(make(), options=replace(options, reduce_range=False)).to_text()


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    expected = (GOLDEN / f"{name}.txt").read_text()
    assert text_of(name) == expected, "run tools/update_golden.py and read the difference"


def test_every_site_is_named_once_and_every_tie_leads_to_a_root() -> None:
    for name, (make, options) in CASES.items():
        plan = onnxq.plan(make(), options=options)
        assert len(plan.by_name) == len(plan.sites), name
        assert all(plan.root(site).tied_to is None for site in plan.sites), name


def test_exclude_by_tensor_name_keeps_its_writer_and_readers_float() -> None:
    plan = onnxq.plan(residual(), options=Options(placement="all", exclude=("t",)))
    kept = {k.op: k.reason for k in plan.kept_float}
    assert "MaxPool" in kept and "'t'" in kept["MaxPool"]


def test_include_restricts_and_forces() -> None:
    plan = onnxq.plan(conv_relu(), options=Options(include=("y",)))
    assert len(plan.quantized) == 1


def test_override_changes_one_layer_only() -> None:
    plan = onnxq.plan(conv_relu(), options=Options(placement="all", override=(("w2", "weight_bits=4"),)))
    bits = {s.tensor: s.spec.bits for s in plan.sites if s.role == "weight"}
    assert bits == {"w1": 8, "w2": 4}


def test_a_pattern_that_matches_nothing_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="Conv"):
        onnxq.plan(conv_relu(), options=Options(exclude=("Convv",)))


def specs_of(model: onnx.ModelProto, options: Options) -> dict[str, list[str]]:
    """Tensor → the specs of its sites."""
    found: dict[str, list[str]] = {}
    for site in onnxq.plan(model, options=options).sites:
        found.setdefault(site.tensor, []).append(str(site.spec))
    return found


def test_override_by_tensor_name_changes_that_tensor_only() -> None:
    change = Options(placement="all", override=(("r", Override(weight_bits=4, act_bits=16)),))
    before, after = specs_of(conv_relu(), ALL), specs_of(conv_relu(), change)
    assert {t for t in before if before[t] != after[t]} == {"r"}
    assert after["r"] == ["uint16 asymmetric per tensor"]


def test_the_last_override_wins() -> None:
    for first, last, kind in ((False, True, "per channel"), (True, False, "per tensor")):
        override = (("Conv*", Override(per_channel=first)), ("Conv*", Override(per_channel=last)))
        assert all(kind in spec for w in "12" for spec in specs_of(conv_relu(), Options(override=override))[f"w{w}"])


def test_symmetry_asked_for_that_is_there_changes_nothing() -> None:
    assert specs_of(conv_relu(), ALL) == specs_of(conv_relu(), Options(placement="all", symmetric=False))
    assert specs_of(conv_relu(), Options(placement="all", symmetric=True))["x"] == ["int8 symmetric per tensor"]


def test_moved_data_of_other_bits_has_a_scale_of_its_own() -> None:
    override = (("p", Override(act_bits=16)),)
    plan = onnxq.plan(residual(), options=Options(placement="all", override=override))
    moved = plan.by_name["p"]
    assert moved.spec.bits == plan.root(moved).spec.bits == 16
    assert plan.root(moved).tensor == "t", "what is moved is as fine as what is asked for"
    assert onnxq.plan(residual(), options=ALL).by_name["p"].tied_to == "t"


def test_what_is_asked_for_by_name_runs_in_integers_whatever_it_costs() -> None:
    model = build(
        "(float[4, 8] a, float[4, 8] b) => (float[4, 8] y) { [sum] s = Add (a, b)\n [out] y = Mul (s, b) }",
    )
    assert not onnxq.plan(model).quantized
    assert set(onnxq.plan(model, options=Options(include=("sum", "out"))).quantized) == {"sum", "out"}


def test_what_computes_an_output_of_a_body_says_so() -> None:
    model = build(
        """(float[4, 8] x, bool c, int64 n) => (float[4, 8] y, float[4, 8] z) {
            [branch] y = If (c) <
                then_branch = a () => (float[4, 8] p) { [add] p = Add (x, x) },
                else_branch = b () => (float[4, 8] q) { [mul] q = Mul (x, x) }
            >
            [loop] s = Loop (n, c, x) <
                body = l (int64 i, bool k, float[4, 8] u) => (bool m, float[4, 8] v) {
                    m = Identity (k)
                    [more] v = Add (u, x)
                }
            >
            [last] z = Add (s, y)
        }"""
    )
    reasons = {k.node: k.reason for k in onnxq.plan(model).kept_float}
    assert reasons["add"] == reasons["mul"] == "it computes an output of a branch of its If, which stays float"
    assert reasons["more"] == "it computes an output of the body of its Loop, which stays float"
    assert reasons["last"] == "it computes a model output, which stays float"


def test_long_chains_of_data_movement() -> None:
    steps = 3000
    body = "\n".join(f"t{k + 1} = Transpose <perm = [{k % 2}, {1 - k % 2}]> (t{k})" for k in range(steps))
    model = build(f"(float[4, 4] x) => (float[4, 4] y) {{ t0 = Add (x, x)\n {body}\n y = Slice (t{steps}, a, b) }}",
        a=np.array([0]), b=np.array([4]),
    )  # fmt: skip
    plan = onnxq.plan(model)
    assert not plan.quantized
    assert {k.reason for k in plan.kept_float} == {"it computes a model output, which stays float"}


def test_sites_come_in_the_order_of_the_graph() -> None:
    tensors = [s.tensor for s in onnxq.plan(residual(), options=ALL).sites]
    assert [t for t in tensors if not t.startswith("w")] == ["x", "r", "c", "t", "p", "y"]


@pytest.mark.parametrize("placement", ["all", "auto", "compute"])
def test_the_activations_of_a_plan_are_known_without_its_sites(placement: Placement) -> None:
    for make in (conv_relu, residual, concat, transformer, branches, recurrent, table):
        model, options = Prepared(make(), Options()).model, Options(placement=placement)
        for target in onnxq.backends():
            planned = {s.source for s in make_plan(model, target, options).sites if s.role == "activation"}
            assert activations_of(model, target, options) == planned, (make.__name__, target.name)


def test_unusable_nodes_stay_float_though_they_are_asked_for() -> None:
    model = Prepared(conv_relu(), Options()).model
    target = backend_named("onnxruntime")
    asked = Options(include=("Conv",))
    first = make_plan(model, target, asked)
    name = next(iter(first.quantized))
    assert name in make_plan(model, target, asked, keep_float={name: "noisy"}).quantized, "include wins"
    kept = {k.node: k.reason for k in make_plan(model, target, asked, unusable={name: "no numbers"}).kept_float}
    assert kept[name].startswith("no numbers")


def test_an_activation_function_between_does_not_hide_the_layer_that_needs_a_concat() -> None:
    model = build(
        """(float[1, 64, 32, 32] x, float[1, 64, 32, 32] z) => (float[1, 64, 32, 32] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, v)
            [join] c = Concat <axis = 1> (a, z)
            [act] r = Relu (c)
            y = Conv <pads = [1, 1, 1, 1]> (r, w)
        }""",
        v=normal(64, 64, 3, 3),
        w=normal(64, 128, 3, 3),
    )
    plan = onnxq.plan(model)
    assert plan.absorbed == {"act": "join"}


def test_an_operator_without_a_row_is_not_asked_for_in_float32() -> None:
    model = build(
        "(double[2, 8] x) => (double[2, 8] y) { a = MatMul (x, w)\n b = Erf (a)\n y = Relu (b) }", w=np.eye(8)
    )
    reasons = {kept.op: kept.reason for kept in onnxq.plan(model).kept_float}
    assert reasons["MatMul"] == "it computes in float64: export the model in float32 to quantize it"
    assert reasons["Erf"] == "Erf is not among the operators that onnxruntime quantizes", "in float32 neither"


def test_an_activation_function_that_no_operator_stands_before() -> None:
    model = build("(float[1, 8] x) => (float[1, 8] y) { a = Relu (x)  y = MatMul (a, w) }", w=normal(8, 8))
    reasons = {kept.op: kept.reason for kept in onnxq.plan(model, options=Options(exclude=("MatMul",))).kept_float}
    assert reasons["Relu"] == "there is no operator before it that it could be fused with"


def test_planning_again_gives_what_planning_anew_gives() -> None:
    model = Prepared(residual(), ALL).model
    target = backend_named("onnxruntime")
    names = [node.name or "" for node in model.graph if node.op_type == "Conv"]
    planner = Planner(model, target, ALL)
    for keep, store, wide in ([], [], []), (names[:1], [], []), (names[:1], names, names), (names[1:], names, []):
        reasons = dict.fromkeys(keep, "hurt")
        expected = make_plan(model, target, ALL, keep_float=reasons, store=store, wide=wide)
        assert planner.plan(reasons, {}, store=store, wide=wide) == expected
