from __future__ import annotations

import importlib.util
import subprocess
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq.errors import OptionError
from onnxq.graph.files.load import load
from onnxq.graph.files.save import to_proto
from onnxq.graph.passes import simplify as module
from onnxq.graph.passes.simplify import simplify
from tests.graph.helpers import build, ops, random, run, signature

TEXT = """g (float[1,4] x) => (float[1,3] y) {
    a = Identity(x) \n t = Transpose(w) \n m = MatMul(a, t) \n y = Relu(m) }"""


def proto() -> onnx.ModelProto:
    made = build(TEXT, w=random(3, 4))
    made.producer_name = "someone"
    made.metadata_props.add(key="labels", value="a,b")
    return made


@pytest.mark.skipif(importlib.util.find_spec("onnxsim") is None, reason="onnxsim is not installed")
def test_simplified_and_still_the_same() -> None:
    model = load(proto())
    notes = simplify(model)
    assert notes[0].message == "onnxsim: 4 nodes became 2"
    assert ops(model) == ["MatMul", "Relu"]
    assert (model.producer_name, model.metadata_props) == ("someone", {"labels": "a,b"})
    assert signature(to_proto(model)) == signature(proto())
    feeds = {"x": random(1, 4, seed=1)}
    np.testing.assert_allclose(run(to_proto(model), feeds)[0], run(proto(), feeds)[0], rtol=1e-6)


def left_alone(monkeypatch: pytest.MonkeyPatch, script: str, timeout: float = 60) -> str:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(module, "_SCRIPT", script)
    model = load(proto())
    before = to_proto(model).SerializeToString()
    (note,) = simplify(model, timeout=timeout)
    assert to_proto(model).SerializeToString() == before
    return note.message


def test_crash_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ended with code -6" in left_alone(monkeypatch, "import os; os.abort()")


def test_error_falls_back_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "RuntimeError: no luck" in left_alone(monkeypatch, "raise RuntimeError('no luck')")


def test_timeout_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did not finish within 0.3 s" in left_alone(monkeypatch, "import time; time.sleep(30)", 0.3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("m.graph.node[3].op_type = 'Neg'", "output 'y' differs on random feeds"),
        ("m.graph.input[0].name = m.graph.node[0].input[0] = 'z'", "inputs differ"),
        ("m.graph.output[0].name = m.graph.node[3].output[0] = 'z'", "outputs differ"),
        ("m.graph.initializer[0].raw_data *= 1; m.doc_string = 'x' * 3000000", "bytes large"),
        ("m.graph.node[3].op_type = 'Nothing'", "Nothing"),
    ],
)
def test_wrong_result_falls_back(monkeypatch: pytest.MonkeyPatch, change: str, words: str) -> None:
    script = f"import sys, onnx; m = onnx.load(sys.argv[1]); {change}; onnx.save(m, sys.argv[2])"
    assert words in left_alone(monkeypatch, script)


def test_missing_onnxsim_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing may be started")

    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(OptionError, match="pip install"):
        simplify(load(proto()))
