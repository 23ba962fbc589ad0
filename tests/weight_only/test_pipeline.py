"""What is written: it computes with the rounded weights, from any file, and leaves nothing else behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxq import OutputError, compare
from onnxq.errors import VerificationError
from onnxq.measuring.metrics import sqnr
from onnxq.weight_only import quantize_weights
from onnxq.weight_only.grid import decode, nearest
from onnxq.weight_only.recipe import Recipe
from tests.installed import needs
from tests.models import build, normal, verified_sqnr
from tests.weight_only.layers import LOSS, digests, feeds_of_layers, layers, run, save


def _rounded(proto: onnx.ModelProto, recipe: Recipe) -> onnx.ModelProto:
    """The float model with weights rounded in it: what any rendering must compute."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in copy.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.name in ("a", "b", "table"):
            bits = 8 if tensor.name == "table" else recipe.bits
            turned = array.T if tensor.name == "a" else array
            block = recipe.block if tensor.name == "table" else recipe.fitting_block(turned.shape[1], bits)
            made = decode(nearest(turned, recipe.spec(bits, block), either_sign=recipe.either_sign))
            tensor.CopyFrom(numpy_helper.from_array(made.T.copy() if tensor.name == "a" else made, tensor.name))
    return copy


_WIDTHS = [(4, True, 32), (4, False, 16), (8, True, 64), (8, False, 128)]


_FEWEST = [
    pytest.param(format, 2, *rest, marks=[needs("onnxruntime", "1.26"), needs("onnx", "1.20")])
    for format in ("matmulnbits", "qdq")
    for rest in ((True, 32), (False, 64))
]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize(
    ("format", "bits", "symmetric", "block"),
    [*(("qdq", *width) for width in _WIDTHS), *(("matmulnbits", *width) for width in _WIDTHS), *_FEWEST],
)
def test_result_computes_with_the_rounded_weights(
    bits: int, symmetric: bool, block: int, format: str, external: bool, tmp_path: Path
) -> None:
    proto = layers()
    source = save(proto, tmp_path / "m.onnx", external=external)
    before = digests(tmp_path)
    output = tmp_path / "out" / "q.onnx"
    output.parent.mkdir()
    level = 4 if format == "qdq" else 0  # MatMulNBits that multiplies in float32
    result = quantize_weights(
        source, output, bits=bits, symmetric=symmetric, block=block, format=format, accuracy_level=level
    )
    assert digests(tmp_path) == before
    assert sorted(p.name for p in output.parent.iterdir()) == (["q.onnx", "q.onnx.data"] if external else ["q.onnx"])
    assert sorted(map(str, result.files)) == sorted(map(str, output.parent.iterdir()))
    made = onnx.load(output)
    onnx.checker.check_model(str(output), full_check=True)
    for ours, theirs in ((made.graph.input, proto.graph.input), (made.graph.output, proto.graph.output)):
        assert [v.SerializeToString() for v in ours] == [v.SerializeToString() for v in theirs]
    assert {p.key: p.value for p in made.metadata_props} == {p.key: p.value for p in proto.metadata_props}
    assert Counter(result.quantized.values()) == {"Gather": 1, "MatMul": 1, "Gemm": 1}
    held = {t.name: t for t in made.graph.initializer}
    if bits == 2 and format == "matmulnbits":
        assert np.prod(held["a_quantized"].dims) == 40 * 96 // 4  # 72 inputs, filled up to blocks of 32
    elif format == "qdq":
        kinds = {2: ("INT2", "UINT2"), 4: ("INT4", "UINT4"), 8: ("INT8", "UINT8")}[bits]
        assert onnx.TensorProto.DataType.Name(held["a_quantized"].data_type) == kinds[not symmetric]
    assert [k.reason for k in result.kept_float] == ["its weight has fewer than 1024 numbers"]
    expected = save(_rounded(proto, Recipe(bits, block, symmetric, format=format)), tmp_path / "rounded.onnx")
    for feeds in feeds_of_layers(2):
        want, plain, fast = run(expected, feeds), run(output, feeds), run(output, feeds, optimize=True)
        for name, array in want.items():
            np.testing.assert_allclose(plain[name], array, rtol=1e-4, atol=1e-4)
            assert sqnr(array, fast[name]) > 30  # onnxruntime rounds activations to 8 bits where it fuses the pairs


