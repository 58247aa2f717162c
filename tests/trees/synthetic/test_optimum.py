"""Nothing beats the medians under the true law, and what sees less loses more."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kdgat.trees.structure.tree import Tree
from kdgat.trees.synthetic.classes import law_of
from kdgat.trees.synthetic.dataset import draw
from kdgat.trees.synthetic.generation import SyntheticTree
from kdgat.trees.synthetic.law import draw_num_children
from kdgat.trees.synthetic.optimum import best_shares, growth_optimum, measured, shares_below

ANGLES = np.linspace(0, np.pi, 17)[1:]
ANGLE_WIDTHS = np.full(16, np.pi / 16)
RADII = np.linspace(-1.5, 0.5, 24)
RADIUS_WIDTHS = np.full(24, RADII[1] - RADII[0])


def length_grid(trees):
    """Return thresholds between the quantiles of the trees' edges, and their logarithmic widths."""
    lengths = np.concatenate([each.tree.length[1:] for each in trees])
    grid = np.geomspace(*np.quantile(lengths, [0.005, 0.995]), 24)
    return grid, np.full(24, np.log(grid[1] / grid[0]))


def scored(each: SyntheticTree):
    """Yield of each node with children and a parent its children, found one by one."""
    for node in range(1, each.tree.num_nodes):
        children = np.flatnonzero(each.tree.parent == node)
        if len(children):
            yield node, children


def baseline_losses(trees, grid, widths, name):
    """Return mean losses of medians, means and the parent's own value, all and by depth, from the trees' own nodes."""
    shares, depth, own = [], [], []
    for each in trees:
        for node, children in scored(each):
            shares.append([(each.state[name][children] <= t).mean() for t in grid])
            depth.append(each.tree.depth[node])
            own.append(each.state[name][node] <= grid)
    shares, depth, own = np.array(shares), np.array(depth), np.array(own)
    by_depth = np.array([np.median(shares[depth == d], axis=0) for d in depth])
    predictions = {
        "median": np.median(shares, axis=0),
        "mean": shares.mean(axis=0),
        "by depth": by_depth,
        "parent": own,
    }
    return {key: float((np.abs(each - shares) @ widths).mean()) for key, each in predictions.items()}, len(shares)


@pytest.mark.parametrize(("kind", "margin"), [("neurons", 0.35), ("rivers", 0.25)])
def test_the_optimum_is_far_below_the_baselines(kind, margin):
    trees = list(draw(kind, None, 25, seed=0))
    grid, widths = length_grid(trees)
    optimum = growth_optimum(trees, grid, ANGLES, (widths, ANGLE_WIDTHS), draws=101)
    lengths, nodes = baseline_losses(trees, grid, widths, "length")
    angles, _ = baseline_losses(trees, ANGLES, ANGLE_WIDTHS, "angle")
    assert optimum["nodes"] == nodes
    assert optimum["share"] == pytest.approx(nodes / sum(each.tree.num_nodes for each in trees))
    assert optimum["length"] < (1 - margin) * min(lengths.values())
    assert optimum["angle"] < (1 - margin) * min(angles.values())
    assert optimum == growth_optimum(trees, grid, ANGLES, (widths, ANGLE_WIDTHS), draws=101)


def test_radii_are_looked_at_where_they_are_asked_for():
    trees = list(draw("neurons", ["reference"], 20, seed=0))
    lengths = ([1.0], [1.0], ([1.0], [1.0]), 51)
    found = growth_optimum(trees, *lengths, radius=(RADII, RADIUS_WIDTHS))
    assert set(found) - set(growth_optimum(trees, *lengths)) == {"radius"}
    shares = np.array(
        [
            [(np.log(each.tree.radius[children] / each.tree.radius[node]) <= t).mean() for t in RADII]
            for each in trees
            for node, children in scored(each)
        ]
    )
    baseline = (np.abs(np.median(shares, axis=0) - shares) @ RADIUS_WIDTHS).mean()
    assert 0 < found["radius"] < 0.65 * baseline


