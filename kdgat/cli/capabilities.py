"""`kdgat capabilities`: what of a GPU and of RAPIDS is usable on this machine, or in this image."""

from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def capabilities(
    is_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
    is_quick: Annotated[
        bool, typer.Option("--quick", help="Only look up RAPIDS, import none of it; torch is asked.")
    ] = False,
) -> None:
    """Check which parts of CUDA, cuGraph, cuDF and cuML work here, in which version, and why others do not."""
    from kdgat.can.capabilities import as_json, find_capabilities

    found = find_capabilities(is_quick=is_quick)
    if is_json:
        typer.echo(as_json(found))
        return
    from rich.markup import escape
    from rich.table import Table

    from kdgat.cli.tables import output_console

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("what", "usable", "version", "detail"):
        table.add_column(heading, no_wrap=heading != "detail", overflow="fold")
    labels = {True: "yes", False: "no", None: "not tried"}
    for capability in found:
        table.add_row(
            capability.name, labels[capability.usable], capability.version or "-", escape(capability.detail)
        )  # fmt: skip
    output_console().print(table)
