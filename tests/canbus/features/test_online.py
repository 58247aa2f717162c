"""Windows of a stream are those of the whole recording, and little is kept."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdgat.canbus import Messages, OnlineWindows, WindowConfig, make_vehicle, simulate, windows_to_graphs
from kdgat.canbus.features import window_chunks
from kdgat.graphs import GraphColumns
from tests.canbus.recording_files import random_messages
from tests.canbus.traffic import bus_traffic, largest, make_messages, merge


def _streamed(messages: Messages, config: WindowConfig, cuts: list[int]) -> GraphColumns:
    stream = OnlineWindows(config)
    borders = [0, *sorted(min(cut, len(messages)) for cut in cuts), len(messages)]
    parts = [stream.feed(messages.select(slice(start, stop))) for start, stop in pairwise(borders)]
    return GraphColumns.concatenate([*parts, stream.finish()])


def _assert_equal(found: GraphColumns, expected: GraphColumns) -> None:
    found.validate()
    for column in expected.schema.stored:
        np.testing.assert_array_equal(found[column.name], expected[column.name], err_msg=column.name)


@settings(deadline=None, max_examples=60)
@given(
    num=st.integers(0, 400),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    size=st.integers(2, 150),
    stride=st.integers(1, 200),
    seed=st.integers(0, 100),
)
def test_pieces_of_any_size_have_the_graphs_of_the_whole(
    num: int, cuts: list[int], size: int, stride: int, seed: int
) -> None:
    """Bit for bit: windows that overlap, leave gaps, or never fill."""
    messages = random_messages(max(num, 1), seed=seed).select(slice(num))
    messages.identifier %= 40
    config = WindowConfig(size=size, stride=stride)
    _assert_equal(_streamed(messages, config, cuts), windows_to_graphs(messages, config))


@pytest.mark.parametrize("attack", ["suppression", "dos"])
def test_one_message_at_a_time_has_the_graphs_of_the_whole(attack: str) -> None:
    """With identifiers that are waited for, and campaigns that say why."""
    messages = simulate(make_vehicle(2), 3.0, attack, seed=1)
    config = WindowConfig(size=100, stride=50)
    _assert_equal(_streamed(messages, config, list(range(len(messages)))), windows_to_graphs(messages, config))


def test_a_recording_shorter_than_a_window_waits_for_a_silent_identifier_too() -> None:
    silent = make_messages(np.arange(0.0, 0.5, 0.01), 0x10)
    messages = merge(silent, make_messages(np.arange(0.0, 0.8, 0.02), 0x20))
    config = WindowConfig(size=len(messages) + 1)
    whole = windows_to_graphs(messages, config)
    assert largest(whole, "overdue_maximum")[0] > 0.7
    _assert_equal(_streamed(messages, config, [3, 70]), whole)


def test_a_clock_that_runs_back_in_another_piece_changes_nothing() -> None:
    messages = bus_traffic(num_ids=8, duration_s=4.0)
    messages.timestamp[500:] -= 2.0
    config = WindowConfig(size=64, stride=64)
    _assert_equal(_streamed(messages, config, [100, 500, 501, 640]), windows_to_graphs(messages, config))


def test_memory_does_not_grow_with_the_number_of_messages() -> None:
    """Nor without end under a flood of identifiers."""
    random = np.random.default_rng(0)
    stream, sizes = OnlineWindows(WindowConfig()), []
    for part in range(30):
        messages = random_messages(5000, seed=part)
        messages.identifier[:] = random.integers(0, 1 << 29, len(messages))
        stream.feed(messages)
        sizes.append(stream.num_bytes)
    assert len(set(sizes[1:])) == 1  # nothing is copied to make room, which takes many windows' time
    assert sizes[-1] < 200e6


@pytest.mark.parametrize("attack", [None, "fuzzing"])
@pytest.mark.parametrize(("size", "stride"), [(100, 100), (60, 25), (30, 90)])
def test_chosen_windows_are_those_of_all_whatever_is_left_out(attack: str | None, size: int, stride: int) -> None:
    messages = simulate(make_vehicle(3), 6.0, attack, seed=4)
    config = WindowConfig(size=size, stride=stride)
    whole = windows_to_graphs(messages, config)
    for share in (0.0, 0.2, 0.7):
        chosen = np.flatnonzero(np.random.default_rng(5).random(whole.num_graphs) < share)
        _assert_equal(windows_to_graphs(messages, config, chosen), whole.select(chosen))


@pytest.mark.parametrize("num", [0, 1, 99, 100, 1234])
def test_chunks_of_a_recording_have_its_graphs(num: int) -> None:
    messages = simulate(make_vehicle(3), 2.0, None, seed=4).select(slice(num))
    config = WindowConfig()
    chunks = list(window_chunks(messages, config, size=250))
    _assert_equal(GraphColumns.concatenate(chunks), windows_to_graphs(messages, config))


@pytest.mark.parametrize(("size", "stride"), [(100, 100), (60, 25), (30, 90)])
@pytest.mark.parametrize("num", [0, 20, 700, 1234])
def test_chunks_of_so_many_windows_are_of_so_many_but_for_the_last(num: int, size: int, stride: int) -> None:
    messages = simulate(make_vehicle(3), 2.0, None, seed=4).select(slice(num))
    config = WindowConfig(size=size, stride=stride)
    chunks = list(window_chunks(messages, config, num_windows=4))
    whole = windows_to_graphs(messages, config)
    _assert_equal(GraphColumns.concatenate(chunks), whole)
    found = [chunk.num_graphs for chunk in chunks if chunk.num_graphs]
    assert found == [4] * (whole.num_graphs // 4) + [whole.num_graphs % 4] * (whole.num_graphs % 4 > 0)
