"""Rivers by Horton's and Tokunaga's rules, grown upstream from the outlet as a Markov process on stream orders.

A stream of order k takes in T_i = a c^(i-1) streams of order k - i on average and begins where two of order k - 1 meet
(Tokunaga 1978). With a geometric number of side streams, whether a stream goes on does not depend on how many it has
taken in (hierarchical branching process; Kovchegov and Zaliapin 2020): children depend on a node's order alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from kdgat.trees.synthetic.law import MAX_CHILDREN, Floats, Growth, State, of_children, turned

_UP = np.array([[0.0, 0.0, 1.0]])  # normal of the plane that rivers lie in


@dataclass(frozen=True)
class RiverLaw:
    """Grow rivers in the plane z = 0: streams of falling order, main streams straight, side streams at an angle.

    Nodes are confluences, springs and bends (one child: the same stream goes on). The radius follows the discharge that
    is expected of a stream's order, not that of the subtree that was drawn: it must not tell what lies upstream.

    Attributes:
        order: of the stream at the outlet (Strahler).
        tokunaga_a: side streams of the order next to the stream's.
        tokunaga_c: ratio of the numbers of side streams from one order to the one below.
        bend: probability of one child, at nodes where the stream goes on.
        scale: median length of links of order 1, in the unit of positions.
        scale_spread: standard deviation of a river's log scale.
        length_ratio: median length of links of one order by that of the order below.
        length_memory: share of the log deviation of a link's length that the next one inherits.
        length_noise: standard deviation of log lengths.
        angle: rad, median angle of a side stream to the main stream's direction.
        angle_spread: standard deviation of a river's log angle.
        angle_noise: standard deviation of log angles.
        main_angle: angle of the stream that goes on, by that of a side stream.
        fork_angle: that of two streams of equal order, by that of a side stream.
        radius: of streams of order 1, by the river's scale.
        radius_noise: standard deviation of log radii.
    """

    order: int = 4
    tokunaga_a: float = 1.0
    tokunaga_c: float = 2.0
    bend: float = 0.08
    scale: float = 1.0
    scale_spread: float = 0.6
    length_ratio: float = 1.3
    length_memory: float = 0.4
    length_noise: float = 0.25
    angle: float = 1.1
    angle_spread: float = 0.35
    angle_noise: float = 0.15
    main_angle: float = 0.25
    fork_angle: float = 0.6
    radius: float = 0.02
    radius_noise: float = 0.05

    @property
    def bifurcation_ratio(self) -> float:
        """Return Horton's ratio of the numbers of streams of successive orders, in the limit of many orders."""
        middle = 2.0 + self.tokunaga_a + self.tokunaga_c
        return float(0.5 * (middle + np.sqrt(middle**2 - 8.0 * self.tokunaga_c)))

    def side_streams(self, order: Floats) -> Floats:
        """Return the mean number of side streams of each order of streams of an order: [N, K], column 0 is order 1."""
        below = order[:, None] - np.arange(1, self.order + 1)
        return np.where(below > 0, self.tokunaga_a * self.tokunaga_c ** np.maximum(below - 1.0, 0.0), 0.0)

    def root(self, generator: Generator) -> State:
        """Draw an outlet, which has one child, and the river's own scale and angle."""
        normal = generator.normal(size=(2, 1))
        heading = generator.uniform(0.0, 2.0 * np.pi, size=1)
        order = np.full(1, float(self.order))
        log_scale = np.log(self.scale) + self.scale_spread * normal[0]
        return {
            "log_scale": log_scale,
            "log_angle": np.log(self.angle) + self.angle_spread * normal[1],
            "depth": np.zeros(1),
            "order": order,
            "length": np.zeros(1),
            "length_deviation": np.zeros(1),
            "angle": np.zeros(1),
            "direction": np.stack([np.cos(heading), np.sin(heading), np.zeros(1)], axis=1),
            "radius": self._radius(log_scale, order),
        }

    def num_children_probability(self, state: State) -> Floats:
        """Return the probability of 0 to 3 children, [N, 4]: streams of order 1 end in springs, others fork."""
        probability = np.zeros((len(state["order"]), 4))
        is_first = state["order"] == 1
        probability[:, 1] = self.bend
        probability[is_first, 0] = 1.0 - self.bend
        probability[~is_first, 2] = 1.0 - self.bend
        probability[state["depth"] == 0] = [0.0, 1.0, 0.0, 0.0]
        return probability

    def growth(self, state: State, number: NDArray[np.int64], generator: Generator) -> Growth:
        """Draw orders and sides of children, then lengths, angles and radii, log-normal around what is expected."""
        own = state["order"]
        side = self.side_streams(own)
        total = side.sum(axis=1)
        goes_on = generator.random(len(own)) * (1.0 + total) < total
        cumulative = np.cumsum(side, axis=1) / np.where(total > 0, total, 1.0)[:, None]
        tributary = 1.0 + (generator.random((len(own), 1)) >= cumulative).sum(axis=1)
        is_fork = number == 2
        first = np.where(is_fork & ~goes_on, own - 1.0, own)
        second = np.where(goes_on, tributary, own - 1.0)
        order = np.stack([first, second, np.ones(len(own))], axis=1)
        factor = np.where(goes_on[:, None], [self.main_angle, 1.0, 1.0], self.fork_angle)
        factor[~is_fork] = self.main_angle
        noise = generator.normal(size=(3, len(own), MAX_CHILDREN))
        common = state["log_scale"] + self.length_memory * state["length_deviation"]
        length = np.exp(common[:, None] + (order - 1.0) * np.log(self.length_ratio) + self.length_noise * noise[0])
        angle = np.exp(state["log_angle"][:, None] + self.angle_noise * noise[1]) * factor
        left = generator.random(len(own)) < 0.5
        return {
            "length": length,
            "angle": np.minimum(angle, np.pi),
            "radius": self._radius(state["log_scale"][:, None], order) * np.exp(self.radius_noise * noise[2]),
            "order": order,
            "left": np.stack([left, ~left, left], axis=1).astype(float),
        }

    def place(self, state: State, number: NDArray[np.int64], growth: Growth, generator: Generator) -> State:
        """Return the states of all children; the two of a confluence lie on both sides of its direction."""
        rows, columns = of_children(number)
        length, angle, order, left = (growth[key][rows, columns] for key in ("length", "angle", "order", "left"))
        log_scale = state["log_scale"][rows]
        direction, _ = turned(state["direction"][rows], _UP, angle, np.where(left == 1.0, 0.0, np.pi))
        direction[:, 2] = 0.0  # the sine of a half turn is rounded
        return {
            "log_scale": log_scale,
            "log_angle": state["log_angle"][rows],
            "depth": state["depth"][rows] + 1.0,
            "order": order,
            "length": length,
            "length_deviation": np.log(length) - log_scale - (order - 1.0) * np.log(self.length_ratio),
            "angle": angle,
            "direction": direction,
            "radius": growth["radius"][rows, columns],
        }

    def _radius(self, log_scale: Floats, order: Floats) -> Floats:
        """Return the square root of the discharge, which grows from order to order by the bifurcation ratio."""
        return self.radius * np.exp(log_scale) * self.bifurcation_ratio ** (0.5 * (order - 1.0))
