"""False alarms of the detectors that need no training, on recordings without attacks, by vehicle.

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

DETECTORS = ("clock", "habits")


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
    # by vehicle and detector: windows, those in alarm, alarms, seconds
    counts: dict[str, dict[str, list[float]]] = defaultdict(lambda: {name: [0, 0, 0, 0.0] for name in DETECTORS})
    for vehicle, path in vehicles_in(options.folder, options.only):
        messages = read_recording(path)
        for name in DETECTORS:
            watch = Watch(load_detector(None, name))
            list(watch.run([messages]))
            found = watch.summary
            row = counts[vehicle][name]
            for place, number in enumerate(
                (found.num_windows, found.num_alarm_windows, found.num_alarms, found.duration_s)
            ):
                row[place] += number
    print("| vehicle | windows | " + " | ".join(f"{name}, % of windows; alarms" for name in DETECTORS) + " |")
    print("|---|---|" + "---|" * len(DETECTORS))
    for vehicle, rows in counts.items():
        cells = [f"{100 * row[1] / max(row[0], 1):.2f}; {row[2]}" for row in rows.values()]
        print(f"| {vehicle} | {next(iter(rows.values()))[0]:,} | {' | '.join(cells)} |")
    for name in DETECTORS:
        rows = np.array([row[name] for row in counts.values()])
        shares = rows[:, 1] / np.maximum(rows[:, 0], 1)
        windows, alarmed, alarms, seconds = rows.sum(axis=0)
        print(
            f"{name}: pooled {alarmed / windows:.3%}, median {np.median(shares):.3%}, worst {shares.max():.2%}, "
            f"{(shares == 0).sum()} of {len(shares)} vehicles without, {alarms:.0f} alarms in {seconds / 60:.0f} min "
            f"({3600 * alarms / seconds:.0f} an hour)"
        )


if __name__ == "__main__":
    main()
