"""`onnxq finetune`: training on the ONNX graph, by distillation from the float model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.console.progress import Silent
from onnxq.errors import DataError, ModelError, OptionError, OutputError
from tests.contract import infer, sqnr
from tests.models import build, feeds_for, normal, untouched
from tests.targets import classifier, residual

torch = pytest.importorskip("torch")

FEEDS = feeds_for(residual(), samples=32)
W3A4 = Options(placement="all", weight_bits=3, act_bits=4, weight_symmetric=True, format="fake-quantize")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def quantized() -> onnxq.Quantized:
    return onnxq.quantize(residual(), FEEDS, options=W3A4)


@pytest.mark.parametrize("bits", [2, 3])
def test_weights_with_zero_points_become_better_too(bits: int, tmp_path: Path) -> None:
    """Those stay as they are; scales and weights are trained. What a loss of the user's own gives is kept."""

    def distance(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> Any:
        return ((got["y"] - wanted["y"]) ** 2).mean() / (wanted["y"] ** 2).mean()

    quantized = onnxq.quantize(residual(), FEEDS, options=Options(placement="all", weight_bits=bits, min_sqnr=0))
    moved = {name: qp for name, qp in quantized.qparams.items() if qp.spec.bits == bits}
    assert moved and not any(qp.spec.symmetric for qp in moved.values())
    trained = onnxq.finetune(
        quantized, FEEDS, teacher=residual(), steps=60, vary=0, loss=distance, output=tmp_path / "t.onnx"
    )
    quantized.save(tmp_path / "q.onnx")
    new = feeds_for(residual(), samples=8, seed=77)
    exact = infer(residual(), new, optimize=False)["y"]
    before, after = (
        sqnr(exact, infer(onnx.load(tmp_path / f), new, optimize=False)["y"]) for f in ("q.onnx", "t.onnx")
    )
    assert after > before + 0.7, f"{before:.1f} dB before, {after:.1f} dB after"
    for name, qp in moved.items():
        assert np.array_equal(trained.qparams[name].zero_point, qp.zero_point)


def test_few_bits_become_better_on_unseen_samples(quantized: onnxq.Quantized, tmp_path: Path) -> None:
    trained = onnxq.finetune(quantized, FEEDS, teacher=residual(), steps=60, output=tmp_path / "t.onnx")
    new = feeds_for(residual(), samples=8, seed=77)
    quantized.save(tmp_path / "q.onnx")
    exact = infer(residual(), new, optimize=False)["y"]
    before, after = (
        sqnr(exact, infer(onnx.load(tmp_path / f), new, optimize=False)["y"]) for f in ("q.onnx", "t.onnx")
    )
    assert after > before + 1.0, f"{before:.1f} dB before, {after:.1f} dB after"
    assert trained.notes[-1].startswith("finetune: 60 steps")
    onnx.checker.check_model(onnx.load(tmp_path / "t.onnx"), full_check=True)


def test_what_is_told_is_of_all_samples_that_judge(quantized: onnxq.Quantized) -> None:
    """They may be sorted: the first few are no better than their place."""
    feeds = feeds_for(residual(), samples=96, seed=5)
    trained = onnxq.finetune(quantized, feeds, teacher=residual(), steps=2)
    assert trained.verification is not None and trained.verification.samples == 96 // 8


def test_the_worst_sample_is_named_by_its_place_in_the_data(quantized: onnxq.Quantized) -> None:
    feeds = feeds_for(residual(), samples=96, seed=5)
    feeds[0] = {"x": np.full_like(feeds[0]["x"], np.nan)}  # is left out, and counted all the same
    trained = onnxq.finetune(quantized, feeds, teacher=residual(), steps=2)
    assert trained.verification is not None and trained.verification.worst is not None
    name, errors = trained.verification.worst
    assert errors.worst_sample is not None
    alone = onnxq.compare(residual(), trained, feeds[errors.worst_sample : errors.worst_sample + 1]).outputs[name]
    assert alone.sqnr == pytest.approx(errors.worst, abs=0.01)


def test_torch_and_onnxruntime_compute_the_same(quantized: onnxq.Quantized) -> None:
    from onnxq.torch.student import Student

    student = Student(quantized)
    with torch.no_grad():
        got = [student.run({"x": torch.from_numpy(f["x"])})["y"].numpy() for f in FEEDS]

    want = infer(ir.to_proto(quantized.rendered()), FEEDS, optimize=False)["y"]
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_the_same_seed_gives_the_same_numbers(quantized: onnxq.Quantized) -> None:
    first, second = (onnxq.finetune(quantized, FEEDS[:8], teacher=residual(), steps=5, seed=3) for _ in range(2))
    assert first.qparams == second.qparams


def test_features_of_a_file_without_its_relus_are_what_is_read(tmp_path: Path) -> None:
    """A quantizer stands for the Relu in front of it, whose output it is that the float model shows."""
    from onnxq.finetuning.teacher import features_of
    from onnxq.torch.executor import Executor
    from onnxq.torch.student import Student

    onnxq.quantize(residual(), FEEDS, options=Options(placement="all"), output=tmp_path / "q.onnx")
    given, reference = onnxq.read(tmp_path / "q.onnx"), ir.from_proto(residual())
    names = features_of(given, reference)
    assert "Relu" not in {node.op_type for node in given.model.graph}
    made = {value.name: node.op_type for node in reference.graph for value in node.outputs}
    assert "Relu" in {made[name] for name in names}
    student, teacher = Student(given, names), Executor(reference, outputs=names)
    fed = {"x": torch.from_numpy(FEEDS[0]["x"])}
    with torch.no_grad():
        got, want = student.run(fed), teacher.run(fed)
    for name in names:
        assert sqnr([want[name].numpy()], [got[name].numpy()]) > 25, name


def test_features_are_not_tensors_that_an_algorithm_rescaled(tmp_path: Path) -> None:
    """The float model's of the same name hold other numbers, which would teach what is wrong."""
    from onnxq.finetuning.teacher import features_of

    factors = np.geomspace(1, 1000, 16, dtype=np.float32)
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 8, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1)
            r = Relu (a)
            b = Conv <pads = [1, 1, 1, 1]> (r, w2)
            s = Sigmoid (b)
            y = Conv <pads = [1, 1, 1, 1]> (s, w3)
        }""",
        w1=normal(16, 3, 3, 3) * factors[:, None, None, None],
        w2=normal(8, 16, 3, 3, seed=1) / factors[None, :, None, None],
        w3=normal(8, 8, 3, 3, seed=2),
    )
    feeds, found = feeds_for(model, samples=16), []
    for algorithms in (("bias_correction",), ("equalize",)):
        options = Options(placement="all", per_channel=False, algorithms=algorithms)
        onnxq.quantize(model, feeds, options=options, output=tmp_path / "q.onnx")
        found.append(set(features_of(onnxq.read(tmp_path / "q.onnx"), ir.from_proto(model))))
    assert found[0] - found[1] == {"r"} and found[1]


def test_learning_rates_fall_to_zero_by_the_end_of_the_time(
    quantized: onnxq.Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes on by a second each time it is read; a minute, and no number of steps."""
    from onnxq.torch.distill import _Trainer

    clock, shares, step = count(), list[float](), _Trainer.step

    def seen(self: _Trainer, share: float) -> None:
        shares.append(share)
        step(self, share)

    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(_Trainer, "step", seen)
    trained = onnxq.finetune(quantized, FEEDS[:8], teacher=residual(), minutes=1.0)
    assert shares == sorted(shares) and shares[0] == 0.0
    assert 0.9 < shares[-1] < 1.0 and len(shares) == 60
    assert f"finetune: {len(shares)} steps" in trained.notes[-1]


