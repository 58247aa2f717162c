"""Attacks injected into attack-free traffic, on virtual vehicles: what a detector trains on to meet the unknown.

A benign recording becomes another vehicle (ids renamed, clock scaled, ids dropped, made noisy, jittered or silenced,
a second bus interleaved), and campaigns of attacks are sent into it over a simulated bus, so that injected frames
delay the others as real ones do. Everything is drawn from one seed; the same seed gives the same traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kdgat.can.bus import BIT_TIME_S, arbitrate
from kdgat.can.messages import Messages
from kdgat.stage.configuration import Config

ATTACKS: Final = ("dos", "fuzzing", "spoofing", "systematic", "replay", "suppression", "masquerade", "sparse")


class InjectionConfig(Config):
    """Say how much virtual traffic is made and what happens in it."""

    enabled: bool = Field(True, description="false trains on the recordings alone, for comparison")
    variants: int = Field(300, ge=1, description="virtual recordings in the pool")
    validation_share: float = Field(0.2, gt=0.0, le=1.0, description="virtual recordings for validation, of variants")
    kept_fraction: float = Field(0.4, gt=0.0, le=1.0, description="share of a virtual recording's windows kept")
    duration_s: tuple[float, float] = Field((15.0, 45.0), description="shortest and longest virtual recording")
    clean_fraction: float = Field(0.15, ge=0.0, le=1.0, description="share of virtual recordings without attack")
    original_fraction: float = Field(0.25, ge=0.0, le=1.0, description="share that keep the vehicle as recorded")
    interleave_fraction: float = Field(0.15, ge=0.0, le=1.0, description="share with a second bus interleaved")
    attack_weights: dict[str, float] = Field(
        default={
            "dos": 1.0, "fuzzing": 1.5, "spoofing": 3.0, "systematic": 0.7,
            "replay": 0.7, "suppression": 0.3, "masquerade": 0.3, "sparse": 0.5,
        },
        description="how often each attack is drawn, in proportion",
    )  # fmt: skip


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
        return Frames(
            self.time[rows], self.identifier[rows], self.payload[rows], self.length[rows], self.label[rows]
        )  # fmt: skip

    @staticmethod
    def join(parts: Sequence[Frames]) -> Frames:
        """Merge several sets of frames by time; frames of equal time keep the order of the parts."""
        time = np.concatenate([part.time for part in parts])
        order = np.argsort(time, kind="stable")
        return Frames(
            time[order],
            np.concatenate([part.identifier for part in parts])[order],
            np.concatenate([part.payload for part in parts])[order],
            np.concatenate([part.length for part in parts])[order],
            np.concatenate([part.label for part in parts])[order],
        )


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
    for before, after in zip(edges[:-1], edges[1:], strict=True):
        rows = slice(int(before) + 1, int(after))
        if after - before > 2 and messages.timestamp[after - 1] - messages.timestamp[before + 1] >= shortest_s:
            stretches.append(messages.select(rows))
    return stretches


def _frames(messages: Messages) -> Frames:
    time = np.maximum.accumulate(messages.timestamp)  # a virtual clock never runs backwards
    return Frames(
        time - time[0],
        messages.identifier.copy(),
        messages.payload.copy(),
        messages.length.copy(),
        np.zeros(len(time), np.uint8),
    )


def _cut(frames: Frames, rng: np.random.Generator, duration_s: float) -> Frames:
    """Take a random stretch of the recording; its clock begins at zero."""
    total = frames.time[-1]
    begin = rng.uniform(0.0, max(total - duration_s, 0.0)) if rng.random() < 0.8 else 0.0
    low, high = np.searchsorted(frames.time, [begin, begin + duration_s])
    part = frames.take(slice(int(low), int(high)))
    part.time = part.time - part.time[0]
    return part


def _rename(frames: Frames, rng: np.random.Generator, taken: set[int], keep_order: bool) -> Frames:
    """Give every id a new random one that nobody uses, with the same order of priority or another."""
    old, inverse = np.unique(frames.identifier, return_inverse=True)
    free = np.setdiff1d(np.arange(1, 2048), np.fromiter(taken, np.int64, len(taken)))
    new = rng.choice(free, size=min(len(old), len(free)), replace=False)
    if len(new) < len(old):  # more ids than 11 bits hold: leave the rest as they are
        new = np.concatenate([new, old[len(new) :]])
    if keep_order:
        new = np.sort(new)
    frames.identifier = new[inverse].astype(np.uint32)
    return frames


def _add_noise(frames: Frames, rng: np.random.Generator, rows: NDArray[np.int64]) -> str:
    """Make one id's payload harder to predict, as other vehicles' signals are."""
    kind = ("random_bytes", "multiplexed", "random_walk", "constant", "counter")[rng.integers(5)]
    columns = rng.choice(8, size=rng.integers(1, 9), replace=False)
    if kind == "random_bytes":
        frames.payload[np.ix_(rows, columns)] = rng.integers(0, 256, (len(rows), len(columns)))
    elif kind == "multiplexed":
        patterns = rng.integers(0, 256, (rng.integers(2, 9), len(columns)))
        frames.payload[np.ix_(rows, columns)] = patterns[np.arange(len(rows)) % len(patterns)]
    elif kind == "random_walk":
        steps = rng.integers(-2, 3, (len(rows), len(columns))).cumsum(axis=0)
        frames.payload[np.ix_(rows, columns)] = (steps + rng.integers(0, 256, len(columns))) & 255
    elif kind == "constant":
        frames.payload[rows] = rng.integers(0, 256, 8)
    else:
        frames.payload[rows, columns[0]] = np.arange(len(rows)) & (15 if rng.random() < 0.5 else 255)
    unused = np.arange(8)[None, :] >= frames.length[rows][:, None]
    frames.payload[rows] = np.where(unused, 0, frames.payload[rows])
    return kind


def _change_mode(frames: Frames, rng: np.random.Generator, rows: NDArray[np.int64]) -> None:
    """Let one id's signals change their habits for a while, as when a car pulls away or a door opens."""
    begin = rng.uniform(0.0, frames.time[-1])
    end = begin + rng.exponential(0.3 * frames.time[-1]) if rng.random() < 0.7 else np.inf
    inside = rows[(frames.time[rows] >= begin) & (frames.time[rows] < end)]
    columns = rng.choice(8, size=rng.integers(1, 6), replace=False)
    columns = columns[columns < frames.length[rows[0]]]
    if len(inside) == 0 or len(columns) == 0:
        return
    kind = rng.integers(5)
    block = np.ix_(inside, columns)
    if kind == 0:  # other constant bits
        frames.payload[block] ^= rng.integers(0, 256, len(columns), dtype=np.uint8)
    elif kind == 1:  # freezes
        frames.payload[block] = frames.payload[inside[0], columns]
    elif kind == 2:  # all zero or all one
        frames.payload[block] = (0, 255)[rng.integers(2)]
    elif kind == 3:  # a value begins to move
        steps = rng.integers(-3, 4, (len(inside), len(columns))).cumsum(axis=0)
        frames.payload[block] = (frames.payload[block] + steps) & 255
    else:  # a flag flickers
        flicker = rng.random((len(inside), 1)) < rng.uniform(0.02, 0.5)
        frames.payload[block] ^= np.where(flicker, rng.integers(0, 256, len(columns)), 0).astype(np.uint8)


