"""`kdgat train ... --detach`: the command goes on as a job of its own, and the terminal is free."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flows.embedded.loopback import LOOPBACK
from flows.embedded.server import API_URL_VARIABLE, configured_api_url
from flows.watcher import SCRIPT, STATE
from kdgat.base import UserError, write_bytes_atomically
from kdgat.cluster import Site, Slurm
from kdgat.cluster.scheduler import describe_watching
from kdgat.cluster.script import WATCHER_LOG, watcher_name, watcher_names, watcher_script
from kdgat.cluster.site import PERSONAL_DIRECTIVES, PERSONAL_KEYS
from kdgat.run import OutputDirectory
from kdgat.run.directory import REPLAN

COMMAND: Final = "kdgat.cli.main"
OPTION: Final = "--detach"
SECRETS: Final = ("PREFECT_API_AUTH_STRING", "PREFECT_API_KEY")  # without which an API may not let the job in


def detach(output: OutputDirectory, site: Site, words: Sequence[str]) -> str:
    """Submit a job that gives the command again and watches the run; return what a person has to know of it.

    `words` are those of the command line, without the program.

    Raises:
        UserError: if the site has no jobs, the run is watched already, or a node could not reach the Prefect API.
        RunError: if a command trains into the output directory at this moment.
        SubmissionError: if Slurm does not take the job.
    """
    if site.scheduler != "slurm":
        raise UserError(f"{OPTION}: with --site {site.name} there are no jobs: name a cluster by --site, or use tmux")
    if site.on_lost_flow == "stop":
        raise UserError(
            f"{OPTION}: on_lost_flow: stop of site {site.name} ends all jobs whenever one watcher follows another: "
            "leave it out, or give --on-lost-flow detach"
        )
    _check_api(site)
    name, slurm = watcher_name(output.path), Slurm()
    queue = slurm.queue()
    if queue is None:
        raise UserError(f"{OPTION}: squeue does not say whether a job watches this run already: try again")
    if watching := describe_watching(watcher_names(output.path), queue):
        raise UserError(f"{OPTION}: {watching}")
    python = [sys.executable, "-P", "-m"]
    # sbatch itself gets none of these: they would stand above the script.
    own = [f"{name}={value}" for name in (*PERSONAL_KEYS, *PERSONAL_DIRECTIVES) if (value := os.environ.get(name))]
    command = [*(["env", *own] if own else []), *python, "flows.watcher", str(output.path)]
    command += [*python, COMMAND, *(word for word in words if word not in (OPTION, REPLAN))]
    script, log_directory = output.slurm_path / SCRIPT, output.slurm_path
    with site.creating_files(), output.lock():
        log_directory.mkdir(parents=True, exist_ok=True)
        text = watcher_script(site, output.path, log_directory, Path.cwd(), command)
        write_bytes_atomically(script, text.encode())
        (log_directory / STATE).unlink(missing_ok=True)
    job_id = slurm.submit(script)
    return (
        f"job {job_id} watches the run, and submits itself again for as long as that takes; this terminal can go\n"
        f"  to see it:   tail -F {log_directory / f'{WATCHER_LOG}-{job_id}.out'}\n"
        f"  to leave it: scancel --name={name}   (the jobs of stages go on)\n"
        f"  to stop it:  scancel --batch --signal=INT --state=RUNNING --name={name}   (the jobs save and leave)"
    )


def _check_api(site: Site) -> None:
    """Refuse a Prefect API that the job could not reach, or not open."""
    url = configured_api_url()
    if url is None:
        return
    if site.interface is not None and urlsplit(url).hostname in (LOOPBACK, "localhost", "::1"):
        raise UserError(
            f"{OPTION}: a node does not reach {API_URL_VARIABLE}={url}, which is this machine's: name a server by an "
            "address that nodes have, or leave it out (`prefect config unset`, or `unset`), and the job starts its own"
        )
    if found := [name for name in SECRETS if os.environ.get(name)]:
        raise UserError(
            f"{OPTION}: {found[0]} stands in the environment, and jobs get no secrets: "
            f"`prefect config set {found[0]}=...` keeps it in your profile, which the job reads"
        )
