from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from kdgat.trees.graphs.columns import NODE_FEATURES
from kdgat.trees.models.encoder import NUM_EDGE_FEATURES, PathEncoder, TreeEncoder, pool
from kdgat.trees.models.geometry import GeometryBasis
from kdgat.trees.models.message import PathMessage
from kdgat.trees.models.paths import ancestor_paths, branch_paths, general_paths
from kdgat.trees.sections import EncoderConfig
from kdgat.trees.structure.tree import Tree
from tests.trees.examples import TINY, batch_of, moved, random_tree, rotation, same

KINDS = ("gtmp", "sgmp")


def make_encoder(**changes):
    torch.manual_seed(0)
    return TreeEncoder(TINY.model_copy(update=changes)).eval()


def embed(encoder, *trees):
    with torch.no_grad():
        found = encoder(batch_of(*trees))
    return found.both


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_that_is_turned_and_moved_has_the_same_embeddings(kind: str, seed: int) -> None:
    encoder, tree = make_encoder(kind=kind, interactions=2), random_tree(seed)
    turned = moved(tree, rotation(seed), (10.0, -7.0, 3.0))
    assert not np.allclose(tree.position, turned.position)
    assert same(embed(encoder, tree), embed(encoder, turned), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mirror_image_has_other_embeddings_both_upwards_and_downwards(kind: str) -> None:
    encoder, tree = make_encoder(kind=kind), random_tree(0)
    with torch.no_grad():
        one, other = (encoder(batch_of(tree)), encoder(batch_of(moved(tree, np.diag([1.0, 1.0, -1.0])))))
    assert not same(one.up, other.up, 1e-3)
    assert not same(one.down, other.down, 1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_in_a_plane_is_its_own_mirror_image(kind: str) -> None:
    encoder, tree = make_encoder(kind=kind), moved(random_tree(0), np.diag([1.0, 1.0, 0.0]))
    assert same(embed(encoder, tree), embed(encoder, moved(tree, np.diag([-1.0, 1.0, 1.0]))), 1e-5)


def straight_tree() -> Tree:
    """Two branches along straight lines, as traced neurites and rivers on a grid have them."""
    parent = [-1, *range(12), 4, *range(13, 20)]
    position = [[node, 0, 0] for node in range(13)] + [[4, step, 0] for step in range(1, 9)]
    return Tree.from_parents(parent, position, np.full(21, 0.5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stretch", [1.0, 30.0])
def test_straight_lines_have_no_torsion_however_they_are_turned(kind: str, stretch: float) -> None:
    encoder, tree = make_encoder(kind=kind), moved(straight_tree(), stretch * np.eye(3))
    for seed in range(3):
        assert same(embed(encoder, tree), embed(encoder, moved(tree, rotation(seed))), 2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_lines_and_points_that_coincide_give_finite_embeddings_and_gradients(kind: str) -> None:
    position = [[0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0], [2, 0, 0], [2, 0, 0], [1, 1, 0], [1, 1, 0]]
    tree = Tree.from_parents([-1, 0, 1, 2, 2, 4, 1, 6], position)
    assert (tree.length == 0).sum() == 4  # the root, and three edges
    encoder = make_encoder(kind=kind)
    batch = batch_of(tree)
    found = encoder(batch)
    pool(found.both, batch).square().sum().backward()
    assert bool(found.both.isfinite().all())
    gradients = [one.grad for one in encoder.parameters() if one.grad is not None]
    assert len(gradients) > 10
    assert all(bool(one.isfinite().all()) for one in gradients)
    assert any(bool(one.abs().max() > 0) for one in gradients)


def count_published(hidden: int, inputs: int, interactions: int, outputs: int) -> int:
    encoder = PathEncoder(EncoderConfig(hidden=hidden, interactions=interactions), inputs)
    readout = nn.Sequential(nn.Linear(hidden, hidden // 2), nn.Linear(hidden // 2, outputs))
    return sum(one.numel() for one in (*encoder.parameters(), *readout.parameters()))


@pytest.mark.parametrize(
    ("hidden", "inputs", "interactions", "outputs", "count"),
    [(64, 5, 3, 2, 546_402), (64, 4, 2, 50, 368_018), (32, 5, 2, 2, 97_746), (128, 5, 3, 2, 2_112_706)],
)
def test_parameters_are_as_many_as_published(hidden, inputs, interactions, outputs, count) -> None:
    assert count_published(hidden, inputs, interactions, outputs) == count


def test_a_round_has_as_many_parameters_as_published() -> None:
    assert sum(one.numel() for one in PathMessage(64, 50).parameters()) == 179_904


@pytest.mark.parametrize("paths_of", [ancestor_paths, branch_paths, general_paths])
def test_the_first_layer_taken_apart_is_that_of_the_concatenation(paths_of) -> None:
    torch.manual_seed(0)
    message, basis = PathMessage(8, 6), GeometryBasis(6, (0.05, 20.0))
    batch = batch_of(random_tree(0), random_tree(1, 7))
    paths, state = paths_of(batch), torch.randn(batch.num_nodes, 8)
    geometry, norm = basis(batch.position, paths), torch.rand(batch.num_nodes, 1) + 0.5
    padded = torch.cat([state, torch.zeros(1, 8)])
    parts = [padded[paths.nodes[place]] for place in range(4)]
    parts += [
        embed(part)
        for embed, part in zip(message.embeddings, (geometry.first, geometry.second, geometry.third), strict=True)
    ]
    each = message.rest(message.first(torch.cat(parts, dim=1)))
    total = torch.zeros(batch.num_nodes, 8)
    for path, one in zip(paths.nodes[0].tolist(), each, strict=True):
        total[path] += one
    expected = state + nn.functional.layer_norm(total * norm, (8,))
    assert same(message(state, paths, geometry, norm), expected, 1e-5)
    assert not same(expected, state, 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_computing_states_again_backwards_gives_the_same_gradients(kind: str) -> None:
    found = []
    for recompute in (False, True):
        encoder = make_encoder(kind=kind, interactions=2, recompute=recompute)
        encoder(batch_of(random_tree(0))).both.square().sum().backward()
        found.append([one.grad for one in encoder.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert all(bool(one.abs().max() > 0) for one in found[0])


@pytest.mark.parametrize("kind", KINDS)
def test_other_trees_of_a_batch_and_their_order_change_nothing(kind: str) -> None:
    encoder, trees = make_encoder(kind=kind), [random_tree(0), random_tree(1, 1), random_tree(2, 23)]
    alone = [embed(encoder, tree) for tree in trees]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        together = embed(encoder, *(trees[place] for place in order))
        assert same(together, torch.cat([alone[place] for place in order]), 1e-6)
        with torch.no_grad():
            pooled = pool(together, batch_of(*(trees[place] for place in order)))
            one_by_one = [pool(alone[place], batch_of(trees[place])) for place in order]
        assert same(pooled, torch.cat(one_by_one), 1e-5)


def test_pooled_embeddings_are_mean_and_deviation_of_each_tree() -> None:
    batch = batch_of(random_tree(0, 20), random_tree(1, 1))
    values = torch.randn(21, 3)
    expected = [torch.cat([part.mean(0), part.std(0, unbiased=False)]) for part in (values[:20], values[20:])]
    assert same(pool(values, batch), torch.stack(expected), 2e-4)


def test_sgmp_sees_siblings_where_the_branches_of_gtmp_do_not() -> None:
    tree = random_tree(0)
    leaf = int(np.flatnonzero((tree.num_children == 0) & (tree.depth >= 3))[0])
    changed = replace(tree, position=tree.position.copy())
    siblings = [node for node in range(tree.num_nodes) if tree.parent[node] == tree.parent[leaf] and node != leaf]
    uncles = [node for node in range(1, tree.num_nodes) if tree.parent[node] == tree.parent[tree.parent[leaf]]]
    changed.position[[*siblings, *uncles][-1]] += 1.0
    differs = {}
    for kind in KINDS:
        encoder = make_encoder(kind=kind)
        with torch.no_grad():
            one, other = (encoder(batch_of(some)).down[leaf] for some in (tree, changed))
        differs[kind] = not torch.equal(one, other)
    assert differs == {"gtmp": False, "sgmp": True}


def test_encoders_read_every_feature_of_nodes_and_edges() -> None:
    encoder = make_encoder()
    assert encoder.up.embed[0].in_features == len(NODE_FEATURES) + NUM_EDGE_FEATURES
    tree = random_tree(0)
    for changed in (
        replace(tree, radius=tree.radius * 1.1),
        replace(tree, kind=tree.kind % 4 + 1),
        replace(tree, length=tree.length * 1.1),
    ):
        assert not same(embed(encoder, tree), embed(encoder, changed), 1e-4)
