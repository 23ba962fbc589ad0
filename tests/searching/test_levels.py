"""The order in which candidates are tried, which one wins, and how few layers a climb settles on."""

from __future__ import annotations

import dataclasses
import itertools
from typing import cast

import pytest

from onnxq import Options
from onnxq.backend_choice import backend_named
from onnxq.console.deadline import Deadline
from onnxq.deciding.rescue import Blame
from onnxq.options.override import Override
from onnxq.searching import candidates
from onnxq.searching.attempt import Attempt, Candidate, best, faster, fastest
from onnxq.searching.candidates import Ways
from onnxq.searching.harmful_layers import climb, in_float, wide
from onnxq.searching.levels import Hunt
from onnxq.searching.trials import Trials


def made(number: int, *, time: float | None = 1.0, metric: float | None = 0.5, meets: bool = True) -> Attempt:
    return Attempt(number, "range", str(number), metric=metric, drop=0.0, time=time, meets=meets)


def test_the_fastest_wins_and_ties_go_to_the_first() -> None:
    assert fastest([made(1, meets=False, time=0.1)]) is None
    assert fastest([first := made(1), made(2), made(3, time=0.97)]) is first, "3 % is within what measuring varies by"
    assert fastest([made(1), second := made(2, time=0.9)]) is second
    assert fastest([made(1, time=None), second := made(2, time=0.5)]) is second


def simulated(number: int, quantized: float, size: int = 100, *, meets: bool = True) -> Attempt:
    return dataclasses.replace(made(number, time=None, meets=meets), quantized=quantized, bytes=size)


def test_without_a_time_more_quantized_work_wins_then_the_smaller_file() -> None:
    assert fastest([simulated(1, 0.7), second := simulated(2, 1.0, 900)]) is second
    assert fastest([first := simulated(1, 0.995), simulated(2, 1.0), simulated(3, 1.0, 97)]) is first
    assert fastest([simulated(1, 1.0), second := simulated(2, 0.995, 50)]) is second
    assert fastest([simulated(1, 1.0, meets=False), second := simulated(2, 0.2)]) is second
    assert not faster(simulated(1, 1.0), simulated(2, 1.0)) and faster(simulated(1, 1.0), simulated(2, 0.5))


def test_no_chain_of_small_steps_leads_away_from_the_fastest() -> None:
    """Each is like the one before it, but the last is not like the first: what counts is the best figure of all."""
    steps = [simulated(1, 0.909, 100), simulated(2, 0.900, 90), simulated(3, 0.891, 80)]
    for order in itertools.permutations(steps):
        assert fastest(list(order)) is steps[1], "the smallest of those that quantize nearly as much as the first"
    times = [made(number, time=time) for number, time in enumerate((0.95, 0.99, 1.03))]
    for timed in itertools.permutations(times):
        assert fastest(list(timed)) is next(a for a in timed if a is not times[2]), (
            "the first of those like the fastest"
        )


def test_attempts_of_before_shares_were_noted_are_read() -> None:
    values = made(3).to_dict()
    del values["quantized"]
    assert Attempt.from_dict(values) == made(3)


@pytest.mark.parametrize(
    ("backend", "options", "held"),
    [
        ("tensorrt", Options(override=(("a", Override(act_bits=16)),)), False),
        ("snpe", Options(override=(("a", Override(act_bits=16)),)), True),
        ("onnx_qnn", Options(override=(("a", Override(act_bits=16)),)), False),
        ("snpe", Options(act_bits=4), False),
        ("onnxruntime", Options(override=(("a", Override(act_bits=16)),), opset=19), False),
        ("onnxruntime", Options(override=(("a", Override(act_bits=16)),)), True),
        ("tensorrt_fp8", Options(range="percentile:99.9"), True),
        ("tensorrt_fp8", Options(range="entropy"), False),
    ],
)
def test_what_a_target_cannot_hold(backend: str, options: Options, held: bool) -> None:
    assert candidates.can_hold(backend_named(backend), options) == held


def test_what_cannot_be_held_is_not_tried() -> None:
    trials, told = Scripted({}), list[Attempt]()
    records, names = [Blame(("a",), 0.5, 1.0), Blame(("b",), 0.1, 1.0)], (["minmax", "entropy"], list[str]())

    def holds(options: Options) -> bool:
        return options.range != "entropy" and all(o.act_bits is None for _, o in options.override)

    Hunt(cast(Trials, trials), Options(), Ways(*names, holds=holds), lambda: records, told.append).run()
    assert trials.asked == ["default", "range minmax", "float 1 worst: a", "algorithm effort best"]


