"""From a file to a model that can be calibrated, and from there to the form that a target wants."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import onnx
import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.checks.caches import check_caches
from onnxq.checks.fingerprint import fingerprint
from onnxq.checks.free_sizes import check_sized
from onnxq.checks.randomness import check_random
from onnxq.console.terminal import listed, plural
from onnxq.errors import OptionError
from onnxq.graph.files.as_it_came import AsItCame
from onnxq.graph.files.load import load
from onnxq.graph.files.onnx_checker import check_inputs
from onnxq.graph.foreign import infer_foreign
from onnxq.graph.namer import unique_names
from onnxq.graph.note import Note
from onnxq.graph.passes.fix_shapes import fix_shapes
from onnxq.graph.passes.fold_forward import fold_forward
from onnxq.graph.passes.fused_chains import FUSED
from onnxq.graph.passes.inline import inline_functions
from onnxq.graph.passes.lower_opset import lower_opset, newer_than
from onnxq.graph.passes.normalize import normalize
from onnxq.graph.passes.simplify import simplify
from onnxq.graph.passes.upcast import upcast
from onnxq.graph.passes.write_out import COMPOSITE, OPSET_OF_FUSED, has_any, write_out
from onnxq.graph.snapshot import snapshot
from onnxq.graph.traverse import all_nodes, describe, full_type
from onnxq.graph.values import MADE
from onnxq.options import Options
from onnxq.options.selection import mark_excluded
from onnxq.options.shapes import sizes_of
from onnxq.ort.session import require_library
from onnxq.planning.cancelling import may_cancel
from onnxq.planning.uneven import too_uneven
from onnxq.render import dynamic_fake_quantize, fake_quantize, nnie_quantize
from onnxq.spec import WIDE_OPSET, QuantSpec

__all__ = [
    "KEEP",
    "Fitted",
    "Prepared",
    "Source",
    "in_float32",
    "lowered",
    "needed_opset",
    "still_half",
]

Source = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
BASE_OPSET = 14
"""Has per-channel QuantizeLinear (13) and HardSwish (14); statistics belong to the model at this opset or above."""
_NEWER = 3
"""Operators that an error tells."""
_FIRST_NODES = 8
"""Nodes before the first BatchNormalization that data may be run through just to see whether it is like training's."""
KEEP = tuple((fake_quantize.DOMAIN, kind.NAME) for kind in (fake_quantize, nnie_quantize, dynamic_fake_quantize))
"""Functions that are quantizers: they stay, and what they quantize is not quantized again."""


class Fitted(NamedTuple):
    """A float model in the form that a target wants, and what was done to it for that."""

    model: ir.Model
    notes: list[str]


