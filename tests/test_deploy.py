"""Models that carry quantizers already, made by onnxruntime, torch or onnxq, for other targets: scales are kept."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

import onnxq
from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.cli import main
from onnxq.errors import BackendError
from onnxq.notes.reasons import by_reason
from tests.contract import infer
from tests.models import build, constants_of, f32, images, normal
from tests.reader import Reader
from tests.running import open_session

Array = NDArray[Any]


def net() -> onnx.ModelProto:
    return build(
        """(float[1, 3, 12, 12] x) => (float[1, 10] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
            r = Relu (a)
            d = Conv <pads = [1, 1, 1, 1], group = 8> (r, w2, b2)
            s = Add (d, r)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (s)
            g = GlobalAveragePool (p)
            f = Flatten (g)
            y = Gemm <transB = 1> (f, w3, b3)
        }""",
        w1=normal(8, 3, 3, 3),
        b1=normal(8, seed=1, scale=0.1),
        w2=normal(8, 1, 3, 3, seed=2),
        b2=normal(8, seed=3, scale=0.1),
        w3=normal(10, 8, seed=4),
        b3=normal(10, seed=5, scale=0.1),
    )


FEEDS = images(1, 3, 12, 12)


def by_onnxruntime(
    tmp_path: Path, *, symmetric: bool, weights: QuantType = QuantType.QInt8, per_channel: bool = True
) -> onnx.ModelProto:
    """What onnxruntime's own quantizer makes of the net."""
    onnx.save(net(), tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "q.onnx",
        Reader(FEEDS),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
        weight_type=weights,
        extra_options={"ActivationSymmetric": symmetric},
    )
    return onnx.load(tmp_path / "q.onnx")


