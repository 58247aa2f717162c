"""Whole training runs on tiny recordings, in this process."""

from pathlib import Path

from kdgat.can.config import CanConfig, make_config
from kdgat.can.specs import can_run
from kdgat.run.directory import OutputDirectory, RunIndex, StageRecord, StageState
from kdgat.run.plan import make_spec
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Finished
from kdgat.stage.runner import run_stage

OVERRIDES = (
    "stages=[normal, evaluation]",
    "injection.enabled=false",  # while the preset asks for a share of injected windows
    "training.max_epochs=2",
    "gat.large.hidden=4",
    "gat.large.heads=2",
)


def small_config(data_root: Path, *overrides: str, **data: object) -> CanConfig:
    """Return a configuration that trains one small network."""
    return make_config(
        "quick", (*OVERRIDES, *overrides), data={"dataset": "synthetic", "data_root": str(data_root), **data}
    )


def train_here(path: Path, config: CanConfig) -> OutputDirectory:
    """Run all stages of a plan and write `run.json`, as the flow does."""
    output = OutputDirectory(path)
    run = can_run(config)
    finished: dict[str, RunDirectory] = {}
    records = []
    for planned in run.plan:
        spec = make_spec(run.family, planned, finished, run.external_inputs(planned))
        directory = finished[planned.name] = RunDirectory(output.stages_path / spec.directory_name()).create(spec)
        outcome = run_stage(directory, quiet=True)
        assert isinstance(outcome, Finished), outcome
        records.append(
            StageRecord(
                name=planned.name,
                stage=planned.stage,
                scale=planned.scale,
                seed=planned.seed,
                directory=str(directory.path.relative_to(output.path)),
                identity=spec.identity(),
                state=StageState.FINISHED,
            )
        )
    output.write_index(RunIndex(config=config.model_dump(mode="json"), stages=records))
    return output
