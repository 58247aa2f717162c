"""`kdgat doctor`: what a run needs, whether it is here, and how to get what is missing."""

import base64
import json
import os
import platform
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import typer

from kdgat.base import UserError
from kdgat.cli.extras import declared_extras
from kdgat.cli.options import SiteName
from kdgat.cluster import LOCAL
from kdgat.cluster.filesystem import Check, State, check_filesystem
from kdgat.stage import package_version

app = typer.Typer()
checks = typer.Typer(invoke_without_command=True)
app.add_typer(checks, name="doctor")

COMMAND_TIMEOUT_S: Final = 30.0
SERVER_TIMEOUT_S: Final = 5.0
ALL_WELL: Final = "Nothing is wrong."
MISSING: Final = " What is missing is needed only for what stands beside it; the rest works without."
WARNED: Final = " With a warning, runs work as it says beside it."
LABELS: Final = {"good": "ok", "missing": "missing", "warning": "warning", "wrong": "WRONG"}


@checks.callback()
def doctor(
    context: typer.Context,
    site: SiteName = "local",
    out: Annotated[Path, typer.Option("--out", help="Folder that is to hold runs: its filesystem is tried.")] = Path(),
    image: Annotated[Path | None, typer.Option("--image", help="Compare this image too (default: the site's).")] = None,
    wait_minutes: Annotated[
        float,
        typer.Option("--wait", metavar="MINUTES", min=0, help="How long the job of --site may be queued; 0: none."),
    ] = 10.0,
    gpus: Annotated[
        int, typer.Option("--gpus", metavar="N", min=0, help="GPUs of that job; what it meets is kept for later runs.")
    ] = 0,
    is_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Check Python, packages, GPU, Slurm, Apptainer, Prefect and filesystem; exit status 1 if something is wrong.

    With the --site of a cluster, a small job tries one of its nodes: filesystem, packages, locks, clocks, connection.
    """
    if context.invoked_subcommand:
        for option in context.command.params:
            if (source := context.get_parameter_source(option.name or "")) and source.name == "COMMANDLINE":
                text = "gpu does not see it: give it behind gpu, if gpu has it"
                raise typer.BadParameter(text, param_hint=f"'{option.opts[0]}'")
        return
    if gpus and site == LOCAL:
        raise UserError(f"--gpus {gpus}: they are of a job that tries a node; name its cluster (--site NAME)")
    made: list[Check] = []
    try:
        for check in examine(site, out, image, wait_minutes, gpus):
            made.append(check)
    except KeyboardInterrupt:
        made.append(Check("nodes", "missing", "not tried: stopped"))
        raise
    finally:
        if is_json:
            typer.echo(json.dumps([check._asdict() for check in made], indent=2))
        else:
            _print(made)
    if any(check.state == "wrong" for check in made):
        raise typer.Exit(1)


@checks.command()
def gpu(
    out: Annotated[Path, typer.Option("--out", help="Folder for gpu_check.json and gpu_check.md.")] = Path("gpu_check"),
    device: Annotated[Literal["cuda", "cpu"], typer.Option("--device", help="cpu: try the check itself.")] = "cuda",
    parts: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="Only this part: card, numbers, repeats, speed, survival, sharing, rapids; several times for more.",
        ),
    ] = None,
) -> None:
    """Compare numbers with the processor, repeat, time, kill and resume, in ten minutes; exit status 1 after an error.

    Both files are written anew after each part, so what is cut off is of use, too. Without the command line, the
    training dependencies are enough: `python -m kdgat.gpu`.
    """
    from kdgat.gpu.check import PARTS, check_gpu

    for name in parts or ():
        if name not in PARTS:
            raise UserError(f"--part {name}: there are {', '.join(PARTS)}")
    report = check_gpu(out, device, parts or tuple(PARTS), say=typer.echo)
    if any(part["error"] for part in report["parts"].values()):
        raise typer.Exit(1)


def examine(
    site: str, out: Path, image: Path | None = None, wait_minutes: float = 0.0, gpus: int = 0
) -> Iterator[Check]:
    """Yield all checks, quick ones first; none of them changes anything but files of its own below `out`."""
    yield check_python()
    yield from check_packages()
    yield from check_gpu()
    of_site = [*check_site(site), check_scheduler(site)]
    yield from of_site
    yield from check_apptainer(site, image)
    yield check_server()
    yield from check_filesystem(out)
    if site != LOCAL:
        yield from check_nodes(site, out, wait_minutes, any(check.state == "wrong" for check in of_site), gpus)


def check_python() -> Check:
    """Compare this Python with what the package says it runs with."""
    from packaging.specifiers import SpecifierSet

    wanted, version = metadata.metadata("kdgat")["Requires-Python"], platform.python_version()
    found = f"{version} ({sys.executable})"
    if SpecifierSet(wanted).contains(version):
        return Check("Python", "good", found)
    return Check("Python", "wrong", found, f"kdgat needs Python {wanted}: remove .venv, and make install finds one")


def check_packages() -> Iterator[Check]:
    """Compare what is installed with what the package asks for, a line for each of its parts."""
    for extra, requirements in declared_extras().items():
        name = f"packages: {extra or 'training'}"
        versions = {one.name: package_version(one.name) for one in requirements}
        absent = [one.name for one in requirements if versions[one.name] is None]
        others = [
            f"{one.name} {versions[one.name]} is not {one.specifier}"
            for one in requirements
            if versions[one.name] is not None and not one.specifier.contains(str(versions[one.name]), prereleases=True)
        ]
        fix = f"pip install --constraint constraints.txt 'kdgat[{extra}]'" if extra else "pip install kdgat"
        if (
            extra == "loggers"
        ):  # MLflow asks for another importlib_metadata than the constraints have, and works with it
            fix = "make loggers in a checkout, or pip install tensorboard, wandb or mlflow-skinny, whichever is used"
        if others:
            yield Check(name, "wrong", "; ".join(others), fix)
        elif absent:
            yield Check(name, "missing" if extra else "wrong", f"not installed: {', '.join(absent)}", fix)
        else:
            shown = ", ".join(f"{one} {version}" for one, version in list(versions.items())[:3])
            yield Check(name, "good", shown + (", ..." if len(versions) > 3 else ""))
    from flows.compatibility import find_conflicts

    for conflict in find_conflicts():
        yield Check("Prefect", "wrong", conflict.text, conflict.fix)


def check_gpu() -> Iterator[Check]:
    """Try CUDA and what of RAPIDS is installed: a line for each, and one that names the rest."""
    from kdgat.can.capabilities import NOT_INSTALLED, find_capabilities

    cuda, *rapids = find_capabilities()
    built_for = "" if cuda.version is None else f", CUDA {cuda.version}"
    fix = "" if cuda.usable else "stages run on the processor; on a GPU node, install torch for its CUDA"
    yield Check("GPU", "good" if cuda.usable else "missing", f"{cuda.detail}{built_for}", fix)
    for one in rapids:
        if one.detail != NOT_INSTALLED:
            found = f"{one.version or 'version unknown'}, {one.detail}"
            yield Check(f"RAPIDS: {one.name}", "good" if one.usable else "missing", found)
    if absent := [one.name for one in rapids if one.detail == NOT_INSTALLED]:
        fix = "stages use torch and polars in their place; the GPU image has most of them: kdgat image build gpu"
        yield Check("RAPIDS", "missing", f"{NOT_INSTALLED}: {', '.join(absent)}", fix)


def check_site(name: str) -> Iterator[Check]:
    """Read the site's file, and say what would keep jobs from being submitted from here."""
    from kdgat.cluster import SiteError, load_site
    from kdgat.cluster.site import require_usable

    if name == LOCAL:
        return
    try:
        site = load_site(name)
        require_usable(site)
    except SiteError as error:
        yield Check(f"site {name}", "wrong", str(error), "kdgat site list shows the sites there are")
        return
    account = site.account or "your default account"
    yield Check(f"site {name}", "good", f"{site.scheduler}, charged to {account}")


def check_scheduler(site: str = LOCAL) -> Check:
    """Ask Slurm's controller for a sign of life, without which a run on this machine can be."""
    from kdgat.cluster.slurm import missing_configuration

    if shutil.which("sbatch") is None:
        return Check("Slurm", "missing", "no sbatch in PATH", "stages run on this machine; jobs need a login node")
    state: State = "missing" if site == LOCAL else "wrong"
    if missing := missing_configuration():
        fix = "stages run on this machine; for jobs, use a login node, or export SLURM_CONF=/path/of/slurm.conf"
        return Check("Slurm", state, missing, fix)
    done = _ask("sbatch", "--version")
    ping = _ask("scontrol", "ping")
    if " UP" in ping:
        return Check("Slurm", "good", done)
    fix = "ask again later, or look at SLURM_CONF; jobs that run go on without the controller"
    return Check("Slurm", state, f"{done}: {ping or 'the controller does not answer'}", fix)


def check_apptainer(site: str, image: Path | None) -> Iterator[Check]:
    """Find Apptainer, and compare the image that is to run stages with this kdgat."""
    from kdgat.cluster import SiteError, load_site
    from kdgat.container import ImageError
    from kdgat.container.agreement import check_agreement, find_image
    from kdgat.container.apptainer import INSTALLER, find_apptainer

    try:
        program = find_apptainer()
        yield Check("Apptainer", "good", f"{_ask(str(program), '--version')} ({program})")
    except ImageError as error:
        state: State = "missing" if image is None else "wrong"
        yield Check("Apptainer", state, str(error).partition(":")[0], f"on Debian, as root: bash {INSTALLER}")
        return
    try:
        named = None if site == LOCAL else load_site(site).image
    except SiteError:
        named = None  # said by the check of the site
    path = image or (find_image(named) if named else None)
    if path is None:
        if named:
            yield Check("image", "missing", f"{named} cannot be seen from here", "jobs find it on their node, or fail")
        return
    try:
        check_agreement(path)
        yield Check("image", "good", f"{path} has this kdgat and its packages")
    except ImageError as error:
        text, _, fix = str(error).partition(" Fix: ")
        yield Check("image", "wrong", text, fix or "make it anew: kdgat image build cpu, or gpu")


def check_server() -> Check:
    """Ask the Prefect server that commands would use."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return Check("Prefect server", "good", "none configured: each command starts its own")
    from flows.embedded.loopback import is_here, may_be_told

    auth = os.environ.get("PREFECT_API_AUTH_STRING", "")
    fix = "make deploy starts it; or unset PREFECT_API_URL, and each command starts its own"
    try:
        if auth and not may_be_told(url):  # whoever listens there would learn the string
            return Check("Prefect server", "wrong", f"{url} does not answer: no process of yours listens there", fix)
        request = urllib.request.Request(f"{url.rstrip('/')}/admin/version")
        if auth:  # not to where a redirection leads
            key = base64.b64encode(auth.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {key}")
        # Not to this machine by way of a proxy, whichever the environment names.
        proxies: dict[str, str] | None = {} if is_here(urlsplit(url).hostname) else None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
        with opener.open(request, timeout=SERVER_TIMEOUT_S) as answer:
            theirs = str(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        if error.code == 401:
            fix = "read its PREFECT_API_AUTH_STRING: set -a; . $KDGAT_HOME/installation.env; set +a"
        return Check("Prefect server", "wrong", f"{url} answers {error.code} {error.reason}", fix)
    except (OSError, ValueError) as error:
        return Check("Prefect server", "wrong", f"{url} does not answer: {error}", fix)
    ours = package_version("prefect")
    if theirs != ours:
        return Check("Prefect server", "wrong", f"{url} is Prefect {theirs}, this is {ours}", "run both from one .venv")
    return Check("Prefect server", "good", f"{url}, Prefect {theirs}")


def check_nodes(site: str, out: Path, wait_minutes: float, is_unusable: bool, gpus: int = 0) -> Iterator[Check]:
    """Try a node of the site by a job, which may wait in the queue for so long, and asks for so many GPUs."""
    from kdgat.cli.options import require_job_library
    from kdgat.cluster import load_site

    if is_unusable or wait_minutes == 0:
        fix = "correct what is wrong with the site first" if is_unusable else "--wait 10 lets one wait for ten minutes"
        yield Check("nodes", "missing", "not tried: no job was submitted", fix)
        return
    found = load_site(site)
    if found.scheduler == LOCAL:
        return
    require_job_library()
    from flows.site_probe import try_nodes

    yield from try_nodes(found, out, 60.0 * wait_minutes, lambda text: typer.echo(text, err=True), gpus)


def _ask(*command: str) -> str:
    """Return the first line of what a program prints; its own words where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else ""


def _print(checks: list[Check]) -> None:
    from rich.markup import escape

    from kdgat.cli.tables import output_console, plain_table

    table = plain_table(("what", "", "found, and what to do"), whole=("",))
    for check in checks:
        text = escape(check.found)
        if check.fix:
            text += f"\n-> {escape(check.fix)}"
        table.add_row(escape(check.name), LABELS[check.state], text)
    console = output_console()
    console.print(table)
    states = [check.state for check in checks]
    wrong, others = states.count("wrong"), WARNED * ("warning" in states) + MISSING * ("missing" in states)
    console.print(f"{wrong} wrong" if wrong else ALL_WELL + others)
