"""HCRL Car-Hacking as it is published: five files, split by time into what trains and what tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from kdgat.base.files import put_in_place
from kdgat.canbus.catalog import DatasetError
from kdgat.canbus.importing import import_recording
from kdgat.canbus.inspection import RecordingInspection
from kdgat.canbus.logs import read_recording
from kdgat.canbus.messages import SCENARIO_SEPARATOR, RecordingError
from kdgat.canbus.names import recording_stem

DATASET: Final = "hcrl_ch"
TRAIN_SHARE: Final = 0.7  # of the time of each file with attacks; papers divide 70 to 30, most of them at random
GAP_S: Final = 10.0  # left out behind it: an injection of this dataset lasts 3 to 5 s, and shall not be on both sides
STRAY: Final = 0.001  # of the stamps at either end: they may be no times, and do not move the cut
LEAST_SHARE: Final = 0.1  # of the messages of a file, for either side
ATTACK_FREE: Final = "normal_run_data"
ATTACKS: Final = {
    "dos_dataset": ("DoS", "test_01_DoS"),
    "fuzzy_dataset": ("fuzzing", "test_02_fuzzing"),
    "gear_dataset": ("gear", "test_03_gear_spoofing"),
    "rpm_dataset": ("rpm", "test_04_rpm_spoofing"),
}
HOW: Final = (
    f"{ATTACK_FREE} trains without attacks. Of each file with attacks the first {TRAIN_SHARE:.0%} of its time trains, "
    f"the next {GAP_S:g} s are left out, and what follows tests: no message, window or injection is on both sides"
)


@dataclass(frozen=True)
class Part:
    """One recording of the dataset: a published file, or what it holds before or after a moment."""

    source: Path
    scenario: str
    name: str
    begin_s: float = float("-inf")
    end_s: float = float("inf")


def published_files(folder: Path) -> dict[str, Path]:
    """Find the five files below a folder, by their stems in small letters; DatasetError names what is missing."""
    wanted = (*ATTACKS, ATTACK_FREE)
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        stem = recording_stem(path).lower()
        if stem in wanted and path.is_file():
            if stem in found:
                raise DatasetError(f"{folder}: {found[stem]} and {path} are both {stem}: move one away")
            found[stem] = path
    if missing := [name for name in wanted if name not in found]:
        raise DatasetError(
            f"{folder}: {', '.join(missing)} (.csv, or .txt) missing: `kdgat data list` says where to get {DATASET}"
        )
    return found


def import_published(
    folder: Path, target: Path, *, replace: bool = False, **reading: Any
) -> list[tuple[Path, RecordingInspection]]:
    """Write the recordings of the published files into a dataset's folder, all or none; errors of `import_recording`.

    `reading` is how they are read: limits, channel and options. DatasetError for files in the folder of the dataset,
    and for those that cannot be divided.
    """
    files = published_files(folder)
    inside = target.resolve()
    if any((path.parent.resolve() / path.name).is_relative_to(inside) for path in files.values()):
        raise DatasetError(f"move the published files out of {target}: there they would be recordings beside their own")
    target.mkdir(parents=True, exist_ok=True)
    done = []
    with TemporaryDirectory(dir=target, prefix=".import-") as temporary:
        for part in divide(files, **reading):
            path = target / f"{part.scenario}{SCENARIO_SEPARATOR}{part.name}.parquet"
            if path.exists() and not replace:
                raise DatasetError(f"{path}: exists already; give --replace")
            span_s = (part.begin_s, part.end_s)
            written, found = import_recording(
                part.source, Path(temporary), part.scenario, name=part.name, span_s=span_s, **reading
            )
            if found.num_attacks and part.source == files[ATTACK_FREE]:
                raise RecordingError(part.source, f"{found.num_attacks} attacks in it: give {ATTACK_FREE} as published")
            done.append((written, path, found))
        for written, path, _ in done:
            put_in_place(written, path)
    return [(path, found) for _, path, found in done]


def divide(files: Mapping[str, Path], **reading: Any) -> Iterator[Part]:
    """Yield the recordings that the published files are divided into; errors as of `read_recording`."""
    yield Part(files[ATTACK_FREE], "train_01_attack_free", "normal")
    for stem, (name, scenario) in ATTACKS.items():
        messages = read_recording(files[stem], **reading)
        if not messages.labelled:
            raise RecordingError(files[stem], "no R or T behind its rows says what is an attack: give it as published")
        time = messages.timestamp
        begin, end = np.quantile(time, (STRAY, 1 - STRAY))
        cut = float(begin + TRAIN_SHARE * (end - begin))
        shares = (np.mean(time < cut), np.mean(time >= cut + GAP_S))
        if min(shares) < LEAST_SHARE:
            raise DatasetError(
                f"{files[stem]}: by its times {shares[0]:.0%} of the messages would train and {shares[1]:.0%} test, "
                f"and {LEAST_SHARE:.0%} are the least: give the whole file as published, whose times grow"
            )
        yield Part(files[stem], "train_02_with_attacks", name, end_s=cut)
        yield Part(files[stem], scenario, name, begin_s=cut + GAP_S)
