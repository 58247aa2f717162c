"""From a planned stage to the run directory that a process can run: named inputs become files with hashes."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from kdgat.can.catalog import find_recordings, split_roles
from kdgat.can.config import TRAINED_STAGES, CanConfig, DataConfig
from kdgat.can.data_summary import DUPLICATE_ROLE
from kdgat.can.logs import ReadLimits
from kdgat.can.plan import FAMILY, InputReference, PlannedStage
from kdgat.can.run import OutputDirectory, RunError, StageState
from kdgat.can.warm_start import START, WarmStartError
from kdgat.can.windows import FEATURE_VERSION
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Finished
from kdgat.stage.spec import StageInput, StageSpec

DONE_STATES = (StageState.FINISHED, StageState.CACHED)


def recording_inputs(data: DataConfig) -> dict[str, StageInput]:
    """Describe the recordings of a dataset as `<role>/<scenario>/<recording>` -> file.

    The role says whether a recording trains or tests, or holds the messages of another one and is not used. To know
    that, every recording is read once.

    Raises:
        DatasetError, RecordingError: naming the folder or file and what to do.
    """
    limits = ReadLimits(max_bad_fraction=data.max_bad_fraction)
    found = find_recordings(data.data_root, data.dataset, catalog=data.catalog, leave_out=data.leave_out, limits=limits)
    recordings = split_roles(found, data.hold_out)
    recordings.require_train()
    inputs = {f"{file.role}/{file.scenario}/{file.name}": StageInput.of_file(file.path) for file in recordings}
    for dropped in recordings.dropped:
        file = dropped.recording
        inputs[f"{DUPLICATE_ROLE}/{file.scenario}/{file.name}"] = StageInput.of_file(file.path)
    return inputs


def make_spec(
    planned: PlannedStage,
    finished: Mapping[str, RunDirectory],
    recordings: Mapping[str, StageInput],
    starts: Mapping[str, StageInput] | None = None,
) -> StageSpec:
    """Describe a stage by the content of its inputs.

    Args:
        planned: the stage.
        finished: run directories of the stages it depends on, by name in the plan.
        recordings: the recordings of the dataset; the input of `prepare` and of no other stage.
        starts: weights that stages start from, by name in the plan; see `starting_weights`.

    Raises:
        RunError: if a stage it depends on has not finished or lacks the artifact.
    """
    inputs = dict(recordings) if planned.stage == "prepare" else {}
    for name, reference in planned.inputs.items():
        for artifact, path in artifacts_of(reference, finished).items():
            inputs[name + artifact.removeprefix(reference.artifact.removesuffix("*"))] = StageInput.of_file(path)
    if starts and planned.name in starts:
        inputs[START] = starts[planned.name]
    return StageSpec(
        family=FAMILY,
        stage=planned.stage,
        scale=planned.scale,
        seed=planned.seed,
        config=planned.config,
        inputs=inputs,
        execution=planned.execution,
    )


def starting_weights(config: CanConfig, plan: Iterable[PlannedStage]) -> dict[str, StageInput]:
    """Find the weights that each trained stage of a plan starts from, by its name; empty without `start_from`.

    Raises:
        RunError, WarmStartError: if that is no run, its features are others, or it lacks the weights of a stage.
    """
    if config.start_from is None:
        return {}
    run = OutputDirectory(Path(config.start_from).absolute())
    index = run.read_index()
    _check_feature_version(run)
    trained = {record.name: record for record in index.stages if record.state in DONE_STATES}
    found = {}
    for planned in plan:
        if planned.stage in TRAINED_STAGES:
            record = trained.get(planned.name)
            if record is None:
                known = [record.name for record in trained.values() if record.stage in TRAINED_STAGES]
                raise WarmStartError(
                    f"start_from={config.start_from}: has no finished {planned.name} (it has: "
                    f"{', '.join(known) or 'none'}); train these stages and seeds only, or start from scratch"
                )
            found[planned.name] = StageInput.of_file(run.stage_directory(record).weights_path)
    return found


def _check_feature_version(run: OutputDirectory) -> None:
    for record in run.read_index().stages:
        if record.stage == "prepare" and record.state in DONE_STATES:
            version = run.stage_directory(record).read_spec().config.get("feature_version", 1)
            if version != FEATURE_VERSION:
                raise WarmStartError(
                    f"start_from={run.path}: trained on features of version {version}, this kdgat computes version "
                    f"{FEATURE_VERSION}: start from scratch"
                )


def artifacts_of(reference: InputReference, finished: Mapping[str, RunDirectory]) -> dict[str, Path]:
    """Find the files that a reference stands for, by artifact name; none if it is optional and was not made."""
    directory = finished.get(reference.stage)
    outcome = directory.read_outcome() if directory is not None else None
    if directory is None or not isinstance(outcome, Finished):
        raise RunError(f"stage {reference.stage} has not finished: run it before what depends on it")
    found = {
        name: directory.path / path
        for name, path in sorted(outcome.artifacts.items())
        if fnmatchcase(name, reference.artifact)
    }
    if not found and not reference.is_optional:
        known = ", ".join(sorted(outcome.artifacts)) or "none"
        raise RunError(f"{directory.path} has no artifact {reference.artifact!r} (it has: {known})")
    return found
