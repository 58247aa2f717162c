"""A private Slurm on one machine, all of it below one directory: real daemons, several nodes, counted or fake GPUs."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.slurm import processes
from tests.slurm.configuration import (
    LONGEST_DIRECTORY,
    ClusterError,
    ClusterSettings,
    choose_nodes,
    free_ports,
    make_gpu_devices,
    missing_commands,
    search_path,
    usable_cgroup,
    write_configuration,
)

STATE_FILE = "cluster.json"
UP_STATES = {"idle", "planned", "mixed", "allocated", "completing"}


class PrivateSlurm:
    """A running private Slurm; ends at the end of its `with` block, or by stop()."""

    def __init__(self, settings: ClusterSettings, no_memory_limits_because: str = "") -> None:
        self.settings = settings
        self.no_memory_limits_because = no_memory_limits_because

    @classmethod
    def boot(
        cls,
        directory: Path | str,
        num_nodes: int = 3,
        *,
        node_prefix: str | None = None,
        cpus_per_node: int = 4,
        memory_mib: int = 8000,
        gpus_per_node: int = 2,
        kill_wait_s: int = 30,
        slurmd_timeout_s: int = 15,
        gpu_devices: bool | None = None,
        cgroup: bool | None = None,
        boot_timeout_s: float = 20,
    ) -> Self:
        """Start munged, slurmctld and a slurmd per node, and wait until every node is idle.

        `gpu_devices` and `cgroup` are found out by trying where they are None. Raises ClusterError with the end of the
        logs where a daemon does not start or a node does not become idle; nothing is left running then.
        """
        directory = Path(directory).resolve()
        if missing := missing_commands():
            raise ClusterError(f"not installed: {', '.join(missing)}; tests/slurm/install.sh installs them on Debian")
        if len(str(directory)) > LONGEST_DIRECTORY:
            raise ClusterError(
                f"{directory} is longer than {LONGEST_DIRECTORY} characters: too long for Slurm's sockets"
            )
        if (directory / STATE_FILE).exists():
            earlier = cls.attached(directory)
            if earlier.running_daemons():
                raise ClusterError(f"a cluster runs in {directory}: python -m tests.slurm down {directory}")
            earlier.stop()
        for name in ("etc", "log", "munge", "pids", "spool", "state", "gpu"):
            shutil.rmtree(directory / name, ignore_errors=True)
            (directory / name).mkdir(parents=True, mode=0o755)
        version, reason = usable_cgroup() if cgroup is not False else (None, "not asked for")
        if cgroup and version is None:
            raise ClusterError(f"memory limits were asked for, but {reason}")
        settings = ClusterSettings(
            directory=directory,
            nodes=choose_nodes(directory, num_nodes, node_prefix),
            ports=free_ports(num_nodes + 1),
            cgroup=version,
            gpu_devices=gpu_devices is not False,
            cpus_per_node=cpus_per_node,
            memory_mib=memory_mib,
            gpus_per_node=gpus_per_node,
            kill_wait_s=kill_wait_s,
            slurmd_timeout_s=slurmd_timeout_s,
        )
        settings = replace(settings, gpu_devices=make_gpu_devices(settings))
        if gpu_devices and not settings.gpu_devices:
            raise ClusterError(f"device files were asked for, but mknod is not allowed in {directory}/gpu")
        for folder in (directory / "spool" / node for node in settings.nodes):
            folder.mkdir()
        try:
            return cls(settings, reason)._start(boot_timeout_s)
        except ClusterError as error:
            # The probe is no proof: a container can let groups be made and still keep controllers to itself.
            if cgroup or version is None:
                raise
            first_line = str(error).partition("\n")[0]
            reason = f"with control groups ({version}) the cluster did not start: {first_line}"
            return cls(replace(settings, cgroup=None), reason)._start(boot_timeout_s)

    @classmethod
    def attached(cls, directory: Path | str) -> Self:
        """Take hold of a cluster that another process started."""
        directory = Path(directory).resolve()
        try:
            state = json.loads((directory / STATE_FILE).read_text())
        except FileNotFoundError:
            raise ClusterError(f"no cluster was started in {directory}") from None
        state["settings"] |= {name: tuple(state["settings"][name]) for name in ("nodes", "ports")}
        state["settings"]["directory"] = directory
        return cls(ClusterSettings(**state["settings"]), state["no_memory_limits_because"])

    @classmethod
    def exists(cls, directory: Path | str) -> bool:
        """Say whether a cluster was started in a directory and not stopped, even if its daemons have died since."""
        return (Path(directory) / STATE_FILE).exists()

    @classmethod
    def running(cls, directory: Path | str) -> Self | None:
        """Take hold of the cluster in a directory if all its daemons run; None otherwise."""
        if not cls.exists(directory):
            return None
        cluster = cls.attached(directory)
        return cluster if len(cluster.running_daemons()) == len(cluster.nodes) + 2 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def directory(self) -> Path:
        """Name the directory that holds everything."""
        return self.settings.directory

    @property
    def nodes(self) -> tuple[str, ...]:
        """Name the nodes."""
        return self.settings.nodes

    @property
    def environment(self) -> dict[str, str]:
        """Give what a process needs in its environment to talk to this cluster: SLURM_CONF and PATH."""
        return {"SLURM_CONF": str(self.settings.slurm_conf), "PATH": search_path()}

    @property
    def has_memory_limits(self) -> bool:
        """Say whether a job over its memory is killed; `no_memory_limits_because` says why not."""
        return self.settings.cgroup is not None

    @property
    def has_gpu_devices(self) -> bool:
        """Say whether the GPUs are device files of our own; otherwise they are links to /dev/zero and its like."""
        return self.settings.gpu_devices

    def command(self, *arguments: str, timeout_s: float = 30, check: bool = True) -> str:
        """Run a Slurm command against this cluster and return what it printed; ClusterError where it fails."""
        answer = subprocess.run(
            arguments,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and answer.returncode != 0:
            raise ClusterError(f"{' '.join(arguments)}: exit {answer.returncode}: {answer.stderr.strip()}")
        return answer.stdout

    def submit(self, script: str, *options: str) -> str:
        """Submit lines of bash as a batch job; return its id. Its output goes to `out/<id>.txt` of the directory."""
        folder = self.directory / "out"
        folder.mkdir(exist_ok=True)
        output = ("--output", f"{folder}/%j.txt", "--chdir", str(folder))
        return self.command("sbatch", "--parsable", *output, *options, "--wrap", script).strip()

    def output(self, job_id: str) -> str:
        """Read what a job of submit() has printed so far."""
        path = self.directory / "out" / f"{job_id}.txt"
        return path.read_text() if path.exists() else ""

    def jobs(self) -> list[dict[str, str]]:
        """List the jobs that wait, run or end right now: id, name, state, reason, node."""
        lines = self.command("squeue", "--noheader", "--format=%i|%T|%r|%N|%j").splitlines()
        found = [
            dict(zip(("id", "state", "reason", "node", "name"), line.split("|", 4), strict=True)) for line in lines
        ]
        return sorted(found, key=lambda job: int(re.match(r"\d+", job["id"])[0]))  # type: ignore[index]

    def has_work(self) -> bool:
        """Say whether any job waits, runs or ends right now."""
        return bool(self.jobs())

    def job(self, job_id: str | int) -> dict[str, str]:
        """Read all that Slurm tells about a job, ended ones included: JobState, Reason, ExitCode, NodeList..."""
        text = self.command("scontrol", "show", "job", "--oneliner", str(job_id)).strip()
        parts = re.split(r"(?:^|\s)([A-Z][A-Za-z/:]*)=", text)
        return dict(zip(parts[1::2], (value.strip() for value in parts[2::2]), strict=True))

    def wait_for_job(self, job_id: str | int, *states: str, timeout_s: float = 30) -> dict[str, str]:
        """Wait until a job is in one of some states and return job(); ClusterError with the last state otherwise."""
        if processes.wait_until(lambda: self.job(job_id)["JobState"] in states, timeout_s):
            return self.job(job_id)
        last = self.job(job_id)
        raise ClusterError(
            f"job {job_id} is {last['JobState']} ({last['Reason']}), not {' or '.join(states)}, after {timeout_s} s"
        )

    def end_in(self, job_id: str | int, seconds: int) -> None:
        """Let a running job's walltime end some seconds from now; Slurm looks every 30 s, so up to that much later."""
        self.command("scontrol", "update", f"JobId={job_id}", f"EndTime=now+{seconds}")

    def processes_of(self, job_id: str | int) -> set[int]:
        """List the processes of a job: those in its control groups, those with its environment, and their children.

        Slurm's own slurmstepd is left out.
        """
        found: set[int] = set()
        for node in self.nodes:
            for folder in processes.node_cgroups(node):
                found |= processes.cgroup_members(folder.glob(f"**/job_{job_id}"))
        for pid in processes.pids():
            environment = processes.environment(pid)
            if environment.get("SLURM_JOB_ID") == str(job_id) and environment.get("SLURMD_NODENAME") in self.nodes:
                found.add(pid)
        found |= processes.descendants(found)
        return {pid for pid in found if processes.is_alive(pid)} - self._step_daemons() - {os.getpid()}

    def node_state(self, node: str) -> str:
        """Ask for the state of a node, such as `idle`, `mixed` or `down`; marks such as `*` are cut off."""
        answer = self.command("sinfo", "--noheader", "--nodes", node, "--partition=debug", "--format=%T")
        return answer.strip().rstrip("*~#!%$@^-")

    def is_idle(self, node: str) -> bool:
        """Say whether a node serves and no job has anything of it.

        By `scontrol`: `sinfo` counts a job that was cancelled right after a restart of the controller, and says `mixed`
        until there is another one.
        """
        told = self.command("scontrol", "show", "node", "--oneliner", node)
        return "CPUAlloc=0 " in told and re.search(r" State=IDLE(\+PLANNED)? ", told) is not None

    def kill_node(self, node: str) -> None:
        """Let a node die as by a power cut: slurmd, its slurmstepds and all processes of its jobs, by SIGKILL."""
        self._require_node(node)
        daemon = self._daemon_pid(node)
        victims = {daemon} if daemon is not None else set()
        for _ in range(20):
            # The daemons first, so that none reports what happens to the others.
            processes.send([*victims, *self._step_daemons(node), *self._work_of(node)], signal.SIGKILL)
            victims = self._step_daemons(node) | self._work_of(node)
            if not victims and (daemon is None or not processes.is_alive(daemon)):
                break
            time.sleep(0.02)
        else:
            raise ClusterError(f"processes of {node} survive SIGKILL: {sorted(victims)}")
        processes.remove_cgroups(processes.node_cgroups(node))

    def revive_node(self, node: str, timeout_s: float = 30) -> None:
        """Start the slurmd of a node again and wait until the controller has heard of it and the node takes jobs.

        A real node is away for longer than SlurmdTimeout, so what ran on it ends as NODE_FAIL (or is queued again) even
        if this comes sooner.
        """
        self._require_node(node)
        if self.node_state(node) != "down":
            self.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=rebooted")
        started = int(time.time())
        self._start_daemon(node, "slurmd", "-N", node, "-f", str(self.settings.slurm_conf))

        def serves() -> bool:
            told = self.command("scontrol", "show", "node", "--oneliner", node)
            found = re.search(r"SlurmdStartTime=(\S+)", told)
            heard = found is not None and found[1] != "None"
            return (
                heard
                and datetime.fromisoformat(found[1]).timestamp() >= started  # type: ignore[index]
                and self.node_state(node) in UP_STATES
            )

        if not processes.wait_until(serves, timeout_s, 0.1):
            raise ClusterError(f"{node} is {self.node_state(node)!r} after {timeout_s} s\n{self._log_tail(node)}")

    def stop_controller(self) -> None:
        """End slurmctld; the jobs go on, Slurm's commands fail."""
        self._end_daemons(["slurmctld"])

    def start_controller(self, timeout_s: float = 20) -> None:
        """Start slurmctld again, with the state that it had, and wait until it answers."""
        self._start_daemon("slurmctld", "slurmctld", "-f", str(self.settings.slurm_conf))
        self._wait_for_controller(timeout_s)

    def running_daemons(self) -> dict[str, int]:
        """List the daemons of this cluster that run, with their pids."""
        found = {name: self._daemon_pid(name) for name in ("munged", "slurmctld", *self.nodes)}
        return {name: pid for name, pid in found.items() if pid is not None}

    def stop(self, grace_s: float = 3) -> None:
        """Cancel all jobs, end the daemons that boot() started and remove their control groups; again is harmless.

        A job that is still there `grace_s` after its SIGTERM gets SIGKILL.
        """
        running = self.running_daemons()
        if {"slurmctld", "munged"} <= running.keys():
            self._cancel_jobs()
            processes.wait_until(lambda: not self._all_work(), grace_s)
        # Slurm alone would wait KillWait for jobs that ignore SIGTERM.
        processes.send(self._all_work(), signal.SIGKILL)
        processes.wait_until(lambda: not self._step_daemons(), 3)
        self._end_daemons(self.nodes)
        self._end_daemons(["slurmctld"])
        left = self._step_daemons() | self._all_work()
        processes.send(left, signal.SIGKILL)
        self._end_daemons(["munged"])
        processes.wait_until(lambda: not any(map(processes.is_alive, left)), 5)
        folders = [folder for node in self.nodes for folder in processes.node_cgroups(node)]
        if not processes.wait_until(lambda: not processes.remove_cgroups(folders), 5):
            raise ClusterError(f"in use, so not removed: {', '.join(map(str, processes.remove_cgroups(folders)))}")
        (self.directory / STATE_FILE).unlink(missing_ok=True)

    def _start(self, timeout_s: float) -> Self:
        settings = self.settings
        write_configuration(settings)
        state = {"settings": asdict(settings), "no_memory_limits_because": self.no_memory_limits_because}
        (self.directory / STATE_FILE).write_text(json.dumps(state, default=str))
        try:
            self._start_munge()
            self._start_daemon("slurmctld", "slurmctld", "-f", str(settings.slurm_conf))
            for node in self.nodes:
                self._start_daemon(node, "slurmd", "-N", node, "-f", str(settings.slurm_conf))
            self._wait_until_idle(timeout_s)
        except BaseException:
            self.stop(grace_s=0)
            raise
        return self

    def _start_munge(self) -> None:
        folder, key = self.directory / "munge", self.directory / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        self._start_daemon(
            "munged",
            "munged",
            "--force",  # a directory of a test is not as guarded as /etc
            "--num-threads=2",
            f"--key-file={key}",
            f"--seed-file={folder / 'seed'}",
            f"--socket={self.settings.munge_socket}",
            f"--pid-file={self.settings.pid_file('munged')}",
            f"--log-file={self.settings.log_file('munged')}",
        )

    def _start_daemon(self, name: str, program: str, *arguments: str) -> None:
        if self._daemon_pid(name) is not None:
            return
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        path = shutil.which(program, path=search_path())
        assert path is not None, f"{program} was found before"
        printed = self.settings.log_file(name).with_suffix(".printed")
        log = self.settings.log_file(name)
        old_bytes = log.stat().st_size if log.exists() else 0
        with printed.open("wb") as stream:  # no pipe: a daemon that keeps it open would keep us waiting
            answer = subprocess.run(
                [path, *arguments],
                env=environment | self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                timeout=30,
            )

        def has_decided() -> bool:
            return self._daemon_pid(name) is not None or (log.exists() and b"fatal:" in log.read_bytes()[old_bytes:])

        # The command returns before the daemon has written its pid file, and returns 0 even if it dies at once.
        if answer.returncode == 0:
            processes.wait_until(has_decided, 10, 0.02)
        if self._daemon_pid(name) is None:
            said = printed.read_text(errors="replace").strip()
            raise ClusterError(f"{program} did not start (exit {answer.returncode}): {said}\n{self._log_tail(name)}")

    def _wait_for_controller(self, timeout_s: float) -> None:
        def answers() -> bool:
            return " UP" in self.command("scontrol", "ping", check=False)

        if not processes.wait_until(answers, timeout_s):
            raise ClusterError(f"slurmctld does not answer after {timeout_s} s\n{self._log_tail('slurmctld')}")

    def _wait_until_idle(self, timeout_s: float) -> None:
        states: dict[str, str] = {}

        def all_idle() -> bool:
            if dead := [name for name in ("munged", "slurmctld", *self.nodes) if self._daemon_pid(name) is None]:
                raise ClusterError(f"{dead[0]} ended while starting\n{self._log_tail(dead[0])}")
            lines = self.command("sinfo", "--noheader", "--Node", "--partition=debug", "--format=%N %T", check=False)
            states.update(dict(line.split(maxsplit=1) for line in lines.splitlines()))
            if refused := [node for node in self.nodes if states.get(node, "").startswith(("inval", "drain"))]:
                raise ClusterError(f"{refused[0]} is refused by slurmctld\n{self._log_tail('slurmctld')}")
            return all(states.get(node) == "idle" for node in self.nodes)

        if not processes.wait_until(all_idle, timeout_s):
            said = ", ".join(f"{node} {states.get(node, 'unknown')}" for node in self.nodes)
            tails = "\n".join(self._log_tail(name) for name in ("slurmctld", self.nodes[0]))
            raise ClusterError(f"not all nodes are idle after {timeout_s} s: {said}\n{tails}")

    def _log_tail(self, name: str, num_lines: int = 8) -> str:
        path = self.settings.log_file(name)
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return "\n".join([f"end of {path}:", *lines[-num_lines:]])

    def _require_node(self, node: str) -> None:
        if node not in self.nodes:
            raise ClusterError(f"no node {node!r}; there are {', '.join(self.nodes)}")

    def _daemon_pid(self, name: str) -> int | None:
        """Read a pid file, and believe it only where that process is this very daemon."""
        try:
            pid = int(self.settings.pid_file(name).read_text())
        except (FileNotFoundError, ValueError):
            return None
        program = name if name in ("munged", "slurmctld") else "slurmd"
        arguments = processes.command_line(pid)
        ours = str(self.settings.munge_socket if program == "munged" else self.settings.slurm_conf)
        if not processes.is_alive(pid) or not arguments or not Path(arguments[0]).name.startswith(program):
            return None
        if not any(argument.endswith(ours) for argument in arguments) or (
            program == "slurmd" and name not in arguments
        ):
            return None
        return pid

    def _end_daemons(self, names: Sequence[str]) -> None:
        pids = [pid for name in names if (pid := self._daemon_pid(name)) is not None]
        processes.send(pids, signal.SIGTERM)
        if not processes.wait_until(lambda: not any(map(processes.is_alive, pids)), 8, 0.02):
            processes.send([pid for pid in pids if processes.is_alive(pid)], signal.SIGKILL)
            processes.wait_until(lambda: not any(map(processes.is_alive, pids)), 5, 0.02)
        for name in names:
            self.settings.pid_file(name).unlink(missing_ok=True)

    def _cancel_jobs(self) -> None:
        # The controller can be unreachable or busy; what it does not cancel is ended by signal.
        with suppress(ClusterError, subprocess.TimeoutExpired):
            if identifiers := [job["id"] for job in self.jobs()]:
                self.command("scancel", "--quiet", *identifiers, timeout_s=10)

    def _all_work(self) -> set[int]:
        found: set[int] = set()
        for node in self.nodes:
            found |= self._work_of(node)
        return found

    def _work_of(self, node: str) -> set[int]:
        """List the processes of jobs on a node: in its control groups, by environment, and their children."""
        found = processes.cgroup_members(processes.node_cgroups(node)) | processes.descendants(self._step_daemons(node))
        found |= {pid for pid in processes.pids() if processes.environment(pid).get("SLURMD_NODENAME") == node}
        found |= processes.descendants(found)
        daemons = self._step_daemons() | set(self.running_daemons().values()) | {os.getpid()}
        return {pid for pid in found - daemons if processes.is_alive(pid)}

    def _step_daemons(self, node: str | None = None) -> set[int]:
        """List the slurmstepds of this cluster, or of one node: each keeps the log of its node's slurmd open."""
        nodes = self.nodes if node is None else (node,)
        logs = {str(self.settings.log_file(name)) for name in nodes}
        candidates = {pid for pid in processes.pids() if processes.program(pid).startswith("slurmstepd")}
        members = processes.cgroup_members(folder for name in nodes for folder in processes.node_cgroups(name))
        return {pid for pid in candidates if pid in members or logs & processes.open_files(pid)}
