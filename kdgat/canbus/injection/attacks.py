"""Attacks on the traffic of a virtual vehicle: what is sent beside it, in its name, or kept off the bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.injection.arbitration import Frames
from kdgat.canbus.injection.payload_rules import PayloadRules
from kdgat.canbus.messages import AttackCampaign
from kdgat.canbus.settings import ATTACKS

_IN_FORM_FRACTION: Final = 0.4  # of the attackers who touch payloads up: those who know the checksum


@dataclass
class InjectedAttack:
    """One attack on one vehicle: when the attacker is active, and what came of it."""

    frames: Frames  # the vehicle's; an attack marks those that betray it
    rng: np.random.Generator
    campaigns: list[tuple[float, float]]  # begin and end, seconds
    scale: float  # of the times between injected frames: a slow bus is attacked slowly
    suppressed: NDArray[np.bool_] = field(init=False)  # rows of `frames` that never reach the bus
    injected: list[Frames] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    silences: list[tuple[float, float, int]] = field(default_factory=list)  # begin and end, seconds; the identifier

    def __post_init__(self) -> None:
        self.suppressed = np.zeros(len(self.frames), bool)

    def log_uniform(self, lowest: float, highest: float) -> float:
        """Draw a time whose order of magnitude is uniform."""
        return float(np.exp(self.rng.uniform(np.log(lowest), np.log(highest))))

    def send(
        self,
        times: NDArray[np.float64],
        identifier: NDArray[np.uint32],
        payload: NDArray[np.uint8],
        length: NDArray[np.uint8],
    ) -> None:
        """Inject frames; payloads are cut to their length."""
        payload = np.where(np.arange(8)[None, :] >= length[:, None], 0, payload).astype(np.uint8)
        self.injected.append(Frames(times, identifier, payload, length, np.ones(len(times), np.uint8)))

    def traffic(self) -> Frames:
        """Return what wants the bus: the vehicle's frames that are left, and the injected ones."""
        return Frames.join([self.frames.take(~self.suppressed), *self.injected])


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
    if rng.random() < _IN_FORM_FRACTION:
        payload = PayloadRules.of(recorded, frames.length[rows]).keep(payload, int(frames.length[rows[0]]))
    return payload


def _flood(attack: InjectedAttack) -> None:
    """Send one urgent id all the time."""
    rng = attack.rng
    lowest = int(attack.frames.identifier.min())
    draw = rng.random()
    identifier = 0 if draw < 0.5 else int(rng.integers(0, lowest + 1)) if draw < 0.8 else int(rng.integers(2048))
    constant = rng.integers(0, 256, 8, dtype=np.uint8) * np.uint8(rng.random() < 0.4)
    mean_s = attack.scale * attack.log_uniform(2e-4, 2e-3)
    length = np.uint8(8 if rng.random() < 0.9 else rng.integers(0, 9))
    attack.details.append(f"id {identifier:#x} every {1e3 * mean_s:.2f} ms")
    for begin, end in attack.campaigns:
        times = _times(rng, begin, end, mean_s)
        num = len(times)
        attack.send(
            times, np.full(num, identifier, np.uint32), np.tile(constant, (num, 1)), np.full(num, length, np.uint8)
        )


def _fuzz(attack: InjectedAttack) -> None:
    """Send random payloads under random ids: any, a few, or those that the vehicle has."""
    rng = attack.rng
    mean_s = attack.scale * attack.log_uniform(3e-4, 2e-2)
    pool = None if rng.random() < 0.6 else rng.choice(2048, rng.integers(1, 200), replace=False)
    if rng.random() < 0.15:
        pool = np.unique(attack.frames.identifier)
    attack.details.append(f"{'all' if pool is None else len(pool)} ids every {1e3 * mean_s:.2f} ms")
    for begin, end in attack.campaigns:
        times = _times(rng, begin, end, mean_s)
        num = len(times)
        identifier = rng.integers(0, 2048, num) if pool is None else rng.choice(pool, num)
        length = np.full(num, 8) if rng.random() < 0.7 else rng.integers(0, 9, num)
        payload = rng.integers(0, 256, (num, 8), dtype=np.uint8)
        attack.send(times, identifier.astype(np.uint32), payload, length.astype(np.uint8))


