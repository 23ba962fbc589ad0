"""A large model as it came is held beside what became of it, where both have the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.graph.files import as_it_came
from onnxq.graph.files.as_it_came import given_size
from onnxq.graph.files.load import load
from onnxq.ort.session import Session
from onnxq.prepare import Prepared
from tests.models import build, f32, feeds_for, normal
from tests.watched import opened_to_check


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model counts as large."""
    monkeypatch.setattr(as_it_came, "_LARGE", 1)


def chain(last: str) -> onnx.ModelProto:
    """A Gelu, whose arithmetic gets other operators, or a factor that goes into the weights."""
    return build(
        f"(float[1, 32] x) => (float[1, 32] y) {{ c = MatMul (x, w) {last} }}",
        w=normal(32, 32),
        two=f32(2),
        slope=f32(0.1),
    )


SAME = "p = Relu (c) n = Neg (c) r = Relu (n) m = Mul (r, slope) y = Sub (p, m)"
FOLDED = "b = Mul (c, two) y = Identity (b)"


@pytest.mark.usefixtures("large")
def test_a_large_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = chain(SAME), tmp_path / "m.onnx"
    onnx.save(model, path)
    read: list[Any] = []
    parse = onnx.load

    def counted(file: Any, **how: Any) -> onnx.ModelProto:
        read.append(file)
        return parse(file, **how)

    monkeypatch.setattr(onnx, "load", counted)
    opened = opened_to_check(monkeypatch)
    made = onnxq.quantize(path, feeds_for(model), options=Options(effort="fast"))
    assert made.verification is not None and made.verification.speedup is not None
    assert read == [path]
    assert opened[-1] == [node.op_type for node in model.graph.node], "the speed is that against the model as it came"


@pytest.mark.usefixtures("large")
def test_it_shares_the_weights_and_keeps_its_names_and_numbers() -> None:
    model = chain(SAME)
    prepared = Prepared(model, Options())
    given = prepared.given
    assert isinstance(given, ir.Model)
    weight, own = given.graph.initializers["w"].const_value, prepared.model.graph.initializers["w"].const_value
    assert weight is not None and own is not None and np.shares_memory(weight.numpy(), own.numpy())
    feed = feeds_for(model)[0]
    expected, found = (Session(loaded).run(feed)["y"] for loaded in (model.SerializeToString(), load(given)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("large")
def test_no_weights_are_held_that_the_passes_have_made_others_of() -> None:
    model = chain(FOLDED)
    assert Prepared(model, Options()).given is model


def test_a_small_model_is_loaded_again() -> None:
    model = chain(SAME)
    assert Prepared(model, Options()).given is model


def test_the_size_of_a_model_is_that_of_its_file(tmp_path: Path) -> None:
    """Written again it has other bytes, since empty fields are written or left out."""
    path = tmp_path / "m.onnx"
    onnx.save(chain(SAME), path)
    size = path.stat().st_size
    assert given_size(path, load(path)) == given_size(str(path), load(path)) == size
    assert given_size(path.read_bytes(), load(path)) == size
    made = onnxq.quantize(path, feeds_for(chain(SAME), samples=8), output=tmp_path / "q.onnx")
    assert made.verification is not None
    assert made.verification.float_bytes == size


def test_the_size_of_a_model_with_its_weights_beside_it_counts_these(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(chain(SAME), path, save_as_external_data=True, location="m.data", size_threshold=0)
    apart = path.stat().st_size + (tmp_path / "m.data").stat().st_size
    assert path.stat().st_size < 32 * 32 * 4 < given_size(path, load(path)) <= apart + 100


def test_the_size_of_a_model_as_text_is_that_of_the_model_it_is(tmp_path: Path) -> None:
    text = tmp_path / "m.json"
    onnx.save(chain(SAME), text, format="json")
    assert 32 * 32 * 4 < given_size(text, load(text)) < text.stat().st_size
