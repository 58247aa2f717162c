"""Raw scores of all models of one seed, of windows and of nodes: what `evaluation` writes and decisions are made from.

What attention networks say of single identifiers, the nodes of a window, is kept for evidence that adds up.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError, write_bytes_atomically
from kdgat.can.evaluation.untrained import habits_column
from kdgat.can.models.names import HABITS
from kdgat.graphs import GraphColumns, pointers

WINDOW_COLUMNS: Final = (
    "label", "recording", "start_time", "end_time", "attack_count", "kind", "is_virtual", "is_learned",
)  # fmt: skip
MODEL_PREFIX: Final = "model:"  # columns of a table file that are scores


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

    def select(self, chosen: NDArray[np.bool_]) -> "ScoreTable":
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


@dataclass(frozen=True)
class NodeScores:
    """Logits of the nodes of G windows, N in all, in the order of the windows' score table."""

    node_ptr: NDArray[np.int64]  # [G + 1]
    node_id: NDArray[np.int32]  # [N] arbitration ids
    scores: dict[str, NDArray[np.float16]]  # attention network -> [N]; half precision is enough to rank them


def make_node_scores(parts: Sequence[GraphColumns], scores: dict[str, NDArray[np.float32]]) -> NodeScores:
    """Put node logits, model -> [N] over all column sets, beside the identifiers that they are of."""
    return NodeScores(
        node_ptr=pointers(np.concatenate([part.node_counts for part in parts])),
        node_id=np.concatenate([np.asarray(part["node_id"]) for part in parts]),
        scores={name: values.astype(np.float16) for name, values in scores.items()},
    )


def write_node_scores(path: Path, nodes: NodeScores) -> None:
    """Write them as a compressed npz, atomically."""
    columns: dict[str, Any] = {f"{MODEL_PREFIX}{name}": values for name, values in nodes.scores.items()}
    columns |= {"num_nodes": np.diff(nodes.node_ptr).astype(np.int32), "node_id": nodes.node_id}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **columns)
    write_bytes_atomically(path, buffer.getvalue())


def read_node_scores(path: Path) -> NodeScores:
    """Read what `write_node_scores` wrote."""
    with np.load(path, allow_pickle=False) as file:
        columns = {name: file[name] for name in file.files}
    node_ptr = pointers(columns.pop("num_nodes"))
    node_id = columns.pop("node_id")
    return NodeScores(node_ptr, node_id, {name.removeprefix(MODEL_PREFIX): values for name, values in columns.items()})