@pytest.mark.parametrize(("bits", "rate"), [(3, 0.01), (4, 0.01), (6, 0.0025), (8, 0.000625)])
def test_the_learning_rate_goes_by_bits(monkeypatch: pytest.MonkeyPatch, bits: int, rate: float) -> None:
    from onnxq.torch import distill as module

    seen, distill = list[float](), module.distill

    def watched(*args: Any, **more: Any) -> Any:
        seen.append(args[4].lr)
        return distill(*args, **more)

    monkeypatch.setattr(module, "distill", watched)
    made = onnxq.quantize(residual(), FEEDS[:4], options=Options(placement="all", weight_bits=bits))
    onnxq.finetune(made, FEEDS[:4], teacher=residual(), steps=1)
    onnxq.finetune(made, FEEDS[:4], teacher=residual(), steps=1, lr=0.5)
    assert seen == [pytest.approx(rate), 0.5]


def test_what_training_does_not_make_better_is_left_as_it_was(quantized: onnxq.Quantized) -> None:
    kept = onnxq.finetune(quantized, FEEDS[:8], teacher=residual(), steps=1, lr=0.0, scale_lr=0.0, bias_lr=1e-12)
    assert kept.qparams == quantized.qparams
    assert "the model given is kept" in kept.notes[-1]


