"""One object, several renderings; none of them changes it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options, Quantized, views
from onnxq.console.terminal import Screen
from onnxq.errors import OutputError
from tests.models import constants_of, images
from tests.planning.test_planner import residual


@pytest.fixture(scope="module")
def quantized() -> Quantized:
    return onnxq.quantize(residual(), images(1, 16, 8, 8), options=Options(placement="all"))


def text(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def ops(model: ir.Model) -> set[str]:
    return {n.op_type for n in model.graph}


def test_the_float_model_stays_free_of_quantizers(quantized: Quantized) -> None:
    before = text(quantized.model)
    quantized.qdq()
    quantized.fake_quantize()
    assert text(quantized.model) == before
    assert not ops(quantized.model) & {"QuantizeLinear", "DequantizeLinear", "FakeQuantize"}


def test_renderings_are_the_same_every_time(quantized: Quantized) -> None:
    assert text(quantized.qdq()) == text(quantized.qdq())
    assert text(quantized.fake_quantize()) == text(quantized.fake_quantize())
    assert "FakeQuantize" not in ops(quantized.qdq())
    assert "QuantizeLinear" not in ops(quantized.fake_quantize())


def test_every_site_has_numbers_of_its_spec(quantized: Quantized) -> None:
    assert quantized.qparams.keys() == quantized.plan.by_name.keys()
    for site in quantized.plan.sites:
        assert quantized.qparams[site.name].spec == site.spec, site.name


def test_format_decides_what_is_rendered_and_saved(quantized: Quantized, tmp_path: Path) -> None:
    assert text(quantized.rendered()) == text(quantized.qdq())
    q = onnxq.quantize(residual(), images(1, 16, 8, 8), options=Options(placement="all", format="fake-quantize"))
    assert text(q.rendered()) == text(q.fake_quantize())
    (path,) = q.save(tmp_path / "q.onnx")
    assert "FakeQuantize" in {n.op_type for n in onnx.load(path).graph.node}


def test_other_numbers_or_another_format_are_rendered_anew(quantized: Quantized, tmp_path: Path) -> None:
    before = text(quantized.rendered())
    name = next(site.name for site in quantized.plan.sites if site.role == "activation")
    coarse = replace(quantized.qparams[name], scale=quantized.qparams[name].scale * np.float32(10))
    other = replace(quantized, qparams={**quantized.qparams, name: coarse})
    assert text(other.rendered()) == text(other.qdq()) != before
    (path,) = other.save(tmp_path / "q.onnx")
    stored = constants_of(onnx.load(path))
    assert any(np.array_equal(array, coarse.scale) for array in stored.values())
    assert "FakeQuantize" in ops(replace(other, format="fake-quantize").rendered())
    assert text(quantized.rendered()) == before


def test_other_words_cost_no_other_rendering(
    quantized: Quantized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized.rendered()
    monkeypatch.setattr("onnxq.render.qdq.render", None)
    other = replace(quantized, verification=None, notes=("other",), hints=("other",), recipe=("other",))
    assert text(other.rendered()) == text(quantized.rendered())
    assert other.written(tmp_path / "q.onnx").files


def test_saved_file_names_its_maker(quantized: Quantized, tmp_path: Path) -> None:
    (path,) = quantized.save(tmp_path / "q.onnx")
    assert path == tmp_path / "q.onnx"
    model = onnx.load(path)
    assert model.producer_name == "onnxq" and model.producer_version == quantized.version != ""


def test_a_missing_folder_is_made(quantized: Quantized, tmp_path: Path) -> None:
    (path,) = quantized.save(tmp_path / "new" / "folder" / "q.onnx")
    assert path == tmp_path / "new" / "folder" / "q.onnx" and path.is_file()


def test_a_folder_that_cannot_be_made_is_said_and_one_made_in_vain_goes(
    quantized: Quantized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be made"):
        quantized.save(tmp_path / "file" / "q.onnx")
    monkeypatch.setattr("onnxq.render.formats.save", failing)
    with pytest.raises(OutputError, match="no room"):
        quantized.save(tmp_path / "new" / "folder" / "q.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def failing(*args: object, **named: object) -> None:
    raise OutputError("there is no room")


def test_report_is_json_and_counts(quantized: Quantized) -> None:
    report = json.loads(json.dumps(quantized.report(), allow_nan=False))
    assert report["quantized_nodes"] == len(quantized.plan.quantized) == sum(report["quantized_ops"].values())
    assert report["quantized_ops"]["Conv"] == 3
    assert report["verification"]["samples"] == 6
    parts = [report[f"{kind}_nodes"] for kind in ("quantized", "absorbed", "float")]
    assert parts[1] > 0 and sum(parts) == report["nodes"] and sum(parts[:2]) == report["integer_nodes"]
    shown = io.StringIO()
    views.quantized(Screen(shown), "m.onnx", None, quantized, 1.0, verbose=False)
    assert f"{report['integer_nodes']} of {report['nodes']} nodes" in shown.getvalue()


def test_the_short_form_is_a_line(quantized: Quantized) -> None:
    text = repr(quantized)
    assert len(text) < 200 and "\n" not in text
    assert text.startswith(
        f"<Quantized for onnxruntime: {quantized.plan.done} of {quantized.plan.total} nodes in integ"
    )
