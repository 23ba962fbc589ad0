"""Encodings files in aimet-onnx, Qualcomm's own reader of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import onnxq
from onnxq import Options
from onnxq.errors import VerificationError
from onnxq.ort.session import Session
from onnxq.runtimes.child import examine, missing
from onnxq.runtimes.snpe import RUNTIME
from tests.backends.test_qnn import block
from tests.backends.test_snpe import BODIES, FEEDS, FORMATS, net
from tests.models import build, feeds_for, normal

WHY = missing(RUNTIME)
pytestmark = [pytest.mark.runtime, pytest.mark.skipif(WHY is not None, reason=f"no aimet-onnx: {WHY}")]


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("form", FORMATS)
def test_numbers_agree_to_a_step(tmp_path: Path, form: str, bits: int) -> None:
    path = tmp_path / "q.onnx"
    q = onnxq.quantize(net(), FEEDS, backend="snpe", output=path, options=Options(format=form, act_bits=bits))
    seen = examine(RUNTIME, path, FEEDS)
    simulated = Session(q.rendered(), optimize=False)
    step = float(q.qparams["y"].scale)
    for feed, outputs in zip(FEEDS, seen.outputs, strict=True):
        np.testing.assert_allclose(outputs["y"], simulated.run(feed)["y"], rtol=0, atol=1.01 * step)
    assert (len(seen.integer), seen.floating) == (5, ()), "the first layer with the Relu behind it"


def test_chains_that_converters_recognise(tmp_path: Path) -> None:
    path, feeds = tmp_path / "q.onnx", feeds_for(block(), samples=2)
    q = onnxq.quantize(block(), feeds, backend="snpe", output=path)
    seen = examine(RUNTIME, path, feeds)
    step = float(q.qparams["y"].scale)
    for feed, outputs in zip(feeds, seen.outputs, strict=True):
        expected = Session(q.rendered(), optimize=False).run(feed)["y"]
        np.testing.assert_allclose(outputs["y"], expected, rtol=0, atol=1.01 * step)


def test_it_rejects_a_name_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    onnxq.quantize(net(), FEEDS, backend="snpe", output=path)
    sidecar = path.with_suffix(".encodings")
    document = json.loads(sidecar.read_text())
    document["activation_encodings"][0]["name"] = "nowhere"
    sidecar.write_text(json.dumps(document))
    with pytest.raises(VerificationError, match="nowhere"):
        examine(RUNTIME, path, FEEDS)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrent_layer_among_integers_is_counted_as_float(op: str, gates: int, form: str, tmp_path: Path) -> None:
    """A quantizer stands behind it for what reads it; its weights have no encodings."""
    model = build(
        f"""(float[6, 1, 8] x) => (float[6, 1, 4] y) {{
            h = MatMul (x, m)
            [layer] s = {op} <hidden_size = 8> (h, w, r)
            q = Squeeze (s, one)
            y = MatMul (q, v)
        }}""",
        m=normal(8, 8),
        w=normal(1, 8 * gates, 8),
        r=normal(1, 8 * gates, 8, seed=1),
        one=np.array([1]),
        v=normal(8, 4),
    )
    feeds, path = feeds_for(model, samples=2), tmp_path / "q.onnx"
    q = onnxq.quantize(model, feeds, backend="snpe", output=path, options=Options(format=form))
    seen = examine(RUNTIME, path, feeds)
    assert seen.floating == (f"{op} layer",) and len(seen.integer) == 3 == q.plan.done


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", sorted(BODIES))
def test_what_stands_in_a_body_has_no_encoding(tmp_path: Path, form: str, kind: str) -> None:
    """The parser refuses names that are not in the main graph."""
    path, feeds = tmp_path / "q.onnx", feeds_for(BODIES[kind](), samples=2)
    q = onnxq.quantize(BODIES[kind](), feeds, backend="snpe", output=path, options=Options(format=form))
    for feed, outputs in zip(feeds, examine(RUNTIME, path, feeds).outputs, strict=True):
        expected = Session(q.rendered(), optimize=False).run(feed)["y"]
        np.testing.assert_allclose(outputs["y"], expected, rtol=0, atol=1e-5)
