"""The first network scores every window, the others those of which it is unsure."""

from typing import cast

import numpy as np
import pytest

from kdgat.can.detection.network import Network, Windows
from kdgat.can.evaluation.turns import Unsure, score_in_turn, select
from tests.can.evaluation.exported_networks import exported, recorded_graphs

GRAPHS = recorded_graphs()
WINDOWS = Windows.of(GRAPHS)


class Counted:
    """A network that counts the windows that it scores."""

    def __init__(self, seed: int) -> None:
        self.network, self.num_windows = Network(exported(GRAPHS, seed)), 0

    def score(self, windows: Windows) -> tuple[np.ndarray, np.ndarray]:
        self.num_windows += len(windows.node_ptr) - 1
        return self.network.score(windows)


@pytest.fixture
def networks() -> list[Counted]:
    return [Counted(seed) for seed in (0, 1, 2)]


def in_turn(networks: list[Counted], unsure: Unsure | None) -> list[tuple[np.ndarray, np.ndarray]]:
    return score_in_turn(cast("list[Network]", networks), WINDOWS, unsure)


def middle_third(networks: list[Counted]) -> Unsure:
    logits = networks[0].network.score(WINDOWS)[0]
    return Unsure(*np.quantile(logits, (1 / 3, 2 / 3)).tolist())


def test_windows_that_go_on_are_scored_as_if_all_were(networks: list[Counted]) -> None:
    unsure = middle_third(networks)
    some, every = in_turn(networks, unsure), in_turn(networks, None)
    goes_on = unsure.holds(every[0][0])
    nodes = np.repeat(goes_on, np.diff(WINDOWS.node_ptr))
    assert 0 < np.count_nonzero(goes_on) < len(goes_on) / 2
    for (found, found_nodes), (expected, expected_nodes) in zip(some, every, strict=True):
        np.testing.assert_allclose(found[goes_on], expected[goes_on], atol=1e-5)
        np.testing.assert_allclose(found_nodes[nodes], expected_nodes[nodes], atol=1e-5)
    np.testing.assert_array_equal(some[0][0], every[0][0])


def test_what_no_other_network_has_scored_is_no_number(networks: list[Counted]) -> None:
    unsure = middle_third(networks)
    (first, _), *others = in_turn(networks, unsure)
    sure = ~unsure.holds(first)
    for found, found_nodes in others:
        np.testing.assert_array_equal(np.isnan(found), sure)
        np.testing.assert_array_equal(np.isnan(found_nodes), np.repeat(sure, np.diff(WINDOWS.node_ptr)))
    assert [one.num_windows for one in networks] == [len(sure), *[np.count_nonzero(~sure)] * 2]


def test_other_networks_rest_where_the_first_is_sure_of_all(networks: list[Counted]) -> None:
    found = in_turn(networks, Unsure(1e6, 2e6))
    assert [one.num_windows for one in networks] == [len(WINDOWS.node_ptr) - 1, 0, 0]
    assert np.isnan(found[2][0]).all()


def test_selected_windows_are_those_of_their_places() -> None:
    chosen = np.arange(len(WINDOWS.node_ptr) - 1) % 3 == 1
    found = select(WINDOWS, chosen)
    for place, old in enumerate(np.flatnonzero(chosen).tolist()):
        one, other = Windows.of(GRAPHS, old, old + 1), select(found, np.arange(chosen.sum()) == place)
        for ours, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(ours, theirs)
