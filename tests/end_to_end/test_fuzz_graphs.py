"""Random graphs with fixed seeds: a sample of what ``tools/fuzz_graphs.py`` runs by the thousand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxq import Quantized
from onnxq.options import Placement
from tests.contract import infer, sqnr
from tests.fuzzing.graphs import Case, generate
from tests.fuzzing.judge import judge
from tests.fuzzing.noise import explained
from tests.installed import needs
from tests.models import build, constants_of, f32, images, normal

pytestmark = needs("onnxruntime", "1.30")
"""An older one crashes when it loads one of these float graphs."""


def outcomes(seeds: range, backend: str, placement: Placement = "all", folder: Path | None = None) -> Counter[str]:
    """How many graphs came out how; none may be a fault."""
    verdicts = {seed: judge(generate(seed), backend, placement, folder) for seed in seeds}
    faults = [f"seed {seed}: {verdict.text}" for seed, verdict in verdicts.items() if verdict.outcome == "FAULT"]
    assert not faults, "\n".join(faults)
    return Counter(verdict.outcome for verdict in verdicts.values())


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (30, 60, 90))])
def test_everything_quantized(first: int) -> None:
    assert outcomes(range(first, first + 30), "onnxruntime")["quantized"] >= 20


def test_what_runs_faster() -> None:
    assert outcomes(range(200, 220), "onnxruntime", "auto")["untouched"] >= 10


@pytest.mark.parametrize("backend", ["tensorrt", "snpe", "qnn", "qonnx", "hls4ml", "openvino", "tengine", "vitis"])
def test_other_targets(backend: str, tmp_path: Path) -> None:
    outcomes(range(300, 303), backend, folder=tmp_path)


def test_graphs_are_the_same_each_time_and_of_many_kinds() -> None:
    made = [generate(seed) for seed in range(40)]
    assert generate(3).model.SerializeToString() == made[3].model.SerializeToString()
    assert all(np.array_equal(a, b) for k in (0,) for a, b in zip(generate(3).feeds[k].values(),
                                                                  made[3].feeds[k].values(), strict=True))  # fmt: skip
    operators = {node.op_type for case in made for node in case.model.graph.node}
    assert {"Conv", "MatMul", "Gemm", "Concat", "Resize", "Loop", "Softmax", "ConvTranspose"} <= operators
    assert len({case.model.opset_import[0].version for case in made}) > 10
    kinds = {info.type.tensor_type.elem_type for case in made for info in case.model.graph.input}
    assert {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE} <= kinds


def layers() -> Case:
    model = build(
        "(float[2, 6] x) => (float[2, 3] y) { a = MatMul (x, w) r = Relu (a) y = MatMul (r, v) }",
        w=normal(6, 8),
        v=normal(8, 3, seed=1),
    )
    return Case(0, model, images(2, 6, samples=4))


def test_noise_of_a_step_is_about_that_of_8_bits() -> None:
    """Against noise added by hand, which the input and the output of the model have alike."""
    model = build("(float[4000] x) => (float[4000] y) { y = Neg (x) }")
    feeds = images(4000, samples=2)
    span = max(float(f["x"].max() - f["x"].min()) for f in feeds)
    noisy = [f["x"] + np.random.default_rng(1).uniform(-0.5, 0.5, 4000) * span / 255 for f in feeds]
    wanted = sqnr([f["x"] for f in feeds], noisy)
    assert wanted - 8 < explained(model, feeds)["y"] < wanted - 2  # twice the power, four times where both agree
    assert 30 < explained(layers().model, layers().feeds)["y"] < 60


def test_the_judge_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    case = layers()
    assert judge(case).outcome == "quantized"
    from onnxq import quantize

    def coarse(source: onnx.ModelProto, *args: object, **more: object) -> Quantized:
        weights = constants_of(source)
        wrong = onnx.ModelProto.FromString(source.SerializeToString())
        del wrong.graph.initializer[:]
        for name, array in weights.items():
            wrong.graph.initializer.append(onnx.numpy_helper.from_array(f32(np.round(array * 2) / 2), name))
        return quantize(wrong, *args, **more)  # type: ignore[arg-type]

    def crash(*_: object, **__: object) -> Quantized:
        raise RuntimeError("a bug")

    for replaced, words in ((coarse, "where noise of a step gives"), (crash, "RuntimeError: a bug")):
        monkeypatch.setattr("tests.fuzzing.judge.quantize", replaced)
        verdict = judge(case)
        assert verdict.outcome == "FAULT" and words in verdict.text, verdict
    assert infer(case.model, case.feeds, optimize=True)