def scales_of(model: onnx.ModelProto) -> list[float]:
    """Every scale of a QDQ model, per-channel ones apart, sorted."""
    constants = constants_of(model)
    names = {n.input[1] for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    return sorted({float(v) for name in names for v in np.atleast_1d(constants[name])})


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_model_of_onnxruntimes_quantizer_keeps_its_scales(tmp_path: Path, symmetric: bool) -> None:
    source = by_onnxruntime(tmp_path, symmetric=symmetric)
    deployed = onnxq.deploy(source, backend="onnxruntime", output=tmp_path / "out.onnx")
    result = onnx.load(tmp_path / "out.onnx")
    activations = [float(deployed.qparams[s.name].scale) for s in deployed.plan.sites if s.role == "activation"]
    given = scales_of(source)
    assert activations and all(scale in given for scale in activations)
    assert {s.tensor for s in deployed.plan.sites if s.role == "activation"} >= {"x", "r"}
    want, got = (infer(m, FEEDS, optimize=False)["y"] for m in (source, result))
    worst = max(float(np.abs(a - b).max()) for a, b in zip(want, got, strict=True))
    step = max(activations)
    assert worst <= 2 * step, "the same quantizers give the same numbers, up to ties"
    onnx.checker.check_model(result, full_check=True)


def test_float_weights_behind_quantizers(tmp_path: Path) -> None:
    """As torch's exporter writes them: Q and DQ on the float weight, per channel."""
    model = build(
        """(float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            xq = QuantizeLinear (x, sx, zx)
            xd = DequantizeLinear (xq, sx, zx)
            wq = QuantizeLinear <axis = 0> (w, sw, zw)
            wd = DequantizeLinear <axis = 0> (wq, sw, zw)
            c = Conv <pads = [1, 1, 1, 1]> (xd, wd, b)
            r = Relu (c)
            rq = QuantizeLinear (r, sr, zx)
            y = DequantizeLinear (rq, sr, zx)
        }""",
        w=normal(4, 3, 3, 3),
        b=normal(4, seed=1),
        sx=f32(0.03),
        zx=np.int8(0),
        sr=f32(0.02),
        sw=f32([0.01, 0.011, 0.012, 0.013]),
        zw=np.zeros(4, np.int8),
    )
    feeds = images(1, 3, 8, 8)
    deployed = onnxq.deploy(model, backend="onnxruntime", output=tmp_path / "out.onnx")
    numbers = {s.tensor: deployed.qparams[s.name] for s in deployed.plan.sites if s.role != "bias"}
    assert float(numbers["x"].scale) == np.float32(0.03)
    assert numbers["w"].scale.tolist() == f32([0.01, 0.011, 0.012, 0.013]).tolist()
    want, got = (infer(m, feeds, optimize=False)["y"] for m in (model, onnx.load(tmp_path / "out.onnx")))
    for a, b in zip(want, got, strict=True):
        assert np.abs(a - b).max() <= 0.0201, "at most one step"
        assert np.mean(a != b) < 0.02


def test_fake_quantize_functions(tmp_path: Path) -> None:
    fake = tmp_path / "fake.onnx"
    made = onnxq.quantize(net(), FEEDS, output=fake, options=Options(placement="all", format="fake-quantize"))
    deployed = onnxq.deploy(fake, backend="onnxruntime", output=tmp_path / "out.onnx")
    for site in deployed.plan.sites:
        if site.role in ("activation", "weight"):
            assert np.array_equal(deployed.qparams[site.name].scale, made.qparams[site.name].scale), site.name
            assert np.array_equal(deployed.qparams[site.name].zero_point, made.qparams[site.name].zero_point)
    want, got = (infer(onnx.load(f), FEEDS, optimize=False)["y"] for f in (fake, tmp_path / "out.onnx"))
    assert max(float(np.abs(a - b).max()) for a, b in zip(want, got, strict=True)) < 1e-5
    session = open_session(tmp_path / "out.onnx")
    assert [i.name for i in session.get_inputs()] == ["x"] and [o.name for o in session.get_outputs()] == ["y"]


def test_a_float_model_is_refused() -> None:
    with pytest.raises(BackendError, match="carries no quantizers"):
        onnxq.deploy(net(), backend="onnxruntime")


def test_what_a_target_cannot_hold_is_named(tmp_path: Path) -> None:
    source = by_onnxruntime(tmp_path, symmetric=False)
    with pytest.raises(BackendError, match=r"'x': it is asymmetric: its zero point is \d+") as caught:
        onnxq.deploy(source, backend="tensorrt", output=tmp_path / "out.onnx")
    assert "Quantize the float model" in str(caught.value)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("backend", ["onnxruntime", "tvm", "qnn"])
def test_weights_with_a_zero_point_stay_as_given_where_the_runtime_takes_them(backend: str, tmp_path: Path) -> None:
    source = by_onnxruntime(tmp_path, symmetric=False, weights=QuantType.QUInt8, per_channel=False)
    given = constants_of(source)
    assert given["w1_zero_point"] != 128, "not in the middle"
    made = onnxq.deploy(source, backend=backend, output=tmp_path / "out.onnx")
    assert list(made.plan.quantized.values()).count("Conv") == 2 and "Gemm" in made.plan.quantized.values()
    stored = constants_of(onnx.load(tmp_path / "out.onnx"))
    for name in ("w1", "w2", "w3"):
        assert stored[f"{name}_scale"] == given[f"{name}_scale"]
        integers, kept = (next(v for k, v in m.items() if k.startswith(f"{name}_q")) for m in (given, stored))
        zeros = given[f"{name}_zero_point"].astype(int), stored[f"{name}_zero_point"].astype(int)
        np.testing.assert_array_equal(integers.astype(int) - zeros[0], kept.astype(int) - zeros[1])
    for optimize in (True, False):
        want, got = (infer(m, FEEDS, optimize=optimize)["y"] for m in (source, onnx.load(tmp_path / "out.onnx")))
        assert all(np.abs(a - b).max() <= 0.05 * np.abs(a).max() for a, b in zip(want, got, strict=True))


def test_a_table_with_a_zero_point_stays_as_given(tmp_path: Path) -> None:
    model = build(
        """(int64[3] x) => (float[3, 8] y) {
            t = DequantizeLinear (table, scale, zero)
            e = Gather (t, x)
            q = QuantizeLinear (e, step, middle)
            d = DequantizeLinear (q, step, middle)
            v = DequantizeLinear (w, step, none)
            y = MatMul (d, v)
        }""",
        table=np.random.default_rng(0).integers(0, 256, (4096, 16)).astype(np.uint8),
        scale=f32(0.01),
        zero=np.asarray(117, np.uint8),
        step=f32(0.02),
        middle=np.asarray(128, np.uint8),
        w=np.random.default_rng(1).integers(-127, 128, (16, 8)).astype(np.int8),
        none=np.asarray(0, np.int8),
    )
    onnxq.deploy(model, backend="onnxruntime", output=tmp_path / "out.onnx")
    feeds = [{"x": np.array([0, 7, 4095])}]
    want, got = (infer(m, feeds, optimize=False)["y"] for m in (model, onnx.load(tmp_path / "out.onnx")))
    np.testing.assert_allclose(want[0], got[0], rtol=1e-6)
    assert (tmp_path / "out.onnx").stat().st_size < 1.2 * model.ByteSize(), "the table is stored in 8 bits"


def test_a_model_of_torchs_exporter_keeps_its_scales(tmp_path: Path) -> None:
    """torch's own fake-quantize operators become Q and DQ on float weights and on activations."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.last = torch.nn.Conv2d(4, 2, 1)

        def forward(self, x: Any) -> Any:
            x = torch.fake_quantize_per_tensor_affine(x, 0.03, 0, -128, 127)
            scale, zero = torch.full((4,), 0.004), torch.zeros(4, dtype=torch.int32)
            w = torch.fake_quantize_per_channel_affine(self.first.weight, scale, zero, 0, -128, 127)
            y = torch.nn.functional.conv2d(x, w, self.first.bias, padding=1).relu()
            y = torch.fake_quantize_per_tensor_affine(y, 0.02, 0, -128, 127)
            v = torch.fake_quantize_per_tensor_affine(self.last.weight, 0.005, 0, -128, 127)
            return torch.nn.functional.conv2d(y, v, self.last.bias)

    path = tmp_path / "torch.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample = (torch.zeros(1, 3, 8, 8),)
        names = {"input_names": ["x"], "output_names": ["y"]}
        torch.onnx.export(Net().eval(), sample, path, dynamo=False, opset_version=17, **names)
    for backend in ("onnxruntime", "tensorrt", "openvino", "snpe"):
        deployed = onnxq.deploy(path, backend=backend, output=tmp_path / f"{backend}.onnx")
        scales = {float(q.scale.reshape(-1)[0]) for q in deployed.qparams.values() if q.spec.bits == 8}
        wanted = {np.float32(v) for v in (0.03, 0.02, 0.004, 0.005)}
        for value in wanted:
            assert min(abs(value - s) / value for s in scales) < 2e-5, f"{backend}: {value} among {scales}"
    feeds = images(1, 3, 8, 8)
    want, got = (infer(onnx.load(f), feeds, optimize=False)["y"] for f in (path, tmp_path / "onnxruntime.onnx"))
    off = np.concatenate([np.abs(a - b).reshape(-1) for a, b in zip(want, got, strict=True)])
    assert np.mean(off > 1e-3) < 0.02, "integer biases move few codes at ties"
    assert off.max() < 0.02


def pooled(step: float) -> onnx.ModelProto:
    """A mean whose step is far finer than that of what it is the mean of."""
    return build(
        """(float[1, 8, 4, 4] x) => (float[1, 4, 1, 1] y) {
            xq = QuantizeLinear (x, coarse, o)
            xd = DequantizeLinear (xq, coarse, o)
            m = GlobalAveragePool (xd)
            mq = QuantizeLinear (m, fine, o)
            md = DequantizeLinear (mq, fine, o)
            wq = QuantizeLinear (w, sw, ow)
            wd = DequantizeLinear (wq, sw, ow)
            c = Conv (md, wd)
            cq = QuantizeLinear (c, coarse, o)
            y = DequantizeLinear (cq, coarse, o)
        }""",
        w=normal(4, 8, 1, 1),
        sw=f32(0.02),
        ow=np.int8(0),
        coarse=f32(1.0),
        fine=f32(step),
        o=np.uint8(128),
    )


def test_a_scale_that_the_target_cannot_compute_with_is_moved_and_named(tmp_path: Path) -> None:
    """onnxruntime's QLinearGlobalAveragePool takes no ratio of scales from 256 on."""
    deployed = onnxq.deploy(pooled(1e-3), backend="onnxruntime", output=tmp_path / "out.onnx")
    numbers = {s.tensor: deployed.qparams[s.name] for s in deployed.plan.sites if s.role == "activation"}
    assert float(numbers["m"].scale) == pytest.approx(1 / 250)
    assert float(numbers["x"].scale) == 1.0
    assert [n for n in deployed.notes if "'m'" in n] == [
        "onnxruntime cannot compute with the scales given for 'm': they were changed"
    ]
    assert "1 scale of 1 tensor changed: onnxruntime cannot compute" in deployed.recipe[1]
    feeds = images(1, 8, 4, 4, samples=2)
    session = open_session(tmp_path / "out.onnx")
    assert [session.run(None, feed)[0].shape for feed in feeds] == [(1, 4, 1, 1)] * 2


def test_scales_that_fit_are_left_alone() -> None:
    deployed = onnxq.deploy(pooled(0.1), backend="onnxruntime")
    numbers = {s.tensor: float(deployed.qparams[s.name].scale) for s in deployed.plan.sites if s.role == "activation"}
    assert numbers["m"] == np.float32(0.1)
    assert not any("were moved" in note for note in deployed.notes)
    assert deployed.recipe == ("the scales of the model given",)


def test_every_tensor_whose_scales_were_moved_is_named_and_the_summary_counts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The HTP takes no range below 1e-4; nor does a large bias fit 32 bits beside small scales."""
    layers = "\n".join(
        f"""v{k} = DequantizeLinear <axis = 0> (w{k}_quantized, s{k}, z)
            c{k} = Conv (d{k}, v{k}{", b" if k == 6 else ""})
            q{k} = QuantizeLinear (c{k}, s, m)  d{k + 1} = DequantizeLinear (q{k}, s, m)"""
        for k in range(7)
    )
    constants: dict[str, Any] = {}
    for k in range(7):
        constants[f"w{k}_quantized"] = np.random.default_rng(k).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8)
        constants[f"s{k}"] = f32([0.02, 1e-8, 0.03, 1e-8]) if k < 6 else f32([0.01, 0.02, 0.005, 1e-5])
    model = build(
        f"""(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {{
            q = QuantizeLinear (x, s, m)  d0 = DequantizeLinear (q, s, m)
            {layers}
            y = Identity (d7)
        }}""",
        s=f32(0.03),
        m=np.uint8(128),
        z=np.zeros(4, np.int8),
        b=f32([0.1, 0.2, 0.3, 5000.0]),
        **constants,
    )
    onnx.save(model, tmp_path / "q.onnx")
    command = ["deploy", str(tmp_path / "q.onnx"), "--backend", "qnn", "-o", str(tmp_path / "o.onnx")]
    assert main(command) == 0
    assert "13 scales of 7 tensors changed: qnn cannot compute with those given" in " ".join(
        capsys.readouterr().out.split()
    )
    notes = " ".join(onnxq.deploy(model, backend="qnn").notes)
    assert all(f"'w{k}'" in notes for k in range(7))


def read_quantized(behind: str) -> onnx.ModelProto:
    """Nodes that make ``y``, behind an input ``xd`` and a weight ``wd`` of eight channels that have quantizers."""
    return build(
        f"""(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) {{
            xq = QuantizeLinear (x, s, o)
            xd = DequantizeLinear (xq, s, o)
            wq = QuantizeLinear (w, sw, ow)
            wd = DequantizeLinear (wq, sw, ow)
            {behind}
        }}""",
        w=normal(8, 8, 1, 1),
        s=f32(0.05),
        o=np.uint8(128),
        sw=f32(0.02),
        ow=np.int8(0),
    )


def test_what_has_no_numbers_is_said_once_for_all_tensors() -> None:
    model = read_quantized(
        """
            a = Conv (xd, wd)
            b = Conv (a, wd)
            c = Conv (b, wd)
            y = Conv (c, wd)
        """
    )
    kept = onnxq.deploy(model, backend="tensorrt").plan.kept_float
    said = [reason for reason, nodes in by_reason(kept) if len(nodes) == 3]
    assert said == ["each of 3 tensors ('a', 'b', ...) is not quantized in the model given"], kept


def test_what_is_asked_for_but_has_no_numbers_stays_float() -> None:
    """``include`` names a layer whose data the model given does not quantize: there is nothing to quantize it with."""
    model = read_quantized(
        """
            a = Conv (xd, wd)
            aq = QuantizeLinear (a, s, o)
            ad = DequantizeLinear (aq, s, o)
            e = Elu (ad)
            y = Conv (e, wd)
        """
    )
    deployed = onnxq.deploy(model, backend="onnxruntime", options=Options(include=("Conv",)))
    assert list(deployed.plan.quantized.values()) == ["Conv"]
    assert [k.reason for k in deployed.plan.kept_float if k.op == "Conv"] == [
        "tensor 'e' is not quantized in the model given"
    ]
    assert {site.name for site in deployed.plan.sites} == set(deployed.qparams)


def test_scales_that_are_found_while_running_are_refused_by_name(tmp_path: Path) -> None:
    """By onnxruntime's quantize_dynamic; the table of a Gather is stored as integers with a scale."""
    model = build(
        "(int64[1, 6] i) => (float[1, 6, 8] y) { e = Gather (t, i)\n h = Relu (e)\n y = MatMul (h, w) }",
        t=normal(32, 8),
        w=normal(8, 8, seed=1),
    )
    onnx.save(model, tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx", op_types_to_quantize=["MatMul", "Gather"])
    named = "1 DynamicQuantizeLinear, 1 MatMulInteger in the model compute their scales at run time"
    with pytest.raises(BackendError, match=named) as caught:
        onnxq.deploy(tmp_path / "dynamic.onnx", backend="snpe", output=tmp_path / "out.onnx")
    assert "Quantize the float model for snpe" in str(caught.value)
    assert not (tmp_path / "out.onnx").exists()
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "alone.onnx", op_types_to_quantize=["MatMul"])
    with pytest.raises(BackendError, match=named):
        onnxq.deploy(tmp_path / "alone.onnx", backend="onnxruntime")


def test_what_the_table_has_not_is_not_said_to_be_impossible(tmp_path: Path) -> None:
    """OpenVINO runs uint8 weights, in float; onnxq writes int8 ones for it."""
    model = by_onnxruntime(tmp_path, symmetric=False, weights=QuantType.QUInt8, per_channel=False)
    named = r"3 quantizers of this model are of a kind that onnxq does not write for openvino: 'w"
    with pytest.raises(BackendError, match=named) as c:
        onnxq.deploy(model, backend="openvino")
    assert re.search(r"it is asymmetric: its zero point is \d+; a symmetric uint8 has 128", str(c.value))
    assert "cannot hold" not in str(c.value)
    assert "Quantize the float model for openvino with 'onnxq quantize', or symmetrically" in str(c.value)
    assert onnxq.deploy(by_onnxruntime(tmp_path, symmetric=True), backend="openvino").plan.quantized, "as it says"


def two_convolutions(**changed: Any) -> onnx.ModelProto:
    """Of which the second reads what has scales of its own where they are given."""
    numbers: dict[str, Any] = {"s": f32(0.03), "z": np.uint8(120), "s1": f32(0.004), "z1": np.int8(0)}
    numbers |= {"s2": f32(0.005), "z2": np.int8(0), "sh": f32(0.02), "zh": np.uint8(0), **changed}
    axis = "<axis = 1>" if numbers["sh"].ndim else ""
    return build(
        f"""(float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {{
            xq = QuantizeLinear (x, s, z)  xd = DequantizeLinear (xq, s, z)
            v = DequantizeLinear (w_quantized, s1, z1)
            c = Conv <pads = [1, 1, 1, 1]> (xd, v)
            h = Relu (c)
            hq = QuantizeLinear {axis} (h, sh, zh)  hd = DequantizeLinear {axis} (hq, sh, zh)
            v2 = DequantizeLinear (w2_quantized, s2, z2)
            [second] d = Conv <pads = [1, 1, 1, 1], group = 4> (hd, v2)
            dq = QuantizeLinear (d, s, z)  y = DequantizeLinear (dq, s, z)
        }}""",
        w_quantized=np.random.default_rng(0).integers(-127, 128, (4, 4, 3, 3)).astype(np.int8),
        w2_quantized=np.random.default_rng(1).integers(-127, 128, (4, 1, 3, 3)).astype(np.int8),
        **numbers,
    )


@pytest.mark.parametrize(
    ("backend", "changed", "why"),
    [
        ("openvino", {"z2": np.int8(-9)}, "'w2': it is asymmetric: its zero point is -9; a symmetric int8 has 0"),
        ("rknn", {"z2": np.int8(-9)}, "'w2': it is asymmetric: its zero point is -9; a symmetric int8 has 0"),
        ("onnxruntime", {"sh": f32([0.02, 0.01, 0.015, 0.03]), "zh": np.zeros(4, np.uint8)}, "'h': it has a scale for"),
        ("snpe", {"sh": f32([0.02, 0.01, 0.015, 0.03]), "zh": np.zeros(4, np.uint8)}, "'h': it has a scale for"),
    ],
)
def test_a_layer_whose_quantizers_a_target_has_not_stays_float(
    backend: str, changed: dict[str, Any], why: str, tmp_path: Path
) -> None:
    model = two_convolutions(**changed)
    made = onnxq.deploy(model, backend=backend, output=tmp_path / "out.onnx")
    kept = {k.node: k.reason for k in made.plan.kept_float}
    assert why in kept["second"]
    assert list(made.plan.quantized.values()).count("Conv") == 1
    assert made.verification is not None
    told = [text for text in made.verification.warnings if why in text]
    assert len(told) == 1 and "stays float" in told[0]


def test_encodings_hold_the_zero_point_of_a_weight(tmp_path: Path) -> None:
    for form in ("encodings-1.0.0", "encodings-0.6.1", "encodings-2.0.0"):
        path = tmp_path / f"{form}.onnx"
        model = two_convolutions(z2=np.int8(-9))
        made = onnxq.deploy(model, backend="snpe", output=path, options=Options(format=form))
        back = backend_named("snpe").formats[form].read
        assert back is not None
        found = back(path)
        one, other = (q.qparams[s.name] for q in (made, found) for s in q.plan.sites if s.tensor == "w2")
        half = 0 if one.spec.signed == other.spec.signed else 128
        assert int(one.zero_point) == -9 and int(other.zero_point) == -9 + half and one.scale == other.scale
        want, got = (infer(ir.to_proto(q.rendered()), images(1, 4, 8, 8), optimize=False)["y"] for q in (made, found))
        np.testing.assert_allclose(want[0], got[0], atol=1e-5)


def test_weights_that_are_stored_stay_stored_where_their_layer_is_float(tmp_path: Path) -> None:
    """Only the second layer reads what is quantized; the weight of the first is large enough to store."""
    model = build(
        """(float[1, 64] x) => (float[1, 64] y) {
            v = DequantizeLinear (w_quantized, s, z)
            a = MatMul (x, v)
            q = QuantizeLinear (a, s, z)  d = DequantizeLinear (q, s, z)
            v2 = DequantizeLinear (w2_quantized, s, z)
            b = MatMul (d, v2)
            bq = QuantizeLinear (b, s, z)  y = DequantizeLinear (bq, s, z)
        }""",
        w_quantized=np.random.default_rng(0).integers(-127, 128, (64, 64)).astype(np.int8),
        w2_quantized=np.random.default_rng(1).integers(-127, 128, (64, 64)).astype(np.int8),
        s=f32(0.02),
        z=np.int8(0),
    )
    made = onnxq.deploy(model, backend="onnxruntime", output=tmp_path / "out.onnx")
    assert list(made.plan.stored.values()) == ["MatMul"] and list(made.plan.quantized.values()) == ["MatMul"]
    assert (tmp_path / "out.onnx").stat().st_size < 1.2 * model.ByteSize()
