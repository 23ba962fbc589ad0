"""The names of tensors that algorithms have rescaled go with a model, and tell which of two models compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxq.calibration.moved import Move
from onnxq.graph.files.load import load
from onnxq.graph.files.save import save
from onnxq.measuring.rescaled import mark_rescaled, rescaled_apart
from tests.models import build

DOUBLE, HALF = (Move("r", np.full(4, factor)) for factor in (2.0, 0.5))


def model() -> ir.Model:
    return ir.serde.deserialize_model(build("(float[1, 4] x) => (float[1, 4] y) { r = Relu (x) y = Neg (r) }"))


def marked(*moves: Move) -> ir.Model:
    made = model()
    for move in moves:
        mark_rescaled(made, {"r": move})
    return made


def test_models_that_were_changed_alike_compare() -> None:
    assert rescaled_apart(model(), model()) == set()
    assert rescaled_apart(marked(DOUBLE), marked(DOUBLE)) == set()
    assert rescaled_apart(model(), marked(DOUBLE)) == rescaled_apart(marked(DOUBLE), model()) == {"r"}
    assert rescaled_apart(marked(DOUBLE), marked(HALF)) == {"r"}
    assert rescaled_apart(marked(DOUBLE), marked(DOUBLE, HALF)) == {"r"}, "one on top of the other"


def test_changes_of_which_only_the_names_are_known() -> None:
    made = model()
    mark_rescaled(made, ["r"])
    assert rescaled_apart(model(), made) == {"r"}


def test_marks_survive_a_file_beside_the_metadata_of_the_model(tmp_path: Path) -> None:
    save(marked(DOUBLE), tmp_path / "m.onnx")
    again = load(tmp_path / "m.onnx")
    assert rescaled_apart(model(), again) == {"r"} and rescaled_apart(marked(DOUBLE), again) == set()
    assert again.metadata_props["author"] == "someone"


def test_metadata_of_others_under_the_name_says_nothing() -> None:
    for text in ("", "no json", "[1]"):
        made = model()
        made.metadata_props["onnxq.rescaled"] = text
        assert rescaled_apart(model(), made) == set()


def test_nothing_changed_leaves_no_mark() -> None:
    made = model()
    mark_rescaled(made, {})
    assert made.metadata_props == model().metadata_props
