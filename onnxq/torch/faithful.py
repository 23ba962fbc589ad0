"""Whether torch exports a module as what it computes: looked at before a training, not only behind it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import onnx
import torch

from onnxq.errors import ExecutionError
from onnxq.graph.files.load import load
from onnxq.graph.traverse import all_nodes
from onnxq.ort.session import Session
from onnxq.torch.agreement import apart, arrays, require_tensors
from onnxq.torch.insertion import tensors_of
from onnxq.torch.nodes import DOMAIN

__all__ = ["tell_of_unfaithful"]

Tensor = torch.Tensor
_TOLERANCE = 1e-2
"""Share of the largest output by which half of an output may differ: nothing is rounded yet."""


def tell_of_unfaithful(proto: onnx.ModelProto, example: tuple[Any, ...], wanted: Sequence[Tensor], *, of: str) -> None:
    """Run an exported module in onnxruntime before it is quantized, and warn where that gives something else.

    A model without some of the inputs, those that the module does not read, is not looked at.

    Args:
        proto: with marks; left unchanged.
        example: of the module's forward.
        wanted: what the module gives of it in evaluation mode.
        of: name of the user's class, for messages.

    Raises:
        VerificationError: the module gives more than tensors.
    """
    model = load(proto, again=True)
    for node in all_nodes(model):
        if node.domain == DOMAIN:
            node.domain, node.op_type = "", "Identity"
            node.attributes.clear()
    given = tensors_of(list(example))
    if len(given) != len(model.graph.inputs):
        return
    require_tensors(model, wanted)
    try:
        got = Session(model, optimize=False).run(arrays(model.graph.inputs, given))
    except ExecutionError as error:
        _tell(str(error), of)
        return
    for reason in apart(got, arrays(model.graph.outputs, wanted), tolerance=_TOLERANCE)[:1]:
        _tell(f"onnxruntime gives another tensor {reason}", of)


def _tell(what: str, of: str) -> None:
    warnings.warn(
        f"onnxq: torch exports {of} as something else than it computes, in float as it is now: {what}. "
        "onnxq.torch.export will refuse what is trained. Nothing random may be left in evaluation mode; code exported "
        "wrongly, as what changes a tensor in place that is read under another name, is taken by torch's other one, "
        "dynamo=True",
        stacklevel=5,
    )
