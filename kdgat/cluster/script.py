"""The job that runs one attempt: what dask-jobqueue's SLURMJob is given, as a pure function."""

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from kdgat.base import UserError
from kdgat.base.environment import PYTHON_OPTIONS
from kdgat.cluster.attendance import CONNECTION_FILE, NO_DASHBOARD
from kdgat.cluster.container import (
    clearing_lines,
    container_command,
    container_lines,
    ending,
    in_double_quotes,
    local_directory,
    staging_lines,
)
from kdgat.cluster.report import ALIVE
from kdgat.cluster.request import watcher_resources
from kdgat.cluster.resources import Resources, format_walltime
from kdgat.cluster.scheduler import JobStatus
from kdgat.cluster.site import Site
from kdgat.container.binds import Bind
from kdgat.stage.provenance import IMAGE_STAMP_VARIABLE

SCRATCH_VARIABLE: Final = "KDGAT_SCRATCH"
JOB_MODULE: Final = "kdgat.cluster.job"
LOOPBACK: Final = "127.0.0.1"
SIGNS_OF_LIFE: Final = 4  # within the time of silence after which a job counts as frozen
POOL_DEATH_TIMEOUT_S: Final = 30  # a worker of a pool that finds no scheduler ends its job: the flow has gone meanwhile
POOL_FAILURES: Final = 2  # workers that a part may lose; what waits at a worker that dies counts as well
WATCHER_LOG: Final = "watcher"
WATCHER_NOTICE_S: Final = 120  # from the signal to the end of the job: leaving takes seconds
WATCHER_PATIENCE_S: Final = 86_400  # with a node that has not the files of the run
# sbatch hands on its whole environment, which Slurm may write down: what opens servers and databases has no use there.
SECRETS: Final = (
    *("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_KEY", "PGPASSWORD"),
    *(f"PREFECT_{of}_DATABASE_{name}" for of in ("SERVER", "API") for name in ("CONNECTION_URL", "PASSWORD")),
)
# `module` is a shell function of login shells; what defines it in others, by environment-modules and Lmod.
_MODULE_SYSTEMS: Final = (
    *("$MODULESHOME/init/bash", "$LMOD_PKG/init/bash", "/etc/profile.d/modules.sh", "/etc/profile.d/lmod.sh"),
    *("/etc/profile.d/z00_lmod.sh", "/usr/share/modules/init/bash", "/usr/share/lmod/lmod/init/bash"),
)
# A command of the prologue that fails ends the job; one within a file that it reads, or a condition, does not.
_ON_FAILURE: Final = (
    """trap '[ "${#BASH_SOURCE[@]}" -gt 1 ] || { echo "prologue: \\`$(sed -n "${LINENO}p" "$0")\\` failed on" """
    """"$(uname -n); correct it, or let the line end with || true where that is no harm" >&2; exit 1; }' ERR"""
)
_EXCLUSION: Final = re.compile(r"(?:^|\s)(?:--exclude[=\s]|-x)\s*(\S+)")


def require_one_word(log_directory: Path) -> None:
    """Refuse an output directory that would not be one word of a job's script.

    dask-jobqueue writes the path without quotes, and Slurm then refuses the job for an "invalid directive".

    Raises:
        UserError: naming the directory.
    """
    if re.search(r"[\s%\"'\\$#&;|<>()`*?]", str(log_directory)):
        raise UserError(
            f"--out: jobs cannot write into {str(log_directory)!r}: choose a path without spaces, quotes, % and "
            "other characters that mean something to a shell"
        )


_STAGE_FOLDER: Final = re.compile(r"(?P<stage>[a-z][a-z0-9_]*)-(?P<scale>.+)-(?P<seed>seed\d+)-[0-9a-f]{8}")


def job_name(directory: Path) -> str:
    """Name the job of a run directory; the same directory always gets the same name, another one never does.

    `--dependency=singleton` goes by this name, so two jobs for one directory never run side by side.
    """
    return job_names(directory)[0]