def test_a_qdq_file_is_trained_and_stays_in_its_integers(tmp_path: Path) -> None:
    options = Options(placement="all", weight_bits=4)
    onnxq.quantize(residual(), FEEDS, options=options, output=tmp_path / "q.onnx")
    onnxq.finetune(tmp_path / "q.onnx", FEEDS, teacher=residual(), steps=20, output=tmp_path / "t.onnx")
    before, after = (onnx.load(tmp_path / name) for name in ("q.onnx", "t.onnx"))
    assert sorted(t.data_type for t in before.graph.initializer if t.data_type != 1) == sorted(
        t.data_type for t in after.graph.initializer if t.data_type != 1
    )


def test_a_file_of_fake_quantizers_stays_one(quantized: onnxq.Quantized, tmp_path: Path) -> None:
    """QDQ of its opset has no 4 bits."""
    quantized.save(tmp_path / "q.onnx")
    trained = onnxq.finetune(tmp_path / "q.onnx", FEEDS, teacher=residual(), steps=60, output=tmp_path / "t.onnx")
    before, after = (onnx.load(tmp_path / name) for name in ("q.onnx", "t.onnx"))
    assert [f.name for f in after.functions] == [f.name for f in before.functions] == ["FakeQuantize"]
    exact = infer(residual(), FEEDS, optimize=False)["y"]
    first, second = (sqnr(exact, infer(model, FEEDS, optimize=False)["y"]) for model in (before, after))
    assert second > first + 1 and "finetune: 60 steps" in trained.notes[-1]


def test_a_state_is_taken_up(quantized: onnxq.Quantized, tmp_path: Path) -> None:
    state = tmp_path / "state.npz"
    onnxq.finetune(quantized, FEEDS[:8], teacher=residual(), steps=20, minutes=0.0, resume=state)
    with np.load(state) as saved:
        assert 0 < int(saved["step"]) < 20
    again = onnxq.finetune(quantized, FEEDS[:8], teacher=residual(), steps=20, resume=state)
    assert "finetune: 20 steps" in again.notes[-1]
    more = onnxq.finetune(quantized, FEEDS[:8], teacher=residual(), steps=30, resume=state)
    assert "finetune: 30 steps" in more.notes[-1], "of more steps than it was begun with"
    with pytest.raises(OptionError, match=r"training with batch 8 and not 4, seed 0 and not 3"):
        onnxq.finetune(quantized, FEEDS[:8], teacher=residual(), steps=30, batch=4, seed=3, resume=state)
    with pytest.raises(OptionError, match=r"is of 30 steps, more than the 20 asked for. .*--steps 30"):
        onnxq.finetune(quantized, FEEDS[:8], teacher=residual(), steps=20, resume=state)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("at", "named", "told"),
    [
        (1, True, "no state was kept yet"),
        (15, True, r"after 10 steps is in .*the same command"),
        (1, False, "--resume FILE"),
    ],
)
def test_ctrl_c_says_whether_a_state_was_kept(
    quantized: onnxq.Quantized, tmp_path: Path, at: int, named: bool, told: str
) -> None:
    class Stops(Silent):
        @contextmanager
        def phase(self, title: str, total: int | None = None, unit: str = "samples") -> Iterator[Callable[[int], None]]:
            def advance(done: int) -> None:
                if title == "finetune" and done == at:
                    raise KeyboardInterrupt

            yield advance

    state = tmp_path / "state.npz" if named else None
    with pytest.raises(KeyboardInterrupt, match=told):
        onnxq.finetune(quantized, FEEDS[:8], teacher=residual(), steps=20, resume=state, reporter=Stops())


