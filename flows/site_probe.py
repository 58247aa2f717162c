"""A small job that looks at a site's nodes as the job of a stage would, for `kdgat doctor --site`.

It comes by the way of every other job: script, prologue, image, `sbatch`. Whatever happens, it is cancelled or over in
the end, and its folder gone.
"""

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from flows.dask_jobs import DaskJobs
from flows.node_image import NodeImage
from flows.signals import STOP_SIGNALS
from kdgat.base import UserError, wait_until
from kdgat.base.text import describe_seconds
from kdgat.cluster import EndKind, ResourceRequest, Resources, Site, Slurm, StopRequest
from kdgat.cluster.child import OnLine
from kdgat.cluster.ending import Because
from kdgat.cluster.filesystem import FOLDER_PREFIX, Check, ask_both_locks, ask_lock, judge_locks, nearest_folder
from kdgat.cluster.gpu_type import keep_card
from kdgat.cluster.probe import (
    ANSWER,
    FINDINGS,
    LAST,
    LOGIN_LOCK,
    NODE_LOCK,
    OTHER_KDGAT,
    PROBE_MODULE,
    SHOWN_S,
    Findings,
    check_cards,
    check_clock_of_node,
    check_delay,
    check_versions,
    versions,
)
from kdgat.cluster.request import DEFAULT_KEY, stage_resources
from kdgat.cluster.scheduler import GONE, JobStatus, Scheduler, cancel_jobs, jobs_named
from kdgat.cluster.script import cluster_arguments, job_names, scheduler_options
from kdgat.cluster.slurm import SubmissionError, refusal
from kdgat.container.binds import Bind
from kdgat.stage.provenance import GPUS_VARIABLE

NODES: Final = "nodes"
REQUEST: Final = ResourceRequest(walltime="00:10:00", memory="2G", cores=1, gpus=0)
RUN_S: Final = 600.0  # the same, as none of its files may ever show
POLL_S: Final = 0.2
OUTPUT_S: Final = 3.0  # until the output of a job that failed shows
LEAVING_S: Final = 45.0  # Slurm's KillWait, and some more
OUTPUT_LINES: Final = 3
NO_INTERFACE: Final = "site file: interface, the network by which nodes reach this machine (ip -brief address)"


def try_nodes(site: Site, out: Path, wait_s: float, say: OnLine, gpus: int = 0) -> list[Check]:
    """Submit the job, wait for what it finds, and leave nothing of it.

    Args:
        site: a cluster whose jobs can be submitted from here.
        out: the folder that is to hold runs, or is yet to be made.
        wait_s: how long the job may wait in the queue.
        say: gets what happens meanwhile, a sentence each.
        gpus: how many the job asks for; what it is given is kept, and jobs are compared with it from then on.

    Raises:
        KeyboardInterrupt: if somebody asked to stop, by Ctrl-C or another signal; after the job is cancelled.
    """
    with site.creating_files(), _stopping() as stop:
        try:
            folder = Path(tempfile.mkdtemp(dir=nearest_folder(out), prefix=FOLDER_PREFIX))
        except OSError as error:
            return [Check(NODES, "missing", f"not tried: {out.absolute()}: {error.strerror}")]
        probe = _Probe(site, folder, stop, say, gpus)
        try:
            with (folder / LOGIN_LOCK).open("a+b") as lock:
                ask_lock(lock, fcntl.LOCK_EX)
                probe.submit()
                checks = probe.examine(wait_s)
        except SubmissionError as error:
            kind, words = refusal(str(error))
            fix = "jobs of stages would be refused as well: correct account, qos, partition, directives of the site"
            if kind != EndKind.REFUSED:
                fix = "jobs of stages would be submitted again until Slurm takes them"
            checks = [Check(NODES, "wrong" if kind == EndKind.REFUSED else "warning", f"sbatch: {words}", fix)]
        except (UserError, OSError) as error:
            text, _, fix = str(error).partition(" Fix: ")
            checks = [Check(NODES, "wrong", text, fix)]
        finally:
            probe.leave()
    if stop.is_set():
        raise KeyboardInterrupt
    return checks


