from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxq import ModelError, OptionError, Options, OutputError, dynamic
from onnxq.cli import main
from onnxq.metrics import sqnr
from tests.models import build, feeds_for, normal, renamed


def _model() -> onnx.ModelProto:
    return build(
        """(float[N, 32] x, float[1, 3, 8, 8] image) => (float[N, 10] y, float[N, N] p, float[1, 4, 8, 8] z) {
            h = MatMul (x, a)
            r = Relu (h)
            t = Transpose <perm = [1, 0]> (r)
            p = MatMul (r, t)
            g = Gemm <transB = 1> (r, b, c)
            k = MatMul (g, d)
            y = Gemm (k, e, c)
            z = Conv <pads = [1, 1, 1, 1]> (image, kernel)
        }""",
        a=normal(32, 64),
        b=normal(16, 64, seed=1),
        c=normal(1, seed=2, scale=1.0),
        d=normal(16, 16, seed=3),
        e=normal(16, 10, seed=4),
        kernel=normal(4, 3, 3, 3),
    )


def _run(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.parametrize("per_channel", [True, False])
def test_contract(per_channel: bool, tmp_path: Path) -> None:
    proto, source, output = _model(), tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(proto, source)
    before = hashlib.sha256(source.read_bytes()).digest()
    feeds = feeds_for(proto, 12, N=5)
    result = dynamic.rewrite(source, feeds, output=output, per_channel=per_channel)
    assert hashlib.sha256(source.read_bytes()).digest() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "q.onnx"]
    made = onnx.load(output)
    onnx.checker.check_model(made, full_check=True)
    for ours, theirs in ((made.graph.input, proto.graph.input), (made.graph.output, proto.graph.output)):
        assert [v.SerializeToString() for v in ours] == [v.SerializeToString() for v in theirs]
    assert {p.key: p.value for p in made.metadata_props} == {p.key: p.value for p in proto.metadata_props}
    assert sorted(result.quantized.values()) == ["Gemm", "Gemm", "MatMul", "MatMul"]
    assert sum(node.op_type == "MatMulInteger" for node in made.graph.node) == 4
    assert sorted(f"{k.op}: {k.reason}" for k in result.kept_float) == [
        "Conv: slower with ranges taken at run time than in float (--include quantizes it all the same)",
        "MatMul: it has no constant weight on the right",
    ]
    told = result.verification.outputs["y"]
    want = [_run(source, f)["y"] for f in feeds[:: len(feeds) // 8 or 1]]
    got = [_run(output, f)["y"] for f in feeds[:: len(feeds) // 8 or 1]]
    assert told.samples == 8 and told.sqnr > 25
    assert sqnr(np.stack(want), np.stack(got)) == pytest.approx(told.sqnr, abs=3)


def test_chosen_and_left_out(tmp_path: Path) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(renamed(_model(), {"h": "first"}), source)
    result = dynamic.rewrite(source, output=output, options=Options(exclude=("first",)))
    assert "excluded by 'first'" in [k.reason for k in result.kept_float]
    assert len(result.quantized) == 3 and not result.verification.samples
    only = dynamic.rewrite(source, output=output, options=Options(include=("Conv",)))
    assert set(only.quantized.values()) == {"Conv"}
    assert "ConvInteger" in [node.op_type for node in onnx.load(output).graph.node]
    with pytest.raises(OptionError, match="matches no"):
        dynamic.rewrite(source, output=output, options=Options(exclude=("nowhere",)))
    with pytest.raises(OptionError, match="act_bits: has no effect"):
        dynamic.rewrite(source, output=output, options=Options(act_bits=16))


def test_bodies(tmp_path: Path) -> None:
    proto = build(
        """(float[N, 32] x, bool c) => (float[N, 32] y) {
            y = If (c) <
                then_branch = g1 () => (float[N, 32] t) { t = MatMul (x, a) },
                else_branch = g2 () => (float[N, 32] f) { f = Relu (x) }
            >
        }""",
        a=normal(32, 32),
    )
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(proto, source)
    feeds = [{"x": normal(4, 32, scale=1.0), "c": np.array(k == 0)} for k in range(2)]
    result = dynamic.rewrite(source, feeds, output=output)
    assert list(result.quantized.values()) == ["MatMul"]
    assert result.verification.worst is not None and result.verification.worst[1].sqnr > 30


def test_nothing_to_quantize(tmp_path: Path) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(build("(float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }"), source)
    result = dynamic.rewrite(source, output=output)
    assert not result.quantized and "nothing is quantized" in result.notes[0]
    assert output.exists()


def test_failures_are_told_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime.quantization

    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(_model(), source)
    with pytest.raises(OutputError, match="is the model that is read"):
        dynamic.rewrite(source, output=source)
    with pytest.raises(OutputError, match="folder does not exist"):
        dynamic.rewrite(source, output=tmp_path / "no" / "q.onnx")

    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("Unable to find data type for weight_name='a'")

    monkeypatch.setattr(onnxruntime.quantization, "quantize_dynamic", fail)
    with pytest.raises(ModelError, match=r"does not manage it \(ValueError: Unable to find data type.*--exclude"):
        dynamic.rewrite(source, output=output)
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(_model(), source)
    level = logging.getLogger().level
    assert main(["quantize", str(source), "-o", str(output), "--algorithm", "dynamic:per_channel=no"]) == 0
    text = capsys.readouterr()
    assert "int8 weights per tensor" in text.out and "slower with ranges taken at run time" in text.out
    assert "pre-processing" not in text.err and logging.getLogger().level == level
