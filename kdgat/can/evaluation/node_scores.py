"""What attention networks say of single identifiers in each window: kept for evidence that adds up."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.files import write_bytes_atomically
from kdgat.graphs.columns import GraphColumns, pointers

MODEL_PREFIX: Final = "model:"  # columns that are scores


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