def test_the_best_is_the_first_of_the_highest_metric() -> None:
    tried = [made(1, metric=0.2), made(2, metric=None), made(3, metric=0.7), made(4, metric=0.7)]
    assert best(tried) is tried[2]
    assert best([made(1, metric=None)]) is None


def test_attempts_survive_json() -> None:
    attempt = dataclasses.replace(made(3), files=("a.onnx", "a.onnx.data"))
    assert Attempt.from_dict(attempt.to_dict()) == attempt
    with pytest.raises(TypeError):
        Attempt.from_dict({"number": 1})


def test_ranges_and_algorithms_that_are_installed() -> None:
    options = Options(keep=4)
    listed = candidates.ranges(options, ["entropy", "minmax", "mine", "mse"])
    assert [c.options.range for c in listed] == ["minmax", "entropy", "mine"]
    assert all(c.options.keep == 4 for c in listed)
    names = [c.options.algorithms for c in candidates.algorithms(options, ["bias_correction", "gptq", "zz"])]
    assert names == [("gptq", "bias_correction")]
    last = [c.options.algorithms for c in candidates.trained(options, ["adaround", "bias_correction", "gptq", "zz"])]
    assert last == [("adaround", "bias_correction"), ("zz",), ()]
    assert [c.what for c in candidates.trained(options, [])] == ["effort best"]


def test_fewer_bits_are_rounded_behind_layers_that_are_quantized_too() -> None:
    installed = ["bias_correction", "gptq"]
    few = [c.options.algorithms for c in candidates.algorithms(Options(weight_bits=4), installed)]
    assert few == [("gptq", "bias_correction"), ("gptq:prefix=true", "bias_correction")]
    usual = [c.options.algorithms for c in candidates.algorithms(Options(weight_bits=8), installed)]
    assert usual == [("gptq", "bias_correction")]


def test_what_the_user_named_stays() -> None:
    assert candidates.ranges(Options(range="minmax"), ["entropy", "minmax"]) == []
    assert candidates.algorithms(Options(algorithms=("gptq",)), ["bias_correction", "gptq"]) == []
    assert candidates.trained(Options(algorithms=("gptq",)), ["adaround", "bias_correction"]) == []
    assert candidates.trained(Options(effort="best"), ["bias_correction", "gptq"]) == []
    listed = candidates.algorithms(Options(effort="best"), ["bias_correction", "gptq"])
    assert [c.options.algorithms for c in listed] == [("gptq", "bias_correction")]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 13])
def test_a_climb_finds_the_fewest(most: int) -> None:
    """Against trying every number, for targets that more layers meet as well."""
    for enough in range(1, most + 2):
        tried: list[int] = []

        def rung(k: int) -> Candidate:
            return Candidate("float", str(k), Options())

        def attempt(candidate: Candidate) -> Attempt:
            tried.append(int(candidate.what))  # noqa: B023
            return made(len(tried), meets=int(candidate.what) >= enough)  # noqa: B023

        found = climb(most, rung, attempt)
        assert (None if found is None else tried[found.number - 1]) == (enough if enough <= most else None)
        assert len(tried) == len(set(tried)) <= 2 * most.bit_length() + 1
    assert climb(0, rung, attempt) is None


def test_layers_are_widened_or_kept_float_from_the_worst_on() -> None:
    records = [Blame(("a", "b"), 0.5, 1.0), Blame(("c",), 0.2, 7.0), Blame(("d",), 0.1, 2.0)]
    count, rung = wide(Options(exclude=("x",)), records)
    assert count == 3
    assert [(name, o.act_bits) for name, o in rung(2).options.override] == [("a", 16), ("b", 16), ("c", 16)]
    assert wide(Options(act_bits=16), records)[0] == 0
    count, rung = in_float(Options(exclude=("x",)), records)
    assert count == 2, "c and the others together are more than three quarters of the cost"
    assert rung(1).options.exclude == ("x", "a", "b")
    assert rung(2).options.exclude == ("x", "a", "b", "d")
    _, rung = in_float(Options(exclude=("x",)), records, functions={"relu": "b", "clip": "c"})
    assert rung(1).options.exclude == ("x", "a", "b", "node:relu"), "a function stays float with its layer"
    assert rung(1).what == "2 worst: a, b"


