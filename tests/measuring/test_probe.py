"""Parts of a model quantized alone: each loads little more than the nodes around it, and gives what the whole would."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.calibration.collect import collect
from onnxq.measuring import variants
from onnxq.measuring.outputs import worst_sqnr
from onnxq.measuring.probe import Probe, Setting, parts_of
from onnxq.ort.session import Session, open_anyhow
from onnxq.planning.planner import make_plan
from onnxq.prepare import Prepared
from onnxq.quantized import Quantized
from tests.models import build, images, normal

LAYERS = 48


def test_a_part_alone_loads_the_nodes_around_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    weights: dict[str, Any] = {f"w{k}": normal(8, 8, seed=k, scale=0.5) for k in range(LAYERS)}
    lines = [f"t{k} = Tanh (m{k}) m{k + 1} = MatMul (t{k}, w{k})" for k in range(LAYERS)]
    text = f"(float[N, 8] m0) => (float[N, 8] m{LAYERS}) {{ {' '.join(lines)} }}"
    options, target = Options(placement="all"), backend_named("onnxruntime")
    model = Prepared(build(text, **weights), options).model
    plan = make_plan(model, target, options)
    tensors = [site.tensor for site in plan.sites if site.role == "activation"]
    data = [{"m0": feeds} for (feeds,) in (tuple(f.values()) for f in images(5, 8, samples=3))]
    statistics = collect(model, tensors, data)
    probe = Probe(model, plan, target, options, statistics, statistics.kept)
    sizes: list[int] = []

    def opened(piece: ir.Model, **given: Any) -> Session:
        sizes.append(len(piece.graph))
        return open_anyhow(piece, **given)

    monkeypatch.setattr(variants, "open_anyhow", opened)
    parts = [part for part in parts_of(model, plan) if part.role == "weights"]
    for part in parts:
        (site,) = part.sites
        alone = {site: probe.qparams(site, 8)}
        whole = Session(Quantized(model, plan, alone, target).fake_quantize())
        expected = worst_sqnr(whole.run, ((sample.feeds, sample.outputs) for sample in statistics.kept))
        (noise,) = probe.noise([Setting(part, 8)]).values()
        assert noise == pytest.approx(10 ** (-expected / 10), rel=0.02)
    nodes = len(model.graph)
    assert len(parts) == LAYERS and max(sizes) < nodes / 2
    assert sum(sizes) < len(parts) * nodes / 3
