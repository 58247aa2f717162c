"""`kdgat lap analyze`: what the stages of a training run are made of, and what their steps take, measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from kdgat.base import UserError, check_file
from kdgat.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kdgat.lap.config import LapConfig
    from kdgat.lap.instances.files import Counts
    from kdgat.lap.training.step_measurement import Measurement


def analyze_command() -> "Callable[..., None]":
    """Return the command with the options of the family."""
    from kdgat.lap.family import FAMILY

    of_data = [option for option in FAMILY.options if option.name in ("stages", "data")]
    return options.family_command(analyze, of_data)


def analyze(
    preset: options.Preset = None,
    override: options.Overrides = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="Stages of this run (--out of `train lap`), no preset's."),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Measure training steps on this device beside what is predicted.")
    ] = False,
    num_steps: Annotated[int, typer.Option("--steps", min=2, help="Steps to measure of each size.")] = 5,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write measured rates, for plan lap --measured.")
    ] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Say what each training stage is made of, and what memory and time a step takes; --memory measures it.

    Every size is measured in a process of its own, on random costs: a step does the same work on any instance.
    """
    if json_path is not None:
        check_file(json_path, "--json")
    if json_path is not None and not memory:
        raise UserError("--json writes what --memory measures: give --memory too")
    from kdgat.family import family_config
    from kdgat.lap.family import FAMILY
    from kdgat.lap.training.schedule import count_files, fit_rates, write_rates

    if run is not None:
        config = run_config(run, override, given)
    else:
        config = cast("LapConfig", family_config(FAMILY, preset, given, None, override))
    counts = None if config.data.source is None else count_files(config)
    print_contents(config, counts)
    if not memory:
        return
    measured = print_measurements(config, counts, num_steps)
    measured.append(measure_smallest(config, num_steps))
    rates = fit_rates(device_name(config), [(one.kept_bytes * one.num_parts, one.step_s) for one in measured])
    print(f"\n{rates.device}: {rates.step_s * 1000:.1f} ms a step and {rates.byte_s * 1e9:.3f} ns for each byte kept")
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        write_rates(json_path, rates)
        print(f"written: {json_path}, for `kdgat plan lap --measured {json_path}`")


def run_config(path: Path, override: "Sequence[str] | None", given: "Mapping[str, Any]") -> "LapConfig":
    """Read the configuration that a run of this family was made with.

    Raises:
        RunError: if no run is there.
        UserError: if it is of another family, or options are given that the run says already.
        ConfigurationError: if another version wrote it, or an override is wrong.
    """
    from kdgat.base.configuration import apply_overrides
    from kdgat.lap.family import FAMILY
    from kdgat.run import OutputDirectory

    index = OutputDirectory(path).read_index()
    if index.family != FAMILY.name:
        raise UserError(f"--run {path} is a run of family {index.family!r}: name one of `kdgat train lap`")
    if given:
        named = ", ".join(f"--{name}" for name in given)
        raise UserError(f"{named}: --run {path} says that already: leave it out, or change a key by -O")
    return apply_overrides(FAMILY.config.from_data(index.config), override or ())


def device_name(config: "LapConfig") -> str:
    """Name the device that trains here."""
    import platform

    import torch

    if config.training.accelerator != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = config.training.num_threads
    return f"{threads} core{'s' if threads > 1 else ''} of {platform.processor() or platform.machine()}"


def print_contents(config: "LapConfig", counts: "Counts | None") -> None:
    """Print one line per training stage: instances, edges, batch, and what a step keeps."""
    from rich.table import Table

    from kdgat.base import describe_bytes
    from kdgat.cli.tables import output_console
    from kdgat.lap.training.memory import batch_shape, kept_bytes_per_edge, num_edges
    from kdgat.lap.training.schedule import instances

    kept = kept_bytes_per_edge(config)
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = ("stage", "n", "train", "validation", "test", "edges", "of n x n", "batch", "an instance keeps")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "stage" else "right", no_wrap=True)
    for name in config.chosen():
        size = config.progression[name].size
        number = instances(config, name, counts)
        edges = num_edges(size, config.graph)
        shape = batch_shape(size, number["train"], config.graph, config.training_for(name))
        cells = [f"{number[split]:,}" for split in ("train", "validation", "test")]
        cells += [f"{edges:,}", f"{edges / size**2:.1%}", str(shape.num_graphs), describe_bytes(round(kept * edges))]
        table.add_row(name, str(size), *cells)
    output_console().print(table)
    print(f"\nA step keeps {kept:.0f} bytes for each edge until its backward pass (model.kind {config.model.kind}).")


def print_measurements(config: "LapConfig", counts: "Counts | None", num_steps: int) -> "list[Measurement]":
    """Measure every stage and print prediction and measurement beside each other, line by line as they come."""
    from kdgat.base import describe_bytes
    from kdgat.lap.training.memory import PROCESS_BYTES, batch_shape, kept_bytes_per_edge, predict_step_bytes
    from kdgat.lap.training.schedule import instances
    from kdgat.lap.training.step_measurement import measure_step

    kept = kept_bytes_per_edge(config)
    line = "{:<16} {:>6} {:>6} {:>12} {:>12} {:>8} {:>12}"
    print("\n" + line.format("stage", "n", "batch", "predicted", "measured", "ratio", "s per step"))
    measured = []
    for name in config.chosen():
        size = config.progression[name].size
        number = instances(config, name, counts)["train"]
        one = measure_step(config, name, number, config.training.accelerator, num_steps)
        shape = batch_shape(size, number, config.graph, config.training_for(name))
        predicted = predict_step_bytes(kept, shape, size, config.graph) + (0 if one.on_gpu else PROCESS_BYTES)
        cells = (size, one.num_graphs, describe_bytes(predicted), describe_bytes(one.peak_bytes))
        ratio = f"{one.peak_bytes / predicted:.2f}"
        print(line.format(name, *cells, ratio, f"{one.step_s:.4f}"), flush=True)
        measured.append(one)
    return measured


def measure_smallest(config: "LapConfig", num_steps: int) -> "Measurement":
    """Measure batches of one instance of the smallest size: what a step takes however little is in it."""
    from kdgat.lap.training.step_measurement import measure_step

    name = min(config.chosen(), key=lambda one: config.progression[one].size)
    return measure_step(config, name, 1, config.training.accelerator, num_steps)
