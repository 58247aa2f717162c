"""The job that runs one attempt: what dask-jobqueue's SLURMCluster is given, as a pure function."""

import hashlib
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kdgat.cluster.container import (
    clearing_lines,
    container_command,
    container_lines,
    in_double_quotes,
    local_directory,
)
from kdgat.cluster.resources import Resources, format_walltime
from kdgat.cluster.site import Site
from kdgat.container.binds import Bind

SCRATCH_VARIABLE: Final = "KDGAT_SCRATCH"
PRELOAD: Final = "kdgat.cluster.worker"
LOOPBACK: Final = "127.0.0.1"
NO_DASHBOARD: Final = "127.0.0.1:0"  # Dask serves its metrics somewhere in any case: where nobody else gets at them
DEATH_TIMEOUT_S: Final = 30  # a worker that finds no scheduler ends its job: the flow has died meanwhile
SINGLETON: Final = "--dependency=singleton"
POOL_FAILURES: Final = 2  # workers that a part may lose; what waits at a worker that dies counts as well
_EXCLUSION: Final = re.compile(r"(?:^|\s)(?:--exclude[=\s]|-x)\s*(\S+)")


class JobScriptError(ValueError):
    """A job's script cannot say what it has to; the text names key, value and fix."""


def require_one_word(log_directory: Path) -> None:
    """Refuse an output directory that would not be one word of a job's script.

    dask-jobqueue writes the path without quotes, and Slurm then refuses the job for an "invalid directive".

    Raises:
        JobScriptError: naming the directory.
    """
    if re.search(r"[\s%\"'\\$#&;|<>()`*?]", str(log_directory)):
        raise JobScriptError(
            f"--out: jobs cannot write into {str(log_directory)!r}: choose a path without spaces, quotes, % and "
            "other characters that mean something to a shell"
        )


def job_name(directory: Path) -> str:
    """Name the job of a run directory; the same directory always gets the same name, another one never does.

    `--dependency=singleton` goes by this name, so two jobs for one directory never run side by side.
    """
    digest = hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:8]
    return f"kdgat-{directory.name}-{digest}"


def cluster_arguments(
    site: Site,
    resources: Resources,
    directory: Path,
    log_directory: Path,
    excluded_nodes: Iterable[str] = (),
    binds: Iterable[Bind] = (),
    image_stamp: str = "",
) -> dict[str, Any]:
    """Return the keyword arguments of `SLURMCluster` for one attempt at the stage in `directory`.

    Args:
        site: what is particular about the cluster.
        resources: what the job asks for.
        directory: run directory of the stage.
        log_directory: on a filesystem that all nodes share; takes the output of the job and its TLS key.
        excluded_nodes: where the job must not run.
        binds: what the stage sees of the machine inside a container image.
        image_stamp: the state of the image's file that was checked; a job that finds another one ends.

    Raises:
        JobScriptError: if the name of the log directory cannot stand in a job's script.
        BindError: if something cannot be bound into the image.
    """
    require_one_word(log_directory)
    arguments: dict[str, Any] = {
        "job_name": job_name(directory),
        "queue": (site.gpu_partition if resources.gpus else None) or site.partition,
        "account": site.account,
        "cores": resources.cores,
        "processes": 1,
        "memory": f"{resources.memory_mib}MiB",
        "job_mem": f"{resources.memory_mib}M",
        "walltime": format_walltime(resources.walltime_s),
        "nanny": False,  # a nanny kills its worker within milliseconds of a SIGTERM: no time for a checkpoint
        # `exec`, because Slurm sends SIGTERM to its direct child alone: that must be the worker, not a shell.
        "python": "exec " + container_command(site, sys.executable, resources.gpus > 0, binds, directory.absolute()),
        "worker_extra_args": ["--preload", PRELOAD, "--dashboard-address", NO_DASHBOARD],
        "death_timeout": DEATH_TIMEOUT_S,
        "local_directory": local_directory(site),  # Dask makes a folder per worker there, and clears those of dead ones
        "log_directory": str(log_directory),
        "shared_temp_directory": str(log_directory),
        "job_script_prologue": [
            *clearing_lines(site),
            *_scratch(site),
            *(f"module load {module}" for module in site.modules),
            *site.prologue,
            *container_lines(site, image_stamp),
        ],
        "job_extra_directives": _directives(site, resources, excluded_nodes),
        # Said here, because Dask would take them from a file in the user's home otherwise.
        "job_directives_skip": [],
        "shebang": "#!/usr/bin/env bash",
    }
    options: dict[str, Any] = {"dashboard": False, "dashboard_address": NO_DASHBOARD}
    if site.interface is None:  # everything on one machine
        options["host"] = LOOPBACK
        arguments["worker_extra_args"] += ["--host", LOOPBACK]
    else:
        arguments["interface"] = site.interface
    arguments["scheduler_options"] = options
    return arguments


def pool_arguments(
    site: Site,
    resources: Resources,
    directory: Path,
    log_directory: Path,
    binds: Iterable[Bind] = (),
    image_stamp: str = "",
) -> dict[str, Any]:
    """Return the keyword arguments of a `SLURMCluster` whose jobs make parts of the stage in `directory`.

    Any number of them run side by side, none owns the stage, and one that is lost is replaced: another job makes its
    part. Arguments and errors as of `cluster_arguments`.
    """
    arguments = cluster_arguments(site, resources, directory, log_directory, (), binds, image_stamp)
    directives = [line for line in arguments["job_extra_directives"] if line != SINGLETON]
    preload = arguments["worker_extra_args"].index("--preload")
    del arguments["worker_extra_args"][preload : preload + 2]  # which would take a SIGTERM for "save"
    return {
        **arguments,
        "job_name": pool_name(directory),
        "job_extra_directives": directives,
        # After dask-jobqueue's own, the last one counts: a part may use all cores, two must not share them.
        "worker_extra_args": [*arguments["worker_extra_args"], "--nthreads", "1"],
        "scheduler_options": {**arguments["scheduler_options"], "allowed_failures": POOL_FAILURES},
    }


def pool_name(directory: Path) -> str:
    """Name the jobs of a pool for a run directory; no attempt at the stage has this name."""
    return f"pool-{job_name(directory)}"


def _directives(site: Site, resources: Resources, excluded_nodes: Iterable[str]) -> list[str]:
    lines = ["--no-requeue", SINGLETON]  # Slurm must not start a job again behind the flow's back
    if site.qos is not None:
        lines.append(f"--qos={site.qos}")
    if resources.gpus:
        kind = f"{resources.gpu_type}:" if resources.gpu_type else ""
        is_gres = site.gpu_request == "gres"
        lines.append(f"--gres=gpu:{kind}{resources.gpus}" if is_gres else f"--gpus-per-node={kind}{resources.gpus}")
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


def _exclusion(nodes: Iterable[str]) -> list[str]:
    names = ",".join(sorted(set(nodes)))
    return [f"--exclude={shlex.quote(names)}"] if names else []
