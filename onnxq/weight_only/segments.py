"""Runs a model in segments, so that only the weights of one segment are in memory at a time.

A segment is a run of nodes in the graph's order. What later segments read is kept between them for all samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.calibration.taps import tap
from onnxq.graph.pieces import reads
from onnxq.graph.traverse import with_bodies
from onnxq.options import Options
from onnxq.ort.session import Session
from onnxq.process.memory import give_back
from onnxq.weight_only.activations import Activations
from onnxq.weight_only.tensors import in_memory

__all__ = ["Segment", "SegmentedModel", "fill", "model_of"]

_BYTES = 64 << 20
"""Weights of a segment."""
_TAPS = 8
"""Nodes of a segment whose input is looked at."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A run of nodes.

    Attributes:
        nodes: in order.
        reads: values made before it, in order of use.
        writes: values that are read after it or looked at.
        constants: initializers that it reads.
        ends: values that nothing reads after it.
        inner: values inside branches and bodies of its nodes that are looked at.
    """

    nodes: Sequence[ir.Node]
    reads: Sequence[ir.Value]
    writes: Sequence[ir.Value]
    constants: Sequence[ir.Value]
    ends: Sequence[ir.Value]
    inner: Sequence[ir.Value] = ()


class SegmentedModel:
    """A model cut into segments.

    Args:
        model: not modified. Value names are unique over it.
        looked_at: nodes whose first input is wanted while its segment is current. Inside a branch it is empty for
            samples that take the other one, and inside a body there for all iterations.
        options: execution providers and the library of custom operators.
        prepack: weights are copied into the layout that runs fastest, at the cost of memory.
        limit: bytes of the weights of a segment, 64 MB if None; one node may have more.
    """

    def __init__(
        self,
        model: ir.Model,
        looked_at: Collection[ir.Node] = (),
        *,
        options: Options | None = None,
        prepack: bool = True,
        limit: int | None = None,
    ) -> None:
        self._model, self._options, self._prepack = model, Options.of(options), prepack
        self.segments = _cut(model.graph, frozenset(looked_at), _BYTES if limit is None else limit)

    def run(self, feeds: Iterable[Mapping[str, NDArray[Any]]], kept: Activations) -> Iterator[tuple[Segment, int]]:
        """Run over samples, segment by segment.

        Args:
            feeds: the samples, read once.
            kept: filled with the inputs and outputs of the current segment; the model's outputs stay in it.

        Yields:
            Each segment once it has run, with the number of samples.
        """
        samples = fill(kept, self._model, feeds)
        outputs = {value.name for value in self._model.graph.outputs}
        for segment in self.segments:
            if segment.writes or segment.inner:
                self._run(segment, samples, kept)
            yield segment, samples
            for value in segment.ends:
                if value.name not in outputs:
                    kept.drop(value.name or "", samples)

    def _run(self, segment: Segment, samples: int, kept: Activations) -> None:
        first = {v.name or "": kept.get(v.name or "", 0) for v in segment.reads}
        shapes = {name: kept.common_shape(name, samples) for name in first}
        model = model_of(self._model, segment, first, shapes)
        shown: dict[str, str] = {}
        if segment.inner:
            tapped = tap(model, [value.name or "" for value in segment.inner])
            model, shown = tapped.model, {output: name for name, output in tapped.outputs.items()}
        session = Session(model, prepack=self._prepack, **self._options.session)
        for value in model.graph.initializers.values():
            value.const_value = None  # the session has them
        for sample in range(samples):
            feeds = {name: kept.get(name, sample) for name in first}
            for name, array in session.run(feeds).items():
                kept.put(shown.get(name, name), sample, array)
        del session, model
        give_back()


def fill(kept: Activations, model: ir.Model, feeds: Iterable[Mapping[str, NDArray[Any]]]) -> int:
    """Put what samples give to the inputs of a model, and what the model itself has for those that are left out.

    Args:
        kept: where to.
        model: whose inputs; a sample may hold other arrays as well.
        feeds: the samples, read once.

    Returns:
        The number of samples.
    """
    inputs = {value.name or "": value.const_value for value in model.graph.inputs}
    for name, tensor in inputs.items():
        if tensor is not None:
            kept.put_default(name, tensor.numpy())
    samples = 0
    for samples, feed in enumerate(feeds, 1):
        for name in inputs:
            if name in feed:
                kept.put(name, samples - 1, np.asarray(feed[name]))
    return samples


def _cut(graph: ir.Graph, looked_at: frozenset[ir.Node], limit: int) -> list[Segment]:
    order = _Order(graph, looked_at)
    return [order.segment(start, stop) for start, stop in pairwise(order.bounds(limit))]


class _Order:
    """The nodes of a graph in order, by index, and where its values are made and read last."""

    def __init__(self, graph: ir.Graph, looked_at: frozenset[ir.Node]) -> None:
        self._nodes = list(graph)
        self._reads = [reads(node) for node in self._nodes]
        self._looked = [[inner for inner in with_bodies(node) if inner in looked_at] for node in self._nodes]
        self._made = {value: index for index, node in enumerate(self._nodes) for value in node.outputs}
        self._last = {value: index for index, values in enumerate(self._reads) for value in values}
        self._last.update(dict.fromkeys(graph.outputs, len(self._nodes)))

    def segment(self, start: int, stop: int) -> Segment:
        """The nodes from one up to another."""
        read = dict.fromkeys(value for values in self._reads[start:stop] for value in values)
        constants = [value for value in read if _is_weight(value)]
        inputs = dict.fromkeys(v for v in read if not _is_weight(v) and self._made.get(v, -1) < start)
        inside = [value for node in self._nodes[start:stop] for value in node.outputs if value.name]
        wanted = self._wanted(start, stop)
        writes = [value for value in inside if self._last.get(value, -1) >= stop or value in wanted]
        inner = [v for v in wanted if v not in self._made and v not in inputs and not v.is_initializer()]
        ends = [value for value in (*inputs, *writes, *inner) if self._last.get(value, -1) < stop]
        return Segment(self._nodes[start:stop], list(inputs), writes, constants, ends, inner)

    def _wanted(self, start: int, stop: int) -> dict[ir.Value, None]:
        """The first inputs of the nodes that are looked at."""
        looked = (node.inputs[0] for found in self._looked[start:stop] for node in found)
        return dict.fromkeys(value for value in looked if value is not None)

    def bounds(self, limit: int) -> list[int]:
        """Where segments begin: when the next node's weights would not fit, and only tensors go across."""
        until = -1  # up to this node something that is no tensor is alive
        bounds, held, taps = [0], set[ir.Value](), 0
        size = 0
        for index, node in enumerate(self._nodes):
            fresh = {value for value in self._reads[index] if _bytes(value) and value not in held}
            added = sum(map(_bytes, fresh))
            tapped = taps + len(self._looked[index])
            if index > bounds[-1] and index > until and (size + added > limit or tapped > _TAPS):
                bounds.append(index)
                held, size, tapped = set(), 0, len(self._looked[index])
                added = sum(map(_bytes, self._reads[index]))
            held |= fresh
            size, taps = size + added, tapped
            for value in node.outputs:
                if value.type is not None and not _storable(value.type):
                    until = max(until, self._last.get(value, -1))
        return [*bounds, len(self._nodes)]


