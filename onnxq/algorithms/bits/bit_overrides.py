"""Bits that were chosen for layers and activations as overrides, which a plan obeys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxq.algorithm import FloatDraft
from onnxq.algorithms.bits.budget import FLOAT
from onnxq.errors import OptionError
from onnxq.measuring.probe import Part, Setting
from onnxq.options import Override
from onnxq.options.patterns import Names, meaning_one, names_of
from onnxq.plan import Plan

__all__ = ["allowed", "overrides_of", "planned_bits", "require_planned"]


def allowed(widths: Mapping[Part, Sequence[int]], plan: Plan, draft: FloatDraft) -> dict[Part, tuple[int, ...]]:
    """Of the widths of each part those that its operators have, or else that of a plan.

    Args:
        widths: part → widths that are asked for.
        plan: of the draft.
        draft: its model, target and options.
    """
    names = names_of(draft.model)
    refused: set[Setting] = set()
    for bits in {bits for asked in widths.values() for bits in asked}:
        settings = [Setting(part, bits) for part, asked in widths.items() if bits in asked]
        override = (*draft.options.override, *overrides_of(settings, plan, names))
        made = replace(draft, options=replace(draft.options, override=override)).plan() if bits != FLOAT else plan
        planned = _planned(made)
        refused.update(s for s in settings if bits != FLOAT and _others(s, planned))
    left = {part: tuple(b for b in asked if Setting(part, b) not in refused) for part, asked in widths.items()}
    return {part: kept or planned_bits(part, plan) for part, kept in left.items()}


def planned_bits(part: Part, plan: Plan) -> tuple[int, ...]:
    """The width that a part has in a plan, as the only one to choose."""
    return (max(plan.by_name[name].spec.bits for name in part.sites),)


def overrides_of(chosen: Sequence[Setting], plan: Plan, names: Names) -> list[tuple[str, Override]]:
    """What differs from a plan, by patterns that mean one node or one tensor whatever else has its name.

    Args:
        chosen: the bits; :data:`~onnxq.algorithms.bits.budget.FLOAT` for a layer that stays float.
        plan: where the bits of activations are what they would be without a choice.
        names: of the model.
    """
    only = meaning_one(names)
    found: dict[str, Override] = {}
    for setting in chosen:
        part, bits = setting.part, setting.bits
        if part.role == "weights":
            change = Override(float=True) if bits == FLOAT else Override(weight_bits=bits)
            found.update((only("node", name), change) for name in part.nodes)
        elif any(plan.by_name[name].spec.bits != bits for name in part.sites):
            found.update((only("tensor", name), Override(act_bits=bits)) for name in part.tensors)
    return list(found.items())


def require_planned(chosen: Sequence[Setting], plan: Plan) -> None:
    """See that a plan gives what was chosen.

    Raises:
        OptionError: it does not.
    """
    planned = _planned(plan)
    for setting in chosen:
        part, bits = setting.part, setting.bits
        if bits == FLOAT and plan.quantized.keys().isdisjoint(part.nodes):
            continue
        if given := _others(setting, planned):
            wanted = "float" if bits == FLOAT else f"{bits} bits"
            raise OptionError(
                f"the {part.role} of {part.name!r} should get {wanted}, but the plan gives them "
                f"{' and '.join(map(str, sorted(given)))} bits",
                where="mixed_precision",
                hint="Operators that share a tensor cannot all have these widths: leave one out of bits= or act_bits=",
            )


def _planned(plan: Plan) -> dict[tuple[str, str], set[int]]:
    """Role and tensor → bits."""
    found: dict[tuple[str, str], set[int]] = {}
    for site in plan.sites:
        found.setdefault((site.role, site.tensor), set()).add(site.spec.bits)
    return found


def _others(setting: Setting, planned: Mapping[tuple[str, str], set[int]]) -> set[int]:
    """Other bits than those of a setting that its tensors are planned with."""
    role = "weight" if setting.part.role == "weights" else "activation"
    return {bits for name in setting.part.tensors for bits in planned.get((role, name), ())} - {setting.bits}
