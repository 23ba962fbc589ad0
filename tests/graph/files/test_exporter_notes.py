"""Notes of PyTorch's exporter: none in a result, and nothing else lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

import onnxq
from onnxq.graph.files.exporter_notes import drop_exporter_notes
from onnxq.graph.files.load import load
from tests.contract import ALL, quantize_checked
from tests.models import build, images, normal

TRACE = 'File "C:\\secret\\model.py", line 12, in forward\n' * 40


def note(thing: onnx.NodeProto | onnx.ValueInfoProto | onnx.GraphProto, **more: str) -> None:
    for key, value in {"pkg.torch.onnx.stack_trace": TRACE, "namespace": "model: secret.Net", **more}.items():
        thing.metadata_props.add(key=key, value=value)


def noted() -> onnx.ModelProto:
    model = build(
        """(float[2, 16] x, bool c) => (float[2, 8] y) {
            h = MatMul (x, w)
            a = Add (h, b)
            y = If (c) <then_branch = t () => (float[2, 8] p) { p = Relu (a) },
                        else_branch = e () => (float[2, 8] n) { n = Neg (a) }> }""",
        w=normal(16, 8, seed=1),
        b=normal(8, seed=2, scale=0.1),
    )
    inner = [a.g for a in model.graph.node[2].attribute]
    for node in (*model.graph.node, *(n for graph in inner for n in graph.node)):
        note(node, **{"pkg.onnxscript.rewriter.rule_name": "secret", "my.tool": "kept"})
    note(model.graph)
    note(model.graph.input[0])
    model.graph.value_info.append(helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [2, 8]))
    note(model.graph.value_info[0])
    helper.set_model_props(model, {"pkg.torch.version": "2.9", "labels": "[1, 2]"})
    return model


def test_all_are_dropped_and_counted_and_what_others_note_stays() -> None:
    model = load(noted())
    (said,) = drop_exporter_notes(model)
    written = ir.to_proto(model)
    assert b"secret" not in written.SerializeToString()
    assert written.SerializeToString().count(b"my.tool") == 5
    assert {p.key: p.value for p in written.metadata_props} == {"pkg.torch.version": "2.9", "labels": "[1, 2]"}
    gone = len(noted().SerializeToString()) - len(written.SerializeToString())
    counted = int(said.message.split()[0].replace(",", ""))
    assert 0.9 * gone < counted <= gone
    assert drop_exporter_notes(model) == []


def test_a_key_that_anyone_may_use_goes_with_its_like_only() -> None:
    model = build("(float[2] x) => (float[2] y) { y = Relu (x) }")
    model.graph.node[0].metadata_props.add(key="namespace", value="mine")
    assert drop_exporter_notes(load(model)) == []


def test_no_result_holds_any_and_the_size_of_the_float_file_is_the_true_one(tmp_path: Path) -> None:
    source, result = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(noted(), source)
    feeds = [{**feed, "c": np.array(True)} for feed in images(2, 16)]
    made = quantize_checked(source, feeds, ALL, output=result).quantized
    assert b"secret" not in result.read_bytes()
    assert "bytes of the exporter's notes on nodes dropped" in "\n".join(made.notes)
    assert made.verification is not None
    assert made.verification.float_bytes == source.stat().st_size
    assert made.verification.quantized_bytes == result.stat().st_size


def test_a_model_quantized_elsewhere_is_deployed_without_them(tmp_path: Path) -> None:
    feeds = images(2, 16)
    plain = build("(float[2, 16] x) => (float[2, 8] y) { y = MatMul (x, w) }", w=normal(16, 8, seed=1))
    onnxq.quantize(plain, feeds, output=tmp_path / "q.onnx", options=ALL)
    model = onnx.load(tmp_path / "q.onnx")
    for node in model.graph.node:
        note(node)
    onnxq.deploy(model, backend="onnxruntime", output=tmp_path / "d.onnx")
    assert b"secret" not in (tmp_path / "d.onnx").read_bytes()