def test_the_folder_of_a_state_is_made(quantized: onnxq.Quantized, tmp_path: Path) -> None:
    state = tmp_path / "new" / "folder" / "state.npz"
    onnxq.finetune(quantized, FEEDS[:8], teacher=residual(), steps=2, resume=state)
    assert state.is_file()


@pytest.mark.parametrize(("name", "said"), [(".", "this is a folder"), ("file/state", "a file of that name exists")])
def test_a_state_that_cannot_be_kept_is_refused_before_the_work(
    name: str, said: str, quantized: onnxq.Quantized, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=said):
        onnxq.finetune(quantized, untouched(), teacher=residual(), steps=1, resume=tmp_path / name)


def test_errors_come_before_the_work(quantized: onnxq.Quantized) -> None:
    with pytest.raises(ModelError, match="outputs"):
        onnxq.finetune(quantized, FEEDS, teacher=_renamed())
    with pytest.raises(DataError, match="too few"):
        onnxq.finetune(quantized, FEEDS[:1], teacher=residual())
    for name, value, least in (("steps", 0, 1), ("steps", 2.5, 1), ("batch", 0, 1), ("seed", -1, 0)):
        with pytest.raises(OptionError, match=f"{name}: {value} is not a whole number of at least {least}"):
            onnxq.finetune(quantized, FEEDS, teacher=residual(), **{name: value})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="lr: inf is not a number of at least 0"):
        onnxq.finetune(quantized, FEEDS, teacher=residual(), lr=float("inf"))
    with pytest.raises(OptionError, match="vary: 2 is not a number from 0 to 1"):
        onnxq.finetune(quantized, FEEDS, teacher=residual(), vary=2)
    with pytest.raises(ModelError, match="carries no quantizers"):
        onnxq.finetune(classifier(), feeds_for(classifier()), teacher=classifier())


def test_weights_in_blocks_are_named() -> None:
    text = "(float[2, 8] x) => (float[2, 4] y) {{ {0} y = MatMul (x, {1}) }}"
    blocks = build(
        text.format("d = DequantizeLinear <axis = 0, block_size = 4> (w, s)", "d"),
        opset=21,
        ir_version=10,
        w=np.ones((8, 4), np.int8),
        s=np.ones((2, 4), np.float32),
    )
    plain = build(text.format("", "w"), w=normal(8, 4))
    with pytest.raises(ModelError, match=r"it quantizes with 1 DequantizeLinear, in a way that is not trained"):
        onnxq.finetune(blocks, feeds_for(plain), teacher=plain, steps=1)


def test_a_teacher_of_other_shapes_is_named_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxq.torch import distill as module

    monkeypatch.setattr(module, "distill", lambda *_, **__: pytest.fail("it trained"))
    text = "(float[1, 8] x) => (float[1, {0}] y) {{ h = MatMul (x, w)  r = Relu (h)  y = MatMul (r, v) }}"
    narrow, wide = (build(text.format(n), w=normal(8, 16), v=normal(16, n, seed=1)) for n in (4, 6))
    feeds = feeds_for(narrow)
    made = onnxq.quantize(narrow, feeds, options=Options(placement="all"))
    with pytest.raises(ModelError, match=r"'y' has shape \(1, 6\), that of the quantized model \(1, 4\)"):
        onnxq.finetune(made, feeds, teacher=wide, steps=1)


