"""Channels turned before weights are rounded: the float model stays what it is, and outliers are spread over blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.compare import compare
from onnxq.errors import OptionError
from onnxq.graph.files.load import load
from onnxq.graph.passes.normalize import normalize
from onnxq.measuring.metrics import sqnr
from onnxq.options import Options
from onnxq.weight_only import quantize_weights
from onnxq.weight_only.find import Matrix, find
from onnxq.weight_only.pipeline import rewrite_weights
from onnxq.weight_only.recipe import Recipe
from onnxq.weight_only.rotate import rotate
from tests.contract import infer
from tests.models import images
from tests.turnable import blocks
from tests.weight_only.layers import layers, run, save

_FRESH = images(1, 16, 12, samples=4, seed=77)


def _found(outlier: float = 40.0) -> tuple[ir.Model, list[Matrix]]:
    model = load(blocks(outlier))
    normalize(model, min_opset=21)
    return model, find(model, Options(), Recipe())[0]


def _kept(source: Path, made: Path) -> float:
    want, got = ([run(path, feed)["y"] for feed in _FRESH] for path in (source, made))
    return sqnr(np.stack(want), np.stack(got))


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("format", ["qdq", "matmulnbits"])
def test_a_channel_that_stands_out_costs_less(tmp_path: Path, format: str, external: bool) -> None:
    source = save(blocks(outlier=40.0), tmp_path / "m.onnx", external=external)
    plain, turned = tmp_path / "plain.onnx", tmp_path / "turned.onnx"
    quantize_weights(source, plain, format=format)
    result = quantize_weights(source, turned, format=format, rotate=True)
    assert result.notes[0] == "rotate: the channels of 1 place turned (6 layers)"
    assert _kept(source, turned) >= _kept(source, plain) + 3.0


def test_data_reaches_what_was_turned(tmp_path: Path) -> None:
    source, output = save(blocks(outlier=40.0), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    data = images(1, 16, 12, samples=8)
    result = quantize_weights(source, output, method="gptq", data=data, rotate=True)
    assert not any("since no data reaches them" in note for note in result.notes)
    worst = result.verification.worst
    assert worst is not None and worst[1].sqnr >= 15.0
    assert _kept(source, output) >= 15.0


def test_turned_tensors_are_not_compared_with_float_ones(tmp_path: Path) -> None:
    source, output = save(blocks(outlier=40.0), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    quantize_weights(source, output, bits=8, rotate=True)
    report = compare(source, output, images(1, 16, 12, samples=4))
    assert any("tensors in between not compared" in line for line in report.warnings), report.warnings
    assert report.tensors and min(found.errors.sqnr for found in report.tensors) > 25.0


def test_the_float_model_stays_what_it_is() -> None:
    model, matrices = _found()
    before = [np.array(m.value.const_value.numpy()) for m in matrices if m.value.const_value is not None]
    rotate(model, matrices)
    after = [m.value.const_value.numpy() for m in matrices if m.value.const_value is not None]
    assert not any(np.allclose(a, b, rtol=0.1) for a, b in zip(before, after, strict=True))
    given, turned = (infer(m, _FRESH, optimize=False)["y"] for m in (blocks(40.0), ir.to_proto(model)))
    for want, got in zip(given, turned, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5 * float(np.abs(want).max()), rtol=0)


def test_the_model_given_is_not_changed(tmp_path: Path) -> None:
    model = ir.from_proto(blocks(40.0))
    before = ir.to_proto(model).SerializeToString()
    rewrite_weights(model, None, Recipe(rotate=True), output=tmp_path / "q.onnx", options=Options())
    assert ir.to_proto(model).SerializeToString() == before


def test_a_seed_gives_the_same_model_and_another_seed_another(tmp_path: Path) -> None:
    source = save(blocks(40.0), tmp_path / "m.onnx")
    made = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        output = tmp_path / f"{name}.onnx"
        rewrite_weights(source, None, Recipe(rotate=True), output=output, options=Options(seed=seed))
        made.append(output.read_bytes())
    assert made[0] == made[1] != made[2]


def test_a_model_without_a_place_says_so_and_is_as_without(tmp_path: Path) -> None:
    source = save(layers(), tmp_path / "m.onnx")
    result = quantize_weights(source, tmp_path / "turned.onnx", rotate=True, exclude=("c", "d"))
    assert result.notes[0].startswith("rotate: nothing turned")
    quantize_weights(source, tmp_path / "plain.onnx", exclude=("c", "d"))
    assert (tmp_path / "turned.onnx").read_bytes() == (tmp_path / "plain.onnx").read_bytes()


def test_weights_that_memory_may_not_hold_are_refused() -> None:
    model, matrices = _found()
    before = ir.to_proto(model).SerializeToString()
    with pytest.raises(OptionError, match="all of which would be held in memory"):
        rotate(model, matrices, most_bytes=4 * 4 * 32 * 64)  # the layers between, without the first and the last
    assert ir.to_proto(model).SerializeToString() == before


def test_a_choice_of_bits_is_written_with_it(tmp_path: Path) -> None:
    source, saved = save(blocks(outlier=40.0), tmp_path / "m.onnx"), tmp_path / "bits.toml"
    quantize_weights(source, tmp_path / "q.onnx", avg_bits=6, rotate=True, save=saved)
    assert "rotate=true" in saved.read_text()
