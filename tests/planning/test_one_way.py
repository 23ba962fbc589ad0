"""A table of tensors has one entry for each: what asks for two is refused before any data is run."""

from __future__ import annotations

import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import OptionError
from tests.models import build, feeds_for, normal, untouched


def forked() -> onnx.ModelProto:
    return build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z) "
        "{ a = Conv (x, w)\n [c1] y = Conv (a, w)\n [c2] z = Conv (a, w) }",
        w=normal(4, 4, 1, 1),
    )


@pytest.mark.parametrize(
    ("backend", "bits", "asked", "said"),
    [
        ("snpe", 16, "act_bits=8", "uint8 asymmetric per tensor for c1 and uint16 asymmetric per tensor for c2"),
        ("snpe", None, "symmetric=true", "uint8 symmetric per tensor for c1"),
        ("tengine", None, "range=minmax", "range minmax, for c1 and uint8 asymmetric per tensor, range mse, for c2"),
        ("ppl", None, "act_bits=8", "uint8 .* for c1"),
    ],
)
def test_two_ways_are_refused_before_the_data_is_read(backend: str, bits: int | None, asked: str, said: str) -> None:
    options = Options(act_bits=bits, override={"c1": asked})
    for do in (
        lambda: onnxq.quantize(forked(), untouched, backend=backend, options=options),
        lambda: onnxq.plan(forked(), backend=backend, options=options),
    ):
        with pytest.raises(OptionError, match=f"tensor 'a' is asked for in two ways, .*{said}.*Name the tensor"):
            do()
    (found,) = (f for f in onnxq.check(forked(), backend=backend, options=options) if f.level == "error")
    assert "'a' is asked for in two ways" in found.what


def test_what_the_message_asks_for_is_taken() -> None:
    options = Options(act_bits=16, override={"a": "act_bits=8"})
    q = onnxq.quantize(forked(), feeds_for(forked()), backend="snpe", options=options)
    assert q.qparams["a"].spec.bits == 8


@pytest.mark.parametrize(("backend", "form"), [("snpe", "fake-quantize"), ("openvino", None), ("qnn", None)])
def test_formats_without_a_table_take_two_ways(backend: str, form: str | None) -> None:
    options = Options(override={"c1": "range=minmax"}, format=form)
    plan = onnxq.plan(forked(), backend=backend, options=options)
    assert {s.spec.range for s in plan.sites if s.tensor == "a"} == {"minmax", "mse"}
