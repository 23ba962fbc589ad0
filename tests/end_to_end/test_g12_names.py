"""Group 12: names of nodes and tensors."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onnxq import ModelError, Options, calibrate, quantize
from onnxq.cli import main
from tests.cases import g12
from tests.contract import ALL, assert_contract, quantize_checked
from tests.models import images, renamed


def node_names(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in model.graph.node]


def test_dup_suffix_collision() -> None:
    """A bias that two layers share must be stored twice, and ``b0``, ``b_1`` … are taken."""
    result = quantize_checked(*g12.dup_suffix_collision())
    stored = [t.name for t in result.proto.graph.initializer if t.data_type == onnx.TensorProto.INT32 and t.dims == [4]]
    biases = {node.input[0] for node in result.proto.graph.node} & {*stored}
    assert len(biases) == 2


@pytest.mark.parametrize(
    "taken", ["x_quantized", "x_dequantized", "x_scale", "x_zero_point", "w1_quantized", "w1_scale", "y_dequantized"]
)
def test_names_that_onnxq_gives_are_taken(taken: str) -> None:
    result = quantize_checked(*g12.tensor_names_taken(taken))
    made = [name for node in result.proto.graph.node for name in node.output if name]
    made += [tensor.name for tensor in result.proto.graph.initializer]
    assert len(made) == len(set(made))


def test_empty_node_names() -> None:
    result = quantize_checked(*g12.empty_node_names())
    names = node_names(result.proto)
    assert all(names)
    assert len(names) == len(set(names))


def test_equal_node_names() -> None:
    """Which onnxruntime refuses to load."""
    model = g12.chain()
    for node in model.graph.node:
        node.name = "same"
    feeds = images(1, 3, 8, 8)
    quantized = quantize(model, feeds, options=ALL)
    result = ir.to_proto(quantized.rendered())
    assert assert_contract(g12.chain(), result, quantized, feeds)["y"] > 20
    names = node_names(result)
    assert "same" in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", g12.WEIRD)
def test_weird_names(name: str) -> None:
    """Of a node, an input, a weight and a tensor between two nodes, each of them kept."""
    model, feeds = g12.weird_names(name)
    result = quantize_checked(model, feeds)
    assert name in node_names(result.proto)
    assert [value.name for value in result.proto.graph.input] == [name]
    assert [value.name for value in result.proto.graph.output] == [f"{name} y"]
    assert json.loads(json.dumps(result.quantized.report()))["quantized_ops"] == {"Conv": 2}


@pytest.mark.parametrize("name", g12.WEIRD)
def test_weird_names_in_statistics_and_on_the_command_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The archive of statistics and the JSON of a run hold any name; no file is named after one."""
    model = renamed(g12.chain(), {"r": name, "w2": f"{name} w"})
    model.graph.node[0].name = name
    path, kept, output = tmp_path / "model.onnx", tmp_path / "statistics.npz", tmp_path / "out.onnx"
    onnx.save(model, path)
    statistics = calibrate(model, images(1, 3, 8, 8), output=kept)
    assert name in statistics.tensors
    arguments = ["--placement", "all", "--exclude", "c2", "--json"]
    assert main(["quantize", str(path), "--statistics", str(kept), "-o", str(output), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["backend"] == "onnxruntime"
    assert name in node_names(onnx.load(output))
    assert main(["show", str(output), "--all"]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "out.onnx", "statistics.npz"]


@pytest.mark.parametrize("name", ["größe 1", "/layer/0/..//conv", 'it\'s "quoted"'])
def test_weird_names_can_be_excluded(name: str) -> None:
    model = g12.chain()
    model.graph.node[0].name = name
    result = quantize_checked(model, images(1, 3, 8, 8), Options(placement="all", exclude=(name,)))
    assert "exclude" in result.reasons[name]


def test_weird_names_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "größe 'a b'"
    folder.mkdir()
    source, output = folder / "mein modell.onnx", folder / "层 (8 bit).onnx"
    onnx.save(g12.chain(), source)
    quantize_checked(source, images(1, 3, 8, 8), output=output)
    assert sorted(file.name for file in folder.iterdir()) == sorted([source.name, output.name])


def test_one_string_is_node_tensor_and_output_name() -> None:
    result = quantize_checked(*g12.one_name_for_node_and_output())
    assert {"c1", "c2"} <= set(node_names(result.proto))
    assert result.proto.graph.output[0].name == "c2"
    assert {"c1", "c2"} <= result.quantized.plan.quantized.keys()


def test_one_string_is_node_and_initializer_name() -> None:
    quantize_checked(renamed(g12.chain(), {"w1": "c1", "b1": "r1", "r": "c2"}), images(1, 3, 8, 8))


def test_a_node_is_named_as_onnxq_names_quantizers() -> None:
    result = quantize_checked(*g12.quantizer_names_taken())
    names = node_names(result.proto)
    assert len(names) == len(set(names))
    assert {"x_QuantizeLinear", "QuantizeLinear"} <= set(names)


def test_one_name_with_two_makers_is_refused_before_calibration() -> None:
    with pytest.raises(ModelError, match="'a'"):
        quantize(*g12.two_makers(), options=ALL)


def test_long_names() -> None:
    quantize_checked(*g12.long_names())
