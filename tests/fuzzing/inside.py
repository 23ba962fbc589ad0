"""Noise inside of an If or Loop: of a step of what each tensor holds there and then, as its range is not known before.

That step is no larger than one of the range over all samples and turns, so this is the least that rounding does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Noise"]

_KINDS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_FIXED = frozenset({"HardSigmoid", "Sigmoid", "Softmax"})
_SKIPPED = frozenset({"Constant", "Identity"})


@dataclass(frozen=True)
class Noise:
    """What disturbs the bodies and branches of a model.

    Attributes:
        kinds: element types of the tensors.
        opset: of the standard operators.
        times: steps of noise.
        rng: for the seeds.
        weight: changes a constant, given its name, in place where it may be a weight.
    """

    kinds: Mapping[str, int]
    opset: int
    times: float
    rng: np.random.Generator
    weight: Callable[[str, onnx.TensorProto], None]

    def disturb_inside(self, graph: onnx.GraphProto) -> None:
        """Add uniform noise to every float tensor that the nodes inside of a graph's nodes make, at all depths."""
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self._disturb(attribute.g)
                    self.disturb_inside(attribute.g)

    def _disturb(self, body: onnx.GraphProto) -> None:
        for tensor in body.initializer:
            self.weight(tensor.name, tensor)
        nodes: list[onnx.NodeProto] = []
        for node in body.node:
            made = onnx.NodeProto.FromString(node.SerializeToString())
            nodes.append(made)
            for attribute in made.attribute if made.op_type == "Constant" else ():
                if attribute.HasField("t"):
                    self.weight(made.output[0], attribute.t)
            if made.op_type in _SKIPPED:
                continue
            for position, name in enumerate(node.output):
                if self.kinds.get(name) in _KINDS:
                    made.output[position] = f"{name}__clean"
                    seed = float(self.rng.integers(1, 1 << 20))
                    fixed = made.op_type in _FIXED
                    nodes += _noise(name, self.kinds[name], self.times, seed, self.opset, fixed=fixed)
        del body.node[:]
        body.node.extend(nodes)


def _noise(name: str, kind: int, times: float, seed: float, opset: int, *, fixed: bool) -> list[onnx.NodeProto]:
    """``name`` = ``name__clean`` and uniform noise, its width times the 255th of the range with zero, or of 1."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)

    def constant(what: str, value: object, kind_of: np.dtype) -> onnx.NodeProto:
        tensor = numpy_helper.from_array(np.asarray(value, kind_of), f"{name}__{what}")
        return helper.make_node("Constant", [], [f"{name}__{what}"], value=tensor)

    if opset < 22:
        chosen: dict[str, Any] = {"dtype": TensorProto.FLOAT, "low": -0.5, "high": 0.5, "seed": seed}
        nodes = [helper.make_node("RandomUniformLike", [f"{name}__clean"], [f"{name}__random"], **chosen)]
    else:  # onnxruntime has none of that opset: the fraction of a number that hardly depends on the position before
        nodes = [
            helper.make_node("Shape", [f"{name}__clean"], [f"{name}__shape"]),
            helper.make_node("Size", [f"{name}__clean"], [f"{name}__size"]),
            constant("first", 0, np.dtype(np.int64)),
            constant("next", 1, np.dtype(np.int64)),
            helper.make_node("Range", [f"{name}__first", f"{name}__size", f"{name}__next"], [f"{name}__count"]),
            helper.make_node("Cast", [f"{name}__count"], [f"{name}__at"], to=TensorProto.FLOAT),
            constant("seed", seed % 1000, np.dtype(np.float32)),
            helper.make_node("Add", [f"{name}__at", f"{name}__seed"], [f"{name}__angle"]),
            helper.make_node("Sin", [f"{name}__angle"], [f"{name}__sine"]),
            constant("much", 43758.547, np.dtype(np.float32)),
            helper.make_node("Mul", [f"{name}__sine", f"{name}__much"], [f"{name}__large"]),
            helper.make_node("Floor", [f"{name}__large"], [f"{name}__floor"]),
            helper.make_node("Sub", [f"{name}__large", f"{name}__floor"], [f"{name}__fraction"]),
            constant("half", 0.5, np.dtype(np.float32)),
            helper.make_node("Sub", [f"{name}__fraction", f"{name}__half"], [f"{name}__centred"]),
            helper.make_node("Reshape", [f"{name}__centred", f"{name}__shape"], [f"{name}__random"]),
        ]
    nodes += [
        constant("step", times / 255, np.dtype(np.float32)),
        helper.make_node("Mul", [f"{name}__random", f"{name}__step"], [f"{name}__scaled"]),
        helper.make_node("Cast", [f"{name}__scaled"], [f"{name}__part"], to=kind),
    ]
    width = f"{name}__one"
    if fixed:
        nodes.append(constant("one", 1.0, dtype))
    else:
        width = f"{name}__width"
        nodes += [
            constant("flat", [-1], np.dtype(np.int64)),
            constant("zero", [0.0], dtype),
            helper.make_node("Reshape", [f"{name}__clean", f"{name}__flat"], [f"{name}__row"]),
            helper.make_node("Concat", [f"{name}__row", f"{name}__zero"], [f"{name}__all"], axis=0),
            helper.make_node("ReduceMax", [f"{name}__all"], [f"{name}__most"], keepdims=0),
            helper.make_node("ReduceMin", [f"{name}__all"], [f"{name}__least"], keepdims=0),
            helper.make_node("Sub", [f"{name}__most", f"{name}__least"], [width]),
        ]
    return [
        *nodes,
        helper.make_node("Mul", [f"{name}__part", width], [f"{name}__noise"]),
        helper.make_node("Add", [f"{name}__clean", f"{name}__noise"], [name]),
    ]
