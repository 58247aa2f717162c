"""Several finished runs, or models of a registry, on the same recordings: those that none of them was trained on.

A recording that is in part a copy of a training recording of one of them counts as one that it was trained on.

Also the stage `comparison`, which does it in a process of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import Field

from kdgat.base import Config, sha256_of_file, validate_config, write_bytes_atomically
from kdgat.base.kept import read_kept
from kdgat.can.evaluation.other_recordings import find_tests, score_files
from kdgat.can.evaluation.results import Results
from kdgat.can.evaluation.run import FinishedCanRun, near_copy, windows_of
from kdgat.can.kinds import COMPARISON, KINDS, ComparisonStageConfig
from kdgat.canbus.catalog import RecordingFile, find_entry, walk_recordings
from kdgat.canbus.profile import Profile
from kdgat.family.night import content_hash
from kdgat.registry.promotion_rule import ALARMS_PER_HOUR, RECALL_PREFIX
from kdgat.run import OutputDirectory
from kdgat.run.results import Value
from kdgat.stage import Finished, Outcome, RunDirectory, StageSpec, Work

COMPARISON_FILE: Final = "comparison.json"
NEW: Final = "new"  # the name of the model of the night
IN_SERVICE: Final = "in_service"
METRICS: Final = (
    "f1",
    "precision",
    "recall",
    "accuracy",
    "balanced_accuracy",
    "mcc",
    "auc",
    "pr_auc",
    "false_alarm_rate",
    "num_windows",
    "num_attack_windows",
)


class Comparison(Config):
    """What each run scores on every test scenario, and on which recordings."""

    metrics: dict[str, dict[str, dict[str, Value]]]  # run -> scenario -> metric -> value
    recordings: list[str]  # <scenario>/<recording> of those that were scored
    left_out: dict[str, str]  # <scenario>/<recording> -> why
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()  # why the numbers cannot be held against each other
    contents: dict[str, str] = Field({}, description="hash of the messages of each recording that was scored")
    profile: str | None = Field(None, description="hash of the profile by which habits were judged")

    def test_sets(self) -> dict[str, str]:
        """Return scenario -> hash of the recordings that were scored in it, and of the profile by which they were."""
        found: dict[str, list[str]] = {}
        for name, content in sorted(self.contents.items()):
            found.setdefault(name.partition("/")[0], []).append(content)
        by = [] if self.profile is None else [self.profile]
        return {scenario: content_hash(sorted(contents) + by)[:16] for scenario, contents in found.items()}


class UnusableRunError(Exception):
    """One of several runs cannot be scored."""

    def __init__(self, name: str, error: ValueError) -> None:
        super().__init__(name)
        self.name = name
        self.error = error


def compare_runs(
    runs: Mapping[str, Path],
    data_root: Path | str,
    dataset: str,
    *,
    catalog: Path | str | None = None,
    hold_out: tuple[str, ...] = (),
    leave_out: tuple[str, ...] = (),
    also_trained: Mapping[str, str] | None = None,
    may_fail: Sequence[str] = (),
    profile: Path | str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    work: Work | None = None,
) -> Comparison:
    """Score the test recordings of a dataset by each run's own detector and rule.

    Args:
        runs: name -> output directory of `kdgat train can`, or a model of a registry.
        data_root: folder that holds the dataset's folder.
        dataset: its name.
        catalog: YAML file with entries of one's own; by default that of the first run.
        hold_out: words that make a recording a test recording, as in training.
        leave_out: files below the dataset's folder that are not read.
        also_trained: content hashes of recordings that the runs' weights have seen before -> what was trained on them.
        may_fail: runs without which the others are scored, should they be impossible to score: a fault says why.
        profile: file of `kdgat profile`, by which the habits of identifiers are judged for all runs, as `kdgat detect`
            does; recordings that it does not fit are judged without it, its own are left out. Thresholds are the runs'.
        progress: called with what is read, how many recordings are done, and how many there are.
        work: of the stage that this is; the memory of processes that score is noted in it.

    Raises:
        UserError: if a run lacks what is needed.
        DatasetError, RecordingError: naming the folder or the file and what to do.
    """
    left, faults = dict(runs), []
    learned = None if profile is None else Profile.read(Path(profile))
    while True:
        try:
            finished = {name: _open(name, path) for name, path in left.items()}
            found = _compare(
                finished, data_root, dataset, catalog, hold_out, leave_out, also_trained or {}, learned, progress, work
            )
        except UnusableRunError as unusable:
            if unusable.name not in may_fail:
                raise unusable.error from None
            faults.append(f"{unusable.name} cannot be compared: {unusable.error}")
            del left[unusable.name]
        else:
            by = None if profile is None else sha256_of_file(Path(profile))
            return found.model_copy(update={"faults": (*faults, *found.faults), "profile": by})


def _open(name: str, path: Path) -> FinishedCanRun:
    try:
        return FinishedCanRun(OutputDirectory(path))
    except ValueError as error:
        raise UnusableRunError(name, error) from error


def _compare(
    finished: Mapping[str, FinishedCanRun],
    data_root: Path | str,
    dataset: str,
    catalog: Path | str | None,
    hold_out: tuple[str, ...],
    leave_out: tuple[str, ...],
    also_trained: Mapping[str, str],
    profile: Profile | None,
    progress: Callable[[str, int, int], None] | None,
    work: Work | None,
) -> Comparison:
    """Score all runs; UnusableRunError names the first that cannot be."""
    first = next(iter(finished.values()))
    tests = find_tests(data_root, dataset, catalog or first.catalog, hold_out, leave_out, first.read_limits())
    trained = dict(also_trained)
    for name, run in reversed(list(finished.items())):
        trained |= {row.content_hash: name for row in run.trained_recordings() if row.content_hash}
    trained = {content: f"{name} was trained on it" for content, name in trained.items()}
    if profile is not None:
        trained |= {drive.content_hash: "the profile learned it" for drive in profile.drives}
    reasons = [_seen_by(finished, trained, file) for file in tests]
    files = [file for file, reason in zip(tests, reasons, strict=True) if reason is None]
    left_out = {
        f"{file.scenario}/{file.name}": reason
        for file, reason in zip(tests, reasons, strict=True)
        if reason is not None
    }
    metrics: dict[str, dict[str, dict[str, Value]]] = {name: {} for name in finished}
    notes = [] if profile is None else [f"habits judged by the profile, of {profile.seconds:,.0f} s"]
    for place, (name, run) in enumerate(finished.items()):
        if not files:
            break

        def show(what: str, done: int, total: int, place: int = place) -> None:
            if progress is not None:
                progress(what, place * total + done, len(finished) * total)

        try:
            results = score_files(run, files, dataset, profile=profile, progress=show, work=work)
        except ValueError as error:
            raise UnusableRunError(name, error) from error
        metrics[name] = scores_of(results)
        notes += [note for note in results.data.notes if note not in notes]
    contents = {f"{file.scenario}/{file.name}": file.content_hash for file in files}
    return Comparison(
        metrics=metrics,
        recordings=list(contents),
        left_out=left_out,
        notes=tuple(notes),
        faults=_different_windows(finished),
        contents=contents,
    )


def _seen_by(finished: Mapping[str, FinishedCanRun], trained: Mapping[str, str], file: RecordingFile) -> str | None:
    """Say why a recording is no news to one of the runs; None if it is to all."""
    if file.content_hash in trained:
        return trained[file.content_hash]
    for name, run in finished.items():
        copied = near_copy(run, file)
        if copied is not None:
            return f"it shares blocks of messages with {copied}, which {name} was trained on"
    return None


def _different_windows(finished: Mapping[str, FinishedCanRun]) -> tuple[str, ...]:
    windows = {name: windows_of(run) for name, run in finished.items()}
    if len(set(windows.values())) < 2:
        return ()
    listed = ", ".join(f"{name}: size {found.size}, stride {found.stride}" for name, found in windows.items())
    return (f"the runs cut recordings into different windows, so their numbers count different things ({listed})",)


def scores_of(results: Results) -> dict[str, dict[str, Value]]:
    """Return scenario -> metric -> value of the default detector, the recall of each kind of attack among them."""
    scores: dict[str, dict[str, Value]] = {}
    for name, scenario in results.scenarios.items():
        scores[name] = {metric: getattr(scenario, metric) for metric in METRICS}
        if scenario.breakdown is not None:
            scores[name][ALARMS_PER_HOUR] = scenario.breakdown.false_alarms_per_hour
            for kind, found in scenario.breakdown.recall_by_kind.items():
                scores[name][f"{RECALL_PREFIX}{kind}"] = found.recall
    return scores


def run_comparison(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Compare in a process of its own: the artifact `comparison`."""
    config = validate_config(ComparisonStageConfig, spec.config)

    def show(what: str, done: int, total: int) -> None:
        directory.write_progress({"phase": what, "done": done, "total": total})

    comparison = compare_runs(
        {name: Path(path) for name, path in config.runs.items()},
        config.data_root,
        config.dataset,
        catalog=config.catalog,
        hold_out=config.hold_out,
        leave_out=(*config.leave_out, *_later_files(config)),
        also_trained=config.also_trained,
        may_fail=config.may_fail,
        profile=config.profile,
        progress=show,
        work=directory.work,
    )
    directory.write_work()
    write_bytes_atomically(directory.path / COMPARISON_FILE, (comparison.model_dump_json(indent=2) + "\n").encode())
    metrics = {
        f"{name}_f1_{scenario}": scores["f1"]
        for name, scenarios in comparison.metrics.items()
        for scenario, scores in scenarios.items()
    }
    known = {name: value for name, value in metrics.items() if value is not None}
    return Finished(metrics=known, artifacts={"comparison": COMPARISON_FILE})


