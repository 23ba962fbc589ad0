"""`onnxq verify`: artifacts in their runtime, run in a process of its own."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import onnxq
from onnxq import Backend, Options, dynamic
from onnxq.backend_choice import backend_named
from onnxq.cli import main
from onnxq.console.terminal import Screen
from onnxq.deploying.unsigned_weights import overflowing_weights
from onnxq.errors import BackendError, DataError, OptionError, OutputError
from onnxq.graph.files.load import load
from onnxq.locations import find_artifact
from onnxq.measuring.loss import Loss
from onnxq.ort.session import Session
from onnxq.runtimes.child import examine
from onnxq.runtimes.runtime import Examination
from onnxq.verify import can_be_read
from onnxq.views import quantized
from onnxq.weight_only import quantize_weights
from tests.models import build, feeds_for, images, normal
from tests.targets import branches, residual

ALL = Options(placement="all")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact") / "out"
    onnxq.quantize(residual(), feeds_for(residual()), output=folder, options=ALL)
    return folder


def test_the_runtime_agrees_with_the_reference(artifact: Path) -> None:
    found = onnxq.verify(artifact, feeds_for(residual()), backend="onnxruntime")
    assert found.artifact.name == "model_onnxruntime.onnx"
    assert found.runtime is not None and found.runtime.startswith("onnxruntime 1.")
    assert any(name.startswith("QLinearConv") for name in found.integer)
    assert found.worst is not None and found.worst[1].sqnr > 35
    assert found.ok and found.agrees(min_sqnr=35) and not found.agrees(min_sqnr=300)
    json.dumps(found.to_dict(), allow_nan=False)


def test_differences_in_steps_of_the_outputs_quantizer(tmp_path: Path) -> None:
    onnxq.quantize(branches(), feeds_for(branches()), output=tmp_path, options=ALL)
    found = onnxq.verify(tmp_path, feeds_for(branches()), backend="onnxruntime")
    assert found.lsb.keys() == {"side", "y"}
    assert max(found.lsb.values()) <= 2.01


def test_text_goes_into_the_runtime_and_comes_back(tmp_path: Path) -> None:
    model = build(
        """(float[N, 8] x, string[N] text) => (float[N, 6] y, string[N] same) {
            y = MatMul (x, w)
            same = Identity (text)
        }""",
        w=normal(8, 6),
    )
    feeds = [{"x": normal(2, 8, seed=i), "text": np.array([f"ä{i}", ""], object)} for i in range(4)]
    onnxq.quantize(model, feeds, output=tmp_path, options=ALL)
    found = onnxq.verify(tmp_path, feeds, backend="onnxruntime")
    assert found.outputs["same"].agreement == 1 and found.outputs["same"].elements == 8
    assert found.outputs["y"].sqnr > 35


def test_a_simulation_is_said_to_be_one(artifact: Path) -> None:
    found = onnxq.verify(artifact, feeds_for(residual()), backend="onnxruntime", simulation=True)
    assert found.runtime is None and found.simulated and "against the float model inside" in found.compared
    assert found.tensors > 5 and not found.lsb
    assert found.worst is not None and 25 < found.worst[1].sqnr < 60
    assert found.ok and not found.agrees(min_sqnr=60)
    assert not replace(found, layers_missing="it took too long").ok


@pytest.mark.parametrize("make", ["qdq", "matmulnbits", "dynamic"])
def test_a_result_that_holds_integers_has_no_float_model_inside(make: str, tmp_path: Path) -> None:
    """Weights in blocks and ranges taken at run time are not read back: nothing is said of what they lose."""
    model, path = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(build("(float[N, 64] x) => (float[N, 64] y) { y = MatMul (x, w) }", w=normal(64, 64)), model)
    if make == "dynamic":
        dynamic.rewrite(model, output=path)
    else:
        quantize_weights(model, path, format=make)
    feeds = [{"x": normal(4, 64, seed=i, scale=1.0)} for i in range(4)]
    assert onnxq.compare(model, path, feeds).outputs["y"].sqnr < 45
    found = onnxq.verify(path, feeds, backend="onnxruntime")
    assert found.outputs["y"].sqnr > 25 and not found.against_float
    simulated = onnxq.verify(path, feeds, backend="onnxruntime", simulation=True)
    assert not simulated.outputs and simulated.compared.startswith("nothing: all that is quantized here")


def test_a_loss_that_is_that_of_quantizing_is_no_fault_of_the_runtime(artifact: Path) -> None:
    found = onnxq.verify(artifact, feeds_for(residual()), backend="onnxruntime")
    loss = found.against_float["y"]
    assert 25 < loss.simulation < 60 and abs(loss.runtime - loss.simulation) < 1
    apart = replace(found, outputs={"y": replace(found.outputs["y"], sqnr=24.0)})
    assert apart.ok and not apart.faults() and not apart.agrees(min_sqnr=30)
    for runtime, simulation, right in [(22.0, 24.0, True), (22.0, 60.0, False), (7.0, 7.0, False)]:
        seen = replace(apart, against_float={"y": Loss(runtime, simulation)})
        assert seen.ok is right
        if not right:
            (fault,) = seen.faults()
            assert f"'y' has 24.0 dB, the floor is 30 dB; against float it has {runtime} dB, {simulation} dB" in fault


@pytest.mark.parametrize(("overflows", "full", "told"), [(False, True, 0), (True, False, 0), (True, True, 1)])
def test_a_processor_whose_sums_overflow_is_named_where_a_runtime_loses_more_than_the_simulation(
    overflows: bool, full: bool, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(name: str) -> Backend:
        return replace(backend_named(name), overflows=lambda: overflows)

    artifact, options = tmp_path / "q.onnx", Options(placement="all", reduce_range=not full)
    onnxq.quantize(residual(), feeds_for(residual()), options=options, output=artifact)
    monkeypatch.setattr(sys.modules["onnxq.verify"], "backend_named", named)
    module = sys.modules["onnxq.measuring.in_runtime"]

    def wrong(*args: Any, **options: Any) -> Examination:
        seen = examine(*args, **options)
        return replace(seen, outputs=tuple({name: 0.8 * y for name, y in o.items()} for o in seen.outputs))

    monkeypatch.setattr(module, "examine", wrong)
    found = onnxq.verify(artifact, feeds_for(residual()), backend="onnxruntime")
    said = [remark for remark in found.remarks if "overflow" in remark]
    assert len(said) == told and all("weight 'w" in remark and "'onnxq deploy' stores" in remark for remark in said)


def test_sums_with_activations_of_16_bits_do_not_overflow() -> None:
    found = {}
    for bits in (8, 16):
        options = Options(placement="all", act_bits=bits, reduce_range=False)
        found[bits] = overflowing_weights(onnxq.quantize(residual(), feeds_for(residual()), options=options))
    assert found[8] and not found[16]


@pytest.mark.parametrize("layers", [False, True])
def test_a_runtime_that_computes_something_else_is_a_fault_and_the_next_command_is_named(
    layers: bool, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A runtime may join layers: each by itself is right then."""
    module = sys.modules["onnxq.measuring.in_runtime"]

    def wrong(*args: Any, **options: Any) -> Examination:
        seen = examine(*args, **options)
        return replace(seen, outputs=tuple({name: 0.8 * y for name, y in o.items()} for o in seen.outputs))

    monkeypatch.setattr(module, "examine", wrong)
    np.savez(tmp_path / "d.npz", x=np.stack([f["x"] for f in feeds_for(residual())]))
    command = ["verify", str(artifact), "--backend", "onnxruntime", "--data", str(tmp_path / "d.npz")]
    assert main([*command, *(["--layers"] if layers else [])]) == 3
    out = capsys.readouterr().out
    assert re.search(r"against float +y: 14\.0 dB, in simulation \d\d", out)
    assert re.search(r"fault +output 'y' has 14\.0 dB, the floor is 30 dB", out)
    assert ("each layer alone is right" in out) == layers
    assert (
        f"onnxq verify {artifact / 'model_onnxruntime.onnx'} --backend onnxruntime --data DATA --layers" in out
    ) != layers


