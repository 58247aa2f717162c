"""The whole flow on a real Slurm with its workers inside the real CPU image: hurt there, finished, and where it ran."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import flows
import kdgat
from kdgat.base import sha256_of_file
from kdgat.can.evaluation.results import Results
from kdgat.canbus.simulation import write_dataset
from kdgat.cluster import AttemptLedger, AttemptRecord
from kdgat.run import OutputDirectory, StageState
from kdgat.stage import RunDirectory
from tests.container.built import source_image
from tests.slurm.cluster_run import WORKER, ClusterRun, ending, stray_processes, write_site
from tests.slurm.slurm import PrivateSlurm
from tests.support.command_line import run_kdgat
from tests.support.small_runs import ALL_STAGES

pytestmark = pytest.mark.nightly  # only an image of this very source fits: minutes to build, at each commit

TIMED_OUT, SIGNALLED = "normal-large-seed0", "autoencoder-large-seed0"  # neither needs the other
CHILD = b"kdgat.stage"
PREFIX = "/opt/kdgat"
TIMEOUT_S = 900.0
LONGER = (
    *ALL_STAGES,
    "training_of.normal.max_epochs=40",
    "training_of.autoencoder.max_epochs=40",
    "training.batch_size=16",
    "training.checkpoint_every_steps=4",
)


@dataclass(frozen=True)
class Hurt:
    """A run that went to its end in an image, and what was done to it."""

    run: ClusterRun
    image: Path
    site: Path
    archive: Path  # where the recordings lie that the dataset has links to

    def directory(self, name: str) -> RunDirectory:
        """Return the run directory of a stage."""
        output = OutputDirectory(self.run.out)
        return output.stage_directory(output.read_index().record(name))

    def attempts(self, name: str) -> list[AttemptRecord]:
        """Return the attempts at a stage."""
        return AttemptLedger(self.directory(name)).records


@pytest.fixture(scope="module")
def image() -> Path:
    return source_image()


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory, slurm: PrivateSlurm, image: Path) -> Iterator[Hurt]:
    path = tmp_path_factory.mktemp("hurt")
    archive = write_linked_dataset(path)
    site = write_site(path, image)
    run = ClusterRun(path / "data", path / "out", site=str(site))
    run.overrides = LONGER
    with ending(run):
        done = Hurt(run, image, site, archive)
        run.start()
        stop_children(done, slurm, [SIGNALLED, TIMED_OUT])
        ask_by_usr1(slurm, done.attempts(SIGNALLED)[0].job_id)
        end_walltime(slurm, done.attempts(TIMED_OUT)[0].job_id)
        run.wait_until(lambda: len(done.attempts(TIMED_OUT)) == 2 and done.attempts(TIMED_OUT)[1].started, "again")
        os.kill(find_process(done, slurm, TIMED_OUT, WORKER), signal.SIGKILL)
        assert run.finish(TIMEOUT_S) == 0, run.printed()
        yield done
    assert slurm.jobs() == []
    assert stray_processes(run.out) == []


def write_linked_dataset(path: Path) -> Path:
    """Write a dataset whose recordings are links to where they really lie, and return that folder."""
    write_dataset(path / "archive", "synthetic", "small")
    (path / "data" / "synthetic").mkdir(parents=True)
    for recording in (path / "archive" / "synthetic").iterdir():
        (path / "data" / "synthetic" / recording.name).symlink_to(recording)
    return path / "archive"


def stop_children(damaged: Hurt, slurm: PrivateSlurm, names: list[str]) -> None:
    """Let each process that trains have a checkpoint, and then no more processor time.

    So it is still there when the signal comes, however quick this machine is.
    """
    left = list(names)

    def are_stopped() -> bool:
        for name in [name for name in left if has_checkpoint(damaged, name)]:
            os.kill(find_process(damaged, slurm, name, CHILD), signal.SIGSTOP)
            left.remove(name)
        return not left

    damaged.run.wait_until(are_stopped, f"checkpoints of {' and '.join(names)}")


def has_checkpoint(damaged: Hurt, name: str) -> bool:
    with contextlib.suppress(ValueError):  # the stage, or the run, has not begun
        return bool(damaged.directory(name).newest_checkpoint() and damaged.attempts(name))
    return False


def find_process(damaged: Hurt, slurm: PrivateSlurm, name: str, kind: bytes) -> int:
    """Return the process of a stage's current job that is the worker, or its child."""
    found: list[int] = []

    def is_there() -> bool:
        for pid in sorted(slurm.processes_of(damaged.attempts(name)[-1].job_id)):
            with contextlib.suppress(OSError):
                if kind in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return bool(found)

    damaged.run.wait_until(is_there, f"process {kind!r}")
    return found[-1]


