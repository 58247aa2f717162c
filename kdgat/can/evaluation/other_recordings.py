"""The evaluation of a finished run on other recordings than its own tests, and the stage in which it happens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdgat.base import UserError, validate_config
from kdgat.can.evaluation.decision import Detector, Tables, decide
from kdgat.can.evaluation.measurements import Measurements
from kdgat.can.evaluation.results import Results
from kdgat.can.evaluation.run import FinishedCanRun, Lineage, lineage_of, near_copy, windows_of
from kdgat.can.evaluation.scores import ScoreTable, is_untrained
from kdgat.can.evaluation.scoring import BegunRecording, RecordingScorer, worthwhile_processes
from kdgat.can.evaluation.vehicle import VehicleThreshold, threshold_for
from kdgat.can.kinds import KINDS, SCORE_RECORDINGS, RecordingsStageConfig
from kdgat.canbus import ReadLimits
from kdgat.canbus.settings import num_windows
from kdgat.canbus.summary import RunningSummary, list_bad_rows, summarise_recording
from kdgat.family import ScoringRequest
from kdgat.run import OutputDirectory
from kdgat.stage import Finished, Outcome, RunDirectory, StageSpec, Work

if TYPE_CHECKING:
    from kdgat.canbus.catalog import DatasetEntry, RecordingFile
    from kdgat.canbus.profile import Profile


RESULTS_FILE: Final = "results.json"
BYTES_PER_MESSAGE: Final = 16  # of a recording's file: within thrice of what each format takes
WINDOWS_AT_ONCE: Final = 128  # that are built before they are scored: whole batches of the networks


def evaluate_run(
    run: Path | str,
    data_root: Path | str,
    dataset: str | None = None,
    *,
    catalog: Path | str | None = None,
    lineage: Lineage | None = None,
    profile: Path | str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    processes: int | None = None,
    work: Work | None = None,
) -> Results:
    """Score all recordings below `data_root` that the run was not trained on, by the run's own detector and rule.

    Those that a model was trained on from whose weights the run started are left out too.

    Args:
        run: output directory of `kdgat train can`.
        data_root: folder that holds the dataset's folder, in one of the known layouts.
        dataset: name of the folder or catalog entry; by default the one the run was trained on.
        catalog: YAML file with entries of one's own.
        lineage: what those models were trained on; by default looked up.
        profile: file of `kdgat profile` by which the habits of identifiers are judged, and whose threshold is used if
            it has one of this detector. Its recordings are left out. Those that it does not fit are judged without it,
            but for the threshold.
        progress: called with what is read, how many recordings are done, and how many there are.
        processes: that score, this one among them, each on one core; by default as many as are worthwhile on the cores
            that this one may use. They change no score.
        work: of the stage that this is; the memory of the other processes is noted in it.

    Raises:
        UserError: if the run lacks what is needed, or nothing is left to score.
        UserError: if the profile's threshold is of other weights, or the detector asks no habits.
        DatasetError, RecordingError: naming the folder or the file and what to do.
    """
    # Reading recordings needs polars and numba, which scoring stores does not.
    from kdgat.canbus.catalog import find_entry
    from kdgat.canbus.profile import Profile

    finished = FinishedCanRun(OutputDirectory(run))
    dataset, catalog = dataset or finished.dataset, catalog or finished.catalog
    entry, leave_out = find_entry(dataset, data_root, catalog), finished.left_out(data_root)
    if processes is None:  # before anything is read, so that the others start meanwhile
        processes = worthwhile_processes(_guessed_windows(finished, entry.folder_in(data_root), leave_out))
    with _scorer(finished, processes, work) as scorer:
        lineage = lineage_of(finished.output.path) if lineage is None else lineage
        learned = None if profile is None else Profile.read(Path(profile))
        threshold = None if learned is None else threshold_for(learned, finished, scorer.default_detector)
        files, notes = _unseen(finished, entry, data_root, leave_out, lineage, learned)
        if threshold is not None:
            notes.append(f"threshold of the profile {profile}")
        if learned is not None:
            notes.append(f"habits judged by the profile {profile}, of {learned.seconds:,.0f} s")
        return _score(
            scorer, finished, files, dataset, notes=notes, threshold=threshold, profile=learned, progress=progress
        )


def _guessed_windows(run: FinishedCanRun, folder: Path, leave_out: Sequence[str]) -> int:
    """Return about how many windows there are to score, by the sizes of files without the names of trained ones."""
    from kdgat.canbus.catalog import discover_recordings

    trained = {(row.scenario, row.name) for row in run.trained_recordings()}
    places = discover_recordings(folder, leave_out)
    size = sum(place.path.stat().st_size for place in places if (place.scenario, place.name) not in trained)
    return size // BYTES_PER_MESSAGE // windows_of(run).stride


def _unseen(
    run: FinishedCanRun,
    entry: "DatasetEntry",
    data_root: Path | str,
    leave_out: Sequence[str],
    lineage: Lineage,
    profile: "Profile | None",
) -> "tuple[list[RecordingFile], list[str]]":
    """Return the recordings of a dataset that nothing was learned from, and notes on the others."""
    from kdgat.canbus import find_recordings

    trained_on = {
        content: f"{name} was trained on it, whose weights this run comes from"
        for content, name in lineage.trained.items()
    }
    trained_on |= {row.content_hash: "trained on" for row in run.trained_recordings() if row.content_hash}
    if profile is not None:
        trained_on |= {drive.content_hash: f"the profile learned it: {drive.name}" for drive in profile.drives}
    found = find_recordings(data_root, entry, leave_out=leave_out, limits=run.read_limits())
    trained_on |= {
        file.content_hash: f"for it shares blocks of messages with {copied}, which the run was trained on"
        for file in found
        if file.content_hash not in trained_on and (copied := near_copy(run, file)) is not None
    }
    files = [file for file in found if file.content_hash not in trained_on]
    if not files:
        raise UserError(
            f"{data_root}: the run, or one that it started from, was trained on all {len(found)} recordings of "
            f"{entry.name!r}; "
            "give a folder with recordings that it has not seen"
        )
    notes = [
        f"left out, {trained_on[file.content_hash]}: {file.scenario}/{file.name}"
        for file in found
        if file.content_hash in trained_on
    ]
    notes += lineage.notes
    return files, notes + [f"left out, as when the run was trained: {name}" for name in leave_out]


def find_tests(
    data_root: Path | str,
    dataset: str,
    catalog: Path | str | None,
    hold_out: Sequence[str],
    leave_out: Sequence[str],
    limits: ReadLimits,
) -> "list[RecordingFile]":
    """List the test recordings of a dataset; DatasetError, RecordingError where they cannot be read."""
    from kdgat.canbus import find_recordings
    from kdgat.canbus.catalog import split_roles

    found = find_recordings(data_root, dataset, catalog=catalog, leave_out=leave_out, limits=limits)
    return [file for files in split_roles(found, hold_out).test.values() for file in files]


def score_files(
    run: FinishedCanRun,
    files: "Sequence[RecordingFile]",
    dataset: str,
    *,
    profile: "Profile | None" = None,
    progress: Callable[[str, int, int], None] | None = None,
    work: Work | None = None,
) -> Results:
    """Score recordings by the run's own detector and rule, whether or not it was trained on them.

    Of `profile` are the habits of identifiers, in the recordings that it fits; no threshold.

    Raises:
        UserError: if the run lacks what is needed, no recording is as long as one window, or the profile is of no use.
        RecordingError: naming the file and what to do.
    """
    windows = windows_of(run)
    processes = worthwhile_processes(sum(num_windows(file.num_messages, windows) for file in files))
    with _scorer(run, processes, work) as scorer:
        return _score(scorer, run, files, dataset, profile=profile, progress=progress)


@contextmanager
def _scorer(run: FinishedCanRun, processes: int, work: Work | None) -> "Iterator[RecordingScorer]":
    """Open a scorer; note the memory of its other processes when it is left."""
    with RecordingScorer(run, processes=processes) as scorer:
        yield scorer
    if work is not None:
        work.note_others("scoring", scorer.others_mib)


def _score(
    scorer: RecordingScorer,
    run: FinishedCanRun,
    files: "Sequence[RecordingFile]",
    dataset: str,
    *,
    notes: Sequence[str] = (),
    threshold: VehicleThreshold | None = None,
    profile: "Profile | None" = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Results:
    from kdgat.canbus.features import window_chunks
    from kdgat.canbus.look import require_judgeable

    default_detector, windows, limits = scorer.default_detector, scorer.windows, scorer.limits
    if threshold is not None:
        default_detector = default_detector.at(threshold.operating_point)
    if profile is not None and not default_detector.rule.habits:
        raise UserError("the profile is for the habits of identifiers, which this run's detector does not ask")
    summary = RunningSummary(windows)
    for note in notes:
        summary.note(note)
    known = None if profile is None else profile.known()

    vehicle_of = {f"{file.scenario}/{file.name}": file.vehicle or "" for file in files}
    num_scored = 0
    tests: dict[str, Tables] = {}
    begun: dict[str, tuple[list[BegunRecording], list[str]]] = {}  # the scenario that others score meanwhile

    def finish() -> None:
        for scenario, (parts, names) in begun.items():
            tables, vehicles = scorer.score(parts, names), tuple(vehicle_of[name] for name in names)
            tests[scenario] = {seed: replace(table, vehicles=vehicles) for seed, table in tables.items()}
        begun.clear()

    for scenario in sorted({file.scenario for file in files}):
        parts, names = list[BegunRecording](), list[str]()
        for file in (file for file in files if file.scenario == scenario):
            messages = file.read(limits)
            for note in require_judgeable(file.path, messages).notes():
                summary.note(f"{scenario}/{file.name}: {note}")
            fitting = known
            if profile is not None and (problem := profile.misfit(messages.timestamp, messages.identifier)):
                summary.note(f"{scenario}/{file.name}: judged without the profile, which {problem}")
                fitting = None
            recording = scorer.begin(window_chunks(messages, windows, num_windows=WINDOWS_AT_ONCE, known=fitting))
            summary.add(summarise_recording(messages, file.role, *recording.graphs), list_bad_rows(messages))
            if progress is not None:
                progress(f"{scenario}/{file.name}", len(summary.content.recordings), len(files))
            name = f"{scenario}/{file.name}"
            if recording.num_windows == 0:
                summary.note(f"{name} is shorter than one window of {windows.size} messages")
                continue
            num_scored += recording.num_windows
            if file.labelled:
                parts.append(recording)
                names.append(name)
            else:  # neither benign nor attacked: it has no part in any metric
                num_alarms = int(decide(default_detector, scorer.score([recording], [name])).is_alarm.sum())
                summary.note(
                    f"{name} has no labels, so it is in no metric: {num_alarms:,} of {recording.num_windows:,} "
                    "windows raise an alarm"
                )
        finish()
        if parts:
            begun[scenario] = (parts, names)
    finish()
    if not num_scored:
        listed = ", ".join(f"{file.scenario}/{file.name}" for file in files)
        raise UserError(f"no recording is as long as one window of {windows.size} messages: {listed}")
    own_validation = {
        seed: _of_detector(table, default_detector)
        for seed, table in scorer.validation.items()
        if seed in default_detector.scalings
    }
    report = Measurements(default_detector, scorer.config, own_validation, tests)
    sentence = None if threshold is None else threshold.sentence
    return report.results(run, data=summary.content, dataset=dataset, profile=sentence)


def run_score_recordings(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Score recordings with the detectors of a finished run, in a process of its own: the artifact `results`."""
    config = validate_config(RecordingsStageConfig, spec.config)

    def show(what: str, done: int, total: int) -> None:
        directory.write_progress({"phase": what, "done": done, "total": total})

    results = evaluate_run(
        config.run,
        config.data_root,
        config.dataset,
        catalog=config.catalog,
        lineage=Lineage(config.also_trained, config.notes),
        profile=config.profile,
        progress=show,
        work=directory.work,
    )
    directory.write_work()
    results.write(directory.path / RESULTS_FILE)
    metrics = {f"f1_{scenario}": value for scenario, value in results.f1.items() if value is not None}
    return Finished(metrics=metrics, artifacts={"results": RESULTS_FILE})


