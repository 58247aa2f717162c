"""Arbitration on a virtual CAN bus: frames that want to be sent, in the order in which a real bus sends them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

BIT_TIME_S: Final = 2e-6  # 500 kbit/s, the usual powertrain bus
_OVERHEAD_BITS: Final = 47  # start, arbitration, control, checksum, acknowledge, end of frame, interframe space
_STUFFING: Final = 1.06  # share of stuff bits in ordinary payloads
_LONGEST_WAIT_S: Final = 0.05  # an overwritten mailbox: a frame that waited longer is never sent


@njit(cache=True)
def arbitrate(
    wanted: NDArray[np.float64], identifier: NDArray[np.uint32], length: NDArray[np.uint8], bit_time_s: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Send frames one at a time, the lowest waiting id first.

    Arguments: when each frame is ready, seconds, ascending [M]; its id [M]; its payload bytes [M]; seconds a bit.
    Returns the frames sent, in order [K <= M], and when each was received [K]. A frame that waits too long is lost.
    """
    num_frames = wanted.shape[0]
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
        if now - wanted[frame] > _LONGEST_WAIT_S:
            continue
        now += (_OVERHEAD_BITS + 8 * length[frame]) * _STUFFING * bit_time_s
        sent[num_sent] = frame
        received[num_sent] = now
        num_sent += 1
    return sent[:num_sent].copy(), received[:num_sent].copy()
