"""Sensitivity: figures against plain arithmetic, groups in a bounded number of runs, the table, JSON and picture."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import DataError, OptionError, Options, OutputError, StatisticsError
from onnxq.cli import main
from onnxq.qparams import fake_quantize
from tests.models import build, f32, images, normal, selecting, untouched

WIDTH = 12
FAST = Options(placement="all", effort="fast", reduce_range=False)


def chain(layers: int, *, wild: int | None = None) -> onnx.ModelProto:
    """Products with a matrix and a Relu between.

    One layer may be wild: it has large weights for an input that is always 0, on which its grid is wasted.
    """
    weights: dict[str, Any] = {f"w{k}": normal(WIDTH, WIDTH, seed=k) for k in range(layers)}
    if wild is not None:
        weights[f"w{wild - 1}"][:, 0] = 0.0
        weights[f"w{wild}"][0] = 60.0
    lines, last = [], "x"
    for k in range(layers):
        lines.append(f"m{k} = MatMul ({last}, w{k})")
        last = f"m{k}"
        if k < layers - 1:
            lines.append(f"r{k} = Relu (m{k})")
            last = f"r{k}"
    body = "\n".join(lines).replace(f"m{layers - 1} =", "y =")
    made = build(f"(float[4, {WIDTH}] x) => (float[4, {WIDTH}] y) {{ {body} }}", **weights)
    for node in made.graph.node:
        node.name = f"n_{node.output[0]}"
    return made


def rounded(weight: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Symmetric, narrow range, a scale for each column."""
    top = float(2 ** (bits - 1) - 1)
    scale = np.abs(weight).max(axis=0, keepdims=True) / top
    return f32(np.clip(np.rint(weight / scale), -top, top) * scale)


def decibel(signal: NDArray[Any], noise: NDArray[Any]) -> float:
    return float(10 * np.log10(np.square(signal, dtype=np.float64).sum() / np.square(noise, dtype=np.float64).sum()))


def row(made: onnxq.Sensitivity, role: str, name: str) -> onnxq.SensitivityRow:
    return next(r for r in made.rows if r.role == role and r.name == name)


def test_a_layer_alone_as_plain_arithmetic_has_it() -> None:
    model, feeds = chain(2), images(4, WIDTH, samples=3)
    made = onnxq.sensitivity(model, feeds, bits=(8,), options=FAST)
    w0, w1 = normal(WIDTH, WIDTH, seed=0), normal(WIDTH, WIDTH, seed=1)
    x = np.concatenate([feed["x"] for feed in feeds])
    exact = np.maximum(x @ w0, 0) @ w1
    first = np.maximum(x @ rounded(w0, 8), 0) @ w1
    second = np.maximum(x @ w0, 0) @ rounded(w1, 8)
    assert row(made, "weights", "n_m0").sqnr[8] == pytest.approx(decibel(exact, exact - first), abs=0.01)
    assert row(made, "weights", "n_y").sqnr[8] == pytest.approx(decibel(exact, exact - second), abs=0.01)
    both = np.maximum(x @ rounded(w0, 8), 0) @ rounded(w1, 8)
    assert made.together["weights"][8] == pytest.approx(decibel(exact, exact - both), abs=0.01)
    powers = [10 ** (-row(made, "weights", name).sqnr[8] / 10) for name in ("n_m0", "n_y")]
    assert made.added["weights"][8] == pytest.approx(-10 * np.log10(sum(powers)), abs=1e-6)


@pytest.mark.parametrize("symmetric", [None, True, False])
def test_few_bits_have_the_zero_points_that_a_result_has(symmetric: bool | None) -> None:
    """Of a plan of 8 bits; and a plan of 4 bits, with zero points, has none at 8."""
    model, feeds = chain(2), images(4, WIDTH, samples=3)
    options = replace(FAST, weight_symmetric=symmetric)
    made = onnxq.sensitivity(model, feeds, bits=(4, 8), options=options)
    numbers = onnxq.quantize(model, feeds, options=replace(options, weight_bits=4, min_sqnr=0)).qparams
    assert numbers["w0"].spec.symmetric is (symmetric is True)
    w0, w1 = (fake_quantize(normal(WIDTH, WIDTH, seed=k), numbers[f"w{k}"]) for k in range(2))
    x = np.concatenate([feed["x"] for feed in feeds])
    exact = np.maximum(x @ normal(WIDTH, WIDTH, seed=0), 0) @ normal(WIDTH, WIDTH, seed=1)
    both = np.maximum(x @ w0, 0) @ w1
    assert made.together["weights"][4] == pytest.approx(decibel(exact, exact - both), abs=0.01)
    if symmetric is False:
        return  # 8 bits have no zero points, which is refused
    few = onnxq.sensitivity(model, feeds, bits=(8,), options=replace(options, weight_bits=4))
    assert few.together["weights"][8] == pytest.approx(made.together["weights"][8], abs=0.01)


