"""Mixed precision: the solver against brute force, budgets kept, better than equal bits, configuration files."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxq
from onnxq import OptionError, Options, OutputError
from onnxq.algorithm_choice import chosen
from onnxq.algorithms.bits.allocate import allocate
from onnxq.algorithms.bits.bit_choice import Item, Problem
from onnxq.algorithms.bits.budget import FLOAT, parse_budget, parse_widths
from onnxq.measuring.probe import Part, Setting
from onnxq.options.config import to_toml
from tests.models import build, images, normal, selecting, verified_sqnr
from tests.running import optimized

SIZES = (8, 32, 64, 32, 16, 8)


def net() -> onnx.ModelProto:
    """Five convolutions of different size; the second holds outliers."""
    weights: dict[str, Any] = {}
    lines, last = [], "x"
    for k, (inputs, outputs) in enumerate(itertools.pairwise(SIZES)):
        weights[f"w{k}"] = normal(outputs, inputs, 1, 1, seed=k)
        weights[f"b{k}"] = normal(outputs, seed=50 + k, scale=0.1)
        end = "y" if k == len(SIZES) - 2 else f"c{k}"
        lines.append(f"{end} = Conv ({last}, w{k}, b{k})")
        last = end
        if end != "y":
            lines.append(f"r{k} = Relu ({end})")
            last = f"r{k}"
    weights["w1"][:, 0] *= 15.0
    body = "\n".join(lines)
    made = build(f"(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) {{ {body} }}", **weights)
    for node in made.graph.node:
        node.name = f"n_{node.output[0]}"
    return made


def quantized(budget: str, **options: Any) -> onnxq.Quantized:
    asked = Options(placement="all", algorithms=(f"mixed_precision:{budget}",), keep=16, **options)
    return onnxq.quantize(net(), images(1, 8, 6, 6, samples=32), options=asked)


def weights(q: onnxq.Quantized) -> dict[str, int]:
    return {site.tensor: site.spec.bits for site in q.plan.sites if site.role == "weight"}


COUNTS = {f"w{k}": a * b for k, (a, b) in enumerate(itertools.pairwise(SIZES))}


def average(bits: dict[str, int]) -> float:
    return sum(COUNTS[name] * bits[name] for name in COUNTS) / sum(COUNTS.values())


@pytest.mark.parametrize("seed", range(60))
def test_the_solver_finds_what_trying_everything_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 7))
    if seed % 2:
        bits = np.array([3, 4, 5, 6, 8])
        costs = [(int(rng.integers(1, 50)) * bits).tolist() for _ in range(count)]
        losses = [(rng.lognormal(0, 2) * 4.0**-bits * rng.lognormal(0, 0.5, 5)).tolist() for _ in range(count)]
    else:
        costs = [rng.random(4).tolist() for _ in range(count)]
        losses = [rng.random(4).tolist() for _ in range(count)]
    low, high = sum(map(min, costs)), sum(map(max, costs))
    budget = low + (high - low) * float(rng.random())
    everything = itertools.product(*(range(len(c)) for c in costs))
    fitting = [c for c in everything if sum(costs[i][k] for i, k in enumerate(c)) <= budget]
    least = min(sum(losses[i][k] for i, k in enumerate(c)) for c in fitting)
    found = allocate(costs, losses, budget)
    assert found is not None
    assert found.cost <= budget * (1 + 1e-9)
    assert found.loss == pytest.approx(least, rel=1e-12)
    assert found.loss == pytest.approx(sum(losses[i][k] for i, k in enumerate(found.chosen)), rel=1e-12)


def test_the_solver_proves_its_answer_for_hundreds_of_layers() -> None:
    rng = np.random.default_rng(1)
    bits = np.arange(3, 9)
    costs = [(int(np.exp(rng.uniform(5, 14))) * bits).tolist() for _ in range(300)]
    losses = [(rng.lognormal(0, 2) * 4.0**-bits).tolist() for _ in range(300)]
    budget = 0.7 * sum(c[-1] for c in costs)
    found = allocate(costs, losses, budget)
    assert found is not None
    assert found.gap == 0.0
    assert found.cost <= budget * (1 + 1e-9)


def test_the_solver_says_where_nothing_fits_and_takes_no_broken_option() -> None:
    assert allocate([[2.0, 3.0]], [[1.0, 0.0]], 1.0) is None
    assert allocate([[2.0, 3.0]], [[math.inf, math.nan]], 5.0) is None
    found = allocate([[2.0, 3.0]], [[math.inf, 1.0]], 5.0)
    assert found is not None and found.chosen == (1,)


def test_average_bits_are_kept_and_beat_equal_bits() -> None:
    mixed = quantized("avg_bits=5", format="fake-quantize")
    equal = onnxq.quantize(
        net(),
        images(1, 8, 6, 6, samples=32),
        options=Options(placement="all", weight_bits=5, keep=16, format="fake-quantize"),
    )
    bits = weights(mixed)
    assert average(bits) <= 5.0
    assert len(set(bits.values())) > 1
    assert verified_sqnr(mixed) > verified_sqnr(equal) + 1.0
    assert any("mixed_precision: avg_bits:5" in note for note in mixed.notes)
    assert any(note.startswith("bias_correction") for note in mixed.notes), "what the effort does is still done"


def test_integers_are_of_widths_that_make_the_file_smaller(tmp_path: Path) -> None:
    """ONNX has no integers between 4 and 8 bits: 6 bits err more than 8, in a file no smaller."""
    mixed, equal = quantized("avg_bits=6"), quantized("avg_bits=8")
    assert set(weights(mixed).values()) == {4, 8} and average(weights(mixed)) <= 6.0
    assert set(weights(equal).values()) == {8}
    mixed.save(tmp_path / "mixed.onnx")
    equal.save(tmp_path / "equal.onnx")
    assert (tmp_path / "mixed.onnx").stat().st_size < (tmp_path / "equal.onnx").stat().st_size
    assert not [text for text in said(mixed) if "mixed_precision" in text]


def said(q: onnxq.Quantized) -> list[str]:
    return list(q.report()["verification"]["warnings"])


def test_widths_asked_for_that_save_nothing_are_said() -> None:
    (text,) = (text for text in said(quantized("avg_bits=6,bits=6")) if "mixed_precision" in text)
    assert text.startswith(
        "mixed_precision: 5 of 5 layers have widths that save nothing here (5 of 6 bits stored in 8)"
    )
    assert "8 bits are no larger" in text
    fake = quantized("avg_bits=6,bits=6", format="fake-quantize")
    assert set(weights(fake).values()) == {6} and not [t for t in said(fake) if "mixed_precision" in t]


def test_a_target_is_given_no_width_that_it_has_not() -> None:
    def on_tensorrt(budget: str) -> onnxq.Quantized:
        asked = Options(algorithms=(f"mixed_precision:{budget}",), keep=16)
        return onnxq.quantize(net(), images(1, 8, 6, 6, samples=32), backend="tensorrt", options=asked)

    with pytest.raises(OptionError, match=r"tensorrt has no weights of 4 bits\. It has those of 8 bits"):
        on_tensorrt("avg_bits=6,bits=4/8")
    with pytest.raises(OptionError, match=r"costs 1\.33 times what the budget allows.*no weights of fewer than 8 bits"):
        on_tensorrt("avg_bits=6")
    assert set(weights(on_tensorrt("avg_bits=8")).values()) == {8}


def test_the_better_of_a_mixture_and_equal_bits_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = iter([10.0, 12.0])
    monkeypatch.setattr(Problem, "level", lambda *_: next(levels))
    equal = quantized("avg_bits=5", format="fake-quantize")
    assert set(weights(equal).values()) == {5}
    assert any("12.0 dB on samples held back, better than the best mixture with 10.0 dB" in n for n in equal.notes)


def test_a_share_of_the_size_is_that_of_the_integers_stored(tmp_path: Path) -> None:
    q = quantized("budget=size:0.7")
    bits = weights(q)
    assert set(bits.values()) <= {4, 8}
    assert average(bits) <= 0.7 * 8
    q.save(tmp_path / "q.onnx")
    types = [t.data_type for t in onnx.load(tmp_path / "q.onnx").graph.initializer]
    assert types.count(onnx.TensorProto.UINT4) >= sum(b == 4 for b in bits.values()) > 0


def test_a_level_is_reached_with_less_than_most_bits() -> None:
    q = quantized("sqnr=20,bits=3-8")
    assert verified_sqnr(q) > 19.0
    assert average(weights(q)) < 8.0
    with pytest.raises(OptionError, match="cannot be reached"):
        quantized("sqnr=90,bits=4-8")


def test_first_and_last_layers_keep_their_bits() -> None:
    bits = weights(quantized("avg_bits=4,first_last=8", format="fake-quantize"))
    assert bits["w0"] == bits["w4"] == 8
    assert average(bits) <= 4.0


def test_activations_are_chosen_for_where_that_is_asked() -> None:
    q = quantized("budget=macs_bits:1.2,bits=4/8,act_bits=8/16")
    macs = weight_bits = 0.0
    data = {s.tensor: s.spec.bits for s in q.plan.sites if s.role == "activation"}
    reads = {"w0": "x", **{f"w{k}": f"r{k - 1}" for k in range(1, 5)}}
    for name, bits in weights(q).items():
        macs += COUNTS[name] * bits * data[reads[name]]
        weight_bits += COUNTS[name] * 64
    assert macs <= 1.2 * weight_bits
    assert 16 in data.values()


def test_layers_may_stay_float_under_a_budget_of_time() -> None:
    q = quantized("budget=latency:1.0")
    assert set(weights(q).values()) == {8}, "no room for a float layer"
    q = quantized("budget=latency:50")
    assert not weights(q)
    assert {k.reason for k in q.plan.kept_float if k.op == "Conv"} == {f"excluded by '{n}'" for n in names()}


@pytest.mark.parametrize("backend", ["tensorrt", "snpe", "onnx_qnn"])
def test_a_budget_of_time_needs_a_table_of_costs(backend: str) -> None:
    with pytest.raises(OptionError, match=rf"{backend} does not have a table of costs.*not known.*macs_bits:1.2"):
        options = Options(algorithms=("mixed_precision:budget=latency:1.2",))
        onnxq.quantize(net(), images(1, 8, 6, 6, samples=8), backend=backend, options=options)


def names() -> list[str]:
    return [f"n_{'y' if k == 4 else f'c{k}'}" for k in range(5)]


def test_the_choice_can_be_saved_edited_and_used_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bits.toml"
    first = quantized(f"avg_bits=5,save={path}")
    again = Options.from_toml(path)
    assert not again.algorithms
    second = onnxq.quantize(net(), images(1, 8, 6, 6, samples=32), options=again)
    assert weights(second) == weights(first)
    assert second.qparams == first.qparams
    path.write_text(re.sub(r"weight_bits = \d+", "weight_bits = 7", path.read_text()))
    edited = onnxq.quantize(net(), images(1, 8, 6, 6, samples=32), options=Options.from_toml(path))
    assert set(weights(edited).values()) == {7}


def test_options_survive_a_file(tmp_path: Path) -> None:
    odd = 'a"b\\c\tü'
    given = Options(
        act_bits=16,
        symmetric=False,
        exclude=(odd, "x"),
        override=((odd, {"weight_bits": 4, "symmetric": False}), ("y", {"float": True}), (odd, {"act_bits": 8})),
    )
    (tmp_path / "o.toml").write_text(to_toml(given, "a comment"), encoding="utf-8")
    read = Options.from_toml(tmp_path / "o.toml")
    assert (read.act_bits, read.symmetric, read.exclude) == (16, False, (odd, "x"))
    changes = dict(read.override)
    assert changes[odd] == onnxq.Override(weight_bits=4, act_bits=8, symmetric=False)
    assert changes["y"].float


@pytest.mark.parametrize("bits", [3, 4])
def test_few_bits_are_honoured_where_only_weights_are_stored(bits: int, tmp_path: Path) -> None:
    """A ConvTranspose runs float on onnxruntime; its weights are stored in the bits asked for, not left float."""
    model = build(
        "(float[1, 16, 4, 4] x) => (float[1, 16, 5, 5] y) { y = ConvTranspose (x, w) }", w=normal(16, 16, 2, 2)
    )
    q = onnxq.quantize(model, images(1, 16, 4, 4), options=Options(weight_bits=bits))
    assert list(q.plan.stored.values()) == ["ConvTranspose"]
    assert weights(q) == {"w": bits}
    q.save(tmp_path / "q.onnx")
    stored = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if t.data_type == onnx.TensorProto.INT4]
    assert len(stored) == 1
    read = onnxq.read(tmp_path / "q.onnx")
    assert [(s.role, s.spec.bits) for s in read.plan.sites] == [("weight", bits)]


def test_layers_of_4_bits_run_in_integers_on_onnxruntime(tmp_path: Path) -> None:
    q = onnxq.quantize(net(), images(1, 8, 6, 6), options=Options(placement="all", weight_bits=4))
    q.save(tmp_path / "q.onnx")
    kinds = [node.op_type for node in optimized(tmp_path / "q.onnx", tmp_path).graph.node]
    assert kinds.count("QLinearConv") == len(SIZES) - 1
    assert "DequantizeLinear" not in kinds[:-1]
    assert {s.tensor: s.spec.bits for s in onnxq.read(tmp_path / "q.onnx").plan.sites if s.role == "weight"} == {
        f"w{k}": 4 for k in range(len(SIZES) - 1)
    }


def test_widths_and_budgets_are_read() -> None:
    assert parse_widths("3-5/8") == (3, 4, 5, 8)
    assert parse_widths("8/float/4") == (4, 8, FLOAT)
    assert str(parse_budget("size=0.5")) == "size:0.5"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "avg_bits=6,sqnr=30",
        "budget=weight:3",
        "budget=size:x",
        "budget=size:-1",
        "avg_bits=6,bits=1-4",
        "avg_bits=6,bits=x",
        "avg_bits=6,act_bits=float",
        "avg_bits=6,first_last=1",
        "avg_bits=6,runs=0",
    ],
)
def test_what_makes_no_sense_is_refused_before_any_work(text: str) -> None:
    with pytest.raises(OptionError):
        chosen([f"mixed_precision:{text}"])


def test_a_file_nowhere_and_an_impossible_budget_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="a file of that name exists"):
        chosen([f"mixed_precision:avg_bits=6,save={tmp_path}/file/bits.toml"])
    with pytest.raises(OutputError, match=r"'samples\.npz': the choice is written as a configuration file.*\.toml"):
        chosen(["mixed_precision:avg_bits=6,save=samples.npz"])
    with pytest.raises(OptionError, match="times what the budget allows"):
        quantized("avg_bits=2")
    with pytest.raises(OptionError, match="opset 17"):
        quantized("avg_bits=6", opset=17)


@pytest.mark.parametrize("budget", [0.9, 1.1])
def test_nodes_named_like_their_tensors_get_what_was_chosen(budget: float, tmp_path: Path) -> None:
    """As exporters of PaddlePaddle and Caffe name them; the choice is that of the same model with other names."""
    data, found, path = images(1, 8, 6, 6, samples=32), [], tmp_path / "c.toml"
    for prefix in ("n_", ""):
        model = net()
        for node in model.graph.node:
            node.name = prefix + node.output[0]
        text = f"mixed_precision:budget=macs_bits:{budget},bits=4,act_bits=8/16,save={path}"
        q = onnxq.quantize(model, data, options=Options(placement="all", algorithms=(text,), keep=16))
        found.append({(site.tensor, site.role): site.spec.bits for site in q.plan.sites})
        again = onnxq.quantize(model, data, options=Options.from_toml(path))
        assert {(site.tensor, site.role): site.spec.bits for site in again.plan.sites} == found[-1]
    assert found[0] == found[1]
    assert 4 in found[0].values() and {8, 16} <= {bits for (_, role), bits in found[0].items() if role == "activation"}


def test_a_node_named_like_an_input_of_others_alone_stays_float() -> None:
    model = net()
    for node in model.graph.node:
        node.name = node.output[0]
    options = Options(placement="all", algorithms=("mixed_precision:avg_bits=14,bits=4/float",), keep=16)
    q = onnxq.quantize(model, images(1, 8, 6, 6, samples=32), options=options)
    (note,) = (note for note in q.notes if note.startswith("mixed_precision"))
    floats = int(re.search(r"(\d+) in float", note)[1])  # type: ignore[index]
    assert 0 < floats < 5 and len(weights(q)) == 5 - floats


def test_widths_that_an_operator_has_not_are_not_chosen_for_it() -> None:
    """Products of QNN's table have no weights of 4 bits; its convolutions have."""
    model = build(
        """(float[1, 8, 6, 6] x) => (float[1, 8, 6, 5] y) {
            a = Conv (x, w)
            b = Relu (a)
            y = MatMul (b, v)
        }""",
        w=normal(8, 8, 1, 1),
        v=normal(6, 5),
    )
    options = Options(placement="all", algorithms=("mixed_precision:avg_bits=7,bits=4/8",), keep=16)
    q = onnxq.quantize(model, images(1, 8, 6, 6, samples=32), backend="qnn", options=options)
    assert weights(q) == {"w": 4, "v": 8} and any("1 in 4 bits, 1 in 8 bits" in note for note in q.notes)


