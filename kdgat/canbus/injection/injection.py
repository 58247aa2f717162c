"""Attacks injected into attack-free traffic, on virtual vehicles: what a detector trains on to meet the unknown.

A benign recording becomes another vehicle (ids renamed, clock scaled, ids dropped, made noisy, jittered or silenced,
a second bus interleaved), and campaigns of attacks are sent into it over a simulated bus, so that injected frames
delay the others as real ones do. Everything is drawn from one seed; the same seed gives the same traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.injection.arbitration import BIT_TIME_S, NO_MAILBOX, OVERHEAD_BITS, arbitrate
from kdgat.canbus.injection.attacks import attack_traffic
from kdgat.canbus.injection.frames import Frames
from kdgat.canbus.injection.vehicle import cut, make_virtual, rename
from kdgat.canbus.messages import AttackCampaign, Messages
from kdgat.canbus.settings import ATTACKS, InjectionConfig

_STUFFING: Final = 1.06  # stuff bits of ordinary payloads, as a factor on all bits
_LONGEST_WAIT_S: Final = 0.05  # a frame that waited longer finds its mailbox overwritten
_USUAL_GAP_S: Final = 2.4e-4  # between the messages of a busy bus; attacks on a slower one are slower

LOSSY_FRACTION: Final = 0.3  # of virtual recordings
LOSS_RATES: Final = (1e-5, 1e-3)
PAUSED_FRACTION: Final = 0.2  # of virtual recordings
_PAUSE_S: Final = (0.1, 10.0)


@dataclass
class Injected:
    """One virtual recording and what was done to it."""

    messages: Messages
    attacks: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)


def clean_stretches(messages: Messages, shortest_s: float) -> list[Messages]:
    """Cut the stretches without any attack out of a recording, the short ones left out; a clean one stays whole."""
    marks = np.flatnonzero(messages.label)
    edges = np.concatenate([[-1], marks, [len(messages)]])
    stretches = []
    for before, after in pairwise(edges.tolist()):
        rows = slice(before + 1, after)
        if after - before > 2 and messages.timestamp[after - 1] - messages.timestamp[before + 1] >= shortest_s:
            stretches.append(messages.select(rows))
    return stretches


def make_variant(recordings: Sequence[Messages], config: InjectionConfig, seed: int, variant: int) -> Injected:
    """Make one virtual recording with its attacks from benign recordings, by (seed, variant) alone."""
    rng = np.random.default_rng([seed, variant])
    sizes = np.array([len(recording) for recording in recordings], float)
    base = recordings[int(rng.choice(len(recordings), p=sizes / sizes.sum()))]
    frames = cut(base, rng, rng.uniform(*config.duration_s))
    changes = ["recording as it is"]
    is_virtual = rng.random() >= config.original_fraction
    if is_virtual:
        frames, changes = make_virtual(frames, rng)
        if rng.random() < config.interleave_fraction and len(frames):
            frames = _interleave(frames, recordings[int(rng.integers(len(recordings)))], rng, changes)
        if rng.random() < PAUSED_FRACTION and len(frames):
            _pause(frames, rng)
            changes = [*changes, "pauses of the bus"]
    attacks: list[str] = []
    campaigns: list[AttackCampaign] = []
    scale = float(np.clip(np.median(np.diff(frames.time)) / _USUAL_GAP_S, 0.5, 3.0)) if len(frames) > 100 else 1.0
    if rng.random() >= config.clean_fraction and len(frames) > 100:
        names = [name for name in ATTACKS if name in config.attack_weights]  # whatever order the weights are written in
        weights = np.array([config.attack_weights[name] for name in names])
        attack = names[rng.choice(len(names), p=weights / weights.sum())]
        frames, details, campaigns = attack_traffic(attack, frames, rng, scale)
        attacks.append(f"{attack}: {details}")
    sent, received = _send(frames, BIT_TIME_S * min(scale, 1.0))
    if is_virtual and rng.random() < LOSSY_FRACTION:  # the logger misses a message now and then
        keep = rng.random(len(sent)) >= np.exp(rng.uniform(*np.log(LOSS_RATES)))
        sent, received = sent.take(keep), received[keep]
        changes = [*changes, "messages lost"]
    return Injected(
        Messages(
            timestamp=received,
            identifier=sent.identifier,
            payload=sent.payload,
            length=sent.length,
            label=sent.label,
            name=f"virtual-{variant:05d}-{attacks[0].partition(':')[0] if attacks else 'clean'}-of-{base.name}",
            scenario="injected",
            campaigns=tuple(campaigns),
        ),
        attacks,
        changes,
    )


def _interleave(frames: Frames, recording: Messages, rng: np.random.Generator, changes: list[str]) -> Frames:
    """Add half the ids of a second virtual vehicle, renamed so that both use none in common."""
    other, _ = make_virtual(cut(recording, rng, max(frames.time[-1], 1.0)), rng)
    if len(other):
        other = other.take(np.isin(other.identifier, rng.permutation(np.unique(other.identifier))[::2]))
    if not len(other):
        return frames
    other = rename(other, rng, set(np.unique(frames.identifier).tolist()), keep_order=False)
    changes.append("second bus interleaved")
    return Frames.join([frames, other.take(other.time < frames.time[-1])])


def _pause(frames: Frames, rng: np.random.Generator) -> None:
    """Let the whole bus rest once or a few times, as when a car is switched off, or a log is not written."""
    for begin in rng.uniform(0.0, frames.time[-1], rng.integers(1, 4)):
        frames.time[frames.time > begin] += np.exp(rng.uniform(*np.log(_PAUSE_S)))


def _send(frames: Frames, bit_time_s: float) -> tuple[Frames, NDArray[np.float64]]:
    """Return the frames that get onto the bus, in their order, and when each was received."""
    num_bits = OVERHEAD_BITS + 8 * frames.length.astype(np.float64)
    no_mailbox = np.full(len(frames), NO_MAILBOX, np.int64)
    duration_s = num_bits * _STUFFING * bit_time_s
    sent, received = arbitrate(frames.time, frames.identifier, duration_s, no_mailbox, _LONGEST_WAIT_S)
    return frames.take(sent), received
