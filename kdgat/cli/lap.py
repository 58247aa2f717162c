"""`kdgat lap`: generate, import, merge, bucket, inspect and solve assignment problems."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from kdgat.base import UserError, say
from kdgat.cli.lap_analyze import analyze_command
from kdgat.cli.lap_solve import solve_command

if TYPE_CHECKING:
    from kdgat.lap.instances.inspection import FileInspection

app = typer.Typer(help="Generate, bucket, inspect and solve assignment problems.", no_args_is_help=True)

PLAIN_INTERVAL_S: Final = 30.0  # between two lines of progress where there is no terminal
MAX_SIZE_COLUMNS: Final = 8
EXIT_BAD_LABELS: Final = 1

Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
StoredAs = Literal["seeded", "dense"]


@app.command("generate")
def generate(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="HDF5 file to write.")],
    families: Annotated[
        list[str] | None,
        typer.Option(
            "--families",
            metavar="NAME...",
            help="uniform, sparse, metric, clustered, low_rank, noisy_linear, machol_wien, tracking, mc64, tie. "
            "Default: all ten.",
        ),
    ] = None,
    sizes: Annotated[list[int] | None, typer.Option("--sizes", metavar="N...", help="Rows of the matrices.")] = None,
    count: Annotated[int, typer.Option("--count", help="Instances of each family at each size.")] = 10,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same instances; other seeds share none.")] = 0,
    storage: Annotated[
        StoredAs, typer.Option("--storage", help="seeded: draw the costs again when read. dense: keep them.")
    ] = "seeded",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=NUMBER", help="Of the families that have it: density=0.1."),
    ] = None,
    tag: Annotated[str, typer.Option("--tag", help="A word of your own, kept with every instance.")] = "",
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Generate assignment problems with their optimal matchings and duals.

    The file appears when it is complete. What the families are: docs/lap.md.
    """
    from kdgat.lap.instances.collection import Collection, read_parameters
    from kdgat.lap.instances.distributions import DISTRIBUTIONS
    from kdgat.lap.instances.store import write_store
    from kdgat.run import counted

    chosen = Collection(
        families or list(DISTRIBUTIONS), sizes or [512], count, seed, read_parameters(parameter or []), tag
    )
    _refuse_existing(out, force=force)
    began = time.monotonic()
    with _counted("generating", len(chosen), quiet) as count_one:
        write_store(out, chosen, storage, on_record=count_one)
    what = f"{', '.join(chosen.families)}; n = {', '.join(map(str, sorted(chosen.sizes)))}"
    print(
        f"{out}: {counted(len(chosen), 'instance')} ({what}), {storage}, {_format_bytes(out.stat().st_size)}, "
        f"in {time.monotonic() - began:.0f} s"
    )


