"""The private Slurm itself, on real daemons: what it offers to the tests of training, and that it leaves nothing."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm import processes
from tests.slurm.configuration import ClusterError, ClusterSettings, free_ports, node_prefix, render_slurm_conf
from tests.slurm.conftest import require_slurm
from tests.slurm.slurm import PrivateSlurm
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path for a cluster of the test's own, ended afterwards whatever the test did."""
    require_slurm()
    path = Path(tempfile.mkdtemp(prefix="kdgat-own-"))
    yield path
    for state in [path, *path.iterdir()]:
        if PrivateSlurm.exists(state):
            PrivateSlurm.attached(state).stop()
    shutil.rmtree(path)


def traces(directory: Path) -> list[str]:
    """List all processes that have to do with a directory: by arguments, environment, open files or folder."""
    found = []
    for pid in processes.pids():
        if pid == os.getpid():
            continue
        told = [*processes.command_line(pid), *processes.environment(pid).values(), *processes.open_files(pid)]
        if any(str(directory) in text for text in told):
            found.append(f"{pid} {' '.join(processes.command_line(pid))}")
    return found


def cluster_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.slurm", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


@pytest.mark.nightly
def test_three_nodes_serve_and_are_idle_without_jobs(slurm: PrivateSlurm) -> None:
    assert len(slurm.nodes) == 3
    # The cluster is that of all tests of a worker: a job of the test before may be ending.
    wait_until(
        lambda: all(map(slurm.is_idle, slurm.nodes)),
        "three idle nodes",
        log=lambda: f"{[slurm.node_state(node) for node in slurm.nodes]}, {slurm.jobs()}",
    )
    assert os.environ["SLURM_CONF"] == slurm.environment["SLURM_CONF"]
    assert shutil.which("slurmctld") is not None


def test_a_job_sees_the_gpus_that_it_asked_for_and_no_others(slurm: PrivateSlurm) -> None:
    print_gpus = "echo [$CUDA_VISIBLE_DEVICES]"
    asked = {
        "--gres=gpu:v100:1": "[0]",
        "--gpus-per-node=v100:2": "[0,1]",
        "--mem=100M": "[]",
    }
    jobs = {slurm.submit(print_gpus, "--partition=gpu", option): seen for option, seen in asked.items()}
    for job, seen in jobs.items():
        slurm.wait_for_job(job, "COMPLETED")
        assert slurm.output(job).strip() == seen


def test_jobs_that_ask_for_shards_share_a_gpu(slurm: PrivateSlurm) -> None:
    (node, *_) = slurm.nodes
    words = ("--partition=gpu", "--gres=shard:2", "--nodelist", node)
    jobs = [slurm.submit("echo [$CUDA_VISIBLE_DEVICES]; sleep 5", *words) for _ in range(2)]
    for job in jobs:
        slurm.wait_for_job(job, "RUNNING")  # at once
    assert {slurm.wait_for_job(job, "COMPLETED")["JobState"] for job in jobs} == {"COMPLETED"}
    assert len({slurm.output(job) for job in jobs}) == 1
    assert slurm.output(jobs[0]).strip() in ("[0]", "[1]")


@pytest.mark.nightly
def test_a_job_over_its_memory_is_killed_by_the_kernel(slurm: PrivateSlurm) -> None:
    if not slurm.has_memory_limits:
        pytest.skip(f"no memory limits: {slurm.no_memory_limits_because}")
    job = slurm.submit(f"{sys.executable} -c 'held = bytearray(400 << 20)'", "--mem=100M")
    assert slurm.wait_for_job(job, "OUT_OF_MEMORY", "COMPLETED", "FAILED")["JobState"] == "OUT_OF_MEMORY"


@pytest.mark.nightly
def test_a_waiting_job_is_listed_with_its_reason_and_a_running_one_with_its_node(slurm: PrivateSlurm) -> None:
    first = slurm.submit("sleep 100", "--job-name=one|two", "--nodelist", slurm.nodes[0])
    second = slurm.submit("sleep 100", f"--dependency=afterok:{first}")
    slurm.wait_for_job(first, "RUNNING")
    jobs = {job["id"]: job for job in slurm.jobs()}
    assert jobs[first] == {
        "id": first,
        "name": "one|two",
        "state": "RUNNING",
        "reason": "None",
        "node": slurm.nodes[0],
    }
    assert jobs[second]["state"] == "PENDING"
    assert processes.wait_until(lambda: slurm.job(second)["Reason"] == "Dependency", 10)
    slurm.command("scancel", first, second)
    assert processes.wait_until(lambda: not slurm.has_work(), 10)


def test_all_processes_of_a_job_are_found_even_those_that_hide(slurm: PrivateSlurm) -> None:
    job = slurm.submit("setsid sleep 1001 & env -i sleep 1002 & wait")

    def sleeping() -> set[str]:
        lines = [processes.command_line(pid) for pid in slurm.processes_of(job)]
        return {line[-1] for line in lines if line and line[0].endswith("sleep")}

    assert processes.wait_until(lambda: sleeping() == {"1001", "1002"}, 10), sleeping()
    slurm.command("scancel", job)
    assert processes.wait_until(lambda: not slurm.processes_of(job), 10)


@pytest.mark.nightly
def test_a_killed_node_takes_its_job_along_and_serves_again_when_revived(slurm: PrivateSlurm) -> None:
    job = slurm.submit("sleep 1000", "--no-requeue")
    node = slurm.wait_for_job(job, "RUNNING")["NodeList"]
    assert processes.wait_until(lambda: bool(slurm.processes_of(job)), 10)
    slurm.kill_node(node)
    assert not slurm.processes_of(job)
    assert node not in slurm.running_daemons()
    slurm.revive_node(node)
    assert slurm.wait_for_job(job, "NODE_FAIL", "FAILED")["JobState"] == "NODE_FAIL"
    again = slurm.submit("hostname", "--nodelist", node)
    assert slurm.wait_for_job(again, "COMPLETED")["NodeList"] == node


