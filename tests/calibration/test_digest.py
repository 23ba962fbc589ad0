from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.calibration.digest import model_digest

TEXT = """
    <ir_version: 8, opset_import: ["" : 17]>
    agraph (float[N, 3] x, bool c) => (float[N, 3] y)
    <float[3] w = {1.0, 2.0, 3.0}>
    {
        a = Mul(x, w)
        k = Constant <value = float[1] {4.0}> ()
        b = If (c) <then_branch = t () => (float[N, 3] o) { o = LeakyRelu <alpha = 0.1> (a) },
                    else_branch = e () => (float[N, 3] p) { p = Add(a, k) }>
        y = Relu(b)
    }"""


def test_same_from_process_to_process_and_copy_to_copy(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = ir.from_onnx_text(TEXT)
    ir.save(model, path)
    code = (
        "import sys, onnx_ir as ir; from onnxq.calibration.digest import model_digest;"
        "sys.stdout.write(model_digest(ir.load(sys.argv[1])))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert run.stdout == model_digest(model) == model_digest(model.clone()) and len(run.stdout) == 64


def test_external_data_and_notes_make_no_difference(tmp_path: Path) -> None:
    model = ir.from_onnx_text(TEXT)
    digest = model_digest(model)
    ir.save(model, tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    assert model_digest(ir.load(tmp_path / "m.onnx")) == digest
    model.doc_string, model.producer_name = "text", "someone"
    next(iter(model.graph)).outputs[0].shape = ir.Shape(["N", 3])
    assert model_digest(model) == digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("3.0}", "3.5}"),
        ("{4.0}", "{5.0}"),
        ("alpha = 0.1", "alpha = 0.2"),
        ("y = Relu(b)", "y = Neg(b)"),
        ("Mul(x, w)", "Mul(w, x)"),
        ('"" : 17', '"" : 18'),
        ("a", "a2"),
        ("float[N, 3] x", "float[M, 3] x"),
    ],
)
def test_any_change_that_matters_changes_it(old: str, new: str) -> None:
    text = TEXT
    if old == "a":
        text = text.replace("a = Mul", "a2 = Mul").replace("(a", "(a2")
    else:
        text = text.replace(old, new)
    assert model_digest(ir.from_onnx_text(text)) != model_digest(ir.from_onnx_text(TEXT))


def test_bytes_of_a_weight_count() -> None:
    model = ir.from_onnx_text(TEXT)
    before = model_digest(model)
    model.graph.initializers["w"].const_value = ir.tensor(np.array([1.0, 2.0, -3.0], np.float32), name="w")
    assert model_digest(model) != before
