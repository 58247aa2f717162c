"""More stages at once than the nodes hold: some wait in the queue, all finish, and Prefect knows of every attempt."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kdgat.canbus.simulation import write_dataset
from kdgat.cluster import AttemptLedger
from kdgat.run import OutputDirectory, StageState
from tests.slurm.cluster_run import ClusterRun, ending, stray_processes
from tests.slurm.slurm import PrivateSlurm

TRAINED = ("normal", "autoencoder")
TIMEOUT_S = 900.0
TINY = (
    f"stages=[{', '.join(TRAINED)}]",
    "injection.enabled=false",
    "training.max_epochs=1",
    "training.batch_size=16",
    "sampling.graphs_per_epoch=64",
    "gat.large.hidden=4",
    "gat.large.heads=2",
    "autoencoder.large.hidden_dims=[16, 8, 4]",
)


@dataclass
class Seen:
    """What a run needed at most, looked at again and again."""

    pending: int = 0
    running: int = 0
    queued: int = 0
    job_ids: set[str] = field(default_factory=set)
    threads: int = 0
    open_files: int = 0
    memory_mib: int = 0
    processor_s: float = 0.0

    def look(self, slurm: PrivateSlurm, pid: int) -> None:
        states = {job["id"]: job["state"] for job in slurm.jobs()}
        self.job_ids |= states.keys()
        self.pending = max(self.pending, list(states.values()).count("PENDING"))
        self.running = max(self.running, list(states.values()).count("RUNNING"))
        self.queued = max(self.queued, len(states))
        with contextlib.suppress(OSError):  # it ended
            status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            self.threads = max(self.threads, int(status.get("Threads", "0")))
            self.memory_mib = max(self.memory_mib, int(status.get("VmRSS", "0 kB").split()[0]) // 1024)
            used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            self.processor_s = max(self.processor_s, sum(map(int, used)) / os.sysconf("SC_CLK_TCK"))
            self.open_files = max(self.open_files, len(list(Path(f"/proc/{pid}/fd").iterdir())))


@pytest.fixture
def run(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[ClusterRun]:
    write_dataset(tmp_path / "data", "synthetic", "small")
    run = ClusterRun(tmp_path / "data", tmp_path / "out")
    run.overrides = TINY
    with ending(run):
        yield run
    assert slurm.jobs() == []
    assert stray_processes(run.out) == []


@pytest.mark.parametrize(("num_seeds", "memory"), [(4, "4G"), (10, "2G")])
@pytest.mark.nightly
def test_more_stages_than_the_nodes_hold_queue_at_once_and_all_finish(
    run: ClusterRun, slurm: PrivateSlurm, num_seeds: int, memory: str
) -> None:
    num_trained = num_seeds * len(TRAINED)
    # One job of 4G fits on a node, or three of 2G.
    run.start("--seeds", *(str(seed) for seed in range(num_seeds)), "--memory", memory, "--cores", "1")
    assert run.process is not None
    seen, give_up_at = Seen(), time.monotonic() + TIMEOUT_S
    while run.process.poll() is None and time.monotonic() < give_up_at:
        seen.look(slurm, run.process.pid)
        time.sleep(0.2)
    assert run.finish(1.0) == 0, run.printed()
    assert seen.pending > 0
    assert seen.running > 1
    assert len(seen.job_ids) == num_trained + 1

    output = OutputDirectory(run.out)
    stages = output.read_index().stages
    assert len(stages) == num_trained + 1
    assert {record.state for record in stages} == {StageState.FINISHED}
    attempts = [AttemptLedger(output.stage_directory(record)).records for record in stages]
    assert [len(records) for records in attempts] == [1] * len(stages)
    trained = [records[0] for record, records in zip(stages, attempts, strict=True) if record.stage in TRAINED]
    submitted = sorted(record.submitted for record in trained)
    # None of them waits for another one's end before it is in the queue.
    assert len(submitted) == num_trained
    assert submitted[-1] < min(record.ended for record in trained)
    print(f"{seen}; {len(submitted)} jobs submitted within {submitted[-1] - submitted[0]:.1f} s")

    with contextlib.closing(sqlite3.connect(output.prefect_database_path)) as database:
        task_runs = dict(database.execute("select name, state_name from task_run"))
        flow_runs = list(database.execute("select state_type from flow_run"))
    assert flow_runs == [("COMPLETED",)]
    for record in stages:
        assert task_runs[record.name] == "Completed"
        assert task_runs[f"{record.name} attempt 1"] == "Completed"
