"""What calibration says of the data, through every verb that calibrates; measured against what `onnxq.check` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxq
from onnxq.calibration.statistics import Statistics
from onnxq.checks.fingerprint import fingerprint
from onnxq.demo.data import MODEL, load_digits
from onnxq.graph.files.load import load
from onnxq.options import Options
from tests.models import build, normal

WRONG = "does not look like the training data: the first BatchNormalization sees"


def digits(count: int = 16) -> np.ndarray:
    return load_digits().calibration[:count]


def warnings(result: onnxq.Quantized) -> list[str]:
    assert result.verification is not None
    return list(result.verification.warnings)


def test_data_like_the_training_data_gives_no_warning() -> None:
    assert onnxq.calibrate(MODEL, digits()).warnings() == []


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_pictures_that_were_not_scaled(dtype: type, tmp_path: Path) -> None:
    """By every way to a result; the figure is that of `onnxq.check`, which runs the whole model as it came."""
    data: Any = (digits() * 255).astype(dtype)
    made = onnxq.calibrate(MODEL, data, output=tmp_path / "s.npz", options=Options(keep=4))
    (said,) = made.warnings()
    assert WRONG in said
    assert said.endswith("RGB or BGR?).")
    first = [sample.feeds["image"][0] for sample in made.kept]
    assert said in [f"{f.where}: {f.what}. {f.hint}" for f in onnxq.check(MODEL, data=first)]
    loaded = Statistics.load(tmp_path / "s.npz")
    assert loaded.warnings() == [said]
    assert said in warnings(onnxq.quantize(MODEL, statistics=loaded))
    several = onnxq.quantize_all(MODEL, data, backends=["onnxruntime", "tvm"], options=Options(keep=4))
    assert all(said in warnings(result) for result in several.values())


def test_remarks_of_halves_are_said_once() -> None:
    data = digits() * 255
    first, second = (onnxq.calibrate(MODEL, part, options=Options(keep=4)) for part in (data, data.copy()))
    first.merge(second)
    assert len(first.warnings()) == 1


def test_samples_that_are_all_the_same() -> None:
    texts = onnxq.calibrate(MODEL, np.repeat(digits(1), 16, axis=0)).warnings()
    assert "input 'image': all samples are identical. Give different samples." in texts


def test_zeros_are_said_once_of_the_input() -> None:
    texts = onnxq.calibrate(MODEL, np.zeros_like(digits())).warnings()
    assert [text for text in texts if "zero" in text] == ["always zero on this data: 'image'"]


def test_the_part_in_front_of_the_first_batchnormalization_is_small() -> None:
    found = fingerprint(load(MODEL), most_nodes=8)
    assert found is not None
    assert [node.op_type for node in found.model.graph] == ["Conv"]
    assert found.mean.shape == found.variance.shape == (32,)
    assert fingerprint(load(MODEL), most_nodes=0) is None


def net(weight: float, bias: float = 0.0) -> onnx.ModelProto:
    """A convolution with one odd weight, and an Add of a constant, as masks are added."""
    made = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 6, 6] x) => (float[1, 4, 4, 4] y) {
            [first] a = Conv (x, w)
            [second] y = Add (a, b)
        }"""
    )
    w = np.random.default_rng(0).normal(size=(4, 2, 3, 3)).astype(np.float32)
    w[0, 0, 0, 0] = weight
    made.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([bias], np.float32), "b"))
    return made


X = np.random.default_rng(1).normal(size=(16, 2, 6, 6)).astype(np.float32)


@pytest.mark.parametrize(("weight", "what"), [(np.nan, "1 NaN"), (np.inf, "1 infinite value")])
def test_a_weight_that_is_no_number(weight: float, what: str) -> None:
    said = f"node 'first' (Conv): its constant 'w' holds {what}"
    found = [f for f in onnxq.check(net(weight)) if f.level == "warning"]
    assert [f"{f.where}: {f.what}" for f in found if "constant" in f.what] == [said]
    texts = warnings(onnxq.quantize(net(weight), X))
    assert any(text.startswith(said) for text in texts)
    if np.isnan(weight):
        assert any("was not compared with the float model" in text for text in texts)


def test_infinity_in_a_mask_is_on_purpose() -> None:
    assert not any("constant" in f.what for f in onnxq.check(net(1.0, -np.inf)))


@pytest.mark.parametrize(("constant", "told"), [([np.nan], False), ([np.nan, 1.0], True)])
def test_nan_alone_that_stands_for_elements_left_out_is_on_purpose(constant: list[float], told: bool) -> None:
    """What torch's nanmean and nanmedian read: a Where puts it in, and a later one takes it out."""
    model = build(
        """(float[2, 2] x) => (float[2, 2] y) {
            positive = Greater (x, zero)
            [put] some = Where (positive, x, nan)
            none = IsNaN (some)
            r = Where (none, zero, some)
            y = MatMul (r, w)
        }""",
        zero=np.zeros(1, np.float32),
        nan=np.array(constant, np.float32),
        w=normal(2, 2),
    )
    assert [f.where for f in onnxq.check(model) if "NaN" in f.what] == (["node 'put' (Where)"] if told else [])


