"""False alarms of the habits of identifiers, on recordings without attacks, by vehicle.

Files are named `...__VEHICLE-NN.parquet`; the recordings of a vehicle count together. An alarm is an episode.

    python -m benchmarks.false_alarms FOLDER [--only VEHICLE ...]
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kdgat.can.detection.loading import load_detector
from kdgat.can.detection.watch import Watch
from kdgat.canbus import read_recording


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return what reads the options of a benchmark on vehicles: the folder, and which of them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="vehicles whose names begin so")
    return parser


def vehicles_in(folder: Path, only: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the recordings in a folder, each with the name of its vehicle."""
    for path in sorted(folder.glob("*.parquet")):
        vehicle = path.stem.split("__")[1].rsplit("-", 1)[0]
        if vehicle.startswith(tuple(only)):
            yield vehicle, path


def main() -> None:
    """Print a table."""
    options = parser_of(__doc__).parse_args()
    counts: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0.0])  # windows, those in alarm, alarms, seconds
    for vehicle, path in vehicles_in(options.folder, options.only):
        watch = Watch(load_detector(None))
        list(watch.run([read_recording(path)]))
        found = watch.summary
        numbers = (found.num_windows, found.num_alarm_windows, found.num_alarms, found.duration_s)
        counts[vehicle] = [before + number for before, number in zip(counts[vehicle], numbers, strict=True)]
    print("| vehicle | windows | % of windows; alarms |\n|---|---|---|")
    for vehicle, row in counts.items():
        print(f"| {vehicle} | {row[0]:,} | {100 * row[1] / max(row[0], 1):.2f}; {row[2]} |")
    rows = np.array(list(counts.values()))
    shares = rows[:, 1] / np.maximum(rows[:, 0], 1)
    windows, alarmed, alarms, seconds = rows.sum(axis=0)
    print(
        f"pooled {alarmed / windows:.3%}, median {np.median(shares):.3%}, worst {shares.max():.2%}, "
        f"{(shares == 0).sum()} of {len(shares)} vehicles without, {alarms:.0f} alarms in {seconds / 60:.0f} min "
        f"({3600 * alarms / seconds:.0f} an hour)"
    )


if __name__ == "__main__":
    main()
