"""Variants of a model, measured in pieces, against sessions of the whole models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnxq
from onnxq import Options
from onnxq.calibration.statistics import KeptSample
from onnxq.deciding import mend, what_hurts
from onnxq.graph.files.load import load
from onnxq.graph.shapes import infer_shapes
from onnxq.measuring.metrics import Errors
from onnxq.measuring.outputs import worst_sqnr
from onnxq.measuring.variants import Variants
from onnxq.ort.session import Session
from tests.models import build, f32, images, normal

LAYERS = 24


def deep(*, bent: int = -1, by: float = 0.0, early: bool = False) -> ir.Model:
    """A chain of layers with a shortcut around each pair; one may have other weights, or read an earlier tensor."""
    lines: list[str] = []
    constants: dict[str, Any] = {}
    last = "x"
    for k in range(LAYERS):
        constants[f"w{k}"] = normal(8, 8, seed=k, scale=0.3) + (by if k == bent else 0.0)
        source = "r0" if early and k == bent else last
        lines += [f"m{k} = MatMul ({source}, w{k})", f"t{k} = Tanh (m{k})", f"r{k} = Add (t{k}, {last})"]
        last = f"r{k}"
    lines.append(f"y = Identity ({last})")
    text = "(float[N, 8] x) => (float[N, 8] y, float[N, 8] r3) { " + "\n".join(lines) + " }"
    model = load(build(text, **constants))
    infer_shapes(model)
    return model


def kept(model: ir.Model) -> list[KeptSample]:
    session = Session(model)
    return [KeptSample(i, feeds, session.run(feeds)) for i, feeds in enumerate(images(5, 8, samples=3))]


def whole(model: ir.Model, samples: list[KeptSample]) -> float:
    return worst_sqnr(Session(model).run, ((s.feeds, s.outputs) for s in samples))


def lowest(variants: Variants, variant: ir.Model) -> float:
    """SQNR of the worst output; what does not run has none."""
    return min((errors.level for errors in variants.errors(variant).values()), default=-math.inf)


def test_the_figures_are_those_of_whole_models() -> None:
    samples = kept(deep())
    variants = Variants(deep(), samples)
    for k in (0, 1, 5, 11, 12, 3, 23, 22):  # back again, too
        variant = deep(bent=k, by=0.05)
        assert lowest(variants, variant.clone()) == pytest.approx(whole(variant, samples), abs=1e-3), k


def test_a_variant_may_read_what_the_base_has_no_more_use_for() -> None:
    samples = kept(deep())
    variants = Variants(deep(), samples)
    for k in (20, 9):
        variant = deep(bent=k, early=True)
        assert lowest(variants, variant.clone()) == pytest.approx(whole(variant, samples), abs=1e-3), k


def test_the_base_itself_is_as_good_as_equal() -> None:
    samples = kept(deep())
    assert lowest(Variants(deep(), samples), deep()) > 100


def test_the_base_is_measured_without_being_loaded_as_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = kept(deep())
    as_variant = Variants(deep(bent=3, by=0.05), samples).errors(deep(bent=3, by=0.05))
    loaded: list[int] = []
    opened = Session.__init__

    def count(self: Session, model: Any, **options: Any) -> None:
        loaded.append(len(list(model.graph)))
        opened(self, model, **options)

    monkeypatch.setattr(Session, "__init__", count)
    variants = Variants(deep(bent=3, by=0.05), samples)
    assert variants.errors_of_base() == as_variant and sum(loaded) == len(list(deep().graph))
    variants.errors_of_base()
    assert sum(loaded) == len(list(deep().graph)), "each piece is loaded once"


def test_a_base_that_does_not_run_has_no_errors() -> None:
    samples = [KeptSample(0, {"x": np.zeros((5, 9), np.float32)}, {})]
    assert Variants(deep(), samples).errors_of_base() == {}


def test_a_constant_may_be_an_output_of_the_model() -> None:
    def shown(**how: Any) -> ir.Model:
        model = deep(**how)
        model.graph.outputs.append(model.graph.initializers["w3"])
        return model

    samples = kept(shown())
    variants = Variants(shown(), samples)
    assert variants.errors_of_base().keys() == {"y", "r3", "w3"}
    for k in (3, 20):
        variant = shown(bent=k, by=0.05)
        assert lowest(variants, variant.clone()) == pytest.approx(whole(variant, samples), abs=1e-3), k


def test_only_what_differs_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    opened = Session.__init__

    def count(self: Session, model: Any, **options: Any) -> None:
        loaded.append(len(list(model.graph)))
        opened(self, model, **options)

    samples = kept(deep())
    monkeypatch.setattr(Session, "__init__", count)
    variants = Variants(deep(), samples)
    for k in range(LAYERS):
        lowest(variants, deep(bent=k, by=0.05))
    nodes = len(list(deep().graph))
    assert sum(loaded) < 10 * nodes, "not once for each of 24 variants"


def test_what_does_not_run_is_infinitely_bad() -> None:
    samples = kept(deep())
    variant = deep()
    matmul = next(node for node in variant.graph if node.name == variant.graph.node(30).name)
    matmul.op_type = "NoSuchOperator"
    assert lowest(Variants(deep(), samples), variant) == -math.inf


def test_the_sizes_of_a_resize_may_come_from_a_piece_before() -> None:
    """As many as the tensor has axes: onnxruntime must know that there are, where a piece is all it sees."""

    def resized(by: float) -> ir.Model:
        constants: dict[str, Any] = {f"k{k}": f32(1.0 + by * (k == LAYERS - 1)) for k in range(1, LAYERS)}
        layers = "\n".join(f"t{k} = Tanh (t{k - 1})\n m{k} = Mul (t{k}, k{k})" for k in range(1, LAYERS))
        model = load(
            build(
                f"""(float[N, 4, H, W] x) => (float[N, 4, H, W] y) {{
                    s = Shape (x)
                    n = Slice (s, zero, two)
                    hw = Slice (s, two, four)
                    t0 = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)
                    {layers}
                    sizes = Concat <axis = 0> (n, hw)
                    y = Resize (m{LAYERS - 1}, , , sizes)
                }}""",
                zero=np.array([0]),
                two=np.array([2]),
                four=np.array([4]),
                **constants,
            )
        )
        infer_shapes(model)
        return model

    session = Session(resized(0.0))
    feeds = [{"x": normal(1, 4, size, size)} for size in (4, 6)]
    samples = [KeptSample(i, feed, session.run(feed)) for i, feed in enumerate(feeds)]
    found = lowest(Variants(resized(0.0), samples), resized(0.25))
    assert found == pytest.approx(whole(resized(0.25), samples), abs=0.01)


def test_only_usual_tensors_go_from_chunk_to_chunk() -> None:
    """A sequence lives from the start to the end: there is nowhere to cut."""
    lines = [f"a{k + 1} = Tanh (a{k})" for k in range(40)]
    text = "(float[2, 3] x) => (float[2, 3] y) { s = SequenceConstruct (x, x)\n a0 = Neg (x)\n"
    text += "\n".join(lines) + "\n one = Constant <value_int = 1> ()\n b = SequenceAt (s, one)\n y = Add (a40, b) }"
    model = load(build(text))
    samples = kept_of(model, images(2, 3, samples=2))
    assert lowest(Variants(load(build(text)), samples), model) > 100


def kept_of(model: ir.Model, feeds: list[dict[str, Any]]) -> list[KeptSample]:
    session = Session(model)
    return [KeptSample(i, f, session.run(f)) for i, f in enumerate(feeds)]


@pytest.mark.parametrize("backend", ["tensorrt", "onnx_qnn", "ppl", "openvino"])
def test_blame_is_that_of_whole_models(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rescue measures in pieces, against sessions of each variant."""
    lines: list[str] = []
    constants: dict[str, Any] = {}
    for k in range(6):
        constants |= {f"w{k}": normal(8, 8, 3, 3, seed=k), f"b{k}": normal(8, seed=k + 50)}
        source = "x" if k == 0 else f"s{k - 1}"
        lines += [f"c{k} = Conv <pads = [1, 1, 1, 1]> ({source}, w{k}, b{k})", f"q{k} = Relu (c{k})"]
        lines.append(f"s{k} = Add (q{k}, {source})")
    text = "(float[1, 8, 6, 6] x) => (float[1, 8, 6, 6] y) { " + "\n".join(lines) + "\n y = Neg (s5) }"
    found: list[tuple[float, float]] = []

    class Both(Variants):
        def errors(self, variant: ir.Model) -> dict[str, Errors]:
            exact = self._whole(variant)
            return self._noted(super().errors(variant), exact)

        def errors_of_base(self) -> dict[str, Errors]:
            return self._noted(super().errors_of_base(), self._whole(self._base))

        def _whole(self, model: ir.Model) -> float:
            reference = Session(model.clone(), fuse_quantizers=self._options["fuse_quantizers"])
            return worst_sqnr(reference.run, ((s.feeds, s.outputs) for s in self._samples))

        def _noted(self, measured: dict[str, Errors], exact: float) -> dict[str, Errors]:
            found.append((measured["y"].sqnr, exact))
            return measured

    monkeypatch.setattr(what_hurts, "Variants", Both)
    monkeypatch.setattr(mend, "POOR", 1000.0)
    monkeypatch.setattr(mend, "FINE", 1000.0)
    monkeypatch.setattr("onnxq.deciding.rescue.LEAST_GAIN", -1000.0)  # measure in any case
    onnxq.quantize(build(text, **constants), images(1, 8, 6, 6), backend=backend, options=Options())
    others = 0 if backend == "openvino" else 1  # of targets without costs, whether sums are to blame as well
    assert len(found) == 8 + others, "with none of the layers quantized, with all, and with each"
    for got, exact in found:
        assert got == pytest.approx(exact, abs=0.05)
    assert f32([g for g, _ in found[2 + others :]]).std() > 0.1, "the layers differ"
