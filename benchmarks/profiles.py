"""What a profile of some minutes of a car adds: false alarms in its other minutes, and attacks that need one.

Files are named `...__VEHICLE-NN.parquet`. The first recordings of a vehicle, up to so many seconds or half of them,
are learned, and the others judged, without a profile and with it; then the last ones are learned and the first judged.
A recording that the profile says is of another car or recorder is left out, and counted. Attacks are put into the
longest recording that is judged: single values forged in fields that move smoothly (of another drawing than the
detector's fields: any byte pair that moves smoothly there), masquerade by a constant or by earlier payloads, and
silence from the first second on, on three identifiers that come evenly and every 110 ms at least. A masquerade that
leaves nine in ten messages as they are is none, and left out.

    python -m benchmarks.profiles FOLDER [--only VEHICLE ...] [--seconds 60]
"""

import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.false_alarms import parser_of, vehicles_in
from benchmarks.injected_attacks import Traffic, find_targets, judge, traffic_of
from kdgat.base import UserError
from kdgat.canbus import Messages, read_recording
from kdgat.canbus.features.suspicion import Known
from kdgat.canbus.profile import Profile, learn_profile

WINDOW = 100
MORE, SHARE = 1.3, 0.5  # a recording may make the profile longer than asked for; of all there is
FORGED = 20  # values of an identifier
CAMPAIGN_S = 10.0
FEWEST_CHANGED = 0.1  # share of its messages that a masquerade changes


@dataclass
class Row:
    """What was seen of a vehicle."""

    windows: int = 0
    seconds: float = 0.0
    misfits: int = 0
    alarms: dict[bool, list[int]] = field(default_factory=lambda: {False: [0, 0], True: [0, 0]})  # windows, episodes


def divide(drives: list[tuple[str, Messages]], seconds: float) -> tuple[list[tuple[str, Messages]], list[Messages]]:
    """Return what is learned, with names, and what is judged."""
    wanted = min(seconds, SHARE * sum(messages.duration_s for _, messages in drives))
    learned: list[tuple[str, Messages]] = []
    judged, so_far = [], 0.0
    for name, messages in drives:
        if so_far >= wanted:
            judged.append(messages)
        elif so_far + messages.duration_s <= MORE * wanted:
            learned.append((name, messages))
            so_far += messages.duration_s
        else:
            is_before = messages.timestamp < messages.timestamp[0] + wanted - so_far
            learned.append((name, messages.select(is_before)))
            judged.append(messages.select(~is_before))
            so_far = wanted
    return learned, judged


def count(row: Row, traffic: Traffic, known: Known) -> None:
    """Count the false alarms of a recording, without and with a profile."""
    size = len(traffic.time) // WINDOW * WINDOW
    row.windows += size // WINDOW
    row.seconds += float(traffic.time[-1])
    for has_profile in (False, True):
        is_alarm = judge(traffic, known if has_profile else None)
        begins = traffic.time[is_alarm & ~np.concatenate([[False], is_alarm[:-1]])]
        row.alarms[has_profile][0] += int(is_alarm[:size].reshape(-1, WINDOW).any(axis=1).sum())
        row.alarms[has_profile][1] += int(len(begins) > 0) + int((np.diff(begins) > 1.0).sum())


def attacks_on(traffic: Traffic, identifier: int) -> Iterator[tuple[str, Traffic, float]]:
    """Yield kind, attacked traffic, and when each attack begins; all end after CAMPAIGN_S, single ones at once."""
    rows = np.flatnonzero(traffic.identifier == identifier)
    begin = 0.4 * float(traffic.time[-1])
    inside = rows[(traffic.time[rows] >= begin) & (traffic.time[rows] < begin + CAMPAIGN_S)]
    if not len(inside):
        return
    yield "silence from the first second", traffic.select(traffic.identifier != identifier), 0.0
    constant = traffic.payload.copy()
    constant[inside] = traffic.payload[inside[0]]
    replayed = traffic.payload.copy()
    earlier = rows[: len(inside)]
    replayed[inside[: len(earlier)]] = traffic.payload[earlier]
    for kind, payload in (("constant masquerade", constant), ("replayed masquerade", replayed)):
        if np.mean(payload[inside] != traffic.payload[inside]) >= FEWEST_CHANGED:
            yield kind, Traffic(traffic.time, traffic.identifier, payload, traffic.length), begin