class Scripted:
    """Stands for the trials of a search: metric and time by the name of a candidate."""

    def __init__(self, known: dict[str, tuple[bool, float]]) -> None:
        self.known_results, self.asked = known, list[str]()
        self.state = self
        self.blame: object = ()

    def known(self, candidate: Candidate) -> None:
        return None

    def make(self, candidate: Candidate) -> Attempt:
        self.asked.append(f"{candidate.level} {candidate.what}".strip())
        meets, time = self.known_results.get(self.asked[-1], (False, 1.0))
        return made(len(self.asked), time=time, meets=meets)


@pytest.mark.parametrize(
    ("results", "asked", "winner"),
    [
        ({"default": (True, 0.5)}, 1, 0),
        ({"range minmax": (True, 1.0)}, 2, 1),
        ({"range minmax": (True, 1.04)}, 2, 1),
        ({"range minmax": (True, 1.3), "range entropy": (True, 1.0)}, 3, 2),
        ({"range minmax": (True, 1.3), "algorithm gptq, bias_correction": (True, 1.0)}, 3, 1),
        ({"range minmax": (True, 1.3), "range entropy": (True, 1.2)}, 3, 2),
        ({"algorithm gptq, bias_correction": (True, 1.0)}, 4, 3),
        ({"float 1 worst: a": (True, 1.5), "16 bits 1 worst: a": (True, 1.4)}, 6, 4),
        ({"float 1 worst: a": (True, 1.3), "16 bits 1 worst: a": (True, 1.4)}, 6, 5),
        ({"algorithm effort best": (True, 1.2)}, 8, 7),
    ],
)
def test_what_is_asked_and_who_wins(results: dict[str, tuple[bool, float]], asked: int, winner: int) -> None:
    trials, told = Scripted(results), list[Attempt]()
    records = [Blame(("a",), 0.5, 1.0), Blame(("b",), 0.1, 3.0)]
    names = ["minmax", "entropy"], ["bias_correction", "gptq"]
    found = Hunt(cast(Trials, trials), Options(), Ways(*names), lambda: records, told.append).run()
    assert len(trials.asked) == len(told) == asked, trials.asked
    assert found is told[winner]


def test_what_trains_comes_behind_a_few_layers_and_before_many() -> None:
    """Of eight layers four are tried first; those that were tried are not tried again."""
    records = [Blame((f"n{k}",), 0.5, 1.0) for k in range(8)]
    installed = ["adaround", "bias_correction"]
    for enough, winner in ((4, "float 4 worst: n0, n1 and 2 more"), (6, "float 6 worst: n0, n1 and 4 more")):
        meets = {f"float {k} worst: n0, n1 and {k - 2} more": (True, 1.0) for k in range(enough, 9)}
        trials, told = Scripted(meets), list[Attempt]()
        found = Hunt(cast(Trials, trials), Options(), Ways([], installed), lambda: records, told.append).run()
        assert found is not None and trials.asked[found.number - 1] == winner
        assert len(set(trials.asked)) == len(trials.asked) == len(told)
        trains = [text for text in trials.asked if text.startswith("algorithm")]
        assert trains == (["algorithm adaround, bias_correction", "algorithm effort best"] if enough > 4 else [])


def test_an_attempt_on_the_way_wins_only_where_it_is_clearly_faster() -> None:
    """The fewest layers in float are what a climb settles on, but the fastest model is what was asked for."""
    records = [Blame((f"n{k}",), 0.5, 1.0) for k in range(8)]
    for time, winner in ((0.97, "3 worst: n0, n1 and 1 more"), (0.8, "4 worst: n0, n1 and 2 more")):
        trials = Scripted(
            {"float 4 worst: n0, n1 and 2 more": (True, time), "float 3 worst: n0, n1 and 1 more": (True, 1.0)}
        )
        found = Hunt(cast(Trials, trials), Options(), Ways([], []), lambda: records, lambda attempt: None).run()
        assert found is not None and trials.asked[found.number - 1] == f"float {winner}"


def test_what_trains_is_tried_where_a_quick_algorithm_leads() -> None:
    class Gains(Scripted):
        def make(self, candidate: Candidate) -> Attempt:
            metric = 0.9 if candidate.what == "gptq, bias_correction" else 0.5
            return dataclasses.replace(super().make(candidate), metric=metric)

    trials, installed = Gains({}), ["adaround", "bias_correction", "gptq"]
    Hunt(cast(Trials, trials), Options(), Ways([], installed), list, lambda attempt: None).run()
    trains = trials.asked[trials.asked.index("algorithm gptq, bias_correction") + 1 :]
    assert trains == ["algorithm adaround, bias_correction", "algorithm effort best"]