def make_evaluation(request: ScoringRequest, *, below: Path | None = None) -> RunDirectory:
    """Make the run directory of a stage `score_recordings`, a new one each time: recordings may have changed.

    It lies below `below`, by default below `evaluations` of the run.

    Raises:
        UserError: if the run has not been evaluated itself.
        DatasetError: if there is no such dataset below `data_root`.
    """
    from kdgat.canbus.catalog import find_entry

    run = FinishedCanRun(OutputDirectory(request.run.absolute()))
    lineage = lineage_of(run.output.path)
    given = {name: str(value.absolute()) if isinstance(value, Path) else value for name, value in vars(request).items()}
    config = RecordingsStageConfig(**given, also_trained=lineage.trained, notes=lineage.notes)
    dataset, catalog = request.dataset or run.dataset, request.catalog or run.catalog
    recordings = find_entry(dataset, request.data_root, catalog).folder_in(request.data_root)
    files = (catalog, request.profile)
    reads = [run.output.path, recordings, *(path for path in files if path is not None)]
    spec = StageSpec(
        family=run.index.family,
        stage=SCORE_RECORDINGS,
        seed=run.seeds[0],
        config=config.model_dump(),
        reads=tuple(str(Path(path).absolute()) for path in reads),
        code_version=KINDS[SCORE_RECORDINGS].code_version,
    )
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    name = f"{dataset}-{moment}"
    return RunDirectory((below or run.output.evaluations_path) / name).create(spec)


def _of_detector(table: ScoreTable, default_detector: Detector) -> ScoreTable:
    """Return a table with the scores of the detector's members, and of those that nobody trains."""
    kept = [name for name in table.scores if name in default_detector.columns or is_untrained(name)]
    return replace(table, scores={name: table.scores[name] for name in kept})
