"""Simulated vehicles: which frames are sent how often, and what each payload byte means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

NUM_SIGNALS = 12
"""Physical quantities of a drive (speed, engine speed, wheel angles, ...) that several frames report."""
MAX_PAGES = 8
"""Largest number of pages of a multiplexed frame."""

# Period in seconds -> fewest and most frames with it. Together 900 to 1,700 messages a second, as in recorded cars.
_PERIODS: dict[float, tuple[int, int]] = {
    0.01: (4, 8),
    0.02: (6, 11),
    0.05: (3, 6),
    0.1: (7, 15),
    0.2: (2, 4),
    0.5: (2, 4),
    1.0: (3, 6),
    5.0: (2, 3),
}
_NUM_EVENT_FRAMES = (3, 5)
_MEAN_EVENT_GAP_S = (0.8, 6.0)


class ByteKind(IntEnum):
    """State how a payload byte comes about. `a`, `b`, `c` are the parameters of the byte."""

    CONSTANT = 0  # a
    COUNTER = 1  # low bits count modulo a, high bits are b
    SIGNAL_BYTE = 2  # signal a, scaled by b, from c
    SIGNAL_HIGH = 3  # high byte of signal a, scaled by b, from c
    SIGNAL_LOW = 4  # low byte of the same
    FLAGS = 5  # bits of mask a follow whether signal b is above a half, others are c
    PAGE = 6  # page number modulo a
    PAGE_CONSTANT = 7  # a constant that differs from page to page, from seed a
    NOISE = 8  # b plus noise of amplitude a
    XOR_CHECKSUM = 9  # over the bytes before it, from a
    SUM_CHECKSUM = 10
    CRC_CHECKSUM = 11  # CRC-8 SAE J1850, start value a


@dataclass(frozen=True)
class Vehicle:
    """Describe the K frames of a vehicle, fastest and most urgent ones with the lowest ids."""

    name: str
    seed: int
    identifier: NDArray[np.uint32]  # [K]
    period_s: NDArray[np.float64]  # [K] mean gap for event-driven frames
    jitter_s: NDArray[np.float64]  # [K] standard deviation of a release around its slot
    is_event: NDArray[np.bool_]  # [K]
    length: NDArray[np.uint8]  # [K]
    byte_kind: NDArray[np.int64]  # [K, 8] of ByteKind
    byte_parameters: NDArray[np.int64]  # [K, 8, 3]

    @property
    def num_frames(self) -> int:
        """Count the frames, K."""
        return len(self.identifier)


def make_vehicle(seed: int, name: str = "vehicle") -> Vehicle:
    """Draw a vehicle; the same seed gives the same one on every machine.

    >>> vehicle = make_vehicle(5, "alder")
    >>> vehicle.name, len(vehicle.period_s) == len(set(vehicle.identifier.tolist()))
    ('alder', True)
    """
    random = np.random.default_rng([seed, 0xCA2])
    periods = [
        period for period, (fewest, most) in _PERIODS.items() for _ in range(int(random.integers(fewest, most + 1)))
    ]
    num_periodic = len(periods)
    num_frames = num_periodic + int(random.integers(_NUM_EVENT_FRAMES[0], _NUM_EVENT_FRAMES[1] + 1))
    period_s = np.array(periods + list(random.uniform(*_MEAN_EVENT_GAP_S, num_frames - num_periodic)))
    is_event = np.arange(num_frames) >= num_periodic
    # Urgent frames have low ids in a real car, but not strictly so.
    urgency = np.log10(np.where(is_event, 0.05, period_s)) + random.normal(0.0, 0.45, num_frames)
    identifier = np.empty(num_frames, dtype=np.uint32)
    identifier[np.argsort(urgency)] = np.sort(random.choice(np.arange(0x040, 0x7E0), num_frames, replace=False))
    length = np.where(random.random(num_frames) < 0.75, 8, random.integers(2, 8, num_frames)).astype(np.uint8)
    jitter_s = np.minimum(period_s * random.uniform(0.002, 0.02, num_frames), 0.004)
    byte_kind = np.zeros((num_frames, 8), dtype=np.int64)
    byte_parameters = np.zeros((num_frames, 8, 3), dtype=np.int64)
    for frame in range(num_frames):
        _draw_bytes(random, int(length[frame]), byte_kind[frame], byte_parameters[frame])
    return Vehicle(name, seed, identifier, period_s, jitter_s, is_event, length, byte_kind, byte_parameters)


def _draw_bytes(
    random: np.random.Generator, length: int, kind: NDArray[np.int64], parameters: NDArray[np.int64]
) -> None:
    """Draw the meaning of each byte of one frame into `kind` [8] and `parameters` [8, 3]."""
    free = list(range(length))
    if length >= 3 and random.random() < 0.45:
        last = free.pop()
        kind[last] = random.choice([ByteKind.XOR_CHECKSUM, ByteKind.SUM_CHECKSUM, ByteKind.CRC_CHECKSUM])
        parameters[last, 0] = random.integers(0, 256)
    if len(free) >= 2 and random.random() < 0.5:
        place = free.pop(int(random.choice([0, len(free) - 1])))
        kind[place] = ByteKind.COUNTER
        modulus = int(random.choice([4, 15, 16, 16, 256]))
        parameters[place, :2] = modulus, 0 if modulus == 256 else int(random.integers(0, 16)) * 16
    has_pages = len(free) >= 3 and random.random() < 0.15
    if has_pages:
        place = free.pop(0)
        kind[place] = ByteKind.PAGE
        parameters[place, 0] = random.integers(2, MAX_PAGES + 1)
    while free:
        choice = random.random()
        if len(free) >= 2 and choice < 0.3:
            high, low = free.pop(0), free.pop(0)
            if random.random() < 0.3:
                high, low = low, high
            kind[high], kind[low] = ByteKind.SIGNAL_HIGH, ByteKind.SIGNAL_LOW
            signal, scale = random.integers(0, NUM_SIGNALS), random.integers(200, 20000)
            parameters[high] = parameters[low] = signal, scale, random.integers(0, 65536 - scale)
            continue
        place = free.pop(0)
        if choice < 0.45:
            kind[place] = ByteKind.SIGNAL_BYTE
            scale = random.integers(10, 256)
            parameters[place] = random.integers(0, NUM_SIGNALS), scale, random.integers(0, 257 - scale)
        elif choice < 0.6:
            kind[place] = ByteKind.FLAGS
            mask = (1 << random.integers(0, 8)) | (1 << random.integers(0, 8))
            parameters[place] = mask, random.integers(0, NUM_SIGNALS), random.integers(0, 256)
        elif choice < 0.66:
            kind[place] = ByteKind.NOISE
            parameters[place, :2] = random.integers(1, 5), random.integers(0, 250)
        elif has_pages and choice < 0.9:
            kind[place] = ByteKind.PAGE_CONSTANT
            parameters[place, 0] = random.integers(0, 1 << 31)
        else:
            kind[place] = ByteKind.CONSTANT
            parameters[place, 0] = random.choice([0, 0, 0, 255, int(random.integers(0, 256))])
