"""Plans of small graphs, as golden texts in ``tests/golden``; ``tools/update_golden.py`` writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from tests.models import build, f32, normal

GOLDEN = Path(__file__).parent / "golden"
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
    return onnxq.plan(make(), options=options).to_text()


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
    plan = onnxq.plan(conv_relu(), options=Options(placement="all", override=(("w2", "weight_bits=4"),)))  # type: ignore[arg-type]
    bits = {s.tensor: s.spec.bits for s in plan.sites if s.role == "weight"}
    assert bits == {"w1": 8, "w2": 4}


def test_a_pattern_that_matches_nothing_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="Conv"):
        onnxq.plan(conv_relu(), options=Options(exclude=("Convv",)))
