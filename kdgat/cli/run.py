"""`kdgat run DEPLOYMENT`: start a run of a deployment, watch it and print what it came to, as `kdgat train` does."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kdgat.cli import options
from kdgat.run.end import EXIT_STOPPED

if TYPE_CHECKING:
    from flows.deployment.following import Following
    from flows.deployment.server_api import ServerApi
    from flows.deployment.submission import Deployment
    from kdgat.run.end import RunEnd

WAIT: Final = "waiting for the worker"
WAIT_STAGE: Final = "waiting for its first stage"

app = typer.Typer(no_args_is_help=False)


class RunRequestError(ValueError):
    """What is asked for contradicts itself, or there is no such run; the text says what to do."""


@app.command("run")
def run(
    name: Annotated[
        str | None, typer.Argument(metavar="DEPLOYMENT", help="As can-ids/hcrl-sa; without one, list them all.")
    ] = None,
    override: options.Overrides = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--param", metavar="NAME=VALUE", help="Set one parameter of the flow, as in -p preset=full."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "--no-wait", help="Start the run, print its id, and do not watch it.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Watch the run of this deployment that goes on; start none.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the run of this deployment that goes on: its stages save.")
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a deployment of `make deploy`'s server, watch it, and print its scores, or why it failed.

    Everything is checked before the run is made. Ctrl-C cancels the run: its stages write their checkpoints, and the
    same command goes on from there. After SIGTERM, or a lost terminal, it goes on alone.
    """
    from flows.deployment import submission
    from flows.deployment.following import began_at
    from flows.deployment.server_api import ServerApi, find_server

    is_new = not (follow or cancel)
    if not is_new and (override or parameter or detach):
        raise RunRequestError("--follow and --cancel start no run: leave -O, -p and --detach out, or them")
    if name is None and (not is_new or override or parameter or detach):
        raise RunRequestError("name a deployment, as can-ids/hcrl-sa: `kdgat run` lists them")
    api = ServerApi(find_server())
    if name is None:
        _list(api)
        return
    deployment = submission.find_deployment(api, name)
    if not is_new:
        found = _active_run(api, deployment)
        if cancel:
            submission.cancel(api, found["id"])
    else:
        given = submission.read_parameters(deployment, parameter or (), override or ())
        submission.check(deployment, given)
        submission.require_free(api, deployment, given)
        submission.require_worker(api, deployment)
        found = submission.submit(api, deployment, given)
    if detach:
        print(found["id"])
        print(f"{_page(api, found)}\n`kdgat run {deployment.name} --follow` watches it", file=sys.stderr)
        return
    try:
        status = _watch(api, deployment, found, began_at(found), is_ours=is_new, quiet=quiet)
    except KeyboardInterrupt:  # before it was watched, or while results were printed
        print(f"\nCtrl-C: the run is left to itself; `kdgat run {name} --cancel` stops it", file=sys.stderr)
        status = EXIT_STOPPED
    raise typer.Exit(0 if cancel and status == EXIT_STOPPED else status)


def _list(api: "ServerApi") -> None:
    from flows.deployment.listing import describe

    for line in describe(api.deployments()):
        typer.echo(line)


def _active_run(api: "ServerApi", deployment: "Deployment") -> dict[str, Any]:
    from flows.deployment.following import ENDED, plain_message
    from flows.deployment.submission import active_runs, waiting_runs

    own = deployment.row["id"]
    if runs := active_runs(api, [own]) or waiting_runs(api, [own]):
        return runs[0]
    ended = {"state": {"type": {"any_": list(ENDED)}}}
    before = api.flow_runs(flow_runs=ended, deployments={"id": {"any_": [own]}}, limit=1)
    last = ""
    if before:
        state = before[0]["state"]
        last = f"; its last one ended as {state['name']}: {plain_message(state['message'] or '')}"
    raise RunRequestError(f"{deployment.name}: no run goes on{last}")