def _replay(attack: InjectedAttack) -> None:
    """Send again what some ids sent some seconds before, in its own rhythm."""
    rng, frames = attack.rng, attack.frames
    ids = np.unique(frames.identifier)
    length_s = rng.uniform(0.3, 3.0)
    subset = ids[rng.random(len(ids)) < rng.uniform(0.1, 1.0)]
    attack.details.append(f"{len(subset)} ids over {length_s:.1f} s")
    for begin, end in attack.campaigns:
        source = rng.uniform(0.0, max(begin - length_s, 1e-3))
        rows = np.flatnonzero((frames.time >= source) & (frames.time < source + min(length_s, end - begin)))
        rows = rows[np.isin(frames.identifier[rows], subset)]
        if len(rows):
            attack.send(
                frames.time[rows] - source + begin, frames.identifier[rows], frames.payload[rows], frames.length[rows]
            )


@dataclass
class _Target:
    """One id under attack."""

    identifier: int
    rows: NDArray[np.int64]  # its frames
    period_s: float
    mean_s: float  # between injected frames
    is_behind: bool  # injected frames follow the victim's own


def _targets(
    attack: InjectedAttack, num_targets: int, is_sparse: bool = False, is_silenced: bool = False
) -> Iterator[_Target]:
    """Draw the ids to attack and, one at a time, how often; fast ids are attacked as often as slow ones.

    Those that are silenced are sent by a timer, where there are any: the others could not be missed.
    """
    rng, frames = attack.rng, attack.frames
    ids, counts = np.unique(frames.identifier, return_counts=True)
    rates = counts / max(frames.time[-1], 1e-3)
    eligible = np.flatnonzero(counts >= 4)
    if is_silenced:
        timed = [place for place in eligible if _is_timed(frames.time[frames.identifier == ids[place]])]
        eligible = np.array(timed, np.int64) if timed else eligible
    chosen = rng.choice(eligible if len(eligible) else np.arange(len(ids)), size=num_targets, replace=True)
    for target in np.unique(chosen):
        period_s = float(1.0 / rates[target])
        if is_sparse:
            mean_s = attack.scale * attack.log_uniform(0.05, 0.5)
        elif rng.random() < 0.6:
            mean_s = attack.scale * attack.log_uniform(4e-4, 2e-2)
        else:
            mean_s = max(period_s * attack.log_uniform(0.1, 1.5), 3e-4)
        rows = np.flatnonzero(frames.identifier == ids[target])
        yield _Target(int(ids[target]), rows, period_s, mean_s, is_behind=rng.random() < 0.25)


def _is_timed(times: NDArray[np.float64]) -> bool:
    """Return whether an id comes at least twice a second, at intervals of about one length."""
    intervals = np.diff(times)
    shortest, median, longest = np.quantile(intervals, (0.05, 0.5, 0.95))
    return bool(len(intervals) >= 30 and median < 0.5 and shortest > 0.5 * median and longest < 1.6 * median)


def _spoof(attack: InjectedAttack, num_targets: int = 1, is_sparse: bool = False) -> None:
    """Send forged frames beside the real ones of an id, at the attacker's pace or right behind each of the victim's."""
    rng, frames = attack.rng, attack.frames
    for target in _targets(attack, num_targets, is_sparse):
        manner = "behind each message" if target.is_behind else f"every {1e3 * target.mean_s:.2f} ms"
        attack.details.append(f"{_described(target)}, {manner}")
        for begin, end in attack.campaigns:
            inside = target.rows[(frames.time[target.rows] >= begin) & (frames.time[target.rows] < end)]
            if target.is_behind and len(inside):
                times = frames.time[inside] + attack.scale * rng.uniform(2e-4, 2e-3)
            else:
                times = _times(rng, begin, end, target.mean_s)
            _send_forged(attack, target, times)


