"""What is measured of a node's own edge: an input of encoders, and of its children what growth predicts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.graphs.columns import HAS_RADIUS, RADIUS


@dataclass(frozen=True, eq=False)
class Edges:
    """Hold what each channel measures of the edge from a node to its parent.

    Attributes:
        values: [N, C].
        known: [N, C] bool; false at roots, and for angles one edge below them, and without radii.
    """

    values: Tensor
    known: Tensor


def measure_edges(tree: TreeBatch) -> Edges:
    """Return logarithm of length, angle to the parent's edge, and logarithm of the radius by the parent's."""
    with torch.no_grad():
        parent = tree.parent.clamp(min=0)
        has_edge = (tree.parent >= 0) & (tree.length > 0)
        edge = tree.position - tree.position[parent]
        above = edge[parent]
        sine = torch.cross(above, edge, dim=1).norm(dim=1)
        angle = torch.atan2(sine, (above * edge).sum(1))
        has_angle = has_edge & (tree.parent[parent] >= 0) & (torch.minimum(above.norm(dim=1), edge.norm(dim=1)) > 0)
        has_radius = tree.x[:, HAS_RADIUS] > 0
        has_ratio = has_edge & has_radius & has_radius[parent]
        values = torch.stack(
            [
                torch.where(has_edge, tree.length, 1.0).log(),
                torch.where(has_angle, angle, 0.0),
                torch.where(has_ratio, tree.x[:, RADIUS] - tree.x[parent, RADIUS], 0.0),
            ],
            dim=1,
        )
        return Edges(values, torch.stack([has_edge, has_angle, has_ratio], dim=1))
