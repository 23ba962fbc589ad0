"""Weights of fewer bits than their stored type: whoever reads the file knows how many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.qparams import QParams
from onnxq.render.bits_kept import as_marked, mark_bits
from onnxq.show import ModelView
from onnxq.spec import QuantSpec
from tests.models import images
from tests.planning.test_planner import residual

_KEY = "onnxq.bits"


def _written(path: Path, **options: object) -> onnxq.Quantized:
    return onnxq.quantize(residual(), images(1, 16, 8, 8), output=path, options=Options(**options))  # type: ignore[arg-type]


def _bits(quantized: onnxq.Quantized) -> set[int]:
    found = {site.name for site in quantized.plan.sites if site.role == "weight"}
    return {quantized.qparams[name].spec.bits for name in found}


@pytest.mark.parametrize("placement", ["all", "auto"])
@pytest.mark.parametrize(
    ("bits", "options"),
    [
        (2, {"weight_symmetric": True}),
        (3, {"weight_symmetric": True}),
        (3, {"weight_symmetric": False}),
        (3, {"format": "qoperator"}),
        (4, {}),
        (6, {}),
        (8, {}),
        (9, {}),
    ],
)
def test_a_file_is_read_back_with_the_bits_asked_for(
    bits: int, options: dict[str, object], placement: str, tmp_path: Path
) -> None:
    made = _written(tmp_path / "q.onnx", weight_bits=bits, placement=placement, **options)
    assert _bits(made) == {bits}
    back = onnxq.read(tmp_path / "q.onnx")
    assert _bits(back) == {bits}
    for site in back.plan.sites:
        if site.role == "weight":
            numbers = back.qparams[site.name]
            codes = np.concatenate([numbers.zero_point.reshape(-1), [numbers.spec.qmin, numbers.spec.qmax]])
            assert codes.max() - codes.min() < 1 << bits


def test_deployed_anew_it_says_the_same(tmp_path: Path) -> None:
    _written(tmp_path / "q.onnx", weight_bits=3, weight_symmetric=True, placement="all")
    onnxq.deploy(tmp_path / "q.onnx", backend="onnxruntime", output=tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "q.onnx").read_bytes()


@pytest.mark.parametrize("said", ["2", "0", "3.5", "-3", "eight", "33"])
def test_a_word_that_does_not_hold_is_passed_over(said: str, tmp_path: Path) -> None:
    _written(tmp_path / "q.onnx", weight_bits=6, placement="all")
    model = onnx.load(tmp_path / "q.onnx")
    marked = [t for t in model.graph.initializer if any(p.key == _KEY for p in t.metadata_props)]
    assert marked
    for tensor in marked:
        for entry in tensor.metadata_props:
            entry.value = said
    assert _bits(onnxq.read(model)) == {8}


def test_nothing_is_said_of_integers_as_wide_as_their_type(tmp_path: Path) -> None:
    for bits in (4, 8):
        _written(tmp_path / "q.onnx", weight_bits=bits, placement="all")
        assert not any(t.metadata_props for t in onnx.load(tmp_path / "q.onnx").graph.initializer)


def test_it_is_shown(tmp_path: Path) -> None:
    """As 6 bits of activations are, which a Clip tells."""
    _written(tmp_path / "q.onnx", weight_bits=6, act_bits=6, placement="all")
    view = onnxq.show(tmp_path / "q.onnx")
    assert isinstance(view, ModelView)
    assert {(q.role, q.dtype) for q in view.quantized} == {("weight", "int6"), ("activation", "uint6")}


def test_a_mark_that_does_not_hold_for_the_zero_points_counts_for_nothing() -> None:
    """Another tool may change the numbers and pass over the mark."""
    stored = ir.Value(name="w", const_value=ir.tensor(np.zeros(4, np.uint8), name="w"))
    spec = QuantSpec(bits=8, signed=False, symmetric=False)
    mark_bits(stored, replace(spec, bits=3))
    for zero, bits in ((7, 3), (8, 8)):
        numbers = QParams(spec, np.asarray(0.1, np.float32), np.asarray(zero))
        assert as_marked(numbers, stored, np.zeros(4, np.uint8)).spec.bits == bits