def test_the_command_line(artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "d.npz", x=np.stack([f["x"] for f in feeds_for(residual())]))
    data = ["--data", str(tmp_path / "d.npz")]
    assert main(["verify", str(artifact), "--backend", "onnxruntime", *data]) == 0
    out = capsys.readouterr().out
    for word in ("artifact", "integer", "agreement", "compared"):
        assert word in out
    assert main(["verify", str(artifact), *data, "--min-sqnr", "300", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["below_floor"] is True


@pytest.mark.parametrize("how", [[], ["--simulation"]])
def test_integer_outputs_have_the_figure_of_quantize(
    how: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build(
        """(float[1, 4, 8, 8] x) => (float[1, 6, 8, 8] y, int64[1, 8, 8] top) {
            y = Conv <pads = [1, 1, 1, 1]> (x, w)
            top = ArgMax <axis = 1, keepdims = 0> (y)
        }""",
        w=normal(6, 4, 3, 3),
    )
    source, output, data = (str(tmp_path / name) for name in ("m.onnx", "q.onnx", "d.npz"))
    onnx.save(model, source)
    np.savez(data, x=np.stack([f["x"] for f in images(1, 4, 8, 8)]))
    assert main(["quantize", source, "--data", data, "-o", output, "--placement", "all"]) == 0
    (made,) = re.findall(r"agreement +top: (\d+\.\d\d% of [\d,]+ values equal)", capsys.readouterr().out)
    assert main(["verify", output, "--data", data, "--backend", "onnxruntime", *how]) == 0
    out = capsys.readouterr().out
    (seen,) = re.findall(r"top: (\d+\.\d\d% of [\d,]+ values equal)", out)
    assert ": -" not in out
    if how:
        assert float(made.partition("%")[0]) < 100 and re.search(r"agreement +top: ", out)
    else:
        assert seen.startswith("100.00%")


def test_few_bits_are_no_disagreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against the float model the floor is that of ``quantize``, not that of two runtimes."""
    feeds = feeds_for(residual())
    options = Options(weight_bits=3, act_bits=3)
    made = onnxq.quantize(residual(), feeds, backend="academic", output=tmp_path / "out", options=options)
    np.savez(tmp_path / "d.npz", x=np.stack([f["x"] for f in feeds]))
    command = ["verify", str(made.files[0]), "--backend", "academic", "--data", str(tmp_path / "d.npz"), "--json"]
    assert main(command) == 0
    worst = json.loads(capsys.readouterr().out)["outputs"]["y"]["sqnr"]
    assert 10 < worst < 30
    assert main([*command, "--min-sqnr", "30"]) == 3


def test_a_folder_with_targets_of_like_names(tmp_path: Path) -> None:
    for name in ("qnn", "onnx_qnn"):
        onnxq.quantize(residual(), feeds_for(residual()), backend=name, output=tmp_path)
    for name in ("qnn", "onnx_qnn"):
        assert find_artifact(tmp_path, name).name == f"model_{name}.onnx"
    (tmp_path / "model_qnn.onnx").unlink()
    with pytest.raises(OutputError, match=r"holds 0 files \*_qnn\.onnx"):
        find_artifact(tmp_path, "qnn")


def test_what_is_no_artifact_of_the_target(tmp_path: Path) -> None:
    onnx.save(residual(), tmp_path / "float.onnx")
    made = onnxq.quantize(residual(), feeds_for(residual()), backend="ncnn", output=tmp_path)
    qdq = onnxq.quantize(residual(), feeds_for(residual()), backend="tvm", output=tmp_path)
    for path, backend, message in [
        (tmp_path / "float.onnx", "academic", "quantizers in it: it has none"),
        (made.files[0], "tengine", "as tengine: (.|\n)*it has none"),
        (qdq.files[0], "ncnn", "QuantizeLinear and DequantizeLinear, which ncnn does not take"),
    ]:
        with pytest.raises(BackendError, match=message):
            onnxq.verify(path, backend=backend)
    assert onnxq.verify(made.files[0], backend="ncnn", simulation=True).format == "ncnn"
    made.files[1].write_text(made.files[1].read_text().replace(" ", " no number ", 1))
    left = onnxq.quantize(residual(), feeds_for(residual()), backend="vitis", options=Options(exclude=("*",)))
    written = left.written(tmp_path / "left.onnx")
    assert not can_be_read(written), "no next step asks to verify it"
    with pytest.raises(BackendError, match=r"it has none(.|\n)*where nothing was quantized there is nothing to verify"):
        onnxq.verify(written.files[0], backend="vitis")
    with pytest.raises(BackendError, match="no scales"):
        onnxq.verify(made.files[0], backend="ncnn", simulation=True)


def test_a_format_that_cannot_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No next step asks to verify it, and the message does not ask for the target that was named."""
    stpu = backend_named("stpu")
    one_way = replace(stpu, formats={"ranges": replace(stpu.formats["ranges"], read=None)})
    made = onnxq.quantize(residual(), feeds_for(residual()), backend="stpu", output=tmp_path)
    assert can_be_read(made) and not can_be_read(replace(made, backend=one_way))
    monkeypatch.setattr(sys.modules["onnxq.verify"], "backend_named", lambda _: one_way)
    with pytest.raises(BackendError, match="stpu has no way to read its format 'ranges' back") as raised:
        onnxq.verify(made.files[0], backend="stpu")
    assert "--backend" not in str(raised.value)
    for backend, printed in ((stpu, True), (one_way, False)):
        quantized(Screen(text := io.StringIO()), "m.onnx", None, replace(made, backend=backend), 1.0, verbose=False)
        assert ("onnxq verify" in text.getvalue()) == printed


def test_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"holds 0 files \*_onnxruntime\.onnx"):
        onnxq.verify(tmp_path, backend="onnxruntime")
    with pytest.raises(OutputError, match="no such file"):
        onnxq.verify(tmp_path / "gone", backend="onnxruntime")


@pytest.mark.parametrize("backend", ["qnn", "rknn"])
def test_samples_of_several_sizes_where_a_runtime_compiles_for_one(backend: str, tmp_path: Path) -> None:
    model = build("(float[1, 3, H, 8] x) => (float[1, 4, H, 8] y) { y = Conv (x, w) }", w=normal(4, 3, 1, 1))
    feeds = [{"x": normal(1, 3, size, 8)} for size in (6, 8)]
    made = onnxq.quantize(model, feeds, backend=backend, output=tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=r"for one size, and samples of input 'x' have 1x3x6x8 and 1x3x8x8") as caught:
        onnxq.verify(made, feeds)
    assert "--samples 1" in str(caught.value)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_timeout_that_is_over_before_it_began(seconds: float, artifact: Path) -> None:
    with pytest.raises(OptionError, match=r"timeout: .* is not a number of seconds above 0"):
        onnxq.verify(artifact, feeds_for(residual()), timeout=seconds)


def test_a_timeout_may_be_a_number_of_numpys(artifact: Path) -> None:
    found = onnxq.verify(artifact, feeds_for(residual()), timeout=cast(float, np.float32(300)))
    assert found.outputs


def test_layers_of_a_float_model_with_a_table_are_refused_before_the_data_is_read(tmp_path: Path) -> None:
    onnxq.quantize(residual(), feeds_for(residual()), backend="snpe", output=tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=r"only its weights are integers, .* or in a table beside it"):
        onnxq.verify(tmp_path / "m.onnx", tmp_path / "no such data", backend="snpe", layers=True)


@pytest.mark.parametrize("backend", ["tensorrt", "academic"])
def test_layers_are_refused_before_anything_is_read(tmp_path: Path, backend: str) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model at all")
    with pytest.raises(OptionError, match=f"layers are compared in a runtime, and that of {backend}"):
        onnxq.verify(tmp_path / "m.onnx", backend=backend, layers=True)


def test_a_result_in_memory(tmp_path: Path) -> None:
    made = onnxq.quantize(residual(), feeds_for(residual()), backend="tengine")
    with pytest.raises(OptionError, match="was not written"):
        onnxq.verify(made, feeds_for(residual()))
    made = made.written(tmp_path / "out.onnx")
    found = onnxq.verify(made, feeds_for(residual()))
    known = onnxq.verify(tmp_path / "out.onnx", feeds_for(residual()), backend="tengine")
    assert found.backend == "tengine" and found.to_dict() == known.to_dict()


def test_a_float_model_is_said_to_be_one(artifact: Path, tmp_path: Path) -> None:
    onnx.save(residual(), tmp_path / "float.onnx")
    (said,) = onnxq.verify(tmp_path / "float.onnx", feeds_for(residual())).remarks
    assert "carries no quantizers" in said
    assert not onnxq.verify(artifact, feeds_for(residual())).remarks
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx", weight_type=QuantType.QUInt8)
    assert not onnxq.verify(tmp_path / "dynamic.onnx", feeds_for(residual())).remarks, "it computes in integers"


def test_a_table_of_another_target_beside_the_model(tmp_path: Path) -> None:
    made = onnxq.quantize(residual(), feeds_for(residual()), backend="snpe", output=tmp_path / "out.onnx")
    assert len(made.files) == 2
    with pytest.raises(BackendError, match=r"a table lies beside it that snpe would read.*--backend snpe"):
        onnxq.verify(tmp_path / "out.onnx", feeds_for(residual()))


def test_what_a_rewrite_cost_is_not_in_the_figures_of_verify_and_said_by_quantize(tmp_path: Path) -> None:
    """A DPU has no Sigmoid: the float model inside has a HardSigmoid."""
    model = build(
        "(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) { a = Conv (x, w)\n s = Sigmoid (a)\n y = Conv (s, w) }",
        w=normal(4, 4, 1, 1),
    )
    feeds = feeds_for(model)
    made = onnxq.quantize(model, feeds, backend="vitis", output=tmp_path / "out.onnx")
    assert made.verification is not None
    (said,) = [text for text in made.verification.warnings if "before anything is quantized" in text]
    want, got = (np.concatenate([Session(m).run(f)["y"] for f in feeds]) for m in (load(model), made.model))
    assert made.verification.samples == len(feeds), "it is measured on all that verify"
    figure = 10 * np.log10(np.square(want).sum() / np.square(want - got).sum())
    assert f"'y' {figure:.1f} dB" in said
    found = onnxq.verify(made, feeds, simulation=True)
    assert "rewritten for vitis first" in found.compared
    assert found.worst is not None and found.worst[1].sqnr > made.verification.outputs["y"].sqnr + 6
    exact = onnxq.quantize(residual(), feeds_for(residual()), backend="vitis").verification
    assert exact is not None and not any("before anything" in text for text in exact.warnings)


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN"])
def test_inputs_and_outputs_of_types_that_numpy_lacks(kind: str, tmp_path: Path) -> None:
    numbers, dtype = getattr(onnx.TensorProto, kind), helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, kind))
    model = build(
        f"(bfloat16[4, 64] x, float[4, 64] z) => (bfloat16[4, 32] y) {{ a = Cast <to = 1> (x) \n b = Add (a, z) \n"
        f"m = MatMul (b, w) \n y = Cast <to = {numbers}> (m) }}",
        opset=21,
        ir_version=10,
        w=normal(64, 32),
    )
    for end in (model.graph.input[0], model.graph.output[0]):
        end.type.tensor_type.elem_type = numbers
    onnx.save(model, tmp_path / "m.onnx")
    onnxq.weight_only.quantize_weights(tmp_path / "m.onnx", tmp_path / "q.onnx")
    feeds = [{"x": normal(4, 64, seed=k).astype(dtype), "z": normal(4, 64, seed=9 + k, scale=1.0)} for k in range(3)]
    found = onnxq.verify(tmp_path / "q.onnx", feeds)
    assert found.outputs["y"].sqnr > 15


