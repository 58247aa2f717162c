"""Attacks on a simulated bus: they add frames, take frames away, or speak in a control unit's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.simulation.bus import ATTACKER, Frames, owned_frames
from kdgat.canbus.simulation.vehicle import ByteKind, Vehicle


class AttackKind(StrEnum):
    """Name the attacks as recordings are named after them."""

    DOS = "DoS"
    FUZZING = "fuzzing"
    MALFUNCTION = "malfunction"
    REPLAY = "replay"
    SUPPRESSION = "suppression"
    MASQUERADE = "masquerade"


@dataclass(frozen=True, slots=True)
class Campaign:
    """A time in which the attacker is active, in seconds of the recording."""

    start_s: float
    end_s: float

    def holds(self, time: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which times are inside."""
        return (time >= self.start_s) & (time < self.end_s)


@dataclass(slots=True)
class Attack:
    """Hold what an attack does to the waiting frames of a vehicle.

    After the bus has ordered the frames, `relabel` finds the messages that only their order makes suspicious, and
    returns when which identifiers were kept off the bus: from the first frame that did not come to the first that came
    again, or to the end of the campaign.
    """

    frames: Frames
    relabel: Callable[[Frames], list[tuple[Campaign, tuple[int, ...]]]]


def draw_campaigns(duration_s: float, random: np.random.Generator) -> list[Campaign]:
    """Draw times on and off: two to four campaigns over a quarter of the recording, the first tenth always quiet."""
    num_campaigns = int(random.integers(2, 5))
    slot_s = 0.9 * duration_s / num_campaigns
    campaigns = []
    for k in range(num_campaigns):
        length_s = slot_s * random.uniform(0.15, 0.45)
        start_s = 0.1 * duration_s + k * slot_s + random.uniform(0.05, 0.95) * (slot_s - length_s)
        campaigns.append(Campaign(start_s, start_s + length_s))
    return campaigns


def attack_vehicle(
    kind: AttackKind,
    vehicle: Vehicle,
    frames: Frames,
    clean: Frames,
    campaigns: list[Campaign],
    random: np.random.Generator,
) -> Attack:
    """Attack the waiting `frames` of a vehicle; `clean` is what the bus would carry without the attack."""
    attacks = {
        AttackKind.DOS: _flood,
        AttackKind.FUZZING: _fuzz,
        AttackKind.MALFUNCTION: _spoof,
        AttackKind.REPLAY: _replay,
        AttackKind.SUPPRESSION: _suppress,
        AttackKind.MASQUERADE: _masquerade,
    }
    return attacks[kind](vehicle, frames, clean, campaigns, random)


def _injected(
    time: NDArray[np.float64], identifier: NDArray[np.uint32], length: NDArray[np.uint8], payload: NDArray[np.uint8]
) -> Frames:
    num_frames = len(time)
    payload = np.where(np.arange(8) < length[:, None], payload, 0).astype(np.uint8)
    return Frames(
        time,
        np.full(num_frames, ATTACKER, dtype=np.int64),
        identifier.astype(np.uint32),
        length.astype(np.uint8),
        payload,
        np.zeros(num_frames, dtype=np.bool_),
        np.ones(num_frames, dtype=np.uint8),
    )


def _nothing(sent: Frames) -> list[tuple[Campaign, tuple[int, ...]]]:
    """Leave the labels as the attack set them: nothing was kept off the bus."""
    return []


