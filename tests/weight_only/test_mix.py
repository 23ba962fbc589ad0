"""Bits under a budget: what each weight does to the outputs, and who gets more of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxq import OptionError, Options, OutputError
from onnxq.cli import main
from onnxq.measuring.metrics import sqnr
from onnxq.prepare import Prepared
from onnxq.weight_only import quantize_weights, segments
from onnxq.weight_only.find import find
from onnxq.weight_only.recipe import Recipe
from onnxq.weight_only.vary import output_noise
from tests.installed import needs
from tests.models import build, normal
from tests.weight_only.layers import run, save

_NARROW = needs("onnxruntime", "1.26")


def _layers() -> onnx.ModelProto:
    """The outputs hang on ``loud`` more than on the rest, whose rounding is as large."""
    return build(
        """(float[N, 64] x, float[P, 64] past) => (float[N, 64] y, float[M, 64] present, float[M, 64] value) {
            [loud] a = MatMul (x, w)
            [soft] b = MatMul (x, v)
            [key] k = MatMul (b, u)
            present = Concat <axis = 0> (past, k)
            value = Concat <axis = 0> (past, b)
            least = Mul (k, tenth)
            both = Add (b, least)
            small = Mul (both, tenth)
            y = Add (a, small)
        }""",
        w=normal(64, 64, seed=1),
        v=normal(64, 64, seed=2),
        u=normal(64, 64, seed=3),
        tenth=np.array([0.1], np.float32),
    )


def _without_caches() -> onnx.ModelProto:
    proto = _layers()
    del proto.graph.output[1:], proto.graph.input[1:]
    nodes = [node for node in proto.graph.node if node.op_type != "Concat"]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def _feeds(samples: int = 8) -> list[dict[str, np.ndarray]]:
    return [
        {"x": normal(16, 64, seed=seed, scale=1.0), "past": normal(2, 64, seed=seed + 50, scale=1.0)}
        for seed in range(samples)
    ]


def _taken(path: Path) -> dict[str, int]:
    """Bits by node."""
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "MatMulNBits"]
    return {node.name: next(a.i for a in node.attribute if a.name == "bits") for node in nodes}


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_noise_of_one_weight_is_that_of_the_model_with_it_changed(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In segments of a layer each and in one; two caches count as one output does."""
    monkeypatch.setattr(segments, "_BYTES", limit)
    proto, feeds = _layers(), _feeds(3)
    model = Prepared(proto, Options()).model
    matrices, _ = find(model, Options(), Recipe())
    found = output_noise(model, matrices, lambda matrix: matrix.value.const_value.numpy() * 1.5, feeds, Options())  # type: ignore[union-attr]
    path = save(proto, tmp_path / "m.onnx")
    for matrix, noise in zip(matrices, found, strict=True):
        other = onnx.ModelProto()
        other.CopyFrom(proto)
        tensor = next(t for t in other.graph.initializer if t.name == matrix.value.name)
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 1.5, tensor.name))
        changed = save(other, tmp_path / "c.onnx")
        total = 0.0
        for name, share in (("y", 1), ("present", 0.5), ("value", 0.5)):
            want, got = (np.stack([run(p, f)[name] for f in feeds]).astype(np.float64) for p in (path, changed))
            total += share * np.square(got - want).sum() / np.square(want).sum()
        assert noise == pytest.approx(total, rel=1e-3)


def test_a_weight_that_is_read_in_a_branch_alone_keeps_its_bits(tmp_path: Path) -> None:
    proto = build(
        """(float[N, 64] x, bool c) => (float[N, 64] y) {
            [outer] a = MatMul (x, w)
            y = If (c) <
                then_branch = t () => (float[N, 64] p) { [inner] p = MatMul (a, v) },
                else_branch = e () => (float[N, 64] q) { q = Identity (a) }>
        }""",
        w=normal(64, 64),
        v=normal(64, 64, seed=1),
    )
    feeds = [{"x": normal(8, 64, seed=seed, scale=1.0), "c": np.array(True)} for seed in range(4)]
    source = save(proto, tmp_path / "m.onnx")
    result = quantize_weights(source, tmp_path / "q.onnx", format="matmulnbits", avg_bits=8, data=feeds)
    assert "1 weight, 1 in 8 bits: 8.00 on average" in result.notes[0]
    assert any(
        a.g.node and a.g.node[0].op_type == "MatMulNBits"
        for n in onnx.load(tmp_path / "q.onnx").graph.node
        for a in n.attribute
    )


