"""What a LAP run reads that no stage of it writes: files of instances, and weights to start from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kdgat.cluster.estimate import DEFAULT_KEY
from kdgat.cluster.resources import ResourceRequest
from kdgat.lap.config import LapConfig
from kdgat.lap.errors import StartError
from kdgat.lap.instance_files import count_size, find_files
from kdgat.lap.memory import job_memory
from kdgat.lap.names import FAMILY, PREPARE, START
from kdgat.lap.plan import members, plan_lap, weights_artifact
from kdgat.lap.sections import TrainingStageConfig
from kdgat.lap.weights import check_start
from kdgat.run.directory import DONE_STATES, OutputDirectory
from kdgat.run.plan import PlannedStage, Run
from kdgat.stage.configuration import validate_config
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Finished
from kdgat.stage.spec import StageInput


def lap_run(config: LapConfig) -> Run:
    """Describe a run for the flow that executes it.

    Raises:
        StageOrderError, StartError, SourceError: naming what cannot be planned, and the fix.
    """
    plan = plan_lap(config)
    starts = starting_weights(config, plan)
    if config.data.source is not None:
        for planned in plan:
            if planned.stage == PREPARE:
                count_size(Path(config.data.source), int(planned.scale))

    def external_inputs(planned: PlannedStage) -> Mapping[str, StageInput]:
        if planned.stage == PREPARE and config.data.source is not None:
            files = find_files(Path(config.data.source), int(planned.scale))
            return {split: StageInput.of_file(path) for split, path in files.items()}
        return {START: StageInput.of_file(starts[planned.name])} if planned.name in starts else {}

    return Run(
        family=FAMILY,
        config=config,
        plan=plan,
        resources=stage_requests(config, plan),
        num_threads=config.training.num_threads,
        external_inputs=external_inputs,
    )


def starting_weights(config: LapConfig, plan: list[PlannedStage]) -> dict[str, Path]:
    """Find the weights from outside the run that its stages start from, by name in the plan.

    With `start_from` the stages whose predecessor is not chosen start from there: from a run, the weights that the
    predecessor has trained with the same seed; for the first stage of the progression, those of the run's last stage.

    Raises:
        RunError, StartError: if there are none, or they are of another model or of other graphs.
        WeightsError: if they are damaged.
    """
    if config.start_from is None:
        return {}
    path = Path(config.start_from)
    found = {}
    for planned in plan:
        names = members(planned)
        if names and START not in planned.inputs:
            weights = _weights_of(path.absolute(), config.predecessor(names[0]), planned.seed)
            check_start(weights, validate_config(TrainingStageConfig, planned.config))  # here, not after preparations
            found[planned.name] = weights
    return found


def _weights_of(path: Path, stage: str | None, seed: int) -> Path:
    output = OutputDirectory(path)
    if not output.index_path.is_file():
        weights = path if path.is_file() else RunDirectory(path).weights_path
        if not weights.is_file():
            raise StartError(
                f"start_from={path}: no run and no weights are there: name the --out of `kdgat train lap`, or a "
                "weights.safetensors"
            )
        return weights
    index = output.read_index()
    if index.family != FAMILY:
        raise StartError(f"start_from={path} is a run of family {index.family!r}: name one of `kdgat train lap`")
    found: dict[str, Path] = {}
    for record in index.stages:
        if record.seed == seed and record.state in DONE_STATES and record.directory is not None:
            directory = output.stage_directory(record)
            outcome = directory.read_outcome()
            artifacts = outcome.artifacts if isinstance(outcome, Finished) else {}
            found |= {
                name: directory.path / file
                for name, file in artifacts.items()
                if name.startswith(weights_artifact("")) and record.stage != PREPARE
            }
    if found and stage is None:
        return list(found.values())[-1]
    if stage is None or weights_artifact(stage) not in found:
        trained = ", ".join(name.removeprefix(weights_artifact("")) for name in found) or "none"
        raise StartError(
            f"start_from={path}: has no finished {stage or 'training stage'} of seed {seed} (it has: {trained}): "
            "train that first, or name another run"
        )
    return found[weights_artifact(stage)]


def stage_requests(config: LapConfig, plan: Sequence[PlannedStage]) -> dict[str, ResourceRequest]:
    """Return what each stage's job asks for, by stage: what the configuration says, else the memory predicted.

    A job that trains several stages of the progression asks for the most that one of them does.
    """
    requests = config.resources
    found = dict(requests)
    default = requests.get(DEFAULT_KEY, ResourceRequest())
    for planned in plan:
        said = [requests[name] for name in (members(planned) or [planned.stage]) if name in requests]
        request = most_of(said)
        wanted = request.over(default)
        if wanted.memory is None:
            memory = job_memory(config, planned, has_gpu=bool(wanted.gpus))
            request = request.model_copy(update={"memory": memory})
        if request.said():
            # Preparations of several sizes are one stage here.
            found[planned.stage] = most_of([request, found.get(planned.stage, request)])
    return found


def most_of(requests: Sequence[ResourceRequest]) -> ResourceRequest:
    """Return a request that asks, key by key, for the most that one of several does."""
    most = ResourceRequest()
    for request in requests:
        for key, value in request.said().items():
            amount = {"walltime": request.walltime_s, "memory": request.memory_mib}.get(key, value)
            found = {"walltime": most.walltime_s, "memory": most.memory_mib}.get(key, getattr(most, key))
            if found is None or (key != "gpu_type" and amount > found):
                most = most.model_copy(update={key: value})
    return most
