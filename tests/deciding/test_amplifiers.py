"""Which float nodes are said to amplify noise, and which quantized nodes are blamed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options, Quantized
from onnxq.calibration.statistics import KeptSample
from onnxq.deciding import amplifiers
from onnxq.deciding.amplifiers import noise_amplifiers
from onnxq.graph.shapes import sizes_at
from onnxq.measuring import paired
from onnxq.measuring.metrics import Errors
from onnxq.measuring.paired import Pair
from onnxq.ort.session import Session
from tests.models import build, f32, feeds_for, normal, renamed, verified_sqnr

ALL = Options(placement="all", bias_correction=False)


def suspects(model: onnx.ModelProto, options: Options = ALL, **more: Any) -> tuple[Quantized, dict[str, str]]:
    """A model quantized everywhere, and what is found in it."""
    feeds = [{**feed, **more} for feed in feeds_for(model)]
    q = onnxq.quantize(model, feeds, options=options)
    samples = [KeptSample(i, feed, {}) for i, feed in enumerate(feeds)]
    return q, noise_amplifiers(q.model, q, samples, Options())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Names of the float tensors that are compared, for each time that some are."""
    pairs = paired.paired_tensors
    asked: list[set[str]] = []

    def counted(first: ir.Model, second: ir.Model, wanted: Sequence[Pair], *args: Any, **how: Any) -> Any:
        asked.append({name for name, _ in wanted})
        return pairs(first, second, wanted, *args, **how)

    monkeypatch.setattr(amplifiers, "paired_tensors", counted)
    return asked


def log_power(last: str = "y = Log (p)") -> onnx.ModelProto:
    """Powers over ten decades: eight bits hold the largest only."""
    return build(
        f"""(float[8, 16] x) => (float[8, 32] y) {{
            [filter] a = MatMul (x, w)
            [square] s = Mul (a, a)
            p = Max (s, low)
            {last}
        }}""",
        w=(normal(16, 32) * np.geomspace(1, 1e-5, 32)).astype(np.float32),
        low=f32(1e-20),
        e=f32(-0.5),
    )


def test_what_stands_before_a_logarithm_is_named() -> None:
    _, found = suspects(log_power())
    assert set(found) == {"filter", "square"}
    assert all("Log" in reason and "dB" in reason for reason in found.values())


def test_the_same_in_functions() -> None:
    _, found = suspects(log_power(), Options(placement="all", format="fake-quantize"))
    assert set(found) == {"filter", "square"}


def test_a_function_that_is_written_with_others_is_named() -> None:
    """onnxruntime has a slow kernel of it; the last of the nodes in its place has its name."""
    q, found = suspects(log_power("[last] y = Pow (p, e)"))
    (last,) = (node for node in q.rendered().graph if node.name == "last")
    assert last.op_type != "Pow" and set(found) == {"filter", "square"}


def test_a_harmless_function_is_not_named() -> None:
    assert not suspects(log_power("y = Sqrt (p)"))[1]


def test_names_that_a_rendering_would_choose_do_not_mislead() -> None:
    model = renamed(log_power(), {"a": "s_dequantized", "s": "s", "p": "p_quantized"})
    assert set(suspects(model)[1]) == {"filter", "square"}


def angles(most: float) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray[Any, Any]]]]:
    """An embedding of time steps, as diffusion models and positions have it."""
    model = build(
        """(float[1, 1] t, float[1, 8] x) => (float[1, 16] y) {
            [turns] a = Mul (t, frequencies)
            [sine] s = Sin (a)
            [cosine] c = Cos (a)
            b = Concat <axis = 1> (s, c, x)
            [layer] y = MatMul (b, w)
        }""",
        frequencies=np.geomspace(1, 1e-3, 8, dtype=np.float32).reshape(1, 8),
        w=normal(24, 16),
    )
    rng = np.random.default_rng(0)
    steps = rng.uniform(0, most, (32, 1, 1)).astype(np.float32)
    return model, [{"t": t, "x": rng.standard_normal((1, 8)).astype(np.float32)} for t in steps]


