"""Virtual vehicles: what changes of an identifier keeps to rules that control units keep to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus import Messages
from kdgat.canbus.features.fields import FIELD_FEATURES
from kdgat.canbus.features.traffic_state import TrafficState
from kdgat.canbus.injection.arbitration import Frames
from kdgat.canbus.injection.vehicle import _add_own_checksum, _stand, cut, make_virtual
from tests.canbus.traffic import bus_traffic


def _frames(payload: NDArray[np.uint8]) -> Frames:
    num = len(payload)
    return Frames(
        0.01 * np.arange(num),
        np.full(num, 0x123, np.uint32),
        payload,
        np.full(num, 8, np.uint8),
        np.zeros(num, np.uint8),
    )


def test_a_checksum_of_the_makers_own_goes_on_as_a_counter_while_the_rest_stands_still() -> None:
    frames = _frames(np.tile(np.arange(8, dtype=np.uint8), (400, 1)))
    assert _add_own_checksum(frames, np.random.default_rng(2), np.arange(400))
    differing = np.flatnonzero((frames.payload != frames.payload[0]).any(axis=0))
    assert 1 <= len(differing) <= 2  # the counter's byte, and the checksum's
    assert (frames.payload[16:] == frames.payload[:-16]).all()
    moving = np.tile(np.arange(8, dtype=np.uint8), (400, 1))
    moving[:, :] += (np.arange(400) // 7).astype(np.uint8)[:, None]
    frames = _frames(moving)
    _add_own_checksum(frames, np.random.default_rng(2), np.arange(400))
    assert (frames.payload[16:, differing] != frames.payload[:-16, differing]).any()


def test_payloads_of_two_bytes_have_no_room_for_it() -> None:
    frames = _frames(np.zeros((40, 8), np.uint8))
    frames.length[:] = 2
    assert not _add_own_checksum(frames, np.random.default_rng(0), np.arange(40))
    assert not _add_own_checksum(frames, np.random.default_rng(0), np.arange(0))
    assert not frames.payload.any()


def test_when_a_car_stops_many_identifiers_stand_still_from_one_moment_on_and_count_on() -> None:
    num_ids, num_each = 12, 600
    rng = np.random.default_rng(3)
    payload = rng.integers(0, 256, (num_ids * num_each, 8), dtype=np.uint8)
    number = np.arange(num_ids * num_each)
    payload[:, 6] = (number // num_ids) & 15  # each identifier's counter
    frames = Frames(
        0.001 * number,
        (0x100 + number % num_ids).astype(np.uint32),
        payload,
        np.full(len(number), 8, np.uint8),
        np.zeros(len(number), np.uint8),
    )
    _stand(frames, np.random.default_rng(4))  # to the end
    ends = []
    for identifier in np.unique(frames.identifier):
        rows = np.flatnonzero(frames.identifier == identifier)
        assert (frames.payload[rows, 6] == np.arange(num_each) % 16).all()
        changes = (np.diff(np.delete(frames.payload[rows], 6, axis=1).astype(int), axis=0) != 0).any(axis=1)
        if not changes[-1]:
            ends.append(frames.time[rows][np.flatnonzero(changes)[-1] + 1])
    assert 2 < len(ends) < num_ids
    assert np.ptp(ends) < 0.001 * 2 * num_ids


def test_unused_bytes_stay_empty_whatever_is_changed() -> None:
    traffic = bus_traffic(num_ids=15, duration_s=12.0)
    traffic.length[traffic.identifier == traffic.identifier[0]] = 3
    traffic.payload[traffic.identifier == traffic.identifier[0], 3:] = 0
    for seed in range(10):
        made, _ = make_virtual(cut(traffic, np.random.default_rng(0), np.inf), np.random.default_rng(seed))
        unused = np.arange(8)[None, :] >= made.length[:, None]
        assert not made.payload[unused].any()


def test_clean_virtual_cars_hardly_break_what_they_keep_to() -> None:
    """In most of them no counter ever does, and no known checksum in any."""

    traffic = bus_traffic(num_ids=15, duration_s=12.0)
    shares, num_broken = [], 0
    for seed in range(12):
        made, _ = make_virtual(cut(traffic, np.random.default_rng(0), np.inf), np.random.default_rng(seed))
        order = np.argsort(made.time, kind="stable")
        described, _ = TrafficState().describe(
            Messages(
                timestamp=made.time[order],
                identifier=made.identifier[order],
                payload=np.ascontiguousarray(made.payload[order]),
                length=made.length[order],
                label=made.label[order],
                name="virtual",
                scenario="clean",
            ),
            np.zeros(0, np.int64),
        )
        features = described.field_features
        shares.append(float((features[:, FIELD_FEATURES.index("counter_break")] > 0.0).mean()))
        num_broken += int((features[:, FIELD_FEATURES.index("checksum_break")] > 0.0).sum())
    assert np.median(shares) < 0.001
    assert num_broken == 0
