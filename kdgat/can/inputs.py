"""What a CAN run reads that none of its stages has written: recordings, and weights to start from."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from kdgat.can.config import CanConfig, DataConfig
from kdgat.can.kinds import PREPARE, RUN_KINDS
from kdgat.can.plan import FAMILY, START, plan_can
from kdgat.can.training.division import Division, VehicleDivision
from kdgat.canbus import ReadLimits, find_recordings
from kdgat.canbus.catalog import (
    DatasetError,
    RecordingFile,
    discover_recordings,
    entry_or_default,
    find_entry,
    split_roles,
)
from kdgat.canbus.features import FEATURE_VERSION
from kdgat.canbus.folders import survey_folder
from kdgat.canbus.labelling import labels_beside, learned_as_benign, say_untested
from kdgat.canbus.logs import check_head, has_labels
from kdgat.canbus.summary import DUPLICATE_ROLE, LABELS_ROLE
from kdgat.family import ScoringRequest
from kdgat.run import WEIGHTS, FinishedRun, OutputDirectory, PlannedStage, Run
from kdgat.stage import StageInput, StageInputError

logger = logging.getLogger(__name__)

MANY_MESSAGES = 10**9  # of a recording whose messages are not counted


def recording_inputs(data: DataConfig) -> dict[str, StageInput]:
    """Describe the recordings of a dataset as `<role>/<scenario>/<recording>` -> file.

    The role says whether a recording trains or tests, or holds the messages of another one and is not used. To know
    that, every recording is read once. Where many vehicles train, the role names the vehicle, too: `train@kia`. A
    file beside a recording that tells its labels is an input, too.

    Raises:
        DatasetError, RecordingError: naming the folder or file and what to do.
    """
    limits = ReadLimits(max_bad_fraction=data.max_bad_fraction)
    found = find_recordings(data.data_root, data.dataset, catalog=data.catalog, leave_out=data.leave_out, limits=limits)
    recordings = split_roles(found, data.hold_out)
    division = VehicleDivision.of((file.vehicle for file in recordings.require_train()), data)
    inputs = {
        f"{division.role_of(file.role, file.vehicle)}/{file.scenario}/{file.name}": StageInput.of_file(file.path)
        for file in recordings
    }
    for dropped in recordings.dropped:
        file = dropped.recording
        inputs[f"{DUPLICATE_ROLE}/{file.scenario}/{file.name}"] = StageInput.of_file(file.path)
    for file in (*recordings, *(dropped.recording for dropped in recordings.dropped)):
        if file.labels_from and isinstance(labels := labels_beside(file.path), Path):
            inputs[f"{LABELS_ROLE}/{file.scenario}/{file.name}"] = StageInput.of_file(labels)
    return inputs


def refuse_within_dataset(data: DataConfig, out: Path) -> None:
    """Refuse an output directory in the dataset's folder: DatasetError. What is written there is read as recordings."""
    entry = entry_or_default(data.dataset, data.catalog)
    folder = entry.folder_in(data.data_root)
    if out.resolve().is_relative_to(folder.resolve()):
        raise DatasetError(
            f"--out {out} lies in the folder of dataset {data.dataset!r}, {folder}: what a run writes there would be "
            "taken for recordings; choose a folder outside of it"
        )


def check_recordings(config: CanConfig) -> None:
    """Look at the beginning of every recording that a run reads, and at which of them train: seconds, not minutes.

    Test recordings without labels are warned of, and vehicles that validate are named.

    Raises:
        DatasetError, RecordingError: as `recording_inputs`, for what shows without reading the recordings.
    """
    data = config.data
    entry = find_entry(data.dataset, data.data_root, data.catalog)
    folder = entry.folder_in(data.data_root)
    content = survey_folder(folder)
    places = discover_recordings(folder, data.leave_out, content)
    for note in content.notes():
        logger.warning("%s", note)
    unread = [
        RecordingFile(
            place.path,
            place.scenario,
            place.name,
            entry.name,
            entry.role_of(place.scenario),
            content_hash=str(place.path),  # unread: no two are taken for copies
            vehicle=entry.vehicle_of(place.name),
        )
        for place in places
    ]
    split = split_roles(unread, data.hold_out)
    training = {file.path for file in split.require_train()}
    scenario_of = {place.path: place.scenario for place in places}
    counts = {file.path: check_head(file.path) for file in unread}
    longest = max((counts[path] or MANY_MESSAGES for path in training), default=0)
    division = VehicleDivision.of((file.vehicle for file in split.train), data)
    if division.validating:
        logger.warning("%s", division.sentence())
    if not division.validating and not Division.of(longest, config).has_windows(longest, config.windows):
        raise DatasetError(
            f"dataset {data.dataset!r}: the longest training recording has {longest} messages at most, too few for a "
            f"window that trains and one that validates; give longer recordings, or change data.validation_fraction="
            f"{data.validation_fraction} or windows.size={config.windows.size}"
        )
    untold = [file for file in split if not has_labels(file.path, scenario_of[file.path])]
    if trained := [file.path for file in untold if file.role == "train"]:
        raise learned_as_benign(trained[0])
    if untold:
        logger.warning("%s", say_untested([file.path for file in untold]))


