"""`kdgat site`: the clusters that stages can run on."""

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_sites(
    show_all: Annotated[
        bool, typer.Option("--all", help="Also the template and the sites of the test cluster.")
    ] = False,
) -> None:
    """List the sites that --site takes, with their scheduler, partitions and limits."""
    from kdgat.cli.tables import output_console, print_rows
    from kdgat.cluster import SiteError
    from kdgat.cluster.site import find_sites, is_for_users, read_site

    rows = []
    for name, path in sorted(find_sites().items()):
        if not (show_all or is_for_users(name)):
            continue
        try:
            found = read_site(path)
        except SiteError as error:  # one wrong file must not hide the others
            rows.append((name, "", "", f"cannot be used: {error}", str(path)))
            continue
        partitions = dict.fromkeys(partition for partition in (found.partition, found.gpu_partition) if partition)
        limits = found.limits.model_dump(exclude_none=True)
        listed = ", ".join(f"{key} {value}" for key, value in limits.items() if key != "jobs")
        rows.append((name, found.scheduler, ", ".join(partitions), listed, str(path)))
    print_rows(output_console(), ("site", "scheduler", "partitions", "limits", "file"), rows, wrapped=("limits",))


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As in `kdgat site list`, or the path of a site file.")],
) -> None:
    """Print every key of a site as YAML, defaults included."""
    from kdgat.base.configuration import write_yaml
    from kdgat.cluster import load_site

    typer.echo(write_yaml(load_site(name).model_dump(mode="json"), sort_keys=False), nl=False)
