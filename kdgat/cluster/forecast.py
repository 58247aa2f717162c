"""What a stage will take, from what attempts like it took: pure functions.

Runs are taken to be exchangeable: the largest of n covers the next one with probability n / (n + 1), the k-th smallest
with k / (n + 1). Too little walltime costs a wait in the queue, since stages resume; too little memory costs the work
since the last checkpoint. So few runs are met with factors, and memory is never taken below half of what is configured
before there are three.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from kdgat.cluster.ending import EndKind
from kdgat.cluster.resources import Resources
from kdgat.cluster.usage import STEPS, Size, Usage, config_digest, planned_epochs, run_name
from kdgat.stage import RunDirectory, Work

MOST: Final = 20  # attempts that estimates are made of
WALLTIME_FACTOR: Final = 1.15
GRACE_S: Final = 20.0  # to leave before the job's end
FEW: Final = (1.5, 1.3, 1.2)  # times the largest rate of one, two and three runs
COVERAGE: Final = 0.8  # of the rate from four runs on
OWN_RATE_FACTOR: Final = 1.1  # the same data on the same kind of node
MEMORY_FACTOR: Final = 1.2
MEMORY_MARGIN_MIB: Final = 256
LEAST_MIB: Final = 2048  # torch alone
LEAST_WITH_GPU_MIB: Final = 4096
LINE_RUNS, LINE_SIZES, LINE_CORRELATION, LINE_MARGIN = 6, 3, 0.9, 1.1
OUT_OF_MEMORY_FACTOR: Final = 1.5
ALIKE: Final = 1.5  # sizes that differ by no more are about the same


@dataclass(frozen=True)
class Estimate:
    """Hold a number, the share of runs that it covers, and where it comes from.

    Without attempts that were measured (a rule, a formula) nobody knows what it covers; it asks for more then, and
    never for less.
    """

    value: int
    coverage: float | None
    source: str  # "what it goes by: details"
    is_of_jobs: bool = False  # of a cluster, instead of processes of this machine

    def describe(self, *, has_details: bool = True) -> str:
        """Write where it comes from, and what it covers where that is known."""
        source = self.source if has_details else self.source.partition(": ")[0]
        return source if self.coverage is None else f"{source} (enough for {self.coverage:.0%} of such runs)"


Expectation = Mapping[str, Estimate]
"""What a stage is expected to take: `walltime` in seconds, `memory` and `gpu_memory` in MiB, as far as it is known."""


@dataclass(frozen=True)
class Job:
    """Hold what is known of a stage before its job is submitted.

    Attributes:
        config: digest of its configuration; attempts with another one count where there are none with the same.
        size: of what it reads.
        run: the same for all attempts at this stage in this run.
        epochs: that it trains at most; 0 where it trains none, or nobody knows.
    """

    family: str
    stage: str
    config: str
    size: Size = field(default_factory=dict)
    run: str = ""
    epochs: int = 0

    @classmethod
    def of(cls, family: str, stage: str, config: Mapping[str, Any], size: Size | None = None, run: str = "") -> Job:
        """Describe a job of a stage with this configuration."""
        return cls(family, stage, config_digest(config), size or {}, run, planned_epochs(config))

    @classmethod
    def in_directory(cls, directory: RunDirectory, history: Path) -> Job:
        """Describe the job of a stage by its spec and what it reads; RunDirectoryError without a valid spec.

        `history` is the file of its run.
        """
        spec = directory.read_spec()
        work = Work()
        paths = {source.resolve(directory.path) for source in spec.inputs.values()}
        work.count_inputs(path for path in paths if path.is_file())
        return cls.of(spec.family, spec.stage, spec.config, work.size, run_name(history, directory))


def expect(usages: Sequence[Usage], job: Job, asked: Resources) -> Expectation:
    """Estimate what a job takes from all attempts that are noted."""
    known = like(usages, job, asked.cores, asked.gpus)
    on_gpu = [one.model_copy(update={"rss_mib": one.gpu_mib, "out_of_memory": False}) for one in known]
    found = {
        "walltime": _walltime(known, job),
        "memory": estimate_memory(known, job.size, asked.memory_mib, with_gpu=asked.gpus > 0),
        "gpu_memory": _estimate_peak(_peaks(on_gpu), job.size),
    }
    return {amount: one for amount, one in found.items() if one is not None}


def expect_walltime(usages: Sequence[Usage], job: Job) -> tuple[float, float] | None:
    """Return the least and the most seconds that a stage is likely to take where the newest attempt at it ran.

    The least is what one took that ended in a single attempt; where none of this configuration has, it is 0.
    """
    newest = next((one for one in reversed(usages) if (one.family, one.stage) == (job.family, job.stage)), None)
    if newest is None:
        return None
    known = like(usages, job, newest.cores, newest.gpus)
    if (most := _walltime(known, job)) is None:
        return None
    attempts = Counter(one.run for one in known)
    whole = [one for one in known if one.config == job.config and one.end == EndKind.FINISHED]
    least = min((one.wall_s for one in whole if attempts[one.run] == 1), default=0.0)
    return least, max(least, float(most.value))


def like(usages: Sequence[Usage], job: Job, cores: int, gpus: int) -> Sequence[Usage]:
    """Return the newest attempts on as many cores and GPUs, oldest first; of the same configuration if any."""
    kind = (job.family, job.stage, cores, gpus)
    known = [one for one in usages if (one.family, one.stage, one.cores, one.gpus) == kind][-MOST:]
    return [one for one in known if one.config == job.config] or known


def _walltime(known: Sequence[Usage], job: Job) -> Estimate | None:
    own = [one for one in known if one.run == job.run]
    others = [one for one in known if one.run != job.run]
    if own and own[-1].left:
        return estimate_walltime(others, own, own[-1].left, own[-1].parameters)
    if not (rated := [one for one in others if one.unit_s > 0]):
        return None
    newest = rated[-1]
    rated = similar([one for one in rated if one.units == newest.units], job.size)
    # Steps are done as often as there is more to read; a stage without steps is one unit, which takes longer.
    scales = [max(1.0, growth(one.size, job.size)) for one in rated]
    units = 1
    if newest.units == STEPS:
        epochs = [job.epochs / one.epochs if job.epochs and one.epochs else 1.0 for one in rated]
        steps = [one.done + one.left for one in rated]
        units = max(round(number * scale * more) for number, scale, more in zip(steps, scales, epochs, strict=True))
    else:
        longer = [one.unit_s * scale for one, scale in zip(rated, scales, strict=True)]
        rated = [one.model_copy(update={"unit_s": unit_s}) for one, unit_s in zip(rated, longer, strict=True)]
    return estimate_walltime(rated, [], units, newest.parameters)


def estimate_walltime(
    others: Sequence[Usage], own: Sequence[Usage], units_left: int, parameters: int = 0
) -> Estimate | None:
    """Estimate the seconds that a stage takes from here; None where nothing is known of its rate.

    Args:
        others: attempts of other runs at this stage, with the same device, cores and precision.
        own: attempts of this run, which tell more.
        units_left: steps, instances or messages that are left.
        parameters: of the model; rates of models of another size are scaled by it where none has the same.
    """
    if own_rates := [one.unit_s for one in own if one.unit_s > 0]:
        rate, coverage, runs, known = OWN_RATE_FACTOR * max(own_rates), _coverage(len(own_rates)), "this run", own
    else:
        known = [one for one in others if one.unit_s > 0]
        if not known:
            return None
        if same := [one for one in known if one.parameters == parameters]:
            known = same
        rates = _rates(known, parameters)
        rate, coverage = _rate(rates)
        runs = f"{_runs(len(rates))} on {known[-1].device}"
    startup, checkpoint = max(one.startup_s for one in known), max(one.checkpoint_s for one in known)
    seconds = WALLTIME_FACTOR * (startup + units_left * rate + checkpoint + GRACE_S)
    details = f"{f'{rate:.2g}' if rate < 10 else f'{rate:,.0f}'} s"
    if (units := known[-1].units) == STEPS:
        unit = units.rstrip("s")
        left = " left" if own_rates else ""
        details += f" per {unit}, {units_left:,} {unit if units_left == 1 else units}{left}"
    return Estimate(math.ceil(seconds), coverage, f"{runs}: {details}", known[-1].asked is not None)


def _rates(known: Sequence[Usage], parameters: int) -> list[float]:
    """Return the slowest rate of each run: attempts of one are no observations of their own."""
    slowest: dict[str, float] = {}
    for one in known:
        scale = parameters / one.parameters if parameters and one.parameters else 1.0
        slowest[one.run] = max(slowest.get(one.run, 0.0), one.unit_s * scale)
    return list(slowest.values())


def _rate(rates: Sequence[float]) -> tuple[float, float]:
    """Return seconds per unit that are likely to suffice, and the share of runs for which they do."""
    count = len(rates)
    if count <= len(FEW):
        return max(rates) * FEW[count - 1], _coverage(count)
    place = min(math.ceil(COVERAGE * (count + 1)), count)
    return sorted(rates)[place - 1], place / (count + 1)


def _coverage(count: int) -> float:
    return count / (count + 1)


def _runs(count: int) -> str:
    return f"{count} run{'s' if count > 1 else ''}"


def estimate_memory(usages: Sequence[Usage], size: Size, configured_mib: int, *, with_gpu: bool) -> Estimate | None:
    """Estimate the MiB of host memory that a stage takes; None where nothing was measured.

    Args:
        usages: attempts at this stage, of all runs.
        size: what the stage reads now: memory goes by its largest growth, in the kinds that both have.
        configured_mib: what is asked for without any history.
        with_gpu: whether CUDA is loaded.
    """
    peaks = _peaks(usages)
    found = _estimate_peak(peaks, size)
    if found is None:
        return None
    least = min(LEAST_WITH_GPU_MIB if with_gpu else LEAST_MIB, configured_mib)
    few = math.ceil(configured_mib / 2) if len(peaks) < 3 else 0
    return replace(found, value=max(found.value, least, few))


def _estimate_peak(peaks: Sequence[Usage], size: Size) -> Estimate | None:
    if not peaks:
        return None
    if (line := _line(peaks, size)) is not None:
        mib = math.ceil(line * LINE_MARGIN + MEMORY_MARGIN_MIB)
        return Estimate(mib, _coverage(len(peaks)), f"line through {_runs(len(peaks))}")
    alike = similar(peaks, size)
    # One that was out of memory says that more is needed, whatever it read.
    alike += [one for one in peaks if one.out_of_memory and one not in alike]
    wanted = max(_peak(one) * max(1.0, growth(one.size, size)) for one in alike) * MEMORY_FACTOR
    return Estimate(math.ceil(wanted + MEMORY_MARGIN_MIB), _coverage(len(alike)), f"largest of {_runs(len(alike))}")


def _peaks(usages: Sequence[Usage]) -> list[Usage]:
    """Return the attempt of each run that took most."""
    most: dict[str, Usage] = {}
    for one in usages:
        if one.rss_mib and (one.run not in most or _peak(one) > _peak(most[one.run])):
            most[one.run] = one
    return list(most.values())


def _peak(usage: Usage) -> float:
    """Return what an attempt took, or more than it had where that did not suffice."""
    if not usage.out_of_memory:
        return float(usage.rss_mib)
    return OUT_OF_MEMORY_FACTOR * max(usage.rss_mib, usage.asked.memory_mib if usage.asked else 0)


def similar(usages: Sequence[Usage], size: Size) -> list[Usage]:
    """Return the attempts that read about as much, or where there are none, next more, or next less.

    What is scaled by more than that is a guess, since neither steps nor memory need follow the size.
    """
    ratios = [growth(one.size, size) for one in usages]
    nearest = 1.0
    if not any(1 / ALIKE <= ratio <= ALIKE for ratio in ratios):
        nearest = max((ratio for ratio in ratios if ratio < 1), default=min(ratios, default=1.0))
    return [one for one, ratio in zip(usages, ratios, strict=True) if nearest / ALIKE <= ratio <= nearest * ALIKE]


def growth(before: Size, now: Size) -> float:
    ratios = [now[key] / before[key] for key in before.keys() & now.keys() if before[key] > 0]
    return max(ratios, default=1.0)


def _line(peaks: Sequence[Usage], size: Size) -> float | None:
    """Return the memory at a size, by a line above what all runs took; None unless sizes explain it.

    That has to be tested first: a line through what does not follow the size asks for too little (Lehmann et al.,
    "Ponder", arXiv 2408.00047).
    """
    if len(peaks) < LINE_RUNS or any(one.out_of_memory for one in peaks):
        return None
    y = np.array([one.rss_mib for one in peaks], np.float64)
    best: tuple[float, float | None] = LINE_CORRELATION, None
    for key in sorted(set.intersection(*(set(one.size) for one in peaks)) & size.keys()):
        x = np.array([one.size[key] for one in peaks], np.float64)
        if len(np.unique(x)) < LINE_SIZES or not y.std():
            continue
        if (correlation := float(np.corrcoef(x, y)[0, 1])) > best[0]:
            slope, start = np.polyfit(x, y, 1)
            residual = float((y - (slope * x + start)).max())
            best = correlation, float(slope * size[key] + start) + max(residual, 0.0)
    return best[1]
