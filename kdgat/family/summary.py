"""Runs beside each other: what each is, what differed between them, and what that changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from kdgat.family.protocol import Family
from kdgat.family.registry import find_family
from kdgat.run import FinishedRun, Interval, Measure, OutputDirectory, RunError, StageState, counted
from kdgat.run.attempts import begun
from kdgat.run.directory import DONE_STATES, RunIndex
from kdgat.run.finished import has_results
from kdgat.run.rerun import flat
from kdgat.stage import RunDirectoryError, StageInputError
from kdgat.stage.provenance import read_attempts

FINISHED: Final = "finished"  # state of a run whose stages are all done
SWEEP_FILE: Final = "sweep.json"
TRIALS: Final = "trials"  # folder of a sweep
MOST_NAMES: Final = 3  # of files that are named where runs are compared
MAX_DEPTH: Final = 4  # folders below the one that is searched
_NO_RUNS_BELOW: Final = frozenset({"stages", "latest", "evaluations", "checkpoints", "slurm", "prefect"})
# The first of these that any stage is in is what a run that has not finished is called.
_STATES: Final = (StageState.FAILED, StageState.RUNNING, StageState.PAUSED, StageState.BLOCKED, StageState.PLANNED)
# Sections that change no result: where jobs run, and what else differs between runs that are one but for their seeds.
_NOT_COMPARED: Final = ("seeds", "resources", "preset")


@dataclass(frozen=True)
class RunSummary:
    """What can be told of one run without training anything."""

    path: Path
    index: RunIndex
    measures: Sequence[Measure] = ()  # of its results; none before its end
    objective: Measure | None = None
    data: Mapping[str, str] = field(default_factory=dict)  # file that a stage read -> its SHA-256
    code: Mapping[str, str] = field(default_factory=dict)  # "revision", "torch" -> what its stages ran with

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of its configuration."""
        return [int(seed) for seed in self.index.config.get("seeds", [])]

    @cached_property
    def begun(self) -> str:
        """Return when the first attempt at one of its stages began; see `kdgat.run.attempts.begun`."""
        return begun(OutputDirectory(self.path), self.index)

    @property
    def dataset(self) -> str:
        """Return the name of the dataset, "" where the data has none."""
        data = self.index.config.get("data")
        return str(data.get("dataset") or "") if isinstance(data, Mapping) else ""

    @property
    def state(self) -> str:
        """Return "finished", or where the run stands and how many of its stages are done."""
        done = sum(record.state in DONE_STATES for record in self.index.stages)
        if done == len(self.index.stages):
            return FINISHED
        states = [record.state for record in self.index.stages]
        state = next((one for one in _STATES if one in states), StageState.PLANNED)
        return f"{state}, {done} of {len(states)} stages done"

    @property
    def group(self) -> str:
        """Return what runs have in common that differ in their seeds alone."""
        config = {key: value for key, value in self.index.config.items() if key not in _NOT_COMPARED}
        return json.dumps([self.index.family, config, dict(self.data), dict(self.code)], sort_keys=True, default=str)


def trial_name(number: int) -> str:
    """Return the name of a trial's folder."""
    return f"{number:03d}"


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the output directories at and below a folder, in the order of their names; RunError if it is none.

    Of a sweep those are the trials that its sweep.json names; those that a later command left out remain on disk only.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder: give the one that holds the output directories of `kdgat train`")
    for place, folders, files in os.walk(folder, followlinks=True):  # runs on scratch are linked to; depth ends circles
        path = Path(place)
        if "run.json" in files and SWEEP_FILE not in files:  # the trials of a sweep are its runs
            yield path
        depth = len(path.relative_to(folder).parts)
        names = () if depth == MAX_DEPTH else (name for name in folders if not name.startswith("."))
        folders[:] = sorted(name for name in names if name not in _NO_RUNS_BELOW)
        if path.name == TRIALS and (trials := _trials_of(path.parent)) is not None:
            folders[:] = [name for name in folders if name in trials]


