"""Golden plans of small graphs for every installed target; ``tools/update_golden.py`` writes them anew."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from tests.models import build, f32, feeds_for, images, normal, verified_sqnr
from tests.targets import GRAPHS, TARGETS, plan_text

GOLDEN = Path(__file__).parent.parent / "golden" / "targets"


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("target", TARGETS)
def test_plan(target: str, graph: str) -> None:
    path = GOLDEN / target / f"{graph}.txt"
    assert path.exists(), "run python tools/update_golden.py, and read what it writes"
    assert plan_text(target, graph) == path.read_text()


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("target", TARGETS)
def test_artifact(target: str, graph: str, tmp_path: Path) -> None:
    """Written, valid, with the interface of the float model; what has a way back gives the same numbers."""
    model = GRAPHS[graph]()
    made = onnxq.quantize(model, feeds_for(model), backend=target, output=tmp_path, options=Options(placement="all"))
    path, *_ = made.files
    assert path == tmp_path / f"model_{target}.onnx"
    assert {p.name for p in made.files} == {p.name for p in tmp_path.iterdir()}, "all files are said, none is left over"
    written = onnx.load(path)
    assert [(v.name, v.type) for v in written.graph.input] == [(v.name, v.type) for v in model.graph.input]
    assert [(v.name, v.type) for v in written.graph.output] == [(v.name, v.type) for v in model.graph.output]
    assert made.verification is not None and made.verification.worst is not None
    assert made.plan.quantized or made.plan.kept_float
    form = backend_named(target).format_named(None)
    if form.read is None:
        return
    back = form.read(path)
    roles = {site.tensor: site for site in back.plan.sites}
    for site in made.plan.sites:
        if site.role == "activation" and site.tensor in roles:
            again, given = back.qparams[roles[site.tensor].name], made.qparams[site.name]
            assert again.scale.reshape(-1).tolist() == pytest.approx(given.scale.reshape(-1).tolist(), rel=1e-6)
    assert bool(back.qparams) == bool(made.qparams)


@pytest.mark.parametrize("target", TARGETS)
def test_the_table_of_a_target_is_complete(target: str) -> None:
    backend = backend_named(target)
    assert backend.name == target and backend.title and backend.artifacts
    assert backend.verified or backend.unverified
    for rule in backend.rules.values():
        assert rule.op


@pytest.mark.parametrize("target", TARGETS)
def test_scores_under_a_soft_cap_keep_their_steps(target: str) -> None:
    """30 tanh(x / 30) of small x, as language models have it: what Tanh gives is a tenth of its range here."""
    capped = build(
        """(float[4, 32] x) => (float[4, 16] y) {
            s = MatMul (x, w)
            d = Div (s, cap)
            t = Tanh (d)
            y = Mul (t, cap)
        }""",
        w=normal(32, 16, scale=0.3),
        cap=f32(30.0),
    )
    result = onnxq.quantize(capped, images(4, 32, samples=8), backend=target, options=Options(effort="fast"))
    assert verified_sqnr(result) > (24 if target in ("litert", "vitis", "tensorrt_fp8") else 30)