class Prepared:
    """A float model ready to be calibrated and planned.

    Args:
        source: the model.
        options: those that say how it is read.
        streamed: constants in half precision stay in their data files, to be widened whenever they are read.
        as_scaled: somebody has scales for tensors as they are: no factor moves from one into the layer behind it.

    Attributes:
        given: the model as it came, where it computed with other operators: ``source``, or a copy of a large one that
            was loaded; None: with the same, or in half precision.
        converted: what was given, where onnx's converter has raised its opset; None: else, or in half precision.
        model: normalized; not to be changed.
        notes: what the passes did.
        lost: what was done to it that whoever runs the result must know, a sentence each.
        random: what in it gives something else at each run, or other numbers than it should.
        bytes: size of the model as it came.
        remembered: what it remembers of its training data, where that is cheap to compare with.
        halves: whether it came in half precision, and computes in float32 now.
    """

    def __init__(self, source: Source, options: Options, *, streamed: bool = False, as_scaled: bool = False) -> None:
        require_library(options.custom_op_library)
        model = load(source)
        as_it_came = AsItCame(model, source)
        self.bytes = as_it_came.bytes
        self.notes = [str(note) for note in fix_shapes(model, map(sizes_of, options.shapes))]
        if options.simplify:
            self.notes += map(str, simplify(model))
        widened = in_float32(model, streamed=streamed)
        self.notes += map(str, widened)
        self.halves = any(note.pass_name == "upcast" for note in widened) and not still_half(widened)
        self.remembered = fingerprint(model, most_nodes=_FIRST_NODES)
        before = [value.name for value in model.graph.inputs] if model.ir_version >= 4 else []  # older ones must list
        check_inputs(model)
        base = OPSET_OF_FUSED if has_any(model, FUSED) else BASE_OPSET
        base = base if options.opset is None else min(base, options.opset)
        done = normalize(model, min_opset=base, keep=KEEP, unfit=too_uneven)
        self.notes += map(str, done)
        self.notes += map(str, infer_foreign(model, options.custom_op_library))
        if not streamed and not as_scaled:
            self.notes += map(str, fold_forward(model, may_cancel))
        check_sized(model, options.shapes)
        self.model = model
        self.given = None if self.halves else as_it_came.beside(model)
        self.converted = source if any(note.by_converter for note in done) and not self.halves else None
        self._composite = COMPOSITE & {full_type(node) for node in all_nodes(model)}
        self._bases: dict[frozenset[str], tuple[ir.Model, list[str]]] = {}
        self.lost = [*_inputs_lost(before, model), *still_half(widened)]
        self.random = [*check_random(model), *check_caches(model)]

    @property
    def warnings(self) -> list[str]:
        """What the user should know of the model, as sentences."""
        return [*self.lost, *(f"{finding.what}. {finding.hint.rstrip('.')}" for finding in self.random)]

    @property
    def calibrated(self) -> ir.Model:
        """The model with all that some target has not as one operator written out: statistics of it serve every one."""
        return self._written_out(COMPOSITE)[0]

    def base(self, target: Backend) -> ir.Model:
        """The model with what the target has not as one operator written out; not to be changed."""
        return self._written_out(target.lacks_whole)[0]

    def _written_out(self, operators: frozenset[str]) -> tuple[ir.Model, list[str]]:
        operators &= self._composite
        if operators not in self._bases:
            model = self.model.clone() if operators else self.model
            notes = write_out(model, operators) if operators else []
            self._bases[operators] = model if notes else self.model, [str(note) for note in notes]
        return self._bases[operators]

    def for_target(self, target: Backend, options: Options) -> Fitted:
        """The model as a target wants it, its tensors named as they are.

        It is that of :meth:`base` itself where nothing else was done.

        Raises:
            OptionError: an opset is asked for that the result cannot have.
            ModelError: the format asked for cannot hold the model.
        """
        least = needed_opset(target, options)
        if target.rewrite_opset is not None and options.opset is None:
            least = max(least, target.rewrite_opset(self.model))
        base, written = self._written_out(target.lacks_whole)
        model, notes = self.raised(base, least, options.opset)
        notes = [*written, *notes]
        lower = model.opset_imports.get("", 0) > target.max_opset
        if target.rewrite is not None or lower:
            cloned = model is base
            model = model.clone() if cloned else model
            before = _tensors(model).keys()
            notes += lowered(model, target.name, target.max_opset, options)
            mark_excluded(model, options)
            known = snapshot(model)
            notes += map(str, target.rewrite(model) if target.rewrite is not None else ())
            if cloned and not lower and snapshot(model) == known:
                model = base  # whose measurements other targets share
            for name, value in _tensors(model).items():
                if name not in before:
                    value.meta[MADE] = True
        refuse = target.format_named(options.format).refuses
        if refuse is not None:
            refuse(model)
        return Fitted(model, notes)

    def at_opset(self, target: Backend, wanted: int | None, whole: frozenset[str] = frozenset()) -> ir.Model:
        """The model of :meth:`base` at an opset; what is done to it is added to the notes.

        Args:
            target: see :meth:`base`.
            wanted: the opset.
            whole: more operators that are not written out.
        """
        base, written = self._written_out(target.lacks_whole - whole)
        model, notes = self.raised(base, base.opset_imports.get("", 0), wanted)
        self.notes += [*written, *notes]
        return model

    @staticmethod
    def raised(model: ir.Model, least: int, wanted: int | None = None) -> tuple[ir.Model, list[str]]:
        """A model at the opset that the result needs: itself where it is there already, and what was done."""
        if wanted is None and model.opset_imports.get("", 0) >= least:
            return model, []
        model = model.clone()
        notes = normalize(model, min_opset=least, opset=wanted, keep=KEEP, unfit=too_uneven)
        return model, [str(note) for note in notes]


