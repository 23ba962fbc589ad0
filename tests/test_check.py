"""Checking: everything that could go wrong is found, all at once, and nothing is said of what is fine."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import onnxq
from onnxq.check import check
from onnxq.checks.findings import Finding
from onnxq.cli import main
from onnxq.demo.data import MODEL, load_digits
from onnxq.deploy import deploy
from onnxq.errors import BackendError
from onnxq.graph.passes.normalize import normalize
from onnxq.options import Options
from tests import pairs
from tests.models import build, normal


def digits() -> np.ndarray:
    return load_digits().calibration[:32]


def problems(findings: list[Finding]) -> list[str]:
    return [f"{f.level} {f.where}: {f.what}" for f in findings if f.level != "note"]


def test_a_good_model_with_good_data_has_no_problem() -> None:
    found = check(MODEL, data=digits())
    assert problems(found) == []
    notes = " ".join(f.what for f in found)
    assert "32 samples" in notes
    assert "will be quantized" in notes


def only(findings: list[Finding], words: str) -> Finding:
    found = [f for f in findings if words in f.what]
    assert len(found) == 1, [f.what for f in findings]
    return found[0]


def test_several_problems_are_found_at_once() -> None:
    data = digits()
    data[5, 0, 0, 0] = np.nan
    found = check(MODEL, data=data[:6], backend="onnxruntim", options=Options(exclude=("Cnov",)))
    assert only(found, "no backend named").level == "error"
    assert "sample 5" in only(found, "NaN or infinity in").what
    assert only(found, "only 6 samples").level == "warning"
    assert [f.level for f in found] == sorted((f.level for f in found), key=["error", "warning", "note"].index)
    assert only(check(MODEL, options=Options(exclude=("Cnov",))), "'Cnov' matches no").level == "error"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda x: x[:1], "only one sample"),
        (lambda x: np.zeros_like(x), "all values are zero"),
        (lambda x: np.full_like(x, 0.5), "all values are 0.5"),
        (lambda x: np.repeat(x[:1], 32, axis=0), "all samples are identical"),
        (lambda x: np.repeat(x[:8], 4, axis=0), "only 8 of 32 samples differ"),
        (lambda x: np.concatenate([x, np.zeros_like(x[:1])])[-32:], "all values are the same in sample 31"),
        (lambda x: np.where(np.arange(len(x))[:, None, None, None] < 9, np.float32(np.inf), x), "NaN or infinity in"),
    ],
)
def test_suspicious_data(data: Any, words: str) -> None:
    with np.errstate(invalid="ignore"):
        given = data(digits())
    assert only(check(MODEL, data=given), words).level == "warning"


def test_the_plan_is_that_of_the_samples_sizes() -> None:
    """With a free batch somewhere else than in front, a MatMul of one row was taken for one of 16."""
    model = build(
        "(float[N, 128] x) => (float[1, N, 8] y) { u = Unsqueeze (x, first)\n a = MatMul (u, w)\n y = MatMul (a, v) }",
        first=np.array([0]),
        w=normal(128, 128),
        v=normal(128, 8),
    )
    for rows, quantized in ((1, False), (64, True)):
        feeds = [{"x": normal(rows, 128, seed=k, scale=1.0)} for k in range(12)]
        made = onnxq.quantize(model, feeds).plan
        assert bool(made.quantized) is quantized
        assert onnxq.plan(model, shapes={"x": (rows, 128)}).quantized == made.quantized
        words = f"{made.done if quantized else 'none'} of 3 float nodes will be quantized"
        assert only(check(model, data=feeds), words).level == ("note" if quantized else "warning")
    assert onnxq.plan(model).quantized == {}, "a free batch is taken for one of 1"


def test_what_is_planned_without_data_says_what_sizes_it_is_for(caplog: pytest.LogCaptureFixture) -> None:
    """Rows of 16 gain nothing in integers, those of real use do: nothing is wrong with the model."""
    model = build(
        """(float[N, 32, T] x) => (float[N, 32, T] y) {
            a = Conv <pads = [1, 1]> (x, w)
            r = Relu (a)
            y = Conv <pads = [1, 1]> (r, w)
        }""",
        w=normal(32, 32, 3),
    )
    feeds = [{"x": normal(1, 32, 1024, seed=k, scale=1.0)} for k in range(12)]
    assert only(check(model, data=feeds), "3 of 3 float nodes will be quantized").hint == ""
    found = only(check(model), "none of 3 float nodes will be quantized")
    assert found.level == "note" and "free dimensions taken as 16" in found.hint
    assert onnxq.plan(model, shapes={"x": (1, 32, 1024)}).quantized and not caplog.messages
    assert not onnxq.plan(model).quantized and "free dimensions of 'x' are taken as 16" in caplog.text
    assert not only(check(model, backend="qnn"), "float nodes will be quantized").hint


def test_data_of_which_no_sample_is_usable() -> None:
    found = only(check(MODEL, data=digits() * np.float32(np.nan)), "NaN or infinity in all 32 samples")
    assert (found.level, found.where) == ("error", "input 'image'")


def test_few_rows_of_a_table_with_rare_large_numbers_are_like_the_training_data() -> None:
    """Its spread in training is that of numbers which 16 rows have not; rows in another unit are told all the same."""
    random = np.random.default_rng(0)
    trained = np.exp(1.5 * random.standard_normal((4000, 8))).astype(np.float32)
    trained[:40] *= 25  # a batch that a moving average still remembers
    model = build(
        "(float[1, 8] x) => (float[1, 4] y) { n = BatchNormalization (x, one, none, m, v)\n y = MatMul (n, w) }",
        one=np.ones(8, np.float32),
        none=np.zeros(8, np.float32),
        m=trained.mean(0),
        v=trained.var(0),
        w=normal(8, 4),
    )
    rows = np.exp(1.5 * random.standard_normal((16, 8))).astype(np.float32)
    said = "does not look like the training data"
    assert not [f for f in check(model, data=rows) if said in f.what]
    assert [f for f in check(model, data=rows / 50) if said in f.what]
    assert [f for f in check(model, data=rows * 50) if said in f.what]


@pytest.mark.parametrize("change", [lambda x: x * 255, lambda x: x * 40 - 20, lambda x: x / 50])
def test_data_unlike_the_training_data(change: Any) -> None:
    found = only(check(MODEL, data=change(digits())), "does not look like the training data")
    assert (found.level, found.where) == ("warning", "node 'first.BatchNormalization' (BatchNormalization)")


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x[:, :, ::-1], lambda x: x * np.float32(0.8)])
def test_data_like_the_training_data(change: Any) -> None:
    assert problems(check(MODEL, data=change(digits()))) == []


def test_bytes_are_noted_where_the_model_cannot_tell() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 3, 4, 4] x) => (float[N, 3, 4, 4] y) { y = Relu (x) }"""
    )
    pictures = np.random.default_rng(0).integers(0, 256, (16, 3, 4, 4))
    assert only(check(model, data=pictures), "whole numbers from 0 to 255").level == "note"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"imgae": np.zeros((8, 1, 24, 24), np.float32)}, "no array for the model's input 'image'"),
        (np.zeros((8, 24, 24, 1), np.float32), "the data has shape 1x24x24x1"),
        ("nowhere.npz", "does not exist"),
        ([], "no samples"),
    ],
)
def test_data_that_does_not_fit_is_an_error(data: Any, words: str) -> None:
    assert only(check(MODEL, data=data), words).level == "error"


