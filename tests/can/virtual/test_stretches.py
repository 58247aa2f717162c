"""Traffic that lies in a file is the traffic that was put there, and what is cut of it the same as of memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kdgat.can.virtual.stretches import TrafficFile, forget_pages
from kdgat.can.virtual.vehicle import cut
from tests.can.traffic import bus_traffic, make_messages


def test_what_is_moved_is_read_back_after_its_pages_were_given_back(tmp_path: Path) -> None:
    kept = TrafficFile(tmp_path)
    recordings = [bus_traffic(num_ids=5, duration_s=3.0, seed=seed) for seed in range(3)]
    moved = [kept.move(messages) for messages in recordings]
    for _ in range(2):
        for messages, other in zip(recordings, moved, strict=True):
            assert other.content_hash() == messages.content_hash()
            assert (other.name, other.scenario, other.labelled) == (messages.name, messages.scenario, messages.labelled)
            forget_pages(other.select(slice(10, 20)))
    assert not list(tmp_path.iterdir())  # the file has no name


def test_a_recording_without_messages_stays_what_it_is(tmp_path: Path) -> None:
    empty = bus_traffic(num_ids=2, duration_s=1.0).select(slice(0))
    assert len(TrafficFile(tmp_path).move(empty)) == 0


def test_a_cut_of_a_file_is_the_cut_of_memory_and_changes_neither(tmp_path: Path) -> None:
    messages = bus_traffic(num_ids=5, duration_s=10.0, seed=1)
    moved = TrafficFile(tmp_path).move(messages)
    before = moved.content_hash()
    for seed in range(5):
        frames, others = (cut(one, np.random.default_rng(seed), 4.0) for one in (messages, moved))
        for name in ("time", "identifier", "payload", "length", "label"):
            np.testing.assert_array_equal(getattr(frames, name), getattr(others, name))
        assert frames.time[0] == 0.0
        assert frames.time[-1] <= 4.0
        others.payload[:] = 1
    assert moved.content_hash() == before


def test_the_clock_of_a_cut_never_runs_backwards() -> None:
    messages = make_messages(np.array([5.0, 6.0, 5.5, 7.0, 6.5, 9.0]), 0x10)
    frames = cut(messages, np.random.default_rng(0), np.inf)
    np.testing.assert_array_equal(frames.time, [0.0, 1.0, 1.0, 2.0, 2.0, 4.0])
