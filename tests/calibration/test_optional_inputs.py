"""Inputs that a model runs without: data may leave them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import DataError
from tests.models import build, normal

XS = [normal(1, 8, seed=k) for k in range(8)]
MORE = normal(1, 8, seed=20)


def net() -> onnx.ModelProto:
    """What it gives depends on whether there is the second input."""
    return build(
        """(float[1, 8] x, optional(float[1, 8]) more) => (float[1, 4] y) {
            given = OptionalHasElement (more)
            shift = Cast <to = 1> (given)
            product = MatMul (x, w)
            y = Add (product, shift)
        }""",
        opset=18,
        w=normal(8, 4),
    )


def saved(write: Callable[..., None], ending: str, *args: Any, **arrays: Any) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        write(folder / f"data.{ending}", *args, **arrays)
        return folder / f"data.{ending}"

    return made


LEFT_OUT: dict[str, Any] = {
    "by name": [{"x": x} for x in XS],
    "as None": [{"x": x, "more": None} for x in XS],
    "in order": [(x,) for x in XS],
    "alone": XS,
    "npz": saved(np.savez, "npz", x=np.concatenate(XS)),
    "npy": saved(np.save, "npy", np.concatenate(XS)),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_it_is_left_out(kind: str, tmp_path: Path) -> None:
    data = LEFT_OUT[kind](tmp_path) if callable(LEFT_OUT[kind]) else LEFT_OUT[kind]
    made = onnxq.quantize(net(), data, options=Options(placement="all"))
    verification = made.verification
    assert verification is not None and verification.outputs["y"].sqnr > 30
    assert not any("empty" in warning for warning in verification.warnings)
    assert made.qparams["y"].hi < made_with_it().qparams["y"].hi, "nothing was added"
    told = [f.what for f in onnxq.check(net(), data)]
    assert any("more left out" in what for what in told)
    assert onnxq.compare(net(), made, data).outputs["y"].sqnr > 30


def made_with_it() -> onnxq.Quantized:
    return onnxq.quantize(net(), [{"x": x, "more": MORE} for x in XS], options=Options(placement="all"))


def test_it_is_given_in_some_samples_or_in_order() -> None:
    mixed: list[Any] = [{"x": x, "more": MORE} if k % 2 else {"x": x} for k, x in enumerate(XS)]
    made = onnxq.quantize(net(), mixed, options=Options(placement="all"))
    assert made.verification is not None and made.verification.outputs["y"].sqnr > 30
    ordered = onnxq.quantize(net(), [(x, MORE) for x in XS], options=Options(placement="all"))
    assert ordered.qparams["y"] == made_with_it().qparams["y"]


def test_others_are_not_left_out() -> None:
    with pytest.raises(DataError, match="no array for the model's input 'x'"):
        onnxq.quantize(net(), [{"more": MORE}])
