"""Masks in front of a softmax: data that shows nothing of them must not make them mask nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options
from onnxq.calibration.masks import find_masks
from onnxq.prepare import Prepared
from tests.contract import ALL, infer, quantize_checked, sqnr
from tests.models import build, f32, masked_attention, normal

Feeds = list[dict[str, NDArray[Any]]]

LOWEST = float(np.finfo(np.float32).min)
FORMS = {
    "choice": "b = Cast <to = 9> (m)\n mask = Where (b, zero, low)\n sm = Add (sc, mask)",
    "product": "left = Sub (one, m)\n mask = Mul (left, low)\n sm = Add (sc, mask)",
    "in place": "b = Cast <to = 9> (m)\n sm = Where (b, sc, low)",
    "outside": "sm = Add (sc, m)",
    "moved": "b = Cast <to = 9> (m)\n lows = Expand (low, size)\n sm = Where (b, sc, lows)",
}


def attention(form: str, low: float) -> onnx.ModelProto:
    """Scores of ``x`` that count where ``m`` is 1."""
    return masked_attention(
        FORMS[form],
        zero=np.float32(0.0),
        one=np.float32(1.0),
        low=np.float32(low),
        size=np.array([1, 1, 16]),
    )


def sentences(shortest: int, samples: int = 10) -> Feeds:
    """Sentences of at least so many words out of 16."""
    rng = np.random.default_rng(0)
    feeds: Feeds = []
    for _ in range(samples):
        m = np.ones((1, 1, 16), np.float32)
        m[..., rng.integers(shortest, 17) :] = 0.0
        feeds.append({"x": rng.standard_normal((1, 16, 32)).astype(np.float32), "m": m})
    return feeds


REDUCED = onnxq.Options(reduce_range=True)
"""What is made for another target is run in onnxruntime here, on any processor."""
WHOLE, PADDED = sentences(16), sentences(4)


def in_use(model: onnx.ModelProto, made: onnxq.Quantized) -> float:
    """SQNR in dB on sentences with padding."""
    expected = infer(model, PADDED, optimize=False)["y"]
    return sqnr(expected, infer(ir.to_proto(made.rendered()), PADDED, optimize=True)["y"])


def warnings(made: onnxq.Quantized) -> str:
    assert made.verification is not None
    return "\n".join(made.verification.warnings)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "outside"])
@pytest.mark.parametrize("low", [LOWEST, -1e4, -1e9])
def test_a_mask_that_the_data_does_not_show_masks_in_use(form: str, low: float) -> None:
    model = attention(form, low)
    made = quantize_checked(model, WHOLE, ALL)
    assert in_use(model, made.quantized) > 25.0
    reason = next(kept.reason for kept in made.quantized.plan.kept_float if kept.op == "Softmax")
    assert f"and {np.float32(low):.2g} in use where it masks; pad some calibration samples" in reason
    assert "MatMul" in made.quantized.plan.quantized.values()


def test_a_mask_from_outside_that_the_data_does_not_show() -> None:
    model = attention("outside", 0.0)
    feeds = [{**feed, "m": np.zeros_like(feed["m"])} for feed in WHOLE]
    made = quantize_checked(model, feeds, ALL)
    reason = next(kept.reason for kept in made.quantized.plan.kept_float if kept.op == "Softmax")
    assert reason.startswith("tensor 'm' is zero on all of the data, before a Softmax, as masks are; pad some")


@pytest.mark.parametrize("low", [LOWEST, -np.inf])
def test_a_mask_in_few_samples_masks_in_use(low: float) -> None:
    model = attention("in place", low)
    assert in_use(model, quantize_checked(model, [*WHOLE, PADDED[0]], ALL).quantized) > 25.0


INTEGER = ["qnn", "vitis", "snpe", "tengine"]
"""Targets without float nodes between integer ones."""


def test_a_mild_mask_that_the_data_shows_stays_float_unless_all_is_asked_for() -> None:
    model = attention("product", -1e4)
    mixed = onnxq.quantize(model, PADDED, backend="tvm", options=REDUCED)
    assert in_use(model, mixed) > 25.0
    assert "Softmax" not in mixed.plan.quantized.values()
    forced = onnxq.quantize(model, PADDED, backend="tvm", options=replace(ALL, reduce_range=True))
    assert in_use(model, forced) > 25.0
    assert "Softmax" in forced.plan.quantized.values()
    assert "mask" not in warnings(forced)


@pytest.mark.parametrize("target", INTEGER)
@pytest.mark.parametrize("form", [form for form in FORMS if form != "outside"])
@pytest.mark.parametrize("data", [PADDED, WHOLE], ids=["padded", "whole"])
def test_a_mild_mask_masks_in_use_where_all_is_integers(target: str, form: str, data: Feeds) -> None:
    model = attention(form, -65504.0)
    made = onnxq.quantize(model, data, backend=target, options=None if target == "tengine" else REDUCED)
    assert in_use(model, made) > (25.0 if target != "vitis" else 20.0)
    assert "Softmax" in made.plan.quantized.values()
    assert "mask" not in warnings(made).replace("'mask'", "")


@pytest.mark.parametrize("data", [PADDED, WHOLE], ids=["padded", "whole"])
@pytest.mark.parametrize("range_of", ["minmax", "mse"])
def test_a_mask_from_outside_masks_in_use_where_all_is_integers(data: Feeds, range_of: str) -> None:
    model = attention("outside", 0.0)
    masks = [{**feed, "m": -1e4 * (1 - feed["m"])} for feed in data]
    made = onnxq.quantize(model, masks, backend="qnn", options=onnxq.Options(range=range_of))
    padded = [{**feed, "m": -1e4 * (1 - feed["m"])} for feed in PADDED]
    expected = infer(model, padded, optimize=False)["y"]
    assert sqnr(expected, infer(ir.to_proto(made.rendered()), padded, optimize=False)["y"]) > 25.0
    assert "Softmax" in made.plan.quantized.values()


@pytest.mark.parametrize(
    "tail",
    [
        "t = Sub (sc, m)\n p = Softmax (t)",
        "a = Add (sc, n)\n t = Max (a, low)\n p = Softmax (t)",
        "a = Mul (n, half)\n b = Add (sc, a)\n c = Add (b, n)\n t = Reshape (c, flat)\n"
        "p0 = Softmax (t)\n p = Reshape (p0, back)",
    ],
    ids=["subtracted", "floored", "twice"],
)
@pytest.mark.parametrize("data", [PADDED, WHOLE], ids=["padded", "whole"])
def test_what_a_mask_goes_through(tail: str, data: Feeds) -> None:
    model = build(
        f"""(float[1, 16, 32] x, float[1, 16, 16] sc0, float[1, 1, 16] m0) => (float[1, 16, 32] y) {{
            one = Constant <value = float {{1.0}}> ()
            left = Sub (one, m0)
            m = Mul (left, much)
            n = Neg (m)
            v = MatMul (x, w)
            sc = Mul (sc0, half)
            {tail}
            y = MatMul (p, v) }}""",
        w=normal(32, 32, seed=3, scale=0.2),
        much=np.float32(1e4),
        half=np.float32(0.5),
        low=np.float32(np.finfo(np.float32).min),
        flat=np.array([16, 16]),
        back=np.array([1, 16, 16]),
    )
    rng = np.random.default_rng(1)

    def feeds(given: Feeds) -> Feeds:
        scores = [4 * rng.standard_normal((1, 16, 16)).astype(np.float32) for _ in given]
        return [{"x": feed["x"], "sc0": sc, "m0": feed["m"]} for feed, sc in zip(given, scores, strict=True)]

    made = onnxq.quantize(model, feeds(data), backend="snpe")
    padded = feeds(PADDED)
    expected = infer(model, padded, optimize=False)["y"]
    assert sqnr(expected, infer(ir.to_proto(made.rendered()), padded, optimize=False)["y"]) > 25.0
    assert "Softmax" in made.plan.quantized.values()


def test_masks_that_something_else_reads_are_not_clipped() -> None:
    model = attention("product", -1e4)
    model.graph.output.append(onnx.helper.make_tensor_value_info("sm", onnx.TensorProto.FLOAT, [1, 16, 16]))
    made = onnxq.quantize(model, PADDED, backend="snpe")
    assert in_use(model, made) > 25.0
    reason = next(kept.reason for kept in made.plan.kept_float if kept.op == "Softmax")
    assert "holds mask values (-1" in reason


def test_targets_that_quantize_all_say_what_is_ignored() -> None:
    model = attention("product", -1e4)
    next(node for node in model.graph.node if node.op_type == "Softmax").op_type = "LogSoftmax"
    made = onnxq.quantize(model, WHOLE, backend="qnn")
    assert "LogSoftmax" in made.plan.quantized.values()
    said = "tensor 'mask' is zero on all of the data, and -1e+04 in use where it masks; pad some calibration samples"
    assert said in warnings(made)
    assert "qnn quantizes it, and would ignore what it masks" in warnings(made)
    beyond = onnxq.quantize(attention("choice", LOWEST), WHOLE, backend="snpe")
    assert "Softmax" not in beyond.plan.quantized.values()


@pytest.mark.parametrize(("low", "feeds"), [(-20.0, WHOLE), (-20.0, PADDED)])
def test_what_eight_bits_hold_is_no_mask(low: float, feeds: Feeds) -> None:
    made = quantize_checked(attention("in place", low), feeds, ALL)
    assert "Softmax" in made.quantized.plan.quantized.values()


def test_a_mask_that_the_data_shows_is_not_called_unseen() -> None:
    model = build(
        "(float[2, 8] x, bool[2, 8] c) => (float[2, 8] y) { w = Where (c, x, m)\n y = Softmax (w) }", m=f32(-1e4)
    )
    scores = [normal(2, 8, seed=seed, scale=1.0) for seed in range(4)]
    used = [{"x": x, "c": x < 0.5} for x in scores]
    none = [{"x": x, "c": np.ones_like(x, np.bool_)} for x in scores]
    prepared = Prepared(model, Options()).model
    unseen = [find_masks(prepared, onnxq.calibrate(model, data).tensors).unseen for data in (used, none)]
    assert unseen[0] == {} and list(unseen[1]) == ["w"]
