"""Bounds of onnxruntime's integer kernels that the target keeps to, measured in the kernels themselves."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from onnxq.backends.onnxruntime_limits import _SOFTMAX_STEPS
from tests.models import f32


def test_step_of_onnxruntimes_softmax() -> None:
    """The bound itself, in onnxruntime's kernel: exact to a step at 148 steps for each element, wrong at 150."""

    def worst(elements: int, steps: float, scale: float) -> int:
        numbers = {"xs": f32(scale), "xz": np.uint8(0), "ys": f32(1 / steps), "yz": np.uint8(0)}
        graph = helper.make_graph(
            [helper.make_node("QLinearSoftmax", ["q", "xs", "xz", "ys", "yz"], ["y"], axis=-1, opset=13,
                              domain="com.microsoft")],
            "kernel",
            [helper.make_tensor_value_info("q", TensorProto.UINT8, ["n", elements])],
            [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()],
        )  # fmt: skip
        imports = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        q = np.random.default_rng(0).integers(0, 256, (200, elements)).astype(np.uint8)
        q[:20] = 255  # where everything is the largest number
        power = np.exp((q.astype(np.float64) - q.max(axis=1, keepdims=True)) * scale)
        exact = np.rint(power / power.sum(axis=1, keepdims=True) / np.float64(numbers["ys"]))
        return int(np.abs(np.minimum(exact, 255) - session.run(None, {"q": q})[0]).max())

    for elements in (1, 2, 7, 20, 196):
        for scale in (0.001, 0.02, 0.3):
            assert worst(elements, _SOFTMAX_STEPS * elements, scale) <= 1
        assert worst(elements, 150.0 * elements, 0.02) > 100
