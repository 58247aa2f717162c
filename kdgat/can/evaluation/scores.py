"""Scores of windows, and the files that hold them: raw ones of every model, and those of the default detector.

`ScoreTable` is what the stage `evaluation` writes and decisions are made from: trained models, the habits of
identifiers, and single features that a model has to beat. `Scores` is what the report draws along a recording.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError, write_bytes_atomically
from kdgat.can.models.names import BASELINE_PREFIX, HABITS
from kdgat.graphs import GraphColumns

WINDOW_COLUMNS: Final = (
    "label", "recording", "start_time", "end_time", "attack_count", "kind", "is_virtual", "is_learned",
)  # fmt: skip
MODEL_PREFIX: Final = "model:"  # columns of a table file that are scores
CHUNK_WINDOWS: Final = 8192  # whose features are read at once: a store may be larger than memory
# Node features of which the largest of a window tells some attack by itself: a missing message, a changed payload, a
# message too many.
BASELINE_FEATURES: Final = ("double_interval_ratio_maximum", "toggle_surprise_maximum", "count_excess")
SCORES_FOLDER = "scores"


@dataclass(frozen=True)
class ScoreTable:
    """Raw scores of every model for the windows of one scenario (or of validation), in file order."""

    scores: dict[str, NDArray[np.float32]]  # model -> [G]; larger means attack; `habits` is always among them
    label: NDArray[np.int8]  # [G]
    recording: NDArray[np.int32]  # [G] index into recording_names
    recording_names: list[str]
    start_time: NDArray[np.float64]  # [G] s
    end_time: NDArray[np.float64]  # [G] s, of the last message
    attack_count: NDArray[np.int32]  # [G]
    kind: NDArray[np.int8]  # [G] index into ATTACK_KINDS
    is_virtual: NDArray[np.bool_]  # [G] injected traffic of a virtual vehicle, in validation only
    is_learned: NDArray[np.bool_]  # [G] a fusion has learned from it, in validation only
    vehicles: tuple[
        str, ...
    ] = ()  # of recording_names, empty where unknown; in validation only those that did not train

    @property
    def num_windows(self) -> int:
        """Return G."""
        return len(self.label)

    def select(self, chosen: NDArray[np.bool_]) -> ScoreTable:
        """Return the windows marked in `chosen` [G]."""
        columns = {name: getattr(self, name)[chosen] for name in WINDOW_COLUMNS}
        scores = {name: values[chosen] for name, values in self.scores.items()}
        return ScoreTable(scores=scores, recording_names=self.recording_names, vehicles=self.vehicles, **columns)


def make_table(
    parts: Sequence[GraphColumns],
    names: Sequence[Sequence[str]],
    scores: dict[str, NDArray[np.float32]],
    is_virtual: Sequence[bool],
    is_learned: NDArray[np.bool_] | None = None,
) -> ScoreTable:
    """Put scores, and what the habits of identifiers say, beside the provenance of their windows.

    The recordings of each part are numbered on.

    Args:
        parts: the column sets that were scored, one after the other.
        names: recording names of each part.
        scores: model -> [G] over all parts.
        is_virtual: per part, whether it is injected traffic.
        is_learned: [G] windows that a fusion has learned from; none by default.
    """
    shifts = np.cumsum([0] + [len(part) for part in names])
    return ScoreTable(
        scores=scores | {HABITS: habits_column(parts)},
        label=np.concatenate([np.asarray(part["y"]) for part in parts]),
        recording=np.concatenate(
            [np.asarray(part["recording"]) + shift for part, shift in zip(parts, shifts, strict=False)]
        ).astype(np.int32),
        recording_names=[name for part in names for name in part],
        start_time=np.concatenate([np.asarray(part["start_time"]) for part in parts]),
        end_time=np.concatenate([np.asarray(part["end_time"]) for part in parts]),
        attack_count=np.concatenate([np.asarray(part["attack_count"]) for part in parts]),
        kind=np.concatenate([np.asarray(part["kind"]) for part in parts]),
        is_virtual=np.repeat(np.asarray(is_virtual, bool), [part.num_graphs for part in parts]),
        is_learned=np.zeros(sum(part.num_graphs for part in parts), bool) if is_learned is None else is_learned,
    )


def write_table(path: Path, table: ScoreTable) -> None:
    """Write a table as npz, atomically."""
    columns: dict[str, Any] = {f"{MODEL_PREFIX}{name}": values for name, values in table.scores.items()}
    for name in WINDOW_COLUMNS:
        columns[name] = getattr(table, name)
    columns["recording_names"] = np.array(table.recording_names, dtype=np.str_)
    buffer = io.BytesIO()
    np.savez(buffer, **columns)
    write_bytes_atomically(path, buffer.getvalue())


def read_table(path: Path) -> ScoreTable:
    """Read what `write_table` wrote."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: run the evaluation stage again")
    with np.load(path, allow_pickle=False) as file:
        columns = {name: file[name] for name in file.files}
    names = [name for name in columns if name.startswith(MODEL_PREFIX)]
    scores = {name.removeprefix(MODEL_PREFIX): columns.pop(name) for name in names}
    missing = [name for name in WINDOW_COLUMNS if name not in columns] + [HABITS] * (HABITS not in scores)
    if missing:
        raise UserError(f"{path} was written without {', '.join(missing)}: run the evaluation stage again")
    known = {name: columns[name] for name in WINDOW_COLUMNS}  # of a newer kdgat there may be more
    return ScoreTable(scores=scores, recording_names=columns["recording_names"].tolist(), **known)