def _page(api: "ServerApi", found: dict[str, Any]) -> str:
    return f"{api.address.ui}/runs/flow-run/{found['id']}"


def _watch(
    api: "ServerApi", deployment: "Deployment", found: dict[str, Any], began: float, *, is_ours: bool, quiet: bool
) -> int:
    """Watch a run to its end and print what it came to; return the exit status."""
    from rich.console import Console

    from flows.deployment.following import Following
    from flows.deployment.submission import output_of
    from kdgat.cli.display import watched
    from kdgat.run.directory import OutputDirectory

    console = Console(stderr=True)

    def tell(text: str) -> None:
        if not quiet:
            console.print(f"{time.strftime('%H:%M:%S')} {text}", markup=False, highlight=False, soft_wrap=True)

    def show(path: Path) -> None:
        is_new = is_ours and not deployment.is_night
        wait, since = (WAIT, None) if is_new else (WAIT_STAGE, began)
        display.enter_context(watched(OutputDirectory(path), console, quiet=quiet, wait=wait, since=since))

    tell(f"run of {deployment.name}: {_page(api, found)}")
    with contextlib.ExitStack() as display, _going_on(deployment):
        output = output_of(deployment, found["parameters"])
        following = Following(api, found["id"], output, is_night=deployment.is_night, show=show, tell=tell)
        end = _wait(api, deployment, following, tell, is_ours=is_ours)
    if end is None:
        return EXIT_STOPPED
    return _report(deployment, following.output, end, began, quiet=quiet)


def _wait(
    api: "ServerApi", deployment: "Deployment", following: "Following", tell: Any, *, is_ours: bool
) -> "RunEnd | None":
    """Return how the run ended; None if it is no longer watched."""
    from flows.deployment.submission import cancel

    again = f"`kdgat run {deployment.name} --follow` watches it"
    try:
        return following.wait()
    except KeyboardInterrupt:
        if not is_ours:
            print(f"\nCtrl-C: the run goes on; {again} again", file=sys.stderr)
            return None
    try:
        cancel(api, following.id)
        tell("Ctrl-C: the run is cancelled, its stages write their checkpoints; once more leaves it to that")
        return following.wait()
    except KeyboardInterrupt:
        print(f"\nCtrl-C: the run is being cancelled and saves by itself; {again}", file=sys.stderr)
        return None


@contextlib.contextmanager
def _going_on(deployment: "Deployment") -> Iterator[None]:
    """Leave the run alone at a SIGTERM and when the terminal is lost: neither is a wish to stop it."""

    def leave(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # a terminal that is gone
            name = signal.Signals(number).name
            print(f"\n{name}: the run goes on; `kdgat run {deployment.name} --follow` watches it", file=sys.stderr)
        raise SystemExit(EXIT_STOPPED)

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(deployment: "Deployment", path: Path | None, end: "RunEnd", began: float, *, quiet: bool) -> int:
    """Print scores and report, or the reason; return the exit status."""
    from kdgat.cli.flow_run import EXIT_FAILED, print_attempts, report_end
    from kdgat.cli.train import print_results
    from kdgat.family.registry import find_family
    from kdgat.run.directory import OutputDirectory

    output = None if path is None else OutputDirectory(path)
    if output is not None and output.index_path.is_file() and output.index_path.stat().st_mtime >= began - 1.0:
        if not quiet:
            print_attempts(output, began)
        if not deployment.is_night:
            family = find_family(output.read_index().family)
            return report_end(end, output, lambda done: print_results(family, done))
    if end.state == "completed":
        print(end.message)
        if deployment.is_night and output is not None and output.report_path.is_file():
            print(f"report   {output.report_path}")
        return 0
    if end.state == "stopped":
        print(f"{end.message}; the same command goes on from there", file=sys.stderr)
        return EXIT_STOPPED
    print(f"error: {end.message}", file=sys.stderr)
    return EXIT_FAILED
