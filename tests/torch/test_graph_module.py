"""A quantized model trained in a loop of one's own: the written file computes what the module does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

import onnxq
from onnxq import Options, Quantized
from onnxq.errors import ModelError, OptionError
from onnxq.qparams import QParams, fake_quantize
from tests.models import build, f32, feeds_for, normal
from tests.running import open_session
from tests.targets import classifier, residual

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

from onnxq.torch import GraphModule, rounding_loss
from onnxq.torch.quantizers import Quantizer

torch.set_num_threads(1)

FEEDS = feeds_for(residual(), samples=8)
OPTIONS = {
    "W8A8": Options(placement="all"),
    "W4A4": Options(placement="all", weight_bits=4, act_bits=4),
    "W3A4": Options(placement="all", weight_bits=3, act_bits=4, format="fake-quantize"),
}


def trained(module: GraphModule, feeds: list[dict[str, NDArray[Any]]], steps: int = 6, lr: float = 2e-3) -> list[float]:
    adam = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=lr)
    target = module.eval()(**{n: torch.from_numpy(a) for n, a in feeds[0].items()}).detach() * 0.5
    module.train()
    losses = []
    for _ in range(steps):
        loss = (module(**{n: torch.from_numpy(a) for n, a in feeds[0].items()}) - target).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    module.eval()
    return losses


def worst(module: GraphModule, path: Path, feeds: list[dict[str, NDArray[Any]]]) -> list[float]:
    """Largest difference to onnxruntime for each sample, in shares of the largest output."""
    session = open_session(path, optimize=False)
    found = []
    for feed in feeds:
        with torch.no_grad():
            want = module(**{n: torch.from_numpy(a) for n, a in feed.items()}).numpy()
        got = np.asarray(session.run(None, feed)[0])
        found.append(float(np.abs(got - want).max() / np.abs(want).max()))
    return found


def assert_same(differences: list[float], most: float = 1e-5) -> None:
    """``most`` of the largest output, but for at most one sample with a value at a tie, which is a code off."""
    assert sorted(differences)[-2] <= most and max(differences) <= 0.1, differences


@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_trained_is_what_runs(name: str, tmp_path: Path) -> None:
    q = onnxq.quantize(residual(), FEEDS, options=OPTIONS[name])
    module = q.torch()
    assert_same(_before(q, module, tmp_path))
    before = {k: p.detach().clone() for k, p in module.named_parameters()}
    losses = trained(module, FEEDS)
    assert losses[-1] < losses[0]
    moved = {k for k, p in module.named_parameters() if not torch.equal(p, before[k])}
    assert {"weights.w1", "weights.b1", "quantizers.w1.scale", "quantizers.x.scale"} <= moved
    still = {k for k, p in module.named_parameters() if p.requires_grad} - moved
    assert all(k.endswith("offset") for k in still), "those of grids that nothing leaves have no gradient"
    t = q.load_torch(module)
    (path,) = t.save(tmp_path / "t.onnx")
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert_same(worst(module, path, FEEDS))
    assert t.recipe[-1] == "torch" and t.verification is not None
    again = onnxq.read(path).torch().eval()
    assert_same(worst(again, path, FEEDS))


def _before(q: Quantized, module: GraphModule, folder: Path) -> list[float]:
    (path,) = q.save(folder / "before.onnx")
    return worst(module.eval(), path, FEEDS)


def test_scales_and_weights_are_those_of_the_module() -> None:
    q = onnxq.quantize(residual(), FEEDS, options=OPTIONS["W4A4"])
    module = q.torch()
    trained(module, FEEDS)
    t = q.load_torch(module)
    for site in t.plan.sites:
        if site.role == "bias" and site.factors is not None:
            data, weight = (t.qparams[name].scale for name in site.factors)
            np.testing.assert_array_equal(t.qparams[site.name].scale, data * weight)
    part = module.quantizers["w1"]
    assert isinstance(part, Quantizer)
    np.testing.assert_array_equal(t.qparams["w1"].scale, part.get_parameter("scale").detach().numpy())
    stored = t.model.graph.initializers["w1"].const_value
    assert stored is not None
    np.testing.assert_array_equal(stored.numpy(), module.weights.get_parameter("w1").detach().numpy())
    same = t.torch().eval()
    with torch.no_grad():
        x = torch.from_numpy(FEEDS[0]["x"])
        assert torch.equal(same(x), module(x)), "training goes on where it was"
    untouched = q.torch()
    with torch.no_grad():
        assert not torch.equal(untouched.eval()(x), module(x)), "the model given is left as it was"


def test_a_learned_zero_point_is_written(tmp_path: Path) -> None:
    q = onnxq.quantize(residual(), FEEDS, options=OPTIONS["W8A8"])
    module = q.torch()
    with torch.no_grad():
        part = module.quantizers["x"]
        part.get_parameter("offset").sub_(3.4 * part.get_parameter("scale"))
    module.eval()
    t = q.load_torch(module)
    assert int(t.qparams["x"].zero_point) == int(q.qparams["x"].zero_point) + 3
    (path,) = t.save(tmp_path / "t.onnx")
    assert_same(worst(module, path, FEEDS))


@pytest.mark.parametrize(
    ("weight", "act"),
    [("adaround", "qdrop"), ("fixed", "ema"), ("dorefa", "pact"), ("dsq", "dsq"), ("lsq", "qdrop:drop=0.2")],
)
def test_every_quantizer_is_written_as_trained(weight: str, act: str, tmp_path: Path) -> None:
    q = onnxq.quantize(classifier(), feeds_for(classifier(), samples=4), options=OPTIONS["W4A4"])
    feeds = feeds_for(classifier(), samples=4)
    module = q.torch(weight_quantizer=weight, act_quantizer=act)
    torch.manual_seed(0)
    trained(module, feeds)
    if weight == "adaround":
        rounding_loss(module, 4.0).backward()
    (path, *_) = q.load_torch(module).save(tmp_path / "t.onnx")
    assert_same(worst(module, path, feeds))


@pytest.mark.parametrize("backend", ["openvino", "snpe", "vitis", "stpu", "nnie"])
def test_other_targets(backend: str) -> None:
    """Powers of two and biases of 8 bits (vitis), logarithmic grids (nnie), 16-bit sums and the rest."""
    q = onnxq.quantize(residual(), FEEDS, backend=backend)
    module = q.torch()
    trained(module, FEEDS)
    made = q.load_torch(module)
    assert not [note for note in made.notes if "they were changed" in note]
    session = onnxq.Session(made.rendered(), optimize=False)
    found = []
    for feed in FEEDS:
        with torch.no_grad():
            want = module(torch.from_numpy(feed["x"])).numpy()
        found.append(float(np.abs(session.run(feed)["y"] - want).max() / np.abs(want).max()))
    assert_same(found, 1e-4 if backend == "openvino" else 1e-5)  # whose scales are rounded to fewer digits
    assert {n: qp.spec for n, qp in made.qparams.items()} == {n: qp.spec for n, qp in q.qparams.items()}


def test_a_scale_that_the_target_cannot_hold_is_moved_and_named() -> None:
    q = onnxq.quantize(residual(), FEEDS, backend="vitis")
    module = q.torch()
    with torch.no_grad():
        module.quantizers["w1"].get_parameter("scale").mul_(2.0**20)
    made = q.load_torch(module)
    assert any("'w1'" in note and "moved" in note for note in made.notes), made.notes


def test_a_target_that_finds_weight_scales_itself_says_so() -> None:
    """Tengine's tool takes them from the weights' ends."""
    q = onnxq.quantize(residual(), FEEDS, backend="tengine")
    module = q.torch()
    trained(module, FEEDS)
    notes = [note for note in q.load_torch(module).notes if "they were changed" in note]
    assert len(notes) == 1 and "'w2'" in notes[0] and "'x'" not in notes[0]


def test_a_quantizer_that_does_not_know_the_grid_is_refused() -> None:
    q = onnxq.quantize(residual(), FEEDS, backend="nnie")
    with pytest.raises(OptionError, match="is for uniform ones"):
        q.torch(weight_quantizer="lsq")


def test_weights_in_several_places_have_one_parameter() -> None:
    model = build(
        """(float[2, 6] x) => (float[2, 6] y) {
            [first] a = MatMul (x, w)
            [bias] b = Add (a, c)
            [act] r = Relu (b)
            [second] y = MatMul (r, w)
        }""",
        w=normal(6, 6),
        c=normal(6, seed=1),
    )
    feeds = feeds_for(model, samples=4)
    module = onnxq.quantize(model, feeds, options=OPTIONS["W8A8"]).torch()
    assert [n for n, _ in module.weights.named_parameters()] == ["w", "c"]
    losses = trained(module, feeds)
    assert losses[-1] < losses[0]


def test_norms_and_masks(tmp_path: Path) -> None:
    """What a layer is made of is trained; other constants are not."""
    model = build(
        """(float[2, 5, 8] x) => (float[2, 5, 8] y) {
            [up] a = MatMul (x, w)
            [mask] m = Add (a, limits)
            [norm] n = LayerNormalization <axis = -1> (m, gamma, beta)
            [half] h = Mul (n, factor)
            [down] y = MatMul (h, v)
        }""",
        w=normal(8, 8),
        v=normal(8, 8, seed=1),
        limits=normal(5, 8, seed=2),
        gamma=normal(8, seed=3),
        beta=normal(8, seed=4),
        factor=f32(0.5),
    )
    feeds = feeds_for(model, samples=4)
    q = onnxq.quantize(model, feeds, options=OPTIONS["W8A8"])
    module = q.torch()
    names = {n for n, _ in module.weights.named_parameters()}
    assert {"w", "v", "beta"} <= names and not {"limits", "factor"} & names
    trained(module, feeds)
    (path,) = q.load_torch(module).save(tmp_path / "t.onnx")
    assert_same(worst(module, path, feeds))


def test_it_moves_and_is_saved_like_any_module() -> None:
    q = onnxq.quantize(residual(), FEEDS, options=OPTIONS["W8A8"])
    module, x = q.torch(), torch.from_numpy(FEEDS[0]["x"])
    trained(module, FEEDS)
    again = q.torch()
    again.load_state_dict(module.state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(x), module(x))
    assert {b.device.type for b in module.to("meta").buffers()} == {"meta"}


def serialized(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def test_what_wraps_it_is_taken_back() -> None:
    q = onnxq.quantize(residual(), FEEDS, options=OPTIONS["W8A8"])
    module = q.torch()
    average = torch.optim.swa_utils.AveragedModel(module)
    trained(module, FEEDS)
    for wrapped, inside in ((average, average.module), (torch.compile(module, backend="eager"), module)):
        wanted, found = q.load_torch(inside), q.load_torch(wrapped)  # type: ignore[arg-type]
        same = [serialized(made.qdq()) for made in (wanted, found)]
        assert same[0] == same[1]
    assert same[0] != serialized(q.load_torch(average).qdq())


def test_a_model_of_which_all_stayed_float_is_told_so() -> None:
    q = onnxq.quantize(residual(), FEEDS, options=Options(exclude=["*"]))
    with pytest.raises(ModelError, match=r"All of it stayed float, '.*' as excluded .*; where .*placement='all'"):
        q.torch()


def test_errors() -> None:
    q = onnxq.quantize(residual(), FEEDS, options=OPTIONS["W8A8"])
    other = onnxq.quantize(classifier(), feeds_for(classifier(), samples=2), options=OPTIONS["W8A8"])
    with pytest.raises(OptionError, match="belongs to another model"):
        q.load_torch(other.torch())
    with pytest.raises(OptionError, match="not a quantized model's module"):
        q.load_torch(torch.nn.Linear(2, 2))
    with pytest.raises(OptionError, match="no quantizer 'none'"):
        q.torch(act_quantizer="none")
    with pytest.raises(OptionError, match="for weights"):
        q.torch(act_quantizer="dorefa")
    with pytest.raises(ModelError, match="carries no quantizers"):
        onnxq.read(residual()).torch()
    with pytest.raises(ModelError, match="no values were given for 'x'"):
        q.torch()()
    with pytest.raises(OptionError, match="2 tensors for 1 inputs"):
        q.torch()(torch.zeros(1), torch.zeros(1))


def test_without_torch_the_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["torch"] = None
import onnxq
from tests.models import feeds_for
from tests.targets import classifier
q = onnxq.quantize(classifier(), feeds_for(classifier(), samples=2))
for call in (q.torch, lambda: q.load_torch(None)):
    try:
        call()
    except onnxq.OptionError as error:
        print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.count('pip install "onnxq[torch]"') == 2


def test_scales_in_blocks_stay_and_the_weight_is_trained() -> None:
    from onnxq.spec import PerBlock, QuantSpec
    from onnxq.torch.graph_module import _Blocks

    weight = normal(6, 8)
    scale = np.abs(weight).reshape(6, 2, 4).max(2) / 7
    qp = QParams(QuantSpec(4, granularity=PerBlock(1, 4)), scale.astype(np.float32), np.zeros((6, 2), np.int64))
    part = _Blocks(qp, weight.shape)
    x = torch.from_numpy(weight).requires_grad_()
    found = part(x)
    np.testing.assert_array_equal(found.detach().numpy(), fake_quantize(weight, qp))
    found.sum().backward()
    assert x.grad is not None and bool((x.grad == 1).all()) and part.qparams() is qp


def test_a_module_that_has_diverged_is_refused_and_what_is_wrong_is_named() -> None:
    quantized = onnxq.quantize(residual(), FEEDS, options=OPTIONS["W8A8"])
    names = [name for name, _ in quantized.torch().named_parameters()]
    assert {name.split(".")[0] for name in names} == {"weights", "quantizers"}
    for name in names:
        for wrong in (float("nan"), float("inf")):
            module = quantized.torch()
            with torch.no_grad():
                module.get_parameter(name).view(-1)[0] = wrong
            with pytest.raises(OptionError, match="NaN or infinite") as raised:
                quantized.load_torch(module)
            assert raised.value.what.startswith(f"'{name}' hold ")
