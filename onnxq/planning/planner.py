"""Graph and table in, plan out: candidates by the target's rows, assignment by cost, then sites and ties."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

import onnx_ir as ir

from onnxq.backend import Backend
from onnxq.graph.recognition.groups import Group
from onnxq.options import Options
from onnxq.plan import Kept, Plan
from onnxq.planning.absorption import absorb
from onnxq.planning.assignment import assign, store_weights
from onnxq.planning.candidates import find_candidates
from onnxq.planning.carry import carry
from onnxq.planning.question import Decisions, Question
from onnxq.planning.sites import activations, make_sites
from onnxq.planning.widths import share_widths

__all__ = ["Planner", "activations_of", "make_plan", "settled_plan"]


def make_plan(
    model: ir.Model,
    backend: Backend,
    options: Options | None = None,
    *,
    keep_float: Mapping[str, str] | None = None,
    unusable: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
    store: Container[str | None] = (),
    wide: Container[str | None] = (),
) -> Plan:
    """Decide what is quantized how, what is tied, and what stays float and why.

    Args:
        model: a normalized model (see :func:`onnxq.graph.passes.normalize.normalize`).
        backend: the target.
        options: bits, symmetry, granularity, exclusions and placement.
        keep_float: node name → reason, for nodes that data has shown to be hurt by quantization; ``include`` wins.
        unusable: node name → reason, for nodes that have no numbers to be quantized with, asked for or not.
        sizes: tensor name → number of elements, where data has shown it; else the shapes in the model are used.
        store: names among ``keep_float`` whose weights are stored as integers all the same, where the target does so.
        wide: names of float layers whose weights, where they are stored as integers, take 16 bits.

    Raises:
        OptionError: a pattern of the options matches nothing.
    """
    planner = Planner(model, backend, options or Options(), sizes)
    return planner.plan(keep_float or {}, unusable or {}, store=store, wide=wide)


class Planner:
    """Plans a model for a target again and again, with more or less of it in float.

    What all plans share is found once; of two in a row that keep the same nodes float, what runs in integers as well.

    Args:
        model: a normalized model, not to be changed as long as it is planned.
        backend: the target.
        options: bits, symmetry, granularity, exclusions and placement.
        sizes: as for :func:`make_plan`.

    Raises:
        OptionError: a pattern of the options matches nothing.
    """

    def __init__(
        self, model: ir.Model, backend: Backend, options: Options, sizes: Mapping[str, int] | None = None
    ) -> None:
        self._asked = Question.of(model, backend, options, sizes=sizes)
        self._last: tuple[Mapping[str, str], Decisions] | None = None

    def plan(
        self,
        keep_float: Mapping[str, str],
        unusable: Mapping[str, str],
        *,
        store: Container[str | None] = (),
        wide: Container[str | None] = (),
    ) -> Plan:
        """A plan, see :func:`make_plan` for what it is given."""
        asked = self._asked.but(keep_float, unusable, wide)
        if self._last is None or self._last[0] != asked.keep_float:
            self._last = asked.keep_float, _decided(asked)
        return _settled(asked, self._last[1].copy(), store)


def _settled(asked: Question, decided: Decisions, store: Container[str | None]) -> Plan:
    """The plan that follows from what runs in integers, which is changed in place."""
    store_weights(asked, decided, store)
    carry(asked, decided, kernels=True)
    share_widths(asked, decided)
    sites = make_sites(asked, decided)
    return Plan(
        backend=asked.backend.name,
        sites=sites,
        quantized={n.name or "": n.op_type for n in asked.nodes if n in decided.rules},
        stored={n.name or "": n.op_type for n in asked.nodes if n in decided.stored},
        absorbed={n.name or "": into.name or "" for n, into in decided.absorbed.items()},
        kept_float=tuple(Kept(n.name or "", n.op_type, why) for n in asked.nodes if (why := decided.kept.get(n))),
    )


def activations_of(
    model: ir.Model, backend: Backend, options: Options, groups: Sequence[Group] | None = None
) -> set[str]:
    """The ``source`` of every activation that :func:`make_plan` would quantize, in a fraction of its time.

    Args:
        model: a normalized model.
        backend: the target.
        options: exclusions, placement and so on.
        groups: what :func:`onnxq.graph.recognition.groups.find_groups` gives for the model, where that is known.

    Raises:
        OptionError: a pattern of the options matches nothing.
    """
    asked = Question.of(model, backend, options, groups=groups)
    return activations(_decided(asked))


def _decided(asked: Question) -> Decisions:
    """What runs in integers, and why the rest does not."""
    decided = find_candidates(asked)
    absorb(asked, decided)
    assign(asked, decided)
    return decided


def settled_plan(
    model: ir.Model,
    backend: Backend,
    options: Options,
    lacking: Callable[[Plan], Mapping[str, str]],
    unusable: Mapping[str, str] | None = None,
    store: Container[str | None] = (),
) -> Plan:
    """The plan in which every node has the numbers that it needs; nodes that lack some stay float.

    Args:
        model: a normalized model.
        backend: the target.
        options: as for :func:`make_plan`.
        lacking: nodes of a plan that lack numbers, with the reasons. What stays float for one node's sake may leave
            another without numbers, so it is asked until it finds nothing new.
        unusable: nodes that stay float in any case, with the reasons.
        store: as for :func:`make_plan`.

    Raises:
        OptionError: a pattern of the options matches nothing.
    """
    reasons = dict(unusable or {})
    while True:
        plan = make_plan(model, backend, options, unusable=reasons, store=store)
        more = lacking(plan)
        if not more.keys() - reasons.keys():
            return plan
        reasons = {**more, **reasons}
