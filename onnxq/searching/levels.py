"""The order of the search: levels from cheap to dear, and which attempt wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from onnxq.console.deadline import Deadline, TimeIsUpError
from onnxq.deciding.rescue import Blame
from onnxq.options import Options
from onnxq.searching import candidates, harmful_layers
from onnxq.searching.attempt import Attempt, Candidate, best, faster, fastest
from onnxq.searching.trials import Trials

__all__ = ["Hunt"]

_FEW = 4
"""Groups of layers that are widened or kept float before algorithms are tried that train."""


@dataclass(eq=False)
class Hunt:
    """Goes through the levels until one holds a model that meets the target.

    A pipeline of its own is as quick to try as the default: it is tried next where the default is not accurate enough,
    or may be slower. Range methods and algorithms mostly leave speed as it is; where one that meets the target is
    slower than the default (more nodes stay float), the rest of its level is tried as well. A few layers at 16 bits or
    in float come before algorithms that train, which take minutes; as many as it takes come last.

    Attributes:
        trials: makes attempts, and knows those of an earlier run.
        options: what is tried first.
        ways: what may be tried.
        blame: measures what layers do to the outputs.
        tell: called with each attempt.
        deadline: after it nothing is begun.
        done: the attempts, in order.
        stopped: the deadline was met.
    """

    trials: Trials
    options: Options
    ways: candidates.Ways
    blame: Callable[[], list[Blame]]
    tell: Callable[[Attempt], None]
    deadline: Deadline = field(default_factory=Deadline)
    done: list[Attempt] = field(default_factory=list)
    stopped: bool = False
    _options: dict[int, Options] = field(default_factory=dict)
    _made: dict[tuple[str, str], Attempt] = field(default_factory=dict)

    def run(self) -> Attempt | None:
        """The winner: the fastest that meets the target, else the one of the highest metric.

        Of those that count as equally fast it is what the levels came to, with the fewest layers in float.
        """
        found = None
        try:
            found = self._levels()
        except TimeIsUpError:
            self.stopped = True
        return fastest([*([] if found is None else [found]), *self.done]) or best(self.done)

    def _levels(self) -> Attempt | None:
        first = self._attempt(candidates.default(self.options))
        tried = [self._attempt(c) for c in self.ways.whole] if self.ways.gains or not first.meets else []
        enough = [made for made in (first, *tried) if made.meets]
        if first.meets or any(not faster(first, made) for made in enough):
            return fastest(enough)
        for list_of, installed in (
            (candidates.ranges, self.ways.ranges),
            (candidates.algorithms, self.ways.algorithms),
        ):
            if (found := self._level(list_of(self._base(), installed), first)) is not None:
                return fastest([*enough, found])
        before = self._top()
        if (found := self._climbs(_FEW)) is not None:
            return fastest([*enough, found])
        if (found := self._level(candidates.trained(self._base(), self.ways.algorithms), first)) is not None:
            return fastest([*enough, found])
        top = self._top()
        found = self._climbs(None, "" if top is before or top is None else top.name)
        return fastest([*enough, *([found] if found is not None else [])])

    def _base(self) -> Options:
        """The best options so far with the algorithms that the user named: others may take their place."""
        return replace(self._best(), algorithms=self.options.algorithms)

    def _climbs(self, most: int | None, basis: str = "") -> Attempt | None:
        """The fastest attempt with layers at 16 bits, or in float, that meets the target.

        Args:
            most: groups of layers, at most; None for as many as there are.
            basis: name of the attempt whose options the others have, where it is not that of an earlier climb.
        """
        if self.trials.state.blame is None:
            self.deadline.check()
        records, base = self.blame(), self._best()
        found = []
        for count, rung in (
            harmful_layers.wide(base, records, basis),
            harmful_layers.in_float(base, records, basis, self.ways.functions),
        ):
            if count and not self.ways.holds(rung(1).options):
                continue
            found.append(harmful_layers.climb(count if most is None else min(most, count), rung, self._attempt))
        return fastest([made for made in found if made is not None])

    def _level(self, level: Sequence[Candidate], first: Attempt) -> Attempt | None:
        """The fastest attempt of a level that meets the target; the first such as fast as the default ends it."""
        found: list[Attempt] = []
        for candidate in level:
            if not self.ways.holds(candidate.options):
                continue
            made = self._attempt(candidate)
            if made.meets:
                found.append(made)
                if not faster(first, made):
                    break
        return fastest(found)

    def _attempt(self, candidate: Candidate) -> Attempt:
        if (again := self._made.get((candidate.level, candidate.what))) is not None:
            return again  # a rung of the climb before
        made = self.trials.known(candidate)
        if made is None:
            if self.done:
                self.deadline.check()
            made = self.trials.make(candidate)
        self.done.append(made)
        self._made[candidate.level, candidate.what] = made
        if candidate not in self.ways.whole and candidate.level not in harmful_layers.LEVELS:
            self._options[made.number] = candidate.options
        self.tell(made)
        return made

    def _best(self) -> Options:
        """The options of the attempt of the highest metric, of those that have a plan, and all layers in it."""
        top = self._top()
        return self.options if top is None else self._options[top.number]

    def _top(self) -> Attempt | None:
        return best([made for made in self.done if made.number in self._options])
