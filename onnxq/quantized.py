"""Quantized: a float model, a plan and its numbers. Everything else is a rendering of it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxq.backend import Backend, Format
from onnxq.backend_choice import backend_named
from onnxq.console.terminal import plural
from onnxq.errors import OutputError
from onnxq.file_system import is_there
from onnxq.graph.files.origin import spare_files
from onnxq.graph.packed import packed, unpacked
from onnxq.locations import made_folder, require_onnx
from onnxq.measuring.verification import Verification
from onnxq.plan import Plan
from onnxq.qparams import QParams

if TYPE_CHECKING:
    from torch.nn import Module

    from onnxq.torch.graph_module import GraphModule

__all__ = ["Quantized"]

_SAID = frozenset({"notes", "verification", "recipe", "files", "hints", "_rendering"})
"""What is said of a :class:`Quantized`; everything else decides what it renders."""


@cache
def _installed() -> str:
    return metadata.version("onnxq")


@dataclass(slots=True, eq=False)
class _Rendering:
    """What the parts of a :class:`Quantized` render, once it was made; shared by all that have these parts."""

    parts: tuple[object, ...]
    model: ir.Model | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Quantized:
    """A quantized model.

    ``dataclasses.replace`` gives another one; its rendering is made anew unless only what is said of it is another.

    Attributes:
        model: the float model the plan speaks of; it stays free of quantizers.
        plan: where it is quantized.
        qparams: numbers by site name.
        backend: the target.
        notes: what the passes did, and what data showed, in order.
        hints: what might be tried next, see :mod:`onnxq.notes.hints`.
        verification: what running the result showed, once it was run.
        format: how it is written, one of the backend's formats; its default where empty.
        version: of onnxq, written into the result; the one installed unless given.
        recipe: the range method, then the algorithms, as they were asked for.
        files: the artifact, once it was written: the ONNX model first.
    """

    model: ir.Model
    plan: Plan
    qparams: Mapping[str, QParams]
    backend: Backend
    notes: tuple[str, ...] = ()
    verification: Verification | None = None
    format: str = ""
    version: str = field(default_factory=_installed)
    recipe: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    hints: tuple[str, ...] = ()
    _rendering: _Rendering | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = tuple(getattr(self, part.name) for part in fields(self) if part.name not in _SAID)
        given = self._rendering
        if given is None or any(mine is not theirs for mine, theirs in zip(parts, given.parts, strict=True)):
            object.__setattr__(self, "_rendering", _Rendering(parts))

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the model flat, the target by its name, as its table holds functions."""
        state = {part.name: getattr(self, part.name) for part in fields(self)}
        return {**state, "model": packed(self.model), "backend": self.backend.name, "_rendering": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See :meth:`__getstate__`.

        Raises:
            OptionError: the target is not installed here.
        """
        given = {**state, "model": unpacked(state["model"]), "backend": backend_named(state["backend"])}
        for name, value in given.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __deepcopy__(self, memo: dict[int, Any]) -> Quantized:
        """One with a model of its own, whose tensors, which nothing changes in place, are the same."""
        return replace(self, model=self.model.clone())

    def __repr__(self) -> str:
        plan, bits = self.plan, sorted({f"{qp.spec.bits}" for qp in self.qparams.values()}, key=int)
        worst = self.verification.worst if self.verification is not None else None
        parts = [f"{plan.done} of {plan.total} nodes in integers"]
        parts += [f"{len(plan.stored)} with stored weights"] if plan.stored else []
        parts += [f"{plural(len(plan.sites), 'tensor')} quantized"]
        parts += [f"bits {', '.join(bits)}"] if bits else []
        parts += [f"{worst[0]!r} {worst[1].sqnr:.1f} dB"] if worst is not None else []
        parts += [f"files {', '.join(map(str, self.files))}"] if self.files else []
        return f"<Quantized for {self.backend.name}: {'; '.join(parts)}>"

    def qdq(self) -> ir.Model:
        """The model with QuantizeLinear and DequantizeLinear nodes."""
        from onnxq.render.qdq import render

        model = render(self)
        for rewriting in (self.backend.recast, self.backend.finish):
            if rewriting is not None:
                rewriting(model, self.plan)
        return model

    def rendered(self) -> ir.Model:
        """What its format computes, as ONNX that onnxruntime runs; made once, every caller gets a copy of its own."""
        made = self._rendering
        assert made is not None
        if made.model is None:
            made.model = self._format.render(self)
        return made.model.clone()

    def with_tensors(self) -> ir.Model:
        """As :meth:`rendered`, with all tensors of the plan, of their sizes: in no form that is merely faster."""
        if self.backend.recast is None:
            return self.rendered()
        return replace(self, backend=replace(self.backend, recast=None)).rendered()

    @property
    def is_simulated(self) -> bool:
        """Whether what its format renders is no artifact, but run for its numbers alone."""
        return self._format.simulated

    def simulated(self) -> ir.Model:
        """What its format computes, to be run once: as :meth:`rendered`, or sooner done where that is no artifact."""
        made = self._rendering
        model = made.model.clone() if made is not None and made.model is not None else self._format.render(self)
        if self.is_simulated:
            from onnxq.render.quicken import quicken

            quicken(model)
        return model

    def fake_quantize(self) -> ir.Model:
        """The model with an ``onnxq::FakeQuantize`` function call at every site, all tensors float."""
        from onnxq.render.qdq import render

        return render(self, fake=True)

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the target's artifacts, in a folder that is made where it is missing.

        Returns:
            The files written.

        Args:
            path: of the ONNX model, ``NAME.onnx``; sidecar files go beside it.

        Raises:
            OutputError: they could not be written; nothing half-written is left.
        """
        target = Path(path)
        require_onnx(target)
        spare_files(self.model, *self._format.sidecars(target), whole=False)
        is_there(target, OutputError)
        with made_folder(target):
            return self._format.write(self, target)

    def written(self, path: Path) -> Quantized:
        """The same, written to a path; ``files`` says what was written.

        Raises:
            OutputError: see :meth:`save`.
        """
        files = tuple(path.parent / file.name for file in self.save(path))
        checked = self.verification
        if checked is not None:
            checked = replace(checked, quantized_bytes=self._format.size(files))
        return replace(self, files=files, verification=checked)

    def torch(
        self,
        *,
        weight_quantizer: str | None = None,
        act_quantizer: str | None = None,
        weight_observer: str = "mse",
        act_observer: str = "ema_mse",
    ) -> GraphModule:
        """The model as a module of torch, for a training loop of one's own; :meth:`load_torch` takes it back.

        Args:
            weight_quantizer: how weights are trained, see :func:`onnxq.torch.prepare`.
            act_quantizer: how activations are.
            weight_observer: for quantizers whose range follows the values, how it is found.
            act_observer: the same.

        Raises:
            ModelError: it carries no quantizers, or operators that torch cannot run.
            OptionError: torch is missing, or a quantizer is not for the grids of this model.
        """
        from onnxq.torch.graph_module import GraphModule

        return GraphModule(
            self,
            weight_quantizer=weight_quantizer,
            act_quantizer=act_quantizer,
            weight_observer=weight_observer,
            act_observer=act_observer,
        )

    def load_torch(self, module: Module) -> Quantized:
        """The model with the weights, biases, scales and zero points of a module that :meth:`torch` gave.

        ``AveragedModel``, ``DistributedDataParallel`` or ``torch.compile`` may be around it.

        Raises:
            OptionError: torch is missing, or the module belongs to another model.
            VerificationError: onnxruntime does not run the result.
        """
        from onnxq.torch.load import loaded

        return loaded(self, module)

    @property
    def next_steps(self) -> tuple[str, ...]:
        """The vendor's commands that take the files written; none where none are known, or nothing was written."""
        if not (self.files and self.backend.next_step) or self.format not in ("", next(iter(self.backend.formats))):
            return ()
        stem = str(self.files[0].with_suffix(""))
        written = {str(path).lower(): str(path) for path in self.files}  # NAME.ONNX is a name, too

        def named(found: re.Match[str]) -> str:
            name = stem + found[1]
            return shlex.quote(written.get(name.lower(), name))

        return tuple(re.sub(r"\bMODEL([\w.-]*)", named, part.strip()) for part in self.backend.next_step.split("&&"))

    @property
    def _format(self) -> Format:
        return self.backend.format_named(self.format)

    def report(self) -> dict[str, Any]:
        """What was done, as JSON-ready data: counts, every node that stayed float and why, and the verification.

        Of ``nodes`` with float arithmetic ``integer_nodes`` run in integers (those of ``quantized_nodes``, and of
        ``absorbed_nodes`` that are computed together with one) and ``float_nodes`` do not; the weights of some of the
        latter, ``stored_nodes``, are stored as integers.
        """
        ops: dict[str, int] = {}
        for op in self.plan.quantized.values():
            ops[op] = ops.get(op, 0) + 1
        return {
            "backend": self.backend.name,
            "format": self.format or next(iter(self.backend.formats)),
            "files": [str(path) for path in self.files],
            "next_steps": list(self.next_steps),
            "recipe": list(self.recipe),
            "nodes": self.plan.total,
            "integer_nodes": self.plan.done,
            "quantized_nodes": len(self.plan.quantized),
            "absorbed_nodes": len(self.plan.absorbed),
            "float_nodes": len(self.plan.kept_float),
            "stored_nodes": len(self.plan.stored),
            "quantized_ops": dict(sorted(ops.items())),
            "kept_float": [{"node": k.node, "op": k.op, "reason": k.reason} for k in self.plan.kept_float],
            "notes": list(self.notes),
            "hints": list(self.hints),
            "verification": self.verification.to_dict() if self.verification else None,
        }