def _spoof_several(attack: InjectedAttack) -> None:
    """Spoof several ids at once."""
    _spoof(attack, num_targets=int(attack.rng.integers(2, 6)))


def _spoof_sparsely(attack: InjectedAttack) -> None:
    """Spoof with a few frames a second."""
    _spoof(attack, is_sparse=True)


def _suppress(attack: InjectedAttack) -> None:
    """Keep most frames of an id off the bus; those that survive, and the first one after, are the attack."""
    rng, frames = attack.rng, attack.frames
    for target in _targets(attack, 1, is_silenced=True):
        rows = target.rows
        attack.details.append(_described(target))
        for begin, end in attack.campaigns:
            inside = rows[(frames.time[rows] >= begin) & (frames.time[rows] < end)]
            lost = inside[rng.random(len(inside)) < rng.choice((rng.uniform(0.5, 0.98), 1.0), p=(0.7, 0.3))]
            attack.suppressed[lost] = True
            frames.label[np.setdiff1d(inside, lost)] = 1
            after = rows[frames.time[rows] >= end][:1]
            if len(lost):
                frames.label[after] = 1
                until = float(frames.time[after[0]]) if len(after) else end
                attack.silences.append((float(frames.time[lost[0]]), until, target.identifier))


def _masquerade(attack: InjectedAttack) -> None:
    """Silence an id and send forged frames in its place, at its pace, by a timer of one's own or in step with it."""
    rng, frames = attack.rng, attack.frames
    for target in _targets(attack, 1, is_silenced=True):
        in_step, jitter = rng.random() < 0.3, attack.log_uniform(0.001, 0.05)
        attack.details.append(f"{_described(target)}, {'in step' if in_step else 'by another timer'}")
        for begin, end in attack.campaigns:
            inside = target.rows[(frames.time[target.rows] >= begin) & (frames.time[target.rows] < end)]
            attack.suppressed[inside] = True
            shift = 0.0 if in_step else rng.uniform(0.0, 0.9)
            times = frames.time[inside] + target.period_s * (shift + rng.normal(0.0, jitter, len(inside)))
            if len(times):
                _send_forged(attack, target, times)
                attack.silences.append((float(frames.time[inside[0]]), end, target.identifier))


def _described(target: _Target) -> str:
    return f"id {target.identifier:#x} of period {1e3 * target.period_s:.0f} ms"


def _send_forged(attack: InjectedAttack, target: _Target, times: NDArray[np.float64]) -> None:
    num = len(times)
    payload = _forged_payloads(attack.frames, attack.rng, target.rows, times)
    length = np.full(num, attack.frames.length[target.rows[0]], np.uint8)
    attack.send(times, np.full(num, target.identifier, np.uint32), payload, length)


_ATTACKS: Final[dict[str, Callable[[InjectedAttack], None]]] = {
    "dos": _flood,
    "fuzzing": _fuzz,
    "spoofing": _spoof,
    "systematic": _spoof_several,
    "replay": _replay,
    "suppression": _suppress,
    "masquerade": _masquerade,
    "sparse": _spoof_sparsely,
}
assert tuple(_ATTACKS) == ATTACKS


def attack_traffic(
    name: str, frames: Frames, rng: np.random.Generator, scale: float
) -> tuple[Frames, str, list[AttackCampaign]]:
    """Attack a vehicle in several campaigns; return all that wants the bus, labelled, what was done, and when.

    Args:
        name: one of ATTACKS.
        frames: the vehicle's traffic; suppression labels frames in it.
        rng: where everything is drawn from.
        scale: factor on the times between injected frames.
    """
    attack = InjectedAttack(frames, rng, _campaigns(rng, frames.time[-1]), scale)
    _ATTACKS[name](attack)
    campaigns = [AttackCampaign(name, begin, end) for begin, end in attack.campaigns]
    campaigns += [AttackCampaign(name, begin, end, (identifier,)) for begin, end, identifier in attack.silences]
    return attack.traffic(), "; ".join(attack.details), campaigns


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