def _trials_of(sweep: Path) -> set[str] | None:
    """Name the trials of a sweep; None where the folder is none, or its file cannot be read."""
    try:
        return {trial_name(number) for number, _ in enumerate(json.loads((sweep / SWEEP_FILE).read_bytes())["trials"])}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def read_summary(path: Path) -> RunSummary:
    """Read what is known of a run.

    Raises:
        RunError, RunDirectoryError, RunError: if it is no run, or damaged.
        StageInputError: if its family is not installed.
    """
    output = OutputDirectory(path)
    run = FinishedRun(output)
    family: Family = find_family(run.index.family)
    measures: Sequence[Measure] = ()
    if output.results_path.is_file() and has_results(run.index):
        measures = family.results.read(output.results_path).measures()
    return RunSummary(path, run.index, measures, family.objective(run), _data(run), _code(run))


READING_ERRORS: Final = (RunError, RunDirectoryError, StageInputError)


def read_runs(folder: Path, family: str | None = None) -> tuple[list[RunSummary], list[str]]:
    """Read all runs below a folder, of one family or all; what cannot be read is told of in a line each."""
    found, unreadable = [], []
    for path in find_runs(folder):
        try:
            run = read_summary(path)
        except READING_ERRORS as error:  # one damaged run must not hide the others
            unreadable.append(f"{path} cannot be read: {error}")
            continue
        if family in (None, run.index.family):
            found.append(run)
    return found, unreadable


def _data(run: FinishedRun) -> dict[str, str]:
    """Return the files that stages read which no other stage wrote."""
    found: dict[str, str] = {}
    for record in run.records():
        if not record.depends_on:
            inputs = run.output.stage_directory(record).read_spec().inputs
            found |= {name: source.sha256 for name, source in inputs.items()}
    return found


def _code(run: FinishedRun) -> dict[str, str]:
    """Return the revisions and versions of torch that the last attempts of stages ran with."""
    found: dict[str, dict[str, None]] = {"revision": {}, "torch": {}}
    for record in run.records():
        path = run.output.stage_directory(record).provenance_path
        try:
            attempt = read_attempts(path)[-1]
        except (OSError, ValueError, LookupError, TypeError):
            continue  # a run says what it can; its provenance is nothing that it is trained by
        git, packages = (one if isinstance(one := attempt.get(key), Mapping) else {} for key in ("git", "packages"))
        if git.get("revision"):
            found["revision"][f"{str(git['revision'])[:12]}{' with changes' if git.get('dirty') else ''}"] = None
        if packages.get("torch"):
            found["torch"][str(packages["torch"])] = None
    return {name: ", ".join(values) for name, values in found.items() if values}


@dataclass(frozen=True)
class Difference:
    """One thing in which runs differ, with what each has."""

    kind: str  # "configuration", "data" or "code"
    key: str
    values: Sequence[str]


def differences(runs: Sequence[RunSummary]) -> list[Difference]:
    """List in what runs differ: keys of the configuration, files that they read, code that they ran."""
    sources = {
        "configuration": [{"family": run.index.family, **flattened(run.index.config)} for run in runs],
        "code": [dict(run.code) for run in runs],
    }
    found = []
    for kind, values in sources.items():
        for key in dict.fromkeys(name for one in values for name in one):
            row = [one.get(key, "-") for one in values]
            if len(set(row)) > 1:
                found.append(Difference(kind, key, row))
        if kind == "configuration":
            found += _data_differences(runs)
    return found


def _data_differences(runs: Sequence[RunSummary]) -> list[Difference]:
    """Say in words in which files runs differ: of other datasets a row per file, or a hash, would say nothing."""
    first = runs[0].data
    numbers = [counted(len(run.data), "file") for run in runs]
    everywhere = set(first).intersection(*(run.data for run in runs))
    missing_elsewhere = [[name for name in run.data if name not in everywhere] for run in runs]
    changed = [[name for name in run.data if run.data[name] != first.get(name, run.data[name])] for run in runs]
    rows = {
        "files read": numbers if len(set(numbers)) > 1 else [],
        "not read by all": _listed(missing_elsewhere, runs),
        "other content than 1's": _listed(changed, runs),
    }
    return [Difference("data", key, values) for key, values in rows.items() if values]