def _paced(campaign: Campaign, gap_s: float, jitter: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Draw release times with gaps around `gap_s`, never less than a quarter of it."""
    num_gaps = int(2 * (campaign.end_s - campaign.start_s) / gap_s) + 4
    gaps = gap_s * np.clip(random.normal(1.0, jitter, num_gaps), 0.25, 1.75)
    times = campaign.start_s + np.cumsum(gaps)
    return times[times < campaign.end_s]


def _flood(
    vehicle: Vehicle, frames: Frames, clean: Frames, campaigns: list[Campaign], random: np.random.Generator
) -> Attack:
    """Send the most urgent id all the time (DoS): usually 0, or one just below the vehicle's own."""
    parts = [frames]
    for campaign in campaigns:
        time = _paced(campaign, float(random.choice([0.0003, 0.0005, 0.001])), 0.05, random)
        identifier = 0 if random.random() < 0.7 else int(random.integers(0, vehicle.identifier.min()))
        payload = np.zeros((len(time), 8), dtype=np.uint8)
        if random.random() < 0.3:
            payload[:] = random.integers(0, 256, 8)
        parts.append(
            _injected(
                time, np.full(len(time), identifier, dtype=np.uint32), np.full(len(time), 8, dtype=np.uint8), payload
            )
        )
    return Attack(Frames.concatenate(parts), _nothing)


def _fuzz(
    vehicle: Vehicle, frames: Frames, clean: Frames, campaigns: list[Campaign], random: np.random.Generator
) -> Attack:
    """Send random bytes under random ids; in a third of the campaigns under ids that the vehicle has."""
    parts = [frames]
    for campaign in campaigns:
        time = _paced(campaign, float(random.choice([0.0005, 0.001, 0.003, 0.01])), 0.3, random)
        identifier = random.integers(0, 0x800, len(time)).astype(np.uint32)
        length = np.full(len(time), 8, dtype=np.uint8)
        if random.random() < 1 / 3:
            target = random.integers(0, vehicle.num_frames, len(time))
            identifier, length = vehicle.identifier[target], vehicle.length[target]
        payload = random.integers(0, 256, (len(time), 8)).astype(np.uint8)
        parts.append(_injected(time, identifier, length, payload))
    return Attack(Frames.concatenate(parts), _nothing)


def _spoof(
    vehicle: Vehicle, frames: Frames, clean: Frames, campaigns: list[Campaign], random: np.random.Generator
) -> Attack:
    """Send one real id beside its owner, with a fixed or random payload, one to ten times as often."""
    parts = [frames]
    for campaign in campaigns:
        target = _pick_target(vehicle, random, slowest_s=0.5)
        gap_s = vehicle.period_s[target] / random.choice([1.0, 2.0, 4.0, 10.0])
        time = _paced(campaign, max(gap_s, 0.001), 0.05, random)
        length = vehicle.length[target]
        payload = np.zeros((len(time), 8), dtype=np.uint8)
        manner = random.random()
        if manner < 0.4:  # what the owner once sent, with two bytes changed
            payload[:] = _payload_before(vehicle, clean, target, campaign.start_s)
            payload[:, random.integers(0, length, 2)] = random.integers(0, 256, 2)
        elif manner < 0.7:
            payload[:] = random.choice([0x00, 0xFF])
        else:
            payload = random.integers(0, 256, (len(time), 8)).astype(np.uint8)
        identifier = np.full(len(time), vehicle.identifier[target])
        parts.append(_injected(time, identifier, np.full(len(time), length), payload))
    return Attack(Frames.concatenate(parts), _nothing)


def _replay(
    vehicle: Vehicle, frames: Frames, clean: Frames, campaigns: list[Campaign], random: np.random.Generator
) -> Attack:
    """Send again what some frames (or all) held before, with its own rhythm."""
    parts = [frames]
    for campaign in campaigns:
        length_s = min(campaign.end_s - campaign.start_s, campaign.start_s)
        source_s = random.uniform(0.0, campaign.start_s - length_s) if campaign.start_s > length_s else 0.0
        recorded = Campaign(source_s, source_s + length_s).holds(clean.time)
        if random.random() < 0.7:
            targets = [_pick_target(vehicle, random, slowest_s=0.2) for _ in range(int(random.integers(1, 6)))]
            recorded &= np.isin(clean.owner, targets)
        copied = clean.select(recorded)
        time = copied.time - source_s + campaign.start_s
        parts.append(_injected(time, copied.identifier, copied.length, copied.payload))
    return Attack(Frames.concatenate(parts), _nothing)


def _suppress(
    vehicle: Vehicle, frames: Frames, clean: Frames, campaigns: list[Campaign], random: np.random.Generator
) -> Attack:
    """Keep most frames of a control unit off the bus. Those that survive, and the first one after, are the attack."""
    keep = np.ones(len(frames.time), dtype=np.bool_)
    hit: list[tuple[Campaign, NDArray[np.int64], Frames]] = []
    for campaign in campaigns:
        # A control unit sends several frames, and all of them fall silent together.
        targets = np.unique([_pick_target(vehicle, random, slowest_s=0.1) for _ in range(int(random.integers(1, 4)))])
        silenced = campaign.holds(frames.time) & np.isin(frames.owner, targets)
        lost = silenced & (random.random(len(keep)) < random.uniform(0.5, 0.95))
        keep &= ~lost
        hit.append((campaign, targets, frames.select(lost)))

    def relabel(sent: Frames) -> list[tuple[Campaign, tuple[int, ...]]]:
        silences: list[tuple[Campaign, tuple[int, ...]]] = []
        for campaign, targets, lost in hit:
            for target in targets:
                of_target = np.flatnonzero(sent.owner == target)
                time = sent.time[of_target]
                sent.label[of_target[campaign.holds(time)]] = 1
                back = of_target[time >= campaign.end_s][:1]
                sent.label[back] = 1
                missing = lost.time[lost.owner == target]
                if len(missing):
                    until = float(sent.time[back[0]]) if len(back) else campaign.end_s
                    silences.append((Campaign(float(missing.min()), until), (int(vehicle.identifier[target]),)))
        return silences

    return Attack(frames.select(keep), relabel)


def _masquerade(
    vehicle: Vehicle, frames: Frames, clean: Frames, campaigns: list[Campaign], random: np.random.Generator
) -> Attack:
    """Silence a control unit and send in its place, at its pace: false signals in good form, or a frozen payload."""
    keep = np.ones(len(frames.time), dtype=np.bool_)
    parts = []
    silences: list[tuple[Campaign, tuple[int, ...]]] = []
    for campaign in campaigns:
        target = _pick_target(vehicle, random, slowest_s=0.1, with_signals=True)
        silenced = campaign.holds(frames.time) & (frames.owner == target)
        if silenced.any():
            span = Campaign(float(frames.time[silenced].min()), campaign.end_s)
            silences.append((span, (int(vehicle.identifier[target]),)))
        keep &= ~silenced
        count = int(silenced.sum())
        # The attacker's clock starts anywhere in the period and trembles a little more than the owner's.
        time = frames.time[silenced] + random.uniform(0.0, 0.8) * vehicle.period_s[target]
        time = np.sort(time + random.normal(0.0, 1.5 * vehicle.jitter_s[target], count))
        if random.random() < 0.5:
            forged = owned_frames(vehicle, time, np.full(count, target))
            forged.forged[:] = True
            forged.label[:] = 1
            parts.append(forged)
        else:
            payload = np.tile(_payload_before(vehicle, clean, target, campaign.start_s), (count, 1))
            identifier = np.full(count, vehicle.identifier[target])
            parts.append(_injected(time, identifier, np.full(count, vehicle.length[target]), payload))
    return Attack(Frames.concatenate([frames.select(keep), *parts]), lambda sent: silences)


def _pick_target(vehicle: Vehicle, random: np.random.Generator, slowest_s: float, with_signals: bool = False) -> int:
    eligible = ~vehicle.is_event & (vehicle.period_s <= slowest_s)
    if with_signals:
        signals = (ByteKind.SIGNAL_BYTE, ByteKind.SIGNAL_HIGH, ByteKind.FLAGS)
        eligible &= np.isin(vehicle.byte_kind, signals).any(axis=1)
    return int(random.choice(np.flatnonzero(eligible)))


def _payload_before(vehicle: Vehicle, clean: Frames, target: int, time_s: float) -> NDArray[np.uint8]:
    """Take the last payload of a frame before a time, zeros if there was none."""
    earlier = np.flatnonzero((clean.owner == target) & (clean.time < time_s))
    return clean.payload[earlier[-1]].copy() if len(earlier) else np.zeros(8, dtype=np.uint8)
