"""The files that a private Slurm is configured by: slurm.conf, gres.conf and cgroup.conf."""

import hashlib
import os
import pwd
import random
import shutil
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.slurm.processes import CGROUP_ROOT, cgroup_members, node_cgroups, remove_cgroups

# slurmd and slurmctld are asked for by port long after the port was found free, so the range that the kernel
# gives to outgoing connections (32768 and up by default) is no place for them.
FIRST_PORT, LAST_PORT = 20_000, 32_000
# 120 to 127 are the kernel's numbers for experiments: no driver answers, not even on a machine with real GPUs.
DEVICE_MAJOR = 120
SHARDS_PER_GPU = 4
# Without ConstrainDevices Slurm never touches a GPU's file, it only wants a character device to be there.
BORROWED_DEVICES = ("/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# The longest socket path below the directory is that of a batch step, and the kernel allows 107 characters.
LONGEST_DIRECTORY = 107 - len("/spool/abcdn10/abcdn10_99999.4294967291")


class ClusterError(RuntimeError):
    """The private Slurm cannot do what was asked; the message names the cause and the end of the log."""


@dataclass(frozen=True)
class ClusterSettings:
    """What a private Slurm looks like; memory in MiB, times in seconds."""

    directory: Path
    nodes: tuple[str, ...]
    ports: tuple[int, ...]  # of the controller, then of each node
    cgroup: Literal["v1", "v2"] | None
    gpu_devices: bool  # character devices of our own stand for the GPUs, otherwise links to /dev/zero and its like
    cpus_per_node: int = 4
    memory_mib: int = 8000
    gpus_per_node: int = 2
    kill_wait_s: int = 30
    slurmd_timeout_s: int = 15

    @property
    def slurm_conf(self) -> Path:
        """Name the file that SLURM_CONF points to."""
        return self.directory / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """Name the socket that credentials come from."""
        return self.directory / "munge" / "socket"

    def pid_file(self, daemon: str) -> Path:
        """Name the pid file of `munged`, `slurmctld` or a node."""
        return self.directory / "pids" / f"{daemon}.pid"

    def log_file(self, daemon: str) -> Path:
        """Name the log of `munged`, `slurmctld` or a node."""
        return self.directory / "log" / f"{daemon}.log"

    def gpu_file(self, node: str, number: int) -> Path:
        """Name the device file that stands for a GPU."""
        return self.directory / "gpu" / f"{node}-{number}"


def node_prefix(directory: Path) -> str:
    """Make the start of the node names from the directory, so that two clusters share no control group."""
    digest = hashlib.sha256(str(directory).encode()).digest()
    # Letters alone: Slurm reads the digits at the end of a name as the node's number.
    return "".join(chr(ord("a") + byte % 26) for byte in digest[:4]) + "n"


def free_ports(number: int) -> tuple[int, ...]:
    """Find ports of the loopback interface that nobody listens on."""
    found: list[int] = []
    candidates = random.SystemRandom().sample(range(FIRST_PORT, LAST_PORT), 40 * number)
    for port in candidates:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == number:
            return tuple(found)
    raise ClusterError(f"fewer than {number} free ports between {FIRST_PORT} and {LAST_PORT} on 127.0.0.1")


def usable_cgroup() -> tuple[Literal["v1", "v2"] | None, str]:
    """Find out whether Slurm can limit memory by control groups here; return the version, or None and the reason."""
    if (CGROUP_ROOT / "memory").is_dir() and (CGROUP_ROOT / "freezer").is_dir():
        missing = [name for name in ("memory", "freezer") if not _can_make_group(CGROUP_ROOT / name)]
        return ("v1", "") if not missing else (None, f"no control group can be made in {CGROUP_ROOT}/{missing[0]}")
    controllers = CGROUP_ROOT / "cgroup.controllers"
    if not controllers.is_file():
        return None, f"{CGROUP_ROOT} holds no control groups"
    if "memory" not in controllers.read_text().split():
        return None, f"{controllers} lacks the memory controller"
    if not _can_make_group(CGROUP_ROOT):
        return None, f"no control group can be made in {CGROUP_ROOT}"
    return "v2", ""


def make_gpu_devices(settings: ClusterSettings) -> bool:
    """Make a character device for each GPU; where this machine does not allow that, link harmless ones that exist.

    Slurm 22.05 takes a node out of service whose GPUs are only counted. Returns whether the devices are our own.
    """
    own = settings.gpu_devices
    for index, node in enumerate(settings.nodes):
        for number in range(settings.gpus_per_node):
            path = settings.gpu_file(node, number)
            path.unlink(missing_ok=True)
            if own:
                try:
                    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(DEVICE_MAJOR, 16 * index + number))
                    continue
                except PermissionError:
                    own = False
            path.symlink_to(BORROWED_DEVICES[number % len(BORROWED_DEVICES)])
    return own


def write_configuration(settings: ClusterSettings) -> None:
    """Write slurm.conf, gres.conf and cgroup.conf."""
    settings.slurm_conf.write_text(render_slurm_conf(settings))
    settings.slurm_conf.with_name("gres.conf").write_text(render_gres_conf(settings))
    settings.slurm_conf.with_name("cgroup.conf").write_text(render_cgroup_conf(settings))


