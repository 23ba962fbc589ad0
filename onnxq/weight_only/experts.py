"""Experts: onnxruntime's MoE becomes QMoE, which multiplies with weights as they are stored; and what chooses them.

QMoE's weights, from the operator's documentation: uint8 (experts, outputs, inputs * bits / 8), lower half first; scales
(experts, outputs, blocks); zero points uint8 (experts, outputs, ceil(blocks * bits / 8)), and ``2^(bits - 1)`` where
there are none. onnxruntime's CPU kernel (1.31) multiplies with those of 4 bits exactly; with those of 8 bits it rounds
the activations as well, which leaves 41 dB on random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from onnxq.weight_only.find import EXPERTS, Matrix
from onnxq.weight_only.grid import Coded
from onnxq.weight_only.tensors import pack

__all__ = ["as_qmoe", "complete", "expert_tensors"]

_T = TypeVar("_T")


def expert_tensors(coded: Coded, unsigned: np.ndarray, matrix: Matrix) -> dict[str, ir.TensorProtocol]:
    """``"codes"``, ``"scale"`` and, where there are any, ``"zero"``, as QMoE reads them.

    Args:
        coded: (experts * outputs, inputs).
        unsigned: its codes as uint8.
        matrix: what was coded.
    """
    bits, shape = coded.spec.bits, (*matrix.rows, -1)
    parts: dict[str, ir.TensorProtocol] = {
        "codes": ir.Tensor(pack(unsigned, bits).reshape(shape)),
        "scale": ir.Tensor(coded.scale.reshape(shape)),
    }
    if not coded.spec.symmetric:
        parts["zero"] = ir.Tensor(pack(coded.zero, bits).reshape(shape))
    return parts


def complete(made: Iterable[tuple[Matrix, _T]]) -> list[tuple[Matrix, _T]]:
    """What was made, without weights of experts whose other weights could not be: QMoE takes all of them, or none."""
    made = list(made)
    held = [(node, matrix.value) for matrix, _ in made if matrix.experts for node in matrix.nodes]
    whole = {node for node, _ in held if {node.inputs[p] for p in EXPERTS} <= {v for n, v in held if n is node}}
    return [(matrix, parts) for matrix, parts in made if not matrix.experts or whole.issuperset(matrix.nodes)]


def as_qmoe(node: ir.Node, constants: Mapping[int, Sequence[ir.Value]], bits: int, block: int) -> ir.Node:
    """A QMoE of the name of a MoE.

    Args:
        node: the MoE.
        constants: position of a weight → integers, scales and perhaps zero points.
        bits: of the weights.
        block: inputs that share a scale.
    """
    inputs = [*node.inputs, *[None] * (max(EXPERTS) + 2 - len(node.inputs))]
    operands: list[ir.Value | None] = [*inputs[:2]]
    zeros: list[ir.Value] = []
    for position in EXPERTS:
        codes, scale, *zero = constants[position]
        operands += [codes, scale, inputs[position + 1]]
        zeros += zero
    if zeros:
        operands += [None, None, None, *zeros]
    attributes = [ir.Attr(a.name, a.type, a.value) for a in node.attributes.values()]
    attributes += [ir.AttrInt64("expert_weight_bits", bits), ir.AttrInt64("block_size", block)]
    return ir.Node(node.domain, "QMoE", operands, attributes, num_outputs=1, name=node.name)
