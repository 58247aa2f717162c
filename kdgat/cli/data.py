"""`kdgat data`: list, inspect, import and synthesise recordings; inspect trees."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from kdgat.base import say
from kdgat.cli import options
from kdgat.cli.compilation import compilation_told
from kdgat.cli.options import LabelledRecordingOptions, spread
from kdgat.cli.tables import output_console, print_rows

if TYPE_CHECKING:
    from kdgat.canbus.inspection import RecordingInspection
    from kdgat.canbus.messages import ReadOptions
    from kdgat.trees.reading.inspection import TreeInspection

app = typer.Typer(help="List, inspect, import and synthesise recordings.", no_args_is_help=True)

DataRoot = Annotated[Path, typer.Option("--data-root", help="Folder that holds one folder per dataset.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


@app.command("list")
def list_datasets(
    data_root: Annotated[
        Path | None, typer.Option("--data-root", help="Folder that holds one folder per dataset (default: data).")
    ] = None,
    catalog: options.Catalog = None,
    as_json: options.AsJson = False,
) -> None:
    """List the datasets that are known or present, and how many recordings of each are there."""
    from kdgat.canbus.catalog import DatasetEntry, DatasetError, RecordingPlace, discover_recordings, load_catalog

    if data_root is not None and not data_root.is_dir():
        kind = "is no folder" if data_root.exists() else "no such folder"
        raise DatasetError(
            f"--data-root {data_root}: {kind}; name the one that holds one folder per dataset, or leave the option out "
            "to see the datasets that are known"
        )
    data_root = data_root or Path("data")
    entries = load_catalog(catalog)
    known_folders = {entry.folder_in(data_root).name for entry in entries.values()}
    if data_root.is_dir():
        for folder in sorted(data_root.iterdir()):
            if folder.is_dir() and not folder.name.startswith(".") and folder.name not in known_folders:
                entries[folder.name] = DatasetEntry.of_folder(folder.name, "(no catalog entry: defaults)")
    listed: list[dict[str, Any]] = []
    for name, entry in entries.items():
        folder = entry.folder_in(data_root)
        places: list[RecordingPlace] = []
        try:
            places = discover_recordings(folder) if folder.is_dir() else []
        except DatasetError:
            if name not in load_catalog(catalog):
                continue  # a folder of something else
        listed.append(
            {
                "name": name,
                "num_recordings": len(places),
                "scenarios": sorted({place.scenario for place in places}),
                "vehicles": sorted({vehicle for place in places if (vehicle := entry.vehicle_of(place.name))}),
                "description": entry.description,
                "source": entry.source,
                "url": entry.url,
                "terms": entry.terms,
            }
        )
    if as_json:
        _print_json(listed)
        return
    counted = ("num_recordings", "scenarios", "vehicles")
    rows = [
        [
            row["name"],
            *(row[key] if isinstance(row[key], int) else len(row[key]) for key in counted),
            row["description"],
        ]
        for row in listed
    ]
    rows = [[cell or "-" for cell in row] for row in rows]
    numbers = ("recordings", "scenarios", "vehicles")
    headings = ("dataset", *numbers, "what it is")
    print_rows(output_console(), headings, rows, right=numbers, wrapped=("what it is",))
    for line in ("where to get them:", *_where_to_get(listed)):
        _print(line)
    if not data_root.is_dir():
        _print(f"{data_root}: no such folder; give --data-root to see which recordings are there")


def _where_to_get(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say where each dataset is to be had and under which terms: below the table, which would break the addresses."""
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        if row["url"]:
            terms = f" ({row['terms']})" if row["terms"] else ""
            yield f"{row['name']:<{width}}  {row['url']}{terms}"