def _event_bursts(frames: Frames, rng: np.random.Generator, rows: NDArray[np.int64]) -> Frames:
    """Make an id cyclic and event driven: now and then it repeats itself quickly, as comfort signals do."""
    every_s, spacing_s = np.exp(rng.uniform(np.log(0.3), np.log(5.0))), np.exp(rng.uniform(np.log(0.002), np.log(0.05)))
    num_repeats = int(rng.integers(1, 6))
    since = rng.uniform(0.0, 0.9 * frames.time[-1]) if rng.random() < 0.6 else 0.0  # a habit that begins some time
    begins = since + np.cumsum(rng.exponential(every_s, int(frames.time[-1] / every_s) + 1) + 0.1)
    begins = begins[begins < frames.time[-1]]
    times = (begins[:, None] + spacing_s * np.arange(num_repeats)[None, :]).reshape(-1)
    latest = rows[np.clip(np.searchsorted(frames.time[rows], times) - 1, 0, len(rows) - 1)]
    payload = frames.payload[latest].copy()
    if rng.random() < 0.5:  # the event is a changed bit
        column = int(rng.integers(max(1, frames.length[rows[0]])))
        payload[:, column] ^= np.uint8(1 << rng.integers(8))
    extra = frames.take(latest)
    extra.time, extra.payload = times, payload
    return extra


