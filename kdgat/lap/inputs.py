"""What a LAP run reads that no stage of it writes: files of instances, and weights to start from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kdgat.base import validate_config
from kdgat.cluster import ResourceRequest
from kdgat.cluster.request import DEFAULT_KEY
from kdgat.lap.config import LapConfig
from kdgat.lap.instances.files import count_size, find_files
from kdgat.lap.names import FAMILY, PREPARE, START
from kdgat.lap.plan import members, plan_lap
from kdgat.lap.sections import TrainingStageConfig
from kdgat.lap.training.schedule import job_memory
from kdgat.lap.training.start import check_lap_start, starting_weights
from kdgat.run import PlannedStage, Run
from kdgat.stage import StageInput


def lap_run(config: LapConfig) -> Run:
    """Describe a run for the flow that executes it.

    Raises:
        UserError, StageInputError, WeightsError: naming what cannot be planned, and the fix.
    """
    plan = plan_lap(config)
    starts = _starts(config, plan)
    if config.data.source is not None:
        for planned in plan:
            if planned.stage == PREPARE:
                count_size(Path(config.data.source), planned.config["size"])

    def external_inputs(planned: PlannedStage) -> Mapping[str, StageInput]:
        if planned.stage == PREPARE and config.data.source is not None:
            files = find_files(Path(config.data.source), planned.config["size"])
            return {split: StageInput.of_file(path) for split, path in files.items()}
        return {START: StageInput.of_file(starts[planned.name])} if planned.name in starts else {}

    return Run(FAMILY, config, plan, stage_requests(config, plan), config.training.num_threads, external_inputs)


def _starts(config: LapConfig, plan: Sequence[PlannedStage]) -> dict[str, Path]:
    """Find the weights of `start_from` for the stages whose predecessor is not chosen, by name in the plan."""
    if config.start_from is None:
        return {}
    found = {}
    for planned in plan:
        names = members(planned)
        if names and START not in planned.inputs:
            path = Path(config.start_from).absolute()
            found[planned.name] = starting_weights(path, config.predecessor(names[0]), planned.seed)
            # Here, and not only after the preparations.
            check_lap_start(found[planned.name], validate_config(TrainingStageConfig, planned.config))
    return found


def stage_requests(config: LapConfig, plan: Sequence[PlannedStage]) -> dict[str, ResourceRequest]:
    """Return what each stage's job asks for, by stage: what the configuration says, else the memory predicted.

    A job that trains several stages of the progression asks for the most that one of them does.
    """
    requests = config.resources
    found = dict(requests)
    default = requests.get(DEFAULT_KEY, ResourceRequest())
    for planned in plan:
        stated = [requests[name] for name in (members(planned) or [planned.stage]) if name in requests]
        request = most_of(stated)
        wanted = request.over(default)
        if wanted.memory is None:
            memory = job_memory(config, planned, has_gpu=bool(wanted.gpus))
            request = request.model_copy(update={"memory": memory})
        if request.explicit_values():
            # Preparations of several sizes are one stage here.
            found[planned.stage] = most_of([request, found.get(planned.stage, request)])
    return found


def most_of(requests: Sequence[ResourceRequest]) -> ResourceRequest:
    """Return a request that asks, key by key, for the most that one of several does."""
    most = ResourceRequest()
    for request in requests:
        for key, value in request.explicit_values().items():
            amount = {"walltime": request.walltime_s, "memory": request.memory_mib}.get(key, value)
            found = {"walltime": most.walltime_s, "memory": most.memory_mib}.get(key, getattr(most, key))
            # A job that one of its stages does not let shrink does not: False is more than True.
            if found is None or (key != "gpu_type" and (amount < found if key == "adaptive" else amount > found)):
                most = most.model_copy(update={key: value})
    return most