def test_the_layers_own_error_is_the_trace_with_the_second_moment_of_its_input() -> None:
    model, feeds = chain(1), images(4, WIDTH, samples=2)
    made = onnxq.sensitivity(model, feeds, bits=(8,), options=FAST)
    w = normal(WIDTH, WIDTH, seed=0).astype(np.float64)
    x = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    h, d = x.T @ x, rounded(f32(w), 8) - w
    wanted = 10 * np.log10(np.trace(w.T @ h @ w) / np.trace(d.T @ h @ d))
    assert row(made, "weights", "n_y").local[8] == pytest.approx(wanted, abs=0.01)


def test_rows_are_every_layer_and_activation_and_few_bits_hurt_more() -> None:
    made = onnxq.sensitivity(chain(3), images(4, WIDTH), bits=(8, 4), options=FAST)
    assert made.bits == (4, 8)
    assert [r.name for r in made.rows if r.role == "weights"] == ["n_m0", "n_m1", "n_y"]
    assert {r.tensors[0] for r in made.rows if r.role == "activations"} >= {"x", "r0", "r1"}
    assert all(r.sqnr[4] < r.sqnr[8] for r in made.rows)
    assert made.runs == 2 * len(made.rows) + 4
    assert made.of("weights")[0].sqnr[4] == min(r.sqnr[4] for r in made.rows if r.role == "weights")


def test_groups_first_then_inside_the_worst() -> None:
    made = onnxq.sensitivity(chain(16, wild=5), images(4, WIDTH), bits=(4,), runs=20, options=FAST)
    weights = [r for r in made.rows if r.role == "weights"]
    assert made.runs <= 20 + 2
    assert [name for r in weights for name in r.nodes] == [*(f"n_m{k}" for k in range(15)), "n_y"]
    assert max(r.members for r in weights) > 1
    assert made.of("weights")[0].name == "n_m5"


def test_statistics_serve_as_well_as_data(tmp_path: Path) -> None:
    model, feeds = chain(2), images(4, WIDTH)
    onnxq.calibrate(model, feeds, output=tmp_path / "s.npz")
    from_file = onnxq.sensitivity(model, statistics=tmp_path / "s.npz", options=FAST)
    assert from_file.rows == onnxq.sensitivity(model, feeds, options=FAST).rows
    with pytest.raises(StatisticsError, match="another model"):
        onnxq.sensitivity(chain(3), statistics=tmp_path / "s.npz")