def ask_by_usr1(slurm: PrivateSlurm, job_id: str) -> None:
    slurm.command("scancel", "--batch", "--signal=USR1", job_id)


def end_walltime(slurm: PrivateSlurm, job_id: str) -> None:
    slurm.end_in(job_id, 1)  # Slurm looks at limits every half minute
    slurm.wait_for_job(job_id, "TIMEOUT", "COMPLETING", timeout_s=90)


def test_the_flow_finishes_in_the_image_though_its_jobs_are_ended(damaged: Hurt) -> None:
    output = OutputDirectory(damaged.run.out)
    assert {record.state for record in output.read_index().stages} == {StageState.FINISHED}
    assert Results.read(output.results_path).f1
    assert output.report_path.is_file()


def test_slurms_sigterm_at_the_walltime_reaches_the_stage_through_apptainer(damaged: Hurt) -> None:
    first, second, third = damaged.attempts(TIMED_OUT)
    assert (first.end, second.end, third.end) == ("Paused", "SlurmJobLost", "Completed")
    for text in ("SIGTERM", "TimeLimit"):
        assert text in first.message
    # It woke up to save: the next attempt goes on there.
    log = damaged.directory(TIMED_OUT).log_path.read_text()
    assert f"going on from {Path(first.checkpoint).name}" in log
    assert "paused at epoch" in log


def test_usr1_reaches_the_stage_through_apptainer(damaged: Hurt) -> None:
    first, second = damaged.attempts(SIGNALLED)
    assert (first.end, second.end) == ("Paused", "Completed")
    assert first.checkpoint
    assert "paused at epoch" in damaged.directory(SIGNALLED).log_path.read_text()


def test_each_attempt_ran_in_the_image_and_says_which_code_image_and_data(damaged: Hurt) -> None:
    digest = sha256_of_file(damaged.image)
    records = OutputDirectory(damaged.run.out).read_index().stages
    for record in records:
        directory = damaged.directory(record.name)
        attempts = json.loads(directory.provenance_path.read_bytes())["attempts"]
        assert attempts
        for attempt in attempts:
            assert attempt["image"] == {"path": str(damaged.image), "sha256": digest, "doubt": None}
            assert attempt["prefix"] == PREFIX
            assert attempt["arguments"][0].startswith(f"{PREFIX}/lib/")
            assert attempt["packages"]["torch"]
            assert attempt["spec"]["identity"] == record.identity
            assert "SLURM_JOB_ID" in attempt["slurm"]
            if (Path(kdgat.__file__).parents[1] / ".git").exists():
                assert len(attempt["git"]["revision"]) == 40
    prepared = json.loads(damaged.directory("prepare").provenance_path.read_bytes())["attempts"][0]["spec"]["inputs"]
    recordings = {sha256_of_file(path) for path in (damaged.archive / "synthetic").glob("*__*")}
    assert set(prepared.values()) == recordings


