"""The way back: a model with Q/DQ pairs or calls of onnxq's functions → the same :class:`Quantized` that renders it.

Read are: a QuantizeLinear that only DequantizeLinears with the same parameters read, and what takes its size (an
activation, or a float constant), a DequantizeLinear of a stored integer constant (weight, bias, constant operand),
integers cast and scaled (the weight of a float layer), FakeQuantize and NNIEQuantize calls with constant parameters,
and QOperators. A constant moved before it is read (a transposed weight) is taken as it is read, its scales with it.
Anything else that quantizes (a lone Q or DQ) is part of the float model as far as this reader goes, and named in the
notes. Where a tensor is quantized twice in a row, or a model output would lose its name, an Identity keeps the two
tensors apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxq.backend import Backend
from onnxq.errors import ModelError
from onnxq.graph.domains import OF_QUANTIZERS
from onnxq.graph.edits import rename_output, set_constant
from onnxq.graph.namer import Namer
from onnxq.graph.passes.halves import widen_halves
from onnxq.graph.passes.prune import KEPT, remove_dead
from onnxq.graph.traverse import all_nodes, describe
from onnxq.graph.values import constant_array, is_constant
from onnxq.plan import Plan
from onnxq.qparams import QParams, dequantize
from onnxq.quantized import Quantized
from onnxq.render import dynamic_fake_quantize, fake_quantize, nnie_quantize
from onnxq.render.bits_kept import as_marked
from onnxq.render.early_unpacking import scale_early, unpack_early
from onnxq.render.qoperator.expand import expand
from onnxq.render.reading.clipped_integers import bounded, store_clipped
from onnxq.render.reading.found import Found, role_of_constant, sites_of
from onnxq.render.reading.held import scales_blocks
from onnxq.render.reading.mirrored import mirrored
from onnxq.render.reading.moved_constants import is_moved, move_constant
from onnxq.render.reading.nodes import sort_nodes
from onnxq.render.reading.parameters import (
    before_widening,
    fake_parameters,
    logarithmic_parameters,
    narrowed,
    pair_parameters,
    same_parameters,
    unpacked_parameters,
)
from onnxq.render.reading.shifted import Shifted, moved, shifted
from onnxq.spec import Scheme

__all__ = ["read"]

_QUANTIZERS = ("QuantizeLinear", fake_quantize.NAME, nnie_quantize.NAME)


def read(model: ir.Model, backend: Backend) -> Quantized:
    """Take the quantizers out of a model.

    Args:
        model: normalized, names unique (see :func:`onnxq.graph.passes.normalize.normalize`); left unchanged.
        backend: the target it will be rendered for.

    Returns:
        The float model, a plan with a site for every quantizer found, and their numbers.
    """
    return _Reader(model, backend).run()


class _Reader:
    def __init__(self, model: ir.Model, backend: Backend) -> None:
        self.model, self.backend = model.clone(), backend
        widen_halves(self.model)
        self.namer = Namer(self.model)
        self.found: list[Found] = []
        self.lifted: dict[tuple[object, ...], Found] = {}  # stored integers and their parameters -> the float constant
        self.taken: dict[ir.Value, list[Found]] = {}  # what quantizers read -> their grids
        self.notes: list[str] = []
        self.format = ""

    def run(self) -> Quantized:
        store_clipped(self.model, self.namer)
        self.notes += expand(self.model)
        dynamic_fake_quantize.take_out(self.model)
        self._take_quantizers()
        remove_dead(self.model)
        self._forget_dead()
        sites, numbers = sites_of(self.found, self.model, self.backend)
        return Quantized(
            model=self.model,
            plan=sort_nodes(self.model, self.backend, Plan(self.backend.name, sites, {})),
            qparams=numbers,
            backend=self.backend,
            notes=tuple(self.notes),
            format=self.format,
        )

    def _take_quantizers(self) -> None:
        """Take every quantizer out of the model, and keep what it says."""
        for node in list(all_nodes(self.model)):
            if node.graph is None:
                continue
            if node.op_type == "QuantizeLinear" and node.domain in OF_QUANTIZERS:
                self._pair(node)
            elif node.op_type == "DequantizeLinear" and node.domain in OF_QUANTIZERS:
                self._stored(unpack_early(node, self.namer) or node)
            elif node.op_type == "Mul" and node.domain in OF_QUANTIZERS:
                self._unpacked(scale_early(node, self.namer) or node)
            elif (node.domain, node.op_type) == (fake_quantize.DOMAIN, fake_quantize.NAME):
                self._fake(node)
                if "fake-quantize" in self.backend.formats and not self.backend.has_own_quantizers:
                    self.format = "fake-quantize"
            elif (node.domain, node.op_type) == (fake_quantize.DOMAIN, nnie_quantize.NAME):
                self._logarithmic(node)

    def _forget_dead(self) -> None:
        """Leave out what nothing in the model reads or defines any more."""
        for found in self.found:
            found.readers = [(node, index) for node, index in found.readers if node.graph is not None]
            found.alone &= len(self.taken.get(found.value, ())) == 1
            found.alone &= {(use.node, use.idx) for use in found.value.uses()} <= set(found.readers)
        self.found = [found for found in self.found if found.value.graph is not None]
        if not any(node.domain == fake_quantize.DOMAIN for node in all_nodes(self.model)):
            for name in (fake_quantize.NAME, nnie_quantize.NAME, dynamic_fake_quantize.NAME):
                self.model.functions.pop((fake_quantize.DOMAIN, name, ""), None)
            self.model.opset_imports.pop(fake_quantize.DOMAIN, None)

    def _pair(self, q: ir.Node) -> None:
        value = q.inputs[0]
        sizes = [use.node for use in q.outputs[0].uses() if use.node.op_type == "Shape" and use.node.domain == ""]
        readers = [use.node for use in q.outputs[0].uses() if use.node not in sizes]
        same = all(
            r.op_type == "DequantizeLinear" and same_parameters(q, r) and r.domain in OF_QUANTIZERS for r in readers
        )
        if value is None or not readers or not same or q.outputs[0].is_graph_output():
            self.notes.append(f"read: '{q.name}' is not followed by its DequantizeLinear alone: left as it is")
            return
        qparams = self._qparams(q, q.outputs[0].dtype)
        if qparams is None:
            return
        for node in sizes:
            node.replace_input_with(0, readers[0].outputs[0])
        self._take_out(value, [dq.outputs[0] for dq in readers], qparams)

    def _stored(self, dq: ir.Node) -> None:
        if (found := shifted(dq.inputs[0])) is not None:
            self._shifted(dq, found)
            return
        if scales_blocks(dq):
            return
        stored = before_widening(dq.inputs[0])
        if stored is None or not is_constant(stored):
            producer = stored.producer() if stored is not None else None
            if producer is None or producer.op_type != "QuantizeLinear":
                self.notes.append(f"read: '{dq.name}' reads integers computed at run time: left as it is")
            return
        qparams = self._qparams(dq, stored.dtype)
        array = constant_array(stored)
        if qparams is None or array is None:
            return
        if array.dtype.kind == "f":
            raise ModelError("it dequantizes numbers that are not integers", where=describe(dq))
        if qparams.spec.scheme is Scheme.FLOAT8:
            array = array.view(np.uint8)
        else:
            qparams = as_marked(bounded(qparams, stored), stored, array)
            qparams = narrowed(qparams, stored, array, widened=stored is not dq.inputs[0])
            array, qparams = mirrored(array, qparams)
        self._lift(stored, array, qparams, dq.outputs[0], tuple(dq.inputs))

    def _shifted(self, dq: ir.Node, found: Shifted) -> None:
        """Four-bit integers whose zero points are taken from them when the model is loaded."""
        qparams, array = self._qparams(dq, ir.DataType.INT8), constant_array(found.stored)
        if qparams is None or array is None:
            return
        numbers = moved(qparams, found)
        if numbers is None:
            self.notes.append(f"read: '{dq.name}' has other zero points than scales: left as it is")
            return
        array, numbers = mirrored(array, as_marked(numbers, found.stored, array))
        self._lift(found.stored, array, numbers, dq.outputs[0], tuple(dq.inputs))

    def _unpacked(self, node: ir.Node) -> None:
        """Integers times a scale: the weight of a float layer, unpacked when the model is loaded."""
        found = shifted(node.inputs[0])
        cast = node.inputs[0].producer() if node.inputs[0] is not None else None
        whole = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
        stored = before_widening(whole) if found is None else found.stored
        scale, array = constant_array(node.inputs[1]), constant_array(stored)
        if stored is None or scale is None or array is None:
            return
        qparams = unpacked_parameters(stored, array, scale, None if found is None else found.points)
        if qparams is not None:
            qparams = as_marked(qparams, stored, array)
            self._lift(stored, array, qparams, node.outputs[0], (stored, node.inputs[1]))

    def _fake(self, node: ir.Node) -> None:
        value, qparams = node.inputs[0], fake_parameters(node)
        if value is None or qparams is None:
            self.notes.append(f"read: the parameters of '{node.name}' are not constant: left as it is")
            return
        self._take_out(value, [node.outputs[0]], qparams)

    def _logarithmic(self, node: ir.Node) -> None:
        value, qparams = node.inputs[0], logarithmic_parameters(node)
        if value is None or qparams is None:
            self.notes.append(f"read: the clip value of '{node.name}' is not constant: left as it is")
            return
        self._take_out(value, [node.outputs[0]], qparams)

    def _take_out(self, value: ir.Value, results: Sequence[ir.Value], qparams: QParams) -> None:
        """Note a site of a tensor, and let the readers of its quantizer's results read the tensor itself."""
        makes = value.producer() is not None and not value.is_graph_output()
        alone = makes and len(value.uses()) == 1
        edges = [edge for result in results for edge in self._bypass(result, value, alone)]
        others = self.taken.setdefault(value, [])
        found = next((one for one in others if one.qparams == qparams), None)
        if found is None:
            found = Found(value, "activation", qparams, [], alone=makes)
            others.append(found)
            self.found.append(found)
        found.readers += edges
        if is_constant(value):
            found.role = role_of_constant(self.backend, found.readers, qparams)
            self._move(found)

    def _lift(
        self,
        stored: ir.Value,
        array: NDArray[Any],
        qparams: QParams,
        result: ir.Value,
        key: tuple[object, ...],
    ) -> None:
        """Note a site of the float constant that stored integers stand for: one, however often they are unpacked."""
        found = self.lifted.get(key)
        if found is None or found.qparams != qparams:
            base = (stored.name or "constant").removesuffix("_quantized")
            assert isinstance(stored.graph, ir.Graph)
            value = set_constant(stored.graph, self.namer, base, dequantize(array.astype(np.int64), qparams))
            found = self.lifted[key] = Found(value, "constant", qparams, [])
            self.found.append(found)
        found.readers += self._bypass(result, found.value, alone=False)
        found.role = role_of_constant(self.backend, found.readers, qparams)
        self._move(found)

    def _move(self, found: Found) -> None:
        """Let who reads a constant transposed, reshaped and so on read another constant, with numbers of its own."""
        for node, index in [edge for edge in found.readers if is_moved(*edge)]:
            moved = move_constant(self.model, node, found.qparams)
            if moved is None:
                self.notes.append(
                    f"read: '{node.name}' spreads the scales of '{found.value.name}' over several axes: left as it is"
                )
                continue
            found.readers.remove((node, index))
            for value, qparams in moved:
                edges = [(u.node, u.idx) for u in value.uses() if u.idx or u.node.op_type not in _QUANTIZERS]
                if edges:
                    self.found.append(Found(value, role_of_constant(self.backend, edges, qparams), qparams, edges))
                    self._move(self.found[-1])

    def _bypass(self, quantized: ir.Value, value: ir.Value, alone: bool) -> list[tuple[ir.Node, int]]:
        """Let the readers of a quantizer's result read the float tensor, which ``alone`` the quantizer reads."""
        edges: list[tuple[ir.Node, int]] = []
        for use in quantized.uses():
            reader, index = use.node, use.idx
            if index == 0 and reader.op_type in _QUANTIZERS and reader.graph is not None:
                same = self._same_again(value, f"{quantized.name}_again")
                reader.graph.insert_before(reader, [same])
                reader.replace_input_with(0, same.outputs[0])
                edges.append((same, 0))
            else:
                reader.replace_input_with(index, value)
                edges.append((reader, index))
        if quantized.is_graph_output():
            last = value
            if not alone or value.is_graph_output() or value.graph is not quantized.graph:
                same = self._same_again(value, f"{quantized.name}_same")
                producer = quantized.producer()
                assert producer is not None and isinstance(producer.graph, ir.Graph)
                producer.graph.insert_after(producer, [same])
                edges.append((same, 0))
                last = same.outputs[0]
            rename_output(last, quantized)
        return edges

    def _same_again(self, value: ir.Value, base: str) -> ir.Node:
        node = ir.node("Identity", [value], name=self.namer.node(f"{base}_Identity"))
        node.metadata_props[KEPT] = "between two quantizers"
        node.outputs[0].name = self.namer.fresh(base)
        node.outputs[0].type = value.type
        node.outputs[0].shape = value.shape.copy() if value.shape is not None else None
        return node

    def _qparams(self, node: ir.Node, dtype: ir.DataType | None) -> QParams | None:
        found = pair_parameters(node, dtype)
        if isinstance(found, str):
            self.notes.append(f"read: {found}")
            return None
        return found
