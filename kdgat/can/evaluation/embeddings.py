"""A map of windows as an attention network sees them: its embeddings of some of them, in two dimensions.

The sample is drawn from validation and test windows alike, the same number of each recording and kind of attack, so
that what is rare is seen. The two axes are the principal components of the sample: they are fitted without labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch_geometric.data import Batch

from kdgat.can.data.pool import PooledStores
from kdgat.can.evaluation.embedding_map import EmbeddingMap, principal_plane
from kdgat.can.models.scoring import Outputs, run_model
from kdgat.canbus.features import ATTACK_KINDS

MAPPED_MODELS: Final = ("distill_gat", "curriculum", "normal")  # the first that the run has
MOST_MAPPED: Final = 2000  # windows


def map_embeddings(
    model: str, network: nn.Module, pools: Sequence[PooledStores], names: Sequence[Sequence[Sequence[str]]], seed: int
) -> EmbeddingMap | None:
    """Embed a sample of the windows of some pools and project it; None where there are fewer than three windows.

    The first store of each pool holds recorded windows, the others those of virtual vehicles; `names` has those of the
    recordings of each.
    """
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
