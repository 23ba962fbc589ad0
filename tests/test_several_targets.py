"""Several targets in one run: one calibration, the same files as one by one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options
from onnxq.cli import main
from onnxq.console.exit_codes import ExitCode
from onnxq.errors import OnnxqError, OptionError, TargetsError, VerificationError
from onnxq.job import Job
from onnxq.quantized import Quantized
from tests.models import build, feeds_for, normal, renamed
from tests.targets import TARGETS, residual

FEEDS = feeds_for(residual())


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    onnx.save(residual(), tmp_path / "net.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([f["x"] for f in FEEDS]))
    return tmp_path / "net.onnx", tmp_path / "d.npz"


def test_all_targets_at_once_give_what_each_gives_alone(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = files
    together = onnxq.quantize_all(model, data, backends=TARGETS, output=tmp_path / "all")
    assert tuple(together) == TARGETS
    statistics = onnxq.calibrate(model, data)
    for name in TARGETS:
        alone = onnxq.quantize(model, statistics=statistics, backend=name, output=tmp_path / name)
        assert [p.name for p in alone.files] == [p.name for p in together[name].files]
        for one, other in zip(alone.files, together[name].files, strict=True):
            assert one.read_bytes() == other.read_bytes(), f"{name}: {one.name}"
    assert {p for r in together.values() for p in r.files} == set((tmp_path / "all").iterdir())


def test_command_line(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = (str(path) for path in files)
    several = ["--backend", "onnxruntime", "--backend", "tvm"]
    assert main(["quantize", model, "--data", data, *several, "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "net_onnxruntime.onnx" in out and "net_tvm.onnx" in out
    assert main(["quantize", model, "--data", data, *several, "-o", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [t["backend"] for t in document["targets"]] == ["onnxruntime", "tvm"]
    (tmp_path / "c.toml").write_text('backend = ["onnxruntime", "tvm"]\n')
    config = ["--config", str(tmp_path / "c.toml")]
    assert main(["quantize", model, "--data", data, *config, "-o", str(tmp_path / "again"), "-q"]) == 0
    assert sorted(p.name for p in (tmp_path / "again").iterdir()) == ["net_onnxruntime.onnx", "net_tvm.onnx"]


def test_what_all_targets_refuse_is_told_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["onnxq.quantize"], "observe", lambda *_: pytest.fail("it calibrated"))
    model = renamed(residual(), {"x": "an input"})
    feeds = [{"an input": f["x"]} for f in FEEDS]
    newer = Options(opset=20)
    with pytest.raises(OnnxqError) as raised:
        onnxq.quantize_all(model, feeds, backends=["tengine", "rknn"], options=newer)
    text = str(raised.value)
    assert text.startswith("2 of 2 targets: tengine: ") and "holds blanks" in text
    assert "; rknn: opset: rknn reads models up to opset 19" in text
    assert text.endswith("Nothing was written")
    with pytest.raises(OptionError, match=r"^1 of 2 targets: rknn: .*the others are made with --backend snpe$"):
        onnxq.quantize_all(model, feeds, backends=["snpe", "rknn"], options=Options(format="encodings-0.6.1"))
    with pytest.raises(OptionError, match=r"^exclude: 'nothing' matches no"):  # the same for all: said once, as it is
        onnxq.quantize_all(residual(), FEEDS, backends=["tvm", "rknn"], options=Options(exclude=("nothing",)))


def test_what_some_targets_refuse_keeps_the_others_from_nothing(tmp_path: Path) -> None:
    model = renamed(residual(), {"x": "an input"})
    feeds = [{"an input": f["x"]} for f in FEEDS]
    newer = Options(opset=20)
    with pytest.raises(TargetsError) as raised:
        onnxq.quantize_all(model, feeds, backends=["tengine", "tvm", "rknn"], options=newer, output=tmp_path / "all")
    error = raised.value
    assert list(error.refused) == ["tengine", "rknn"] and isinstance(error.refused["rknn"], OptionError)
    assert str(error).startswith("2 of 3 targets: tengine: ") and str(error).endswith("Written without them: tvm")
    alone = onnxq.quantize(model, feeds, backend="tvm", options=newer, output=tmp_path / "tvm")
    assert list(error.made) == ["tvm"]
    (file,) = (tmp_path / "all").iterdir()
    assert (file,) == error.made["tvm"].files and file.read_bytes() == alone.files[0].read_bytes()


def test_a_result_that_fails_keeps_the_others_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Job.run

    def failing(self: Job, *given: Any) -> Quantized:
        if self.target.name != "tvm":
            raise VerificationError("not a number")
        return run(self, *given)

    monkeypatch.setattr(Job, "run", failing)
    with pytest.raises(TargetsError, match=r"^1 of 2 targets: snpe: not a number\. Made without it: tvm$"):
        onnxq.quantize_all(residual(), FEEDS, backends=["snpe", "tvm"])
    with pytest.raises(OnnxqError, match=r"^2 of 2 targets: rknn: opset.*; snpe: not a number\. Nothing was written$"):
        onnxq.quantize_all(residual(), FEEDS, backends=["snpe", "rknn"], options=Options(opset=20))


def test_what_some_targets_refuse_on_the_command_line(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = (str(path) for path in files)
    several = ["--backend", "rknn", "--backend", "tvm", "--opset", "20", "-o", str(tmp_path / "out")]
    assert main(["quantize", model, "--data", data, *several]) == ExitCode.FAILED
    said = capsys.readouterr()
    assert "net_tvm.onnx" in said.out and "onnxq: error: 1 of 2 targets: rknn: opset: " in said.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["net_tvm.onnx"]
    assert main(["quantize", model, "--data", data, *several, "--json", "-q"]) == ExitCode.FAILED
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert [t["backend"] for t in document["targets"]] == ["tvm"] and document["error"]["kind"] == "TargetsError"
    assert [(one["backend"], one["kind"]) for one in document["refused"]] == [("rknn", "OptionError")]
    assert said.err.startswith("onnxq: error: 1 of 2 targets: rknn: ")
    assert main(["quantize", model, "--data", data, *several, "-v"]) == ExitCode.FAILED
    assert "Traceback" in capsys.readouterr().err


def test_a_remark_about_several_targets_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(residual(), tmp_path / "net.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([FEEDS[0]["x"]]))
    several = [word for name in ("onnxruntime", "tvm", "openvino", "snpe") for word in ("--backend", name)]
    command = ["quantize", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "out")]
    assert main([*command, *several[:4]]) == 0
    out = capsys.readouterr().out
    assert "onnxruntime, tvm: the ranges come from 1 sample only" in out
    assert main([*command, *several]) == 0
    out = capsys.readouterr().out
    assert out.count("1 sample only") == 1 and "4 of 4 targets: the ranges" in out


def test_a_remark_that_a_target_has_twice_counts_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = '[p] a = Pad <mode = "reflect"> (x, pads) y = Conv (a, w)'
    graph = f"(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {{ {nodes} }}"
    model = build(graph, pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), w=normal(4, 3, 3, 3))
    onnx.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([feeds["x"] for feeds in feeds_for(model)]))
    several = [word for name in ("onnxruntime", "tvm", "openvino", "snpe", "qnn") for word in ("--backend", name)]
    command = ["quantize", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "d.npz"), "-v"]
    assert main([*command, *several, "-o", str(tmp_path / "out")]) == 0
    assert "  note  5 of 5 targets: fold_pad: p: not folded" in capsys.readouterr().out


def test_wrong_uses(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = files
    with pytest.raises(OptionError, match="is not a folder"):
        onnxq.quantize_all(model, data, backends=["onnxruntime", "tvm"], output=tmp_path / "q.onnx")
    with pytest.raises(OptionError, match="no target"):
        onnxq.quantize_all(model, data, backends=[])
    with pytest.raises(OptionError, match="no backend named 'tmv'"):
        onnxq.quantize_all(model, data, backends=["onnxruntime", "tmv"])
    assert main(["plan", str(model), "--backend", "onnxruntime", "--backend", "tvm", "--nonsense"]) == 2
    assert main(["plan", str(model), "--backend", "onnxruntime", "--backend", "tvm"]) == 2
    assert "takes one --backend" in capsys.readouterr().err


def test_deploying_for_all_gives_what_each_gives_alone(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    onnxq.quantize(residual(), FEEDS, output=source, options=Options(placement="all"))
    names = ("onnxruntime", "tvm", "openvino")
    together = onnxq.deploy_all(source, backends=names, output=tmp_path / "all")
    assert tuple(together) == names
    for name in names:
        alone = onnxq.deploy(source, backend=name, output=tmp_path / name)
        assert [p.read_bytes() for p in alone.files] == [p.read_bytes() for p in together[name].files], name
        assert {p.parent for p in together[name].files} == {tmp_path / "all"}
    assert not onnxq.deploy_all(source, backends="tvm")["tvm"].files, "nothing is written without an output"
    with pytest.raises(OptionError, match="is not a folder"):
        onnxq.deploy_all(source, backends=names, output=tmp_path / "q.onnx")
    with pytest.raises(OptionError, match="no target"):
        onnxq.deploy_all(source, backends=[])


def test_deploy_writes_for_the_targets_that_take_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "an int8 net.onnx"
    onnxq.quantize(residual(), FEEDS, output=source, options=Options(placement="all"))
    out, several = tmp_path / "out", ["--backend", "onnxruntime", "--backend", "vitis", "--backend", "nnie"]
    assert main(["deploy", str(source), *several, "-o", str(out)]) == ExitCode.FAILED
    said = " ".join(capsys.readouterr().err.split())
    assert "2 of 3 targets" in said and "vitis" in said and "nnie" in said
    assert said.endswith("Written without them: onnxruntime")
    assert [p.name for p in out.iterdir()] == ["an int8 net_onnxruntime.onnx"]
    assert main(["deploy", str(source), *several[2:], "-o", str(out)]) == ExitCode.FAILED
    said = " ".join(capsys.readouterr().err.split())
    assert "2 of 2 targets" in said and said.endswith("Nothing was written")
    assert main(["deploy", str(source), *several[:2], "--backend", "tvm", "-o", str(out)]) == ExitCode.OK
    assert sorted(p.name for p in out.iterdir()) == ["an int8 net_onnxruntime.onnx", "an int8 net_tvm.onnx"]


def test_hints_are_told_with_their_targets(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = (str(path) for path in files)
    several = ["--backend", "academic", "--backend", "tvm", "--weight-bits", "7"]
    assert main(["quantize", model, "--data", data, *several, "-o", str(tmp_path / "out")]) == 0
    hints = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  hint")]
    assert [line.split(":")[0].split()[-1] for line in hints] == ["academic", "tvm"]
    assert all("of 7 bits, rounded without data" in line for line in hints)


def test_a_folder_in_the_way_of_one_of_the_files_is_told_before_any_work(files: tuple[Path, Path]) -> None:
    model, data = files
    output, quantized = model.parent / "targets", model.parent / "quantized" / "net.onnx"
    onnxq.quantize(model, data, output=quantized)
    (output / "net_tvm.onnx").mkdir(parents=True)
    with pytest.raises(onnxq.OutputError, match="this is a folder"):
        onnxq.quantize_all(model, data, backends=["snpe", "tvm"], output=output)
    with pytest.raises(onnxq.OutputError, match="this is a folder"):
        onnxq.deploy_all(quantized, backends=["snpe", "tvm"], output=output)
    assert [path.name for path in output.iterdir()] == ["net_tvm.onnx"]
