"""Algorithms that are pipelines of their own: their one target, where results go, and what else refuses them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnxq
from onnxq import ImageOptions, OptionError, Options, OutputError
from onnxq.cli import main
from onnxq.locations import made_folder
from onnxq.rewritten import samples_of
from tests.models import build, feeds_for, normal

WHOLE = pytest.mark.parametrize("name", ["weight_only", "dynamic"])
CALLS = {
    "weight_only": "from onnxq.weight_only import quantize_weights",
    "dynamic": "from onnxq.dynamic import rewrite",
}


def product() -> onnx.ModelProto:
    return build("(float[4, 64] x) => (float[4, 64] y) { y = MatMul (x, w) }", w=normal(64, 64))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(product(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@WHOLE
@pytest.mark.parametrize(
    ("target", "message"),
    [("snpe", "writes models for onnxruntime alone, not for snpe"), ("nosuch", "no backend named 'nosuch'")],
)
def test_another_target_is_refused_before_work(
    name: str, target: str, message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = model.with_name("out")
    assert main(["quantize", str(model), "--algorithm", name, "--backend", target, "-o", str(output)]) == 1
    assert message in capsys.readouterr().err
    assert list(model.parent.iterdir()) == [model]


@WHOLE
def test_a_folder_takes_a_file_named_after_model_and_target(name: str, model: Path) -> None:
    output = model.with_name("out")
    assert main(["quantize", str(model), "--algorithm", name, "-o", str(output), "-q"]) == 0
    assert [path.name for path in output.iterdir()] == ["m_onnxruntime.onnx"]
    onnx.checker.check_model(onnx.load(output / "m_onnxruntime.onnx"))


def test_a_folder_made_for_nothing_goes_again(tmp_path: Path) -> None:
    for name, left in (("new", False), ("kept", True)):
        if left:
            (tmp_path / name).mkdir()
        with pytest.raises(ValueError, match="no"), made_folder(tmp_path / name / "q.onnx"):
            assert (tmp_path / name).is_dir()
            raise ValueError("no")
        assert (tmp_path / name).is_dir() == left
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file': cannot be made"), made_folder(tmp_path / "file" / "q.onnx"):
        pytest.fail("there is no folder")


@WHOLE
def test_in_python_the_error_names_what_to_call(name: str) -> None:
    message = rf"algorithm '{name}' is a pipeline of its own: .* In Python: {CALLS[name]}$"
    with pytest.raises(OptionError, match=message):
        onnxq.quantize(product(), feeds_for(product()), options=Options(algorithms=(name,)))
    exec(CALLS[name], {})


@WHOLE
def test_a_plan_says_what_to_do_instead(name: str) -> None:
    message = rf"no plan of '{name}': .* 'onnxq quantize MODEL --algorithm {name} -o OUT\.onnx' makes .*{CALLS[name]}$"
    with pytest.raises(OptionError, match=message):
        onnxq.plan(product(), options=Options(algorithms=(name,)))


def test_a_plan_refuses_an_algorithm_that_there_is_not() -> None:
    with pytest.raises(OptionError, match="no algorithm named 'nosuch'"):
        onnxq.plan(product(), options=Options(algorithms=("nosuch",)))


@WHOLE
def test_check_tells_what_quantizing_would_do(name: str) -> None:
    def told(**given: object) -> list[str]:
        backend = str(given.pop("backend", "onnxruntime"))
        options = Options(algorithms=(name,), **given)  # type: ignore[arg-type]
        return [f"{f.level}: {f.what}" for f in onnxq.check(product(), backend=backend, options=options)]

    (note,) = told()
    assert note.startswith("note: is a pipeline of its own")
    assert told(backend="snpe")[0] == f"error: algorithm '{name}' writes models for onnxruntime alone, not for snpe"
    assert told(act_bits=8)[0] == f"error: has no effect on the algorithm '{name}'"


@pytest.mark.parametrize(
    ("name", "flags", "hint"),
    [
        ("weight_only", ["--weight-bits", "8"], "Write weight_only:bits=8"),
        ("weight_only", ["--symmetric"], "weight_only:symmetric=true"),
        ("weight_only", ["--asymmetric"], "weight_only:symmetric=false"),
        ("dynamic", ["--per-tensor"], "Write dynamic:per_channel=false"),
        ("dynamic", ["--per-channel"], "Write dynamic:per_channel=true"),
    ],
)
def test_a_hint_has_the_value_asked_for(
    name: str, flags: list[str], hint: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(model), "--algorithm", name, *flags, "-o", str(model.with_name("q.onnx"))]) == 1
    assert hint in capsys.readouterr().err


@WHOLE
def test_pictures_are_not_read_where_there_is_no_data(
    name: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statistics = model.with_name("s.npz")
    onnxq.calibrate(product(), feeds_for(product()), output=statistics)
    command = ["quantize", str(model), "--algorithm", name, "-o", str(model.with_name("q.onnx"))]
    for given in ([], ["--statistics", str(statistics)]):
        assert main([*command, *given, "--image-mean", "0.5"]) == 2
        assert "--image-mean needs --data" in capsys.readouterr().err
    config = model.with_name("c.toml")
    config.write_text("[image]\nmean = [0.5]\n")
    assert main([*command, "--config", str(config)]) == 1
    assert "image mean: has no effect on a run without data" in capsys.readouterr().err
    with pytest.raises(OptionError, match="image mean: has no effect on statistics"):
        samples_of(None, str(statistics), ImageOptions(mean=(0.5,)))
    assert not model.with_name("q.onnx").exists()
