"""Trees grow by their law, from their seed alone."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.trees.synthetic.classes import CLASSES, generate_tree, law_of
from kdgat.trees.synthetic.dataset import PART_START, draw
from kdgat.trees.synthetic.generation import SyntheticTree, grow
from kdgat.trees.synthetic.law import GrowthLaw
from kdgat.trees.synthetic.rivers import RiverLaw

ANY_SIZE = (2, 8000)  # nothing is drawn again: every tree is the law's


def same(one: SyntheticTree, other: SyntheticTree) -> bool:
    """Return whether two trees are the same bits."""
    arrays = ("parent", "position", "radius", "kind", "length")
    return all(np.array_equal(getattr(one.tree, name), getattr(other.tree, name)) for name in arrays)


@pytest.mark.parametrize("kind", ["neurons", "rivers"])
def test_a_tree_depends_on_class_and_seed_alone(kind):
    for name in CLASSES[kind]:
        one, again = (generate_tree(name, 7, kind=kind) for _ in range(2))
        assert same(one, again)
        assert not same(one, generate_tree(name, 8, kind=kind))


def test_a_longer_collection_begins_with_the_shorter_one_and_parts_share_no_tree():
    short, long = list(draw("neurons", None, 4, seed=3)), list(draw("neurons", None, 10, seed=3))
    assert all(same(one, other) for one, other in zip(short, long, strict=False))
    assert [tree.label for tree in long] == [0, 1, 2, 3, 4] * 2
    assert [tree.class_name for tree in long[:5]] == list(CLASSES["neurons"])
    seeds = [tree.seed for start in PART_START.values() for tree in draw("neurons", None, 10, seed=3, start=start)]
    assert len(set(seeds)) == 30
    (later,) = draw("neurons", None, 1, seed=3, start=6)
    assert same(later, long[6])


def test_labels_count_the_classes_that_are_given():
    trees = list(draw("rivers", ["elongation", "reference"], 4, seed=0))
    assert [(tree.label, tree.class_name) for tree in trees] == [(0, "elongation"), (1, "reference")] * 2


@pytest.mark.parametrize(("kind", "swc_kind"), [("neurons", 3), ("rivers", 0)])
def test_states_stand_in_the_order_of_the_tree(kind, swc_kind):
    for each in draw(kind, None, 10, seed=1):
        tree, state = each.tree, each.state
        edge = tree.position[1:] - tree.position[tree.parent[1:]]
        np.testing.assert_allclose(tree.length[1:], state["length"][1:], rtol=1e-9)
        np.testing.assert_allclose(edge, state["length"][1:, None] * state["direction"][1:], atol=1e-9)
        assert np.array_equal(state["depth"], tree.depth)
        assert np.array_equal(state["radius"], tree.radius)
        assert (tree.radius > 0).all()
        assert (tree.kind == swc_kind).all()
        assert tree.num_children[0] == 1  # the first branching point has an edge to its parent
        below = np.flatnonzero(tree.depth > 1)
        cosine = (state["direction"][below] * state["direction"][tree.parent[below]]).sum(axis=1)
        np.testing.assert_allclose(cosine, np.cos(state["angle"][below]), atol=1e-9)


def test_rivers_lie_in_a_plane():
    (river,) = draw("rivers", ["reference"], 1, seed=0)
    assert not river.tree.position[:, 2].any()


@pytest.mark.parametrize(
    ("kind", "num_nodes"), [("neurons", (400, 1000)), ("rivers", (300, 1000)), ("rivers", (5, 40))]
)
def test_sizes_are_within_the_range_and_the_law_fits_it(kind, num_nodes):
    trees = list(draw(kind, ["reference"], 20, seed=0, num_nodes=num_nodes))
    sizes = np.array([tree.tree.num_nodes for tree in trees])
    assert (sizes >= num_nodes[0]).all()
    assert (sizes <= num_nodes[1]).all()
    low, high = np.quantile(sizes, [0.05, 0.95])
    assert low < np.sqrt(num_nodes[0] * num_nodes[1]) < high


def z_scores(values, expected, noise):
    """Return mean and mean square of what should be standard normal, in standard errors from 0 and 1."""
    z = (values - expected) / noise
    return abs(z.mean()) * np.sqrt(len(z)), abs((z**2).mean() - 1.0) * np.sqrt(len(z) / 2.0)


@pytest.fixture(scope="module")
def neurons():
    """Return 60 trees of the reference, of any size."""
    return list(draw("neurons", ["reference"], 60, seed=5, num_nodes=ANY_SIZE))


def test_lengths_angles_and_radii_of_trees_are_those_of_the_law(neurons):
    law = neurons[0].law
    lengths, angles, radii = [], [], []
    for each in neurons:
        tree, state, number = each.tree, each.state, each.tree.num_children
        child = np.arange(1, tree.num_nodes)
        parent = tree.parent[1:]
        column = np.array(
            [np.flatnonzero(tree.parent == p).tolist().index(c) for p, c in zip(parent, child, strict=True)]
        )
        expected = law.expected_log_length(state, number)[parent, column]
        lengths.append((np.log(tree.length[1:]), expected))
        below = tree.depth[parent] > 0
        edge = tree.position[1:] - tree.position[parent]
        unit = np.vstack([np.zeros(3), edge / np.linalg.norm(edge, axis=1)[:, None]])
        angle = np.arccos(np.clip((unit[child] * unit[parent]).sum(axis=1), -1, 1))[below]
        angles.append((np.log(angle), law.expected_log_angle(state, number)[parent, column][below]))
        two = np.flatnonzero(number == 2)
        power = np.bincount(parent, weights=tree.radius[1:] ** 1.5, minlength=tree.num_nodes)[two]
        radii.append(power / (tree.radius * np.exp((law.radius_memory - 1) * state["radius_deviation"]))[two] ** 1.5)
    for pairs, noise in ((lengths, law.length_noise), (angles, law.angle_noise)):
        values, expected = (np.concatenate(each) for each in zip(*pairs, strict=True))
        assert len(values) > 3000
        assert max(z_scores(values, expected, noise)) < 5
    # Rall's sum is the taper's, but for what is forgotten of the node's own deviation, and for the noise of both radii.
    ratio = np.concatenate(radii)
    expected = law.taper**1.5 * np.exp(0.5 * (1.5 * law.radius_noise) ** 2)
    assert abs(ratio.mean() - expected) < 5 * ratio.std() / np.sqrt(len(ratio))


@pytest.mark.parametrize("kind", ["neurons", "rivers"])
def test_numbers_of_children_are_as_probable_as_the_law_says(kind):
    actual, expected, variance = np.zeros(4), np.zeros(4), np.zeros(4)
    for name in CLASSES[kind]:
        for each in draw(kind, [name], 12, seed=2, num_nodes=ANY_SIZE):
            probability = each.law.num_children_probability(each.state)
            np.testing.assert_allclose(probability.sum(axis=1), 1.0)
            actual += np.bincount(each.tree.num_children, minlength=4)
            expected += probability.sum(axis=0)
            variance += (probability * (1 - probability)).sum(axis=0)
    assert (np.abs(actual - expected) <= 5 * np.sqrt(variance)).all()


def dihedrals(trees):
    """Return the turn of the branching plane at all first children of first children."""
    turns = []
    for each in trees:
        tree = each.tree
        edge = tree.position - tree.position[np.maximum(tree.parent, 0)]
        child = np.flatnonzero((tree.depth > 2) & (tree.parent == np.arange(tree.num_nodes) - 1))  # first children
        one, two, three = edge[tree.parent[tree.parent[child]]], edge[tree.parent[child]], edge[child]
        before, after = np.cross(one, two), np.cross(two, three)
        sine = (np.cross(before, after) * two).sum(axis=1) / np.linalg.norm(two, axis=1)
        turns.append(np.arctan2(sine, (before * after).sum(axis=1)))
    return np.concatenate(turns)


def test_branching_planes_turn_one_way_and_the_other_way_in_mirror_images():
    reference, mirror = (dihedrals(draw("neurons", [name], 40, seed=0)) for name in ("reference", "mirror"))
    law = law_of("neurons", "reference")
    for turns, sign in ((reference, 1), (mirror, -1)):
        direction = np.angle(np.exp(1j * turns).mean())
        error = law.dihedral_noise / np.sqrt(len(turns))
        assert abs(direction - sign * law.dihedral) < 6 * error


def test_a_class_differs_from_the_reference_by_its_factors_alone():
    reference = law_of("neurons", "reference")
    assert law_of("neurons", "angle") == replace(reference, angle=2.0 * reference.angle)
    assert law_of("neurons", "mirror") == GrowthLaw(dihedral=-GrowthLaw().dihedral)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: generate_tree("prunning", 0), "did you mean 'pruning'"),
        (lambda: draw("trees", None, 1, 0), "neurons, rivers"),
        (lambda: draw("neurons", [], 1, 0), "at least one"),
        (lambda: draw("neurons", None, 1, -1), "seed=-1"),
        (lambda: generate_tree("reference", 0, (10, 5)), "num_nodes"),
        (lambda: grow(RiverLaw(order=1, bend=0.0), "spring", 0, (3, 3), kind=0), "widen the range"),
    ],
)
def test_what_cannot_be_grown_is_refused_with_a_reason(call, match):
    with pytest.raises(UserError, match=match):
        call()


@pytest.mark.processes
def test_growing_trees_needs_no_torch():
    code = "import sys, kdgat.trees.synthetic.dataset, kdgat.trees.synthetic.optimum; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
