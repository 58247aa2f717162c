"""The labels of prepared trees, without what trains on them: preparing loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kdgat.graphs import GraphColumns
from kdgat.trees.graphs.networks import Networks
from kdgat.trees.names import TRAIN


def labelled(columns: GraphColumns) -> NDArray[np.int64]:
    """Return the networks whose class or number is known."""
    return np.flatnonzero(np.asarray(columns["labelled"])[Networks.of(columns).first])


def labels_of(columns: GraphColumns) -> NDArray[np.int64]:
    """Return the label of each network."""
    return np.asarray(columns["label"])[Networks.of(columns).first]


def describe_untrained(columns: Mapping[str, GraphColumns], classes: Sequence[str]) -> list[str]:
    """Say of each class that training has no tree of how many the other splits have: no model can learn to name it."""
    if not classes:
        return []
    counts = {
        split: np.bincount(labels_of(one)[labelled(one)], minlength=len(classes)) for split, one in columns.items()
    }
    return [
        f"no training tree is of the class {classes[place]!r}, so no model can name it: {trees} of it count as wrong; "
        "give some to the training split, or leave them out"
        for place in map(int, np.flatnonzero(counts[TRAIN] == 0))
        if (trees := " and ".join(f"{found[place]} in {split}" for split, found in counts.items() if found[place]))
    ]


def choose_labelled(columns: GraphColumns, fraction: float, seed: int) -> NDArray[np.int64]:
    """Return the networks whose labels are used: a share of each class, at least one; drawn by the seed alone."""
    known = labelled(columns)
    labels = labels_of(columns)[known]
    generator = np.random.default_rng([seed, 1])
    groups = [known[labels == one] for one in np.unique(labels)]
    chosen = [generator.permutation(group)[: max(1, round(fraction * len(group)))] for group in groups]
    return np.sort(np.concatenate(chosen)) if chosen else known
