"""What is advised below the floor changes the result, on every target."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import Options, Override
from onnxq.cli import main
from onnxq.errors import OnnxqError
from onnxq.notes.remedies import blamed, more_bits, remedies
from tests.models import build, feeds_for, normal
from tests.targets import TARGETS, residual

FLAG = r"--(exclude|override) ('[^']+')"


def with_flag(options: Options, flag: str) -> Options:
    """The options with what a flag asks for."""
    name, text = shlex.split(flag)
    if name == "--exclude":
        return Options(**{**_given(options), "exclude": (*options.exclude, text)})
    return Options(**{**_given(options), "override": (text,)})


def _given(options: Options) -> dict[str, Any]:
    return {"placement": options.placement, "weight_bits": options.weight_bits, "effort": options.effort}


@pytest.mark.parametrize("backend", TARGETS)
def test_what_is_advised_changes_the_result(backend: str, tmp_path: Path) -> None:
    model, options = residual(), Options(placement="all", effort="fast")
    feeds = feeds_for(model)
    result = onnxq.quantize(model, feeds, backend=backend, options=options, output=tmp_path / "q.onnx")
    before = [file.read_bytes() for file in result.files]
    named = {blamed(result.plan, node.name, node.output[0]): node.output[0] for node in model.graph.node}
    assert not named.keys() & result.plan.absorbed.keys(), "they are computed with a layer, and have its numbers"
    assert remedies(result, options, "head")
    for name in ("stem", "head", "shortcut", "pool"):
        for flag in remedies(result, options, name, named[name]) if name in result.plan.quantized else ():
            changed = onnxq.quantize(
                model, feeds, backend=backend, options=with_flag(options, flag), output=tmp_path / "q.onnx"
            )
            assert [file.read_bytes() for file in changed.files] != before, flag
    assert remedies(result, options, "no such layer") == []


def test_the_width_is_of_what_has_the_fewest_bits() -> None:
    model, feeds = residual(), feeds_for(residual())

    def advised(backend: str, name: str, **options: Any) -> str | None:
        asked = Options(placement="all", effort="fast", **options)
        flags = remedies(onnxq.quantize(model, feeds, backend=backend, options=asked), asked, name)
        return next((flag for flag in flags if flag.startswith("--override")), None)

    assert advised("onnxruntime", "stem", weight_bits=2) == "--override 'stem=weight_bits=8'"
    assert advised("onnxruntime", "stem", act_bits=4) == "--override 'stem=act_bits=8'"
    assert advised("onnxruntime", "stem") == "--override 'stem=bits=16'"
    assert advised("onnxruntime", "shortcut", weight_bits=2) == "--override 'shortcut=act_bits=16'", "it has no weight"
    assert advised("vitis", "stem") is None, "it has 8 bits alone"
    assert advised("qnn", "stem") == "--override 'stem=act_bits=16'", "weights have 8 at most"
    full = {"stem": Override(weight_bits=16, act_bits=16)}
    assert advised("onnxruntime", "stem", override=full) is None


def test_sixteen_bits_are_told_of_where_the_target_has_them() -> None:
    model, feeds = residual(), feeds_for(residual())
    for backend, options, told in (
        ("onnxruntime", Options(placement="all"), ["--act-bits 16"]),
        ("onnxruntime", Options(placement="all", act_bits=16), []),
        ("onnxruntime", Options(), []),  # so small a model stays float: there is nothing to give more bits
        ("vitis", Options(), []),
    ):
        assert more_bits(onnxq.quantize(model, feeds, backend=backend, options=options), options) == told


def test_sixteen_bits_are_told_of_once() -> None:
    model, options = residual(), Options(effort="fast", min_sqnr=80)
    result = onnxq.quantize(model, feeds_for(model), backend="snpe", options=options)
    assert sum("--act-bits 16" in hint for hint in result.hints) == 1
    assert more_bits(result, options) == [] and more_bits(replace(result, hints=()), options) == ["--act-bits 16"]


def test_sixteen_bits_that_a_result_took_by_itself_are_not_told_of() -> None:
    """As a poor result is mended: all nodes in 16 bits but those that have none, here the logarithm."""
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            [layer] c = Conv (x, w)
            [square] p = Mul (c, c)
            [sum] s = Add (p, one)
            [log] l = Log (s)
            [last] y = Conv (l, w)
        }""",
        w=normal(4, 4, 1, 1),
        one=np.ones(1, np.float32),
    )
    wide = Options(act_bits=16, override=(("node:log", Override(act_bits=8)),), effort="fast")
    result = onnxq.quantize(model, feeds_for(model), backend="qnn", options=wide)
    assert {site.spec.bits for site in result.plan.sites if site.role == "activation"} == {8, 16}
    given = Options(effort="fast")
    found = {node.name: remedies(result, given, node.name, node.output[0]) for node in model.graph.node}
    assert found.pop("square") == [], "what it reads and writes is rounded for its neighbours all the same"
    assert found == {name: [f"--exclude '{name}'"] for name in ("layer", "sum", "log", "last")}
    assert more_bits(result, given) == []
    narrow = onnxq.quantize(model, feeds_for(model), backend="qnn", options=given)
    assert more_bits(narrow, given) == ["--act-bits 16"]
    assert "--override 'square=act_bits=16'" in remedies(narrow, given, "square", "p")
    assert remedies(narrow, given, "log", "l") == [], "it has 8 bits alone"


