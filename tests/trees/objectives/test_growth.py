from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance

from kdgat.trees.graphs.batch import measure_edges
from kdgat.trees.models.encoder import TreeEncoder
from kdgat.trees.objectives.growth import GrowthHead, channels_of, distances, growth_targets
from kdgat.trees.sections import GrowthConfig
from kdgat.trees.structure.tree import Tree
from tests.trees.examples import TINY, batch_of, random_tree, same, subtree

CONFIG = GrowthConfig(num_lengths=9, num_angles=6, num_radii=8, components=2)
CHANNELS = channels_of((0.2, 5.0), CONFIG)
NAMES = [channel.name for channel in CHANNELS]


@pytest.fixture(scope="module")
def predict():
    torch.manual_seed(0)
    encoder = TreeEncoder(TINY.model_copy(update={"interactions": 2})).eval()
    head = GrowthHead(TINY.hidden, CONFIG, CHANNELS).eval()

    def predict(*trees):
        """What is predicted of all nodes, [N, F]."""
        batch = batch_of(*trees)
        with torch.no_grad():
            found = head(encoder(batch).up, batch)
        return torch.cat([*found.shares, found.count], dim=1)

    return predict


def perturbed(tree: Tree, nodes) -> Tree:
    """Return the tree with other places, radii, kinds and lengths of some nodes."""
    generator = np.random.default_rng(5)
    changed = replace(
        tree, position=tree.position.copy(), radius=tree.radius.copy(), kind=tree.kind.copy(), length=tree.length.copy()
    )
    count = len(changed.radius[nodes])
    changed.position[nodes] += generator.normal(0.0, 3.0, (count, 3))
    changed.radius[nodes] *= generator.uniform(0.3, 3.0, count)
    changed.length[nodes] *= generator.uniform(1.1, 3.0, count)
    changed.kind[nodes] = changed.kind[nodes] % 4 + 1
    return changed


def without(tree: Tree, gone: np.ndarray) -> tuple[Tree, np.ndarray]:
    """Return the tree without some whole subtrees, and the places of the nodes that stay."""
    kept = np.flatnonzero(~gone)
    place = np.cumsum(~gone) - 1
    parent = np.where(tree.parent[kept] >= 0, place[tree.parent[kept]], -1)
    pruned = Tree.from_parents(parent, tree.position[kept], tree.radius[kept], tree.kind[kept], tree.length[kept])
    return pruned, kept


def is_blind_to(tree: Tree, node: int) -> np.ndarray:
    """Return which nodes are no ancestors of a node, nor itself."""
    others = np.arange(tree.num_nodes)
    return (others != node) & ~tree.is_ancestor(others, np.full_like(others, node))


@pytest.mark.parametrize("seed", range(3))
def test_no_prediction_knows_of_anything_but_the_node_and_its_ancestors(predict, seed: int) -> None:
    tree = random_tree(seed, 30)
    true = predict(tree)
    for node in range(tree.num_nodes):
        below = np.arange(tree.num_nodes)[subtree(tree, node)][1:]
        assert torch.equal(predict(perturbed(tree, below))[node], true[node])
        assert torch.equal(predict(perturbed(tree, is_blind_to(tree, node)))[node], true[node])


def test_no_prediction_knows_whether_there_are_children_or_siblings(predict) -> None:
    tree = random_tree(0, 30)
    true = predict(tree)
    for node in range(tree.num_nodes):
        pruned, kept = without(tree, is_blind_to(tree, node))
        assert pruned.num_nodes == tree.depth[node] + 1
        # Other numbers of rows are multiplied in another order: nearly equal, not bit for bit.
        assert same(predict(pruned)[-1], true[node], 1e-6)
        assert kept[-1] == node


def test_a_child_that_is_hung_elsewhere_changes_no_bit_of_a_prediction(predict) -> None:
    # The last node of a tree, so that all others keep their places in preorder.
    tree = next(tree for tree in map(random_tree, range(100)) if tree.depth[-1] >= 3)
    parent = tree.parent.copy()
    parent[-1] = 0
    hung = Tree.from_parents(parent, tree.position, tree.radius, tree.kind)
    assert hung.num_children[tree.parent[-1]] == tree.num_children[tree.parent[-1]] - 1
    assert torch.equal(predict(hung)[:-1], predict(tree)[:-1])
    assert not torch.equal(predict(hung)[-1], predict(tree)[-1])


def test_a_prediction_depends_on_the_node_and_on_each_of_three_ancestors(predict) -> None:
    tree = random_tree(0)
    true = predict(tree)
    node = int(np.flatnonzero(tree.depth >= 6)[0])
    above = node
    for _ in range(4):
        assert not same(predict(perturbed(tree, [above]))[node], true[node], 1e-3)
        above = int(tree.parent[above])


def children_of(tree: Tree, node: int) -> np.ndarray:
    return np.flatnonzero(tree.parent == node)


def angle(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.arccos(one @ other / np.linalg.norm(one) / np.linalg.norm(other)))


def values_of_children(tree: Tree, node: int) -> list[list[float]]:
    """Return what each channel measures of the children of a node."""
    own = tree.position[node] - tree.position[tree.parent[node]]
    children = children_of(tree, node)
    return [
        [float(np.log(tree.length[child])) for child in children],
        [angle(own, tree.position[child] - tree.position[node]) for child in children],
        [float(np.log(tree.radius[child] / tree.radius[node])) for child in children],
    ]


