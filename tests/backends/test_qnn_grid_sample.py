"""A picture sampled at places that are computed: in 16 bits on the HTP, in half precision else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.runtimes.child import missing
from onnxq.runtimes.qnn import RUNTIME
from tests.models import build, normal

WHY = missing(RUNTIME)
SIDE = 64


def warped(attributes: str) -> onnx.ModelProto:
    return build(
        f"""(float[1, 4, {SIDE}, {SIDE}] x, float[1, 16, 16, 2] places) => (float[1, 4, 16, 16] y) {{
            y = GridSample <{attributes}> (x, places)
        }}""",
        opset=20,
    )


def feeds(depth: int = 2) -> list[dict[str, Any]]:
    places = [np.clip(normal(1, *[16 if depth == 2 else 4] * depth, depth, seed=9 + k) * 0.5, -1, 1) for k in range(8)]
    return [
        {"x": normal(1, 4, *[SIDE if depth == 2 else 8] * depth, seed=k), "places": p} for k, p in enumerate(places)
    ]


@pytest.mark.parametrize(("bits", "done"), [(16, {"GridSample"}), (8, set())])
def test_it_is_quantized_in_16_bits(bits: int, done: set[str]) -> None:
    made = onnxq.quantize(warped('mode = "linear"'), feeds(), backend="qnn", options=Options(act_bits=bits))
    assert set(made.plan.quantized.values()) == done


@pytest.mark.parametrize("bits", [8, 16])
def test_a_cubic_one_and_one_of_volumes_stay_float_and_are_told(bits: int) -> None:
    volumes = build(
        """(float[1, 4, 8, 8, 8] x, float[1, 4, 4, 4, 3] places) => (float[1, 4, 4, 4, 4] y) {
            y = GridSample (x, places)
        }""",
        opset=20,
    )
    for model, depth, said in (
        (warped('mode = "cubic"'), 2, "no cubic GridSample: it runs on the CPU"),
        (volumes, 3, "no GridSample of five dimensions: onnxruntime-qnn takes no model with it"),
    ):
        made = onnxq.quantize(model, feeds(depth), backend="qnn", options=Options(act_bits=bits))
        assert not made.plan.quantized
        assert any(said in finding.what for finding in onnxq.check(model, backend="qnn"))


@pytest.mark.runtime
@pytest.mark.skipif(WHY is not None, reason=f"no onnxruntime-qnn: {WHY}")
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_the_emulator_samples_where_the_simulation_does(mode: str, padding: str, corners: int, tmp_path: Path) -> None:
    model = warped(f'mode = "{mode}", padding_mode = "{padding}", align_corners = {corners}')
    made = onnxq.quantize(model, feeds(), backend="qnn", output=tmp_path, options=Options(act_bits=16))
    agreement = onnxq.verify(made, feeds()[:2], backend="qnn", timeout=120)
    assert agreement.ok and agreement.lsb["y"] <= 4
