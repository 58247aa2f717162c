"""A run of eight stages on a test cluster where anything goes wrong: `python -m tests.slurm.soak --out DIR`.

A share of what Slurm answers and of what files do is spoiled, nodes and watchers are killed, the command is given
again. Rounds of one and the same run are made until the minutes are over. In each no job that works may be cancelled,
no stage fail, no attempt begin behind the newest checkpoint, and the weights are those of a run that nobody touched.
What was done, and what was wrong, is printed and goes to `soak.json`; the exit status is 1 where something was wrong.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import yaml

from kdgat.canbus.simulation import write_dataset
from kdgat.cluster import AttemptLedger, EndKind
from kdgat.cluster.site import find_sites
from kdgat.run import OutputDirectory, RunError, StageState
from kdgat.stage import FailureKind, RunDirectory, RunDirectoryError
from tests.can.small_runs import train_here
from tests.slurm.cluster_run import STAGE, ClusterRun, DetachedRun
from tests.slurm.processes import command_line, send
from tests.slurm.slurm import PrivateSlurm
from tests.support.failing_files import FailingFiles
from tests.support.spoiled_commands import LOG, write_spoiled_commands

SEEDS = range(8)
RESOURCES = ("--memory", "4G", "--cores", "1", "--walltime", "00:02:00")  # one job of a stage on each node
WORDS = ("--seeds", *map(str, SEEDS), *RESOURCES, "--detach")
RESUMED = re.compile(r"^(\S+ \S+?),.*going on from \S*checkpoint-(\d+)\.pt", flags=re.MULTILINE)
SEEN_S = 5.0  # a checkpoint that was there for so long must be found by the attempt that begins
LOOK_S = 0.5
ROUND_S = 3600.0  # in which a round has to come to its end
PAUSE_S = 45.0  # between two blows, on average
UNREAD = (OSError, ValueError, RunError, RunDirectoryError)


@dataclass
class Report:
    """What was done to the runs, and what came of it."""

    rounds: int = 0
    seconds: float = 0.0
    commands: Counter[str] = field(default_factory=Counter)  # answers of Slurm's commands that were spoiled
    files: Counter[str] = field(default_factory=Counter)  # looks at files that went wrong
    blows: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)  # of attempts
    jobs: Counter[str] = field(default_factory=Counter)  # how Slurm says that they ended
    tracebacks: Counter[str] = field(default_factory=Counter)  # last lines of those that watchers printed
    wrong: list[str] = field(default_factory=list)

    def rows(self) -> str:
        """Write it as tables."""
        lines = [f"{self.rounds} rounds of {len(SEEDS)} stages in {self.seconds / 60:.0f} min"]
        for name in ("commands", "files", "blows", "ends", "jobs", "tracebacks"):
            counts: Counter[str] = getattr(self, name)
            lines += ["", f"| {name} | {counts.total()} |", "|---|---|"]
            lines += [f"| {kind} | {count} |" for kind, count in sorted(counts.items())]
        return "\n".join([*lines, "", *(f"WRONG: {text}" for text in self.wrong or ["nothing"])])


class Round:
    """One run, from its first command to its end."""

    def __init__(self, path: Path, undisturbed: ClusterRun, slurm: PrivateSlurm, soak: "Soak") -> None:
        self.path, self.undisturbed, self.slurm, self.soak = path, undisturbed, slurm, soak
        self.report, self.random = soak.report, soak.random
        path.mkdir(parents=True)
        self.run = DetachedRun(undisturbed.data_root, path / "out", site=str(path / "site.yaml"), epochs=soak.epochs)
        self.commands = path / "commands"
        self.looks, self.works = FailingFiles(path / "looks"), FailingFiles(path / "works")
        pattern = f"{self.run.out}/!(prefect*)"  # Prefect's own database stands beside what is kdgat's
        self.looks.fail_by_chance(soak.odds, pattern)
        self.works.fail_by_chance(soak.odds, pattern)
        site = yaml.safe_load(find_sites()["slurm-test"].read_text()) | {
            "name": "soak",
            "watcher": {"walltime": "00:30:00", "memory": "2G"},
            "silence_timeout_s": 120,  # no job is silent for so long, however crowded the machine
            "prologue": self.works.prologue,
        }
        Path(self.run.site).write_text(yaml.safe_dump(site))
        self.run.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
            **slurm.environment,
            **self.looks.environment,
            "PATH": write_spoiled_commands(self.commands, soak.odds, self.run.out, slurm.environment["PATH"]),
            "PREFECT_HOME": str(path / "prefect"),
        }
        self.began = time.monotonic()
        self.hurt: set[str] = set()  # jobs whose processes were killed here
        self.checkpoints: dict[str, list[tuple[float, int]]] = {}  # of each stage: when each was seen first
        self.failed: set[str] = set()

    def go(self) -> None:
        """Give the command, and hurt what works for it until the run is done."""
        self.run.start(*WORDS)
        next_blow = time.monotonic() + PAUSE_S
        often = (self.kill_node, self.kill_job, self.kill_training)
        blows = (*often, *often, self.kill_watcher, self.new_watcher, self.command_again)
        while not self.is_done():
            time.sleep(LOOK_S)
            self.look()
            if time.monotonic() - self.began > ROUND_S:
                self.wrong(f"not done after {ROUND_S:.0f} s")
                break
            if self.run.process is not None and self.run.process.poll() is None:
                continue
            if not self.run.watchers(self.slurm):
                self.report.blows["command given again: no watcher was there"] += 1
                self.run.start(*WORDS)
            elif time.monotonic() > next_blow and any(self.checkpoints.values()):  # something works
                self.random.choice(blows)()
                next_blow = time.monotonic() + self.random.uniform(0.3, 1.7) * PAUSE_S
        self.wait_for_an_empty_queue()
        self.judge()

    def kill_node(self) -> None:
        """Let a node with jobs die, and come back."""
        busy = [job for job in self.slurm.jobs() if job["state"] == "RUNNING"]
        if not busy:
            return
        node = self.random.choice(busy)["node"]
        self.hurt |= {job["id"] for job in busy if job["node"] == node}
        self.slurm.kill_node(node)
        time.sleep(self.random.uniform(1, 25))
        self.slurm.revive_node(node)
        self.report.blows["node killed"] += 1

    def kill_watcher(self) -> None:
        """Kill the watcher, all of its processes; the next one comes after a pause."""
        for number, state in self.run.watchers(self.slurm).items():
            if state == "RUNNING":
                send(self.slurm.processes_of(number), signal.SIGKILL)
                self.report.blows["watcher killed"] += 1

    def new_watcher(self) -> None:
        """Kill the watcher and all that wait for its place, and give the command again, as a person does."""
        self.kill_watcher()
        self.slurm.command("scancel", *self.run.watchers(self.slurm), check=False)
        self.run.start(*WORDS)
        self.report.blows["command given again: after watchers were killed"] += 1

    def command_again(self) -> None:
        """Give the command while it runs."""
        self.run.start(*WORDS)
        self.report.blows["command given again: while it was watched"] += 1

    def kill_job(self) -> None:
        """Kill the process of a job."""
        self._kill("kdgat.cluster.job", "job killed")

    def kill_training(self) -> None:
        """Kill the process that trains."""
        self._kill("kdgat.stage", "training process killed")

    def _kill(self, module: str, blow: str) -> None:
        jobs = [job["id"] for job in self.slurm.jobs() if job["state"] == "RUNNING" and STAGE in job["name"]]
        self.random.shuffle(jobs)
        for number in jobs:
            if found := [pid for pid in self.slurm.processes_of(number) if module in command_line(pid)]:
                self.hurt.add(number)
                send(found, signal.SIGKILL)
                self.report.blows[blow] += 1
                return

    def stages(self) -> list[RunDirectory]:
        return [RunDirectory(path) for path in sorted((self.run.out / "stages").glob(f"{STAGE}-*"))]

    def look(self) -> None:
        """Keep which checkpoints there were, and whether a stage is called failed."""
        for directory in self.stages():
            names = [path.stem for path in directory.checkpoints_path.glob("checkpoint-*.pt")]
            newest = max((int(name.rpartition("-")[2]) for name in names), default=0)
            seen = self.checkpoints.setdefault(directory.path.name, [])
            if newest > (seen[-1][1] if seen else 0):
                seen.append((time.time(), newest))
        with contextlib.suppress(*UNREAD):
            for record in OutputDirectory(self.run.out).read_index().stages:
                if record.state == StageState.FAILED and record.name not in self.failed:
                    self.failed.add(record.name)
                    self.wrong(f"{record.name} is called failed: {record.message[:300]}")

    def is_done(self) -> bool:
        try:
            stages = OutputDirectory(self.run.out).read_index().stages
        except UNREAD:
            return False
        # A command that is given again after the end finds each of them done.
        return bool(stages) and all(record.state in (StageState.FINISHED, StageState.CACHED) for record in stages)

    def wait_for_an_empty_queue(self) -> None:
        give_up_at = time.monotonic() + 180
        while self.slurm.jobs() and time.monotonic() < give_up_at:
            time.sleep(LOOK_S)
        left = [f"{job['name']} {job['state']}" for job in self.slurm.jobs()]
        if left:
            self.wrong(f"in the queue after the end: {left}")
            self.slurm.command("scancel", *(job["id"] for job in self.slurm.jobs()), check=False)
            while self.slurm.jobs():
                time.sleep(LOOK_S)

    def judge(self) -> None:
        """Compare what came of the run with what has to come of it."""
        report = self.report
        for path in (self.looks.log_path, self.works.log_path):
            if path.exists():
                lines = [line.split(" ", 4) for line in path.read_text(errors="replace").splitlines()]
                report.files.update(f"{call}: {what}" for _, _, call, what, _ in lines)
        faults = [json.loads(line) for line in (self.commands / LOG).read_text().splitlines()]
        report.commands.update(f"{one['command']}: {one['kind']}" for one in faults if one["command"] != "scancel")
        for one in faults:
            for job in one.get("jobs", ()):
                is_ours = job["name"].startswith("watcher-") or job["job"] in self.hurt or job["reported"]
                if job["state"] == "RUNNING" and not is_ours:
                    self.wrong(
                        f"scancel of the running {job['name']} ({job['job']}) by {one['caller']}: {one['arguments']}"
                    )
        for directory in self.stages():
            self.judge_stage(directory)
        if len(self.stages()) != len(SEEDS):
            self.wrong(f"{len(self.stages())} stages")
        printed = self.run.printed()
        ended = re.findall(r"^Traceback .*\n(?:[ \t].*\n|\n)*(\S.*)", printed, flags=re.MULTILINE)
        report.tracebacks.update(line[:160].replace(str(self.path), "") for line in ended)
        for line in self.slurm.command("scontrol", "show", "job", "--oneliner").splitlines():
            found = dict(re.findall(r"\b(JobId|JobName|JobState|StdOut)=(\S+)", line))
            if str(self.run.out) in found.get("StdOut", ""):
                kind = "watcher" if found["JobName"].startswith("watcher-") else "stage"
                report.jobs[f"{kind}: {found['JobState']}"] += 1

    def judge_stage(self, directory: RunDirectory) -> None:
        name = directory.path.name
        expected = RunDirectory(self.undisturbed.out / "stages" / name)
        for one in ("weights_path", "metrics_path"):
            if sha256(getattr(directory, one)) != sha256(getattr(expected, one)):
                self.wrong(f"{name}: other {one.partition('_')[0]} than those of the undisturbed run")
        for record in AttemptLedger(directory).records:
            self.report.ends[f"{record.end} {record.failure or ''}".strip()] += 1
            if record.end == EndKind.FAILED.value and record.failure is not FailureKind.ENVIRONMENT:
                self.wrong(f"{name} attempt {record.number}: {record.end} {record.failure}: {record.message[-300:]}")
            if record.end in ("Orphaned", EndKind.CANCELLED.value):
                self.wrong(f"{name} attempt {record.number}: {record.end}: {record.message[-300:]}")
        log = directory.log_path.read_text(errors="replace") if directory.log_path.exists() else ""
        for when, number in RESUMED.findall(log):
            before = datetime.strptime(when, "%Y-%m-%d %H:%M:%S").timestamp() - SEEN_S
            newest = max((one for seen, one in self.checkpoints.get(name, ()) if seen < before), default=0)
            if int(number) < newest:
                self.wrong(f"{name} at {when}: went on from checkpoint {number}, and {newest} was there")

    def wrong(self, text: str) -> None:
        self.report.wrong.append(f"{self.path.name}: {text}")
        print(f"{datetime.now():%H:%M:%S} WRONG {self.report.wrong[-1]}", flush=True)


class Soak:
    """Rounds on one cluster, for so many minutes."""

    def __init__(self, path: Path, minutes: float, seed: int, odds: float, epochs: int) -> None:
        self.path, self.minutes, self.epochs = path.resolve(), minutes, epochs
        self.odds, self.random, self.report = odds, random.Random(seed), Report()

    def go(self, slurm: PrivateSlurm) -> Report:
        """Train undisturbed, then make rounds; the report is written after each."""
        undisturbed = ClusterRun(self.path / "data", self.path / "undisturbed", epochs=self.epochs)
        if not undisturbed.out.exists():
            write_dataset(undisturbed.data_root, "synthetic", "small")
            train_here(undisturbed.out, undisturbed.config(SEEDS))
        began = time.monotonic()
        while self.report.rounds == 0 or time.monotonic() - began < 60 * self.minutes:
            self.report.rounds += 1
            Round(self.path / f"round{self.report.rounds}", undisturbed, slurm, self).go()
            self.report.seconds = time.monotonic() - began
            (self.path / "soak.json").write_text(json.dumps(vars(self.report), indent=2) + "\n")
            print(self.report.rows(), flush=True)
        return self.report


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none"


def main(arguments: list[str] | None = None) -> int:
    """Boot a cluster, soak, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--odds", type=float, default=0.02, help="share of answers and looks that go wrong")
    parser.add_argument("--epochs", type=int, default=40, help="of each stage; 32 steps each")
    options = parser.parse_args(arguments)
    soak = Soak(options.out, options.minutes, options.seed, options.odds, options.epochs)
    soak.path.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGINT):  # the cluster ends, too
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    # Not in DIR: its path can be too long for Slurm's sockets.
    with tempfile.TemporaryDirectory(prefix="kdgat-soak-") as folder, PrivateSlurm.boot(folder) as slurm:
        os.environ |= slurm.environment
        report = soak.go(slurm)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
