"""Rivers follow Horton's and Tokunaga's rules."""

import numpy as np
import pytest

from kdgat.trees.evaluation.morphometrics import strahler_orders
from kdgat.trees.synthetic.classes import CLASSES
from kdgat.trees.synthetic.dataset import draw
from kdgat.trees.synthetic.rivers import RiverLaw


def expected_streams(law: RiverLaw) -> np.ndarray:
    """Return the mean number of streams of each order, lowest first, by Tokunaga's recursion."""
    streams = np.zeros(law.order)
    streams[-1] = 1.0
    for order in range(law.order - 1, 0, -1):
        sides = sum(
            streams[k - 1] * law.tokunaga_a * law.tokunaga_c ** (k - order - 1) for k in range(order + 1, law.order + 1)
        )
        streams[order - 1] = 2.0 * streams[order] + sides
    return streams


def counted_streams(tree, order, num_orders):
    begins = np.append(True, order[1:] != order[tree.parent[1:]])
    return np.bincount(order[begins], minlength=num_orders + 1)[1:]


@pytest.mark.parametrize("name", CLASSES["rivers"])
def test_orders_are_strahlers_and_streams_as_many_as_tokunaga_says(name):
    counts = []
    for river in draw("rivers", [name], 60, seed=4):
        order = strahler_orders(river.tree)
        assert np.array_equal(order, river.state["order"])
        counts.append(counted_streams(river.tree, order, river.law.order))
    # Sizes outside the range, a few in a hundred, are drawn again: that moves the means by less than a tenth.
    mean, expected = np.mean(counts, axis=0), expected_streams(river.law)
    assert mean[-1] == expected[-1] == 1
    error = 5 * np.std(counts, axis=0) / np.sqrt(len(counts))
    assert (np.abs(mean - expected) < error + 0.1 * expected).all()


@pytest.mark.parametrize(("a", "c"), [(1.0, 2.0), (0.5, 1.5), (1.6, 2.0)])
def test_the_bifurcation_ratio_is_the_limit_of_the_ratios_of_streams(a, c):
    law = RiverLaw(order=14, tokunaga_a=a, tokunaga_c=c)
    streams = expected_streams(law)
    assert streams[0] / streams[1] == pytest.approx(law.bifurcation_ratio, rel=1e-3)


def test_main_streams_go_on_straighter_than_side_streams_join():
    straight, joining = [], []
    for river in draw("rivers", ["reference"], 40, seed=0):
        tree, order = river.tree, river.state["order"]
        goes_on = (order == order[tree.parent]) & (tree.num_children[tree.parent] == 2) & (tree.depth > 1)
        side = (order < order[tree.parent]) & np.append(False, np.isin(tree.parent[1:], tree.parent[goes_on]))
        straight.append(river.state["angle"][goes_on])
        joining.append(river.state["angle"][side])
    law = RiverLaw()
    ratio = np.concatenate(straight).mean() / np.concatenate(joining).mean()
    assert ratio == pytest.approx(law.main_angle, rel=0.1)


def test_radius_follows_the_order_and_not_what_lies_upstream():
    law = RiverLaw()
    for river in draw("rivers", ["reference"], 5, seed=0):
        state = river.state
        scaled = np.log(river.tree.radius) - state["log_scale"] - np.log(law.radius)
        expected = 0.5 * (state["order"] - 1) * np.log(law.bifurcation_ratio)
        assert np.abs(scaled - expected).max() < 6 * law.radius_noise