@pytest.mark.parametrize("backend", ["onnx_qnn", "rknn", "tvm"])
def test_a_sine_of_many_turns_has_exact_angles_where_floats_may_be_among_integers(backend: str) -> None:
    model, feeds = angles(1000.0)
    q = onnxq.quantize(model, feeds, backend=backend)
    assert verified_sqnr(q) > 30
    assert set(q.plan.quantized) == {"Concat", "layer"}
    (reason,) = [kept.reason for kept in q.plan.kept_float if kept.node == "turns"]
    assert reason.startswith("Sin 'sine' after it amplifies")


@pytest.mark.parametrize(("most", "said"), [(1000.0, True), (6.0, False)])
def test_a_sine_of_many_turns_is_warned_of_where_not(most: float, said: bool) -> None:
    model, feeds = angles(most)
    q = onnxq.quantize(model, feeds, backend="qnn", options=Options(act_bits=8))
    assert q.verification is not None
    warnings = [text for text in q.verification.warnings if "angles" in text]
    assert bool(warnings) == said
    if said:
        assert all(repr(name) in warnings[0] for name in ("turns", "sine", "cosine"))
        without = Options(act_bits=8, exclude=("turns", "sine", "cosine"))
        better = onnxq.quantize(model, feeds, backend="qnn", options=without)
        assert verified_sqnr(better) > verified_sqnr(q) + 20


@pytest.mark.parametrize("flag", [True, False])
def test_nodes_inside_a_branch_are_seen_from_behind_it(flag: bool) -> None:
    model = build(
        """(float[8, 16] x, bool c) => (float[8, 32] y) {
            p = If (c) <
                then_branch = yes () => (float[8, 32] t) { [inside] a = MatMul (x, w)
                    [square] s = Mul (a, a)
                    t = Max (s, low) },
                else_branch = no () => (float[8, 32] e) { e = Exp (z) }
            >
            y = Log (p)
        }""",
        w=(normal(16, 32) * np.geomspace(1, 1e-5, 32)).astype(np.float32),
        low=f32(1e-20),
        z=normal(8, 32),
    )
    assert ({"inside", "square"} <= set(suspects(model, c=np.array(flag))[1])) == flag


