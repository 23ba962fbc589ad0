"""Which widths mixed precision chooses from: those asked for or of use, those that a target has, those of each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnxq.algorithm import FloatDraft
from onnxq.algorithms.bits.bit_overrides import allowed, planned_bits
from onnxq.algorithms.bits.budget import FLOAT, parse_widths, stored_bits
from onnxq.errors import OptionError
from onnxq.measuring.probe import Part, end_layers, parts_of
from onnxq.plan import Plan
from onnxq.spec import QuantSpec

__all__ = ["Choices", "asked_widths", "choices", "holds_integers", "require_integers", "useful_widths"]

_NAME = "mixed_precision"


@dataclass(frozen=True)
class Choices:
    """The widths that there are to choose from.

    Attributes:
        layers: for the weights of each layer.
        activations: for each tensor.
        several: those of the tensors for which there may be several.
        parts: layers and tensors, in the order of the graph.
    """

    layers: Mapping[Part, tuple[int, ...]]
    activations: Mapping[Part, tuple[int, ...]]
    several: Sequence[Part]
    parts: Sequence[Part]

    def open_parts(self) -> list[Part]:
        """All layers, and the tensors with a choice."""
        return [part for part in self.parts if part in self.layers or len(self.activations[part]) > 1]

    def asked(self, act_widths: Sequence[int]) -> dict[str, list[int]]:
        """Role → the widths that are measured."""
        asked = {"weights": sorted({bits for found in self.layers.values() for bits in found})}
        if any(len(found) > 1 for found in self.activations.values()):
            asked["activations"] = list(act_widths)
        return asked


def choices(
    draft: FloatDraft, plan: Plan, widths: tuple[int, ...], act_widths: tuple[int, ...], first_last: int
) -> Choices:
    """The widths that each part of a plan may have.

    Args:
        draft: gets a warning where a layer at an end cannot have ``first_last``.
        plan: its sites are the parts.
        widths: of weights.
        act_widths: of activations that layers read, if there are several.
        first_last: of the weights of layers with no other before or behind them; 0: like the others.
    """
    parts = parts_of(draft.model, plan)
    weights = [part for part in parts if part.role == "weights"]
    ends = end_layers(draft.model, weights) if first_last else set()
    layers = allowed({part: (first_last,) if part in ends else widths for part in weights}, plan, draft)
    if unmet := [part.name for part in weights if part in ends and layers[part] != (first_last,)]:
        draft.warnings.append(f"{_NAME}: first_last={first_last} is not kept, {', '.join(unmet)} cannot have it")
    read = {name for part in weights for name in part.nodes}
    activations = {part: planned_bits(part, plan) for part in parts if part.role == "activations"}
    several = [part for part in activations if len(act_widths) > 1 and read & set(part.nodes)]
    activations |= allowed(dict.fromkeys(several, act_widths), plan, draft)
    return Choices(layers, activations, several, parts)


def holds_integers(draft: FloatDraft) -> bool:
    """Whether weights are stored as the integers that ONNX has; else in as many bits as they are given."""
    return draft.target.format_named(draft.options.format).integers


def asked_widths(bits: str, draft: FloatDraft) -> tuple[int, ...]:
    """Widths that the user gives.

    Raises:
        OptionError: the target has no weights of one.
    """
    widths, known = parse_widths(bits), draft.target.weight_bits
    for width in widths:
        if width != FLOAT and width not in known:
            hint = f"It has those of {', '.join(map(str, sorted(known)))} bits"
            raise OptionError(f"{draft.target.name} has no weights of {width} bits", where=f"{_NAME} bits", hint=hint)
    return widths


def useful_widths(widths: Sequence[int], draft: FloatDraft) -> tuple[int, ...]:
    """Of widths, those that the target has, and of those stored alike the widest: it costs no more, and errs least."""
    known = [bits for bits in widths if bits == FLOAT or bits in draft.target.weight_bits]
    if holds_integers(draft):
        known = list({stored_bits(bits): bits for bits in known}.values())
    return tuple(known or (draft.target.weight.bits,))


def require_integers(draft: FloatDraft, widths: Sequence[int], act_widths: Sequence[int]) -> None:
    """Refuse widths for which the opset asked for, or the target, has no integers.

    Args:
        draft: says the target and the options.
        widths: of weights.
        act_widths: of activations.

    Raises:
        OptionError: there are such.
    """
    options = draft.options
    if not holds_integers(draft):
        return
    wide = [bits for bits in (*widths, *act_widths) if stored_bits(bits) in (4, 16)]
    if wide and options.opset is not None and options.opset < 21:
        hint = "Leave it out or ask for 21, or give other bits"
        raise OptionError(f"opset {options.opset} has no integers for {wide[0]} bits", where="opset", hint=hint)
    for bits in act_widths:
        if QuantSpec(bits).storage_bits not in draft.target.quantizer_bits:
            known = ", ".join(map(str, sorted(draft.target.quantizer_bits)))
            hint = f"It has those of {known} bits"
            raise OptionError(f"{draft.target.name} has no activations of {bits} bits", where=_NAME, hint=hint)
