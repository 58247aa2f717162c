"""Graphs of windows: the same as a plain Python builder's, labelled, sorted, whatever size and stride."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kdgat.canbus import Messages, WindowConfig, windows_to_graphs
from kdgat.canbus.features import ATTACK_KINDS, EDGE_FEATURES, NODE_FEATURES, SCHEMA
from kdgat.canbus.features.bus_time import BusClock
from kdgat.canbus.messages import AttackCampaign
from kdgat.canbus.settings import num_windows
from kdgat.graphs import GraphColumns
from tests.canbus.recording_files import random_messages
from tests.canbus.traffic import bus_traffic, features_of, make_messages

NODE = {name: column for column, name in enumerate(NODE_FEATURES)}
EDGE = {name: column for column, name in enumerate(EDGE_FEATURES)}


@dataclass
class _Window:
    """One window as a plain Python builder sees it."""

    start: int
    messages: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # id -> rows, as they appear
    edges: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))  # (target, source)


def _plain_windows(messages: Messages, config: WindowConfig) -> list[_Window]:
    ids = messages.identifier.tolist()
    starts = [k for k in range(0, len(ids), config.stride) if k + config.size <= len(ids)] or ([0] if ids else [])
    windows = []
    for start in starts:
        window = _Window(start)
        rows = range(start, min(start + config.size, len(ids)))
        for row in rows:
            window.messages[ids[row]].append(row)
        node = {identifier: number for number, identifier in enumerate(window.messages)}
        for before, row in pairwise(rows):
            window.edges[node[ids[row]], node[ids[before]]].append(row)
        windows.append(window)
    return windows


def _check(messages: Messages, config: WindowConfig) -> GraphColumns:
    """Compare all that can be counted with the plain builder."""
    graphs = windows_to_graphs(messages, config)
    graphs.validate()
    windows = _plain_windows(messages, config)
    assert graphs.num_graphs == len(windows) == num_windows(len(messages), config)
    assert graphs.node_counts.tolist() == [len(window.messages) for window in windows]
    assert graphs.edge_counts.tolist() == [len(window.edges) for window in windows]
    assert graphs["first_message"].tolist() == [window.start for window in windows]
    time = BusClock().read(messages.timestamp).time
    assert graphs["start_time"].tolist() == [time[window.start] for window in windows]
    label = messages.label != 0
    for graph, window in enumerate(windows):
        nodes = slice(*graphs.node_ptr[graph : graph + 2].tolist())
        edges = slice(*graphs.edge_ptr[graph : graph + 2].tolist())
        rows = list(window.messages.values())
        assert graphs["node_id"][nodes].tolist() == list(window.messages)
        assert graphs["message_count"][graph] == sum(map(len, rows))
        assert graphs["attack_count"][graph] == sum(int(label[row]) for part in rows for row in part)
        assert graphs["node_y"][nodes].tolist() == [int(label[part].any()) for part in rows]
        assert graphs["y"][graph] == int(graphs["attack_count"][graph] > 0)
        counts = [math.log2(len(part)) / 4 for part in rows]
        np.testing.assert_allclose(graphs.x[nodes, NODE["count"]], counts, rtol=5e-4)
        pairs = sorted(window.edges)
        assert graphs.edge_index[:, edges].T.tolist() == [[source, target] for target, source in pairs]
        attributes = graphs.edge_attr[edges]
        counts = [math.log2(1 + len(window.edges[pair])) for pair in pairs]
        np.testing.assert_allclose(attributes[:, EDGE["count"]], counts, rtol=5e-4)
        assert attributes[:, EDGE["self_loop"]].tolist() == [float(a == b) for a, b in pairs]
        assert attributes[:, EDGE["reversed_exists"]].tolist() == [float((b, a) in window.edges) for a, b in pairs]
    return graphs


@settings(deadline=None, max_examples=80)
@given(
    identifiers=st.lists(st.sampled_from([0, 1, 5, 0x7FF, 0x18FEF100, 0x1FFFFFFF]), max_size=60),
    size=st.integers(2, 20),
    stride=st.integers(1, 25),
    seed=st.integers(0, 100),
)
def test_graphs_agree_with_plain_python(identifiers: list[int], size: int, stride: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    num = len(identifiers)
    messages = make_messages(
        np.cumsum(random.exponential(0.001, num)),
        identifiers if num else 0,
        random.integers(0, 256, (num, 8)),
        label=random.random(num) < 0.2,
    )
    _check(messages, WindowConfig(size=size, stride=stride))


@pytest.mark.parametrize(("size", "stride"), [(100, 100), (100, 30), (128, 128), (129, 129), (300, 100), (50, 120)])
def test_any_size_and_stride(size: int, stride: int) -> None:
    graphs = _check(random_messages(1500, seed=size), WindowConfig(size=size, stride=stride))
    assert graphs.num_graphs == (1500 - size) // stride + 1
    assert set(graphs["message_count"].tolist()) == {size}


def test_node_and_edge_features_are_those_of_the_messages_reduced() -> None:
    messages = bus_traffic(num_ids=10, duration_s=3.0, seed=4)
    config = WindowConfig(size=100, stride=70)
    graphs, features = windows_to_graphs(messages, config), features_of(messages)
    for graph, window in enumerate(_plain_windows(messages, config)):
        start = window.start
        duration_s = messages.timestamp[start + 99] - messages.timestamp[start]
        for number, rows in enumerate(window.messages.values()):
            x = graphs.x[graphs.node_ptr[graph] + number]
            expected = {
                "interval_ratio_mean": features["interval_ratio"][rows].mean(),
                "interval_ratio_minimum": features["interval_ratio"][rows].min(),
                "toggle_surprise_maximum": features["toggle_surprise"][rows].max(),
                "recording_age_mean": features["recording_age"][rows].mean(),
                "bus_gap_maximum": features["bus_gap"][rows].max(),
                "first_position": (rows[0] - start) / 99,
                "last_position": (rows[-1] - start) / 99,
                "zero_bytes": (messages.payload[rows] == 0).mean(),
                "ones": np.unpackbits(messages.payload[rows]).mean(),
                "payload_bytes": messages.length[rows].mean() / 8,
            }
            if features["period_known"][rows[-1]]:
                period_s = 2.0 ** (8 * features["log_period"][rows[-1]])
                expected["count_excess"] = math.log2((len(rows) + 0.5) / (duration_s / period_s + 1))
            for name, value in expected.items():
                assert x[NODE[name]] == pytest.approx(value, rel=7e-4, abs=1e-5), name
        for place, pair in enumerate(sorted(window.edges)):
            rows = window.edges[pair]
            attributes = graphs.edge_attr[graphs.edge_ptr[graph] + place]
            expected = {
                "order_surprise_mean": features["order_surprise"][rows].mean(),
                "order_surprise_maximum": features["order_surprise"][rows].max(),
                "gap_mean": features["bus_gap"][rows].mean(),
                "position": (np.array(rows) - start).mean() / 99,
            }
            for name, value in expected.items():
                assert attributes[EDGE[name]] == pytest.approx(value, rel=7e-4, abs=1e-5), name


def test_duration_ratio_compares_a_window_with_the_bus_so_far() -> None:
    gaps = np.full(1000, 0.001)
    gaps[500:] = 0.002
    graphs = windows_to_graphs(make_messages(np.cumsum(gaps), np.arange(1000) % 7), WindowConfig())
    ratio = graphs.x[graphs.node_ptr[:-1], NODE["duration_ratio"]]
    np.testing.assert_allclose(ratio[:5], 0.0, atol=0.02)
    assert ratio[6] == pytest.approx(math.log2(0.002 / (0.7 / 600)), abs=0.02)


def test_constants_do_not_depend_on_which_window_looks() -> None:
    """A window sees the same messages the same way, wherever the others begin."""
    messages = bus_traffic(num_ids=8, duration_s=3.0)
    whole = windows_to_graphs(messages, WindowConfig(size=50, stride=10))
    sparse = windows_to_graphs(messages, WindowConfig(size=50, stride=30))
    same = whole.select(np.arange(0, whole.num_graphs, 3)[: sparse.num_graphs])
    for column in SCHEMA.stored:
        np.testing.assert_array_equal(same[column.name], sparse[column.name], err_msg=column.name)


@pytest.mark.parametrize("num", [1, 2, 99])
def test_recording_shorter_than_a_window_gives_one_graph(num: int) -> None:
    graphs = _check(random_messages(num, seed=1), WindowConfig())
    assert graphs["message_count"].tolist() == [num]


def test_empty_recording_gives_no_graph() -> None:
    graphs = _check(make_messages([], 0), WindowConfig())
    assert graphs.num_graphs == graphs.num_nodes == graphs.num_edges == 0


@pytest.mark.parametrize("clock", ["equal", "backward", "reset"])
def test_any_clock_gives_finite_graphs(clock: str) -> None:
    times = {"equal": np.zeros(300), "backward": -np.arange(300.0), "reset": np.arange(300) % 100 * 1e3}[clock]
    _check(make_messages(times, np.arange(300) % 11), WindowConfig(size=20, stride=15))


@pytest.mark.parametrize("largest_gap_s", [1e-6, 1.0, 1e6, 1e12])
@pytest.mark.parametrize("num_identifiers", [1, 40, 2_000])
def test_features_of_extreme_traffic_are_far_from_what_float16_cannot_hold(
    largest_gap_s: float, num_identifiers: int
) -> None:
    """All are logarithms, shares or flags: no traffic may end a live detection by a feature that is too large."""
    random = np.random.default_rng(num_identifiers)
    messages = random_messages(1_500, seed=num_identifiers)
    gaps = largest_gap_s ** random.uniform(-1.0, 1.0, len(messages)) * random.choice([-1.0, 1.0], len(messages))
    extreme = replace(
        messages,
        timestamp=1e9 + np.cumsum(gaps),
        identifier=random.integers(0, num_identifiers, len(messages)).astype(np.uint32),
    )
    graphs = windows_to_graphs(extreme, WindowConfig())
    assert graphs.num_graphs
    assert np.abs(np.asarray(graphs.x)).max() < 100.0
    assert np.abs(np.asarray(graphs.edge_attr)).max() < 100.0


@pytest.mark.parametrize("values", [{"size": 1}, {"size": 10_001}, {"stride": 0}])
def test_impossible_windows_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=next(iter(values))):
        WindowConfig(**values)


def _silenced(begin_s: float, end_s: float) -> tuple[Messages, int]:
    """Return regular traffic from which one fast identifier is missing for a while, and that identifier."""
    messages = bus_traffic(num_ids=6, duration_s=12.0, seed=2)
    ids, counts = np.unique(messages.identifier, return_counts=True)
    target = int(ids[counts.argmax()])
    lost = (messages.identifier == target) & (messages.timestamp > begin_s) & (messages.timestamp < end_s)
    return messages.select(~lost), target


def test_an_overdue_identifier_is_a_node_of_windows_in_which_it_did_not_come() -> None:
    messages, target = _silenced(6.0, 6.25)
    graphs = windows_to_graphs(messages, WindowConfig(size=10, stride=10))
    waiting = np.flatnonzero(graphs.x[:, NODE["waiting"]] == 1.0)
    assert set(graphs["node_id"][waiting].tolist()) == {target}
    silent = waiting[graphs.x[waiting, NODE["count"]] < 0.0]  # as of half a message
    assert len(silent)
    window = np.repeat(np.arange(graphs.num_graphs), graphs.node_counts)[silent]
    assert ((graphs["end_time"][window] > 6.0) & (graphs["start_time"][window] < 6.25)).all()
    for name in ("overdue_maximum", "missed_maximum", "overdue_novelty_maximum"):
        assert (graphs.x[silent, NODE[name]] > 0.0).all(), name
    assert not graphs["y"].any()  # nobody has said that this is an attack


def test_windows_of_a_campaign_that_silences_are_attacked_without_an_injected_message() -> None:
    messages, target = _silenced(6.0, 6.25)
    messages.campaigns = (
        AttackCampaign("suppression", 6.0, 6.25, (target,)),
        AttackCampaign("DoS", 9.0, 10.0),  # which silences nobody: messages say which windows it hit
    )
    graphs = windows_to_graphs(messages, WindowConfig(size=10, stride=10))
    inside = (graphs["end_time"] >= 6.0) & (graphs["start_time"] <= 6.25)
    np.testing.assert_array_equal(graphs["y"] == 1, inside)
    assert not graphs["attack_count"].any()
    np.testing.assert_array_equal(graphs["kind"], np.where(inside, ATTACK_KINDS.index("suppression"), 0))
    attacked = graphs["node_y"] == 1
    assert attacked.any()
    assert set(graphs["node_id"][attacked].tolist()) == {target}
    assert (graphs.x[attacked, NODE["waiting"]] == 1.0).all()


def test_of_a_time_in_which_nobody_knows_the_injected_messages_windows_are_attacked_and_no_identifier_is() -> None:
    label = np.zeros(300, np.uint8)
    label[100:150] = 1
    label[250] = 1
    messages = make_messages(np.arange(300) * 1e-3, np.arange(300) % 5, label=label)
    messages.campaigns = (AttackCampaign("unknown", 0.1, 0.149),)
    graphs = windows_to_graphs(messages, WindowConfig(size=100, stride=100))
    assert graphs["y"].tolist() == [0, 1, 1]
    window = np.repeat(np.arange(3), graphs.node_counts)
    assert set(window[graphs["node_y"] == 1].tolist()) == {2}
    assert graphs["kind"].tolist() == [0, ATTACK_KINDS.index("unknown"), ATTACK_KINDS.index("unknown")]


def test_an_injected_message_without_a_known_campaign_is_of_an_unknown_kind() -> None:
    label = np.zeros(300, np.uint8)
    label[150] = 1
    graphs = windows_to_graphs(make_messages(np.arange(300) * 1e-3, np.arange(300) % 5, label=label), WindowConfig())
    assert graphs["kind"].tolist() == [0, ATTACK_KINDS.index("unknown"), 0]
