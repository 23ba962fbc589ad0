"""What a TensorFlow Lite file cannot hold, and what it holds in floats alone, is said before data is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.backends import litert
from onnxq.errors import ModelError, OptionError
from tests.models import build, f32, feeds_for, normal
from tests.targets import GRAPHS


@pytest.mark.parametrize(
    ("text", "constants", "said"),
    [
        ("(float[1, C, 8, 8] x) => (float[1, C, 8, 8] y) { y = Relu (x) }", {}, "--shape x=1xSIZE1x8x8"),
        (
            "(float[2, 4, 8] x) => (float[N, 3] y) { [picks] i = NonZero (x) \n f = Cast <to = 1> (i) \n "
            "y = Transpose (f) }",
            {},
            "node 'picks' (NonZero)",
        ),
        (
            "(float[900, 1, 4] x) => (float[900, 1, 1, 6] y) { [cell] y = GRU <hidden_size = 6> (x, w, r) }",
            {"w": normal(1, 18, 4), "r": normal(1, 18, 6)},
            "node 'cell' (GRU): it has 900 steps",
        ),
    ],
)
def test_what_it_cannot_hold_is_refused_before_data_is_read(text: str, constants: Mapping[str, Any], said: str) -> None:
    def unread() -> Any:
        raise AssertionError("data was read")
        yield

    model = build(text, **constants)
    with pytest.raises(ModelError) as caught:
        onnxq.quantize(model, unread(), backend="litert")
    assert said in str(caught.value)
    assert any(said in f"{each.what} {each.hint}" for each in onnxq.check(model, backend="litert"))


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("LayerNormalization (f, c)", "do not fit one another where the batch is 1"),
        ("Add (f, c)", "is not known before"),
    ],
)
def test_what_depends_on_another_batch_than_one_is_refused(node: str, why: str) -> None:
    model = build(
        f"(float[N, 4] x) => (float[1, 8] y) {{ f = Reshape (x, s) \n [it] y = {node} }}",
        s=np.array([1, -1]),
        c=normal(8, scale=1.0),
    )
    with pytest.raises(ModelError, match=f"node 'it' .*{why}"):
        onnxq.quantize(model, feeds_for(model, N=2), backend="litert")


def test_without_the_package_the_onnx_formats_are_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(litert, "find_spec", lambda name: None)
    model = GRAPHS["residual"]()
    with pytest.raises(OptionError, match="ai-edge-litert, which is not installed"):
        onnxq.quantize(model, feeds_for(model), backend="litert")
    made = onnxq.quantize(model, feeds_for(model), backend="litert", options=Options(format="qdq"))
    assert [path.name for path in made.save(tmp_path / "net.onnx")] == ["net.onnx"]


@pytest.mark.parametrize(
    ("node", "shape", "constants", "why"),
    [
        ("Elu <alpha = 0.5> (a)", "1, 4, 8, 8", {}, "ELU with alpha 1"),
        ("PRelu (a, a)", "1, 4, 8, 8", {}, "its slopes are computed"),
        (
            "AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (a)",
            "1, 4, 4, 4",
            {},
            "leave out",
        ),
        ("AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)", "1, 4, 8, 8", {}, ""),
        ("PRelu (a, s)", "1, 4, 8, 8", {"s": f32(np.full((4, 1, 1), 0.2))}, ""),
    ],
)
def test_forms_without_kernels_of_integers_are_float_in_the_plan(
    node: str, shape: str, constants: Mapping[str, Any], why: str
) -> None:
    model = build(
        f"(float[1, 4, 8, 8] x) => (float[{shape}] y) {{ a = Conv (x, w) \n [it] b = {node} \n y = Conv (b, w) }}",
        w=normal(4, 4, 1, 1),
        **constants,
    )
    plan = onnxq.plan(model, backend="litert", options=Options(placement="all"))
    reasons = {kept.node: kept.reason for kept in plan.kept_float}
    assert why in reasons["it"] if why else "it" in plan.quantized


def test_a_matrix_added_to_a_product_is_added_in_float(tmp_path: Path) -> None:
    model = build(
        "(float[3, 4] x) => (float[3, 6] y) { [it] y = Gemm (x, w, b) }", w=normal(4, 6), b=normal(3, 6, seed=1)
    )
    plan = onnxq.plan(model, backend="litert", options=Options(placement="all"))
    assert "adds no matrix" in {kept.node: kept.reason for kept in plan.kept_float}["it"]