@contextmanager
def _stopping() -> Iterator[StopRequest]:
    """Note signals, which would otherwise come between `sbatch` and the number of its job."""
    stop = StopRequest()
    previous = {
        number: signal.signal(number, lambda number, _: stop.set(signal.Signals(number).name))
        for number in STOP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Probe:
    """One job and its folder."""

    def __init__(self, site: Site, folder: Path, stop: StopRequest, say: OnLine, gpus: int) -> None:
        self._site, self._folder, self._stop, self._say = site, folder, stop, say
        request = REQUEST.model_copy(update={"gpus": gpus})
        self._resources = stage_resources(NODES, {DEFAULT_KEY: request}, site, ResourceRequest())
        self._logs = folder / "slurm"
        self._jobs = DaskJobs(self._logs, scheduler_options(site))
        self._scheduler: Scheduler = Slurm()
        self._job_id, self._is_done = "", False

    def submit(self) -> None:
        """Hand in the job.

        Raises:
            SubmissionError: if Slurm does not take it.
            UserError: if it could not run.
        """
        image = NodeImage(self._site)
        given = {GPUS_VARIABLE: str(self._resources.gpus)}
        environment = {"OMP_NUM_THREADS": "1", **image.check(self._say), **given}
        binds = [Bind(Path(os.path.realpath(self._folder)), self._folder, is_writable=True)]
        arguments = cluster_arguments(self._site, self._resources, self._folder, self._logs, (), binds, environment)
        if not self._stop.is_set():
            self._job_id = self._jobs.submit({**arguments, "worker_command": PROBE_MODULE}) or self._find() or ""
            if not self._job_id:
                raise SubmissionError("it took a job and did not say its number, and squeue does not list it")
            self._say(f"job {self._job_id} on {self._site.name}: {self._resources.describe()}")

    def _find(self) -> str | None:
        """Return the number of the job by its name, "" where there is none, None where Slurm does not say."""
        queue = self._scheduler.queue()
        return None if queue is None else next(iter(jobs_named(job_names(self._folder), queue)), "")

    def examine(self, wait_s: float) -> list[Check]:
        """Wait for what the job finds, answer it, and tell what it means."""
        findings = self._wait(wait_s)
        if not isinstance(findings, Findings):
            return [] if findings is None else [findings]
        node = findings.node
        of_node = [check._replace(name=f"{check.name} on {node}") for check in findings.checks]
        directions = [
            judge_locks(findings.locks, "this machine"),
            judge_locks(ask_both_locks(self._folder / NODE_LOCK), node),
        ]
        worst = next((one for one in directions if one.state != "good"), Check("", "good", "reach both ways"))
        connection = Check("", "good", f"{node} reaches this machine")
        if findings.unreachable:
            fix = "reports of jobs come by files alone, and later: " + (
                "let nodes reach this machine by its interface" if self._site.interface else NO_INTERFACE
            )
            connection = Check("", "warning", findings.unreachable, fix)
        return [
            *of_node,
            worst._replace(name=f"locks between here and {node}"),
            *self._exchange(node),
            connection._replace(name=f"connection from {node}"),
            check_versions(findings.versions, versions())._replace(name=f"packages on {node}"),
            *self._cards(findings),
        ]

    def _cards(self, findings: Findings) -> Iterator[Check]:
        """Tell which GPU the job was given, and keep it for the type that it asked for."""
        if self._resources.gpus:
            if findings.cards:
                keep_card(self._site, self._resources.gpu_type or "", findings.cards[0])
            yield check_cards(findings.cards)._replace(name=f"GPU on {findings.node}")
            yield from check_torch(self._site, self._resources)

    def _wait(self, wait_s: float) -> Findings | Check | None:
        """Return what the job found, or why nothing comes; None if somebody asked to stop."""
        pause_s = max(self._site.poll_interval_s, 1.0)
        began = time.monotonic()
        limit, look_at, said = began + wait_s, began + pause_s, ""
        status = JobStatus("")
        while not self._stop.is_set():
            if (text := _read(self._folder / FINDINGS)) is not None:
                try:
                    return Findings.model_validate_json(text)
                except ValidationError:
                    return Check(NODES, "wrong", "the node has another kdgat, which says other things", OTHER_KDGAT)
            now = time.monotonic()
            if now > limit or status.is_hopeless:
                return self._nothing_came(status, now - began)
            if now >= look_at and not status.is_over:
                look_at, before = now + pause_s, status
                status = self._scheduler.status(self._job_id)
                if status.is_alive and not before.is_alive:
                    self._say(f"job {self._job_id} runs on {status.node or 'a node'}")
                    limit = now + RUN_S
                if status.is_over:  # its files may take a while
                    limit = now + (SHOWN_S if status.state in (GONE, "COMPLETED") else OUTPUT_S)
                if status.is_waiting and status.describe() != said:
                    said = status.describe()
                    self._say(f"job {self._job_id}: {said}; Ctrl-C cancels it, --wait after {describe_seconds(wait_s)}")
            time.sleep(POLL_S)
        return None

    def _nothing_came(self, status: JobStatus, waited_s: float) -> Check:
        job, words = f"job {self._job_id}", status.describe() or "Slurm does not answer"
        elsewhere = f"see that {self._folder.parent} is the same folder on all nodes, or choose another by --out"
        if status.is_hopeless:
            return Check(NODES, "wrong", f"{job} would wait for ever: {words}", "correct the site file")
        if status.is_alive:
            return Check(NODES, "wrong", f"{job} shows nothing after {describe_seconds(waited_s)}: {words}", elsewhere)
        if not status.is_over:
            text = f"not tried: {job} after {describe_seconds(waited_s)}: {words}"
            return Check(NODES, "warning", text, "--wait 60 lets it wait for an hour")
        output = "".join(path.read_text(errors="replace") for path in sorted(self._logs.glob("*-*.*")))
        printed = " | ".join(output.split("\n")[-1 - OUTPUT_LINES :]).strip(" |")
        text = f"{job} on {status.node or 'a node'} ended and left no findings: {words}: {printed or 'no output here'}"
        fix = "correct what it says: modules, prologue, python or image of the site"
        return Check(NODES, "wrong", text, fix if printed else elsewhere)

    def _exchange(self, node: str) -> Iterator[Check]:
        """Answer the job, and see when it says what time it is there."""
        asked, began = time.time(), time.monotonic()
        (self._folder / ANSWER).touch()
        wait_until(lambda: self._stop.is_set() or _read(self._folder / LAST) is not None, SHOWN_S)
        took_s, last = time.monotonic() - began, _read(self._folder / LAST)
        self._is_done = last is not None
        if last is None:
            fix = "commands and jobs would not see each other's files: choose another folder by --out"
            yield Check(f"files from here to {node}", "wrong", f"do not show within {describe_seconds(took_s)}", fix)
            return
        yield check_delay(took_s, self._site.silence_timeout_s)._replace(name=f"files between here and {node}")
        yield check_clock_of_node(float(last) - asked - took_s / 2, took_s / 2)._replace(name=f"clock of {node}")

    def leave(self) -> None:
        """Cancel the job unless it comes to its end by itself, and remove its folder."""
        if not self._job_id:  # a command that died before it knew
            found = self._find()
            self._job_id = found or ""
            if found is None:
                names = ",".join(job_names(self._folder))
                self._say(f"Slurm does not say whether a job is left: scancel --name={names}")
        if self._job_id:
            if not self._is_done and not self._scheduler.status(self._job_id).is_over:
                self._say(f"cancelling job {self._job_id}")
                cancel_jobs(self._scheduler, Because.PERSON, self._job_id)
            if not wait_until(lambda: self._scheduler.status(self._job_id).is_over, LEAVING_S, 1.0):
                self._say(f"Slurm does not say that job {self._job_id} is over: scancel {self._job_id}")
        self._jobs.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._folder.exists():
            self._say(f"{self._folder} cannot be removed: remove it")


def check_torch(site: Site, resources: Resources) -> Iterator[Check]:
    """Tell whether the torch of the nodes has code for the GPUs that a job would get."""
    said: list[str] = []
    try:
        NodeImage(site).check_gpus([resources], said.append)
    except UserError as error:
        text, _, fix = str(error).rpartition(": ")
        yield Check("torch", "wrong", text, fix)
        return
    yield from (Check("torch", "warning", sentence) for sentence in said)
    if not said:
        yield Check("torch", "good", f"has code for the site's GPUs ({resources.gpu_type or 'any'})")


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
