import pytest
import torch
from sklearn.metrics import roc_auc_score

from kdgat.trees.objectives.order import OrderHead, Pairs, draw_pairs, energy, order_loss, pair_auc, random_ancestor
from kdgat.trees.structure.tree import Tree
from tests.trees.examples import batch_of, random_tree

SIZES = (40, 1, 2, 25)


@pytest.fixture(scope="module")
def trees():
    return [random_tree(seed, size) for seed, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def batch(trees):
    return batch_of(*trees)


def located(node: int) -> tuple[int, int]:
    """Which tree a node of the batch is of, and its place there."""
    for tree, size in enumerate(SIZES):
        if node < size:
            return tree, node
        node -= size
    raise AssertionError


def test_pairs_say_truly_who_is_above_whom(trees, batch) -> None:
    torch.manual_seed(0)
    pairs = draw_pairs(batch)
    kinds = set()
    for above, below, is_ancestor, is_turned in zip(
        pairs.above.tolist(), pairs.below.tolist(), pairs.is_ancestor.tolist(), pairs.is_turned.tolist(), strict=True
    ):
        (tree, one), (same_tree, other) = located(above), located(below)
        assert tree == same_tree
        assert one != other
        assert is_ancestor == trees[tree].is_ancestor(one, other)
        assert is_turned == trees[tree].is_ancestor(other, one)  # drawn so, or by chance
        kinds.add((is_ancestor, is_turned))
    assert kinds == {(True, False), (False, True), (False, False)}  # straight, turned, and beside each other


def test_every_node_but_roots_is_paired_with_its_parent_both_ways(batch) -> None:
    pairs = draw_pairs(batch)
    drawn = set(zip(pairs.above.tolist(), pairs.below.tolist(), strict=True))
    for node, parent in enumerate(batch.parent.tolist()):
        if parent >= 0:
            assert {(parent, node), (node, parent)} <= drawn


def test_pairs_follow_from_the_seed_alone(batch) -> None:
    def draw(seed):
        torch.manual_seed(seed)
        pairs = draw_pairs(batch)
        return torch.stack([pairs.above, pairs.below])

    assert torch.equal(draw(1), draw(1))
    assert draw(1).shape != draw(2).shape or not torch.equal(draw(1), draw(2))


def test_every_proper_ancestor_is_drawn_about_as_often_as_the_others() -> None:
    chain = Tree.from_parents([-1, 0, 1, 2, 3, 4], [[step, 0] for step in range(6)])
    batch = batch_of(random_tree(0, 5), chain)
    torch.manual_seed(0)
    for node, ancestors in ((10, range(5, 10)), (8, range(5, 8)), (6, [5])):
        drawn = random_ancestor(batch, torch.full((3000,), node))
        shares = torch.bincount(drawn, minlength=batch.num_nodes) / 3000
        assert set(torch.nonzero(shares)[:, 0].tolist()) == set(ancestors)
        assert shares[list(ancestors)].tolist() == pytest.approx([1 / len(ancestors)] * len(ancestors), abs=0.04)
    assert len(random_ancestor(batch, torch.zeros(0, dtype=torch.long))) == 0


def test_pairs_of_a_node_with_itself_count_for_nothing(batch) -> None:
    torch.manual_seed(0)
    without = draw_pairs(batch)
    torch.manual_seed(0)
    pairs = draw_pairs(batch, with_selves=True)
    assert pairs.is_self.any()
    assert torch.equal(pairs.is_self, pairs.above == pairs.below)
    assert torch.equal(pairs.above[~pairs.is_self], without.above)
    places = torch.rand(batch.num_nodes, 3)
    losses = [order_loss(energy(places, one), one, 1.0) for one in (pairs, without)]
    torch.testing.assert_close(losses[0], losses[1])


def test_a_pair_has_no_energy_if_and_only_if_the_lower_place_is_contained() -> None:
    places = torch.tensor([[2.0, 3.0], [2.0, 1.0], [0.0, 4.0]])
    above, below = torch.tensor([0, 0, 1, 2, 0]), torch.tensor([1, 2, 0, 1, 0])
    pairs = Pairs(above, below, torch.zeros(5, dtype=torch.bool), torch.zeros(5, dtype=torch.bool))
    assert energy(places, pairs).tolist() == [0.0, 1.0, 4.0, 4.0, 0.0]


def test_the_loss_wants_ancestors_at_0_and_all_others_at_the_margin() -> None:
    is_ancestor = torch.tensor([True, True, False, False])
    pairs = Pairs(*torch.zeros(2, 4, dtype=torch.long), is_ancestor, torch.zeros(4, dtype=torch.bool))
    assert float(order_loss(torch.tensor([0.0, 0.0, 1.0, 7.0]), pairs, 1.0)) == 0.0
    assert float(order_loss(torch.tensor([0.5, 0.1, 0.25, 3.0]), pairs, 2.0)) == pytest.approx(0.3 + 1.75 / 2)


def test_one_place_for_all_nodes_is_no_solution(batch) -> None:
    pairs = draw_pairs(batch)
    places = torch.ones(batch.num_nodes, 3)
    assert float(order_loss(energy(places, pairs), pairs, 1.0)) == pytest.approx(1.0)


def test_an_order_that_is_known_has_no_loss_and_an_auc_of_1() -> None:
    """Indicators of the subtrees that a node lies outside of, and of its own: true cones."""
    tree = random_tree(3, 12)
    batch = batch_of(tree)
    places = torch.tensor(
        [[float(node == other or tree.is_ancestor(node, other)) for other in range(12)] for node in range(12)]
    )
    torch.manual_seed(0)
    pairs = draw_pairs(batch)
    energies = energy(places, pairs)
    assert float(order_loss(energies, pairs, 1.0)) == 0.0
    assert pair_auc(energies, pairs.is_ancestor) == 1.0


@pytest.mark.parametrize("levels", [2, 5, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_auc_is_that_of_scikit_learn_with_ties(levels: int, seed: int) -> None:
    torch.manual_seed(seed)
    energies = torch.randint(0, levels, (200,)).float() / 7
    is_ancestor = torch.rand(200) < 0.3
    expected = roc_auc_score(is_ancestor.numpy(), -energies.numpy())
    assert pair_auc(energies, is_ancestor) == pytest.approx(expected, abs=1e-12)


def test_auc_of_one_kind_of_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="0 pairs of ancestors and 3 others"):
        pair_auc(torch.ones(3), torch.zeros(3, dtype=torch.bool))


def test_places_are_not_negative() -> None:
    torch.manual_seed(0)
    places = OrderHead(6, 4)(10 * torch.randn(50, 6))
    assert places.shape == (50, 4)
    assert bool((places >= 0).all())
