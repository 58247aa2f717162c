"""How many windows train, and what jobs asked for with so many before any attempt had shown what they take.

The rules are those that an earlier system came to after jobs had died at their walltime: 8 hours and 64 GB with a
standard dataset, 12 hours and 96 GB with a complex one, and for the curriculum a fifth more time and a tenth more
memory. They know nothing of the machine: attempts and calibrations come before them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdgat.can.config import CanConfig, DataConfig
from kdgat.can.kinds import RUN_KINDS
from kdgat.can.training.division import VehicleDivision
from kdgat.canbus import ReadLimits, WindowConfig, find_recordings
from kdgat.canbus.catalog import (
    DatasetError,
    RecordingCatalog,
    discover_recordings,
    entry_or_default,
    find_entry,
    load_catalog,
    split_roles,
)
from kdgat.canbus.names import tells_labels
from kdgat.canbus.settings import num_windows
from kdgat.family import DataSize
from kdgat.run import counted

if TYPE_CHECKING:
    from kdgat.cluster import Expectation

CURRICULUM: Final = "curriculum"
FUSION: Final = "fusion"
CURRICULUM_WALLTIME, CURRICULUM_MEMORY = 1.2, 1.1


@dataclass(frozen=True)
class SizeRule:
    """What the jobs of training stages ask for from so many windows on."""

    complexity: str
    least_windows: int
    walltime_s: int
    memory_gib: int


# The smallest set that was called standard had 9,364 windows, the smallest complex one 151,089.
SIZE_RULES: Final = (SizeRule("complex", 100_000, 12 * 3600, 96), SizeRule("standard", 5_000, 8 * 3600, 64))
QUICK: Final = "quick"  # the preset that only tries: what its jobs ask for says the preset itself


def rule_for(windows: int | None) -> SizeRule | None:
    """Return the rule for so many windows that train; None for fewer than it was made for, and where nobody knows.

    >>> rule_for(203_496).complexity
    'complex'
    """
    return next((rule for rule in SIZE_RULES if windows is not None and windows >= rule.least_windows), None)


def assume(stage: str, windows: int | None, preset: str | None = None) -> Expectation:
    """Return what the job of a stage is taken to need; nothing for stages that train no network on windows."""
    from kdgat.cluster import Estimate  # a history of jobs, which commands without jobs do not read

    rule = rule_for(windows)
    if rule is None or preset == QUICK or stage not in RUN_KINDS.trained or stage == FUSION:
        return {}
    walltime, memory, more = float(rule.walltime_s), float(rule.memory_gib), ""
    if stage == CURRICULUM:
        walltime, memory, more = walltime * CURRICULUM_WALLTIME, memory * CURRICULUM_MEMORY, ", with a curriculum"
    source = f"size rule for {rule.complexity} data: {windows:,} windows{more}"
    amounts = {"walltime": round(walltime), "memory": math.floor(memory + 0.5) * 1024}
    return {amount: Estimate(value, None, source) for amount, value in amounts.items()}


def train_graphs(inputs: Mapping[str, Path]) -> int | None:
    """Count the windows of training recordings in the stores that a stage reads; None where it trains on none."""
    if "train" not in inputs:
        return None
    from kdgat.graphs.store import count_graphs  # h5py: only where a stage is about to start

    return sum(count_graphs(inputs[name]) for name in ("train", "validation") if name in inputs)


def data_size(config: CanConfig) -> DataSize:
    """Return the windows that train: counted where the recordings are, else as the catalog has them."""
    data = config.data
    try:
        recordings = read_recordings(data)
    except DatasetError as error:
        windows = entry_or_default(data.dataset, data.catalog).windows
        known = "as the catalog has them" if windows is not None else "nor does the catalog know how many there are"
        return _described(data.dataset, windows, f"not counted, {known}: {error}")
    windows = sum(num_windows(file.num_messages, config.windows) for file in recordings.train)
    training = counted(len(recordings.train), "recording")
    return _described(data.dataset, windows, f"counted in {training} of {data.data_root}")


def _described(dataset: str, windows: int | None, source: str) -> DataSize:
    rule = rule_for(windows)
    small = "small" if windows is not None else ""
    return DataSize(dataset, windows, source, rule.complexity if rule is not None else small)


def data_sizes(config: CanConfig) -> list[tuple[DataSize, CanConfig]]:
    """Return all datasets that the catalog knows the size of, and all others below the data root."""
    data = config.data
    entries = load_catalog(data.catalog)
    names = [name for name, entry in entries.items() if entry.windows is not None]
    root = Path(data.data_root)
    visible = (entry for entry in root.iterdir() if not entry.name.startswith(".")) if root.is_dir() else ()
    folders = sorted(entry for entry in visible if entry.is_dir())
    known = {entry.folder_in(root): name for name, entry in entries.items()}
    names += [known.get(folder, folder.name) for folder in folders if _holds_recordings(folder)]
    configs = [_for_dataset(config, name) for name in dict.fromkeys([*names, data.dataset])]
    return [(data_size(one), one) for one in configs]


def _for_dataset(config: CanConfig, name: str) -> CanConfig:
    data = config.data
    if name == data.dataset:
        return config
    # Recordings of one dataset are not held out, or left out, by names of another one's.
    other = data.model_copy(update={"dataset": name, "hold_out": (), "leave_out": ()})
    return config.model_copy(update={"data": other})


def _holds_recordings(folder: Path) -> bool:
    try:
        return bool(discover_recordings(folder))
    except DatasetError:
        return False


def describe_data(data: DataConfig, windows: WindowConfig) -> str:
    """Say in a sentence what the recordings hold, or that they are not there."""
    try:
        recordings = read_recordings(data)
    except DatasetError as error:
        return f"no recordings to count windows in: {error}"
    parts = []
    tests = [file for files in recordings.test.values() for file in files]
    for files, noun in ((recordings.train, "training"), (tests, "test")):
        count = sum(num_windows(file.num_messages, windows) for file in files)
        parts.append(f"{counted(len(files), f'{noun} recording')} ({counted(count, 'window')})")
    copies = f"; {counted(len(recordings.dropped), 'copy', 'copies')} left out" if recordings.dropped else ""
    division = VehicleDivision.of((file.vehicle for file in recordings.train), data)
    last = f"the last {data.validation_fraction:.0%} of each training recording validates"
    share = division.sentence() if division.validating else last
    return f"{data.dataset}: {', '.join(parts)}{copies}; {share}"


def read_recordings(data: DataConfig) -> RecordingCatalog:
    """Read all recordings, once while they stay the same; DatasetError where there are none."""
    entry = find_entry(data.dataset, data.data_root, data.catalog)
    places = discover_recordings(entry.folder_in(data.data_root), data.leave_out)
    folders = dict.fromkeys(place.path.parent for place in places)
    beside = [path for folder in folders for path in sorted(folder.iterdir()) if tells_labels(path)]
    stats = [(path, path.stat()) for path in (*(place.path for place in places), *beside)]
    return _recordings(
        data.data_root,
        data.dataset,
        data.catalog,
        data.leave_out,
        data.hold_out,
        data.max_bad_fraction,
        tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats),
    )


@lru_cache(maxsize=64)
def _recordings(
    data_root: str,
    dataset: str,
    catalog: str | None,
    leave_out: tuple[str, ...],
    hold_out: tuple[str, ...],
    max_bad_fraction: float,
    stats: tuple[tuple[Path, int, int], ...],  # read anew where a file is another one
) -> RecordingCatalog:
    limits = ReadLimits(max_bad_fraction=max_bad_fraction)
    found = find_recordings(data_root, dataset, catalog=catalog, leave_out=leave_out, limits=limits)
    return split_roles(found, hold_out)
