"""A run of `kdgat train can` on the test cluster, from the shell as a person starts it, and what can be done to it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from kdgat.can.config import CanConfig
from kdgat.can.inputs import can_run
from kdgat.canbus.simulation import write_dataset
from kdgat.cluster import AttemptLedger, AttemptRecord, load_site
from kdgat.cluster.script import watcher_name
from kdgat.run import run_locally
from kdgat.stage import RunDirectory
from tests.can.small_runs import make_config, train_here
from tests.slurm.slurm import PrivateSlurm
from tests.support.waiting import wait_until

TIMEOUT_S = 600.0  # a machine ten times as slow as the one that this was written on
STAGE = "normal"
SEEDS = range(4)  # of the undisturbed run; the commands take the first one unless they are told otherwise
CHECKPOINT_STEPS = 100
BATCH_SIZE = 16
STEPS_PER_EPOCH = 32
NUM_EPOCHS = 8  # 256 steps
TRAINING = (
    f'stages=["{STAGE}"]',
    "injection.enabled=false",
    "training.patience=null",
    f"training.batch_size={BATCH_SIZE}",
    "training.checkpoint_interval_s=1000000",
    f"training.checkpoint_every_steps={CHECKPOINT_STEPS}",
    "training.checkpoint_margin_s=3",
    f"sampling.graphs_per_epoch={BATCH_SIZE * STEPS_PER_EPOCH}",
    "gat.large.hidden=8",
    "gat.large.heads=2",
)
# What a test kills is found by what it is.
WORKER = b"kdgat.cluster.job"
RESUMED = re.compile(r"going on from \S+: (epoch \d+ step \d+)")
PAUSED = re.compile(r"paused at (epoch \d+ step \d+)")


class ClusterRun:
    """One output directory, and the commands that train into it."""

    def __init__(self, data_root: Path, out: Path, *, site: str = "slurm-test", epochs: int = NUM_EPOCHS) -> None:
        self.data_root, self.out, self.site, self.epochs = data_root, out, site, epochs
        self.overrides: Sequence[str] = (*TRAINING, f"training.max_epochs={epochs}")
        self.log_path = out.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: Mapping[str, str] | None = None  # of the command; None: that of this process

    def config(self, seeds: Sequence[int] = (0,)) -> CanConfig:
        """Return what the command makes of its words."""
        data = {"dataset": "synthetic", "data_root": str(self.data_root)}
        return make_config("quick", self.overrides, data=data, seeds=seeds)

    def start(self, *words: str) -> "ClusterRun":
        options = [word for override in self.overrides for word in ("-O", override)]
        command = [
            *(sys.executable, "-m", "kdgat.cli.main", "train", "can", "--dataset", "synthetic"),
            *("--data-root", str(self.data_root), "--out", str(self.out), "--site", self.site, *options, *words),
        ]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=self.environment
            )
        return self

    def finish(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for the end and return the exit status."""
        assert self.process is not None
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {timeout_s:.0f} s; printed so far:\n{self.printed()}") from None

    def stop(self) -> None:
        """End the process if a test left it running."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # with its jobs
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            self.process.kill()
            self.process.wait()

    def printed(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def directory(self) -> RunDirectory:
        found = sorted((self.out / "stages").glob(f"{STAGE}-*"))
        return RunDirectory(found[0] if found else self.out / "stages" / "none")

    @property
    def attempts(self) -> list[AttemptRecord]:
        return AttemptLedger(self.directory).records

    @property
    def ends(self) -> list[str]:
        return [record.end for record in self.attempts]

    def weights(self) -> bytes:
        return self.directory.weights_path.read_bytes()

    def wait_for_checkpoint(self) -> None:
        self.wait_until(lambda: self.directory.newest_checkpoint(), "a checkpoint")

    def hold(self) -> None:
        """Let the stage get to a checkpoint and stop it there (SIGSTOP); it goes on when it is asked to leave."""
        self.wait_for_checkpoint()
        os.kill(self._stage_pid(), signal.SIGSTOP)

    def release(self) -> None:
        """Let a stage that is held go on."""
        os.kill(self._stage_pid(), signal.SIGCONT)

    def _stage_pid(self) -> int:
        return int(json.loads(self.directory.owner_path.read_bytes())["pid"])

    def wait_until(self, condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
        give_up_at = time.monotonic() + timeout_s
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, f"ended before {what}:\n{self.printed()}"
            assert time.monotonic() < give_up_at, f"waited in vain for {what}:\n{self.printed()}"
            time.sleep(0.02)

    def job_id(self, slurm: PrivateSlurm) -> str:
        """Return the job of the attempt that runs now."""
        self.wait_until(lambda: self.attempts and self.attempts[-1].job_id, "a job")
        return self.attempts[-1].job_id

    def process_of(self, slurm: PrivateSlurm, kind: bytes) -> int:
        """Return the process of the current job that is the worker, or its child."""
        found: list[int] = []

        def is_there() -> bool:
            for pid in sorted(slurm.processes_of(self.job_id(slurm))):
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    if kind in words:
                        found.append(pid)
            return bool(found)

        self.wait_until(is_there, f"process {kind!r}")
        return found[0]

    def lost_nothing(self) -> bool:
        """Tell whether each attempt went on exactly where the one before had paused."""
        log = self.directory.log_path.read_text()
        return PAUSED.findall(log) == RESUMED.findall(log) != []


class DetachedRun(ClusterRun):
    """A run whose command ends at once, and goes on as a job."""

    def wait_until(self, condition, what: str, timeout_s: float = TIMEOUT_S) -> None:  # type: ignore[no-untyped-def]
        wait_until(condition, what, timeout_s=timeout_s, log=self.printed)

    def printed(self) -> str:
        logs = sorted((self.out / "slurm").glob("watcher-*.out"), key=lambda path: int(path.stem.rpartition("-")[2]))
        return "".join(path.read_text() for path in [self.log_path, *logs])

    def watchers(self, slurm: PrivateSlurm) -> dict[str, str]:
        """Return the states of the watchers by the numbers of their jobs."""
        name = watcher_name(self.out)
        return {job["id"]: job["state"] for job in slurm.jobs() if job["name"] == name}


def undisturbed_run(path: Path) -> ClusterRun:
    """Make data and train with all seeds in this process, touched by nobody."""
    write_dataset(path / "data", "synthetic", "small")
    run = ClusterRun(path / "data", path / "out")
    train_here(run.out, run.config(SEEDS))
    return run


def prepared_run(path: Path, epochs: int = NUM_EPOCHS) -> ClusterRun:
    """Make data, and prepare it in this process: what is left are the jobs that train."""
    write_dataset(path / "data", "synthetic", "small")
    run = ClusterRun(path / "data", path / "out", epochs=epochs)
    run_locally(can_run(run.config()), run.out, only={"prepare"})
    return run


def stray_processes(out: Path) -> list[str]:
    """List the processes that still have to do with an output directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(out) in command or (str(out).encode() in (entry / "environ").read_bytes() and command):
                    found.append(command)
    return found


@contextlib.contextmanager
def ending(run: ClusterRun) -> Iterator[ClusterRun]:
    """Leave nothing of a run behind, whatever a test finds."""
    try:
        yield run
    finally:
        run.stop()


def write_site(path: Path, image: Path, **changes: object) -> Path:
    """Write the site of the test cluster with an image, and a folder on the node's own disk that holds nothing else."""
    (path / "local").mkdir(exist_ok=True)
    keys = {"image": str(image), "node_local": str(path / "local"), **changes}
    site = path / "image-site.yaml"
    site.write_text(yaml.safe_dump(load_site("slurm-test-image").model_dump(mode="json", exclude_none=True) | keys))
    return site
