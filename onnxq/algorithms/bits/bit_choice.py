"""Bits for every layer as items of a budget: what can be chosen, the best choice, and what it does to the outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnxq.algorithms.bits.allocate import allocate
from onnxq.algorithms.bits.budget import FLOAT, Costs
from onnxq.errors import OptionError
from onnxq.measuring.decibels import noise_of, sqnr_of
from onnxq.measuring.probe import Part, Probe, Setting
from onnxq.notes.other_shapes import rows_depend
from onnxq.plan import Plan

__all__ = ["BitChoice", "Item", "Problem", "items_of"]

Noise = Mapping[Part, Mapping[int, float]]
_Option = tuple[float, float, tuple[Setting, ...]]
"""Cost, loss and settings."""

_ROUNDS = 6
_STEP = 4.0
"""How often the noise aimed at is corrected by what was measured, and the largest factor of a correction."""
_CLOSER = 0.9
"""Of the noise foreseen of a choice that missed: what is aimed at next at most, so that another choice is tried."""


@dataclass(frozen=True, slots=True)
class Item:
    """Parts whose bits are chosen together: a layer, or an activation with the layers that read it.

    Attributes:
        options: what can be chosen.
        costs: of each, in the unit of the budget.
        losses: noise over signal at the outputs of each.
    """

    options: tuple[tuple[Setting, ...], ...]
    costs: tuple[float, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BitChoice:
    """Bits for every layer and activation.

    Attributes:
        settings: the bits; :data:`~onnxq.algorithms.bits.budget.FLOAT` for a layer that stays float.
        cost: in the unit of the budget.
    """

    settings: tuple[Setting, ...]
    cost: float

    @property
    def layers(self) -> list[Setting]:
        """Those of layers."""
        return [s for s in self.settings if s.part.role == "weights"]


def items_of(
    plan: Plan,
    layers: Mapping[Part, Sequence[int]],
    activations: Mapping[Part, Sequence[int]],
    noise: Noise,
    costs: Costs,
) -> list[Item]:
    """What can be chosen.

    Args:
        plan: says which layer reads which activation.
        layers: widths to choose from for each layer.
        activations: for each activation.
        noise: of each part at each width.
        costs: of a layer by its bits and those of the activation that it reads.
    """
    reads = _reads(plan, layers, activations)
    items = []
    for activation, act_widths in activations.items():
        readers = [layer for layer in layers if reads.get(layer) == activation]
        if len(act_widths) == 1:
            items.append(Item(((Setting(activation, act_widths[0]),),), (0.0,), (0.0,)))
            items += [_alone(layer, layers[layer], act_widths[0], noise, costs) for layer in readers]
        else:
            items.append(_together(activation, act_widths, {layer: layers[layer] for layer in readers}, noise, costs))
    return items + [_alone(layer, layers[layer], 8, noise, costs) for layer in layers if layer not in reads]


def _reads(plan: Plan, layers: Mapping[Part, object], activations: Mapping[Part, object]) -> dict[Part, Part]:
    """Layer → the activation that is its data; layers that take float data are left out."""
    weights = plan.by_edge("weight")
    owner = {name: part for part in activations for name in part.sites}
    data: dict[str, Part] = {}
    for edge, site in plan.by_edge("activation").items():
        if edge not in weights:
            data.setdefault(edge.node, owner[site.name])
    found = {layer: next((data[n] for n in layer.nodes if n in data), None) for layer in layers}
    return {layer: part for layer, part in found.items() if part is not None}


def _alone(layer: Part, widths: Sequence[int], act_bits: int, noise: Noise, costs: Costs) -> Item:
    options = tuple((Setting(layer, bits),) for bits in widths)
    return Item(
        options,
        tuple(costs.of(layer, bits, act_bits) for bits in widths),
        tuple(noise[layer][bits] for bits in widths),
    )


def _together(
    activation: Part, act_widths: Sequence[int], readers: Mapping[Part, Sequence[int]], noise: Noise, costs: Costs
) -> Item:
    """Every undominated combination of the bits of an activation and of the layers that read it."""
    found: list[_Option] = []
    for act_bits in act_widths:
        partial: list[_Option] = [(0.0, noise[activation][act_bits], (Setting(activation, act_bits),))]
        for layer, widths in readers.items():
            more = [
                (cost + costs.of(layer, bits, act_bits), loss + noise[layer][bits], (*taken, Setting(layer, bits)))
                for cost, loss, taken in partial
                for bits in widths
            ]
            partial = _undominated(more)
        found += partial
    kept = _undominated(found)
    return Item(tuple(k[2] for k in kept), tuple(k[0] for k in kept), tuple(k[1] for k in kept))


def _undominated(options: Sequence[_Option]) -> list[_Option]:
    kept: list[_Option] = []
    for option in sorted(options, key=lambda o: o[:2]):
        if not kept or option[1] < kept[-1][1]:
            kept.append(option)
    return kept


@dataclass(frozen=True)
class Problem:
    """Items to choose for, and a probe to measure choices with.

    Attributes:
        probe: measures.
        items: what can be chosen.
    """

    probe: Probe
    items: Sequence[Item]

    def within(self, limit: float, hint: str) -> BitChoice:
        """The choice of least noise of a cost within a limit.

        Args:
            limit: the cost of all parts, at most.
            hint: what to do where there is none.

        Raises:
            OptionError: there is none.
        """
        found = allocate([item.costs for item in self.items], [item.losses for item in self.items], limit)
        if found is None:
            least = math.fsum(min(item.costs) for item in self.items)
            raise OptionError(
                f"the cheapest choice costs {least / limit:.3g} times what the budget allows",
                where="mixed_precision",
                hint=hint,
            )
        return self._choice(found.chosen)

    def reaching(self, sqnr: float) -> BitChoice:
        """The cheapest choice found that reaches an SQNR, in dB, at the worst output.

        The sum of noise is only nearly that of all together: where the measured noise of a choice is not what was
        aimed at, the aim is corrected.

        Raises:
            OptionError: none reaches it.
        """
        wanted = noise_of(sqnr)
        base = self.noise([s for item in self.items if len(item.options) == 1 for s in item.options[0]])
        best: BitChoice | None = None
        noise: dict[BitChoice, float] = {}
        aim, reached, missed = wanted - base, 0.0, math.inf
        for _ in range(_ROUNDS if aim > 0 else 0):
            found = allocate([item.losses for item in self.items], [item.costs for item in self.items], aim)
            choice = self._choice(found.chosen) if found else self.quietest()
            if choice not in noise:
                noise[choice] = self.noise(choice.settings)
            step = (wanted - base) / max(noise[choice] - base, 1e-3 * wanted)
            corrected = aim * min(max(step, 1 / _STEP), _STEP)
            if noise[choice] <= wanted:
                reached = max(reached, aim)
                best = choice if best is None or choice.cost < best.cost else best
            else:
                missed = min(missed, aim)
                corrected = min(corrected, _CLOSER * found.cost) if found else corrected
            aim = corrected
            if not reached < aim < missed:
                aim = math.sqrt(reached * missed) if reached and missed < math.inf else aim
        if best is None:
            choice = self.quietest()
            least = self.noise(choice.settings)
            if least > wanted:
                hint = f"Activations alone leave {sqnr_of(base):.1f} dB: give act_bits=8/16, or more bits"
                if self.probe.reshaped:
                    hint = rows_depend(self.probe.reshaped, metric=False)
                raise OptionError(
                    f"{sqnr:g} dB cannot be reached, only {sqnr_of(least):.1f} dB", where="mixed_precision", hint=hint
                )
            best = choice
        return best

    def quietest(self) -> BitChoice:
        """The choice of least noise whatever it costs, the cheapest of these."""
        return self._choice([min(range(len(i.options)), key=lambda k: (i.losses[k], i.costs[k])) for i in self.items])

    def uniform(self, bits: int, act_bits: int) -> BitChoice | None:
        """The same bits for all layers that there is a choice for; ``None`` where an item does not offer them."""
        chosen = []
        for item in self.items:
            wanted = {"weights": bits, "activations": act_bits}
            fits = [k for k, option in enumerate(item.options) if all(s.bits == wanted[s.part.role] for s in option)]
            if not fits and len(item.options) > 1:
                return None
            chosen.append(fits[0] if fits else 0)
        return self._choice(chosen)

    def level(self, choice: BitChoice, probe: Probe | None = None) -> float:
        """SQNR at the worst output with a choice, dB."""
        return sqnr_of(self.noise(choice.settings, probe))

    def noise(self, settings: Sequence[Setting], probe: Probe | None = None) -> float:
        """Noise over signal at the worst output."""
        found = (probe or self.probe).noise([s for s in settings if s.bits != FLOAT])
        return max(found.values())

    def _choice(self, chosen: Sequence[int]) -> BitChoice:
        picked = list(zip(self.items, chosen, strict=True))
        settings = tuple(s for item, k in picked for s in item.options[k])
        return BitChoice(settings, math.fsum(item.costs[k] for item, k in picked))
