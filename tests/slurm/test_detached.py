"""`kdgat train --detach`: the command is a job itself, and the next one takes over whatever ended it."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flows.watcher import STATE, WatcherState
from kdgat.cluster.site import find_sites
from tests.slurm.cluster_run import STAGE, ClusterRun, DetachedRun, stray_processes
from tests.slurm.slurm import PrivateSlurm
from tests.support.command_line import kdgat
from tests.support.waiting import wait_until


@pytest.fixture
def run(undisturbed: ClusterRun, tmp_path: Path, slurm: PrivateSlurm) -> Iterator[DetachedRun]:
    """A run with its data prepared."""
    shutil.copytree(undisturbed.out, tmp_path / "out", ignore=shutil.ignore_patterns(f"{STAGE}-*", "prefect"))
    set_walltime(tmp_path / "site.yaml", "00:10:00")
    run = DetachedRun(undisturbed.data_root, tmp_path / "out", site=str(tmp_path / "site.yaml"))
    try:
        yield run
    finally:
        for job in slurm.jobs():
            slurm.command("scancel", job["id"])
        wait_until(lambda: slurm.jobs() == [], "an empty queue")
    assert stray_processes(run.out) == []


def set_walltime(path: Path, walltime: str) -> None:
    """Write a site whose watchers have so long."""
    site = yaml.safe_load(find_sites()["slurm-test"].read_text())
    watcher = {"walltime": walltime, "memory": "2G"}
    path.write_text(yaml.safe_dump({**site, "name": "short", "watcher": watcher}))


@pytest.mark.nightly
def test_watchers_follow_each_other_and_the_job_of_the_stage_goes_on(
    run: DetachedRun, undisturbed: ClusterRun, slurm: PrivateSlurm
) -> None:
    set_walltime(Path(run.site), "00:04:00")  # the third pauses for a minute first
    run.start("--detach")
    assert run.finish() == 0, run.printed()
    first = re.search(r"job (\d+) watches the run", run.printed())
    assert first, run.printed()
    run.hold()
    run.wait_until(lambda: len(run.watchers(slurm)) == 3, "two watchers that wait")
    second, *_ = sorted((number for number in run.watchers(slurm) if number != first[1]), key=int)
    run.start("--detach")
    assert run.finish() == 1
    assert f"job {first[1]} watches this run" in run.printed()
    # The first comes to the end of its walltime, the second is killed without a word.
    run.wait_until(lambda: f"watcher {first[1]} leaves" in run.printed(), "the end of the first watcher")
    run.wait_until(lambda: run.watchers(slurm).get(second) == "RUNNING", "the second watcher")
    run.wait_until(lambda: len(run.watchers(slurm)) == 3, "two watchers that wait for it")
    for pid in slurm.processes_of(second):
        os.kill(pid, signal.SIGKILL)
    seen = f"{STAGE}-large-seed0: job {run.job_id(slurm)} on"
    run.wait_until(lambda: run.printed().count(seen) >= 2, "the third")
    run.release()
    run.wait_until(lambda: slurm.jobs() == [], "the end of all jobs")
    assert run.ends == ["Completed"]
    assert run.weights() == undisturbed.weights()
    assert run.directory.metrics_path.read_bytes() == undisturbed.directory.metrics_path.read_bytes()


def test_a_watcher_that_begins_while_the_output_is_away_waits_for_it_and_the_chain_goes_on(
    run: DetachedRun, undisturbed: ClusterRun, slurm: PrivateSlurm
) -> None:
    run.start("--detach")
    assert run.finish() == 0, run.printed()
    run.hold()
    run.wait_until(lambda: len(run.watchers(slurm)) == 3, "two watchers that wait")
    first, second, third = sorted(run.watchers(slurm), key=int)
    run.wait_until(lambda: reason(third) == "Dependency" and begin(third) != "N/A", "the third to be put off")
    away = run.out.with_name("away")
    run.out.rename(away)
    WatcherState().write(away / "slurm" / STATE)  # the next one pauses for no minute
    for pid in slurm.processes_of(first):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_waiting(slurm, second), "the second watcher, which looks again")
    wait_until(lambda: reason(third) == "Dependency", "the third behind it")
    assert not run.out.exists()
    away.rename(run.out)
    run.wait_until(lambda: "had not the files of the run" in run.printed(), "a word of the second")
    run.wait_until(lambda: len(run.watchers(slurm)) == 3, "two watchers that wait for it")
    run.wait_until(lambda: begin(third) == "N/A", "the third to be next")  # it begins when this one ends
    run.release()
    run.wait_until(lambda: slurm.jobs() == [], "the end of all jobs")
    assert run.ends == ["Completed"]
    assert run.weights() == undisturbed.weights()


def test_of_two_that_cannot_begin_the_second_waits_and_kdgat_runs_says_when_none_is_left(
    run: DetachedRun, slurm: PrivateSlurm
) -> None:
    run.start("--detach")
    assert run.finish() == 0, run.printed()
    run.hold()
    run.wait_until(lambda: len(run.watchers(slurm)) == 3, "two watchers that wait")
    first, second, third = sorted(run.watchers(slurm), key=int)
    run.wait_until(lambda: begin(third) != "N/A", "the third to be put off")
    slurm.command("scancel", second)  # as one that a node ends at once
    for pid in slurm.processes_of(first):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: reason(third) == "BeginTime", "the third, whose hour has not come")
    assert unwatched(run) == ""
    slurm.command("scancel", third)
    wait_until(lambda: run.watchers(slurm) == {}, "the end of the chain")
    assert "no watcher of it waits or runs" in unwatched(run)


def is_waiting(slurm: PrivateSlurm, job_id: str) -> bool:
    """Tell whether the script of a job has looked in vain, and sleeps."""
    with contextlib.suppress(OSError):  # it has just looked again
        return any(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in slurm.processes_of(job_id))
    return False


def asked(job_id: str, column: str) -> str:
    command = ["squeue", "--noheader", f"--jobs={job_id}", f"--format={column}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def reason(job_id: str) -> str:
    return asked(job_id, "%r")


def begin(job_id: str) -> str:
    return asked(job_id, "%S")


def unwatched(run: DetachedRun) -> str:
    return kdgat("runs", "show", run.out, status=0).stderr


def test_a_run_that_nobody_wants_stops_by_the_words_that_were_printed(run: DetachedRun, slurm: PrivateSlurm) -> None:
    run.start("--detach")
    assert run.finish() == 0, run.printed()
    run.hold()
    words = re.search(r"to stop it: +(scancel .+?)   \(", run.printed())
    assert words, run.printed()
    subprocess.run(words[1].split(), check=True)
    run.wait_until(lambda: slurm.jobs() == [], "the end of all jobs")
    assert "the jobs are asked for their checkpoints, then cancelled" in run.printed()
    assert run.directory.newest_checkpoint()
