"""Laws of growth: what a node's children are, drawn from the node's state alone (a branching Markov process).

A state is a dict of arrays, one row per node: what the tree has in common (scale, ratio, angle) and what the node is
itself (depth, deviation from the common, direction). Because a law draws children for any number of rows at once, the
same code grows trees and draws the many alternatives from which `optimum.py` finds the best prediction there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
State = dict[str, Floats]
"""[N] or [N, 3] per name; `length`, `angle`, `direction`, `radius` are there in every law."""
Growth = dict[str, Floats]
"""[N, 3] per name, one column per child; columns beyond a node's number of children hold values of no meaning."""

MAX_CHILDREN: Final = 3


class Law(Protocol):
    """Draw roots, numbers of children, what growth says of them, and their states."""

    def root(self, generator: Generator) -> State:
        """Draw the state of a tree's root, one row; what the whole tree has in common is part of it."""
        ...

    def num_children_probability(self, state: State) -> Floats:
        """Return the probability of 0, 1, 2 and 3 children, [N, 4]."""
        ...

    def growth(self, state: State, number: NDArray[np.int64], generator: Generator) -> Growth:
        """Draw `length`, `angle` (rad, to the node's own direction) and `radius` of children, each [N, 3]."""
        ...

    def place(self, state: State, number: NDArray[np.int64], growth: Growth, generator: Generator) -> State:
        """Return the states of all children, those of the first row first."""
        ...


def draw_num_children(probability: Floats, generator: Generator) -> NDArray[np.int64]:
    """Draw a number of children for each row of [N, 4] probabilities."""
    cumulative = np.cumsum(probability[:, :-1], axis=1)
    return (generator.random((len(probability), 1)) >= cumulative).sum(axis=1)