@app.command("inspect")
@spread
def inspect_recordings(
    path: Annotated[
        Path | None, typer.Argument(help="One recording, the folder of a dataset, or a file or folder of trees.")
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="A dataset under --data-root.")] = None,
    data_root: DataRoot = Path("data"),
    catalog: options.Catalog = None,
    labels: Annotated[Path | None, typer.Option("--labels", help="Trees: table of labels (PATH/labels.csv).")] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Trees: draw the first 24 as .html, .svg or .png.")
    ] = None,
    *,
    reading: LabelledRecordingOptions,
    as_json: options.AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show size, ids, attacks, backward time steps, bad rows and copies. Exit status 1 if a recording is unusable.

    Of trees (SWC, river lines, masks): nodes, branches, leaves, lengths, asymmetry, labels and what was repaired.
    """
    from kdgat.canbus.catalog import DatasetError, find_entry, list_places
    from kdgat.canbus.folders import survey_folder
    from kdgat.canbus.inspection import inspect_dataset, inspect_file
    from kdgat.canbus.pipes import is_pipe

    if (path is None) == (dataset is None):
        raise typer.BadParameter("give either PATH or --dataset NAME")
    is_piped = path is not None and is_pipe(path)
    if path is not None and not is_piped and not path.exists():
        raise DatasetError(f"{path}: no such file or folder; give a recording, a file of trees, or a folder of either")
    if path is not None and not is_piped and (labels is not None or picture is not None or _holds_trees(path)):
        _inspect_trees(path, labels, picture, as_json, quiet)
        return
    if labels is not None or picture is not None:
        raise typer.BadParameter("--labels and --picture are for trees: give their PATH")
    if reading != LabelledRecordingOptions() and (path is None or not (is_piped or path.is_file())):
        raise typer.BadParameter("options of reading, as --channel and --time-unit, are for one recording: give PATH")
    notes: list[str] = []
    if path is not None and (is_piped or path.is_file()):
        with compilation_told(quiet=quiet):
            inspections = [inspect_file(path, reading.limits(), reading.channel, reading.read())]
    else:
        if path is not None:
            dataset, data_root = path.resolve().name, path.resolve().parent
        assert dataset is not None
        entry = find_entry(dataset, data_root, catalog)
        folder = entry.folder_in(data_root)
        content = survey_folder(folder)
        notes = list(content.notes())
        with _progress(f"reading {dataset}", len(list_places(content, folder)), quiet or as_json) as advance:
            inspections = inspect_dataset(entry, data_root, on_recording=lambda inspection: advance(), content=content)
    if as_json:
        _print_json([inspection.to_json() for inspection in inspections])
    else:
        _print_inspections(inspections)
    for note in notes:
        say(note, sys.stderr if as_json else sys.stdout)
    if not all(inspection.usable for inspection in inspections):
        raise typer.Exit(1)


@app.command("import")
@spread
def import_recordings(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...", help="Recordings, folders, or - (a pipe); or hcrl_ch FOLDER, as published."
        ),
    ],
    dataset: Annotated[str | None, typer.Option("--dataset", help="Dataset to add them to. Required.")] = None,
    scenario: Annotated[
        str | None, typer.Option("--scenario", help="Scenario; names that start with train_ train. Required.")
    ] = None,
    data_root: DataRoot = Path("data"),
    name: Annotated[str | None, typer.Option("--name", help="Name of the recording (default: the file's).")] = None,
    attack_free: Annotated[
        bool, typer.Option("--attack-free", help="Label every message benign, for a source without labels.")
    ] = False,
    attacks: Annotated[
        Path | None,
        typer.Option(
            "--attacks", help="Times of attacks in a source without labels: a table begin,end,id, or ROAD's metadata."
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a recording of that name.")] = False,
    *,
    reading: LabelledRecordingOptions,
    quiet: Quiet = False,
) -> None:
    """Convert recordings to Parquet in the layout of a dataset.

    Formats: Parquet; CSV of can-train-and-test, HCRL Car-Hacking and HCRL Survival, with or without header; HCRL
    attack-free text; candump; Vector ASC and BLF; PEAK TRC; MF4 with bus logging; PCAP and pcapng of SocketCAN; logs
    of GVRET, Cabana, python-can, BUSMASTER and more (docs/recordings.md); packed by gzip, xz, bzip2 or zip, too. BLF,
    MF4 and PCAP take the extra `logs`. Where a log holds several channels, give --channel. Of several recordings
    those that cannot be used are named, and the others imported: exit status 1.

    `kdgat data import hcrl_ch FOLDER` takes the five files of HCRL Car-Hacking as they are published, divides them by
    time into what trains and what tests, and says how.
    """
    from kdgat.canbus.car_hacking import DATASET

    if str(sources[0]) == DATASET and scenario is None:
        own = {"--name": name, "--attack-free": attack_free, "--attacks": attacks}
        if given := [option for option, value in own.items() if value]:
            raise typer.BadParameter(f"names and labels are those of {DATASET}: leave it out", param_hint=given[0])
        _import_car_hacking(sources[1:], data_root / (dataset or DATASET), replace, reading, quiet)
        return
    if dataset is None or scenario is None:
        missing = ", ".join(flag for flag, value in (("--dataset", dataset), ("--scenario", scenario)) if not value)
        raise typer.BadParameter("required, unless a published dataset is imported by its name", param_hint=missing)
    from kdgat.base import check_folder
    from kdgat.canbus import RecordingError
    from kdgat.canbus.catalog import DatasetError, check_dataset_name
    from kdgat.canbus.importing import import_recording
    from kdgat.canbus.pipes import is_pipe

    check_dataset_name(dataset)
    check_folder(data_root / dataset, "--data-root")
    limits, how = reading.limits(), reading.read()
    files = [file for source in sources for file in _sources(source)]
    if name is None and any(is_pipe(file) for file, _ in files):
        raise typer.BadParameter("a pipe does not name a recording: give --name")
    if name is not None and len(files) > 1:
        raise typer.BadParameter("--name needs a single SOURCE")
    if attacks is not None and (attack_free or (len(files) > 1 and attacks.suffix.lower() != ".json")):
        raise typer.BadParameter("--attacks is a table of one SOURCE, and not for --attack-free")
    if attacks is not None and not attacks.is_file():
        raise DatasetError(f"--attacks {attacks}: no such file; write a table begin,end,id of when it was attacked")
    num_refused = 0
    for source, own_name in files:
        try:
            with compilation_told(quiet=quiet):
                target, found = import_recording(
                    source,
                    data_root / dataset,
                    scenario,
                    name=name or own_name,
                    attack_free=attack_free,
                    attacks=attacks,
                    replace=replace,
                    limits=limits,
                    channel=reading.channel,
                    options=how,
                )
        except (RecordingError, DatasetError) as error:
            if len(files) == 1:
                raise
            num_refused += 1
            say(f"refused: {error}")
            continue
        for line in _oddities(found, how):
            say(line)
        if not quiet:
            labels = f"{found.num_attacks} attacks" if found.labelled or attack_free else "no labels"
            _print(f"{target}: {found.num_messages} messages, {labels}, {found.num_bad_rows} bad rows")
    if num_refused:
        raise RecordingError(dataset, f"{num_refused} of {len(files)} recordings were refused, see above; mend them")


def _oddities(found: "RecordingInspection", how: "ReadOptions") -> Iterator[str]:
    """Say what of a recording was dropped on import, and what is odd in it."""
    for row in found.bad_rows:
        yield f"{found.path}:{row.line}: {row.reason}, dropped"
    if found.num_bad_rows > len(found.bad_rows):
        yield f"{found.path}: {found.num_bad_rows} bad rows dropped in all"
    for note in found.findings.notes():
        yield f"{found.path}: {note}"
    if how.attack_labels and found.labelled and not found.num_attacks:  # a misspelt word makes all benign
        words = ", ".join(how.attack_labels)
        yield f"{found.path}: no row is labelled {words}, so all count as benign; see --attack-labels"


def _import_car_hacking(
    folders: Sequence[Path], target: Path, replace: bool, reading: LabelledRecordingOptions, quiet: bool
) -> None:
    from kdgat.base import check_folder
    from kdgat.canbus.car_hacking import DATASET, HOW, import_published
    from kdgat.canbus.catalog import DatasetError, check_dataset_name

    if len(folders) != 1 or not folders[0].is_dir():
        raise DatasetError(
            f"{DATASET}: give the one folder that holds its five files: kdgat data import {DATASET} FOLDER"
        )
    check_dataset_name(target.name)
    check_folder(target, "--data-root")
    limits, how = reading.limits(), reading.read()
    with compilation_told(quiet=quiet):
        done = import_published(
            folders[0], target, replace=replace, limits=limits, channel=reading.channel, options=how
        )
    for line in dict.fromkeys(line for _, found in done for line in _oddities(found, how)):  # two parts of a file
        say(line)
    if quiet:
        return
    for path, found in done:
        _print(f"{path}: {found.num_messages} messages, {found.num_attacks} attacks, {found.duration_s:.1f} s")
    _print(f"{HOW}.")


def _sources(source: Path) -> list[tuple[Path, str | None]]:
    """List the recordings that are to be imported, with names where they come from a folder's folders.

    What of a folder is no recording is named.
    """
    if not source.is_dir():
        return [(source, None)]
    from kdgat.canbus.catalog import list_places
    from kdgat.canbus.folders import survey_folder

    content = survey_folder(source, needs_scenario=False)
    for note in content.notes():
        say(note)
    return [
        (place.path, None if place.path.parent == source else f"{place.scenario}-{place.name}".replace("/", "-"))
        for place in list_places(content, source)
    ]


@app.command("synth")
def synthesise(
    out: Annotated[Path, typer.Option("--out", help="Data root that gets the dataset's folder.")],
    dataset: Annotated[str, typer.Option("--dataset", help="Name of the dataset.")] = "synthetic",
    size: Annotated[str, typer.Option("--size", help="tiny, small, quick or full.")] = "quick",
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same messages.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Simulate several cars with and without attacks, as a dataset of training and test scenarios."""
    from kdgat.base import check_folder
    from kdgat.canbus import Messages
    from kdgat.canbus.catalog import check_dataset_name
    from kdgat.canbus.simulation import num_recordings, write_dataset
    from kdgat.run import counted

    check_dataset_name(dataset)
    check_folder(out / dataset, "--out")
    counts: list[int] = []
    with _progress("simulating", num_recordings(size), quiet) as advance:

        def count(messages: Messages) -> None:
            counts.append(len(messages))
            advance()

        folder = write_dataset(out, dataset, size, seed, on_recording=count)
    if not quiet:
        _print(f"{folder}: {counted(len(counts), 'recording')}, {sum(counts)} messages")