@pytest.mark.parametrize(
    ("budget", "widths"), [(16 / 3, [8, 4, 4]), pytest.param(10 / 3, [4, 4, 2], marks=_NARROW), (8, [8, 8, 8])]
)
def test_bits_go_where_the_outputs_need_them(budget: float, widths: list[int], tmp_path: Path) -> None:
    feeds = [{"x": feed["x"]} for feed in _feeds()]
    source, output = save(_without_caches(), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    result = quantize_weights(source, output, format="matmulnbits", avg_bits=budget, data=feeds)
    assert _taken(output) == dict(zip(("loud", "soft", "key"), widths, strict=True))
    assert f"{sum(widths) / 3:.2f} on average, by what each does to the outputs" in result.notes[0]
    assert [line.split(":")[0] for line in result.details[-3:]] == ["loud", "soft", "key"]
    plain = tmp_path / "p.onnx"
    quantize_weights(source, plain, format="matmulnbits", bits=4)
    want, mixed, equal = (np.stack([run(p, f)["y"] for f in feeds]) for p in (source, output, plain))
    assert budget < 4 or sqnr(want, mixed) > sqnr(want, equal) + 8


def test_without_data_those_that_round_worse_get_more(tmp_path: Path) -> None:
    proto = build(
        "(float[N, 64] x) => (float[N, 64] y) { [exact] a = MatMul (x, w) [rounded] y = MatMul (a, v) }",
        w=normal(64, 64, seed=1),
        v=normal(64, 64, seed=3),
    )
    tensor = next(t for t in proto.graph.initializer if t.name == "w")
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.sign(onnx.numpy_helper.to_array(tensor)), "w"))  # 4 bits are exact
    result = quantize_weights(save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx", format="matmulnbits", avg_bits=6)
    assert _taken(tmp_path / "q.onnx")["rounded"] == 8
    assert "by their own rounding error: data would tell more" in result.notes[0]


@pytest.mark.parametrize("data", [True, False])
def test_a_weight_that_holds_infinity_stays_as_it_is_and_the_others_get_bits(data: bool, tmp_path: Path) -> None:
    proto = build(
        """(float[N, 64] x) => (float[N, 64] y) {
            [sound] a = MatMul (x, w)  [broken] b = MatMul (x, v)  c = Clip (b, low, high)  y = Add (a, c)
        }""",
        w=normal(64, 64, seed=1),
        v=np.where(np.arange(64 * 64).reshape(64, 64) == 7, np.float32(np.inf), normal(64, 64, seed=2)),
        low=np.float32(-1),
        high=np.float32(1),
    )
    feeds = [{"x": feed["x"]} for feed in _feeds()] if data else None
    source, output = save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    result = quantize_weights(source, output, format="matmulnbits", avg_bits=8, data=feeds)
    assert _taken(output) == {"sound": 8}
    assert [(k.node, k.reason) for k in result.kept_float] == [("broken", "its weight holds NaN or infinite values")]


@pytest.mark.parametrize("format", ["qdq", "matmulnbits"])
def test_the_choice_that_was_saved_gives_the_same_file(format: str, tmp_path: Path, capsys: Any) -> None:
    source, saved = save(_layers(), tmp_path / "m.onnx"), tmp_path / "new" / "bits.toml"
    for index, feed in enumerate(_feeds()):
        (tmp_path / "d").mkdir(exist_ok=True)
        np.savez(tmp_path / "d" / f"{index}.npz", **feed)  # type: ignore[arg-type]
    command = ["quantize", str(source), "--data", str(tmp_path / "d"), "-o"]
    recipe = f"weight_only:format={format},symmetric=false,block=64,avg_bits=5.4,save={saved}"
    assert main([*command, str(tmp_path / "a.onnx"), "--algorithm", recipe]) == 0
    assert "at most 5.4 bits on average" in capsys.readouterr().out
    assert main([*command, str(tmp_path / "b.onnx"), "--config", str(saved)]) == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_weights_of_an_override_are_not_chosen_for(tmp_path: Path) -> None:
    source, output = save(_layers(), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    override = {"loud": {"weight_bits": 8}}
    quantize_weights(source, output, format="matmulnbits", avg_bits=6, data=_feeds(), override=override)
    assert _taken(output) == {"loud": 8, "soft": 8, "key": 4}


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"avg_bits": 3, "block": 16},
            OptionError,
            "avg_bits: 3 is not from 4 to 8. Blocks of 32, 64, 128 have 2 bits as well",
        ),
        ({"avg_bits": 1, "format": "matmulnbits"}, OptionError, "1 is not from 2 to 8$"),
        ({"save": "bits.toml"}, OptionError, "no choice to write without avg_bits"),
        ({"avg_bits": 5, "save": "m.onnx/bits.toml"}, OutputError, "a file of that name exists"),
        ({"avg_bits": 5, "save": "m.onnx"}, OutputError, "'m.onnx': the choice is written as a configuration file"),
    ],
)
def test_budgets_that_make_no_sense(
    options: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        quantize_weights(save(_layers(), tmp_path / "m.onnx"), tmp_path / "q.onnx", **options)
    assert not (tmp_path / "q.onnx").exists()