def test_a_generator_is_taken_no_further_than_needed() -> None:
    taken = []

    def source() -> Any:
        for i in range(10_000):
            taken.append(i)
            yield digits()[i % 32]

    assert problems(check(MODEL, data=source())) == []
    assert len(taken) < 50


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 100)
    for path in (tmp_path / "bad.onnx", tmp_path / "none.onnx", tmp_path):
        found = check(path)
        assert [f.level for f in found] == ["error"]


def test_custom_operators_are_named() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "my.ops" : 1]>
        g (float[N, 4] x) => (float[N, 4] y) { [odd] h = my.ops.Twist (x)  y = Relu (h) }"""
    )
    found = check(model)
    assert "custom operator" in next(f for f in found if f.where == "node 'odd' (my.ops::Twist)").what
    missing = check(model, options=Options(custom_op_library="/nowhere/lib.so"))
    assert any(f.where == "custom_op_library" and "does not exist" in f.what for f in missing)


def test_a_model_that_is_quantized_already() -> None:
    found = only(check(pairs.quantized_model()), "quantized in part already")
    assert found.level == "warning"
    assert "2 DequantizeLinear" in found.what
    assert "'onnxq deploy' writes this one for a target" in found.hint


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [("int8", "f = DequantizeLinear (w, s)"), ("float", "q = QuantizeLinear (w, s)  f = DequantizeLinear (q, s)")],
)
def test_deploy_is_not_advised_where_it_refuses(kind: str, nodes: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 4] x) => (float[N, 4] y)
        <{kind}[4, 4] w = {{1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}}, float s = {{0.1}}>
        {{ {nodes}  y = MatMul (x, f) }}"""
    model = parser.parse_model(text)
    found = only(check(model), "quantized in part already")
    assert "only weights are quantized, so that 'onnxq deploy' does not take it" in found.hint
    with pytest.raises(BackendError, match="only weights are quantized"):
        deploy(model)