def _print_inspections(inspections: "Sequence[RecordingInspection]") -> None:
    headings = ("recording", "vehicle", "messages", "ids", "span_s", "attacks", "back", "bad")
    if sys.stdout.isatty():  # a table per scenario fits 80 columns; in a pipe every line should say its scenario
        for scenario in dict.fromkeys(inspection.scenario for inspection in inspections):
            own = [inspection for inspection in inspections if inspection.scenario == scenario]
            _print(f"{scenario} ({own[0].role})" if own[0].role else scenario)
            print_rows(output_console(), headings, [_inspection_row(i) for i in own], right=headings[2:])
            _print("")
    else:
        rows = [(i.scenario, i.role or "-", *_inspection_row(i)) for i in inspections]
        print_rows(output_console(), ("scenario", "role", *headings), rows, right=headings[2:])
    for inspection in inspections:
        for note in inspection.notes:
            _print(f"{inspection.path}: {note}")
        for row in inspection.bad_rows:
            _print(f"{inspection.path}:{row.line}: {row.reason}")
        if inspection.num_bad_rows > len(inspection.bad_rows):
            _print(f"{inspection.path}: {inspection.num_bad_rows} bad rows in all")


def _inspection_row(inspection: "RecordingInspection") -> tuple[object, ...]:
    return (
        inspection.name,
        inspection.vehicle or "-",
        inspection.num_messages,
        inspection.num_identifiers,
        f"{inspection.duration_s:.1f}",
        "-" if inspection.attack_share is None else f"{inspection.attack_share:.2%}",
        inspection.num_backward,
        inspection.num_bad_rows,
    )


