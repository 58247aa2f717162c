"""`kdgat lap analyze`: what the stages of a training run are made of, and what their steps take, measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from kdgat.base import UserError, check_file, write_json_atomically
from kdgat.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kdgat.lap.config import LapConfig
    from kdgat.lap.instances.files import Counts


def analyze_command() -> "Callable[..., None]":
    """Return the command with the options of the family."""
    from kdgat.lap.family import FAMILY

    of_data = [option for option in FAMILY.options if option.name in ("stages", "data")]
    return options.spread(analyze, of_family=options.options_of(of_data))


def analyze(
    of_family: options.FamilyOptions,
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
) -> None:
    """Say what each training stage is made of, and what memory and time a step takes; --memory measures it.

    Every size is measured in a process of its own, on random costs: a step does the same work on any instance.
    """
    if json_path is not None:
        check_file(json_path, "--json")
    if json_path is not None and not memory:
        raise UserError("--json writes what --memory measures: give --memory too")
    from kdgat.lap.family import FAMILY
    from kdgat.lap.training.schedule import count_files, fit_rates

    given = of_family.given()
    if run is not None:
        config = run_config(run, override, given)
    else:
        config = cast("LapConfig", options.ConfigOptions(preset=preset, override=override).build(FAMILY, given))
    counts = count_files(config)
    print_contents(config, counts)
    if not memory:
        return
    rates = fit_rates(device_name(config), print_measurements(config, counts, num_steps))
    print(f"\n{rates.device}: {rates.step_s * 1000:.1f} ms a step and {rates.byte_s * 1e9:.3f} ns for each byte kept")
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(json_path, rates.model_dump(mode="json"))
        print(f"written: {json_path}, for `kdgat plan lap --measured {json_path}`")


def run_config(path: Path, override: "Sequence[str] | None", given: "Mapping[str, Any]") -> "LapConfig":
    """Read the configuration that a run of this family was made with.

    Raises:
        RunError: if no run of this family is there.
        UserError: if options are given that the run says already.
        ConfigurationError: if another version wrote it, or an override is wrong.
    """
    from kdgat.base.configuration import apply_overrides
    from kdgat.lap.family import FAMILY
    from kdgat.run import OutputDirectory

    index = OutputDirectory(path).read_index(FAMILY.name)
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
    from kdgat.base import describe_bytes
    from kdgat.cli.tables import output_console, print_rows
    from kdgat.lap.training.memory import kept_bytes, num_edges, stage_batch
    from kdgat.lap.training.schedule import instances

    headings = ("stage", "n", "train", "validation", "test", "edges", "of n x n", "batch", "an instance keeps")
    rows = []
    for name in config.chosen():
        size = config.progression[name].size
        number = instances(config, name, counts)
        edges, kept = num_edges(size, config.graph), kept_bytes(size, config)
        cells = [f"{number[split]:,}" for split in ("train", "validation", "test")]
        batch = stage_batch(config, name, number["train"]).num_graphs
        rows.append([name, size, *cells, f"{edges:,}", f"{edges / size**2:.1%}", batch, describe_bytes(kept)])
    print_rows(output_console(), headings, rows, right=headings[1:])
    kind = config.model.kind
    print(f"\nA step keeps {kept / edges:.0f} bytes for each edge until its backward pass (model.kind {kind}).")


def print_measurements(config: "LapConfig", counts: "Counts | None", num_steps: int) -> "list[tuple[int, float]]":
    """Measure every stage and print prediction and measurement beside each other, line by line as they come.

    Returns what steps keep and how long they take, also of a single instance of the smallest size: what a step takes
    however little is in it.
    """
    from kdgat.base import describe_bytes
    from kdgat.lap.training.memory import kept_bytes, stage_batch, step_bytes
    from kdgat.lap.training.schedule import PROCESS_BYTES, instances
    from kdgat.lap.training.step_measurement import measure_step

    sizes = {name: config.progression[name].size for name in config.chosen()}
    line = "{:<16} {:>6} {:>6} {:>12} {:>12} {:>8} {:>12}"
    print("\n" + line.format("stage", "n", "batch", "predicted", "measured", "ratio", "s per step"))
    measured = []
    for name, size in sizes.items():
        number = instances(config, name, counts)["train"]
        batch = stage_batch(config, name, number)
        one = measure_step(config, name, number, num_steps)
        predicted = step_bytes(config, name, number) + (0 if one.on_gpu else PROCESS_BYTES)
        cells = (size, batch.num_graphs, describe_bytes(predicted), describe_bytes(one.peak_bytes))
        ratio = f"{one.peak_bytes / predicted:.2f}"
        print(line.format(name, *cells, ratio, f"{one.step_s:.4f}"), flush=True)
        measured.append((kept_bytes(size, config) * batch.graphs_at_once * batch.num_parts, one.step_s))
    smallest = min(sizes, key=lambda name: sizes[name])
    return [*measured, (kept_bytes(sizes[smallest], config), measure_step(config, smallest, 1, num_steps).step_s)]
