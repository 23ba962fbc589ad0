"""LiteRT with ranges taken at each run: int8 weights, activations rounded to 8 bits by the kernels that multiply.

TensorFlow Lite's "dynamic range quantization". Weights of Gemm, MatMul and convolutions without groups are int8 -127 to
127 without a zero point, a scale for each output channel; inputs, outputs and biases of these operators are float. The
kernel finds the range of what it reads: of each row of a product, of each pixel of a convolution of single points, of
each sample of other convolutions. It multiplies integers and gives floats. All else stays float, depthwise convolutions
among it, which are twice as slow so. Tables of embeddings are int8, a scale for each row, as on the target ``litert``.

With ``--weight-bits 4`` weights of Gemm and MatMul lie two in a byte, as fast as those of 8 bits; rows of an odd number
have a byte each, with the same numbers. Convolutions keep 8 bits: XNNPACK has no kernels of 4, and others are slower
than with floats.

For transformers on CPUs, whose activations differ too much from one input to the next for fixed ranges; convolutional
nets are faster with those, and microcontrollers and NPUs want them: see the target ``litert``. Data is used to correct
what rounded weights shift, and to judge by.

The QDQ model beside the file computes what XNNPACK's kernels do, with an ``onnxq::DynamicFakeQuantize`` function in
front of each of the operators. LiteRT without XNNPACK computes otherwise: a row of a product has a range symmetric
about zero, a convolution of single points one range for a sample.

Verified with ai-edge-litert 2.3.0 on x86-64: each operator as in the model beside the file, to the rounding of floats.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.backend import OpRule
from onnxq.backends import litert
from onnxq.errors import OptionError
from onnxq.graph.edits import set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.traverse import all_nodes
from onnxq.options import Options
from onnxq.plan import Plan
from onnxq.render import dynamic_fake_quantize
from onnxq.render.wiring import describe

__all__ = ["BACKEND"]

_MULTIPLY = ("Conv", "Gemm", "MatMul")


def _without_groups(node: ir.Node) -> str | None:
    """A convolution without groups, over what the integer kernel convolves."""
    if node.attributes.get_int("group", 1) != 1:
        return "a convolution of groups is slower with ranges taken at each run than in float"
    when = litert.BACKEND.rules["Conv"].when
    return when(node) if when is not None else None


def _refuse(options: Options) -> None:
    """Refuse what the target with fixed ranges does, and an opset that lacks what the kernels' function consists of.

    Raises:
        OptionError: one is asked for.
    """
    if litert.BACKEND.refuses is not None:
        litert.BACKEND.refuses(options)
    least = dynamic_fake_quantize.OPSET
    if options.opset is not None and options.opset < least:
        what = f"opset {options.opset} cannot say what ranges taken at each run give"
        raise OptionError(what, where="opset", hint=f"Leave it out or ask for {least} or more")


def _take_ranges_at_run(model: ir.Model, plan: Plan) -> None:
    """Round what layers with stored weights read, each with the range that it has when the model runs."""
    namer, made = Namer(model), dict[tuple[object, ...], ir.Value]()
    for node in list(all_nodes(model)):
        x = node.inputs[0] if node.name in plan.quantized else None
        if x is None:
            continue
        axes = _ranged_together(node)
        key = (node.graph, x, axes)  # what one branch of an If makes the other cannot read
        if key not in made:
            made[key] = _rounded(node, x, axes, namer)
            dynamic_fake_quantize.register(model)
        node.replace_input_with(0, made[key])


def _ranged_together(node: ir.Node) -> tuple[int, ...]:
    """The axes of a row of a product, or of a sample of a convolution.

    One that takes every pixel, and each alone, XNNPACK computes by a product of matrices, whose rows are the pixels.
    """
    if node.op_type != "Conv":
        return (-1,)
    get, weight = node.attributes, node.inputs[1]
    assert weight is not None and weight.shape is not None
    ones = (*weight.shape[2:], *get.get_ints("strides", ()))
    of_points = all(size == 1 for size in ones) and not any(get.get_ints("pads", ()))
    return (1,) if of_points else tuple(range(1, len(weight.shape)))


def _rounded(node: ir.Node, x: ir.Value, axes: tuple[int, ...], namer: Namer) -> ir.Value:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    listed = set_constant(graph, namer, f"{x.name}_axes", np.array(axes, np.int64))
    made = dynamic_fake_quantize.node(x, listed, namer.node(f"{x.name}_{dynamic_fake_quantize.NAME}"))
    describe(made.outputs[0], namer.fresh(f"{x.name}_rounded"), ir.DataType.FLOAT, x.shape)
    graph.insert_before(node, [made])
    return made.outputs[0]


def _row(op: str) -> OpRule:
    """The row of the target with fixed ranges, of which only the weights are left."""
    rule = litert.BACKEND.rules[op]
    made = replace(rule, data=(), bias=None, output=False)
    # of 4 bits XNNPACK convolves nothing, and what does is slower than with floats
    return replace(made, when=_without_groups, weight_bits=frozenset({8})) if op == "Conv" else made


_RULES = [*map(_row, _MULTIPLY), litert.BACKEND.rules["Gather:constant"]]

BACKEND = replace(
    litert.BACKEND,
    name="litert_dynamic",
    title="LiteRT (TensorFlow Lite), ranges taken at each run",
    rules={rule.op: rule for rule in _RULES},
    formats={name: litert.BACKEND.formats[name] for name in ("tflite", "qdq")},
    bias="float",
    inputs_only=True,
    by_cost=False,
    complete_units=False,
    absorbed=frozenset(),
    refuses=_refuse,
    recast=_take_ranges_at_run,
    artifacts="model.tflite, model.onnx (QDQ)",
    verified="LiteRT 2.3.0 on x86-64 with XNNPACK: numbers",
    unverified="phones, GPUs",
)
