from __future__ import annotations

import numpy as np
import pytest

from onnxq.backends.openvino.scalars_first import scalars_first
from tests.graph.helpers import apply
from tests.models import build, normal


@pytest.mark.parametrize(
    ("table", "moved", "node", "named"),
    [
        ("table", "Identity (e)", "Mul (e, c)", ["c", "e"]),
        ("table", "Transpose (e)", "Mul (m, c)", ["c", "m"]),
        ("table", "Identity (e)", "Add (e, c)", ["c", "e"]),
        ("table", "Identity (e)", "Mul (e, v)", ["e", "v"]),
        ("table", "Identity (e)", "Sub (e, c)", ["e", "c"]),
        ("table", "Softmax (e)", "Mul (m, c)", ["m", "c"]),
        ("x", "Identity (e)", "Mul (e, c)", ["e", "c"]),
    ],
)
def test_a_scalar_for_what_a_table_holds_is_named_first(table: str, moved: str, node: str, named: list[str]) -> None:
    text = f"e = Gather ({table}, i) m = {moved} y = {node} z = Relu (m)"
    model = build(
        f"(int64[4] i, float[8, 4] x) => (float[4, 4] y, float[4, 4] z) {{ {text} }}",
        table=normal(8, 4),
        c=np.float32(3),
        v=normal(4),
    )
    feeds = {"i": np.array([0, 7, 3, 3]), "x": normal(8, 4, seed=1)}
    changed, notes = apply(scalars_first, model, feeds, tolerance=0)
    (read,) = (made.inputs for made in changed.graph if made.outputs[0].name == "y")
    assert [value.name for value in read if value is not None] == named
    assert bool(notes) == (named[0] == "c")
