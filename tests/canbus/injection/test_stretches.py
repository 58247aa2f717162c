"""Traffic that lies in a file is the traffic that was put there, and what is cut of it the same as of memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kdgat.canbus import Messages
from kdgat.canbus.injection import TrafficFile
from kdgat.canbus.injection.stretches import forget_pages
from kdgat.canbus.injection.vehicle import cut
from tests.canbus.traffic import bus_traffic, make_messages


def moved(folder: Path, messages: Messages) -> Messages:
    kept = TrafficFile(folder)
    kept.append(messages)
    return kept.view()[0]


def resident_kib(messages: Messages) -> int:
    """Return how much of the mapping that a recording lies in is in memory."""
    address = messages.timestamp.__array_interface__["data"][0]
    is_there = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and ":" not in line.split()[0]:
            begin, end = (int(one, 16) for one in line.split()[0].split("-"))
            is_there = begin <= address < end
        elif is_there and line.startswith("Rss:"):
            return int(line.split()[1])
    raise AssertionError("no such mapping")


def test_what_is_moved_is_read_back_after_its_pages_were_given_back(tmp_path: Path) -> None:
    kept = TrafficFile(tmp_path)
    recordings = [bus_traffic(num_ids=5, duration_s=3.0, seed=seed) for seed in range(3)]
    for messages in recordings:
        kept.append(messages)
    moved = kept.view()
    for _ in range(2):
        for messages, other in zip(recordings, moved, strict=True):
            assert other.content_hash() == messages.content_hash()
            assert (other.name, other.scenario, other.labelled) == (messages.name, messages.scenario, messages.labelled)
            forget_pages(other.select(slice(10, 20)))
    assert not list(tmp_path.iterdir())  # the file has no name


def test_a_recording_without_messages_stays_what_it_is(tmp_path: Path) -> None:
    empty = bus_traffic(num_ids=2, duration_s=1.0).select(slice(0))
    assert len(moved(tmp_path, empty)) == 0


def test_recordings_in_a_file_hold_no_open_file_each(tmp_path: Path) -> None:
    messages, kept = bus_traffic(num_ids=2, duration_s=1.0), TrafficFile(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        kept.append(messages)
    recordings = kept.view()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
    assert all(one.content_hash() == messages.content_hash() for one in recordings)


def test_pages_of_a_recording_are_given_back_alone(tmp_path: Path) -> None:
    messages, kept = bus_traffic(num_ids=20, duration_s=60.0), TrafficFile(tmp_path)
    for _ in range(3):
        kept.append(messages)
    first, second, _ = kept.view()
    for one in (first, second):
        one.content_hash()
    before = resident_kib(first)
    forget_pages(first)
    assert before - resident_kib(second) >= 0.8 * first.payload.nbytes / 1024
    assert resident_kib(second) > 0


def test_a_cut_of_a_file_is_the_cut_of_memory_and_changes_neither(tmp_path: Path) -> None:
    messages = bus_traffic(num_ids=5, duration_s=10.0, seed=1)
    others_of = moved(tmp_path, messages)
    before = others_of.content_hash()
    for seed in range(5):
        frames, others = (cut(one, np.random.default_rng(seed), 4.0) for one in (messages, others_of))
        for name in ("time", "identifier", "payload", "length", "label"):
            np.testing.assert_array_equal(getattr(frames, name), getattr(others, name))
        assert frames.time[0] == 0.0
        assert frames.time[-1] <= 4.0
        others.payload[:] = 1
    assert others_of.content_hash() == before


def test_the_clock_of_a_cut_never_runs_backwards() -> None:
    messages = make_messages(np.array([5.0, 6.0, 5.5, 7.0, 6.5, 9.0]), 0x10)
    frames = cut(messages, np.random.default_rng(0), np.inf)
    np.testing.assert_array_equal(frames.time, [0.0, 1.0, 1.0, 2.0, 2.0, 4.0])
