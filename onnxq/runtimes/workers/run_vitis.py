"""Let amd-quark's rules for the NPU go over an XINT8 model, say what they would change, and run it in onnxruntime.

Remarks are all that AMD's own code finds: numbers that are not XINT8, positions that its refinement moves, operators
that its simulation of the DPU writes otherwise, quantizers that it takes out. No remark: it changes nothing.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import importlib.util
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from common import Request, serve

QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
AS_WRITTEN = "session.disable_quant_qdq"
"""The session option without integer kernels, of which those of x86 without VNNI cut off sums that the NPU holds."""
AVERAGES = ("AveragePool", "GlobalAveragePool", "ReduceMean", "HardSigmoid")


def version() -> str:
    import onnxruntime

    for name in ("quark", "torch"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"No module named {name!r}")
    return f"{importlib.metadata.version('amd-quark')} (onnxruntime {onnxruntime.__version__})"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Send what quark prints to stdout to nowhere."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def run(request: Request) -> dict[str, Any]:
    import onnx
    import onnxruntime

    model = onnx.load(str(request.model))
    remarks = [*not_xint8(model), *moved(model), *simulated(model), *between(model)]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(AS_WRITTEN, "1")
    session = onnxruntime.InferenceSession(str(request.model), options, providers=["CPUExecutionProvider"])
    for index, feeds in enumerate(request.feeds()):
        request.write(index, session.run(None, feeds))
    return {"outputs": [o.name for o in session.get_outputs()], "remarks": remarks}


def not_xint8(model: Any) -> list[str]:
    """Scales that are no powers of two, zero points that are not 0, types that are not int8, vectors of scales."""
    import onnx

    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if node.op_type not in QUANTIZERS:
            continue
        scale, zero = constants.get(node.input[1]), constants.get(node.input[2]) if len(node.input) > 2 else None
        if scale is None or zero is None or scale.size != 1 or zero.dtype != np.int8 or zero.any():
            found.append(f"{node.name}: not int8 with one scale and zero point 0")
        elif math.frexp(float(scale.reshape(())))[0] != 0.5:
            found.append(f"{node.name}: scale {float(scale.reshape(())):g} is not a power of two")
    return found


def moved(model: Any) -> list[str]:
    """Scales that quark's refinement changes."""
    import onnx

    with quiet():
        from onnxruntime.quantization.onnx_model import ONNXModel
        from quark.onnx.postprocess import adjust_quantize_info
        from quark.onnx.quantizers.interface import set_parameters_and_domain

        changed = copy.deepcopy(model)
        set_parameters_and_domain(changed)
        result = adjust_quantize_info(ONNXModel(changed), max_loop_num=5)
    now = {t.name: onnx.numpy_helper.to_array(t) for t in result.model.graph.initializer}
    found = []
    for tensor in model.graph.initializer:
        before, after = onnx.numpy_helper.to_array(tensor), now[tensor.name]
        if not np.array_equal(before, after):
            found.append(f"{tensor.name}: {before} became {after}")
    return found


def simulated(model: Any) -> list[str]:
    """Operators that quark's simulation of the DPU would write otherwise, and factors that differ from its own."""
    import onnx

    plain = onnx.shape_inference.infer_shapes(copy.deepcopy(model))
    ours = take_out_factors(plain)
    quantized = quantized_nodes(plain)
    before = {n.output[0]: n for n in copy.deepcopy(plain).graph.node}
    with quiet():
        from quark.onnx.postprocess import simulate_transforms

        result, _ = simulate_transforms(
            plain,
            lambda node: node.name in quantized,
            [],
            [n.name for n in plain.graph.node if n.name not in quantized],
            convert_softmax_to_dpu_version=False,
            convert_instance_norm_to_dpu_version=False,
            convert_clip_to_dpu_version=False,
        )
    constants = {n.output[0]: n for n in result.graph.node if n.op_type == "Constant"}
    made = {n.output[0]: n for n in result.graph.node}
    found, theirs = [], {}
    for name, node in made.items():
        scale = constants.get(name + "_Scale")
        if scale is not None:
            theirs[name] = float(np.float32(scale.attribute[0].t.float_data[0]))
            node = made[name + "_Mul"]
        was = before.get(name)
        if was is None:
            continue
        if was.op_type != node.op_type or attributes(was) != attributes(node):
            found.append(f"{was.op_type} {was.name}: became {node.op_type} {attributes(node)}")
    for name in sorted({*ours, *theirs}):
        here, there = ours.get(name, 1.0), theirs.get(name, 1.0)  # none is a factor of 1
        if here != there:
            found.append(f"{name}: factor {here:g} where quark has {there:g}")
    return found


def attributes(node: Any) -> dict[str, str]:
    import onnx

    return {a.name: str(onnx.helper.get_attribute_value(a)) for a in node.attribute}


def take_out_factors(model: Any) -> dict[str, float]:
    """Remove Muls by a number behind averages and HardSigmoids; their numbers by the tensor that they made."""
    import onnx

    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    makers = {n.output[0]: n for n in model.graph.node}
    found = {}
    for node in list(model.graph.node):
        if node.op_type != "Mul":
            continue
        source, number = makers.get(node.input[0]), constants.get(node.input[1])
        if source is not None and source.op_type in AVERAGES and number is not None and number.size == 1:
            found[node.output[0]] = float(number.reshape(()))
            source.output[0] = node.output[0]
            model.graph.node.remove(node)
    return found


def quantized_nodes(model: Any) -> set[str]:
    """Names of the nodes that a QuantizeLinear follows, and of LeakyRelus, which are part of the node before them."""
    read = {n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    return {n.name for n in model.graph.node if n.op_type == "LeakyRelu" or read & set(n.output)}


def between(model: Any) -> list[str]:
    """Quantizers between operators that quark computes together."""
    with quiet():
        from quark.onnx.quantization.quant_utils import get_annotate_tensors
    plain = copy.deepcopy(model)
    original: dict[str, str] = {}
    for node in plain.graph.node:
        if node.op_type in QUANTIZERS:
            original[node.output[0]] = original.get(node.input[0], node.input[0])
    for node in list(plain.graph.node):
        if node.op_type in QUANTIZERS:
            plain.graph.node.remove(node)
        else:
            node.input[:] = [original.get(name, name) for name in node.input]
    together = set(get_annotate_tensors(plain))
    quantizers = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]
    return [f"{n.name}: a quantizer inside what is computed together" for n in quantizers if n.input[0] in together]


if __name__ == "__main__":
    sys.exit(serve(version, run))