@pytest.mark.parametrize("algorithm", ["weight_only", "dynamic"])
def test_weights_in_blocks_are_not_said_to_be_no_scales(
    algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx")
    onnx.save(build("(float[4, 64] x) => (float[4, 64] y) { y = MatMul (x, w) }", w=normal(64, 64)), source)
    assert main(["quantize", source, "-o", output, "--algorithm", algorithm]) == 0
    capsys.readouterr()
    assert main(["verify", output]) == 0
    shown = capsys.readouterr().out
    assert "weights in blocks and ranges taken at run time" in shown and "0 tensors" not in shown


@pytest.mark.parametrize("simulation", [False, True])
def test_data_that_holds_no_numbers_verifies_nothing(artifact: Path, simulation: bool) -> None:
    data = [{name: np.full_like(array, np.nan) for name, array in feed.items()} for feed in feeds_for(residual())]
    with pytest.raises(DataError, match="no sample can be used: each holds NaN or infinity"):
        onnxq.verify(artifact, data, simulation=simulation)
    assert onnxq.verify(artifact, [*feeds_for(residual()), *data[:1]], simulation=simulation).ok


@pytest.mark.parametrize("make", ["dynamic", "weight_only", "weight_only of a large model"])
def test_a_result_made_without_data_says_where_nothing_was_compared(
    make: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("(float[1, 64] x) => (float[1, 64] y) { y = MatMul (x, w) }", w=normal(64, 64))
    data = np.full((8, 64), np.nan, np.float32)
    if make == "dynamic":
        made = dynamic.rewrite(model, data, output=tmp_path / "q.onnx")
    else:
        if make != "weight_only":
            monkeypatch.setattr("onnxq.weight_only.examine._WHOLE_BYTES", 0)
        made = quantize_weights(model, tmp_path / "q.onnx", data=data)
    assert any("output 'y': nothing was compared" in warning for warning in made.verification.warnings)