def test_data_may_be_sorted() -> None:
    """One branch is loud in the first half of the data, the other one in the second."""
    weights_of: dict[str, Any] = {f"{branch}{k}": normal(8, 8, 3, 3, seed=k) for branch in "uv" for k in range(3)}
    lines = [f"{b}{k + 1}{b} = Conv <pads = [1, 1, 1, 1]> ({b}{k}{b}, {b}{k})" for b in "uv" for k in range(3)]
    model = build(
        "(float[1, 16, 6, 6] x) => (float[1, 8, 6, 6] y) { u0u, v0v = Split <axis = 1> (x, halves) "
        + " ".join(lines)
        + " y = Add (u3u, v3v) }",
        halves=np.array([8, 8]),
        **weights_of,
    )
    data = images(1, 16, 6, 6, samples=64)
    for k, feed in enumerate(data):
        feed["x"][:, slice(0, 8) if k >= 32 else slice(8, 16)] *= 0.01
    options = Options(placement="all", algorithms=("mixed_precision:sqnr=27,bits=4/8",))
    q = onnxq.quantize(model, data, options=options)
    few = {name[0] for name, bits in weights(q).items() if bits == 4}
    assert few in (set(), {"u", "v"}), "the branches are alike"


def test_rows_that_depend_on_the_numbers_are_no_silence() -> None:
    options = Options(placement="all", algorithms=("mixed_precision:sqnr=30,bits=2/4/8",))
    with pytest.raises(OptionError, match=r"30 dB cannot be reached.*'y' had another shape.*up to what selects"):
        onnxq.quantize(selecting(2000), images(2000, 8, samples=32), options=options)
    options = Options(placement="all", algorithms=("mixed_precision:avg_bits=6,bits=4/8",))
    made = onnxq.quantize(selecting(2000), images(2000, 8, samples=32), options=options)
    assert made.verification is not None
    assert any(w.startswith("mixed_precision: output 'y' had another shape") for w in made.verification.warnings)