def habits_column(parts: Sequence[GraphColumns]) -> NDArray[np.float32]:
    """Return what the habits say [G] of every window of column sets, one after the other: 1 is an alarm, -1 is none."""
    return np.concatenate([np.where(part["suspicion"] != 0, 1.0, -1.0) for part in parts]).astype(np.float32)


def baseline_scores(parts: Sequence[GraphColumns], node_features: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Return the largest value [G] in each window of those BASELINE_FEATURES that the windows have, by detector."""
    return {
        f"{BASELINE_PREFIX}{name}": np.concatenate([_largest(part, node_features.index(name)) for part in parts])
        for name in BASELINE_FEATURES
        if name in node_features
    }


def is_untrained(model: str) -> bool:
    """Return whether a detector has learned nothing.

    >>> [is_untrained(name) for name in ("habits", "baseline: count_excess", "normal")]
    [True, True, False]
    """
    return model == HABITS or is_baseline(model)


def is_baseline(model: str) -> bool:
    """Return whether a detector is one feature alone: its score has any scale, as a log error has."""
    return model.startswith(BASELINE_PREFIX)


def _largest(part: GraphColumns, column: int) -> NDArray[np.float32]:
    found = np.empty(part.num_graphs, np.float32)
    for start in range(0, part.num_graphs, CHUNK_WINDOWS):
        stop = min(start + CHUNK_WINDOWS, part.num_graphs)
        pointers = np.asarray(part.node_ptr[start : stop + 1])
        values = np.asarray(part.x[pointers[0] : pointers[-1], column])
        found[start:stop] = np.maximum.reduceat(values, pointers[:-1] - pointers[0])  # no window is without nodes
    return found


@dataclass(frozen=True)
class Scores:
    """Windows of one scenario in file order."""

    probability: NDArray[np.float32]  # [G] calibrated
    label: NDArray[np.int8]  # [G] 1: the window holds an attack message
    recording: NDArray[np.int32]  # [G] index into recording_names
    recording_names: Sequence[str]
    start_time: NDArray[np.float64]  # [G] s
    attack_count: NDArray[np.int32]  # [G] attack messages in the window
    decision: NDArray[np.bool_] | None = None  # [G] as decided, where the rule has one threshold per recording

    def validate(self) -> None:
        """Raise UserError unless all columns describe the same windows."""
        num_windows = len(self.probability)
        for name in ("label", "recording", "start_time", "attack_count"):
            if len(getattr(self, name)) != num_windows:
                raise UserError(f"{name} has {len(getattr(self, name))} windows, probability has {num_windows}")
        if self.decision is not None and len(self.decision) != num_windows:
            raise UserError(f"decision has {len(self.decision)} windows, probability has {num_windows}")
        if not np.all((self.probability >= 0) & (self.probability <= 1)):
            raise UserError("probability must lie in 0 to 1 and not be NaN")
        if num_windows and not 0 <= self.recording.min() <= self.recording.max() < len(self.recording_names):
            raise UserError(f"recording must index the {len(self.recording_names)} recording names")


def scores_path(output: Path, scenario: str) -> Path:
    """Name the score file of a scenario in the output directory of a run."""
    return output / SCORES_FOLDER / f"{scenario}.npz"


def write_scores(path: Path, scores: Scores) -> None:
    """Write scores atomically, as a compressed npz without pickle."""
    scores.validate()
    columns = {field.name: getattr(scores, field.name) for field in fields(Scores)}
    columns["recording_names"] = np.array(list(scores.recording_names), dtype=np.str_)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: column for name, column in columns.items() if column is not None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(path, buffer.getvalue())


def read_scores(path: Path) -> Scores:
    """Read scores; UserError names the file and what is wrong with it."""
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {field.name: file[field.name] for field in fields(Scores) if field.name in file.files}
        names = columns.pop("recording_names").tolist()
        scores = Scores(recording_names=names, **columns)
        scores.validate()
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError) as error:
        raise UserError(f"{path} is not a usable file of scores ({error}); run the evaluation again") from error
    return scores