def test_a_model_that_gives_nan() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 4] x) => (float[N, 4] y) { [log] y = Log (x) }"""
    )
    data = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    assert only(check(model, data=data), "the float model gives NaN or infinity").where == "output 'y'"


def test_an_invalid_model() -> None:
    w = numpy_helper.from_array(np.zeros((5, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])],
        [w],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert any(f.level == "error" for f in check(model))


def test_the_model_is_left_unchanged() -> None:
    model = pairs.float_model()
    before = model.SerializeToString(deterministic=True)
    check(model, data=pairs.data())
    assert model.SerializeToString(deterministic=True) == before


def two_branches() -> onnx.ModelProto:
    """An output of ``x``, and one of ``t``, which reads the shape of ``x`` only."""
    return parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 4] x, float[1] t) => (float[2, 4] y, float[2, 4] te) {
            y = Relu (x)
            e = Sin (t)
            size = Shape (x)
            te = Expand (e, size)
        }"""
    )


def test_the_model_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Mock(wraps=normalize)
    monkeypatch.setattr("onnxq.prepare.normalize", passes)
    check(MODEL)
    assert passes.call_count == 1


def test_an_output_of_an_input_that_rests_is_no_news() -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(2, 4)).astype(np.float32), "t": np.ones(1, np.float32)} for _ in range(12)]
    assert not any("gives the same" in f.what for f in check(two_branches(), data=feeds))
    made = onnxq.calibrate(two_branches(), feeds)
    assert not any("gives the same" in text for text in made.warnings())


def test_an_output_that_is_the_same_whatever_its_input_is() -> None:
    rng = np.random.default_rng(0)
    feeds = [
        {"x": -rng.uniform(1, 2, size=(2, 4)).astype(np.float32), "t": rng.normal(size=1).astype(np.float32)}
        for _ in range(12)
    ]
    found = only(check(two_branches(), data=feeds), "gives the same")
    assert (found.where, found.what) == ("output 'y'", "the float model gives the same on 4 different samples")
    assert any(
        text.startswith("output 'y': the float model gives the same")
        for text in onnxq.calibrate(two_branches(), feeds).warnings()
    )