@app.command("import")
def import_matrices(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Square: .npy, .npz, .mtx, .csv, .txt, .h5.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="HDF5 file to write, dense.")],
    family: Annotated[str, typer.Option("--family", help="Name under which they are counted and split.")] = "imported",
    mc64: Annotated[
        bool, typer.Option("--mc64", help="The files are sparse matrices: match for the largest product of entries.")
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Bring cost matrices of your own into a file, solved, to train on or to evaluate with.

    In a Matrix Market file pairs without an entry are forbidden; +inf forbids a pair in the others.
    """
    from kdgat.lap.instances.importing import import_matrices as import_all
    from kdgat.run import counted

    _refuse_existing(out, force=force)
    with _counted("importing", len(files), quiet) as count_one:
        count = import_all(out, files, family=family, is_mc64=mc64, on_record=count_one)
    print(f"{out}: {counted(count, 'instance')} ({family}), dense, {_format_bytes(out.stat().st_size)}")


@app.command("merge")
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files of `generate`, or of schema 1.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="HDF5 file to write.")],
    storage: Annotated[
        StoredAs | None,
        typer.Option("--storage", help="Default: seeded if a file is and all have seeds, else dense."),
    ] = None,
    forbidden_from: Annotated[
        float | None,
        typer.Option("--forbidden-from", metavar="COST", help="In schema 1, such costs and larger forbid a pair."),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write the problems of several files to one, each once, whatever file, seed or storage it comes from.

    Schema 1 are dense files with keys C, n, u, v, rows, cols, cost, family, noise_std and tag. Labels that they lack,
    or that prove nothing, are made new.
    """
    from kdgat.lap.instances.merging import merge_stores, num_records

    _refuse_existing(out, force=force)
    total = num_records(files)
    with _counted("merging", total, quiet) as count_one:
        summary = merge_stores(out, files, storage=storage, forbidden_from=forbidden_from, on_record=count_one)
    for path, count in summary.duplicates.items():
        if count:
            print(f"{path}: {count} duplicates left out")
    if summary.num_relabelled:
        print(f"{summary.num_relabelled} labels were missing or proved nothing, and were made new")
    if summary.num_big_numbers:
        say(
            f"note: {summary.num_big_numbers} matrices hold {summary.big_number:g} far above all else; if that forbids "
            f"a pair, merge with --forbidden-from {summary.big_number:g}"
        )
    print(
        f"{out}: {summary.num_records} of {total} records, {sum(summary.duplicates.values())} duplicates left out, "
        f"{summary.storage}, {_format_bytes(out.stat().st_size)}"
    )


@app.command("bucket")
def bucket(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of `generate` or `merge`.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Gets CLASS/full/{train,val,test}.h5.")],
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same split, whatever the order of records.")] = 42,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Split problems into size classes, and each family and size of a class 70/15/15 into train, val and test.

    Classes by rows: small (to 1024), mid_1536, mid_2048, mid_3072, large_4096 (the rest). No problem is in two splits.
    """
    from kdgat.base import check_folder
    from kdgat.base.place import FILE_BYTES
    from kdgat.cli.tables import output_console, print_rows
    from kdgat.lap.instances.buckets import SPLITS, existing_buckets, write_buckets
    from kdgat.lap.instances.files import LARGEST_CLASS, SIZE_CLASSES
    from kdgat.lap.instances.store import LapStore

    check_folder(out, "--out", FILE_BYTES)
    total = len(LapStore.open(file))
    there = existing_buckets(out)
    if there and not force:
        raise UserError(f"{there[0]} exists already: give another --out, or --force to replace the split")
    with _counted("splitting", total, quiet) as count_one:
        summary = write_buckets(file, out, seed, on_record=count_one)
    rows = []
    for name in [name for name, _ in SIZE_CLASSES] + [LARGEST_CLASS]:
        counts = [summary.counts[name, split] for split in SPLITS]
        if any(counts):
            rows.append([name, *counts])
    print_rows(output_console(), ("bucket", *SPLITS), rows, right=SPLITS)
    left_out = f", {summary.num_duplicates} duplicates left out" if summary.num_duplicates else ""
    print(f"{out}: {sum(summary.counts.values())} of {total} records{left_out}, seed {seed}")


@app.command("inspect")
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of `generate`, `merge` or `bucket`.")],
    check: Annotated[bool, typer.Option("--check", help="Prove the labels of a sample.")] = False,
    sample: Annotated[int, typer.Option("--sample", help="Records that --check looks at; 0 for all.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Say what a file holds. With --check, exit status 1 if costs or labels of a record are wrong."""
    from kdgat.lap.instances.inspection import check_records, inspect_store

    if sample < 0:
        raise UserError(f"--sample {sample}: give a number of records, or 0 for all")
    inspection = inspect_store(file)
    if check:
        wanted = min(sample, inspection.num_records) if sample else inspection.num_records
        with _counted("checking", wanted, quiet or as_json) as count_one:
            check_records(inspection, wanted, on_record=count_one)
    if as_json:
        print(json.dumps(inspection.to_json(), indent=2))
    else:
        _print_inspection(inspection)
    if inspection.problems:
        raise typer.Exit(EXIT_BAD_LABELS)


app.command("solve")(solve_command)
app.command("analyze")(analyze_command())


def _print_inspection(inspection: FileInspection) -> None:
    print(
        f"{inspection.path}: {inspection.num_records} records, {inspection.storage}, schema "
        f"{inspection.schema_version}, {_format_bytes(inspection.num_bytes)}, written with {inspection.written_with}"
    )
    if inspection.counts:
        _print_counts(inspection.counts)
    if inspection.num_duplicates:
        print(f"{inspection.num_duplicates} records are duplicates of others: kdgat lap merge leaves them out")
    for problem in inspection.problems:
        print(problem)
    if inspection.num_checked:
        right = inspection.num_checked - len(inspection.problems)
        print(f"checked {inspection.num_checked} records: {right} proved optimal, {len(inspection.problems)} wrong")


def _print_counts(counts: dict[tuple[str, int], int]) -> None:
    """Print a row per family: its records of each size, or of all if there are many sizes."""
    from kdgat.cli.tables import output_console, print_rows

    sizes = sorted({size for _, size in counts})
    by_family = {
        family: {size: count for (name, size), count in counts.items() if name == family} for family, _ in counts
    }
    is_narrow = len(sizes) > MAX_SIZE_COLUMNS
    headings = (*(("least n", "greatest n") if is_narrow else (f"n={size}" for size in sizes)), "all")
    rows = []
    for family, found in by_family.items():
        cells = [min(found), max(found)] if is_narrow else [found.get(size, "-") for size in sizes]
        rows.append([family, *cells, sum(found.values())])
    print_rows(output_console(), ("family", *headings), rows, right=headings)


def _refuse_existing(out: Path, *, force: bool) -> None:
    from kdgat.base import check_file

    check_file(out, "--out")
    if out.exists() and not force:
        raise UserError(f"--out {out} exists already: choose another name, or --force to replace it")


def _format_bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


@contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """Leave on SIGTERM as on Ctrl-C: by an exception, so that what was begun is cleaned up.

    Calling the value raises it again if there was a signal: an exception that meets a destructor or a callback of a
    library on its way is printed and lost.
    """
    received: list[int] = []

    def check() -> None:
        if received:
            raise KeyboardInterrupt if received[0] == signal.SIGINT else SystemExit(128 + received[0])

    def leave(number: int, frame: FrameType | None) -> None:
        received.append(number)
        check()

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    except Exception:
        check()  # an exception that meets C code, such as numba's loader, comes out as another one
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _counted(text: str, total: int, quiet: bool) -> Iterator[Callable[..., None]]:
    """Stop where told to, and say how far the work is; calling the value, with anything, counts one."""
    with _stoppable() as check, _progress(text, total, quiet) as advance:

        def count(*_: object) -> None:
            check()
            advance()

        yield count


@contextmanager
def _progress(text: str, total: int, quiet: bool) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal, and elsewhere a line from time to time; calling the value counts one."""
    if quiet:
        yield lambda: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(text, total=total)
            yield lambda: progress.advance(task)
    else:
        yield _Lines(text, total)


class _Lines:
    """Print how far something is, at most twice a minute."""

    def __init__(self, text: str, total: int) -> None:
        self._text = text
        self._total = total
        self._done = 0
        self._next = time.monotonic() + PLAIN_INTERVAL_S

    def __call__(self) -> None:
        self._done += 1
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_INTERVAL_S
            print(f"{time.strftime('%H:%M:%S')} {self._text}: {self._done} of {self._total}", file=sys.stderr)
