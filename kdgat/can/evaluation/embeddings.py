"""A map of windows as an attention network sees them: its embeddings of some of them, in two dimensions.

The sample is drawn from validation and test windows alike, the same number of each recording and kind of attack, so
that what is rare is seen. The two axes are the principal components of the sample: they are fitted without labels.
`EMBEDDINGS_FILE` holds them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import write_bytes_atomically
from kdgat.canbus.features import ATTACK_KINDS

if TYPE_CHECKING:
    from torch import nn
    from torch_geometric.data import Batch

    from kdgat.can.data.pool import PooledStores
    from kdgat.can.models.scoring import Outputs

EMBEDDINGS_FILE: Final = "embeddings.npz"
MAPPED_MODELS: Final = ("distill_gat", "curriculum", "normal")  # the first that the run has
MOST_MAPPED: Final = 2000  # windows


def map_embeddings(
    model: str, network: nn.Module, pools: Sequence[PooledStores], names: Sequence[Sequence[Sequence[str]]], seed: int
) -> EmbeddingMap | None:
    """Embed a sample of the windows of some pools and project it; None where there are fewer than three windows.

    The first store of each pool holds recorded windows, the others those of virtual vehicles; `names` has those of the
    recordings of each.
    """
    from kdgat.can.models.scoring import run_model  # torch, which nobody needs who reads the file

    where = [_provenance(pool, labels) for pool, labels in zip(pools, names, strict=True)]
    recording, kind, is_virtual = (np.concatenate([part[place] for part in where]) for place in range(3))
    chosen = _stratified(recording, kind, np.random.default_rng(seed))
    if len(chosen) < 3:
        return None
    offsets = np.cumsum([0] + [pool.num_graphs for pool in pools])
    embedded = [
        run_model(network, pool, _embedding, chosen[(chosen >= start) & (chosen < start + pool.num_graphs)] - start)
        for pool, start in zip(pools, offsets.tolist(), strict=False)
    ]
    values = np.concatenate([found["embedding"] for found in embedded if found])
    point, share = principal_plane(values)
    return EmbeddingMap(model, point, share, recording[chosen], kind[chosen].astype(np.int8), is_virtual[chosen])


def chosen_model(weights: Mapping[str, Path]) -> str | None:
    """Return the network that is mapped; None where the run has none."""
    return next((name for name in MAPPED_MODELS if name in weights), None)


def _embedding(network: nn.Module, batch: Batch) -> Outputs:
    return {"embedding": network(batch).embedding}


def _provenance(
    pool: PooledStores, names: Sequence[Sequence[str]]
) -> tuple[NDArray[np.str_], NDArray[np.int64], NDArray[np.bool_]]:
    """Return recording name, kind of attack and whether it is virtual, [G] each; an untold kind is unknown."""
    recording = [
        np.asarray(labels, np.str_)[np.asarray(part["recording"])]
        for part, labels in zip(pool.parts, names, strict=True)
    ]
    kind = np.concatenate([np.asarray(part["kind"]) for part in pool.parts]).astype(np.int64)
    none, unknown = ATTACK_KINDS.index("none"), ATTACK_KINDS.index("unknown")
    kind = np.where(pool.labels == 1, np.where(kind == none, unknown, kind), none)
    is_virtual = np.repeat(np.arange(len(pool.parts)) > 0, [part.num_graphs for part in pool.parts])
    return np.concatenate(recording), kind, is_virtual


def _stratified(recording: NDArray[np.str_], kind: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """Return at most MOST_MAPPED indices, ascending: about as many of each recording and kind as there are."""
    if not len(recording):
        return np.zeros(0, np.int64)
    _, stratum = np.unique(np.stack([np.unique(recording, return_inverse=True)[1], kind]), axis=1, return_inverse=True)
    mixed = random.permutation(len(recording))
    order = mixed[np.argsort(stratum[mixed], kind="stable")]  # by stratum, in a random order within each
    sorted_stratum = stratum[order]
    turn = np.arange(len(order)) - np.searchsorted(sorted_stratum, sorted_stratum)
    first = np.lexsort((random.permutation(len(order)), turn))[:MOST_MAPPED]  # one of each, then the next of each
    return np.sort(order[first]).astype(np.int64)


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