def recurrent() -> onnx.ModelProto:
    return parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 4] x, float[1, 8] h, float[1, 4] mask) => (float[1, 4] y, float[1, 8] hn) {
            y = Mul (x, mask)
            hn = Tanh (h)
        }"""
    )


def test_a_state_is_at_rest_where_a_sequence_begins() -> None:
    """Not worth a word, unless the data has no other: then the ranges are those of beginnings."""
    rng = np.random.default_rng(0)
    feeds = [{name: rng.normal(size=(1, n)).astype(np.float32) for name, n in (("x", 4), ("h", 8), ("mask", 4))}
             for _ in range(12)]  # fmt: skip
    for k in (0, 6):
        feeds[k]["h"] = np.zeros((1, 8), np.float32)
    assert not any("input" in text for text in problems(check(recurrent(), data=feeds)))
    assert onnxq.calibrate(recurrent(), feeds).warnings() == []
    rests = [{**feed, "h": np.zeros((1, 8), np.float32)} for feed in feeds]
    found = only(check(recurrent(), data=rests), "all values are zero")
    assert (found.level, found.where) == ("warning", "input 'h'") and "what the model gives back" in found.hint
    assert sum("'h'" in text for text in onnxq.calibrate(recurrent(), rests).warnings()) == 1
    masks = [{**feed, "mask": np.zeros((1, 4), np.float32)} for feed in feeds]
    assert only(check(recurrent(), data=masks), "all values are zero").level == "note"
    feeds[3]["x"] = np.full((1, 4), 0.5, np.float32)
    assert only(check(recurrent(), data=feeds), "the same in sample 3").level == "warning"


def test_nodes_out_of_order_are_warned_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = two_branches()
    first = model.graph.node.pop(1)
    model.graph.node.append(first)
    check(model)
    assert [record.message for record in caplog.records] == ["nodes out of order: sorted"]
    onnx.save(model, tmp_path / "m.onnx")
    for verb in ("check", "plan"):
        main([verb, str(tmp_path / "m.onnx")])
        assert capsys.readouterr().err.count("out of order") == 1


def test_what_is_run_is_spread_over_sorted_data() -> None:
    """Of the first kind of samples alone the output would be the same each time."""
    model = build("(float[1, 8] x) => (float[1, 4] y) { a = Relu (x) y = MatMul (a, w) }", w=normal(8, 4))
    data = np.random.default_rng(0).standard_normal((32, 1, 8)).astype(np.float32)
    data[:16] = -np.abs(data[:16])
    assert not [f for f in check(model, data=data) if "output" in f.where and f.level != "note"]
    assert [f for f in check(model, data=data[:16]) if "output" in f.where and f.level != "note"]


def test_a_model_that_runs_is_not_called_invalid() -> None:
    model = build("(float[4] x) => (float[4] y) { a = Relu (x)\n y = Neg (a) }")
    model.graph.value_info.append(helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [2, 2]))
    with pytest.raises(Exception, match="differ in rank"):
        onnx.checker.check_model(model, full_check=True)
    found = only(check(model), "differ in rank")
    assert (found.level, found.where) == ("note", "model")
    assert "onnxruntime loads it all the same" in found.hint
    onnxq.quantize(model, np.zeros((4, 4), np.float32) + np.arange(4, dtype=np.float32))


def test_weights_alone_for_a_provider_that_is_not_here() -> None:
    model = build(
        "(float[N, 16, 128] x) => (float[N, 16, 64] y) { s = com.microsoft.BiasSplitGelu (x, b)\n y = MatMul (s, w) }",
        domains={"com.microsoft": 1},
        b=normal(128),
        w=normal(64, 64),
    )
    asked = Options(algorithms=("weight_only",), providers=("cuda",))
    assert only(check(model, options=asked), "no provider 'cuda'").level == "warning"
    assert not [f for f in check(model, options=asked) if f.level == "error"]
    data = normal(4, 16, 128)
    assert only(check(model, data, options=asked), "no provider 'cuda'").level == "error"
    assert only(check(model, options=Options()), "BiasSplitGelu(1)").level == "error"