def check_evaluated(request: ScoringRequest) -> None:
    """Look at a run and at the beginning of the recordings that it is to score, before anything heavy is loaded.

    Raises:
        RunError: if no run of this family is there, or its evaluation has not finished.
        DatasetError, RecordingError: if the recordings cannot be read.
    """
    from kdgat.can.evaluation.run import FinishedCanRun

    finished = FinishedCanRun(OutputDirectory(request.run))
    dataset = finished.dataset if request.dataset is None else request.dataset
    entry = find_entry(dataset, request.data_root, request.catalog or finished.catalog)
    folder = entry.folder_in(request.data_root)
    places = discover_recordings(folder, finished.left_out(request.data_root))
    for place in places:
        check_head(place.path)
    if untold := [place.path for place in places if not has_labels(place.path, place.scenario)]:
        logger.warning("%s", say_untested(untold))


def can_run(config: CanConfig) -> Run:
    """Describe a training run for what executes it.

    Raises:
        ConfigurationError: if it cannot be planned.
        RunError, StageInputError: if what it should start from is not there, or is another model.
    """
    plan = plan_can(config)
    starts = starting_weights(config, plan)

    def external(planned: PlannedStage) -> dict[str, StageInput]:
        return external_inputs(planned, recording_inputs(config.data) if planned.stage == PREPARE else {}, starts)

    return Run(FAMILY, config, plan, config.resources, config.training.num_threads, external)


def external_inputs(
    planned: PlannedStage, recordings: Mapping[str, StageInput], starts: Mapping[str, StageInput]
) -> dict[str, StageInput]:
    """Return what a stage reads that no stage has written.

    Recordings are the input of `prepare` alone; `starts` has weights to start from, by name in the plan.
    """
    found = dict(recordings) if planned.stage == PREPARE else {}
    if planned.name in starts:
        found[START] = starts[planned.name]
    return found


def starting_weights(config: CanConfig, plan: Iterable[PlannedStage]) -> dict[str, StageInput]:
    """Find the weights that each trained stage of a plan starts from, by its name; empty without `start_from`.

    Raises:
        RunError, StageInputError: if that is no run, its features are others, or it lacks the weights of a stage.
    """
    if config.start_from is None:
        return {}
    run = FinishedRun(OutputDirectory(Path(config.start_from).absolute()))
    _check_feature_version(run)
    trained = {record.name: record for record in run.records()}
    found = {}
    for planned in plan:
        if planned.stage in RUN_KINDS.trained:
            record = trained.get(planned.name)
            if record is None:
                known = [record.name for record in trained.values() if record.stage in RUN_KINDS.trained]
                advice = run.describe_failed(planned.stage, planned.seed)
                raise StageInputError(
                    f"start_from={config.start_from}: has no finished {planned.name} (it has: "
                    f"{', '.join(known) or 'none'}){advice or '; train these seeds only, or start from scratch'}"
                )
            found[planned.name] = StageInput.of_file(run.artifact(record, WEIGHTS))
    return found


def _check_feature_version(run: FinishedRun) -> None:
    for record in run.records(PREPARE):
        version = run.output.stage_directory(record).read_spec().config.get("feature_version", 1)
        if version != FEATURE_VERSION:
            raise StageInputError(
                f"start_from={run.output.path}: trained on features of version {version}, this kdgat computes version "
                f"{FEATURE_VERSION}: start from scratch"
            )