def test_no_perturbation_of_the_best_shares_loses_less_on_average():
    trees = list(draw("neurons", ["reference"], 20, seed=1))
    law, (grid, widths) = trees[0].law, length_grid(trees)
    state = {name: np.concatenate([each.state[name] for each in trees]) for name in trees[0].state}
    state = {name: array[state["depth"] > 0] for name, array in state.items()}
    generator = np.random.default_rng(0)
    thresholds = {"length": grid, "angle": ANGLES, "radius": RADII}
    best = best_shares(law, state, thresholds, 255, generator)
    probability = law.num_children_probability(state)
    probability[:, 0] = 0.0
    number = draw_num_children(probability / probability.sum(axis=1, keepdims=True), generator)
    children = law.growth(state, number, generator)
    for name, width in (("length", widths), ("angle", ANGLE_WIDTHS), ("radius", RADIUS_WIDTHS)):
        actual = shares_below(measured(children, state, name), number, thresholds[name])
        shares = best[name]
        assert (np.diff(shares, axis=1) >= 0).all()
        assert set(np.unique(np.round(6 * shares))) <= {0, 2, 3, 4, 6}
        padded = np.pad(shares, ((0, 0), (1, 1)), mode="edge")
        others = {
            "shorter": padded[:, 2:],
            "longer": padded[:, :-2],
            "smoother": (padded[:, 2:] + padded[:, :-2] + 2 * shares) / 4,
            "higher": np.minimum(shares + 0.1, 1),
            "lower": np.maximum(shares - 0.1, 0),
            "towards a half": 0.9 * shares + 0.05,
            "towards all": 0.9 * shares + 0.1 * shares.mean(axis=0),
            "noise": np.clip(shares + generator.normal(0, 0.05, shares.shape), 0, 1),
            "of another node": np.roll(shares, 1, axis=0),
        }
        for key, other in others.items():
            more = (np.abs(other - actual) - np.abs(shares - actual)) @ width
            assert more.mean() > 5 * more.std() / np.sqrt(len(more)), (name, key)


def test_without_noise_the_growth_is_known():
    law = replace(law_of("neurons", "reference"), length_noise=1e-9, angle_noise=1e-9, chain=0.0, trifurcation=0.0)
    state = law.root(np.random.default_rng(0))
    state["depth"] += 1.0
    number = np.array([2])
    thresholds = {"length": np.geomspace(1, 1000, 30), "angle": ANGLES}
    best = best_shares(law, state, thresholds, 11, np.random.default_rng(1))
    children = law.growth(state, number, np.random.default_rng(2))
    for name, grid in thresholds.items():
        np.testing.assert_array_equal(best[name], shares_below(children[name], number, grid))


def test_shares_count_only_the_children_there_are():
    values = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    shares = shares_below(values, np.array([1, 2, 3]), np.array([0.5, 1.0, 2.5]))
    np.testing.assert_allclose(shares, [[0, 1, 1], [0, 0.5, 1], [0, 1 / 3, 2 / 3]])


def test_the_entropy_is_that_of_the_numbers_of_children_given_all_that_is_known():
    trees = list(draw("neurons", None, 30, seed=2))
    surprise = np.concatenate(
        [
            -np.log(
                each.law.num_children_probability(each.state)[np.arange(each.tree.num_nodes), each.tree.num_children]
            )
            for each in trees
        ]
    )
    optimum = growth_optimum(trees, [1.0], [1.0], ([1.0], [1.0]), draws=3)
    assert abs(surprise.mean() - optimum["num_children"]) < 5 * surprise.std() / np.sqrt(len(surprise))
    assert 0 < optimum["num_children"] < math.log(4)


def test_a_tree_without_inner_edges_has_nothing_to_predict():
    (each,) = draw("neurons", ["reference"], 1, seed=0)
    edge = Tree.from_parents([-1, 0], [[0, 0], [1, 0]])
    small = replace(each, tree=edge, state={name: array[:2] for name, array in each.state.items()})
    optimum = growth_optimum([small], [1.0], [1.0], ([1.0], [1.0]))
    assert (optimum["nodes"], optimum["share"], optimum["length"]) == (0.0, 0.0, 0.0)
