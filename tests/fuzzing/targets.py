"""What targets compute, and ask of steps, whatever the data: for the verdict, by their documents, not asked of onnxq.

* Vitis-AI: a HardSigmoid reads and writes at least steps of its own (``tests/fuzzing/dpu.py``); pools and what moves
  data have one position for input and output, Concat one for all it joins (``align_*`` of ``refine.py`` of amd-quark
  0.13), the inputs of Add and Sub are at most 7 positions apart (``adjust_shift_read``).
* OpenVINO, TensorRT, LiteRT, PPL and STPU: a Concat in integers has one scale for all that it joins; what moves data
  passes integers on as they are. Of two Concats that read one tensor, everything has the scale of the widest.
* Qualcomm's HTP: a range is 1e-4 wide at least (``MinimumRealRange`` of onnxruntime's ``get_qnn_qdq_config``).
"""

from __future__ import annotations

import onnx

from onnxq import Backend
from onnxq.spec import Scheme
from tests.fuzzing.dpu import as_dpu, dpu_steps
from tests.fuzzing.graphs import Case
from tests.fuzzing.noise import Steps
from tests.fuzzing.tengine import as_tengine

__all__ = ["AT_HOME", "as_computed", "steps_of", "times_of"]

_MOVES: tuple[str, ...] = (
    "DepthToSpace",
    "Flatten",
    "Gather",
    "Identity",
    "MaxPool",
    "Pad",
    "Reshape",
    "Resize",
    "Slice",
)
_MOVES += ("SpaceToDepth", "Split", "Squeeze", "Transpose", "Unsqueeze", "Upsample")
_JOINED: dict[str, tuple[str, ...]] = dict.fromkeys(("openvino", "ppl_cuda", "stpu", "tensorrt"), ("Concat", *_MOVES))
_JOINED["litert"] = _JOINED["litert_int16"] = ("Concat", *_MOVES, "AveragePool")
_JOINED["vitis"] = ("Concat", *_MOVES, "AveragePool", "GlobalAveragePool")
_JOINED["qnn"] = _MOVES
_JOINED["rknn"] = (*_MOVES, "AveragePool", "GlobalAveragePool")
_NEAR = {"vitis": ("Add", "Sub")}
_LEAST = dict.fromkeys(("onnx_qnn", "qnn", "snpe"), 0.0001 / 255)

_COMPUTED = {"tengine": as_tengine, "vitis": as_dpu}
AT_HOME = 4.0
"""How many steps of noise a result may show in onnxruntime."""
_ELSEWHERE = 10.0
"""The same for targets with coarser steps and a scale per tensor."""
_FLOAT8 = 18.0
"""Twice 9: the step of E4M3 between 256 and 448 is 32, that of int8 over the same range 3.5."""


def as_computed(case: Case, backend: str) -> Case:
    """A case as a target computes it in float."""
    return _COMPUTED[backend](case) if backend in _COMPUTED else case


def times_of(target: Backend) -> float:
    """How many steps of noise a target's result may show."""
    if target.activation.scheme is Scheme.FLOAT8:
        return _FLOAT8
    return AT_HOME if target.runtime == "onnxruntime" else _ELSEWHERE


def steps_of(backend: str, model: onnx.ModelProto) -> Steps:
    """The steps that a target's format asks for.

    Args:
        backend: name of the target.
        model: the float model, for Vitis-AI as the DPU computes it.
    """
    own = dpu_steps(model) if backend == "vitis" else {}
    near = [{*node.input} for node in model.graph.node if node.op_type in _NEAR.get(backend, ())]
    return Steps(_LEAST.get(backend, 0.0), own, _joined(model, _JOINED.get(backend, ())), near)


def _joined(model: onnx.ModelProto, ops: tuple[str, ...]) -> list[frozenset[str]]:
    """Tensors of the main graph that have one scale, through a chain of such operators as well."""
    found: list[frozenset[str]] = []
    for node in model.graph.node:
        if node.op_type in ops:
            names = frozenset([*(node.input if node.op_type == "Concat" else node.input[:1]), *node.output])
            met = [group for group in found if group & names]
            found = [*(group for group in found if not group & names), names.union(*met)]
    return found
