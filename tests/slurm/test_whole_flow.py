"""The whole flow as jobs of a real Slurm, with a loss on the way; what Prefect shows of it, and cancelling it there."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType

from flows.embedded.server import API_URL_VARIABLE, prefect_api
from flows.naming import artifact_key
from kdgat.can.evaluation.results import Results
from kdgat.canbus.simulation import write_dataset
from kdgat.cluster import AttemptLedger
from kdgat.run import OutputDirectory, StageState
from kdgat.stage import Paused, RunDirectory
from tests.slurm.cluster_run import WORKER, ClusterRun, ending, prepared_run, stray_processes
from tests.slurm.slurm import PrivateSlurm
from tests.support.command_line import kdgat, run_kdgat
from tests.support.small_runs import ALL_STAGES

HURT = "normal-large-seed0"
BESIDE = "autoencoder-large-seed0"  # neither needs the other
TIMEOUT_S = 900.0
ENDLESS_EPOCHS = 10_000


@pytest.fixture
def run(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[ClusterRun]:
    run = prepared_run(tmp_path, ENDLESS_EPOCHS)
    with ending(run):
        yield run
    assert slurm.jobs() == []
    assert stray_processes(run.out) == []


@dataclass(frozen=True)
class Survivor:
    """A run that went to its end, and the job that it lost on the way."""

    run: ClusterRun
    job: Mapping[str, str]  # what Slurm said of it
    job_id: str
    node: str


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory, slurm: PrivateSlurm) -> Iterator[Survivor]:
    path = tmp_path_factory.mktemp("survivor")
    write_dataset(path / "data", "synthetic", "small")
    run = ClusterRun(path / "data", path / "out")
    # One stage trains long enough to be hurt, and asks for more than the others.
    # Its GPU is a file: whoever is given one and sees none does not train.
    longer = (
        "training_of.normal={max_epochs: 40, accelerator: cpu}",
        "training.batch_size=16",
        "training.checkpoint_every_steps=4",
    )
    run.overrides = (*ALL_STAGES, *longer, "resources.normal.memory=2G", "resources.normal.gpus=1")
    with pytest.MonkeyPatch.context() as patch, ending(run):
        patch.delenv(API_URL_VARIABLE, raising=False)  # of a server that other tests share: this run starts its own
        run.start().wait_for_checkpoint()
        worker, job_id = run.process_of(slurm, WORKER), run.job_id(slurm)
        job = slurm.job(job_id)
        os.kill(worker, signal.SIGKILL)
        assert run.finish(TIMEOUT_S) == 0, run.printed()
        yield Survivor(run, job, job_id, job["NodeList"])
    assert slurm.jobs() == []
    assert stray_processes(run.out) == []


def test_the_whole_flow_survives_the_loss_of_a_job_and_prefect_shows_it(survivor: Survivor) -> None:
    run, job_id, node = survivor.run, survivor.job_id, survivor.node
    output = OutputDirectory(run.out)
    stages = output.read_index().stages
    assert {record.state for record in stages} == {StageState.FINISHED}
    results = Results.read(output.results_path)
    assert set(results.f1) == {path.name.partition("__")[0] for path in (run.data_root / "synthetic").glob("test_*")}
    assert output.report_path.is_file()
    for text in (*results.f1, str(output.report_path), f"{HURT}: job {job_id}", "again from checkpoints/"):
        assert text in run.printed()

    lost = run.attempts[0]
    assert (lost.job_id, lost.node, lost.end) == (job_id, node, "SlurmJobLost")
    with contextlib.closing(sqlite3.connect(output.prefect_database_path)) as database:
        current = "select task_run.name, state.name, state.message from task_run join task_run_state state"
        states = {name: rest for name, *rest in database.execute(f"{current} on state.id = task_run.state_id")}
        artifacts = list(database.execute("select key, type, data from artifact"))
        flow_runs = list(database.execute("select state_type from flow_run"))
    assert flow_runs == [("COMPLETED",)]
    name, message = states[f"{HURT} attempt 1"]
    assert name == "SlurmJobLost"
    for text in (f"job {job_id}", node, lost.checkpoint, f"-> again from {lost.checkpoint}"):
        assert text in message
    for record in stages:
        attempts = AttemptLedger(output.stage_directory(record)).records
        assert states[record.name][0] == "Completed"
        assert states[f"{record.name} attempt {len(attempts)}"][0] == "Completed"

    shown = [key for key, kind, _ in artifacts if kind == "progress"]
    assert all(artifact_key("synthetic", record.name, "attempt-1") in shown for record in stages)
    (text,) = [json.loads(data) for key, kind, data in artifacts if (key, kind) == ("attempts-synthetic", "markdown")]
    (row,) = [line for line in text.splitlines() if line.startswith("|") and "SlurmJobLost" in line]
    for word in (HURT, job_id, node):
        assert f"| {word} |" in row
    (told,) = [line for line in text.splitlines() if line.startswith("* ")]
    assert told == f"* {HURT}, attempt 1: again from {lost.checkpoint}"
    assert {"scores-synthetic", "models-synthetic", "report-synthetic"} <= {key for key, _, _ in artifacts}


def test_stages_are_jobs_of_their_own_size_and_run_beside_each_other(survivor: Survivor) -> None:
    output = OutputDirectory(survivor.run.out)
    attempts = {
        record.name: AttemptLedger(output.stage_directory(record)).records for record in output.read_index().stages
    }
    job_ids = [record.job_id for records in attempts.values() for record in records]
    assert all(job_ids)
    assert len(set(job_ids)) == len(job_ids)

    resources = {name: records[0].resources for name, records in attempts.items()}
    damaged, prepare = resources[HURT], resources["prepare"]
    assert damaged is not None
    assert prepare is not None
    assert (damaged.memory_mib, damaged.gpus) == (2048, 1)
    assert (prepare.memory_mib, prepare.gpus) == (4096, 0)
    assert survivor.job["MinMemoryNode"] == "2G"
    assert "gpu" in survivor.job["TresPerNode"]

    assert any(
        one.started < other.ended and other.started < one.ended for one in attempts[HURT] for other in attempts[BESIDE]
    )


def test_recordings_are_scored_in_a_job_as_they_are_here(survivor: Survivor, slurm: PrivateSlurm) -> None:
    run, path = survivor.run, survivor.run.out / "elsewhere.json"
    words = ("evaluate", "can", "--run", str(run.out), "--data-root", str(run.data_root))
    in_job = run_kdgat(*words, "--site", "slurm-test", "--json", str(path), timeout_s=TIMEOUT_S)
    assert in_job.returncode == 0, in_job.stderr
    assert json.loads(path.read_text())["f1"] == Results.read(run.out / "results.json").f1
    (directory,) = (run.out / "evaluations").iterdir()
    (record,) = AttemptLedger(RunDirectory(directory)).records
    assert record.end == "Completed"
    assert slurm.job(record.job_id)["TimeLimit"] == "00:30:00"  # what the run's preset says of its stage `evaluation`
    here = kdgat(*words, status=0)
    assert in_job.stdout.replace(f"results  {path}\n", "") == here.stdout

    lost = run_kdgat(*words, "--site", "slurm-test", "--dataset", "nosuch", timeout_s=TIMEOUT_S)
    assert lost.returncode == 1
    assert "nosuch" in lost.stderr
    assert "Traceback" not in lost.stderr


def test_cancelling_the_run_in_prefect_ends_its_jobs_with_a_checkpoint(
    run: ClusterRun, slurm: PrivateSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(API_URL_VARIABLE, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    with prefect_api(tmp_path / "server.db", tmp_path / "server.log"), get_client(sync_client=True) as client:
        run.start().wait_for_checkpoint()
        (flow_run,) = client.read_flow_runs()
        command = [sys.executable, "-m", "prefect", "--no-prompt", "flow-run", "cancel", str(flow_run.id)]
        cancelled = subprocess.run(command, capture_output=True, text=True, check=False)
        assert cancelled.returncode == 0, cancelled.stderr
        assert run.finish() == 130, run.printed()
        assert slurm.jobs() == []
        assert client.read_flow_run(flow_run.id).state_type is StateType.CANCELLED
    outcome = run.directory.read_outcome()
    assert isinstance(outcome, Paused)
    assert (run.directory.path / outcome.checkpoint).is_file()
    assert slurm.job(run.attempts[0].job_id)["JobState"] == "COMPLETED"
    assert "a cancellation in Prefect" in run.printed()
