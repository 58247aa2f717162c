"""What weights have seen: recordings that a run, or a model that it started from, was trained on, and near copies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdgat.can.evaluation.finished_run import FinishedCanRun
from kdgat.registry.registry import ENTRY_FILE, read_entry
from kdgat.run import OutputDirectory

if TYPE_CHECKING:
    from kdgat.canbus.catalog import RecordingFile
    from kdgat.canbus.near_copies import Blocks


@dataclass(frozen=True)
class Lineage:
    """Recordings that earlier models of a line were trained on."""

    trained: dict[str, str] = field(default_factory=dict)  # content hash -> name of the model that was trained on it
    notes: tuple[str, ...] = ()  # what is not known


def lineage_of(path: Path) -> Lineage:
    """Follow a run, or a registered model, back to the one that was trained from scratch.

    A registered model is followed by its `entry.json` to those beside it, wherever the registry lies now; a run by the
    path that it was started from.
    """
    trained: dict[str, str] = {}
    seen: set[Path] = set()
    try:
        found = FinishedCanRun(OutputDirectory(path))
        while (start := _start_of(path, found.index.config)) is not None and start.absolute() not in seen:
            path = start
            seen.add(path.absolute())
            found = FinishedCanRun(OutputDirectory(path))
            for row in found.trained_recordings():
                if row.content_hash is not None:
                    trained.setdefault(row.content_hash, path.name)
    except (ValueError, OSError) as error:
        return Lineage(trained, (f"not all that the weights of {path.name} have seen is known: {error}",))
    return Lineage(trained)


def _start_of(path: Path, config: Mapping[str, Any]) -> Path | None:
    """Return the directory of the run or model that this one started from; None if it began from scratch."""
    entry = path / ENTRY_FILE
    if entry.is_file():
        parent = read_entry(entry).parent
        return None if parent is None else path.absolute().parent / parent
    start = config.get("start_from")
    return None if start is None else Path(start)


def near_copy(run: FinishedCanRun, file: "RecordingFile") -> str | None:
    """Name the training recording of a run that a recording is in part a copy of, if there is one."""
    return None if file.blocks is None else copy_of_trained(run, file.blocks)


def copy_of_trained(run: FinishedCanRun, blocks: "Blocks") -> str | None:
    """Name the training recording of a run that holds many of the blocks of a recording, if there is one."""
    from kdgat.canbus.near_copies import holds_much_of

    for row in run.trained_recordings():
        if row.blocks and holds_much_of(blocks, row.blocks):
            return f"{row.scenario}/{row.name}"
    return None