def test_nan_in_some_samples_is_a_warning() -> None:
    data = X.copy()
    data[:8] = np.nan
    made = onnxq.calibrate(net(1.0), data)
    assert any(text.startswith("NaN in tensor 'x'") for text in made.warnings())
    assert made.kept


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_bytes_where_nothing_is_remembered_are_said_as_by_check(dtype: type) -> None:
    data: np.ndarray = np.random.default_rng(2).integers(0, 256, (16, 2, 6, 6)).astype(dtype)
    (said,) = [text for text in onnxq.calibrate(net(1.0), data).warnings() if "0 to 255" in text]
    assert said in [f"{f.where}: {f.what}. {f.hint}" for f in onnxq.check(net(1.0), data=data)]
    assert said in warnings(onnxq.quantize(net(1.0), data))
    small: np.ndarray = (data / 32).astype(dtype)  # labels, counts
    assert not any("0 to 255" in text for text in onnxq.calibrate(net(1.0), small).warnings())


def test_bytes_that_the_model_scales_itself_are_fine() -> None:
    model = net(1.0)
    model.graph.node[0].input[0] = "scaled"
    model.graph.node.insert(0, onnx.helper.make_node("Div", ["x", "top"], ["scaled"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(255.0).reshape(()), "top"))
    data = np.random.default_rng(2).integers(0, 256, (16, 2, 6, 6)).astype(np.uint8)
    assert not any("0 to 255" in text for text in onnxq.calibrate(model, data).warnings())


@pytest.mark.parametrize(
    "arithmetic", ["Mul (t, c255)", "Mul (c255, t)", "Div (t, c127)", "Sub (t, means)", "Add (t, less)"]
)
def test_pictures_that_the_model_scales_once_more_are_said_as_by_check(arithmetic: str) -> None:
    model = build(
        f"""(float[N, 4, 4, 3] x) => (float[N, 4, 2, 2] y) {{
            t = Transpose <perm = [0, 3, 1, 2]> (x)  s = {arithmetic}  y = Conv (s, w) }}""",
        c255=np.float32(1 / 255),
        c127=np.float32(127.5),
        means=np.array([123.7, 116.3, 103.5], np.float32).reshape(3, 1, 1),
        less=-np.array([123.7, 116.3, 103.5], np.float32).reshape(3, 1, 1),
        w=normal(4, 3, 3, 3),
    )
    pictures = np.random.default_rng(0).integers(0, 256, (16, 4, 4, 3)).astype(np.float32)
    (said,) = [text for text in onnxq.calibrate(model, pictures / 255).warnings() if "scales bytes" in text]
    assert "--image-scale 1" in said
    (found,) = [f for f in onnxq.check(model, data=pictures / 255) if "scales bytes" in f.what]
    assert said.startswith(f"{found.where}: {found.what.partition('node')[0]}")
    made = onnxq.quantize(model, pictures / 255)
    assert any("scales bytes" in text for text in warnings(made))
    for fine in (pictures, pictures / -255 * 80):  # bytes, decibels
        assert not any("scales bytes" in text for text in onnxq.calibrate(model, fine).warnings())


def test_what_makes_figures_doubtful_is_said_by_all_that_measure(tmp_path: Path) -> None:
    model = build(
        "(float[N, 3, 4, 4] x) => (float[N, 4, 2, 2] y) { s = Mul (x, c255)  y = Conv (s, w) }",
        c255=np.float32(1 / 255),
        w=normal(4, 3, 3, 3),
    )
    pictures = np.random.default_rng(0).integers(0, 256, (16, 3, 4, 4)).astype(np.float32)
    made = onnxq.quantize(model, pictures, output=tmp_path / "q.onnx")
    for data, doubtful in ((pictures, False), (pictures / 255, True)):
        said = {
            "compare": onnxq.compare(model, made, data).warnings,
            "verify": onnxq.verify(tmp_path / "q.onnx", data).remarks,
            "sensitivity": onnxq.sensitivity(model, statistics=onnxq.calibrate(model, data)).warnings,
        }
        assert {verb: any("scales bytes" in text for text in told) for verb, told in said.items()} == dict.fromkeys(
            said, doubtful
        )
    constant = np.full_like(pictures, 3.0)
    assert any("all values are 3" in text for text in onnxq.compare(model, made, constant).warnings)


@pytest.mark.parametrize(
    "arithmetic", ["Mul (x, half)", "Sub (x, half)", "Div (x, half)", "Sub (c255, x)", "Div (c255, x)"]
)
def test_arithmetic_that_is_not_for_bytes_is_fine(arithmetic: str) -> None:
    model = build(
        f"(float[N, 3, 4, 4] x) => (float[N, 4, 2, 2] y) {{ s = {arithmetic}  y = Conv (s, w) }}",
        half=np.float32(0.5),
        c255=np.float32(255.0),
        w=normal(4, 3, 3, 3),
    )
    pictures = np.random.default_rng(0).uniform(0.1, 1, (16, 3, 4, 4)).astype(np.float32)
    assert not any("scales bytes" in text for text in onnxq.calibrate(model, pictures).warnings())


def test_an_input_is_followed_through_a_long_chain() -> None:
    lines = [f"t{k + 1} = Gather <axis = 2> (t{k}, i)" for k in range(1200)]
    text = "(float[1, 3, 4, 4] t0) => (float[1, 4, 2, 2] y) {" + "\n".join(lines) + "\n y = Conv (t1200, w) }"
    model = build(text, i=np.arange(4)[::-1].copy(), w=normal(4, 3, 3, 3))
    pictures = np.random.default_rng(0).integers(0, 256, (10, 1, 3, 4, 4)).astype(np.float32)
    (said,) = onnxq.calibrate(model, pictures, options=Options(keep=2)).warnings()
    assert "whole numbers from 0 to 255" in said