@pytest.mark.nightly
def test_jobs_outlive_the_death_of_the_controller(slurm: PrivateSlurm) -> None:
    job = slurm.submit("sleep 1000")
    slurm.wait_for_job(job, "RUNNING")
    slurm.stop_controller()
    with pytest.raises(ClusterError, match="squeue"):
        slurm.command("timeout", "1", "squeue", "--noheader")
    slurm.start_controller()
    assert [found["id"] for found in slurm.jobs()] == [job]
    slurm.command("scancel", job)
    slurm.wait_for_job(job, "CANCELLED")


@pytest.mark.nightly
def test_two_clusters_live_side_by_side_and_end_apart(directory: Path) -> None:
    with PrivateSlurm.boot(directory / "a", 2) as first:
        with PrivateSlurm.boot(directory / "b", 1) as second:
            assert not set(first.nodes) & set(second.nodes)
            job = first.submit("sleep 1000")
            first.wait_for_job(job, "RUNNING")
            assert not second.has_work()
        assert first.job(job)["JobState"] == "RUNNING"
        assert [first.node_state(node) for node in first.nodes] != ["down", "down"]


def test_stopping_leaves_no_process_and_no_control_group(directory: Path) -> None:
    with PrivateSlurm.boot(directory, 2) as cluster:
        stubborn = cluster.submit('trap "" TERM; setsid sleep 1003 & while true; do sleep 1; done')
        cluster.submit("sleep 1000", "--nodelist", cluster.nodes[1])
        cluster.wait_for_job(stubborn, "RUNNING")
        assert traces(directory)
    assert traces(directory) == []
    assert [processes.node_cgroups(node) for node in cluster.nodes] == [[], []]
    cluster.stop()


@pytest.mark.nightly
def test_stopping_works_without_a_controller_and_with_a_dead_node(directory: Path) -> None:
    with PrivateSlurm.boot(directory, 2) as cluster:
        job = cluster.submit("sleep 1000", "--nodelist", cluster.nodes[1])
        cluster.wait_for_job(job, "RUNNING")
        cluster.kill_node(cluster.nodes[0])
        cluster.stop_controller()
    assert traces(directory) == []


@pytest.mark.nightly
def test_without_device_files_and_control_groups_jobs_still_get_gpus(directory: Path) -> None:
    with PrivateSlurm.boot(directory, 1, gpu_devices=False, cgroup=False) as cluster:
        assert not cluster.has_memory_limits
        assert not cluster.has_gpu_devices
        assert cluster.no_memory_limits_because == "not asked for"
        job = cluster.submit("echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:2")
        cluster.wait_for_job(job, "COMPLETED")
        assert cluster.output(job).strip() == "0,1"
    assert traces(directory) == []


@pytest.mark.nightly
def test_what_up_starts_is_ended_by_down_from_another_process_and_both_twice_are_harmless(directory: Path) -> None:
    for _ in range(2):
        up = cluster_command("up", str(directory), "--nodes", "1")
        assert up.returncode == 0, up.stderr
        assert up.stdout == f"export SLURM_CONF={directory}/etc/slurm.conf\n"
    assert PrivateSlurm.attached(directory).jobs() == []
    for _ in range(2):
        down = cluster_command("down", str(directory))
        assert down.returncode == 0, down.stderr
    assert traces(directory) == []


@pytest.mark.nightly
def test_a_second_cluster_in_the_same_directory_is_refused(directory: Path) -> None:
    with PrivateSlurm.boot(directory, 1), pytest.raises(ClusterError, match="a cluster runs in"):
        PrivateSlurm.boot(directory, 1)


@pytest.mark.nightly
def test_a_daemon_that_cannot_start_is_named_with_the_end_of_its_log(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(settings: ClusterSettings) -> str:
        return render_slurm_conf(settings).replace("sched/backfill", "sched/unheard")

    monkeypatch.setattr("tests.slurm.configuration.render_slurm_conf", broken)
    with pytest.raises(ClusterError, match=r"(?s)slurmctld.*sched/unheard"):
        PrivateSlurm.boot(directory, 1, cgroup=False, boot_timeout_s=5)
    assert traces(directory) == []


@pytest.mark.nightly
def test_a_pid_file_that_names_another_process_ends_nobody(directory: Path) -> None:
    with PrivateSlurm.boot(directory, 1) as cluster:
        bystander = subprocess.Popen(["sleep", "1004"])
        try:
            cluster.kill_node(cluster.nodes[0])
            cluster.settings.pid_file(cluster.nodes[0]).write_text(f"{bystander.pid}\n")
            cluster.stop()
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()


@pytest.mark.nightly
def test_a_directory_too_long_for_sockets_is_refused(directory: Path) -> None:
    with pytest.raises(ClusterError, match="too long for Slurm's sockets"):
        PrivateSlurm.boot(directory / ("x" * 100))


def test_node_names_come_from_the_directory_and_ports_are_below_those_of_clients() -> None:
    assert node_prefix(Path("/tmp/a")) != node_prefix(Path("/tmp/b"))
    assert node_prefix(Path("/tmp/a")).isalpha()
    ports = free_ports(4)
    assert len(set(ports)) == 4
    assert all(20_000 <= port < 32_000 for port in ports)