def render_slurm_conf(settings: ClusterSettings) -> str:
    """Render slurm.conf: several nodes on one machine, scheduling without delay, no accounting."""
    directory, user = settings.directory, pwd.getpwuid(os.geteuid()).pw_name
    host = socket.gethostname().partition(".")[0]
    values: dict[str, object] = {
        "ClusterName": settings.nodes[0],
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": settings.ports[0],
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={settings.munge_socket}",
        "CredType": "cred/munge",
        "StateSaveLocation": directory / "state",
        "SlurmdSpoolDir": directory / "spool" / "%n",
        "SlurmctldPidFile": settings.pid_file("slurmctld"),
        "SlurmdPidFile": settings.pid_file("%n"),
        "SlurmctldLogFile": settings.log_file("slurmctld"),
        "SlurmdLogFile": settings.log_file("%n"),
        "SlurmdParameters": "config_overrides",  # a node may claim more CPUs and memory than the machine has
        "ProctrackType": "proctrack/cgroup" if settings.cgroup else "proctrack/linuxproc",
        "TaskPlugin": "task/cgroup" if settings.cgroup else "task/none",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=5",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "CANCEL",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1",
        "GresTypes": "gpu,shard",
        "ReturnToService": 2,  # a node that was down serves again as soon as its slurmd is back
        "KillWait": settings.kill_wait_s,
        "SlurmdTimeout": settings.slurmd_timeout_s,
        "SlurmctldTimeout": 30,
        "MessageTimeout": 10,
        "MinJobAge": 3600,  # `scontrol show job` answers for jobs that ended long ago
        "PropagateResourceLimits": "NONE",
    }
    lines = [f"{name}={value}" for name, value in values.items()]
    for node, port in zip(settings.nodes, settings.ports[1:], strict=True):
        shards = SHARDS_PER_GPU * settings.gpus_per_node
        gres = f" Gres=gpu:v100:{settings.gpus_per_node},shard:{shards}" if settings.gpus_per_node else ""
        lines.append(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={settings.cpus_per_node} "
            f"RealMemory={settings.memory_mib}{gres} State=UNKNOWN"
        )
    limits = f"Nodes={','.join(settings.nodes)} MaxTime=1-00:00:00 DefaultTime=10 DefMemPerCPU=512 State=UP"
    lines += [f"PartitionName=debug {limits} Default=YES", f"PartitionName=gpu {limits}"]
    lines.append(f"PartitionName=urgent {limits} PriorityTier=2 PreemptMode=OFF")  # takes the place of other jobs
    return "\n".join(lines) + "\n"


def render_gres_conf(settings: ClusterSettings) -> str:
    """Render gres.conf: GPUs of one type, by device file, and their shards."""
    if not settings.gpus_per_node:
        return ""
    lines = []
    for node in settings.nodes:
        files = ",".join(str(settings.gpu_file(node, number)) for number in range(settings.gpus_per_node))
        lines.append(f"NodeName={node} Name=gpu Type=v100 File={files}")
        lines.append(f"NodeName={node} Name=shard Count={SHARDS_PER_GPU * settings.gpus_per_node}")
    return "\n".join(lines) + "\n"


def render_cgroup_conf(settings: ClusterSettings) -> str:
    """Render cgroup.conf: a job that takes more memory than it asked for is killed by the kernel."""
    if settings.cgroup is None:
        return "ConstrainRAMSpace=no\n"
    lines = [f"CgroupPlugin=cgroup/{settings.cgroup}", "ConstrainRAMSpace=yes", "ConstrainCores=no"]
    if settings.cgroup == "v2":
        lines.append("IgnoreSystemd=yes")  # the private daemons belong to no unit of systemd
    if settings.cgroup == "v1" and (CGROUP_ROOT / "memory" / "memory.memsw.limit_in_bytes").exists():
        lines += ["ConstrainSwapSpace=yes", "AllowedSwapSpace=0"]  # otherwise swap hides what is over the limit
    return "\n".join(lines) + "\n"


def choose_nodes(directory: Path, num_nodes: int, prefix: str | None) -> tuple[str, ...]:
    """Name the nodes, and refuse names whose control groups are in use by somebody else."""
    start = prefix if prefix is not None else node_prefix(directory)
    nodes = tuple(f"{start}{number}" for number in range(1, num_nodes + 1))
    for node in nodes:
        if cgroup_members(folders := node_cgroups(node)):
            raise ClusterError(f"control groups of a node named {node} are in use: give another node_prefix")
        remove_cgroups(folders)  # left by a cluster that died, as the groups of a killed job are
    return nodes


def missing_commands() -> list[str]:
    """List the Slurm and munge commands that are not installed."""
    path = search_path()
    wanted = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
    return [name for name in wanted if shutil.which(name, path=path) is None]


def search_path() -> str:
    """Extend PATH by the folders of system daemons, which a user's PATH leaves out on Debian."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(folders + [name for name in ("/usr/sbin", "/sbin") if name not in folders])


def _can_make_group(parent: Path) -> bool:
    probe = parent / f"kdgat_probe_{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    probe.rmdir()
    return True