def test_targets_are_the_shares_of_children_up_to_each_threshold() -> None:
    trees = [random_tree(seed, size) for seed, size in ((0, 40), (1, 25), (2, 1))]
    target, first = growth_targets(batch_of(*trees), CHANNELS), 0
    num_known = 0
    for tree in trees:
        for node in range(tree.num_nodes):
            place, children = first + node, children_of(tree, node)
            assert target.count[place] == min(len(children), 3)
            is_known = len(children) > 0 and node > 0
            assert target.known[place].tolist() == [is_known] * 3
            if is_known:
                num_known += 1
                for channel, shares, values in zip(
                    CHANNELS, target.shares, values_of_children(tree, node), strict=True
                ):
                    expected = [np.mean(np.array(values) <= bound) for bound in channel.thresholds]
                    assert np.allclose(shares[place], expected, atol=1e-6)
        first += tree.num_nodes
    assert num_known > 20


def test_thresholds_cover_their_range_evenly() -> None:
    for channel, (low, high) in zip(
        CHANNELS, ((np.log(0.2), np.log(5.0)), (np.pi / 12, np.pi * 11 / 12), (-1.5, 0.5)), strict=True
    ):
        assert np.allclose(channel.thresholds, np.linspace(low, high, channel.count))
    assert NAMES == ["length", "angle", "radius"]


def test_a_node_says_nothing_of_radii_where_one_child_has_none() -> None:
    tree = random_tree(0)
    node = int(np.flatnonzero((tree.num_children >= 2) & (tree.parent >= 0))[0])
    tree.radius[children_of(tree, node)[1]] = 0.0
    known = growth_targets(batch_of(tree), CHANNELS).known
    assert known[node].tolist() == [True, True, False]
    assert not growth_targets(batch_of(random_tree(0, has_radius=False)), CHANNELS).known[:, 2].any()


def test_distances_are_the_earth_mover_s_to_a_step_and_0_where_nothing_is_known() -> None:
    generator = np.random.default_rng(0)
    tree = random_tree(0)
    batch, channels = batch_of(tree), channels_of((0.01, 50.0), GrowthConfig(num_lengths=400, num_angles=300))
    target = growth_targets(batch, channels)
    drawn = [generator.uniform(0.3, 2.5, 5) for _ in channels]
    guess = [
        torch.tensor([[np.mean(values <= bound) for bound in channel.thresholds]])
        for values, channel in zip(drawn, channels, strict=True)
    ]
    found = distances(guess, target, channels)
    assert bool((found[~target.known] == 0).all())
    for place, channel in enumerate(channels[:2]):
        for node in torch.nonzero(target.known[:, place])[:, 0].tolist():
            values = values_of_children(tree, node)[place]
            assert found[node, place] == pytest.approx(wasserstein_distance(drawn[place], values), abs=channel.step)


def test_the_truth_is_at_no_distance_and_anything_else_is_at_some() -> None:
    target = growth_targets(batch_of(random_tree(0), random_tree(1)), CHANNELS)
    assert bool((distances(target.shares, target, CHANNELS) == 0).all())
    wrong = [1.0 - shares for shares in target.shares]
    assert bool((distances(wrong, target, CHANNELS)[target.known] > 0.1).all())


def test_predicted_shares_rise_and_stay_between_0_and_1(predict) -> None:
    found = predict(random_tree(0), random_tree(1, 1))
    for shares in found.split([*(channel.count for channel in CHANNELS), 4], dim=1)[:3]:
        assert bool(((shares >= 0) & (shares <= 1 + 1e-6)).all())
        assert all(bool((after >= before - 1e-6).all()) for before, after in pairwise(shares.T))
        assert bool((shares[:, -1] - shares[:, 0] > 0.05).any())


def test_a_head_learns_one_distribution_of_children() -> None:
    """The loss has a gradient wherever a prediction is wrong."""
    torch.manual_seed(0)
    head, batch = GrowthHead(4, CONFIG, CHANNELS), batch_of(random_tree(0))
    target, state = growth_targets(batch, CHANNELS), torch.zeros(batch.num_nodes, 4)
    optimizer = torch.optim.Adam(head.parameters(), 0.03)
    losses = []
    for _ in range(150):
        found = distances(head(state, batch).shares, target, CHANNELS)
        loss = (found.sum(0) / target.known.sum(0)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]


def test_edges_are_measured_where_they_are_known() -> None:
    tree = random_tree(0)
    found = measure_edges(batch_of(tree))
    for node in range(tree.num_nodes):
        assert found.known[node].tolist() == [node > 0, tree.depth[node] >= 2, node > 0]
    assert bool((found.values[~found.known] == 0).all())


def test_means_are_over_trees_of_means_over_chosen_nodes() -> None:
    batch = batch_of(random_tree(0, 4), random_tree(1, 2), random_tree(2, 3))
    values = torch.tensor([1.0, 2.0, 3.0, 100.0, 7.0, 9.0, 50.0, 60.0, 70.0])
    chosen = torch.tensor([1, 1, 1, 0, 1, 1, 0, 0, 0], dtype=torch.bool)
    assert float(batch.mean_per_tree(values, chosen)) == pytest.approx((2.0 + 8.0) / 2)
    assert float(batch.mean_per_tree(values, torch.zeros_like(chosen))) == 0.0