def of_children(number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return row of the parent and column of each child, those of the first row first."""
    rows, columns = np.nonzero(np.arange(MAX_CHILDREN) < number[:, None])
    return rows, columns


def random_frame(generator: Generator) -> tuple[Floats, Floats]:
    """Draw a direction, uniform on the sphere, and a unit vector across it, each [1, 3]."""
    direction, other = generator.normal(size=(2, 1, 3))
    direction = direction / np.linalg.norm(direction)
    other = other - (other * direction).sum() * direction
    return direction, other / np.linalg.norm(other)


@dataclass(frozen=True)
class GrowthLaw:
    """Grow a neuron's tree: edges that shrink from the root, larger children that go on straighter, turning planes.

    The logarithm of a child's length is the tree's (scale and ratio, drawn once per tree) plus `length_memory` of the
    parent's deviation from it, plus the asymmetry, plus noise. So depth says little, the parent's edge says more, and
    all ancestors together, which show the tree's own scale, say most. Angles follow the same rule.

    Attributes:
        branching_depth: at which half of the nodes that are no chain nodes stop.
        branching_width: levels over which branching goes over into stopping.
        branching_spread: standard deviation of a tree's own branching depth.
        vigour: by how much a longer edge makes branching likelier, in logits per unit of log length.
        chain: probability of one child.
        trifurcation: share of three children among two and three.
        scale: median length of a tree's first edge, in the unit of positions.
        scale_spread: standard deviation of a tree's log scale.
        length_ratio: median length of an edge by that of its parent.
        ratio_spread: standard deviation of a tree's log ratio.
        length_memory: share of the log deviation that a child inherits.
        length_noise: standard deviation of log lengths.
        length_asymmetry: log length by which the first child is longer, the last one shorter.
        angle: rad, median angle of a bifurcation's children to their parent's direction.
        angle_spread, angle_memory, angle_noise: as those of lengths.
        angle_asymmetry: share by which the first child's angle is smaller, the last one's larger.
        chain_angle: that of a single child, by `angle`.
        dihedral: rad, preferred turn of a branching plane against the one before; mirror images have the opposite sign.
        dihedral_noise: rad, standard deviation of this turn.
        radius: at the root, by the tree's scale.
        taper: radius at the end of an edge by that at its start.
        radius_asymmetry: share of radius^1.5 (Rall 1959) that goes over from the last to the first child.
        radius_memory: share of the log deviation from a symmetric tree's radius that a child inherits.
        radius_noise: standard deviation of log radii.
    """

    branching_depth: float = 6.6
    branching_width: float = 0.6
    branching_spread: float = 0.2
    vigour: float = 1.0
    chain: float = 0.06
    trifurcation: float = 0.04
    scale: float = 40.0
    scale_spread: float = 0.6
    length_ratio: float = 0.85
    ratio_spread: float = 0.06
    length_memory: float = 0.45
    length_noise: float = 0.22
    length_asymmetry: float = 0.3
    angle: float = 0.5
    angle_spread: float = 0.3
    angle_memory: float = 0.5
    angle_noise: float = 0.16
    angle_asymmetry: float = 0.35
    chain_angle: float = 0.5
    dihedral: float = 1.2
    dihedral_noise: float = 0.5
    radius: float = 0.04
    taper: float = 0.95
    radius_asymmetry: float = 0.25
    radius_memory: float = 0.4
    radius_noise: float = 0.08

    def root(self, generator: Generator) -> State:
        """Draw a root, which has one child, and the tree's own scale, ratio, angle and branching depth."""
        normal = generator.normal(size=(5, 1))
        direction, plane = random_frame(generator)
        log_scale = np.log(self.scale) + self.scale_spread * normal[0]
        return {
            "log_scale": log_scale,
            "log_ratio": np.log(self.length_ratio) + self.ratio_spread * normal[1],
            "log_angle": np.log(self.angle) + self.angle_spread * normal[2],
            "branching_depth": self.branching_depth + self.branching_spread * normal[3],
            "depth": np.zeros(1),
            "length": np.zeros(1),
            "length_deviation": np.zeros(1),
            "angle": np.zeros(1),
            "angle_deviation": np.zeros(1),
            "direction": direction,
            "plane": plane,
            "radius": self.radius * np.exp(log_scale + self.radius_noise * normal[4]),
            "radius_deviation": self.radius_noise * normal[4],
        }

    def num_children_probability(self, state: State) -> Floats:
        """Return the probability of 0 to 3 children, [N, 4]: by depth and the own edge's length; one at the root."""
        logit = (state["branching_depth"] - state["depth"]) / self.branching_width
        branching = 1.0 / (1.0 + np.exp(-logit - self.vigour * state["length_deviation"]))
        rest = 1.0 - self.chain
        probability = np.stack(
            [
                rest * (1.0 - branching),
                np.full(len(branching), self.chain),
                rest * branching * (1.0 - self.trifurcation),
                rest * branching * self.trifurcation,
            ],
            axis=1,
        )
        probability[state["depth"] == 0] = [0.0, 1.0, 0.0, 0.0]
        return probability

    def expected_log_length(self, state: State, number: NDArray[np.int64]) -> Floats:
        """Return the mean log length of children, [N, 3]."""
        common = state["log_scale"] + state["depth"] * state["log_ratio"]
        inherited = self.length_memory * state["length_deviation"]
        return (common + inherited)[:, None] + self.length_asymmetry * _rank(number)

    def expected_log_angle(self, state: State, number: NDArray[np.int64]) -> Floats:
        """Return the mean log angle of children, [N, 3]."""
        inherited = self.angle_memory * state["angle_deviation"]
        return (state["log_angle"] + inherited)[:, None] + np.log(self._angle_factor(number))

    def growth(self, state: State, number: NDArray[np.int64], generator: Generator) -> Growth:
        """Draw lengths, angles and radii, log-normal around what is expected; no angle is above a half turn."""
        noise = generator.normal(size=(3, len(number), MAX_CHILDREN))
        length = np.exp(self.expected_log_length(state, number) + self.length_noise * noise[0])
        angle = np.exp(self.expected_log_angle(state, number) + self.angle_noise * noise[1])
        share = (1.0 + 2.0 * self.radius_asymmetry * _rank(number)) / np.maximum(number, 1)[:, None]
        forgotten = np.exp((self.radius_memory - 1.0) * state["radius_deviation"] + self.radius_noise * noise[2].T).T
        radius = state["radius"][:, None] * self.taper * share ** (1.0 / _RALL) * forgotten
        return {"length": length, "angle": np.minimum(angle, np.pi), "radius": radius}

    def place(self, state: State, number: NDArray[np.int64], growth: Growth, generator: Generator) -> State:
        """Return the states of all children; the branching plane turns by the preferred dihedral angle, with noise."""
        rows, columns = of_children(number)
        length, angle = growth["length"][rows, columns], growth["angle"][rows, columns]
        turn = self.dihedral + self.dihedral_noise * generator.normal(size=len(number))
        azimuth = turn[rows] + _AZIMUTH[columns]
        direction, plane = turned(state["direction"][rows], state["plane"][rows], angle, azimuth)
        inherited = {name: state[name][rows] for name in ("log_scale", "log_ratio", "log_angle", "branching_depth")}
        common = inherited["log_scale"] + state["depth"][rows] * inherited["log_ratio"]
        factor = self._angle_factor(number)[rows, columns]
        radius = growth["radius"][rows, columns]
        tapered = np.log(self.taper) - np.log(number[rows]) / _RALL
        return {
            **inherited,
            "depth": state["depth"][rows] + 1.0,
            "length": length,
            "length_deviation": np.log(length) - common,
            "angle": angle,
            "angle_deviation": np.log(angle / factor) - inherited["log_angle"],
            "direction": direction,
            "plane": plane,
            "radius": radius,
            "radius_deviation": np.log(radius / state["radius"][rows]) + state["radius_deviation"][rows] - tapered,
        }

    def _angle_factor(self, number: NDArray[np.int64]) -> Floats:
        factor = 1.0 - self.angle_asymmetry * _rank(number)
        factor[number == 1] = self.chain_angle
        return factor


_RALL: Final = 1.5  # exponent of radii whose sum stays the same at a branching point
_RANK: Final = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [1.0, 0.0, -1.0]])
_AZIMUTH: Final = np.array([0.0, np.pi, 0.5 * np.pi])


def _rank(number: NDArray[np.int64]) -> Floats:
    """Return 1 for the largest of a node's children, -1 for the smallest, 0 for others, [N, 3]."""
    return _RANK[number]


def turned(direction: Floats, plane: Floats, angle: Floats, azimuth: Floats) -> tuple[Floats, Floats]:
    """Return directions of children and the normals of the planes in which they branch, each [N, 3].

    Args:
        direction: [N, 3] unit vectors, of the parents' edges.
        plane: [N, 3] unit vectors across them, the normals of the planes in which the parents branched.
        angle: [N] rad, between a child's edge and its parent's.
        azimuth: [N] rad, dihedral angle between both planes.
    """
    inward = np.cross(plane, direction)
    cosine, sine = np.cos(azimuth)[:, None], np.sin(azimuth)[:, None]
    across = cosine * inward + sine * plane
    child = np.cos(angle)[:, None] * direction + np.sin(angle)[:, None] * across
    return child, cosine * plane - sine * inward
