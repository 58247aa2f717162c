"""Arbitration: one frame at a time, the most urgent first, none invented and none lost without reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdgat.canbus.injection.arbitration import NO_MAILBOX, arbitrate

Result = tuple[NDArray[np.int64], NDArray[np.float64]]


def _send(
    wanted: list[float] | NDArray[np.float64],
    identifier: list[int] | NDArray[np.integer],
    duration_s: list[float] | float = 1.0,
    mailbox: list[int] | int = NO_MAILBOX,
    longest_wait_s: float = np.inf,
) -> Result:
    num = len(wanted)
    return arbitrate(
        np.asarray(wanted, np.float64),
        np.asarray(identifier, np.uint32),
        np.broadcast_to(np.asarray(duration_s, np.float64), num).copy(),
        np.broadcast_to(np.asarray(mailbox, np.int64), num).copy(),
        longest_wait_s,
    )


def _send_plainly(
    wanted: list[float], identifier: list[int], duration_s: list[float], mailbox: list[int], longest_wait_s: float
) -> tuple[list[int], list[float]]:
    """Decide each round by looking at every frame."""
    left, sent, received, now = set(range(len(wanted))), [], [], 0.0
    while left:
        now = max(now, min(wanted[frame] for frame in left))
        ready = {frame for frame in left if wanted[frame] <= now}
        stale = {
            frame
            for frame in ready
            if now - wanted[frame] > longest_wait_s
            or (mailbox[frame] >= 0 and any(mailbox[other] == mailbox[frame] and other > frame for other in ready))
        }
        left -= stale
        if ready - stale:
            winner = min(ready - stale, key=lambda frame: (identifier[frame], frame))
            left.remove(winner)
            now += duration_s[winner]
            sent.append(winner)
            received.append(now)
    return sent, received


frames = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 6), st.integers(1, 6), st.integers(NO_MAILBOX, 3)), max_size=40
)


@settings(deadline=None, max_examples=200)
@given(frames, st.sampled_from([3.0, 10.0, np.inf]))
def test_bus_agrees_with_plain_python(drawn: list[tuple[int, int, int, int]], longest_wait_s: float) -> None:
    drawn = sorted(drawn, key=lambda frame: frame[0])
    wanted = [frame[0] / 2.0 for frame in drawn]
    # a mailbox belongs to one id
    mailbox = [frame[1] if frame[3] >= 0 else NO_MAILBOX for frame in drawn]
    identifier, duration_s = [frame[1] for frame in drawn], [frame[2] / 2.0 for frame in drawn]
    sent, received = _send(wanted, identifier, duration_s, mailbox, longest_wait_s)
    assert (sent.tolist(), received.tolist()) == _send_plainly(wanted, identifier, duration_s, mailbox, longest_wait_s)


def test_lowest_waiting_id_is_sent_first_but_interrupts_nobody() -> None:
    sent, received = _send([0.0, 0.1, 0.2, 0.3], [0x700, 0x300, 0x200, 0x100])
    assert sent.tolist() == [0, 3, 2, 1]
    assert received.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_equal_ids_keep_their_order() -> None:
    assert _send(np.zeros(50), np.full(50, 7))[0].tolist() == list(range(50))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000))
def test_no_two_frames_at_once_and_none_lost(seed: int) -> None:
    random = np.random.default_rng(seed)
    wanted = np.sort(random.uniform(0.0, 0.05, 300))
    identifier = random.integers(0, 1 << 29, 300)
    duration_s = random.uniform(1e-4, 3e-4, 300)
    sent, received = _send(wanted, identifier, duration_s)
    assert sorted(sent.tolist()) == list(range(300))
    begun = received - duration_s[sent]
    assert np.all(begun[1:] >= received[:-1] - 1e-12)
    assert np.all(begun >= wanted[sent] - 1e-12)


def test_frame_that_waits_too_long_is_lost() -> None:
    wanted = np.concatenate([np.arange(0, 100) * 0.5, [10.0, 10.0]])
    order = np.argsort(wanted, kind="stable")
    identifier = np.concatenate([np.zeros(100), [5, 0]])[order]  # a flood twice as fast as the bus
    sent, received = _send(wanted[order], identifier, longest_wait_s=4.0)
    victim = int(np.flatnonzero(identifier == 5)[0])
    assert victim not in sent
    assert np.all(received - 1.0 - wanted[order][sent] <= 4.0)
    assert 20 < len(sent) < 80


def test_newer_frame_replaces_the_one_that_still_waits_in_its_mailbox() -> None:
    sent, _ = _send([0.0, 0.2, 0.4, 0.6], [1, 9, 9, 9], mailbox=[NO_MAILBOX, 0, 0, NO_MAILBOX])
    assert sent.tolist() == [0, 2, 3]


@pytest.mark.parametrize("num", [0, 1])
def test_empty_and_idle_bus(num: int) -> None:
    sent, received = _send(np.full(num, 3.0), np.zeros(num, int), 0.5)
    assert sent.tolist() == [0] * num
    assert received.tolist() == [3.5] * num