def test_a_file_with_a_table_of_integer_rows_is_trained(tmp_path: Path) -> None:
    """onnxruntime gathers the rows as integers; training sees the whole table."""
    text = "(int64[1, 5] ids) => (float[1, 5, 16] y) { e = Gather (table, ids)  h = MatMul (e, w)  y = MatMul (h, v) }"
    model = build(text, table=normal(600, 32), w=normal(32, 64), v=normal(64, 16, seed=1))
    rng = np.random.default_rng(0)
    feeds = [{"ids": rng.integers(0, 20, (1, 5))} for _ in range(24)]
    onnxq.quantize(model, feeds, options=Options(weight_bits=4, opset=21), output=tmp_path / "q.onnx")
    onnxq.finetune(tmp_path / "q.onnx", feeds, teacher=model, steps=60, lr=0.1, output=tmp_path / "t.onnx")
    before, after = (onnx.load(tmp_path / name) for name in ("q.onnx", "t.onnx"))
    (rows,) = (n.output[0] for n in before.graph.node if n.op_type == "Gather")
    readers = {n.op_type for n in before.graph.node if rows in n.input}
    assert readers & {"DequantizeLinear", "Cast"}, "what this test is about"
    assert [n.op_type for n in after.graph.node] == [n.op_type for n in before.graph.node]
    exact = infer(model, feeds, optimize=False)["y"]
    first, second = (sqnr(exact, infer(m, feeds, optimize=False)["y"]) for m in (before, after))
    assert second > first + 1, f"{first:.1f} to {second:.1f} dB"


def words(count: int = 24) -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """A model of sequences, and sequences that differ in length, so that they are run one by one."""
    text = "(int64[1, n] ids) => (float[1, n, 16] y) { e = Gather (table, ids)  h = MatMul (e, w)  y = MatMul (h, v) }"
    model = build(text, table=normal(600, 32), w=normal(32, 64), v=normal(64, 16, seed=1))
    rng = np.random.default_rng(0)
    return model, [{"ids": rng.integers(0, 20, (1, 3 + k % 4))} for k in range(count)]


def test_a_large_table_is_quantized_once_and_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxq.torch import student
    from onnxq.torch.weights import ActivationGrid

    model, feeds = words()
    made = onnxq.quantize(model, feeds, options=Options(weight_bits=4))
    assert "table" in student.Student(made).weights, "a small one is"
    monkeypatch.setattr(student, "_LARGEST_TABLE", 1000)
    seen: list[tuple[int, ...]] = []
    quantize = ActivationGrid.__call__

    def seeing(grid: ActivationGrid, x: Any) -> Any:
        seen.append(tuple(x.shape))
        return quantize(grid, x)

    monkeypatch.setattr(ActivationGrid, "__call__", seeing)
    trained = onnxq.finetune(made, feeds, teacher=model, steps=3, lr=0.1)
    assert seen.count((600, 32)) == 1
    learner = student.Student(made)
    assert set(learner.weights) == {"w", "v"}
    with torch.no_grad():
        got = [learner.run({"ids": torch.from_numpy(f["ids"])})["y"].numpy() for f in feeds]
    want = infer(ir.to_proto(made.rendered()), feeds, optimize=False)["y"]
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    site = next(s.name for s in made.plan.sites if s.tensor == "table")
    assert trained.qparams[site] == made.qparams[site]


