"""``onnxq::DynamicFakeQuantize``: 8 bits with the range that a tensor has at each run, as a model-local ONNX function.

It runs in plain onnxruntime with no custom-op library, from opset 18 on::

    DynamicFakeQuantize(x, axes)             x float32 of any shape, axes int64: those that have one range together
        low, high = min(min(x over axes), 0), max(max(x over axes), 0)
        rate = 255 / (high - low), 1 where both are 0
        end = -128 - low * rate where (-128 + low * rate) + (127 + high * rate) > 0, else 127 - high * rate
        zero = clip(round_half_even(end), -128, 127)
        = (clip(round_half_even(x * rate) + zero, -128, 127) - zero) * (1 / rate)

These are the numbers of XNNPACK's dynamically quantized operands ("qd8", ``xnn_f32_qd8_asymmetric_quantization_params``
in its source), in the order in which it rounds to float32: of a range as far below 0 as above it the zero point lies
half-way between two integers, and rows of an int8 table have such ranges.
"""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from onnxq.graph.edits import remove_nodes, replace_value
from onnxq.graph.traverse import all_nodes
from onnxq.render.fake_quantize import DOMAIN, VERSION

__all__ = ["NAME", "OPSET", "node", "register", "take_out"]

NAME = "DynamicFakeQuantize"
OPSET = 18
"""The first whose ReduceMin and ReduceMax read their axes."""
_FUNCTION = f"""
<domain: "{DOMAIN}", opset_import: ["" : VERSION]>
{NAME} (x, axes) => (y)
{{
    none = Constant <value_float = 0.0> ()
    one = Constant <value_float = 1.0> ()
    steps = Constant <value_float = 255.0> ()
    least = Constant <value_float = -128.0> ()
    most = Constant <value_float = 127.0> ()
    lowest = ReduceMin (x, axes)
    low = Min (lowest, none)
    highest = ReduceMax (x, axes)
    high = Max (highest, none)
    width = Sub (high, low)
    in_width = Div (steps, width)
    is_flat = Equal (width, none)
    rate = Where (is_flat, one, in_width)
    low_steps = Mul (low, rate)
    high_steps = Mul (high, rate)
    low_error = Add (least, low_steps)
    high_error = Add (most, high_steps)
    error = Add (low_error, high_error)
    is_above = Greater (error, none)
    from_low = Sub (least, low_steps)
    from_high = Sub (most, high_steps)
    end = Where (is_above, from_low, from_high)
    near = Round (end)
    zero = Clip (near, least, most)
    ratio = Mul (x, rate)
    rounded = Round (ratio)
    shifted = Add (rounded, zero)
    code = Clip (shifted, least, most)
    centred = Sub (code, zero)
    scale = Div (one, rate)
    y = Mul (centred, scale)
}}
"""


def node(x: ir.Value, axes: ir.Value, name: str) -> ir.Node:
    """A call of the function.

    Args:
        x: float32 tensor.
        axes: int64 list of the axes over which a range is taken.
        name: the node's name.
    """
    return ir.node(NAME, [x, axes], domain=DOMAIN, name=name)


def register(model: ir.Model) -> None:
    """Add the function and its domain to a model, once."""
    key = (DOMAIN, NAME, "")
    if key not in model.functions:
        text = _FUNCTION.replace("VERSION", str(model.opset_imports[""]))
        model.functions[key] = ir.serde.deserialize_function(onnx.parser.parse_function(text))
        model.opset_imports[DOMAIN] = VERSION


def take_out(model: ir.Model) -> None:
    """Let what reads a rounded tensor read the tensor itself: rounding it is what a target's kernels do."""
    for node in list(all_nodes(model)):
        if (node.domain, node.op_type) == (DOMAIN, NAME) and (x := node.inputs[0]) is not None:
            replace_value(node.outputs[0], x)
            remove_nodes([node])
