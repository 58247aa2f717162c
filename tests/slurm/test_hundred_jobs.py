"""What a hundred jobs, twenty of them running, cost the command that watches them: a real Slurm, a real Prefect."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from kdgat.canbus.simulation import write_dataset
from kdgat.cluster.site import find_sites
from tests.slurm.cluster_run import STAGE, ClusterRun, ending, stray_processes
from tests.slurm.conftest import private_slurm
from tests.slurm.slurm import PrivateSlurm
from tests.support.commands import write_commands
from tests.support.servers import PrefectServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.slurm]

NUM_JOBS, NUM_RUNNING = 100, 20
WATCHED_S = 360.0  # an hour's questions: on real sites the intervals are ten times as long (poll_interval_s: 5)
COMMANDS = ("squeue", "scontrol", "scancel", "sbatch")


@pytest.fixture
def wide_slurm(request: pytest.FixtureRequest) -> Iterator[PrivateSlurm]:
    """Nodes on which twenty jobs run at once."""
    with private_slurm(request.session, num_nodes=4, cpus_per_node=NUM_RUNNING // 4) as cluster:
        yield cluster


@pytest.fixture
def calls(tmp_path: Path, wide_slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that gets a line for each command of Slurm that the run gives."""
    path = tmp_path / "calls"
    path.touch()
    lines = {name: f'echo {name} >>{path}\nexec {shutil.which(name)} "$@"' for name in COMMANDS}
    monkeypatch.setenv("PATH", write_commands(tmp_path / "commands", **lines))
    return path


@pytest.fixture
def run(tmp_path: Path, wide_slurm: PrivateSlurm, prefect_server: PrefectServer) -> Iterator[ClusterRun]:
    write_dataset(tmp_path / "data", "synthetic", "small")
    site = yaml.safe_load(find_sites()["slurm-test"].read_text())
    site |= {"name": "wide", "limits": {"jobs": NUM_JOBS}}
    (tmp_path / "wide.yaml").write_text(yaml.safe_dump(site))
    run = ClusterRun(tmp_path / "data", tmp_path / "out", site=str(tmp_path / "wide.yaml"))
    with ending(run):
        yield run
    assert wide_slurm.jobs() == []
    assert stray_processes(run.out) == []


def test_a_hundred_jobs_cost_less_than_a_command_a_second_and_no_file_descriptors(
    run: ClusterRun, wide_slurm: PrivateSlurm, calls: Path
) -> None:
    run.start("--seeds", *map(str, range(NUM_JOBS)), "--memory", "1G", "--cores", "1")
    assert run.process is not None
    held: set[int] = set()

    def hold() -> bool:
        """Stop what trains, as soon as it does: the machine has other work than twenty trainings."""
        for path in (run.out / "stages").glob(f"{STAGE}-*/owner.json"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(json.loads(path.read_bytes())["pid"])
                if pid not in held:
                    os.kill(pid, signal.SIGSTOP)
                    held.add(pid)
        return len(held) >= NUM_RUNNING

    run.wait_until(lambda: len(wide_slurm.jobs()) == NUM_JOBS, "a hundred jobs")
    run.wait_until(hold, "twenty jobs that train")
    watcher = psutil.Process(run.process.pid)
    time.sleep(30)  # what the last submissions left to be done
    before, since = watcher.cpu_times(), time.monotonic()
    files = [watcher.num_fds()]
    calls.write_text("")
    while time.monotonic() - since < WATCHED_S:
        time.sleep(WATCHED_S / 12)
        files.append(watcher.num_fds())
    seconds, after = time.monotonic() - since, watcher.cpu_times()
    counted = Counter(calls.read_text().split())
    processor = (after.user + after.system - before.user - before.system) / seconds
    states = Counter(job["state"] for job in wide_slurm.jobs())
    row = {
        "jobs": dict(states),
        "seconds": round(seconds),
        "calls": dict(counted),
        "processor": round(processor, 4),
        "memory_mib": watcher.memory_info().rss >> 20,
        "threads": watcher.num_threads(),
        "open_files": files,
    }
    print(json.dumps(row))
    (run.out.parent / "row.json").write_text(json.dumps(row))
    assert states["RUNNING"] == NUM_RUNNING
    assert states["PENDING"] > NUM_JOBS / 2  # a few are done before they can be stopped
    assert sum(counted.values()) <= seconds
    # What leaks stays open: the fewest of each half, because a question to the server opens some for a moment.
    assert min(files[len(files) // 2 :]) <= min(files[: len(files) // 2]) + 2
    run.process.send_signal(signal.SIGINT)
    assert run.finish() == 130, run.printed()
    wait_until(lambda: wide_slurm.jobs() == [], "an empty queue")
    assert subprocess.run(["squeue", "--noheader"], capture_output=True, check=True).stdout == b""
