"""Arbitration on a CAN bus: frames that want to be sent, in the order in which a real bus sends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit

BIT_TIME_S: Final = 2e-6  # 500 kbit/s, the usual powertrain bus
OVERHEAD_BITS: Final = 47  # start, arbitration, control, checksum, acknowledge, end of frame, interframe space
NO_MAILBOX: Final = -1


@dataclass
class Frames:
    """Frames before arbitration, or traffic after it, as columns of equal length."""

    time: NDArray[np.float64]
    identifier: NDArray[np.uint32]
    payload: NDArray[np.uint8]  # [M, 8]
    length: NDArray[np.uint8]
    label: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.time)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Frames:
        """Select rows."""
        return Frames(*(getattr(self, column.name)[rows] for column in fields(Frames)))

    @staticmethod
    def join(parts: Sequence[Frames]) -> Frames:
        """Merge several sets of frames by time; frames of equal time keep the order of the parts."""
        joined = Frames(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Frames)))
        return joined.take(np.argsort(joined.time, kind="stable"))


@njit(cache=True, nogil=True)
def arbitrate(
    wanted: NDArray[np.float64],
    identifier: NDArray[np.uint32],
    duration_s: NDArray[np.float64],
    mailbox: NDArray[np.int64],
    longest_wait_s: float,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Send frames one at a time, the lowest waiting id first, equal ids in the order in which they became ready.

    Arguments: when each frame is ready, seconds, ascending [M]; its id [M]; how long it occupies the bus [M]; the
    mailbox that it is sent from, or NO_MAILBOX [M]; seconds that a frame waits at most. Returns the frames sent, in
    order [K <= M], and when each was received [K]. A frame that waits longer is lost, and so is one that still waits
    when the next one is written into its mailbox.
    """
    num_frames = wanted.shape[0]
    num_mailboxes = 1
    for frame in range(num_frames):
        num_mailboxes = max(num_mailboxes, mailbox[frame] + 1)
    content = np.full(num_mailboxes, -1, np.int64)  # the newest frame written into each mailbox
    sent = np.empty(num_frames, np.int64)
    received = np.empty(num_frames, np.float64)
    heap = np.empty(num_frames, np.int64)  # waiting frames, ordered by (id, arrival)
    waiting = 0
    num_sent = 0
    following = 0
    now = wanted[0] if num_frames else 0.0
    while following < num_frames or waiting > 0:
        if waiting == 0 and wanted[following] > now:
            now = wanted[following]
        while following < num_frames and wanted[following] <= now:
            child = waiting
            waiting += 1
            key = (np.int64(identifier[following]) << 32) | following
            while child > 0:
                parent = (child - 1) >> 1
                if heap[parent] <= key:
                    break
                heap[child] = heap[parent]
                child = parent
            heap[child] = key
            if mailbox[following] >= 0:
                content[mailbox[following]] = following
            following += 1
        top = heap[0]
        waiting -= 1
        if waiting > 0:
            key = heap[waiting]
            parent = 0
            while True:
                child = 2 * parent + 1
                if child >= waiting:
                    break
                if child + 1 < waiting and heap[child + 1] < heap[child]:
                    child += 1
                if heap[child] >= key:
                    break
                heap[parent] = heap[child]
                parent = child
            heap[parent] = key
        frame = top & 0xFFFFFFFF
        is_overwritten = mailbox[frame] >= 0 and content[mailbox[frame]] != frame
        if is_overwritten or now - wanted[frame] > longest_wait_s:
            continue
        now += duration_s[frame]
        sent[num_sent] = frame
        received[num_sent] = now
        num_sent += 1
    return sent[:num_sent].copy(), received[:num_sent].copy()
