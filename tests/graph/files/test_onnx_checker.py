from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxq.errors import ModelError
from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check
from tests.graph.helpers import build, random


def test_sound_model_passes_and_stays() -> None:
    model = load(build("g (float[1,64] x) => (float[1,8] y) { y = MatMul(x, w) }", w=random(64, 8)))
    check(model)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert list(model.graph.initializers) == ["w"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("y = Rellu(x)", "Rellu"),
        ("y = MatMul(x, x)", "(?i)incompatible|dimension"),
        ("y = Softmax<axis = 7>(x)", "axis"),
        ("y = Relu<slope = 1.0>(x)", "slope"),
    ],
)
def test_what_the_checker_refuses(body: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        check(load(build(f"g (float[1,8] x) => (float[1,8] y) {{ {body} }}")))


def test_other_domains_are_not_looked_into() -> None:
    proto = build("g (float[4] x) => (float[4] y) { a = Relu(x) \n y = Neg(a) }")
    proto.graph.node[0].domain, proto.graph.node[0].op_type = "com.example", "Thing"
    proto.opset_import.add(domain="com.example", version=1)
    check(load(proto))


def test_domain_that_is_not_imported() -> None:
    proto = build("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    proto.graph.node[0].domain = "com.example"
    with pytest.raises(ModelError, match=r"com\.example"):
        check(load(proto))


def test_initializer_that_belies_its_declared_shape() -> None:
    model = load(build("g (float[4] x) => (float[4] y) { y = Add(x, w) }", w=random(4)))
    import onnx_ir as ir

    model.graph.initializers["w"].shape = ir.Shape([2, 2])
    with pytest.raises(ModelError, match="declared with shape"):
        check(model)


def test_output_of_unknown_rank() -> None:
    proto = build("g (float[4] x, int64[s] d) => (float[4] y) { y = Reshape(x, d) }")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(proto)
    check(load(proto))


def test_large_tensors_are_not_serialized(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(
        build("g (float[1,1000] x) => (float[1,1000] y) { y = MatMul(x, w) }", w=np.zeros((1000, 1000), np.float32))
    )
    sizes: list[int] = []
    original = onnx.checker.check_model

    def measured(proto: onnx.ModelProto, **options: bool) -> None:
        sizes.append(proto.ByteSize())
        original(proto, **options)

    monkeypatch.setattr(onnx.checker, "check_model", measured)
    check(model)
    assert sizes[0] < 1000


def test_an_input_without_a_shape_is_named() -> None:
    proto = build("g (float[1,8] x, float[1,8] h) => (float[1,8] y) { y = Add(x, h) }")
    proto.graph.input[1].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="input 'h': it is declared without a shape"):
        check(load(proto))