def _listed(names: Sequence[Sequence[str]], runs: Sequence[RunSummary]) -> list[str]:
    """Write how many of its files each run has here, and the first of them; empty where none has any."""
    if not any(names):
        return []
    texts = []
    for found, run in zip(names, runs, strict=True):
        more = ["..."] if len(found) > MOST_NAMES else []
        if not found:
            texts.append("-")
        elif more and len(found) == len(run.data):  # of another dataset: names say nothing
            texts.append(f"all {len(found):,}")
        else:
            texts.append(f"{len(found):,}: {', '.join([*found[:MOST_NAMES], *more])}")
    return texts


def flattened(config: Mapping[str, Any]) -> dict[str, str]:
    """Return nested configuration by dotted key, values as JSON writes them.

    >>> flattened({"training": {"max_epochs": 2}, "seeds": [0, 1]})
    {'training.max_epochs': '2', 'seeds': '[0, 1]'}
    """
    return {key: one if isinstance(one, str) else json.dumps(one) for key, one in flat(config) if one != {}}


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone."""

    runs: Sequence[RunSummary]

    @property
    def measures(self) -> dict[str, Measure]:
        """Return the measures by name; of several runs the mean, with the interval over their seeds, each once."""
        having: dict[str, list[RunSummary]] = {}
        for run in self.runs:
            for one in run.measures:
                having.setdefault(one.name, []).append(run)
        return {
            name: _pooled([next(one for one in run.measures if one.name == name) for run in _with_seeds_once(runs)])
            for name, runs in having.items()
        }

    @property
    def objective(self) -> Measure | None:
        """Return what the runs were validated by, pooled in the same way; None where one of them was not."""
        found = [run.objective for run in _with_seeds_once(self.runs)]
        known = [one for one in found if one is not None]
        return _pooled(known) if known and len(known) == len(found) else None

    @property
    def repeated(self) -> list[RunSummary]:
        """Return the runs that do not count, because others have their seeds: copies, or a path that stands twice."""
        measured = [run for run in self.runs if run.measures]
        counted = _with_seeds_once(measured)
        return [run for run in measured if not any(run is one for one in counted)]


def _with_seeds_once(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Leave out runs of which others have a seed, too: those with more seeds stay, then those that come first."""
    found: list[RunSummary] = []
    for run in sorted(runs, key=lambda one: -len(one.seeds)):
        if not any(set(run.seeds) & set(one.seeds) for one in found):
            found.append(run)
    return found


def _pooled(measures: Sequence[Measure]) -> Measure:
    """Return one measure of runs that have no seed in common, over all of their seeds."""
    first = measures[0]
    if len(measures) == 1:
        return first
    parts = [Interval.of([one.value]) if one.seeds is None else one.seeds for one in measures]
    counts = [max(1, part.count) for part in parts]
    value = sum(one.value * count for one, count in zip(measures, counts, strict=True)) / sum(counts)
    by_seed = {seed: found for one in measures for seed, found in one.by_seed.items()}
    return Measure(first.name, value, Interval.pooled(parts), first.is_higher_better, by_seed)


def grouped(runs: Sequence[RunSummary]) -> list[Group]:
    """Put runs together that differ in their seeds alone, in the order in which they were given."""
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return [Group(members) for members in groups.values()]


def verdict(before: Measure, after: Measure) -> str:
    """Say whether one number is better than another, or whether seeds alone could make the difference.

    Where both are known of the same seeds, the difference of each seed counts.

    >>> verdict(Measure("F1", 0.90), Measure("F1", 0.95))
    '+0.0500, better (one seed each)'
    """
    paired = before.change_to(after)
    change = after.value - before.value if paired is None else paired.mean
    if change == 0.0:
        return "the same"
    word = "better" if (change > 0) == after.is_higher_better else "worse"
    if paired is not None:
        text = f"{paired.mean:+.4f} +- {paired.half:.4f} over {paired.count} seeds, pair by pair"
        return f"{text}: within chance" if paired.low <= 0.0 <= paired.high else f"{text}: {word}"
    counts = [1 if one.seeds is None else one.seeds.count for one in (before, after)]
    if before.seeds is None or after.seeds is None or min(counts) < 2:
        return f"{change:+.4f}, {word} ({'one seed each' if max(counts) < 2 else 'one of them by one seed'})"
    apart = before.seeds.high < after.seeds.low or after.seeds.high < before.seeds.low
    return f"{change:+.4f}, {word}" if apart else f"{change:+.4f}, within what seeds differ by"