def forgeries_in(traffic: Traffic, identifier: int, random: np.random.Generator) -> Iterator[tuple[Traffic, float]]:
    """Yield traffic with one value forged in a pair of bytes that moves smoothly, in either order, and when it is."""
    rows = np.flatnonzero(traffic.identifier == identifier)
    words = traffic.payload[rows].astype("<u8").view(np.uint8).reshape(-1, 8).astype(np.int64)
    for place, first in ((place, first) for place in range(7) for first in ("big", "little")):
        high, low = (place, place + 1) if first == "big" else (place + 1, place)
        values = 256 * words[:, high] + words[:, low]
        steps = np.abs(np.diff(values))
        if steps.max(initial=0) == 0 or 16 * steps.max() > np.ptp(values) or np.count_nonzero(steps) < 0.2 * len(steps):
            continue
        for row in random.choice(rows[10:-10], min(FORGED, len(rows) // 50), replace=False):
            forged = traffic.payload.copy()
            value = int(random.integers(values.min(), values.max() + 1))
            data = bytearray(int(forged[row]).to_bytes(8, "little"))
            data[place : place + 2] = value.to_bytes(2, first)
            forged[row] = int.from_bytes(data, "little")
            attacked = Traffic(traffic.time, traffic.identifier, forged, traffic.length)
            yield attacked, float(traffic.time[row])


def main() -> None:
    """Print two tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of driving that are learned")
    options = parser.parse_args()
    drives: dict[str, list[tuple[str, Messages]]] = defaultdict(list)
    for vehicle, path in vehicles_in(options.folder, options.only):
        drives[vehicle].append((Path(path).stem, read_recording(path)))
    table: dict[str, Row] = {}
    found: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for vehicle, all_drives in drives.items():
        for order in (all_drives, all_drives[::-1]):
            learned, judged = divide(order, options.seconds)
            if sum(messages.duration_s for _, messages in learned) < 0.9 * options.seconds:
                continue
            row = table.setdefault(vehicle, Row())
            try:
                profile = learn_profile(learned)
            except UserError as error:
                print(f"refused: {error}")
                continue
            fitting = [one for one in judged if not profile.misfit(one.timestamp, one.identifier)]
            row.misfits += len(judged) - len(fitting)
            for messages in fitting:
                count(row, traffic_of(messages), profile.known())
            if fitting and max(one.duration_s for one in fitting) >= 25.0:
                attack(max(fitting, key=lambda one: one.duration_s), profile, vehicle, found)
    columns = ("vehicle", "windows", "left out", "without: in alarm; alarms", "with a profile")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for vehicle, row in table.items():
        cells = (f"{windows / max(row.windows, 1):.2%}; {alarms}" for windows, alarms in row.alarms.values())
        print(f"| {vehicle} | {row.windows:,} | {row.misfits} | {' | '.join(cells)} |")
    windows, seconds = sum(row.windows for row in table.values()), sum(row.seconds for row in table.values())
    for has_profile, name in ((False, "without"), (True, "with a profile")):
        counts = np.array([row.alarms[has_profile] for row in table.values() if row.windows])
        print(
            f"{name}: pooled {counts[:, 0].sum() / windows:.3%}, {(counts[:, 0] == 0).sum()} of {len(counts)} vehicles "
            f"without, {counts[:, 1].sum()} alarms in {seconds / 60:.0f} min"
        )
    print("| attack | attacks | without | with a profile |\n|---|---|---|---|")
    for kind, pairs in found.items():
        without, with_profile = np.mean(pairs, axis=0)
        print(f"| {kind} | {len(pairs)} | {without:.2f} | {with_profile:.2f} |")


def attack(messages: Messages, profile: Profile, vehicle: str, found: dict[str, list[tuple[bool, bool]]]) -> None:
    """Note of each attack whether it is found, without and with a profile."""
    traffic, known = traffic_of(messages), profile.known()
    clean = [judge(traffic, one) for one in (None, known)]
    attacks = []
    for identifier, is_even in find_targets(traffic):
        if is_even:
            attacks += list(attacks_on(traffic, identifier))
    for identifier, one in profile.identifiers.items():
        if one.is_timed:
            random = np.random.default_rng(zlib.crc32(f"{vehicle} {identifier}".encode()))
            forged = forgeries_in(traffic, identifier, random)
            attacks += [("single forged value", *attack) for attack in islice(forged, FORGED)]
    for kind, attacked, begin in attacks:
        until = begin + (0.5 if kind.startswith("single") else CAMPAIGN_S + 0.5)
        seen = []
        for one, is_clean_alarm in zip((None, known), clean, strict=True):
            is_alarm = judge(attacked, one)
            place = np.clip(np.searchsorted(traffic.time, attacked.time, side="right") - 1, 0, len(is_clean_alarm) - 1)
            new = attacked.time[is_alarm & ~is_clean_alarm[place]]
            seen.append(bool(((new >= begin) & (new <= until)).any()))
        found[kind].append((seen[0], seen[1]))


if __name__ == "__main__":
    main()
