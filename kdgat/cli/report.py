"""`kdgat report DIR`: write the HTML report of a run, and show it to a browser elsewhere."""

import contextlib
import signal
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
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing but errors, and the address of --serve.")
    ] = False,
) -> None:
    """Write DIR/report.html: one page that opens without a network, with every table and figure of the run."""
    from kdgat.base import check_folder
    from kdgat.base.place import FILE_BYTES
    from kdgat.family.report import write_report  # here, so that --help does not wait for plotly

    if port is not None and not serve:
        raise typer.BadParameter("it is the port of --serve: give both, or neither", param_hint="--port")
    if run_directory.is_dir():
        check_folder(run_directory, "DIR", FILE_BYTES)
    path = write_report(run_directory)
    if serve:
        _serve(path, port, quiet)
    elif not quiet:
        typer.echo(str(path))


def _serve(path: Path, port: int | None, quiet: bool) -> None:
    from kdgat.report.serving import ReportServer, copy_command, tunnel_command

    with ReportServer(path, port or 0) as server:
        typer.echo(server.url)
        if not quiet:
            typer.echo(
                "\nFrom another machine, give one of these there:\n"
                f"  {tunnel_command(server.server_port)}    # then open the address above\n"
                f"  {copy_command(path)}\n\nCtrl-C ends this."
            )
        # A shell lets what it starts in the background ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
