"""A command that dies while its jobs run and wait: they go on, and the same command watches the same jobs again."""

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdgat.cluster import AttemptLedger, AttemptRecord
from kdgat.stage import RunDirectory
from tests.slurm.cluster_run import SEEDS, STAGE, ClusterRun, ending, stray_processes
from tests.slurm.processes import command_line, pids, send
from tests.slurm.slurm import PrivateSlurm
from tests.support.servers import PrefectServer

WORDS = ("--seeds", *map(str, SEEDS))
BIG_JOBS = ("--memory", "4G", "--cores", "1")  # one fits on a node


@pytest.fixture
def run(
    undisturbed: ClusterRun, tmp_path: Path, slurm: PrivateSlurm, prefect_server: PrefectServer
) -> Iterator[ClusterRun]:
    """A run with its data prepared and two of the three nodes taken: four stages train, two of them at a time."""
    shutil.copytree(undisturbed.out, tmp_path / "out", ignore=shutil.ignore_patterns(f"{STAGE}-*", "prefect"))
    run = ClusterRun(undisturbed.data_root, tmp_path / "out")
    slurm.command("scontrol", "update", f"NodeName={slurm.nodes[0]}", "State=DRAIN", "Reason=test")
    try:
        with ending(run):
            yield run
    finally:
        slurm.command("scontrol", "update", f"NodeName={slurm.nodes[0]}", "State=RESUME")
    assert slurm.jobs() == []
    assert stray_processes(run.out) == []


def stages(run: ClusterRun) -> dict[str, RunDirectory]:
    return {path.name: RunDirectory(path) for path in sorted((run.out / "stages").glob(f"{STAGE}-*"))}


def attempts(run: ClusterRun) -> dict[str, list[AttemptRecord]]:
    return {name: AttemptLedger(directory).records for name, directory in stages(run).items()}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_no_job_ends_with_its_command_and_none_is_submitted_again(
    run: ClusterRun, undisturbed: ClusterRun, slurm: PrivateSlurm, number: signal.Signals
) -> None:
    run.start(*WORDS, *BIG_JOBS)
    run.wait_until(lambda: len(jobs := states(slurm)) == 4 and jobs.count("RUNNING") == 2, "four jobs")
    run.wait_until(lambda: any(stage.newest_checkpoint() for stage in stages(run).values()), "a checkpoint")
    run.wait_until(lambda: all(one and one[0].job_id for one in attempts(run).values()), "four numbers")
    before = {name: records[0].job_id for name, records in attempts(run).items()}
    assert run.process is not None
    run.process.send_signal(number)
    assert run.finish() == (-signal.SIGKILL if number == signal.SIGKILL else 130), run.printed()
    assert len(states(slurm)) >= 2  # those that waited, at least
    run.start(*WORDS, *BIG_JOBS)
    assert run.finish() == 0, run.printed()
    after = attempts(run)
    assert {name: [(one.job_id, one.end) for one in records] for name, records in after.items()} == {
        name: [(job_id, "Completed")] for name, job_id in before.items()
    }
    by_number = sorted((records[0] for records in after.values()), key=lambda one: int(one.job_id))
    starts = [slurm.job(record.job_id)["StartTime"] for record in by_number]
    assert starts == sorted(starts)
    for name, directory in stages(run).items():
        assert "going on from" not in directory.log_path.read_text()  # never interrupted
        expected = RunDirectory(undisturbed.out / "stages" / name)
        assert directory.weights_path.read_bytes() == expected.weights_path.read_bytes()
        assert directory.metrics_path.read_bytes() == expected.metrics_path.read_bytes()


@pytest.mark.nightly
def test_a_login_node_that_reboots_costs_no_step_and_no_place_in_the_queue(
    run: ClusterRun, undisturbed: ClusterRun, slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):  # the command has a server of its own
        monkeypatch.delenv(name)
    words = ("--seeds", *"01234567", "--memory", "3G", "--cores", "1")  # two fit on a node
    run.start(*words)
    run.wait_until(lambda: len(jobs := states(slurm)) == 8 and jobs.count("RUNNING") == 4, "eight jobs")
    run.wait_until(lambda: all(one and one[0].job_id for one in attempts(run).values()), "eight numbers")
    before = {name: records[0].job_id for name, records in attempts(run).items()}
    assert run.process is not None
    servers = [pid for pid in pids() if is_server(command_line(pid), run)]
    assert len(servers) == 1
    send([run.process.pid, *servers], signal.SIGKILL)
    assert run.finish() == -signal.SIGKILL
    time.sleep(60)
    run.start(*words)
    assert run.finish() == 0, run.printed()
    after = attempts(run)
    assert {name: [(one.job_id, one.end) for one in records] for name, records in after.items()} == {
        name: [(job_id, "Completed")] for name, job_id in before.items()
    }
    by_number = sorted(before.values(), key=int)
    starts = [slurm.job(number)["StartTime"] for number in by_number]
    assert starts == sorted(starts)
    for name, directory in stages(run).items():
        assert "going on from" not in directory.log_path.read_text()
        if (expected := RunDirectory(undisturbed.out / "stages" / name)).path.exists():
            assert directory.weights_path.read_bytes() == expected.weights_path.read_bytes()


def is_server(words: list[str], run: ClusterRun) -> bool:
    return "flows.embedded.process" in words and any(word.startswith(f"{run.out}/") for word in words)


def states(slurm: PrivateSlurm) -> list[str]:
    return [job["state"] for job in slurm.jobs()]