def make_virtual(frames: Frames, rng: np.random.Generator) -> tuple[Frames, list[str]]:
    """Turn a stretch of benign traffic into that of another vehicle."""
    changes: list[str] = []
    ids = np.unique(frames.identifier)
    keep = np.ones(len(frames), bool)
    if rng.random() < 0.6:
        share = rng.uniform(0.05, 0.5)
        dropped = ids[rng.random(len(ids)) < share]
        if len(dropped) < len(ids):
            keep &= ~np.isin(frames.identifier, dropped)
            changes.append("ids dropped")
    frames = frames.take(keep)
    ids, inverse = np.unique(frames.identifier, return_inverse=True)
    remove = np.zeros(len(frames), bool)
    changing, bursting = rng.uniform(0.0, 0.4), rng.uniform(0.0, 0.1)
    bursts: list[Frames] = []
    for position in range(len(ids)):
        if rng.random() < changing:
            _change_mode(frames, rng, np.flatnonzero(inverse == position))
            changes.append("mode changes")
        draw = rng.random()
        rows = np.flatnonzero(inverse == position)
        if draw < 0.15:
            changes.append("payload " + _add_noise(frames, rng, rows))
        elif draw < 0.27:
            interval = np.median(np.diff(frames.time[rows])) if len(rows) > 2 else 0.01
            frames.time[rows] += rng.normal(0.0, rng.uniform(0.01, 0.25) * interval, len(rows))
            changes.append("jitter")
        elif draw < 0.31:
            middle = rng.uniform(0.0, frames.time[-1])
            silent = np.abs(frames.time[rows] - middle) < rng.uniform(0.05, 2.0)
            remove[rows[silent]] = True
            changes.append("gap")
        elif draw < 0.36:
            slower = int(rng.integers(2, 11))
            remove[rows[np.arange(len(rows)) % slower != 0]] = True
            changes.append("period slower")
        elif draw < 0.39:
            change = rng.uniform(0.0, frames.time[-1])
            late = rows[frames.time[rows] > change]
            remove[late[np.arange(len(late)) % 2 == 1]] = True
            changes.append("period changes")
        elif draw < 0.415:
            on = rng.uniform(0.0, 1.0, 64) < 0.3
            remove[rows[~on[(frames.time[rows] / rng.uniform(0.2, 2.0)).astype(np.int64) % 64]]] = True
            changes.append("event driven")
        elif draw < 0.45:
            held = rng.integers(1, 30)
            frames.payload[rows] = frames.payload[rows[(np.arange(len(rows)) // held) * held]]
            changes.append("payload held")
        if rng.random() < bursting:
            bursts.append(_event_bursts(frames, rng, rows))
            changes.append("event bursts")
    frames = frames.take(~remove)
    if bursts:
        frames = Frames.join([frames, *bursts])
    if rng.random() < 0.7:
        frames = _rename(frames, rng, set(), keep_order=rng.random() < 0.5)
        changes.append("ids renamed")
    if rng.random() < 0.6:
        frames.time = frames.time * rng.uniform(0.6, 1.7)
        changes.append("clock scaled")
    order = np.argsort(frames.time, kind="stable")
    frames = frames.take(order)
    if len(frames):
        frames.time = frames.time - frames.time[0]
    return frames, changes


def _intervals(rng: np.random.Generator, mean_s: float, num: int) -> NDArray[np.float64]:
    """Draw the times between injected frames: regular, jittered, exponential or in two modes, as tools send them."""
    kind = rng.integers(4)
    if kind == 0:
        return np.full(num, mean_s) * rng.normal(1.0, 0.01, num).clip(0.5, 1.5)
    if kind == 1:
        return mean_s * rng.lognormal(0.0, 0.3, num)
    if kind == 2:
        return rng.exponential(mean_s, num)
    return mean_s * np.where(rng.random(num) < 0.5, 0.4, 1.6) * rng.normal(1.0, 0.05, num).clip(0.5, 1.5)


def _times(rng: np.random.Generator, begin: float, end: float, mean_s: float) -> NDArray[np.float64]:
    """Draw the times of injected frames in one campaign, at least one."""
    num = int((end - begin) / mean_s * 1.5) + 8
    times = begin + np.cumsum(_intervals(rng, mean_s, num))
    times = times[times < end]
    return times if len(times) else np.array([begin])


def _forged_payloads(
    frames: Frames, rng: np.random.Generator, rows: NDArray[np.int64], times: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """Draw the payloads of frames that pretend to be the id of `rows`: constant, random, replayed or touched up."""
    num = len(times)
    recorded = frames.payload[rows]
    kind = rng.integers(7)
    if kind == 0:
        return np.full((num, 8), (0, 255)[rng.integers(2)], np.uint8)
    if kind == 1:
        return np.tile(rng.integers(0, 256, 8, dtype=np.uint8), (num, 1))
    if kind == 2:
        return rng.integers(0, 256, (num, 8), dtype=np.uint8)
    if kind == 3:  # one recorded payload again and again
        return np.tile(recorded[rng.integers(len(recorded))], (num, 1))
    if kind == 4:  # recorded payloads from another time, in order
        return recorded[(rng.integers(len(recorded)) + np.arange(num)) % len(recorded)]
    latest = np.clip(np.searchsorted(frames.time[rows], times) - 1, 0, len(rows) - 1)
    payload = recorded[latest].copy()
    columns = rng.choice(8, size=rng.integers(1, 5), replace=False)
    if kind == 5:  # the current payload with some bytes set
        payload[:, columns] = rng.integers(0, 256, len(columns))
    else:  # the current payload with some bytes random
        payload[:, columns] = rng.integers(0, 256, (num, len(columns)))
    return payload


def _attack(
    name: str, frames: Frames, rng: np.random.Generator, campaigns: list[tuple[float, float]], scale: float
) -> tuple[Frames, NDArray[np.bool_], str]:
    """Draw one attack's frames over all its campaigns, the rows that it keeps off the bus, and say what it does."""
    details: list[str] = []
    suppressed = np.zeros(len(frames), bool)
    ids, counts = np.unique(frames.identifier, return_counts=True)
    span = max(frames.time[-1], 1e-3)
    rates = counts / span
    parts: list[Frames] = []

    def add(times: NDArray[np.float64], identifier: NDArray[np.uint32], payload: NDArray[np.uint8],
            length: NDArray[np.uint8]) -> None:  # fmt: skip
        payload = np.where(np.arange(8)[None, :] >= length[:, None], 0, payload).astype(np.uint8)
        parts.append(Frames(times, identifier, payload, length, np.ones(len(times), np.uint8)))

    if name == "dos":
        draw = rng.random()
        identifier = 0 if draw < 0.5 else int(rng.integers(0, ids[0] + 1)) if draw < 0.8 else int(rng.integers(2048))
        constant = rng.integers(0, 256, 8, dtype=np.uint8) * np.uint8(rng.random() < 0.4)
        mean_s = scale * np.exp(rng.uniform(np.log(2e-4), np.log(2e-3)))
        length = np.uint8(8 if rng.random() < 0.9 else rng.integers(0, 9))
        details.append(f"id {identifier:#x} every {1e3 * mean_s:.2f} ms")
        for begin, end in campaigns:
            times = _times(rng, begin, end, mean_s)
            add(times, np.full(len(times), identifier, np.uint32), np.tile(constant, (len(times), 1)),
                np.full(len(times), length, np.uint8))  # fmt: skip
    elif name == "fuzzing":
        mean_s = scale * np.exp(rng.uniform(np.log(3e-4), np.log(2e-2)))
        pool = None if rng.random() < 0.6 else rng.choice(2048, rng.integers(1, 200), replace=False)
        if rng.random() < 0.15:
            pool = ids  # known ids only, with random payloads
        details.append(f"{'all' if pool is None else len(pool)} ids every {1e3 * mean_s:.2f} ms")
        for begin, end in campaigns:
            times = _times(rng, begin, end, mean_s)
            drawn = rng.integers(0, 2048, len(times)) if pool is None else rng.choice(pool, len(times))
            lengths = np.full(len(times), 8) if rng.random() < 0.7 else rng.integers(0, 9, len(times))
            add(times, drawn.astype(np.uint32), rng.integers(0, 256, (len(times), 8), dtype=np.uint8),
                lengths.astype(np.uint8))  # fmt: skip
    elif name == "replay":
        length_s = rng.uniform(0.3, 3.0)
        subset = ids[rng.random(len(ids)) < rng.uniform(0.1, 1.0)]
        details.append(f"{len(subset)} ids over {length_s:.1f} s")
        for begin, end in campaigns:
            source = rng.uniform(0.0, max(begin - length_s, 1e-3))
            rows = np.flatnonzero((frames.time >= source) & (frames.time < source + min(length_s, end - begin)))
            rows = rows[np.isin(frames.identifier[rows], subset)]
            if len(rows) == 0:
                continue
            add(frames.time[rows] - source + begin, frames.identifier[rows], frames.payload[rows], frames.length[rows])
    else:
        num_targets = int(rng.integers(2, 6)) if name == "systematic" else 1
        eligible = np.flatnonzero(counts >= 4)
        # fast ids are attacked as often as slow ones
        chosen = rng.choice(eligible if len(eligible) else np.arange(len(ids)), size=num_targets, replace=True)
        for target in np.unique(chosen):
            rows = np.flatnonzero(frames.identifier == ids[target])
            period = 1.0 / rates[target]
            if name == "sparse":
                mean_s = scale * np.exp(rng.uniform(np.log(0.05), np.log(0.5)))
            elif rng.random() < 0.6:
                mean_s = scale * np.exp(rng.uniform(np.log(4e-4), np.log(2e-2)))
            else:
                mean_s = max(period * np.exp(rng.uniform(np.log(0.1), np.log(1.5))), 3e-4)
            behind = rng.random() < 0.25  # right after each message of the victim
            manner = "" if name in ("suppression", "masquerade") else (
                ", behind each message" if behind else f", every {1e3 * mean_s:.2f} ms")  # fmt: skip
            details.append(f"id {ids[target]:#x} of period {1e3 * period:.0f} ms{manner}")
            for begin, end in campaigns:
                inside = rows[(frames.time[rows] >= begin) & (frames.time[rows] < end)]
                if name == "suppression":
                    lost = inside[rng.random(len(inside)) < rng.uniform(0.5, 0.98)]
                    suppressed[lost] = True
                    frames.label[np.setdiff1d(inside, lost)] = 1
                    after = rows[frames.time[rows] >= end][:1]
                    if len(lost):
                        frames.label[after] = 1
                    continue
                if name == "masquerade":
                    suppressed[inside] = True
                    times = frames.time[inside] + rng.normal(0.0, 0.02 * period, len(inside))
                    if len(times) == 0:
                        continue
                elif behind and len(inside):
                    times = frames.time[inside] + scale * rng.uniform(2e-4, 2e-3)
                else:
                    times = _times(rng, begin, end, mean_s)
                add(times, np.full(len(times), ids[target], np.uint32), _forged_payloads(frames, rng, rows, times),
                    np.full(len(times), frames.length[rows[0]], np.uint8))  # fmt: skip
    if not parts:
        empty = frames.take(slice(0, 0))
        return empty, suppressed, "; ".join(details)
    return Frames.join(parts), suppressed, "; ".join(details)


def _campaigns(rng: np.random.Generator, span: float) -> list[tuple[float, float]]:
    """Draw when the attacker is active: on and off again until the recording ends."""
    begin = rng.uniform(min(2.0, 0.2 * span), 0.6 * span)
    on, off = rng.uniform(0.3, 6.0), rng.uniform(1.0, 8.0)
    campaigns = []
    while begin < span:
        end = min(begin + on * rng.uniform(0.8, 1.2), span)
        campaigns.append((begin, end))
        begin = end + off * rng.uniform(0.8, 1.2)
    return campaigns


def make_variant(recordings: Sequence[Messages], config: InjectionConfig, seed: int, variant: int) -> Injected:
    """Make one virtual recording with its attacks from benign recordings, by (seed, variant) alone."""
    rng = np.random.default_rng([seed, variant])
    sizes = np.array([len(recording) for recording in recordings], float)
    base = recordings[rng.choice(len(recordings), p=sizes / sizes.sum())]
    frames = _cut(_frames(base), rng, rng.uniform(*config.duration_s))
    changes = ["recording as it is"]
    if rng.random() >= config.original_fraction:
        frames, changes = make_virtual(frames, rng)
        if rng.random() < config.interleave_fraction:
            second = recordings[rng.integers(len(recordings))]
            other, _ = make_virtual(_cut(_frames(second), rng, max(frames.time[-1], 1.0)), rng)
            if len(other):
                other = other.take(np.isin(other.identifier, rng.permutation(np.unique(other.identifier))[::2]))
            if len(other):
                other = _rename(other, rng, set(np.unique(frames.identifier).tolist()), keep_order=False)
                frames = Frames.join([frames, other.take(other.time < frames.time[-1])])
                changes.append("second bus interleaved")
    attacks: list[str] = []
    scale = float(np.clip(np.median(np.diff(frames.time)) / 2.4e-4, 0.5, 3.0)) if len(frames) > 100 else 1.0
    if rng.random() >= config.clean_fraction and len(frames) > 100:
        names = list(config.attack_weights)
        weights = np.array([config.attack_weights[name] for name in names])
        attack = names[rng.choice(len(names), p=weights / weights.sum())]
        injected, suppressed, details = _attack(attack, frames, rng, _campaigns(rng, frames.time[-1]), scale)
        frames = Frames.join([frames.take(~suppressed), injected])
        attacks.append(f"{attack}: {details}")
    sent, received = arbitrate(frames.time, frames.identifier, frames.length, BIT_TIME_S * min(scale, 1.0))
    frames = frames.take(sent)
    messages = Messages(
        timestamp=received,
        identifier=frames.identifier,
        payload=frames.payload,
        length=frames.length,
        label=frames.label,
        name=f"virtual-{variant:05d}-{attacks[0].partition(':')[0] if attacks else 'clean'}-of-{base.name}",
        scenario="injected",
    )
    return Injected(messages, attacks, changes)