def lowered(model: ir.Model, reader: str, most: int, options: Options) -> list[str]:
    """Bring a model to an opset that its reader knows, in place, where it is newer; what was done.

    Args:
        model: changed in place, shapes inferred.
        reader: name of the target.
        most: the newest opset that it reads.
        options: the opset asked for.

    Raises:
        OptionError: a newer opset is asked for, or the model has operators that an older one has not.
    """
    opset = model.opset_imports.get("", 0)
    if opset <= most:
        return []
    what, hint = f"{reader} reads models up to opset {most}, ", "Leave it out, or ask for less"
    if options.opset is not None and options.opset > most:
        raise OptionError(f"{what}{options.opset} was asked for", where="opset", hint=hint)
    newer = newer_than(model, most)
    if newer:
        told = listed([describe(node) for node in newer], _NEWER)
        hint = "Export the float model again, with an older opset"
        raise OptionError(f"{what}this one, of {opset}, has newer operators: {told}", where="opset", hint=hint)
    return [str(note) for note in lower_opset(model, most)]


def in_float32(model: ir.Model, *, streamed: bool = False) -> list[Note]:
    """Bring a model that computes in half precision to float32, in place; what was done, or why it could not be.

    Quantizers with scales in half precision have the same ones in float32.

    Args:
        model: as it was loaded.
        streamed: constants in data files stay there.
    """
    return [*inline_functions(model, KEEP), *unique_names(model), *upcast(model, streamed=streamed)]


def _inputs_lost(before: list[str | None], model: ir.Model) -> list[str]:
    """What to say of inputs that the file listed, being constants as well."""
    names = {value.name for value in model.graph.inputs}
    lost = [name for name in before if name not in names]
    more = f" and {plural(len(lost) - 1, 'more constant')}" if len(lost) > 1 else ""
    were = "were listed as inputs as well" if more else "was listed as an input as well"
    return [f"{lost[0]!r}{more} {were}: the result no longer takes them as inputs"] if lost else []


def still_half(notes: Sequence[Note]) -> list[str]:
    """What to say of a model that could not be brought to float32."""
    head = "refused: "
    so = "the model still computes in half precision, and those parts are not quantized. Give it in float32"
    return [
        f"{n.node!r}: {n.message.removeprefix(head)}: {so}"
        for n in notes
        if n.pass_name == "upcast" and n.message.startswith(head)
    ]


def _tensors(model: ir.Model) -> dict[str, ir.Value]:
    return {value.name: value for node in all_nodes(model) for value in node.outputs if value.name}


def needed_opset(target: Backend, options: Options) -> int:
    """The opset that a result needs: 4- and 16-bit QuantizeLinear and DequantizeLinear exist from 21 on.

    Raises:
        OptionError: a lower opset is asked for, or the target has no such width or format.
    """
    widths = [*target.bits(options)]
    widths += [b for _, o in options.override for b in (o.weight_bits, o.act_bits) if b is not None]
    stored = {QuantSpec(bits).storage_bits for bits in widths}
    if not target.format_named(options.format).integers or stored == {8} or target.wide_domain:
        return target.min_opset
    if options.opset is not None and options.opset < WIDE_OPSET:
        raise OptionError(
            f"opset {options.opset} has no {min(stored - {8})}-bit integers",
            where="opset",
            hint=f"Leave it out or ask for {WIDE_OPSET}, or use the format fake-quantize",
        )
    return max(target.min_opset, WIDE_OPSET)
