"""What verifying an artifact showed, and whether that is good enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxq.console.terminal import decibels, plural
from onnxq.measuring.layerwise import LayerAgreement
from onnxq.measuring.loss import Loss
from onnxq.measuring.metrics import Errors, jsonable
from onnxq.measuring.outputs import worst_output
from onnxq.options import Options

__all__ = ["Agreement"]

_AGREEMENT = 30.0
"""dB to which a runtime and onnxruntime agree on the same integers."""


@dataclass(frozen=True)
class Agreement:
    """What verifying an artifact showed.

    Attributes:
        backend: the target.
        artifact: the ONNX model that was verified.
        format: how it was read: one of the target's formats, or ``"onnx"`` for a model with quantizers in it.
        runtime: name and version of the real runtime, ``None`` where there is none to install or none was asked.
        compared: what the figures compare; why there are none, where nothing was compared.
        simulated: no runtime computed: the figures say what quantization costs, not how two runtimes agree.
        outputs: output → error of one against the other; empty where the runtime only compiles.
        lsb: output → the largest difference in steps of its quantizer, for the outputs that have one; empty where
            ``simulated``.
        against_float: output → what it loses against the float model inside; empty where no runtime computed.
        integer: operators that the runtime computes in integers.
        floating: operators that it computes in float.
        speedup: the float model's time over the artifact's in the runtime, one thread of this machine; None where it
            was not timed.
        timed: what else there is to say of these times.
        remarks: what else the runtime said.
        tensors: number of tensors with a scale.
        in_both: what else is quantized, in blocks or with ranges taken at run time: it is so in both that are compared.
        layers: the integers of every tensor, each layer computed from equal ones; empty where not asked for.
        layers_missing: why there are none though they were asked for: the runtime took too long over the parts, say.
        steps: by how many steps an integer of a layer is known to differ in this runtime.
    """

    backend: str
    artifact: Path
    format: str
    runtime: str | None
    compared: str
    simulated: bool
    outputs: Mapping[str, Errors] = field(default_factory=dict)
    lsb: Mapping[str, float] = field(default_factory=dict)
    against_float: Mapping[str, Loss] = field(default_factory=dict)
    integer: tuple[str, ...] = ()
    floating: tuple[str, ...] = ()
    speedup: float | None = None
    timed: str = ""
    remarks: tuple[str, ...] = ()
    tensors: int = 0
    in_both: str = ""
    layers: tuple[LayerAgreement, ...] = ()
    layers_missing: str | None = None
    steps: int = 0

    @property
    def ok(self) -> bool:
        """Whether the artifact does what it should, by the floors of :meth:`agrees`."""
        return self.agrees()

    def agrees(self, *, min_sqnr: float | None = None, max_steps: int | None = None) -> bool:
        """Whether :meth:`faults` finds none."""
        return not self.faults(min_sqnr=min_sqnr, max_steps=max_steps)

    def faults(self, *, min_sqnr: float | None = None, max_steps: int | None = None) -> list[str]:
        """Why the artifact does not do what it should, a sentence each.

        Args:
            min_sqnr: dB that every output has at least. By default 10 in a simulation, and where a runtime computed 30,
                unless it loses as little against the float model as the simulation does.
            max_steps: steps by which an integer of a layer is off at most; those of this runtime by default.

        Returns:
            One for each output below the floor or of another shape, and for layers that are off or were not compared.
        """
        floor = min_sqnr if min_sqnr is not None else Options().min_sqnr if self.simulated else _AGREEMENT
        most = self.steps if max_steps is None else max_steps
        found = []
        for name, errors in self.outputs.items():
            loss = self.against_float.get(name)
            if errors.drawn:
                continue
            if errors.reshaped:
                found += [] if self.simulated else [f"output {name!r} has another shape"]
            elif errors.sqnr < floor and not (min_sqnr is None and loss is not None and loss.is_that_of_quantizing):
                lost = ""
                if loss is not None:
                    both = f"{decibels(loss.runtime)}, {decibels(loss.simulation)} in simulation"
                    lost = f"; against float it has {both}"
                found.append(f"output {name!r} has {decibels(errors.sqnr)}, the floor is {floor:g} dB{lost}")
        if self.layers_missing is not None:
            found.append("the layers were not compared")
        if off := [layer for layer in self.layers if layer.steps > most]:
            found.append(f"the integers of {plural(len(off), 'layer')} are off by more than {plural(most, 'step')}")
        return found

    @property
    def may_be_split(self) -> bool:
        """Whether layers can be compared, and were not."""
        return not (self.simulated or self.layers or self.layers_missing) and self.format == "onnx" and self.tensors > 0

    @property
    def worst(self) -> tuple[str, Errors] | None:
        """The float output with the lowest SQNR, see :func:`onnxq.measuring.outputs.worst_output`."""
        return worst_output(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "backend": self.backend,
            "artifact": str(self.artifact),
            "format": self.format,
            "runtime": self.runtime,
            "compared": self.compared,
            "simulated": self.simulated,
            "tensors": self.tensors,
            "in_both": self.in_both,
            "outputs": {name: errors.to_dict() for name, errors in self.outputs.items()},
            "lsb": {name: jsonable(value) for name, value in self.lsb.items()},
            "against_float": {name: loss.to_dict() for name, loss in self.against_float.items()},
            "integer": list(self.integer),
            "floating": list(self.floating),
            "speedup": jsonable(self.speedup) if self.speedup is not None else None,
            "timed": self.timed,
            "remarks": list(self.remarks),
            "layers": [layer.to_dict() for layer in self.layers],
            "layers_missing": self.layers_missing,
        }
