"""Fake quantization for experiments: widths, schemes, first and last layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxq
from onnxq import Options
from onnxq.ort.session import Session
from onnxq.qparams import fake_quantize
from tests.models import build, images, normal, verified_sqnr
from tests.planning.test_planner import table
from tests.targets import attention, residual

WIDTHS = [(4, 4), (2, 8), (3, 16), (5, 7), (16, 2)]


def chain() -> onnx.ModelProto:
    return build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            [first] a = Conv (x, w1)
            [act] r = Relu (a)
            [middle] b = Conv (r, w2)
            [third] c = Conv (b, w3)
            [last] d = Conv (c, w4)
            [end] y = Relu (d)
        }""",
        w1=normal(4, 3, 1, 1),
        w2=normal(4, 4, 1, 1, seed=1),
        w3=normal(4, 4, 1, 1, seed=2),
        w4=normal(4, 4, 1, 1, seed=3),
    )


def specs(made: onnxq.Quantized) -> dict[str, str]:
    return {site.name: str(site.spec) for site in made.plan.sites}


def test_first_and_last_layers_have_8_bits() -> None:
    found = specs(
        onnxq.quantize(chain(), images(1, 3, 8, 8), backend="academic", options=Options(weight_bits=3, act_bits=4))
    )
    bits = {name: spec.split(" ")[0] for name, spec in found.items()}
    assert bits == {
        "x": "uint8",
        "r": "uint4",
        "b": "uint4",
        "c": "uint8",
        "w1": "int8",
        "w2": "int3",
        "w3": "int3",
        "w4": "int8",
    }
    wide = specs(onnxq.quantize(chain(), images(1, 3, 8, 8), backend="academic", options=Options(act_bits=16)))
    assert wide["x"].startswith("uint16"), "more bits are not taken away"


@pytest.mark.parametrize("form", ["fake-quantize", "qdq"])
@pytest.mark.parametrize("widths", WIDTHS)
def test_any_width_runs(widths: tuple[int, int], form: str, tmp_path: Path) -> None:
    """In onnxruntime; a layer between others reads whole steps, no more of them than there are bits for."""
    options = Options(weight_bits=widths[0], act_bits=widths[1], per_channel=False, format=form)
    feeds = images(1, 3, 8, 8)
    made = onnxq.quantize(chain(), feeds, backend="academic", output=tmp_path, options=options)
    onnx.checker.check_model(str(made.files[0]), full_check=True)
    tapped = onnx.load(made.files[0])
    reads = next(n for n in tapped.graph.node if n.name == "middle").input
    for name in reads:
        tapped.graph.output.append(onnx.ValueInfoProto(name=name))
    seen = Session(tapped.SerializeToString(), optimize=False).run(feeds[0])
    for name, tensor, bits in zip(reads, ("r", "w2"), reversed(widths), strict=True):
        steps = seen[name] / made.qparams[tensor].scale
        assert np.abs(steps - np.rint(steps)).max() < 1e-2
        assert len(np.unique(np.rint(steps))) <= 2**bits


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
def test_any_scheme(symmetric: bool, per_channel: bool) -> None:
    options = Options(weight_bits=4, act_bits=4, symmetric=symmetric, per_channel=per_channel)
    made = onnxq.quantize(chain(), images(1, 3, 8, 8), backend="academic", options=options)
    assert made.qparams["w2"].scale.shape == ((4,) if per_channel else ())
    assert made.qparams["b"].spec.symmetric == symmetric
    assert bool(made.qparams["b"].zero_point) == (not symmetric)


@pytest.mark.parametrize("form", ["fake-quantize", "qdq"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_weights_with_zero_points(per_channel: bool, form: str, tmp_path: Path) -> None:
    """Kernels on one side of 0: all of the grid is of use, so that half a step is left of the error."""
    model = chain()
    for tensor in model.graph.initializer:
        if tensor.name == "w2":
            tensor.CopyFrom(numpy_helper.from_array(np.abs(normal(4, 4, 1, 1, seed=1)), "w2"))
    errors = []
    for symmetric in (None, False):
        options = Options(weight_bits=4, weight_symmetric=symmetric, per_channel=per_channel, format=form)
        made = onnxq.quantize(model, images(1, 3, 8, 8), backend="academic", output=tmp_path, options=options)
        numbers, weight = made.qparams["w2"], np.abs(normal(4, 4, 1, 1, seed=1))
        errors.append(np.abs(fake_quantize(weight, numbers) - weight).mean())
        assert numbers.spec.symmetric == (symmetric is None)
        assert made.verification is not None and made.verification.worst is not None
    assert numbers.zero_point.shape == numbers.scale.shape == ((4,) if per_channel else ())
    assert errors[1] < 0.7 * errors[0]
    back = onnxq.read(made.files[0])
    assert np.array_equal(back.qparams["w2"].zero_point, numbers.zero_point)
    given = onnxq.deploy(made.files[0], backend="academic", output=tmp_path / "again").qparams["w2"]
    assert np.array_equal(given.zero_point - given.spec.qmin, numbers.zero_point)
    assert np.array_equal(given.scale, numbers.scale)


def test_only_inputs_of_layers() -> None:
    made = onnxq.quantize(residual(), images(1, 3, 16, 16), backend="academic")
    assert set(made.plan.quantized.values()) == {"Conv", "Gemm"}
    assert {s.name for s in made.plan.sites} == {"x", "w1", "r", "w2", "e", "w3", "f", "w4"}
    nodes = {n.name: n for n in made.rendered().graph}
    assert nodes["shortcut"].inputs[1] is nodes["stem_act"].outputs[0], "the shortcut reads no quantized tensor"


def test_transformers() -> None:
    made = onnxq.quantize(
        attention(), images(1, 8, 16), backend="academic_nlp", options=Options(weight_bits=4, act_bits=6)
    )
    assert list(made.plan.quantized.values()) == ["MatMul"] * 6
    bits = {spec.split(" ")[0] for spec in specs(made).values()}
    assert bits == {"int4", "uint6"}, "no rule of first and last layers"


def test_zero_points_of_transformers() -> None:
    options = Options(weight_bits=4, weight_symmetric=False)
    made = onnxq.quantize(attention(), images(1, 8, 16), backend="academic_nlp", options=options)
    weights = {site.name: made.qparams[site.name] for site in made.plan.sites if site.role == "weight"}
    assert weights and not any(numbers.spec.symmetric for numbers in weights.values())


def test_embeddings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.integers(0, 1000, (1, 8))} for _ in range(4)]
    options = Options(weight_bits=4)
    made = onnxq.quantize(table(), feeds, backend="academic_nlp", output=tmp_path, options=options)
    assert made.plan.stored == {"Gather": "Gather"}
    assert verified_sqnr(made) > 10
