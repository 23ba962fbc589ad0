"""The executor: control flow, regions, gradients, what it refuses, and whole models."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest

from onnxq.errors import ModelError
from onnxq.plan import Edge
from tests.models import build, f32, normal

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch

from onnxq.torch.executor import Executor, unsupported_nodes
from tests.torch.ops.helpers import case

X = normal(2, 4, scale=1.0)
CHAIN = "(float[2, 4] x) => (float[2, 3] y) { a = MatMul (x, w)\n b = Relu (a)\n c = Sigmoid (b)\n y = MatMul (c, v) }"


def chain() -> ir.Model:
    model = ir.serde.deserialize_model(build(CHAIN, w=normal(4, 5), v=normal(5, 3, seed=1)))
    for number, node in enumerate(model.graph):
        node.name = f"n{number}"
    return model


@pytest.mark.parametrize("yes", [True, False])
def test_branches(yes: bool) -> None:
    text = """(float[2, 4] x, bool c) => (float[2, 4] y) {
        z = Relu (x)
        y = If (c) <
            then_branch = g () => (float[2, 4] t) { t = Add (z, w) },
            else_branch = h () => (float[2, 4] e) { k = Mul (z, x)
              e = Neg (k) }>
    }"""
    case(text, {"x": X, "c": np.array(yes)}, w=f32([1, 2, 3, 4]))


def test_loops() -> None:
    text = """(float[2, 4] x, int64 n) => (float[2, 4] y, float[N, 2, 4] rows) {
        y, rows = Loop (n, go, x) <
            body = g (int64 i, bool c, float[2, 4] s) => (bool on, float[2, 4] next, float[2, 4] row) {
              on = Identity (c)
              next = Mul (s, w)
              row = Sub (s, x)
            }>
    }"""
    case(text, {"x": X, "n": np.array(3, np.int64)}, w=f32([1, 2, 3, 4]), go=np.array(True))


@pytest.mark.parametrize(
    ("attribute", "type"),
    [
        ("value = float[2] {1.5, -2}", "float[2]"),
        ("value_float = 1.5", "float"),
        ("value_floats = [1.5, -2.0]", "float[2]"),
        ("value_int = 3", "int64"),
        ("value_ints = [3, -4]", "int64[2]"),
    ],
)
def test_constants_that_are_outputs(attribute: str, type: str) -> None:
    """Which stay nodes: an initializer would be no output of theirs."""
    case(f"(float[2, 4] x) => (float[2, 4] y, {type} k) {{ y = Relu (x)\n k = Constant <{attribute}> () }}", {"x": X})


def test_a_region_of_a_graph() -> None:
    executor = Executor(chain(), ["a"], ["c"])
    assert [node.op_type for node in executor.nodes] == ["Relu", "Sigmoid"]
    assert not executor.parameters
    a = torch.from_numpy(X)
    torch.testing.assert_close(executor.run({"a": a})["c"], torch.sigmoid(torch.relu(a)), rtol=0, atol=0)
    with pytest.raises(ModelError, match=r"the graph from b: it needs input 'x' too"):
        Executor(chain(), ["b"], ["a"])
    with pytest.raises(ModelError, match="no tensor named 'nothing'"):
        Executor(chain(), ["nothing"], ["c"])
    with pytest.raises(ModelError, match="no values were given for 'a'"):
        executor.run({})


def test_gradients_reach_constants_and_inputs() -> None:
    executor = Executor(chain())
    assert set(executor.parameters) == {"w", "v"}
    x = torch.from_numpy(X).requires_grad_()
    w = executor.parameters["w"].requires_grad_()
    executor.run({"x": x})["y"].sum().backward()
    by_hand = torch.from_numpy(X).requires_grad_(), w.detach().clone().requires_grad_()
    (torch.sigmoid(torch.relu(by_hand[0] @ by_hand[1])) @ executor.parameters["v"]).sum().backward()
    torch.testing.assert_close(x.grad, by_hand[0].grad)
    torch.testing.assert_close(w.grad, by_hand[1].grad)


def test_other_weights_and_quantizers() -> None:
    calls = []

    def halved(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x / 2

    executor = Executor(chain())
    w = torch.ones(4, 5)
    edges = {Edge("n0", 0): halved, Edge("n3", 1): halved}
    got = executor.run({"x": torch.from_numpy(X)}, weights={"w": w}, quantizers=edges)["y"]
    want = torch.sigmoid(torch.relu(torch.from_numpy(X) / 2 @ w)) @ (executor.parameters["v"] / 2)
    torch.testing.assert_close(got, want)
    assert len(calls) == 2


def test_one_quantizer_is_applied_once_to_a_tensor() -> None:
    text = "(float[2, 4] x) => (float[2, 4] y) { a = Relu (x)\n y = Mul (a, a) }"
    model = ir.serde.deserialize_model(build(text))
    model.graph[1].name = "m"
    calls = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x + 1

    Executor(model).run({"x": torch.from_numpy(X)}, quantizers={Edge("m", 0): counted, Edge("m", 1): counted})
    assert len(calls) == 1


def test_what_cannot_be_run_is_named_before_anything_runs() -> None:
    text = """(float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) {
        a = MeanVarianceNormalization (x)
        b = strange.Thing (a)
        y = Resize <antialias = 1, mode = "linear"> (b, , s)
    }"""
    model = ir.serde.deserialize_model(build(text, domains={"strange": 1}, s=f32([1, 1, 1, 1])))
    for node, name in zip(model.graph, "uvw", strict=True):
        node.name = name
    with pytest.raises(ModelError) as error:
        Executor(model)
    for part in (
        "node 'u' (MeanVarianceNormalization)",
        "node 'v' (strange::Thing)",
        "node 'w' (Resize) with antialias",
    ):
        assert part in str(error.value)
    assert len(unsupported_nodes(model.graph)) == 3
    assert Executor(model, ["x"], ["x"]).nodes == []


def test_a_failing_node_is_named() -> None:
    model = chain()
    with pytest.raises(ModelError, match=r"node 'n0' \(MatMul\): torch cannot run it"):
        Executor(model).run({"x": torch.zeros(2, 3)})


def test_without_torch_the_package_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from onnxq.errors import OptionError\n"
        "try:\n    import onnxq.torch.executor\n"
        "except OptionError as error:\n    assert 'pip install \"onnxq[torch]\"' in str(error), error\n"
        "else:\n    raise AssertionError\n"
        "from onnxq.algorithm_choice import chosen\n"
        "try:\n    chosen(['reconstruct'])\n"
        "except OptionError as error:\n    assert 'pip install \"onnxq[torch]\"' in str(error), error\n"
        "else:\n    raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
