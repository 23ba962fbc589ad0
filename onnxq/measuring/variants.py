"""Models that differ from one another in a few nodes, run on the same samples: what they share is run once.

A base model is cut into chunks. Of a variant only the chunks that differ are loaded and run; what comes in is what the
base gives there, and the chunks behind, loaded once, run on what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.statistics import KeptSample
from onnxq.errors import ExecutionError
from onnxq.graph.pieces import difference, piece, reads
from onnxq.graph.shapes import forget_shapes
from onnxq.graph.traverse import all_nodes
from onnxq.graph.values import constant_array
from onnxq.measuring.chosen_rows import chosen_rows
from onnxq.measuring.metrics import Errors
from onnxq.measuring.outputs import errors_of
from onnxq.ort.session import Session, open_anyhow

__all__ = ["Variants"]

_CHUNKS = 10
_LEAST = 8
"""Nodes of a chunk, at least."""
_MARGIN = 4
"""Nodes on both sides of a difference that are loaded together with it: onnxruntime looks that far for what to fuse."""
_CROSSING = frozenset(
    {
        ir.DataType.FLOAT,
        ir.DataType.DOUBLE,
        ir.DataType.FLOAT16,
        ir.DataType.BOOL,
        *(ir.DataType[f"{sign}INT{bits}"] for sign in ("", "U") for bits in (8, 16, 32, 64)),
    }
)
"""Types of tensors that may go from one chunk to the next."""

_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})

Tensors = dict[str, NDArray[Any]]


class Variants:
    """Measures variants of a model against the float outputs of samples.

    Args:
        base: what the variants differ from in few nodes; its shapes are forgotten.
        samples: with the outputs to compare with.
        options: of :class:`onnxq.ort.session.Session`.
    """

    def __init__(self, base: ir.Model, samples: Sequence[KeptSample], **options: Any) -> None:
        self._base, self._samples, self._options = base, samples, options
        self._nodes = list(base.graph)
        self._bounds, self._needed = _cut(base.graph, self._nodes)
        self._made = {value.name: index for index, node in enumerate(self._nodes) for value in node.outputs}
        self._rows = chosen_rows(base)
        self._sizes = _behind_sizes(base)
        forget_shapes(base)
        self._sessions: dict[int, Session | None] = {}
        self._reached = 0
        self._before: list[Tensors] = []

    def errors(self, variant: ir.Model) -> dict[str, Errors]:
        """The errors of each float output; empty where the variant does not run.

        Variants that differ late are best asked for after those that differ early.

        Args:
            variant: its inputs and outputs are those of the base; its shapes are forgotten.
        """
        try:
            return self._measured(variant)
        except ExecutionError:
            return {}

    def errors_of_base(self) -> dict[str, Errors]:
        """The errors of each float output of the base itself; empty where it does not run."""
        ends = ((value.name or "", constant_array(value)) for value in self._base.graph.outputs)
        constants: Tensors = {name: array for name, array in ends if array is not None}
        last = len(self._bounds) - 2
        try:
            self._reach(last)
            pairs = zip(self._before, (sample.outputs for sample in self._samples), strict=True)
            return errors_of(lambda before: constants | self._from(last, dict(before)), pairs, self._rows)
        except ExecutionError:
            return {}

    def _measured(self, variant: ir.Model) -> dict[str, Errors]:
        forget_shapes(variant)
        nodes = list(variant.graph)
        same, behind = difference(self._nodes, nodes)
        end = len(self._nodes)
        ends = ((value.name or "", constant_array(value)) for value in variant.graph.outputs)
        constants: Tensors = {name: array for name, array in ends if array is not None}
        first = max(i for i, bound in enumerate(self._bounds) if bound <= max(same - _MARGIN, 0))
        last = min(i for i, bound in enumerate(self._bounds) if bound >= min(end - behind + _MARGIN, end))
        stop = len(nodes) - (end - self._bounds[last])
        while first and not self._has(first, nodes[self._bounds[first] : stop]):
            first -= 1
        self._reach(first)
        own = nodes[self._bounds[first] : stop]
        session = self._opened(variant, own, self._needed[last], self._before[0])

        def run(before: Mapping[str, NDArray[Any]]) -> Tensors:
            return constants | self._from(last, _step(session, before, self._needed[last]))

        pairs = zip(self._before, (sample.outputs for sample in self._samples), strict=True)
        return errors_of(run, pairs, self._rows)

    def _has(self, chunk: int, nodes: Sequence[ir.Node]) -> bool:
        """Whether all that nodes of a variant read from in front of a chunk is there: the base may have no more use."""
        made = {value for node in nodes for value in node.outputs}
        read = (v for node in nodes for v in reads(node) if v not in made and not v.is_initializer())
        bound, needed = self._bounds[chunk], self._needed[chunk]
        return all(v.name in needed and self._made.get(v.name, -1) < bound for v in read)

    def _reach(self, chunk: int) -> None:
        """Have what the base gives in front of a chunk."""
        if not self._before or chunk < self._reached:
            self._before, self._reached = [dict(sample.feeds) for sample in self._samples], 0
        while self._reached < chunk:
            self._before = [self._chunk(self._reached, tensors) for tensors in self._before]
            self._reached += 1

    def _from(self, chunk: int, tensors: Tensors) -> Tensors:
        """The outputs of the base, from a chunk on."""
        for later in range(chunk, len(self._bounds) - 1):
            tensors = self._chunk(later, tensors)
        return tensors

    def _chunk(self, chunk: int, before: Tensors) -> Tensors:
        needed = self._needed[chunk + 1]
        if chunk not in self._sessions:
            nodes = self._nodes[self._bounds[chunk] : self._bounds[chunk + 1]]
            self._sessions[chunk] = self._opened(self._base, nodes, needed, before)
        return _step(self._sessions[chunk], before, needed)

    def _opened(
        self, model: ir.Model, nodes: Sequence[ir.Node], needed: frozenset[str], before: Tensors
    ) -> Session | None:
        """A session of some nodes; None where they give nothing that is needed."""
        if not any(value.name in needed for node in nodes for value in node.outputs):
            return None
        inputs = {value.name or "": value for value in model.graph.inputs}
        for name, array in before.items():
            kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            known = array.ndim == 1 and name in self._sizes
            shape = ir.Shape(array.shape if known else [None] * array.ndim)
            inputs.setdefault(name, ir.Value(name=name, type=kind, shape=shape))
        return open_anyhow(piece(model, nodes, inputs, needed), **self._options)


def _step(session: Session | None, before: Mapping[str, NDArray[Any]], needed: frozenset[str]) -> Tensors:
    """What there is behind a run of nodes: what they give, and what was there before and is still needed."""
    after = {name: array for name, array in before.items() if name in needed}
    if session is not None:
        after |= session.run({info.name: before[info.name] for info in session.inputs if info.name in before})
    return after


def _cut(graph: ir.Graph, nodes: Sequence[ir.Node]) -> tuple[list[int], list[frozenset[str]]]:
    """Where chunks begin and end, and the names of the tensors that are needed from there on.

    Only tensors of usual types go from one chunk to the next.
    """
    last = {value: index for index, node in enumerate(nodes) for value in reads(node)}
    depth = [0] * (len(nodes) + 2)
    for index, node in enumerate(nodes):
        for value in node.outputs:
            if value in last and not _may_cross(value):  # no cut from behind its maker to its last reader
                depth[index + 1] += 1
                depth[last[value] + 1] -= 1
    barred = list(accumulate(depth))
    last.update(dict.fromkeys(graph.outputs, len(nodes)))
    count = max(1, min(_CHUNKS, len(nodes) // _LEAST))
    bounds = [0]
    for part in range(1, count):
        at = max(part * len(nodes) // count, bounds[-1] + 1)
        while at < len(nodes) and barred[at]:
            at += 1
        if at < len(nodes):
            bounds.append(at)
    bounds.append(len(nodes))
    needed = [frozenset(v.name or "" for v, index in last.items() if index >= bound) for bound in bounds]
    return bounds, needed


def _behind_sizes(model: ir.Model) -> frozenset[str]:
    """Tensors that the sizes a Resize reads are put together from.

    onnxruntime loads no Resize where it cannot tell how many sizes there are, which is the same for all samples.
    """
    resizes = (node for node in all_nodes(model) if node.op_type == "Resize" and node.domain == "")
    stack = [value for node in resizes for value in node.inputs[3:] if value is not None]
    found: set[ir.Value] = set()
    while stack:
        value = stack.pop()
        producer = value.producer()
        if value not in found and producer is not None and producer.op_type != "Shape":
            stack += [read for read in producer.inputs if read is not None]
        found.add(value)
    return frozenset(value.name or "" for value in found)


def _may_cross(value: ir.Value) -> bool:
    """Whether a cut through a tensor takes nothing apart that onnxruntime computes as one."""
    producer = value.producer()
    ends = [use.node.op_type for use in value.uses()] + [producer.op_type if producer is not None else ""]
    return isinstance(value.type, ir.TensorType) and value.dtype in _CROSSING and _QUANTIZERS.isdisjoint(ends)