class _Noisier:
    """Measures more noise than the sum of that of the layers."""

    reshaped = ()

    def __init__(self, losses: dict[int, float], more: float) -> None:
        self._losses, self._more = losses, more

    def noise(self, settings: list[Setting]) -> dict[str, float]:
        return {"y": self._more * math.fsum(self._losses[s.bits] for s in settings)}


@pytest.mark.parametrize("miss", [1.0001, 1.01, 1.2, 3.0])
@pytest.mark.parametrize("count", [3, 12, 60])
def test_a_level_that_is_missed_by_a_hair_is_reached_with_a_little_more(count: int, miss: float) -> None:
    """The first choice has noise to spare as it is foreseen, and a little too much of it as it is measured."""
    losses = {4: 1.0, 8: 1.0 / 256, 16: 1.0 / 256**3}
    parts = [Part("weights", (f"n{k}",), ("Conv",), (f"w{k}",), (f"w{k}",), 10) for k in range(count)]
    items = [
        Item(tuple((Setting(p, b),) for b in losses), tuple(10.0 * b for b in losses), tuple(losses.values()))
        for p in parts
    ]

    def foreseen(narrow: int) -> float:
        return narrow * losses[4] + (count - narrow) * losses[8]

    first = count * 2 // 3
    wanted = foreseen(first) + 0.5
    more = wanted * miss / foreseen(first)
    problem = Problem(_Noisier(losses, more), items)  # type: ignore[arg-type]
    found = problem.reaching(-10 * math.log10(wanted))
    assert problem.noise(found.settings) <= wanted
    bits = [s.bits for s in found.layers]
    fitting = max(k for k in range(first + 1) if more * foreseen(k) <= wanted)
    assert fitting - max(1, count // 8) <= bits.count(4) <= fitting
    assert 16 not in bits, "the widest of all layers is the last resort"
