"""From a planned stage to the run directory that a process can run: named inputs become files with hashes."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from kdgat.can.catalog import find_recordings, split_roles
from kdgat.can.config import DataConfig
from kdgat.can.data_summary import DUPLICATE_ROLE
from kdgat.can.logs import ReadLimits
from kdgat.can.plan import FAMILY, InputReference, PlannedStage
from kdgat.can.run import RunError
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Finished
from kdgat.stage.spec import StageInput, StageSpec


def recording_inputs(data: DataConfig) -> dict[str, StageInput]:
    """Describe the recordings of a dataset as `<role>/<scenario>/<recording>` -> file.

    The role says whether a recording trains or tests, or holds the messages of another one and is not used. To know
    that, every recording is read once.

    Raises:
        DatasetError, RecordingError: naming the folder or file and what to do.
    """
    limits = ReadLimits(max_bad_fraction=data.max_bad_fraction)
    found = find_recordings(data.data_root, data.dataset, catalog=data.catalog, limits=limits)
    recordings = split_roles(found, data.hold_out)
    recordings.require_train()
    inputs = {f"{file.role}/{file.scenario}/{file.name}": StageInput.of_file(file.path) for file in recordings}
    for dropped in recordings.dropped:
        file = dropped.recording
        inputs[f"{DUPLICATE_ROLE}/{file.scenario}/{file.name}"] = StageInput.of_file(file.path)
    return inputs


def make_spec(
    planned: PlannedStage, finished: Mapping[str, RunDirectory], recordings: Mapping[str, StageInput]
) -> StageSpec:
    """Describe a stage by the content of its inputs.

    Args:
        planned: the stage.
        finished: run directories of the stages it depends on, by name in the plan.
        recordings: the recordings of the dataset; the input of `prepare` and of no other stage.

    Raises:
        RunError: if a stage it depends on has not finished or lacks the artifact.
    """
    inputs = dict(recordings) if planned.stage == "prepare" else {}
    for name, reference in planned.inputs.items():
        for artifact, path in artifacts_of(reference, finished).items():
            inputs[name + artifact.removeprefix(reference.artifact.removesuffix("*"))] = StageInput.of_file(path)
    return StageSpec(
        family=FAMILY,
        stage=planned.stage,
        scale=planned.scale,
        seed=planned.seed,
        config=planned.config,
        inputs=inputs,
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
