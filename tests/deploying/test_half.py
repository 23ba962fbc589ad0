"""Quantized models that compute in half precision, as other tools make them: float32 inside, with the scales given."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.deploying.source import in_form
from tests.contract import infer
from tests.installed import needs
from tests.models import build, f32, images

_SCALES = {"sx": 0.0307, "sw": 0.00213, "sy": 0.0511}


def half_model(ends: str, how: str) -> onnx.ModelProto:
    """Two layers in half precision, with scales in half precision or with Casts around each quantizer."""
    casts = how == "casts"

    def pair(of: str, to: str, scale: str, axis: str = "") -> str:
        if not casts:
            return f"{to}q = QuantizeLinear{axis} ({of}, {scale}, zero)  {to} = DequantizeLinear ({to}q, {scale}, zero)"
        return f"""{to}w = Cast <to = 1> ({of})  {to}q = QuantizeLinear ({to}w, {scale}, zero)
            {to}d = DequantizeLinear ({to}q, {scale}, zero)  {to} = Cast <to = 10> ({to}d)"""

    inner = "x" if ends == "float16" else "xin"
    first = "" if ends == "float16" else "xin = Cast <to = 10> (x)"
    last = "y = Identity (c)" if ends == "float16" else "y = Cast <to = 1> (c)"
    kind = np.float32 if casts else np.float16
    rng = np.random.default_rng(0)
    scales: dict[str, Any] = {name: np.asarray(value, kind) for name, value in _SCALES.items()}
    return build(
        f"""({ends}[1, 4, 8, 8] x) => ({ends}[1, 4, 6, 6] y) {{
            {first}
            {pair(inner, "xd", "sx")}
            {pair("k", "kd", "sw")}
            a = Conv <pads = [1, 1, 1, 1]> (xd, kd, b)
            r = Relu (a)
            {pair("r", "rd", "sy")}
            {pair("k2", "k2d", "sw")}
            c = Conv (rd, k2d)
            {last}
        }}""",
        opset=19,
        k=rng.normal(scale=0.08, size=(4, 4, 3, 3)).astype(np.float16),
        k2=rng.normal(scale=0.08, size=(4, 4, 3, 3)).astype(np.float16),
        b=rng.normal(size=4).astype(np.float16),
        zero=np.int8(0),
        **scales,
    )


@pytest.mark.parametrize("backend", ["tensorrt", "onnxruntime", "snpe"])
@pytest.mark.parametrize("how", [pytest.param("scales", marks=needs("onnxruntime", "1.30")), "casts"])
@pytest.mark.parametrize("ends", ["float", "float16"])
def test_a_model_in_half_precision_keeps_its_scales_and_its_ends(ends: str, how: str, backend: str) -> None:
    model = half_model(ends, how)
    made = onnxq.deploy(model, backend=backend)
    kind = np.float32 if how == "casts" else np.float16
    scales = {float(qp.scale) for site in made.plan.sites if site.role != "bias" for qp in [made.qparams[site.name]]}
    assert scales >= {float(np.asarray(value, kind)) for value in _SCALES.values()}, "widened, not rounded again"
    assert list(made.plan.quantized.values()).count("Conv") >= 1
    result = ir.to_proto(made.rendered())
    for mine, theirs in ((model.graph.input, result.graph.input), (model.graph.output, result.graph.output)):
        assert [(v.name, v.type.tensor_type.elem_type) for v in mine] == [
            (v.name, v.type.tensor_type.elem_type) for v in theirs
        ]
    feeds: list[dict[str, Any]] = images(1, 4, 8, 8)
    if ends == "float16":
        feeds = [{"x": feed["x"].astype(np.float16)} for feed in feeds]
    want, got = (np.concatenate(infer(m, feeds, optimize=False)["y"]).astype(np.float64) for m in (model, result))
    noise, power = ((want - got) ** 2).mean(), (want**2).mean()
    assert noise * 3000 < power, "35 dB"
    assert not any(str(note).startswith("upcast: refused") for note in made.notes)


def test_what_cannot_be_widened_is_told() -> None:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            q = QuantizeLinear (x, s, zero)  d = DequantizeLinear (q, s, zero)
            h = Cast <to = 10> (d)  m = acme.Own (h)  y = Cast <to = 1> (m)
        }""",
        domains={"acme": 1},
        s=f32(0.02),
        zero=np.int8(0),
    )
    *_, lost = in_form(model, backend_named("tensorrt"), Options())
    assert len(lost) == 1 and "acme::Own" in lost[0] and "Give it in float32" in lost[0]