def test_the_weights_are_those_of_an_undisturbed_run_outside(damaged: Hurt, tmp_path: Path) -> None:
    shutil.copytree(damaged.run.out / "stages", tmp_path / "stages")
    directory = RunDirectory(tmp_path / "stages" / damaged.directory(TIMED_OUT).path.name)
    for path in directory.path.iterdir():
        if path != directory.spec_path:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = run_kdgat("stage", "run", str(directory.path), "--quiet", timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert directory.weights_path.read_bytes() == damaged.directory(TIMED_OUT).weights_path.read_bytes()


def test_recordings_are_scored_in_the_image_as_outside(damaged: Hurt, tmp_path: Path) -> None:
    words = ("evaluate", "can", "--run", str(damaged.run.out), "--data-root", str(damaged.run.data_root))
    inside = run_kdgat(
        *words, "--site", str(damaged.site), "--json", str(tmp_path / "inside.json"), timeout_s=TIMEOUT_S
    )
    assert inside.returncode == 0, inside.stderr
    assert json.loads((tmp_path / "inside.json").read_text())["f1"] == Results.read(damaged.run.out / "results.json").f1
    (directory,) = (damaged.run.out / "evaluations").iterdir()
    (attempt,) = json.loads(RunDirectory(directory).provenance_path.read_bytes())["attempts"]
    assert attempt["prefix"] == PREFIX


@contextlib.contextmanager
def full_cluster(slurm: PrivateSlurm) -> Iterator[None]:
    """Let no job start while the context lasts."""
    nodes = f"NodeName={','.join(slurm.nodes)}"
    slurm.command("scontrol", "update", nodes, "State=DRAIN", "Reason=test")
    try:
        yield
    finally:
        slurm.command("scontrol", "update", nodes, "State=RESUME")


def test_a_job_whose_image_is_replaced_while_it_waits_ends_and_the_next_one_is_of_the_new_file(
    damaged: Hurt, slurm: PrivateSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, log = tmp_path / "current.sif", tmp_path / "stderr.txt"
    image.symlink_to(damaged.image)
    with tempfile.TemporaryDirectory(dir="/tmp") as below:  # the recordings lie in no folder of the image's /tmp either
        directory = RunDirectory(Path(below, damaged.directory("prepare").path.name))
        directory.path.mkdir()
        shutil.copy(damaged.directory("prepare").spec_path, directory.path)
        site = write_site(tmp_path, image, node_local="/tmp")
        monkeypatch.setenv("APPTAINER_BIND", "/a/folder/that/no/node/has")
        command = [sys.executable, "-m", "kdgat.cli.main", "stage", "run", str(directory.path), "--site", str(site)]
        with log.open("wb") as file, full_cluster(slurm):
            process = subprocess.Popen(command, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
            while not slurm.jobs():
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            shutil.copyfile(damaged.image, tmp_path / "new.sif")
            os.utime(tmp_path / "new.sif", (1_700_000_000, 1_700_000_000))
            (tmp_path / "new").symlink_to(tmp_path / "new.sif")
            (tmp_path / "new").replace(image)
        assert process.wait(TIMEOUT_S) == 0, log.read_text()
        first, second = AttemptLedger(directory).records
        (ran,) = json.loads(directory.provenance_path.read_bytes())["attempts"]
    assert (first.end, second.end) == ("SlurmJobNotStarted", "Completed")
    assert f"image {image} changed since submission" in first.message
    assert "replaced while the job waited" in first.decision
    assert second.excluded_nodes == ()
    assert ran["image"] == {"path": str(image), "sha256": sha256_of_file(damaged.image), "doubt": None}


@pytest.mark.parametrize("command", ["train", "stage"])
def test_an_image_of_another_source_is_refused_before_anything_is_submitted(
    command: str, damaged: Hurt, slurm: PrivateSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in (kdgat, flows):
        folder = Path(str(package.__file__)).parent
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "kdgat" / "training" / "fit.py").open("a") as module:
        module.write("# another one\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    train = ("can", "--dataset", "synthetic", "--data-root", str(damaged.run.data_root), "--out", str(tmp_path / "out"))
    stage = ("run", str(damaged.directory(TIMED_OUT).path))
    refused = run_kdgat(command, *(train if command == "train" else stage), "--site", str(damaged.site))
    assert refused.returncode == 1
    for text in (str(damaged.image), "source of kdgat", "in the image", str(tmp_path / "kdgat"), "kdgat image build"):
        assert text in refused.stderr
    assert "Traceback" not in refused.stderr
    assert slurm.jobs() == []
    assert not (tmp_path / "out").exists()