def job_names(directory: Path) -> tuple[str, ...]:
    """Return the names that jobs of a run directory may have: the first by its real path, for jobs of today.

    Of a stage that is `autoencoder-seed0-large-97c3a0ae`: what tells jobs apart in `squeue` comes first, and eight
    digits of the path last. The others are what kdgat has called jobs before.

    Raises:
        OSError: if the path cannot be looked at now.
    """
    try:
        real = os.path.realpath(directory, strict=True)
    except FileNotFoundError:
        real = os.path.realpath(directory)
    digests = {path: hashlib.sha256(os.fsencode(path)).hexdigest()[:8] for path in (real, str(directory.absolute()))}
    short = _STAGE_FOLDER.sub(r"\g<stage>-\g<seed>-\g<scale>", Path(real).name)
    return (
        f"{short}-{digests[real]}",
        *(f"kdgat-{Path(path).name}-{digest}" for path, digest in digests.items()),
    )


def is_job_of(status: JobStatus, directory: Path, log_directory: Path) -> bool:
    """Tell whether a job, of which Slurm was asked by its number, is one of a run directory, whatever that is called.

    A copy of the directory has the same numbers in it: another path counts where the job prints into the same folder.
    """
    names = job_names(directory)
    if status.name in names:
        return True
    if status.name.rpartition("-")[0] not in {name.rpartition("-")[0] for name in names} or not status.output:
        return False
    try:
        return Path(status.output).parent.samefile(log_directory)
    except OSError:  # whose it is, what it writes tells
        return False


def cluster_arguments(
    site: Site,
    resources: Resources,
    directory: Path,
    log_directory: Path,
    excluded_nodes: Iterable[str] = (),
    binds: Iterable[Bind] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments of dask-jobqueue's `SLURMJob` for one attempt at the stage in `directory`.

    Args:
        site: what is particular about the cluster.
        resources: what the job asks for.
        directory: run directory of the stage.
        log_directory: on a filesystem that all nodes share; takes the output of the job, and says where whoever watches
            it listens.
        excluded_nodes: where the job must not run.
        binds: what the stage sees of the machine inside a container image.
        environment: of the stage; with the state of the image's file that was checked: a job that finds another ends.

    Raises:
        UserError: if the name of the log directory cannot stand in a job's script.
        UserError: if something cannot be bound into the image.
    """
    environment = environment or {}
    arguments = _job_arguments(site, resources, directory, log_directory, binds, environment)
    return {
        **arguments,
        "job_name": job_name(directory),
        "worker_command": JOB_MODULE,
        "worker_extra_args": _job_options(site, directory.absolute(), log_directory.absolute(), environment),
        "job_script_prologue": [*arguments["job_script_prologue"], _end_of_prologue(directory)],
        "job_extra_directives": _directives(site, resources, excluded_nodes, "--dependency=singleton"),
    }


def pool_arguments(
    site: Site,
    resources: Resources,
    directory: Path,
    log_directory: Path,
    binds: Iterable[Bind],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return the keyword arguments of a `SLURMCluster` whose jobs make parts of the stage in `directory`.

    Any number of them run side by side, none owns the stage, and one that is lost is replaced: another job makes its
    part. Arguments and errors as of `cluster_arguments`.
    """
    arguments = _job_arguments(site, resources, directory, log_directory, binds, environment)
    # After dask-jobqueue's own, the last one counts: a part may use all cores, two must not share them.
    words = ["--nthreads", "1", "--dashboard-address", NO_DASHBOARD]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return {
        **arguments,
        "job_name": pool_name(directory),
        "nanny": False,  # a job that dies is replaced as a whole
        "death_timeout": POOL_DEATH_TIMEOUT_S,
        "shared_temp_directory": str(log_directory),  # of the key for the connection
        "worker_extra_args": [*words, *(["--host", LOOPBACK] if site.interface is None else [])],
        "job_script_prologue": [*arguments["job_script_prologue"], *exports],
        "job_extra_directives": _directives(site, resources, ()),
        "scheduler_options": {**scheduler_options(site), "allowed_failures": POOL_FAILURES},
    }


def watcher_name(out: Path) -> str:
    """Name the jobs that watch the run in an output directory; no two runs share a name."""
    return f"watcher-{job_name(out)}"


def watcher_names(out: Path) -> tuple[str, ...]:
    """Return the names that such jobs may have: see `job_names`."""
    return tuple(f"watcher-{name}" for name in job_names(out))


def watcher_script(site: Site, out: Path, log_directory: Path, folder: Path, command: Iterable[str]) -> str:
    """Return the script of the job that watches the run in `out` by a command, in the environment that submits it.

    Slurm sends the first signal to the script's process some time before the end of the job, so that it can leave. The
    log directory takes what the job prints, on a filesystem that all nodes share; the command runs in `folder`. A node
    that has not got them yet, or not Python, is borne with: Slurm itself would end the job for an output that it cannot
    open, and run it elsewhere for want of the folder.

    Raises:
        UserError: if the name of the log directory cannot stand in a job's script.
    """
    require_one_word(log_directory)
    resources = watcher_resources(site)
    notice_s = min(WATCHER_NOTICE_S, resources.walltime_s // 3)
    options = {"account": site.account, "partition": site.partition}
    directives = [
        f"--job-name={watcher_name(out)}",
        "--chdir=/",
        "--output=/dev/null",
        f"--time={format_walltime(resources.walltime_s)}",
        f"--mem={resources.memory_mib}M",
        f"--ntasks=1 --cpus-per-task={resources.cores}",
        f"--signal=B:TERM@{notice_s}",
        "--dependency=singleton",  # one of this name at a time
        *(f"--{name}={value}" for name, value in options.items() if value is not None),
        *_directives(site, resources, ()),
    ]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"#SBATCH {directive}" for directive in directives),
            f"umask {site.umask:04o}",
            f"unset {' '.join((*PYTHON_OPTIONS, *SECRETS))}",
            f"log={log_directory / WATCHER_LOG}-$SLURM_JOB_ID.out",
            "SECONDS=0 pause=1",
            # Whoever stops the run: that can be noted nowhere, and the next one would begin.
            f"trap {shlex.quote(f'exec scancel --name={shlex.quote(watcher_name(out))}')} INT",
            f"until cd {shlex.quote(str(folder))} && [ -x {shlex.quote(sys.executable)} ] && : >>$log; do",
            f"    [ $SECONDS -lt {WATCHER_PATIENCE_S} ] || exit 1",
            "    sleep $pause",
            "    pause=$((pause < 60 ? 2 * pause : pause))",
            "done",
            "exec >>$log 2>&1",
            '[ $pause = 1 ] || echo "this node had not the files of the run for $SECONDS s"',
            f"exec {shlex.join(command)}",
            "",
        ]
    )


