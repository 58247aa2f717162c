"""What of a path does not change when a tree is moved or turned: distances, angles, and the torsion with its sign.

Of a path i, j, k, p (Zhang and Zhao, "Representation Learning on Spatial Networks", NeurIPS 2021): the distances
|ij|, |jk| and |jp|, the angles at j between ij and jk and between ij and jp, and the angle about ij from jk to jp.
Torsions go through sines and cosines of multiples, because a basis on an interval breaks at its ends. Computed in
float32 whatever autocast says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from kdgat.trees.models.paths import Paths

SMALLEST = 1e-6  # of a length in median edges: below, a direction is not known
STRAIGHT = 0.05  # sine of the angle at which a torsion counts half: of three nodes in a line, rounding decides it
NUM_ANGLES = 6  # centres on [0, pi]
NUM_HARMONICS = 6  # of a torsion: a sine and a cosine of each


@dataclass(frozen=True, eq=False)
class PathGeometry:
    """Hold features of P paths, 0 where a short path has no such part or a direction is not known.

    Attributes:
        first: [P, D] of |ij|.
        second: [P, D + A] of |jk| and its angle.
        third: [P, D + A + 2 T] of |jp|, its angle and its torsion.
    """

    first: Tensor
    second: Tensor
    third: Tensor


class GeometryBasis(nn.Module):
    """Write distances, angles and torsions as features: Gaussians at centres on a logarithmic scale and on [0, pi]."""

    centres: Tensor
    angles: Tensor
    multiples: Tensor

    def __init__(self, num_distances: int, distance_range: tuple[float, float]) -> None:
        """Hold the centres; `distance_range` is where they lie, in median edges."""
        super().__init__()
        low, high = (math.log(value) for value in distance_range)
        # Buffers: weights that are used on other data keep the centres that they were trained with.
        self.register_buffer("centres", torch.linspace(low, high, num_distances))
        self.distance_width = (high - low) / max(num_distances - 1, 1)
        self.register_buffer("angles", torch.linspace(0.0, math.pi, NUM_ANGLES), persistent=False)
        self.register_buffer("multiples", torch.arange(1.0, NUM_HARMONICS + 1), persistent=False)

    @staticmethod
    def widths(num_distances: int) -> tuple[int, int, int]:
        """Return the number of features of each part of `PathGeometry`."""
        return num_distances, num_distances + NUM_ANGLES, num_distances + NUM_ANGLES + 2 * NUM_HARMONICS

    def forward(self, position: Tensor, paths: Paths) -> PathGeometry:
        """Return the features of paths between positions [N, 3]."""
        with torch.no_grad(), torch.autocast(position.device.type, enabled=False):
            i, j, k, p = (position.float()[nodes.clamp(min=0)] for nodes in paths.nodes)
            has_k, has_p = (paths.nodes[2] >= 0)[:, None], (paths.nodes[3] >= 0)[:, None]
            back, on, over = i - j, k - j, p - j
            unit = functional.normalize(back, dim=1, eps=SMALLEST)
            normal_on, normal_over = torch.cross(back, on, dim=1), torch.cross(back, over, dim=1)
            sine = (torch.cross(normal_on, normal_over, dim=1) * unit).sum(1)
            torsion = torch.atan2(sine, (normal_on * normal_over).sum(1))
            bend = torch.minimum(self._sine(normal_on, back, on), self._sine(normal_over, back, over))[:, None]
            certainty = bend**2 / (bend**2 + STRAIGHT**2)
            multiples = torsion[:, None] * self.multiples
            return PathGeometry(
                self._distance(back),
                torch.cat([self._distance(on), self._angle(back, on)], 1) * has_k,
                torch.cat(
                    [
                        self._distance(over),
                        self._angle(back, over),
                        torch.cat([multiples.sin(), multiples.cos()], 1) * certainty,
                    ],
                    1,
                )
                * has_p,
            )

    def _distance(self, vector: Tensor) -> Tensor:
        scaled = (vector.norm(dim=1).clamp(min=SMALLEST).log()[:, None] - self.centres) / self.distance_width
        return torch.exp(-0.5 * scaled**2)

    @staticmethod
    def _sine(normal: Tensor, one: Tensor, other: Tensor) -> Tensor:
        return normal.norm(dim=1) / (one.norm(dim=1) * other.norm(dim=1)).clamp(min=SMALLEST)

    def _angle(self, one: Tensor, other: Tensor) -> Tensor:
        """Return the features of the angles between vectors; none where one of them is too short."""
        sine = torch.cross(one, other, dim=1).norm(dim=1)
        angle = torch.atan2(sine, (one * other).sum(1))
        scaled = (angle[:, None] - self.angles) / (math.pi / (NUM_ANGLES - 1))
        is_known = torch.minimum(one.norm(dim=1), other.norm(dim=1))[:, None] > SMALLEST
        return torch.exp(-0.5 * scaled**2) * is_known