def test_streamed_result_equals_the_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of one layer each, checks of big models, arrays on the disk: the same integers."""
    from onnxq.weight_only import activations, examine, segments

    whole = save(layers(), tmp_path / "m.onnx")
    quantize_weights(whole, tmp_path / "a.onnx", method="gptq", data=feeds_of_layers(4))
    monkeypatch.setattr(segments, "_BYTES", 0)
    monkeypatch.setattr(examine, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(activations, "_BUDGET", 0)
    apart = save(layers(), tmp_path / "n.onnx", external=True)
    result = quantize_weights(apart, tmp_path / "b.onnx", method="gptq", data=feeds_of_layers(4))
    assert verified_sqnr(result) > LOSS[4]
    first, second = ({t.name: t for t in onnx.load(tmp_path / f).graph.initializer} for f in ("a.onnx", "b.onnx"))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(second[name]))


@pytest.mark.parametrize("external", [False, True])
def test_what_stays_float_of_a_float16_model_stays_as_small(external: bool, tmp_path: Path) -> None:
    proto = build(
        "(float16[N, 48] x) => (float16[N, 40] y) { a = MatMul (x, w) \n y = MatMul (a, v) }",
        w=normal(48, 48).astype(np.float16),
        v=normal(48, 40, seed=1).astype(np.float16),
    )
    proto.graph.node[0].name = "first"
    path = save(proto, tmp_path / "m.onnx", external=external)
    feeds = [{"x": normal(32, 48, seed=seed, scale=1.0).astype(np.float16)} for seed in range(4)]
    result = quantize_weights(path, tmp_path / "q.onnx", bits=8, exclude=["first"], data=feeds)
    assert [file.name for file in result.files] == (["q.onnx", "q.onnx.data"] if external else ["q.onnx"])
    assert any("came in half precision and computes in float32 now" in note for note in result.notes)
    assert verified_sqnr(result) > 35
    stored = {t.name: t for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    np.testing.assert_array_equal(numpy_helper.to_array(stored["w_half"]), normal(48, 48).astype(np.float16))
    held = {name: tensor.data_type for name, tensor in stored.items()}
    assert all(kind != onnx.TensorProto.FLOAT or "scale" in name for name, kind in held.items())


def test_nothing_is_overwritten_or_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(layers(), tmp_path / "m.onnx", external=True)
    taken = tmp_path / "m.onnx.data"
    (tmp_path / "m.onnx.weights").rename(taken)
    proto = onnx.load(source, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            entry.value = taken.name if entry.key == "location" else entry.value
    source = tmp_path / "other.onnx"
    source.write_bytes(proto.SerializeToString())
    (tmp_path / "m.onnx").unlink()
    before = digests(tmp_path)
    for output in ("other.onnx", "m.onnx"):  # the model itself; a name whose data file is that of the model
        with pytest.raises(OutputError, match="belongs to the model"):
            quantize_weights(source, tmp_path / output)
    with pytest.raises(OutputError, match="does not exist"):
        quantize_weights(source, tmp_path / "nowhere" / "q.onnx")
    from onnxq.weight_only import pipeline

    def fail(*args: object, **kwargs: object) -> None:
        raise VerificationError("on purpose")

    monkeypatch.setattr(pipeline, "examine", fail)
    with pytest.raises(VerificationError):
        quantize_weights(source, tmp_path / "q.onnx")
    assert digests(tmp_path) == before


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files as POSIX does")
def test_the_worst_sample_is_named_by_its_place_in_the_data(tmp_path: Path) -> None:
    source = save(layers(), tmp_path / "m.onnx")
    feeds = feeds_of_layers(samples=24)
    result = quantize_weights(source, tmp_path / "q.onnx", data=feeds, samples=8)
    found = result.verification.worst
    assert found is not None and found[1].worst_sample is not None
    alone = compare(source, tmp_path / "q.onnx", [feeds[found[1].worst_sample]]).outputs[found[0]]
    assert alone.sqnr == pytest.approx(found[1].worst, abs=0.01)


def test_a_file_that_cannot_be_written_is_called_by_its_own_name(tmp_path: Path) -> None:
    """Not by that of the folder that it is made in, which is gone by then."""
    code = (
        "import resource, sys, onnxq\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "onnxq.weight_only.quantize_weights(sys.argv[1], sys.argv[2])\n"
    )
    source, output = save(layers(), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    done = subprocess.run([sys.executable, "-c", code, str(source), str(output)], capture_output=True, check=False)
    said = done.stderr.decode().splitlines()[-1]
    assert said.startswith(f"onnxq.errors.OutputError: '{output}': cannot be written: File too large")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
