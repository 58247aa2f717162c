"""What an evaluation measures, and the shape of evaluation.json (one seed) and results.json (all seeds, summarised).

A method is a way to solve an instance: scipy, lapx, or our solver with one seed for its duals. Every method runs on the
same instances, in turn, in one process, so the ratios of times say more than the milliseconds, and the counters more
than either: they do not depend on the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Final

from pydantic import Field

from kdgat.base import Config
from kdgat.lap.names import FAMILY
from kdgat.run import Interval, Measure
from kdgat.run.results import Count, Finite, RunResults, Value, Versioned

EQUAL_WITHIN: Final = 0.03  # times that differ by less are called equal


class Kind(StrEnum):
    """What a method is."""

    COMPETITOR = "competitor"  # another library
    UNTRAINED = "untrained"  # our solver, duals from a rule
    TRAINED = "trained"  # our solver, duals from a network
    ORACLE = "oracle"  # our solver, optimal duals: the end of the road


class Measurement(Config):
    """One method on one instance; what a competitor does not tell is null."""

    family: str
    size: Count
    instance: Count = Field(description="its index in the test store")
    method: str
    kind: Kind
    solver: str | None = Field(default=None, description="how our solver searched: core, dense or auto")
    milliseconds: list[Finite] = Field(default=[], description="of each repeat, features and inference included")
    seed_milliseconds: list[Finite] = Field(default=[], description="of which making the duals")
    seed_used: str | None = Field(default=None, description="whose duals the solver took: those of the best bound")
    gap: Value = Field(default=None, description="(optimum - bound of the method's duals) / |optimum|")
    gap_share: Value = Field(default=None, description="the same over the gap of the column minima")
    u_r2: Value = Field(default=None, description="R2 of u after centring, against the label")
    u_mae: Value = Field(default=None, description="mean absolute error of u after centring, in the instance's scale")
    greedy_share: Value = Field(default=None, description="share of rows matched on tight edges before any search")
    augmentations: Count | None = None
    scanned_entries: Count | None = Field(default=None, description="entries of the matrix looked at in the searches")


class Machine(Config):
    """Where times were measured."""

    processor: str
    num_cores: Count
    num_threads: Count
    versions: dict[str, str] = Field(default={}, description="library -> version, or 'not installed'")


class Evaluation(Versioned):
    """Everything one evaluation stage measured (evaluation.json)."""

    fix: ClassVar[str] = "run the evaluation stage again"

    seed: int
    final_method: str | None = Field(description="the trained method that users get: weights of the last stage")
    num_checked: dict[str, dict[str, Count]] = Field(
        description="size -> family -> instances whose assignment was checked against label and certificate"
    )
    parameter_counts: dict[str, Count] = Field(default={}, description="trained method -> numbers in its weights")
    machine: Machine
    measurements: list[Measurement]


class MethodSummary(Config):
    """One method on one family and size, over all instances and seeds."""

    name: str
    kind: Kind
    solver: str | None = None
    num_instances: Count
    num_timed: Count = Field(description="pairs of instance and seed that were timed")
    gap: Value = Field(default=None, description="mean")
    gap_share: Value = Field(default=None, description="mean; 1 is no better than column minima, 0 is optimal")
    u_r2: Value = Field(default=None, description="mean")
    u_mae: Value = Field(default=None, description="mean")
    greedy_share: Value = Field(default=None, description="mean")
    augmentations: Value = Field(default=None, description="mean")
    scanned_entries: Value = Field(default=None, description="mean")
    own_seed_share: Value = Field(default=None, description="share of instances where the solver took these duals")
    milliseconds: Value = Field(default=None, description="median")
    seed_milliseconds: Value = Field(default=None, description="median")
    times_scipy: Value = Field(default=None, description="median over instances of scipy's time divided by its own")
    times_scipy_range: tuple[Finite, Finite] | None = None


class Speedup(Config):
    """The trained model against the best untrained seed and scipy on one family and size."""

    trained: str
    untrained: str = Field(description="the fastest untrained method there, chosen by the same measurements")
    ratio: Finite = Field(description="median over instances and seeds of the untrained time divided by the trained")
    ratio_range: tuple[Finite, Finite]
    ratio_of_seeds: dict[str, Finite] = Field(description="training seed -> median over instances")
    times_scipy: Value = None
    untrained_times_scipy: Value = None
    headroom: Value = Field(
        default=None, description="median of the untrained time divided by the oracle's: what duals can save at most"
    )
    sentence: str


class Group(Config):
    """One family and size."""

    family: str
    size: Count
    num_checked: Count = Field(description="instances whose assignment was checked, each found optimal")
    methods: list[MethodSummary]
    verdict: Speedup | None = Field(default=None, description="null where no trained or untrained method was timed")

    @property
    def best_untrained(self) -> MethodSummary | None:
        """Return the fastest untrained method."""
        timed = [one for one in self.methods if one.kind is Kind.UNTRAINED and one.milliseconds is not None]
        return min(timed, key=lambda method: method.milliseconds or 0.0, default=None)


class LapResults(RunResults):
    """Everything the evaluation of a run says (results.json)."""

    fix: ClassVar[str] = "run `kdgat train lap` with this --out to its end"

    family: str = FAMILY
    final_method: str | None = Field(default=None, description="the trained method that the verdicts are about")
    machine: Machine
    parameter_counts: dict[str, Count] = Field(default={})
    groups: list[Group] = Field(description="by family, then size")
    conclusions: dict[str, str] = Field(description="family -> does the trained model beat what there is")

    def measures(self) -> list[Measure]:
        """Return how many times faster the trained model is than the best untrained seed, where both were timed."""
        return [
            Measure(
                f"speed-up {group.family} {group.size}",
                group.verdict.ratio,
                Interval.of(list(group.verdict.ratio_of_seeds.values())) if group.verdict.ratio_of_seeds else None,
            )
            for group in self.groups
            if group.verdict is not None
        ]

    @property
    def families(self) -> list[str]:
        """List the families in the order of the groups."""
        return list(dict.fromkeys(group.family for group in self.groups))

    @property
    def sizes(self) -> list[int]:
        """List the sizes, ascending."""
        return sorted({group.size for group in self.groups})


# ---- from measurements to a summary -------------------------------------------------------------------------------


def summarise(evaluations: Sequence[Evaluation], **about: Any) -> LapResults:
    """Summarise the evaluations of all seeds; `about` holds `created`, `preset` and `revision`.

    Ratios of times are taken within one instance of one process, then their median.
    """
    final = evaluations[0].final_method
    rows = [(evaluation.seed, row) for evaluation in evaluations for row in evaluation.measurements]
    groups = []
    for family, size in dict.fromkeys((row.family, row.size) for _, row in rows):
        own = [(seed, row) for seed, row in rows if (row.family, row.size) == (family, size)]
        checked = sum(evaluation.num_checked.get(str(size), {}).get(family, 0) for evaluation in evaluations)
        methods = _summaries(own)
        verdict = _speedup(own, methods, final)
        groups.append(Group(family=family, size=size, num_checked=checked, methods=methods, verdict=verdict))
    families = list(dict.fromkeys(group.family for group in groups))
    groups.sort(key=lambda group: (families.index(group.family), group.size))
    return LapResults(
        seeds=[evaluation.seed for evaluation in evaluations],
        final_method=final,
        machine=evaluations[0].machine,
        parameter_counts=evaluations[0].parameter_counts,
        groups=groups,
        conclusions={name: _conclusion(name, [group for group in groups if group.family == name]) for name in families},
        **about,
    )


Rows = Sequence[tuple[int, Measurement]]
Times = dict[tuple[int, int], float]  # (seed, instance) -> median milliseconds


def _method(row: Measurement) -> tuple[str, str | None]:
    return row.method, row.solver


def _times(rows: Rows) -> Times:
    return {(seed, row.instance): statistics.median(row.milliseconds) for seed, row in rows if row.milliseconds}


def _ratios(over: Times, under: Times) -> Times:
    return {key: over[key] / under[key] for key in over.keys() & under.keys()}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def _range(values: Iterable[float]) -> tuple[float, float] | None:
    known = list(values)
    return (min(known), max(known)) if known else None


def _summaries(rows: Rows) -> list[MethodSummary]:
    scipy = _times([(seed, row) for seed, row in rows if row.method == "scipy"])
    found = []
    for name, solver in dict.fromkeys(_method(row) for _, row in rows):
        own = [(seed, row) for seed, row in rows if _method(row) == (name, solver)]
        measured = [row for _, row in own]
        times, ratios = _times(own), _ratios(scipy, _times(own))
        found.append(
            MethodSummary(
                name=name,
                kind=measured[0].kind,
                solver=solver,
                num_instances=len({row.instance for row in measured}),
                num_timed=len(times),
                **{key: _mean(getattr(row, key) for row in measured) for key in AVERAGED},
                own_seed_share=_mean(
                    float(row.seed_used in (PREDICTION, row.method))
                    if row.seed_used and row.seed_milliseconds
                    else None
                    for row in measured
                ),
                milliseconds=_median(times.values()),
                seed_milliseconds=_median(
                    statistics.median(row.seed_milliseconds) for row in measured if row.seed_milliseconds
                ),
                times_scipy=_median(ratios.values()),
                times_scipy_range=_range(ratios.values()),
            )
        )
    return found


AVERAGED: Final = ("gap", "gap_share", "u_r2", "u_mae", "greedy_share", "augmentations", "scanned_entries")
PREDICTION: Final = "prediction"  # what the solver calls duals that it was given


def _speedup(rows: Rows, methods: Sequence[MethodSummary], final: str | None) -> Speedup | None:
    def fastest(is_wanted: Callable[[MethodSummary], bool]) -> MethodSummary | None:
        timed = [method for method in methods if method.milliseconds is not None and is_wanted(method)]
        return min(timed, key=lambda method: method.milliseconds or 0.0, default=None)

    # Of several ways to search, either side gets its faster one.
    trained = fastest(lambda method: method.name == final)
    untrained = fastest(lambda method: method.kind is Kind.UNTRAINED)
    if trained is None or untrained is None:
        return None

    def times_of(method: MethodSummary) -> Times:
        return _times([(seed, row) for seed, row in rows if _method(row) == (method.name, method.solver)])

    ratios = _ratios(times_of(untrained), times_of(trained))
    reach = _range(ratios.values())
    if reach is None:
        return None
    ratio = statistics.median(ratios.values())
    oracle = fastest(lambda method: method.kind is Kind.ORACLE)
    headroom = None if oracle is None else _median(_ratios(times_of(untrained), times_of(oracle)).values())
    return Speedup(
        trained=trained.name,
        untrained=untrained.name,
        ratio=ratio,
        ratio_range=reach,
        ratio_of_seeds={
            str(chosen): statistics.median(value for (seed, _), value in ratios.items() if seed == chosen)
            for chosen in dict.fromkeys(seed for seed, _ in ratios)
        },
        times_scipy=trained.times_scipy,
        untrained_times_scipy=untrained.times_scipy,
        headroom=headroom,
        sentence=_sentence(ratio, untrained.name, trained.times_scipy, headroom),
    )


def _sentence(ratio: float, untrained: str, times_scipy: float | None, headroom: float | None) -> str:
    """State how the trained model compares; a loss is said as plainly as a gain."""
    if abs(ratio - 1.0) < EQUAL_WITHIN:
        text = f"the trained model is as fast as the best untrained seed ({untrained})"
    elif ratio > 1.0:
        text = f"the trained model is {ratio:.2f} times as fast as the best untrained seed ({untrained})"
    else:
        text = f"the trained model falls short of the best untrained seed ({untrained}): {ratio:.2f} times as fast"
    if times_scipy is not None:
        text += f", {format_number(times_scipy)} times as fast as scipy"
    if headroom is not None:
        text += f"; optimal duals for nothing would be {headroom:.2f} times as fast"
    return text


def _conclusion(family: str, groups: Sequence[Group]) -> str:
    parts = [f"at n = {group.size:,} {sentence}" for group in reversed(groups) if (sentence := _group_sentence(group))]
    return f"{family}: {'. And '.join(parts) or 'nothing to compare'}."


def _group_sentence(group: Group) -> str:
    if group.verdict is not None:
        return group.verdict.sentence
    best = group.best_untrained
    if best is None or best.times_scipy is None:
        return ""
    return f"the best untrained seed ({best.name}) is {format_number(best.times_scipy)} times as fast as scipy"


def headlines(results: LapResults) -> list[str]:
    """Say in at most three sentences what training is worth on all families and sizes; of each, the table says it."""
    verdicts = [group.verdict for group in results.groups if group.verdict is not None]
    if not verdicts:
        return list(results.conclusions.values())
    ratios = [one.ratio for one in verdicts]
    faster, slower = (sum(sign * (ratio - 1.0) >= EQUAL_WITHIN for ratio in ratios) for sign in (1, -1))
    scipy = _span(one.times_scipy for one in verdicts)
    than_scipy = f", and {scipy} times as fast as scipy" if scipy else ""
    said = [
        f"the trained model is faster than the best untrained seed in {faster} and slower in {slower} of "
        f"{len(verdicts)} groups (family and size): {_span(ratios)} times as fast{than_scipy}."
    ]
    if most := _span(one.headroom for one in verdicts):
        said.append(f"Optimal duals for nothing would be {most} times as fast as that seed: training can gain no more.")
    if slower:
        said.append("Where it is slower, kdgat lap solve without --model takes the untrained seed.")
    return said


def _span(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return " to ".join(dict.fromkeys(map(format_number, (min(known), max(known))))) if known else ""


def format_number(value: float | None, decimals: int | None = None) -> str:
    """Write a number with three significant digits, or as many decimals as wanted; a dash for what is not known."""
    if value is None:
        return "-"
    if decimals is None:
        decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def format_share(value: float | None) -> str:
    """Write a share in percent; what is not quite nothing is not called 0."""
    if value is None:
        return "-"
    return "<0.1 %" if 0 < value < 0.0005 else f"{100 * value:.1f} %"


if __name__ == "__main__":
    LapResults.print_schema()