def test_an_absorbed_function_is_blamed_on_its_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind the Relu most is lost, but it has the numbers of the Conv in front of it."""
    model = build(
        "(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { [layer] a = Conv (x, w)\n [function] y = Relu (a) }",
        w=normal(8, 8, 1, 1),
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=normal(16, 8, 4, 4, scale=1.0))
    given = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "q.onnx")]
    given += ["--placement", "all", "--weight-bits", "2", "--min-sqnr", "80"]
    assert main(given) == 3
    before, said = (tmp_path / "q.onnx").read_bytes(), capsys.readouterr().out
    advice = next(line for line in said.splitlines() if line.startswith("Try"))
    flags = re.findall(FLAG, advice)
    assert [shlex.split(text)[0] for _, text in flags] == ["layer", "layer=weight_bits=8"]
    for name, text in flags:
        main([*given, f"--{name}", *shlex.split(text)])
        assert (tmp_path / "q.onnx").read_bytes() != before, text
    capsys.readouterr()
    assert main([*given, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["suspects"][0] == "layer"


def test_a_layer_of_which_the_weights_alone_are_integers_is_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its three bits lose what is lost, though it computes in float; no activation is quantized."""
    model = build(
        "(float[1, 64] x) => (float[1, 64] y) { [coarse] a = MatMul (x, w)\n t = Tanh (a)\n [fine] y = MatMul (t, v) }",
        w=normal(64, 64),
        v=normal(64, 64, seed=1),
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=normal(32, 1, 64, scale=1.0))
    given = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "q.onnx")]
    given += ["--weight-bits", "3", "--override", "fine=weight_bits=8"]
    assert main([*given, "--min-sqnr", "25", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["quantized_nodes"], report["stored_nodes"], report["suspects"]) == (0, 2, ["coarse"])
    assert main([*given, "--min-sqnr", "25"]) == 3
    advice = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Try"))
    flags = re.findall(FLAG, advice)
    assert [shlex.split(text)[0] for _, text in flags] == ["coarse", "coarse=weight_bits=8"]
    assert "--act-bits" not in advice and "--range" not in advice, "there are no ranges"
    for name, text in flags:
        assert main([*given, "--min-sqnr", "25", f"--{name}", *shlex.split(text)]) == 0


@pytest.mark.parametrize(("large", "samples"), [(1 << 30, 4), (1, 2)])
def test_what_is_to_blame_is_looked_for_on_fewer_samples_of_a_large_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int, samples: int
) -> None:
    asked: list[int] = []
    compare = onnxq.compare

    def counted(*given: Any, **how: Any) -> Any:
        asked.append(how["samples"])
        return compare(*given, **how)

    monkeypatch.setattr(onnxq, "compare", counted)
    monkeypatch.setattr("onnxq.verbs.shortfall._LARGE", large)
    onnx.save(
        build("(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { y = Conv (x, w) }", w=normal(8, 8, 1, 1)),
        tmp_path / "m.onnx",
    )
    np.savez(tmp_path / "d.npz", x=normal(16, 8, 4, 4, scale=1.0))
    given = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "q.onnx")]
    assert main([*given, "--placement", "all", "--weight-bits", "2", "--min-sqnr", "80"]) == 3
    assert asked == [samples]


def test_what_float_arithmetic_blows_up_is_blamed_on_what_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight bits of a time step leave nothing of its sine; the sine's own eight bits are not to blame."""
    model = build(
        """(float[1, 1] t, float[1, 8] x) => (float[1, 8] y) {
            [angles] a = Mul (t, rates)
            [wave] s = Sin (a)
            e = MatMul (s, w)
            y = Add (x, e)
        }""",
        rates=np.linspace(0.2, 1, 8, dtype=np.float32)[None],
        w=normal(8, 8),
    )
    onnx.save(model, tmp_path / "m.onnx")
    steps = np.random.default_rng(0).integers(0, 1000, (32, 1)).astype(np.float32)
    np.savez(tmp_path / "d.npz", t=steps, x=normal(32, 8, scale=0.1))
    given = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "q.onnx")]
    given += ["--backend", "vitis", "--effort", "fast"]
    assert main(given) == 3
    said = capsys.readouterr().out
    assert re.findall(FLAG, said[said.index("Try") :]) == [("exclude", "'angles'")]
    assert main([*given, "--exclude", "angles"]) == 0


def test_suspects_are_named_for_each_of_several_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(residual(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.stack([feed["x"] for feed in feeds_for(residual())]))
    given = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "out")]
    given += ["--backend", "vitis", "--backend", "snpe", "--min-sqnr", "80", "--effort", "fast"]
    assert main(given) == 3
    out = capsys.readouterr().out
    for name in ("vitis", "snpe"):
        part = out[out.index(f"BELOW THE FLOOR: {name}, y has") :]
        assert re.search(FLAG, part[: part.index("Try") + 200]), part
    assert main([*given, "--json"]) == 3
    targets = json.loads(capsys.readouterr().out)["targets"]
    assert all(target["below_floor"] and target["suspects"] for target in targets)
    monkeypatch.setattr("onnxq.verbs.making._SUSPECT_SECONDS", -1.0)
    assert main(given) == 3
    out = capsys.readouterr().out
    assert "Try 'onnxq compare --backend snpe' to see where, another --range, or more data." in out
    assert out.count("--act-bits 16") == 1, "the hint above says it"
    assert "Try 'onnxq compare' to see where, another --range, or more data." in out, "vitis has no 16 bits"


def test_options_that_are_refused_are_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    model, options = residual(), Options(placement="all", effort="fast")
    result = onnxq.quantize(model, feeds_for(model), options=options)

    def refused(*_: object, **__: object) -> None:
        raise OnnxqError("no")

    monkeypatch.setattr("onnxq.notes.remedies.make_plan", refused)
    assert remedies(result, options, "stem") == []
