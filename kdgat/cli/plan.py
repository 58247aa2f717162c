"""`kdgat plan can`: which stages a training run would consist of. `kdgat plan lap` is beside it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kdgat.cli import options, plan_lap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.table import Table

    from kdgat.can.config import CanConfig
    from kdgat.cluster.resources import ResourceRequest, Resources
    from kdgat.cluster.site import Site

JOB_HEADINGS: Final = ("walltime", "memory", "cores", "gpus")
WIDE: Final = 140  # columns in which a stage and its job fit beside each other
NUMBERS: Final = ("parameters", *JOB_HEADINGS)

app = typer.Typer(no_args_is_help=True)
app.command("lap")(plan_lap.lap)


@app.callback()
def plan() -> None:
    """Print the stages a training run consists of, without running them."""


@app.command()
def can(
    dataset: options.Dataset = "synthetic",
    data_root: options.DataRoot = Path("data"),
    preset: options.Preset = "quick",
    hold_out: options.HoldOut = None,
    seeds: options.Seeds = None,
    override: options.Overrides = None,
    catalog: options.Catalog = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also say what has finished in this directory.")] = None,
    site: options.SiteName = "local",
    walltime: options.Walltime = None,
    memory: options.Memory = None,
    cores: options.Cores = None,
    gpus: options.Gpus = None,
) -> None:
    """List the stages of a CAN run: what each needs, its size, its job on a cluster (--site), how far it is (--out)."""
    where, request = options.site_and_request(site, walltime=walltime, memory=memory, cores=cores, gpus=gpus)

    from kdgat.can.parameters import parameter_counts
    from kdgat.can.plan import plan_can
    from kdgat.cli.tables import output_console
    from kdgat.cluster.estimate import stage_resources
    from kdgat.run.directory import OutputDirectory

    config = options.can_config(
        dataset=dataset,
        data_root=data_root,
        catalog=catalog,
        preset=preset,
        hold_out=hold_out,
        seeds=seeds,
        overrides=override,
    )
    records = {record.name: record for record in OutputDirectory(out).read_index().stages} if out else {}
    counts = parameter_counts(config)
    stages = plan_can(config)
    console = output_console()
    jobs = {
        planned.name: job_cells(stage_resources(planned.stage, config.resources, where, request))
        for planned in stages
        if where.scheduler != "local"
    }
    is_wide = console.width >= WIDE
    headings = ["stage", "needs", "epochs", "parameters"]
    headings += [*JOB_HEADINGS] if jobs and is_wide else []
    headings += ["state"] if out else []
    table = _table(headings)
    for planned in stages:
        epochs = planned.config.get("training", {}).get("max_epochs")
        count = counts.get((planned.stage, planned.scale))
        row = [
            planned.name,
            ", ".join(planned.depends_on) or "recordings",
            "" if epochs is None else f"up to {epochs}",
            "" if count is None else f"{count:,}",
        ]
        if is_wide:
            row += jobs.get(planned.name, [])
        if out:
            row.append(str(records[planned.name].state) if planned.name in records else "not planned there")
        table.add_row(*row)
    console.print(describe_data(config), soft_wrap=True)
    console.print(table)
    if jobs and not is_wide:
        table = _table(["stage", *JOB_HEADINGS])
        for name, cells in jobs.items():
            table.add_row(name, *cells)
        console.print()
        console.print(table)
    if jobs:
        for sentence in describe_limits((planned.stage for planned in stages), config.resources, where, request):
            console.print(sentence, soft_wrap=True)


def _table(headings: "Sequence[str]") -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in NUMBERS else "left", no_wrap=heading != "needs")
    return table


def job_cells(resources: "Resources") -> list[str]:
    """Write what a stage's job asks for as cells of the table."""
    from kdgat.cluster.resources import format_memory, format_walltime

    gpus = f"{resources.gpus} {resources.gpu_type or ''}".strip() if resources.gpus else ""
    return [format_walltime(resources.walltime_s), format_memory(resources.memory_mib), str(resources.cores), gpus]


def describe_limits(
    names: "Iterable[str]", requests: "Mapping[str, ResourceRequest]", site: "Site", command_line: "ResourceRequest"
) -> list[str]:
    """Say which stages get less than their configuration asks for, one sentence per key."""
    from kdgat.cluster.estimate import held_to_limits

    stages: dict[tuple[str, str, str], list[str]] = {}
    for stage in dict.fromkeys(names):
        for key, (wanted, granted) in held_to_limits(stage, requests, site, command_line).items():
            stages.setdefault((key, str(wanted), str(granted)), []).append(stage)
    return [
        f"{key} {granted} instead of {wanted}, as {site.name} grants no more: {', '.join(names)}"
        for (key, wanted, granted), names in stages.items()
    ]


def describe_data(config: "CanConfig") -> str:
    """Say in a sentence what the recordings hold, or that they are not there."""
    from kdgat.can.catalog import DatasetError, find_recordings, split_roles
    from kdgat.can.messages import ReadLimits
    from kdgat.can.sections import num_windows

    data = config.data
    limits = ReadLimits(max_bad_fraction=data.max_bad_fraction)
    try:
        found = find_recordings(
            data.data_root, data.dataset, catalog=data.catalog, leave_out=data.leave_out, limits=limits
        )
    except DatasetError as error:
        return f"no recordings to count windows in: {error}"
    recordings = split_roles(found, data.hold_out)
    parts = []
    for role, noun in (("train", "training"), ("test", "test")):
        files = [file for file in recordings if file.role == role]
        count = sum(num_windows(file.num_messages, config.windows) for file in files)
        parts.append(f"{len(files)} {noun} recordings ({count:,} windows)")
    copies = f"; {len(recordings.dropped)} copies left out" if recordings.dropped else ""
    share = f"the last {data.validation_fraction:.0%} of each training recording validates"
    return f"{data.dataset}: {', '.join(parts)}{copies}; {share}"
