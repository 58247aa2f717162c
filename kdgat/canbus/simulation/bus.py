"""The simulated bus: who sends when, and what the winners of arbitration carry."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.injection.arbitration import NO_MAILBOX, OVERHEAD_BITS, arbitrate
from kdgat.canbus.simulation.vehicle import NUM_SIGNALS, ByteKind, Vehicle

BITS_PER_SECOND = 500_000.0
SIGNAL_STEP_S = 0.01
"""Sampling step of the physical signals of a drive."""
_EVENT_REPEATS, _EVENT_REPEAT_S = 3, 0.02

ATTACKER = NO_MAILBOX
"""Owner of a frame that no control unit of the vehicle sends; the frames of a unit share a mailbox, these do not."""

_CONSTANT, _COUNTER, _SIGNAL_BYTE = int(ByteKind.CONSTANT), int(ByteKind.COUNTER), int(ByteKind.SIGNAL_BYTE)
_SIGNAL_HIGH, _SIGNAL_LOW, _FLAGS = int(ByteKind.SIGNAL_HIGH), int(ByteKind.SIGNAL_LOW), int(ByteKind.FLAGS)
_PAGE, _PAGE_CONSTANT, _NOISE = int(ByteKind.PAGE), int(ByteKind.PAGE_CONSTANT), int(ByteKind.NOISE)
_XOR, _SUM = int(ByteKind.XOR_CHECKSUM), int(ByteKind.SUM_CHECKSUM)
_CRC_POLYNOMIAL = 0x1D


@dataclass(slots=True)
class Frames:
    """Hold F frames that wait for the bus, or that went over it."""

    time: NDArray[np.float64]  # [F] seconds: release before arbitration, end of frame after it
    owner: NDArray[np.int64]  # [F] frame of the vehicle, or ATTACKER
    identifier: NDArray[np.uint32]  # [F]
    length: NDArray[np.uint8]  # [F]
    payload: NDArray[np.uint8]  # [F, 8] of the attacker; the vehicle's are filled in after arbitration
    forged: NDArray[np.bool_]  # [F] sent in the name of `owner` with false signals
    label: NDArray[np.uint8]  # [F]

    def select(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Frames:
        """Take some frames, in the order of `rows`."""
        return Frames(*(getattr(self, column.name)[rows] for column in fields(Frames)))

    @staticmethod
    def concatenate(parts: list[Frames]) -> Frames:
        """Join frames in the given order."""
        return Frames(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Frames)))


def vehicle_frames(vehicle: Vehicle, duration_s: float, random: np.random.Generator) -> Frames:
    """Draw when each control unit releases its frames: periodic ones with clock drift and jitter, and events."""
    times, owners = [], []
    for frame in range(vehicle.num_frames):
        period_s = vehicle.period_s[frame]
        if vehicle.is_event[frame]:
            starts = np.cumsum(random.exponential(period_s, int(2 * duration_s / period_s) + 10))
            released = (starts[:, None] + _EVENT_REPEAT_S * np.arange(_EVENT_REPEATS)).ravel()
        else:
            drifting_s = period_s * (1.0 + random.normal(0.0, 2e-5))
            released = random.uniform(0.0, period_s) + drifting_s * np.arange(int(duration_s / drifting_s) + 1)
            released = released + random.normal(0.0, vehicle.jitter_s[frame], len(released))
        released = np.sort(released[(released >= 0.0) & (released < duration_s)])
        times.append(released)
        owners.append(np.full(len(released), frame))
    return owned_frames(vehicle, np.concatenate(times), np.concatenate(owners))


def owned_frames(vehicle: Vehicle, time: NDArray[np.float64], owner: NDArray[np.int64]) -> Frames:
    """Make frames that carry the vehicle's own payloads."""
    num_frames = len(time)
    return Frames(
        time,
        owner.astype(np.int64),
        vehicle.identifier[owner],
        vehicle.length[owner],
        np.zeros((num_frames, 8), dtype=np.uint8),
        np.zeros(num_frames, dtype=np.bool_),
        np.zeros(num_frames, dtype=np.uint8),
    )


