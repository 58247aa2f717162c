"""Attacks injected into attack-free traffic, on virtual vehicles: what a detector trains on to meet the unknown.

A benign recording becomes another vehicle (ids renamed, clock scaled, ids dropped, made noisy, jittered or silenced,
a second bus interleaved), and campaigns of attacks are sent into it over a simulated bus, so that injected frames
delay the others as real ones do. Everything is drawn from one seed; the same seed gives the same traffic. A pool makes
many such recordings, one at a time, and keeps some of their windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.features.graphs import attacked_windows, window_rows, windows_to_graphs
from kdgat.canbus.injection.arbitration import BIT_TIME_S, NO_MAILBOX, OVERHEAD_BITS, Frames, arbitrate
from kdgat.canbus.injection.attacks import attack_traffic
from kdgat.canbus.injection.vehicle import cut, make_virtual, rename
from kdgat.canbus.messages import AttackCampaign, Messages
from kdgat.canbus.settings import ATTACKS, InjectionConfig, WindowConfig
from kdgat.canbus.summary import InjectedAttack, InjectionSummary
from kdgat.graphs import GraphColumns

_STUFFING: Final = 1.06  # stuff bits of ordinary payloads, as a factor on all bits
_LONGEST_WAIT_S: Final = 0.05  # a frame that waited longer finds its mailbox overwritten
_USUAL_GAP_S: Final = 2.4e-4  # between the messages of a busy bus; attacks on a slower one are slower

LOSSY_FRACTION: Final = 0.3  # of virtual recordings
LOSS_RATES: Final = (1e-5, 1e-3)
PAUSED_FRACTION: Final = 0.2  # of virtual recordings
_PAUSE_S: Final = (0.1, 10.0)
FAINT_COUNT: Final = 4  # injected messages in a window, from which on it is found anyway
FAINT_FACTOR: Final = 2.5  # as often a fainter one is kept


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


def inject_attacks(
    recordings: Sequence[Messages],
    config: InjectionConfig,
    seed: int,
    variant: int = 0,
    *,
    vehicles: Sequence[str] = (),
) -> Injected:
    """Make one virtual recording with its attacks from benign recordings, by (seed, variant) alone.

    The recordings, at least one, keep their messages. What is returned may be attack-free: `config` gives the shares.
    Where `vehicles` says whose each recording is, every vehicle is as likely as another, however much there is of it.

    >>> from kdgat.canbus import make_vehicle, simulate
    >>> config = InjectionConfig(attack_weights={"fuzzing": 1.0}, clean_fraction=0.0, duration_s=(5.0, 6.0))
    >>> injected = inject_attacks([simulate(make_vehicle(5), 20.0)], config, seed=1)
    >>> injected.messages.num_attacks > 0, injected.messages.campaigns[0].kind
    (True, 'fuzzing')
    """
    rng = np.random.default_rng([seed, variant])
    sizes = np.array([len(recording) for recording in recordings], float)
    chances = sizes / sizes.sum()
    if len(set(vehicles)) > 1:
        _, whose = np.unique(np.asarray(vehicles), return_inverse=True)
        chances = sizes / np.bincount(whose, sizes)[whose] / len(set(vehicles))
    base = recordings[int(rng.choice(len(recordings), p=chances))]
    frames = cut(base, rng, rng.uniform(*config.duration_s))
    changes = ["recording as it is"]
    is_virtual = rng.random() >= config.original_fraction
    if is_virtual:
        frames, changes = make_virtual(frames, rng)
        if rng.random() < config.interleave_fraction and len(frames):
            other = rng.choice(len(recordings), p=chances) if len(set(vehicles)) > 1 else rng.integers(len(recordings))
            frames = _interleave(frames, recordings[int(other)], rng, changes)
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


@dataclass(eq=False)
class InjectedPool:
    """Some virtual recordings of a pool, made and built one at a time so that memory holds a single one.

    They are made of attack-free traffic, each by its number among the variants and the seed alone; see inject_attacks.
    """

    traffic: Sequence[Messages]
    config: InjectionConfig
    windows: WindowConfig
    seed: int
    variants: range
    vehicles: Sequence[str] = ()
    _attacks: dict[str, Counter[str]] = field(default_factory=dict, init=False)
    _changes: Counter[str] = field(default_factory=Counter, init=False)
    _totals: Counter[str] = field(default_factory=Counter, init=False)

    def __iter__(self) -> Iterator[GraphColumns]:
        for variant in self.variants:
            injected = inject_attacks(self.traffic, self.config, self.seed, variant, vehicles=self.vehicles)
            graphs = windows_to_graphs(injected.messages, self.windows, self._drawn(injected.messages, variant))
            graphs = graphs.select(np.flatnonzero(_is_visible(graphs)))
            self._count(injected, graphs)
            yield graphs

    def _drawn(self, messages: Messages, variant: int) -> NDArray[np.int64]:
        """Draw the windows that are kept, before any is built: of a flood there are many alike, of a message few."""
        y, attack_count = attacked_windows(messages, *window_rows(len(messages), self.windows))
        is_faint = (y == 1) & (attack_count < FAINT_COUNT)
        shares = np.where(is_faint, min(1.0, FAINT_FACTOR * self.config.kept_fraction), self.config.kept_fraction)
        return np.flatnonzero(np.random.default_rng([self.seed, variant, 1]).random(len(y)) < shares)

    def _count(self, injected: Injected, graphs: GraphColumns) -> None:
        self._totals.update(windows=graphs.num_graphs, attack_windows=int(graphs["y"].sum()))
        self._changes.update(set(injected.changes))
        for attack in injected.attacks:
            kind = attack.partition(":")[0]
            counter = self._attacks.setdefault(kind, Counter())
            counter.update(windows=int(graphs["y"].sum()), messages=int(graphs["attack_count"].sum()), recordings=1)

    def counts(self) -> dict[str, Any]:
        """Count what was injected, as plain data; complete once every variant was made."""
        return {"totals": self._totals, "changes": self._changes, "attacks": self._attacks}


def _is_visible(graphs: GraphColumns) -> NDArray[np.bool_]:
    """Return which windows [G] show what they are.

    Where a campaign has begun, and nothing is missing yet, or all that came is in time, no detector could know.
    """
    node_window = np.repeat(np.arange(graphs.num_graphs), graphs.node_counts)
    return (graphs["y"] == 0) | (np.bincount(node_window, graphs["node_y"], graphs.num_graphs) > 0)


def name_variant(variant: int) -> str:
    """Name a virtual recording in a store."""
    return f"injected/virtual-{variant:05d}"


def summarise_injection(counts: Sequence[Mapping[str, Any]], seed: int, num_variants: int) -> InjectionSummary:
    """Return what was injected, by the counts of all parts of a pool."""
    totals: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    attacks: dict[str, Counter[str]] = {}
    for one in counts:
        totals.update(one["totals"])
        changes.update(one["changes"])
        for kind, counted in one["attacks"].items():
            attacks.setdefault(kind, Counter()).update(counted)
    return InjectionSummary(
        enabled=True,
        seed=seed,
        num_virtual_vehicles=num_variants,
        num_windows=totals["windows"],
        num_attack_windows=totals["attack_windows"],
        attacks={
            kind: InjectedAttack(
                num_windows=count["windows"], num_messages=count["messages"], num_recordings=count["recordings"]
            )
            for kind, count in sorted(attacks.items())
        },
        diversity=dict(sorted(changes.items())),
    )