def _holds_trees(path: Path) -> bool:
    from kdgat.trees.reading.collection import holds_trees

    return holds_trees(path)


def _inspect_trees(path: Path, labels: Path | None, picture: Path | None, as_json: bool, quiet: bool) -> None:
    from kdgat.base import check_file
    from kdgat.trees.reading.collection import read_folder
    from kdgat.trees.reading.inspection import inspect_collection
    from kdgat.trees.reading.picture import draw_trees

    if picture is not None:
        check_file(picture, "--picture")
    collection = read_folder(path, labels)
    with _progress(f"reading {path}", len(collection.sources), quiet or as_json) as advance:
        inspections = inspect_collection(collection, on_source=lambda source: advance())
    if as_json:
        _print_json([inspection.to_json() for inspection in inspections])
    else:
        header = (
            "tree",
            "nodes",
            "branches",
            "leaves",
            "loops",
            "depth",
            "length",
            "median_edge",
            "asymmetry",
            "label",
        )
        print_rows(output_console(), header, [_tree_row(inspection) for inspection in inspections], right=header[1:9])
        for inspection in inspections:
            for note in inspection.notes:
                _print(f"{inspection.path}: {note}")
        for note in collection.notes:
            _print(note)
    if picture is not None:
        drawn = [(i.tree, f"{i.num_nodes} nodes {i.label or ''}") for i in inspections if i.tree is not None]
        draw_trees(picture, [tree for tree, _ in drawn], [caption for _, caption in drawn])
        if not as_json:
            _print(f"{picture}: {min(len(drawn), 24)} trees")
    if not all(inspection.usable for inspection in inspections):
        raise typer.Exit(1)


def _tree_row(inspection: "TreeInspection") -> tuple[object, ...]:
    if not inspection.usable:
        return (inspection.name, *("-" * 8), inspection.label or "-")
    return (
        inspection.name,
        inspection.num_nodes,
        inspection.num_branches,
        inspection.num_leaves,
        inspection.loops,
        inspection.depth,
        f"{inspection.total_length:.5g}",
        f"{inspection.median_edge:.3g}",
        "-" if inspection.asymmetry is None else f"{inspection.asymmetry:.2f}",
        inspection.label or " ".join(f"{target:g}" for target in inspection.targets) or "-",
    )


def _print(text: str) -> None:
    print(text, flush=True)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, default=str))


@contextmanager
def _progress(text: str, total: int, quiet: bool) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal and nothing elsewhere; calling the value moves it by one."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=total)
        yield lambda: progress.advance(task)
