"""`kdgat report DIR`: write the HTML report of a run, and show it to a browser elsewhere."""

import contextlib
import signal
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.command("report")
def report(
    run_directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Output directory of `kdgat train` (the one with results.json).")
    ],
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the report on the loopback until Ctrl-C, and print how to reach it.")
    ] = False,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Port for --serve. By default a free one.")
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open it in the browser; of a run that goes on a page that follows it.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing but errors, and the address of --serve.")
    ] = False,
) -> None:
    """Write DIR/report.html: one page that opens without a network, also while the run goes on.

    While it goes on, --serve makes the page anew whenever the browser asks for it, every 10 s.
    """
    from kdgat.base import check_folder
    from kdgat.base.place import FILE_BYTES
    from kdgat.family.report import refresh_s, write_report  # here, so that --help does not wait for plotly

    if port is not None and not serve:
        raise typer.BadParameter("it is the port of --serve: give both, or neither", param_hint="--port")
    if run_directory.is_dir():
        check_folder(run_directory, "DIR", FILE_BYTES)
    next_s = refresh_s(run_directory)
    path = write_report(run_directory)
    if serve or (open_ and next_s):
        _serve(path, port, next_s, is_quiet=quiet, is_opened=open_)
        return
    if open_:
        webbrowser.open(path.absolute().as_uri())
    if not quiet:
        typer.echo(str(path))


def _serve(path: Path, port: int | None, next_s: int, *, is_quiet: bool, is_opened: bool) -> None:
    from kdgat.family.report import renew_report
    from kdgat.report.serving import ReportServer, copy_command, tunnel_command

    with ReportServer(path, port or 0, lambda last_s: renew_report(path.parent, last_s), next_s) as server:
        typer.echo(server.url)
        if not is_quiet:
            typer.echo(
                "\nFrom another machine, give one of these there:\n"
                f"  {tunnel_command(server.server_port)}    # then open the address above\n"
                f"  {copy_command(path)}\n\nCtrl-C ends this."
            )
        if is_opened:
            webbrowser.open(server.url)
        # A shell lets what it starts in the background ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