def test_weights_are_computed_once_a_step_however_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the gradients that each sample by itself gives, added up."""
    from onnxq.torch.distill import Settings, _Trainer
    from onnxq.torch.executor import Executor
    from onnxq.torch.student import Student
    from onnxq.torch.weights import FreeWeight

    model, feeds = words(4)
    made = onnxq.quantize(model, feeds, options=Options(weight_bits=4))
    student, teacher = Student(made), Executor(made.model)
    settings = Settings(1, 4, 0.01, 1e-3, 0.02, 0.0, 0.0, checks=1, seed=0)
    trainer = _Trainer(student, teacher, feeds, feeds[:1], settings, None)
    assert not trainer.joined
    samples = [{"ids": torch.from_numpy(f["ids"])} for f in feeds]
    sum(trainer._loss(f, student.constants()) / len(samples) for f in samples).backward()  # type: ignore[union-attr]
    wanted = [p.grad.clone() for p in trainer.annealed.learned if p.grad is not None]
    calls: list[FreeWeight] = []
    value = FreeWeight.value

    def counted(weight: FreeWeight) -> Any:
        calls.append(weight)
        return value(weight)

    monkeypatch.setattr(FreeWeight, "value", counted)
    trainer.step(0.0)
    assert len(calls) == len(student.weights)
    for grad, want in zip([p.grad for p in trainer.annealed.learned if p.grad is not None], wanted, strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-4, atol=1e-7)


def _renamed() -> onnx.ModelProto:
    model = residual()
    model.graph.output[0].name = "other"
    for node in model.graph.node:
        node.output[:] = ["other" if name == "y" else name for name in node.output]
    return model


def test_biases_of_a_trained_file_stay_in_units_of_data_times_weight(tmp_path: Path) -> None:
    """Else no runtime has an integer kernel for the layer."""
    onnxq.quantize(residual(), FEEDS, options=Options(placement="all"), output=tmp_path / "q.onnx")
    trained = onnxq.finetune(tmp_path / "q.onnx", FEEDS, teacher=residual(), steps=10, lr=0.1)
    biases = [site for site in trained.plan.sites if site.role == "bias"]
    assert len(biases) == 3
    for site in biases:
        assert site.factors is not None
        data, weight = (trained.qparams[name].scale for name in site.factors)
        np.testing.assert_allclose(trained.qparams[site.name].scale, data * weight, rtol=1e-6)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda got, want: 1.0, "loss: gave float, not a tensor with one number"),
        (lambda got, want: None, "loss: gave NoneType"),
        (lambda got, want: next(iter(got.values())), "loss: gave a tensor of shape"),
        (lambda got, want: next(iter(got.values())).sum() * float("nan"), "loss: gave nan"),
    ],
)
def test_a_loss_gives_one_finite_number(quantized: onnxq.Quantized, loss: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        onnxq.finetune(quantized, FEEDS, teacher=residual(), steps=2, loss=loss)


@pytest.mark.parametrize("device", ["foo", "cuda:99", ""])
def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(
    quantized: onnxq.Quantized, device: str
) -> None:
    with pytest.raises(OptionError, match=r"device: torch cannot compute on .*There is cpu"):
        onnxq.finetune(quantized, FEEDS, teacher=residual(), steps=2, device=device)


def test_a_teacher_that_is_quantized_is_refused(quantized: onnxq.Quantized) -> None:
    teacher = onnxq.quantize(residual(), FEEDS, options=Options(placement="all"))
    with pytest.raises(ModelError, match=r"the float model: it is quantized itself: .*\d+ QuantizeLinear"):
        onnxq.finetune(quantized, FEEDS, teacher=teacher.qdq(), steps=1)


def test_the_loss_compares_rows_that_a_topk_picked_with_the_nearest() -> None:
    """In another order they are no error that training could mend."""
    model = build(
        """(float[1, 64, 8] x) => (float[1, 16, 8] y) {
            h = MatMul (x, w)
            r = Relu (h)
            b = MatMul (r, v)
            s = ReduceMax <axes = [2], keepdims = 0> (b)
            top, i = TopK <axis = 1> (s, k)
            last = Unsqueeze (i, axis)
            wide = Expand (last, size)
            y = GatherElements <axis = 1> (b, wide)
        }""",
        w=normal(8, 32, scale=1.0),
        v=normal(32, 8, seed=1, scale=1.0),
        k=np.array([16]),
        axis=np.array([2]),
        size=np.array([1, 16, 8]),
    )
    data = [{"x": normal(1, 64, 8, seed=k, scale=1.0)} for k in range(16)]
    options = Options(weight_bits=4, placement="all", min_sqnr=-100)
    made = onnxq.quantize(model, data, options=options)
    trained = onnxq.finetune(made, data, teacher=model, steps=4, features=0.0)
    (note,) = (text for text in trained.notes if text.startswith("finetune: "))
    before = float(note.split("held back ")[1].split()[0])
    assert before < 0.1, "0.4 and more, place by place"
