"""Walltime and memory of a stage from what attempts like it took: pure functions.

Runs are taken to be exchangeable: the largest of n covers the next one with probability n / (n + 1), the k-th smallest
with k / (n + 1). Too little walltime costs a wait in the queue, since stages resume; too little memory costs the work
since the last checkpoint. So few runs are met with factors, and memory is never taken below half of what is configured
before there are three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kdgat.cluster.usage import Size, Usage

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
    source: str

    def describe(self) -> str:
        """Write where it comes from, and what it covers where that is known."""
        return self.source if self.coverage is None else f"{self.source} (enough for {self.coverage:.0%} of such runs)"


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
        runs = f"{len(rates)} run{'s' if len(rates) > 1 else ''} on {known[-1].device}"
    startup, checkpoint = max(one.startup_s for one in known), max(one.checkpoint_s for one in known)
    seconds = WALLTIME_FACTOR * (startup + units_left * rate + checkpoint + GRACE_S)
    units = known[-1].units
    unit = units.rstrip("s")
    per_unit = f"{rate:.2g}" if rate < 10 else f"{rate:,.0f}"
    left = f"{units_left:,} {unit if units_left == 1 else units}"
    return Estimate(math.ceil(seconds), coverage, f"{runs}: {per_unit} s per {unit}, {left} left")


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
    place = math.ceil(COVERAGE * (count + 1))
    return sorted(rates)[min(place, count) - 1], min(place, count) / (count + 1)


def _coverage(count: int) -> float:
    return count / (count + 1)


def estimate_gpu_memory(usages: Sequence[Usage], size: Size) -> Estimate | None:
    """Estimate the MiB that a stage takes of a GPU, as of the host; None where nothing was measured."""
    return _estimate_peak(
        [one.model_copy(update={"rss_mib": one.gpu_mib, "out_of_memory": False}) for one in usages], size
    )


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
    mib = found.value
    if len(peaks) < 3:
        mib = max(mib, math.ceil(configured_mib / 2))
    mib = max(mib, min(LEAST_WITH_GPU_MIB if with_gpu else LEAST_MIB, configured_mib))
    return replace(found, value=mib)


def _estimate_peak(usages: Sequence[Usage], size: Size) -> Estimate | None:
    peaks = _peaks(usages)
    if not peaks:
        return None
    if (line := _line(peaks, size)) is not None:
        mib = math.ceil(line * LINE_MARGIN + MEMORY_MARGIN_MIB)
        return Estimate(mib, _coverage(len(peaks)), f"line through {len(peaks)} runs")
    alike = similar(peaks, size)
    # One that was out of memory says that more is needed, whatever it read.
    alike += [one for one in peaks if one.out_of_memory and one not in alike]
    wanted = max(_peak(one) * max(1.0, growth(one.size, size)) for one in alike) * MEMORY_FACTOR
    source = f"largest of {len(alike)} run{'s' if len(alike) > 1 else ''}"
    return Estimate(math.ceil(wanted + MEMORY_MARGIN_MIB), _coverage(len(alike)), source)


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
    if not any(1 / ALIKE <= ratio <= ALIKE for ratio in ratios):
        more = [ratio for ratio in ratios if ratio < 1]
        nearest = max(more) if more else min(ratios, default=1.0)
    else:
        nearest = 1.0
    return [one for one, ratio in zip(usages, ratios, strict=True) if nearest / ALIKE <= ratio <= nearest * ALIKE]


def growth(before: Size, now: Size) -> float:
    ratios = [now[key] / before[key] for key in before.keys() & now.keys() if before[key] > 0]
    return max(ratios, default=1.0)


def _line(peaks: Sequence[Usage], size: Size) -> float | None:
    """Return the memory at a size, by a line above what all runs took; None unless sizes explain it.

    That has to be tested first: a line through what does not follow the size asks for too little (Lehmann et al.,
    "Ponder", arXiv 2408.00047).
    """
    finished = [one for one in peaks if not one.out_of_memory]
    if len(finished) < max(LINE_RUNS, len(peaks)):
        return None
    keys = sorted(set.intersection(*(set(one.size) for one in finished)) & size.keys())
    best: tuple[float, float] | None = None
    for key in keys:
        x = np.array([one.size[key] for one in finished], np.float64)
        y = np.array([one.rss_mib for one in finished], np.float64)
        if len(np.unique(x)) < LINE_SIZES or not y.std():
            continue
        correlation = float(np.corrcoef(x, y)[0, 1])
        if correlation > LINE_CORRELATION and (best is None or correlation > best[0]):
            slope, start = np.polyfit(x, y, 1)
            residual = float((y - (slope * x + start)).max())
            best = correlation, float(slope * size[key] + start) + max(residual, 0.0)
    return None if best is None else best[1]