def test_layers_are_tried_anew_on_what_training_gained() -> None:
    """With names that tell: a search that goes on must not take the one for the other."""

    class Gains(Scripted):
        def make(self, candidate: Candidate) -> Attempt:
            attempt = super().make(candidate)
            metric = 0.9 if "adaround, bias_correction" in candidate.what else 0.5
            return dataclasses.replace(attempt, metric=metric, level=candidate.level, what=candidate.what)

    trials = Gains({"float 1 worst: a, on algorithm adaround, bias_correction": (True, 1.0)})
    records, installed = [Blame(("a",), 0.5, 1.0), Blame(("b",), 0.1, 1.0)], ["adaround", "bias_correction"]
    found = Hunt(cast(Trials, trials), Options(), Ways([], installed), lambda: records, lambda attempt: None).run()
    assert found is not None and trials.asked[found.number - 1].endswith("a, on algorithm adaround, bias_correction")
    assert trials.asked.count("float 1 worst: a") == 1


def test_time_runs_out_between_attempts() -> None:
    trials = Scripted({})
    hunt = Hunt(
        cast(Trials, trials), Options(), Ways(["minmax"], []), list, lambda attempt: None, deadline=Deadline(0.0)
    )
    assert hunt.run() is hunt.done[0]
    assert hunt.stopped and trials.asked == ["default"]


WHOLE = [Candidate("algorithm", "dynamic", Options(algorithms=("dynamic",)))]


@pytest.mark.parametrize(
    ("gains", "results", "asked", "winner"),
    [
        (False, {"default": (True, 0.5)}, ["default"], "default"),
        (True, {"default": (True, 1.0), "algorithm dynamic": (True, 0.6)}, ["default", "dynamic"], "dynamic"),
        (True, {"default": (True, 1.0), "algorithm dynamic": (True, 1.2)}, ["default", "dynamic"], "default"),
        (True, {"default": (True, 1.0), "algorithm dynamic": (False, 0.6)}, ["default", "dynamic"], "default"),
        (False, {"algorithm dynamic": (True, 1.0)}, ["default", "dynamic"], "dynamic"),
        (
            False,
            {"algorithm dynamic": (True, 1.5), "range minmax": (True, 1.0)},
            ["default", "dynamic", "minmax"],
            "minmax",
        ),
        (
            False,
            {"algorithm dynamic": (True, 1.2), "16 bits 1 worst: a": (True, 1.5)},
            ["default", "dynamic", "minmax", "1 worst: a"],
            "dynamic",
        ),
    ],
)
def test_a_pipeline_of_its_own_is_tried_second(
    gains: bool, results: dict[str, tuple[bool, float]], asked: list[str], winner: str
) -> None:
    """Where it may be faster than a default that is accurate enough, or where that is not; a slow one may win late."""
    trials, told = Scripted(results), list[Attempt]()
    records = [Blame(("a",), 0.5, 1.0)]
    installed = ["minmax"], list[str]()
    hunt = Hunt(cast(Trials, trials), Options(), Ways(*installed, WHOLE, gains), lambda: records, told.append)
    found = hunt.run()
    short = [text.removeprefix("algorithm ").removeprefix("range ") for text in trials.asked]
    assert [text.removeprefix("16 bits ").removeprefix("float ") for text in short][: len(asked)] == asked
    assert found is not None and short[found.number - 1] == winner


def test_numbers_are_searched_on_a_plan_not_on_a_pipeline_of_its_own() -> None:
    """Though it has the highest metric, its options are none to try range methods with."""

    class Better(Scripted):
        def make(self, candidate: Candidate) -> Attempt:
            assert candidate.level == "default" or candidate in WHOLE or candidate.options.algorithms != ("dynamic",)
            attempt = super().make(candidate)
            return dataclasses.replace(attempt, metric=0.9 if candidate in WHOLE else 0.5)

    trials = Better({})
    hunt = Hunt(cast(Trials, trials), Options(), Ways(["minmax"], ["gptq"], WHOLE), list, lambda attempt: None)
    found = hunt.run()
    assert found is not None and found.number == 2, "nothing meets the target: the best is written"