def drive_signals(duration_s: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Draw the physical signals of a drive, [NUM_SIGNALS, steps] in 0..1: walks, waves, slopes and steps."""
    num_steps = int(duration_s / SIGNAL_STEP_S) + 2
    seconds = np.arange(num_steps) * SIGNAL_STEP_S
    signals = np.empty((NUM_SIGNALS, num_steps))
    for k in range(NUM_SIGNALS):
        start = random.random()
        if k % 4 == 0:  # acceleration walks, speed follows smoothly
            pull = random.normal(0.0, 1.0, num_steps)
            signals[k] = _smooth_walk(pull, start, float(random.uniform(0.002, 0.03)))
        elif k % 4 == 1:
            phase = 2 * np.pi * (seconds * random.uniform(0.05, 1.5) + start)
            signals[k] = 0.5 + 0.4 * np.sin(phase + 0.8 * np.sin(0.37 * phase)) + random.normal(0, 0.004, num_steps)
        elif k % 4 == 2:
            signals[k] = (start + seconds * random.uniform(1e-4, 5e-3)) % 1.0
        else:  # a gear, a lamp: holds a level for seconds
            num_levels = int(random.integers(2, 7))
            changes = random.random(num_steps) < SIGNAL_STEP_S / random.uniform(2.0, 12.0)
            levels = random.integers(0, num_levels, num_steps) / max(num_levels - 1, 1)
            held = np.maximum.accumulate(np.where(changes, np.arange(num_steps), 0))
            signals[k] = levels[held]
    return np.clip(signals, 0.0, 1.0)


@njit(cache=True)
def _smooth_walk(pull: Any, start: float, pace: float) -> Any:
    """Integrate a slowly changing rate, turned around at 0 and 1."""
    values = np.empty(len(pull))
    value, rate = start, 0.0
    for k in range(len(pull)):
        rate = 0.98 * rate + 0.02 * pace * pull[k]
        value += rate
        if value < 0.0 or value > 1.0:
            value = min(max(value, 0.0), 1.0)
            rate = -0.5 * rate
        values[k] = value
    return values


def send(frames: Frames) -> Frames:
    """Let waiting frames win the bus one by one, lowest id first; a unit's stale frame is replaced by its next."""
    waiting = frames.select(np.argsort(frames.time, kind="stable"))
    # Overhead, data, and the stuff bits that a payload of middling variety needs.
    num_bits = OVERHEAD_BITS + 8 * waiting.length.astype(np.float64) + np.floor((34 + 8 * waiting.length) / 12)
    order, ends = arbitrate(waiting.time, waiting.identifier, num_bits / BITS_PER_SECOND, waiting.owner, np.inf)
    sent = waiting.select(order)
    sent.time = ends
    return sent


def fill_payloads(vehicle: Vehicle, sent: Frames, signals: NDArray[np.float64], seed: int) -> None:
    """Write the vehicle's payloads into its frames, in the order they went over the bus."""
    _fill(
        sent.time,
        sent.owner,
        sent.forged,
        sent.payload,
        vehicle.length,
        vehicle.byte_kind,
        vehicle.byte_parameters,
        signals,
        np.uint64(seed),
    )


@njit(cache=True)
def _mixed(state: Any) -> Any:
    """Scramble 64 bits (SplitMix64): noise that is a pure function of its place."""
    z = np.uint64(state) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True)
def _checksum(kind: int, start: int, payload: Any, length: int) -> int:
    value = start
    for k in range(length):
        if kind == _XOR:
            value ^= payload[k]
        elif kind == _SUM:
            value = (value + payload[k]) & 255
        else:
            value ^= payload[k]
            for _ in range(8):
                value = ((value << 1) ^ _CRC_POLYNOMIAL) & 255 if value & 128 else (value << 1) & 255
    return value


@njit(cache=True)
def _fill(
    time: Any,
    owner: Any,
    forged: Any,
    payload: Any,
    length: Any,
    byte_kind: Any,
    byte_parameters: Any,
    signals: Any,
    seed: Any,
) -> None:
    counts = np.zeros(len(length), dtype=np.int64)  # frames sent so far, per frame of the vehicle
    last_step = signals.shape[1] - 1
    for message in range(len(time)):
        frame = owner[message]
        if frame < 0:
            continue
        count = counts[frame]
        counts[frame] += 1
        step = min(int(time[message] / SIGNAL_STEP_S), last_step)
        num_pages = 1
        for k in range(length[frame]):
            if byte_kind[frame, k] == _PAGE:
                num_pages = byte_parameters[frame, k, 0]
        for k in range(length[frame]):
            kind = byte_kind[frame, k]
            a, b, c = byte_parameters[frame, k]
            value: Any = 0
            if kind == _CONSTANT:
                value = a
            elif kind == _COUNTER:
                value = b + count % a
            elif kind in (_SIGNAL_BYTE, _SIGNAL_HIGH, _SIGNAL_LOW):
                # A forger keeps the form of the frame and forges the signal.
                level = 1.0 - signals[a, step] if forged[message] else signals[a, step]
                value = c + int(level * b)
                if kind == _SIGNAL_BYTE:
                    value = min(value, 255)
                elif kind == _SIGNAL_HIGH:
                    value = value >> 8
            elif kind == _FLAGS:
                value = c ^ a if (signals[b, step] > 0.5) != forged[message] else c
            elif kind == _PAGE:
                value = count % a
            elif kind == _PAGE_CONSTANT:
                value = np.int64(_mixed(np.uint64(a) + np.uint64(count % num_pages)) & np.uint64(255))
            elif kind == _NOISE:
                noise = _mixed(seed + np.uint64(message * 8 + k)) % np.uint64(a + 1)
                value = b + np.int64(noise)
            else:
                value = _checksum(kind, a, payload[message], k)
            payload[message, k] = value & 255
