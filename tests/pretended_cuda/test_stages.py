"""Every stage of every family ends on a GPU as it does on the processor, with the same losses."""

import json
from pathlib import Path

import pytest

from kdgat.can.inputs import can_run
from kdgat.canbus.simulation.synthetic import write_dataset
from kdgat.lap.inputs import lap_run
from kdgat.run import OutputDirectory, run_locally
from kdgat.run.plan import Run
from kdgat.trees.family import FAMILY as TREES
from tests.can.small_runs import make_config
from tests.lap.runs import small_config as small_lap
from tests.pretended_cuda.device import Seen, on_the_processor
from tests.support.small_runs import ALL_STAGES
from tests.trees.small_runs import small_config as small_trees

CAN = (
    *ALL_STAGES,
    "sampling.graphs_per_epoch=64",
    "curriculum.graphs_per_epoch=64",
    "training.batch_size=32",
    "training.capture=false",
    *(f"{network}.dropout=0" for network in ("gat.large", "gat.small", "autoencoder.large", "autoencoder.small")),
    "fusion.fit_on=train",  # so few seconds of traffic have no attacks to validate by
)


def make_run(family: str, data_root: Path, accelerator: str) -> Run:
    """Plan all stages of a family, with tiny networks."""
    on = f"training.accelerator={accelerator}"
    if family == "can":  # recorded steps draw other numbers: their batches are padded
        if not data_root.exists():
            write_dataset(data_root, "synthetic", "tiny")
        data = {"dataset": "synthetic", "data_root": str(data_root)}
        return can_run(make_config("quick", (*CAN, on), data=data))
    return lap_run(small_lap([on])) if family == "lap" else TREES.plan(small_trees(on))


def losses(out: Path) -> dict[str, list[dict[str, float]]]:
    """Return the numbers of all epochs by stage."""
    output = OutputDirectory(out)
    rows = {record.name: output.stage_directory(record).read_metrics() for record in output.read_index().stages}
    return {
        name: [{key: value for key, value in row.items() if not isinstance(value, str)} for row in found]
        for name, found in rows.items()
        if found
    }


@pytest.mark.parametrize("family", ["can", "lap", "trees"])
def test_all_stages_end_with_the_losses_of_the_processor(
    family: str, tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_the_processor():
        run_locally(make_run(family, tmp_path / "data", "cpu"), tmp_path / "cpu")
    monkeypatch.setenv("KDGAT_GPUS", "1")
    seen.clear()
    run = make_run(family, tmp_path / "data", "auto")
    finished = run_locally(run, tmp_path / "cuda")
    assert list(finished) == [planned.name for planned in run.plan], json.dumps(
        OutputDirectory(tmp_path / "cuda").read_index().model_dump(mode="json")
    )
    assert seen.launches > 1000
    print(seen.launches, seen.waits.most_common(20), seen.uploads.most_common(20))
    on_cpu, on_cuda = losses(tmp_path / "cpu"), losses(tmp_path / "cuda")
    assert on_cpu.keys() == on_cuda.keys()
    for stage, rows in on_cpu.items():
        for row, found in zip(rows, on_cuda[stage], strict=True):
            assert found == pytest.approx(row, rel=1e-4, abs=1e-6), stage