def _later_files(config: ComparisonStageConfig) -> list[str]:
    """List files that came after it was decided what is compared; they may be half there."""
    if config.only is None:
        return []
    folder = find_entry(config.dataset, config.data_root, config.catalog).folder_in(config.data_root)
    names = [path.relative_to(folder).as_posix() for *_, path in walk_recordings(folder)]
    return [name for name in names if name not in config.only]


def make_comparison(folder: Path, config: ComparisonStageConfig) -> RunDirectory:
    """Make the run directory of a stage `comparison` in `folder`, or take the one that is there for the same runs."""
    family = OutputDirectory(next(iter(config.runs.values()))).read_index().family
    files = [path for path in (config.catalog, config.profile) if path is not None]
    reads = [*config.runs.values(), config.data_root, *files]
    content = config.model_dump(mode="json")
    version = KINDS[COMPARISON].code_version
    spec = StageSpec(family=family, stage=COMPARISON, seed=0, config=content, reads=tuple(reads), code_version=version)
    directory = RunDirectory(folder / spec.directory_name())
    return directory if directory.is_finished() and not directory.reopen() else directory.create(spec)


def read_comparison(directory: RunDirectory) -> Comparison:
    """Read what a finished stage `comparison` found."""
    path = directory.path / COMPARISON_FILE
    return read_kept(Comparison, path.read_bytes(), path, f"remove {directory.path}, and it is compared again")
