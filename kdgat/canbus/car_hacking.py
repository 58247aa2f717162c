"""HCRL Car-Hacking as it is published: five files, split by time into what trains and what tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdgat.canbus.catalog import DatasetError
from kdgat.canbus.importing import import_recording
from kdgat.canbus.inspection import RecordingInspection
from kdgat.canbus.logs import read_recording
from kdgat.canbus.names import recording_stem

DATASET: Final = "hcrl_ch"
TRAIN_SHARE: Final = 0.7  # of the time of each file with attacks; papers divide 70 to 30, most of them at random
GAP_S: Final = 10.0  # left out behind it: an injection of this dataset lasts 3 to 5 s, and shall not be on both sides
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


def divide(folder: Path) -> Iterator[Part]:
    """Yield the recordings that the published files in a folder are divided into; errors as of `read_recording`."""
    files = published_files(folder)
    yield Part(files[ATTACK_FREE], "train_01_attack_free", "normal")
    for stem, (name, scenario) in ATTACKS.items():
        time = read_recording(files[stem]).timestamp
        cut = float(time.min() + TRAIN_SHARE * (time.max() - time.min()))
        yield Part(files[stem], "train_02_with_attacks", name, end_s=cut)
        yield Part(files[stem], scenario, name, begin_s=cut + GAP_S)


def import_part(part: Part, folder: Path, *, replace: bool = False) -> tuple[Path, RecordingInspection]:
    """Write one of them into a dataset's folder; errors as of `import_recording`."""
    return import_recording(
        part.source,
        folder,
        part.scenario,
        name=part.name,
        attack_free=part.scenario.endswith("attack_free"),
        require_labels=True,
        replace=replace,
        span_s=(part.begin_s, part.end_s),
    )