def pool_name(directory: Path) -> str:
    """Name the jobs of a pool for a run directory; no attempt at the stage has this name."""
    return f"pool-{job_name(directory)}"


def _job_arguments(
    site: Site,
    resources: Resources,
    directory: Path,
    log_directory: Path,
    binds: Iterable[Bind],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return what every job on a site has that works for the stage in `directory`."""
    require_one_word(log_directory)
    arguments: dict[str, Any] = {
        "queue": site.partition_of(resources.gpus),
        "account": site.account,
        "cores": resources.cores,
        "job_cpu": resources.cores,
        "processes": 1,
        "memory": f"{resources.memory_mib}MiB",
        "job_mem": f"{resources.memory_mib}M",
        "walltime": format_walltime(resources.walltime_s),
        # `exec`, because Slurm sends SIGTERM to its direct child alone: that must be the job's process, not a shell.
        "python": "exec "
        + container_command(site, sys.executable, resources.gpus > 0, binds, directory.absolute())
        + " -P",
        "local_directory": local_directory(site),  # Dask makes a folder per worker there, and clears those of dead ones
        "log_directory": str(log_directory),
        "job_script_prologue": [
            f"umask {site.umask:04o}",
            f"unset {' '.join(PYTHON_OPTIONS)} PGPASSWORD ${{!PREFECT_*}} ${{!DASK_*}}",
            *clearing_lines(site),
            *_scratch(site),
            *_modules(site),
            *container_lines(site, environment.get(IMAGE_STAMP_VARIABLE, "")),
            *staging_lines(site),
        ],
        # Said here, because Dask would take them from a file in the user's home otherwise.
        "job_directives_skip": [],
        "shebang": "#!/usr/bin/env bash",
    }
    if site.interface is not None:
        arguments["interface"] = site.interface
    return arguments


def scheduler_options(site: Site) -> dict[str, Any]:
    """Return the keyword arguments of the Dask scheduler to which the jobs of a run report."""
    place = {"host": LOOPBACK} if site.interface is None else {"interface": site.interface}  # none: all on one machine
    return {"dashboard": False, "dashboard_address": NO_DASHBOARD, **place}


def _job_options(site: Site, directory: Path, log_directory: Path, environment: Mapping[str, str]) -> list[str]:
    """Return what `kdgat.cluster.job` is told, as words of a shell."""
    options: dict[str, Iterable[str]] = {
        "directory": [str(directory)],
        "connection": [str(log_directory / CONNECTION_FILE)],
        "stall-timeout-s": [f"{site.stall_timeout_s:g}"],
        "alive-interval-s": [f"{site.silence_timeout_s / SIGNS_OF_LIFE:g}"],
        "on-lost-flow": [site.on_lost_flow],
        "environment": [f"{name}={value}" for name, value in environment.items()],
        "epilogue": site.epilogue,
    }
    if site.interface is None:
        options["host"] = [LOOPBACK]
    return [f"--{name}={shlex.quote(value)}" for name, values in options.items() for value in values]


def _end_of_prologue(directory: Path) -> str:
    """Let whoever watches know that what follows are kdgat's own imports."""
    return f': > {shlex.quote(str(directory.absolute() / ALIVE.format("")))}"$SLURM_JOB_ID"'


def _gpu_directive(site: Site, resources: Resources) -> str:
    if site.gpu_share is not None:  # Slurm knows no type of shards: a partition, or a constraint, says it
        return f"--gres={site.gpu_request}:{site.gpu_share}"
    kind = f"{resources.gpu_type}:" if resources.gpu_type else ""
    return f"{'--gres=gpu:' if site.gpu_request == 'gres' else '--gpus-per-node='}{kind}{resources.gpus}"


def _directives(site: Site, resources: Resources, excluded_nodes: Iterable[str], *own: str) -> list[str]:
    lines = ["--no-requeue", *own]  # Slurm must not start a job again behind the flow's back
    if not any("--propagate" in directive for directive in site.directives):
        lines.append("--propagate=NONE")  # limits of a login node, as of processor time, are not meant for jobs
    lines.append(f"--export=ALL,{','.join(f'{name}=' for name in SECRETS)}")
    if site.qos is not None:
        lines.append(f"--qos={site.qos}")
    if resources.gpus:
        lines.append(_gpu_directive(site, resources))
    # Of several exclusions sbatch heeds the last one alone: the site's and ours become one.
    nodes = [*excluded_nodes]
    for directive in site.directives:
        # A list, or n[1-3]: both may stand within a longer list.
        nodes += [found.strip("\"'") for found in _EXCLUSION.findall(directive)]
        if rest := _EXCLUSION.sub("", directive).strip():
            lines.append(rest)
    return [*lines, *_exclusion(nodes)]


def _scratch(site: Site) -> list[str]:
    """Let prologue and epilogue name the site's scratch as $KDGAT_SCRATCH."""
    if site.scratch is None:
        return []
    return [f"export {SCRATCH_VARIABLE}={in_double_quotes(site.scratch)}"]


def _modules(site: Site) -> list[str]:
    """Load modules before the prologue, or after it where it is what defines `module`; a failure ends the job."""
    prologue = [_ON_FAILURE, *site.prologue, "trap - ERR"] if site.prologue else []
    if not site.modules:
        return prologue
    systems = " ".join(f'"{path}"' for path in _MODULE_SYSTEMS)
    loads = [
        f"module load {module} || " + ending(f"module {module} cannot be loaded", "correct modules of the site")
        for module in site.modules
    ]
    known = "command -v module >/dev/null"
    return [
        f'for file in {systems}; do {known} && break; [ ! -r "$file" ] || . "$file"; done',
        f"load_modules() {{ load_modules() {{ :; }}; {'; '.join(loads)}; }}",
        f"! {known} || load_modules",
        *prologue,
        "load_modules",  # if that was not yet done
    ]


def _exclusion(nodes: Iterable[str]) -> list[str]:
    names = ",".join(sorted(set(nodes)))
    return [f"--exclude={shlex.quote(names)}"] if names else []