def _is_weight(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input()


def _bytes(value: ir.Value) -> int:
    """Of an initializer."""
    return value.const_value.nbytes if value.is_initializer() and value.const_value is not None else 0


def _storable(kind: ir.TypeProtocol) -> bool:
    return isinstance(kind, ir.TensorType) and kind.dtype != ir.DataType.STRING


def model_of(
    model: ir.Model,
    segment: Segment,
    first: Mapping[str, NDArray[Any]],
    shapes: Mapping[str, Sequence[int | None]],
) -> ir.Model:
    """A model of a segment; bigger constants are read into memory and handed over, not serialized.

    Args:
        model: the whole.
        segment: of it.
        first: what it reads, of one sample.
        shapes: what it reads, of all samples: onnxruntime 1.31 infers a wrong shape for an Attention of unknown sizes.
    """
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    graph = proto.graph
    graph.name = "segment"
    for node in segment.nodes:
        ir.serde.serialize_node_into(graph.node.add(), node)
    for name, array in first.items():
        kind = ir.DataType.from_numpy(array.dtype)
        graph.input.append(onnx.helper.make_tensor_value_info(name, kind.value, shapes[name]))
    for value in segment.constants:
        assert value.const_value is not None
        shape = value.const_value.shape.numpy()
        graph.input.append(onnx.helper.make_tensor_value_info(value.name or "", value.const_value.dtype.value, shape))
    for value in segment.writes:
        graph.output.add().name = value.name or ""
    for function in model.functions.values():
        ir.serde.serialize_function_into(proto.functions.add(), function)
    made = ir.serde.deserialize_model(proto)
    stand_ins = made.graph.inputs[len(first) :]
    del made.graph.inputs[len(first) :]
    for stand_in, value in zip(stand_ins, segment.constants, strict=True):
        assert value.const_value is not None
        stand_in.const_value = in_memory(value.const_value)
        made.graph.register_initializer(stand_in)
    return made