def test_the_picture_has_a_dot_for_each_row_and_width(tmp_path: Path) -> None:
    made = onnxq.sensitivity(chain(2), images(4, WIDTH), plot=tmp_path / "new" / "p.svg", options=FAST)
    root = ElementTree.parse(tmp_path / "new" / "p.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    titles = [title.text or "" for title in root.iter(f"{space}title")]
    assert len(titles) == len(made.rows) * len(made.bits)
    assert any(text.startswith("n_m0, 4 bits") for text in titles)
    for circle in root.iter(f"{space}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= float(root.attrib["width"])
        assert 0 <= float(circle.attrib["cy"]) <= float(root.attrib["height"])


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(chain(2), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"] for feed in images(4, WIDTH)]))
    command = ["sensitivity", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "--placement", "all"]
    assert main([*command, "--plot", str(tmp_path / "p.svg")]) == 0
    out, err = capsys.readouterr()
    assert "n_m0" in out and "all together" in out and (tmp_path / "p.svg").is_file()
    assert "sensitivity:" in err
    assert main([*command, "--bits", "8", "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bits"] == [8]
    assert {r["role"] for r in document["rows"]} == {"weights", "activations"}


def test_what_is_not_measured_is_not_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A layer whose weights are stored, while nothing runs in integers."""
    model = build("(int64[1, 4] i) => (float[1, 4, 32] y) { y = Gather (table, i) }", table=normal(64, 32))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", i=np.arange(16).reshape(4, 1, 4))
    assert main(["sensitivity", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]) == 0
    out = capsys.readouterr().out
    assert ("own: at the layer's own output" in out) == ("own 8" in out)
    assert "No activations are quantized by this plan" in out


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"bits": (1,)}, OptionError, "1 is not a number of bits"),
        ({"bits": ()}, OptionError, "no width"),
        ({"runs": 0}, OptionError, "at least 1"),
        ({"data": None}, OptionError, "neither data nor statistics"),
        ({"plot": f"{__file__}/p.svg"}, OutputError, "a file of that name exists"),
        ({"plot": "p.png"}, OutputError, r"'p\.png': the picture is SVG. Give a file that ends in \.svg"),
        ({"plot": "."}, OutputError, "this is a folder"),
        ({"options": Options(range="no_such")}, OptionError, "no range method named 'no_such'"),
        ({"backend": "tensorrt", "options": Options(symmetric=False)}, OptionError, "tensorrt has no zero points"),
        ({"bits": (8,), "options": Options(weight_symmetric=False)}, OptionError, "zero points of weights of 2, 3, 4"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_data_is_run(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        onnxq.sensitivity(chain(1), **{"data": untouched(), **given})


def test_a_picture_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refused)
    with pytest.raises(OutputError, match=r"p\.svg': cannot be written: Permission denied\. Write to another folder"):
        onnxq.sensitivity(chain(1), images(4, WIDTH), bits=(8,), plot=tmp_path / "p.svg", options=FAST)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refused)
    with pytest.raises(OutputError, match=r"p\.svg': cannot be written, its folder takes no files"):
        onnxq.sensitivity(chain(1), None, plot=tmp_path / "p.svg")


def test_rows_that_depend_on_the_numbers_are_no_silence() -> None:
    found = onnxq.sensitivity(selecting(2000), images(2000, 8, samples=8), options=FAST)
    assert all(row.sqnr[4] == pytest.approx(10 * np.log10(1 / 4)) for row in found.of("weights") if row.name != "l3")
    (warning,) = found.warnings
    assert "'y' had another shape" in warning and found.to_dict()["warnings"] == [warning]


def test_only_what_is_quantized_is_warned_of() -> None:
    """A state that begins as zeros, in the model or on the data, is none of the parts that are measured."""
    text = """
        (float[4, 8] x, float[4, 5] bias) => (float[4, 5] y) {
            n = Constant <value_ints = [4, 5]> () z = ConstantOfShape (n)
            s = MatMul (x, w) t = Sub (s, z) y = Sub (t, bias)
        }
    """
    feeds = [{"x": image["x"], "bias": np.zeros((4, 5), np.float32)} for image in images(4, 8, samples=12)]
    found = onnxq.sensitivity(build(text, w=normal(8, 5)), feeds, options=FAST)
    assert found.of("weights") and not found.warnings


def test_a_model_that_is_quantized_already_is_said_to_be() -> None:
    model = build("(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { y = Conv (x, w) }", w=normal(4, 4, 1, 1))
    feeds, every = images(1, 4, 8, 8), Options(placement="all")
    made = onnxq.quantize(model, feeds, options=every)
    found = onnxq.sensitivity(made.rendered(), feeds, options=every)
    assert any(said.startswith("the model given is quantized already") for said in found.warnings)
    assert not any("already" in said for said in onnxq.sensitivity(model, feeds, options=every).warnings)


def test_without_a_float_output_nothing_can_be_measured() -> None:
    model = build("(float[4, 8] x) => (int64[4, 5] y) { s = MatMul (x, w) y = Cast <to = 7> (s) }", w=normal(8, 5))
    with pytest.raises(DataError, match="no output of the model is float"):
        onnxq.sensitivity(model, images(4, 8, samples=8), options=FAST)


def test_what_an_argmax_reads_is_compared() -> None:
    text = "(float[4, 8] x) => (int64[4] y) { s = MatMul (x, w) y = ArgMax <axis = 1, keepdims = 0> (s) }"
    found = onnxq.sensitivity(build(text, w=normal(8, 5)), images(4, 8, samples=8), options=FAST)
    (row,) = found.of("weights")
    assert row.outputs[4].keys() == {"s"} and 10 < row.sqnr[4] < 30


def test_of_a_detector_what_it_picks_from_is_compared() -> None:
    found = onnxq.sensitivity(selecting(2000, last=False), images(2000, 8, samples=8), options=FAST)
    assert not found.warnings and {name for row in found.of("weights") for name in row.outputs[4]} == {"c", "s"}
