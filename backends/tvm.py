"""Apache TVM (Relax): the QDQ model of onnxruntime's scheme, all that its table allows quantized.

TVM reads QuantizeLinear and DequantizeLinear as ``R.quantize`` and ``R.dequantize`` and computes between them in float:
it has no integer kernels for them, so no costs decide what is quantized. It is an independent interpreter of what a QDQ
model means. Activations are uint8 or uint16, weights int8 or int16; 4-bit integers it cannot load. The format
``fake-quantize`` is for onnxruntime: TVM cannot read its functions.

Verified on TVM 0.27.0.post1 (LLVM, x86-64), opsets 17 to 24: equal to onnxruntime without optimizations to the order in
which a convolution adds up. That moves a code by one where it is at a tie to the last bits of a float32: of an
EfficientNet-Lite0's and of a text detector's codes, layer by layer, one in a million.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.backends.onnxruntime import BACKEND as ONNXRUNTIME
from onnxq.graph.namer import Namer
from onnxq.graph.note import Note
from onnxq.graph.passes.constants import fold_constants
from onnxq.graph.passes.prune import remove_dead
from onnxq.graph.values import constant_array, replace_value, set_constant
from onnxq.render.formats import FAKE_QUANTIZE, QDQ

__all__ = ["BACKEND"]


def _tensors(node: ir.Node) -> tuple[int, ...]:
    """Positions of operands that are no scalars: TVM makes plain numbers of scalars that follow from shapes."""
    return tuple(k for k, v in enumerate(node.inputs) if v is not None and (v.shape is None or len(v.shape) > 0))


def _known_dimensions(model: ir.Model) -> list[Note]:
    """Compute what is picked from a shape where those dimensions are known, though others are free.

    TVM computes with picked dimensions in float64, which it then refuses to combine with a float32 tensor.
    """
    namer, picked = Namer(model), 0
    for node in list(model.graph):
        shape = node.inputs[0].producer() if node.op_type == "Gather" and node.inputs[0] is not None else None
        index = constant_array(node.inputs[1]) if shape is not None else None
        source = shape.inputs[0] if shape is not None and shape.op_type == "Shape" and not shape.attributes else None
        if source is None or source.shape is None or index is None or node.outputs[0].is_graph_output():
            continue
        rank = len(source.shape)
        dims = [source.shape[int(k) % rank] for k in index.reshape(-1) if -rank <= int(k) < rank]
        if len(dims) == index.size and all(isinstance(d, int) for d in dims):
            known = np.asarray(dims, np.int64).reshape(index.shape)
            replace_value(node.outputs[0], set_constant(model.graph, namer, node.outputs[0].name or "dims", known))
            picked += 1
    if not picked:
        return []
    remove_dead(model)
    return [Note("tvm", "", f"{picked} known dimensions became constants"), *fold_constants(model)]


_BINARY = {op: replace(ONNXRUNTIME.rules[op], data=_tensors) for op in ("Add", "Mul")}

BACKEND = Backend(
    name="tvm",
    title="Apache TVM (Relax)",
    activation=ONNXRUNTIME.activation,
    weight=ONNXRUNTIME.weight,
    rules={**ONNXRUNTIME.rules, **_BINARY},
    formats={"qdq": QDQ, "fake-quantize": FAKE_QUANTIZE},
    wide_domain="com.microsoft",
    weight_bits=frozenset(range(5, 17)),
    act_bits=frozenset({8, 16}),
    rewrite=_known_dimensions,
    stores_weights=True,
    runtime="tvm",
    artifacts="model.onnx (QDQ)",
    verified="TVM 0.27.0 (LLVM, x86-64): numbers of onnxruntime, codes at ties aside",
)
