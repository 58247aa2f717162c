"""Windows in the plane of the principal components of their embeddings, and the file that holds them."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import write_bytes_atomically

EMBEDDINGS_FILE: Final = "embeddings.npz"


@dataclass(frozen=True)
class EmbeddingMap:
    """M windows in the plane of the two largest principal components of their embeddings."""

    model: str
    point: NDArray[np.float32]  # [M, 2]
    share: NDArray[np.float64]  # [2] of the variance of the embeddings
    recording: NDArray[np.str_]  # [M] name
    kind: NDArray[np.int8]  # [M] index into ATTACK_KINDS
    is_virtual: NDArray[np.bool_]  # [M]


def principal_plane(values: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the first two principal components [M, 2] of rows [M, P], and their shares of the variance [2].

    The largest weight of each component is positive: its sign says nothing else.
    """
    centred = values.astype(np.float64) - values.mean(axis=0, dtype=np.float64)
    if centred.shape[1] < 2:
        centred = np.pad(centred, ((0, 0), (0, 2 - centred.shape[1])))
    _, singular, components = np.linalg.svd(centred, full_matrices=False)
    axes = components[:2]
    signs = np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])
    total = float((singular**2).sum())
    share = singular[:2] ** 2 / total if total > 0.0 else np.zeros(2)
    return (centred @ (axes * signs[:, None]).T).astype(np.float32), share


def write_map(path: Path, found: EmbeddingMap) -> None:
    """Write a map as npz, atomically."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{field.name: getattr(found, field.name) for field in fields(EmbeddingMap)})
    write_bytes_atomically(path, buffer.getvalue())


def read_map(path: Path) -> EmbeddingMap:
    """Read what `write_map` wrote."""
    with np.load(path, allow_pickle=False) as file:
        columns = {field.name: file[field.name] for field in fields(EmbeddingMap)}
    return EmbeddingMap(model=str(columns.pop("model")), **columns)