def test_nothing_is_rendered_without_suspects(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("(float[8, 16] x) => (float[8, 32] y) { y = MatMul (x, w) }", w=normal(16, 32))
    q = onnxq.quantize(model, feeds_for(model), options=ALL)

    def render(quantized: onnxq.Quantized) -> Any:
        raise AssertionError("rendered")

    monkeypatch.setattr(onnxq.Quantized, "rendered", render)
    assert not noise_amplifiers(q.model, q, [KeptSample(0, feeds_for(model)[0], {})], Options())


@pytest.mark.parametrize(
    ("last", "looked"),
    [
        ("y = Div (a, two)", False),
        ("y = Sub (a, two)", False),
        ("y = Div (two, a)", True),
        ("y = Sub (a, many)", True),
        ("y = Div (a, next_to_nothing)", True),
        ("y = Div (a, a)", True),
    ],
)
def test_one_factor_for_all_numbers_leaves_noise_as_it_is(last: str, looked: bool, asked: list[set[str]]) -> None:
    model = build(
        f"(float[8, 16] x) => (float[8, 32] y) {{ m = MatMul (x, w) a = Mul (m, m) {last} }}",
        w=normal(16, 32),
        two=f32([2.0]),
        many=normal(32),
        next_to_nothing=f32(1e-7),
    )
    q = onnxq.quantize(model, feeds_for(model), options=ALL)
    assert {"Div", "Sub"} & {node.op_type for node in q.model.graph}
    assert ({"y"} in asked) == looked


def norms(count: int) -> onnx.ModelProto:
    """A chain of matrix products with a division by a norm behind each."""
    text, last = "", "x"
    constants: dict[str, Any] = {}
    for i in range(count):
        constants[f"w{i}"] = normal(16, 16, seed=i)
        text += f"""
            [mm{i}] a{i} = MatMul ({last}, w{i})
            s{i} = Mul (a{i}, a{i})
            m{i} = ReduceMean <axes = [-1]> (s{i})
            r{i} = Sqrt (m{i})
            d{i} = Div (a{i}, r{i})"""
        last = f"d{i}"
    return build(f"(float[8, 16] x) => (float[8, 16] {last}) {{ {text} }}", **constants)


def test_memory_is_bounded_and_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = norms(6)
    feeds = feeds_for(model)
    q = onnxq.quantize(model, feeds, options=ALL)
    samples = [KeptSample(i, feed, {}) for i, feed in enumerate(feeds)]
    sizes = sizes_at(q.model, {"x": (8, 16)})
    measured, run = amplifiers._errors, Session.run
    told: list[dict[Pair, Errors]] = []
    held: list[int] = []

    def errors(*args: Any) -> dict[Pair, Errors]:
        told.append(measured(*args))
        return told[-1]

    def watched(self: Session, *args: Any) -> dict[str, Any]:
        got = run(self, *args)
        held.append(sum(array.nbytes for array in got.values()))
        return got

    monkeypatch.setattr(amplifiers, "_errors", errors)
    monkeypatch.setattr(Session, "run", watched)
    noise_amplifiers(q.model, q, samples, Options(), sizes)
    assert max(held) > 2000
    held.clear()
    monkeypatch.setattr(paired, "_BUDGET", 2000)
    monkeypatch.setattr(paired, "serialized_size", lambda model: 0)  # as many bytes as the weights take are allowed
    noise_amplifiers(q.model, q, samples, Options(), sizes)
    assert max(held) <= 2000
    once, grouped = ({pair: errors.sqnr_centred for pair, errors in found.items()} for found in told)
    assert grouped == pytest.approx(once, abs=0.5) and len(once) == 12


def test_what_is_read_is_looked_at_only_where_the_signal_behind_is_lost(asked: list[set[str]]) -> None:
    assert set(suspects(log_power())[1]) == {"filter", "square"}
    assert asked[-2:] == [{"y"}, {"p"}]
    asked.clear()
    assert not suspects(log_power("y = Sqrt (p)"))[1]
    assert asked[-1] == {"y"} and {"p"} not in asked


def test_each_node_is_looked_at_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = norms(40)
    feeds = feeds_for(model)
    q = onnxq.quantize(model, feeds, options=ALL)
    producers, looked = amplifiers._producers, []

    def counted(node: ir.Node) -> Iterator[ir.Node]:
        looked.append(node.name)
        return producers(node)

    def lost_behind_roots(_: Any, __: Any, found: Sequence[Pair], *___: Any) -> dict[Pair, Errors]:
        return {pair: Errors(sqnr_centred=0.0 if pair[0].startswith("r") else 40.0) for pair in found}

    monkeypatch.setattr(amplifiers, "_producers", counted)
    monkeypatch.setattr(amplifiers, "_errors", lost_behind_roots)
    blamed = noise_amplifiers(q.model, q, [KeptSample(0, feeds[0], {})], Options())
    assert {f"mm{i}" for i in range(40)} <= set(blamed)
    assert all("after it" in why for why in blamed.values()) and "Sqrt" in blamed["mm0"]
    assert len(looked) <= 3 * len(q.model.graph)


def test_data_may_be_sorted() -> None:
    """The first half of the samples is silent: nothing is lost behind the logarithm there."""
    model = log_power()
    q, _ = suspects(model)
    feeds = [{"x": np.zeros((8, 16), np.float32)} if k < 4 else feed for k, feed in enumerate(feeds_for(model, 8))]
    samples = [KeptSample(i, feed, {}) for i, feed in enumerate(feeds)]
    assert set(noise_amplifiers(q.model, q, samples, Options())) == {"filter", "square"}


def test_runs_are_told_as_they_are_done() -> None:
    model = norms(2)
    q = onnxq.quantize(model, feeds_for(model), options=ALL)
    samples = [KeptSample(i, feed, {}) for i, feed in enumerate(feeds_for(model))]
    told: list[int] = []
    noise_amplifiers(q.model, q, samples, Options(), advance=told.append)
    assert told and told == list(range(1, len(told) + 1))
