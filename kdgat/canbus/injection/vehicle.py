"""Virtual vehicles: a stretch of a benign recording turned into the traffic of a car that was never recorded.

Ids are renamed, the clock scaled, ids dropped, made noisy, jittered, silenced or given bursts and modes. Each change
is drawn, so that no habit of the recorded vehicle holds for all of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.features.checksums import NUM_CHECKSUMS, sealed
from kdgat.canbus.injection.arbitration import Frames
from kdgat.canbus.injection.payload_rules import PayloadRules
from kdgat.canbus.injection.stretches import forget_pages
from kdgat.canbus.messages import Messages

_OWN_CHECKSUM_FRACTION = 0.12  # of the identifiers: one of the maker's own, which is not known
_OTHER_CYCLE_FRACTION = 0.5  # of those: a state of the car moves the counter to values of its own
_STILL_FRACTION = 0.6  # of the identifiers that freeze for a while: as a whole
_STANDS_FRACTION = 0.3  # of the vehicles: stop while they are recorded, and most of their payloads do not change
# Changes of habit by which other messages follow each other than before.
_OTHER_ORDER = ("rare", "pauses", "period slower", "two periods", "event driven", "payload held")
_SEALED_FRACTION = 0.4  # of the payloads that are made up: with a counter and a checksum


def cut(messages: Messages, rng: np.random.Generator, duration_s: float) -> Frames:
    """Copy a random stretch of a recording as benign frames whose clock begins at zero and never runs backwards.

    Of a recording that is pages of a file, the pages of that stretch and its time stamps are read, and given back.
    """
    time = np.maximum.accumulate(messages.timestamp)
    time -= time[0]
    total = time[-1]
    begin = rng.uniform(0.0, max(total - duration_s, 0.0)) if rng.random() < 0.8 else 0.0
    low, high = np.searchsorted(time, [begin, begin + duration_s])
    if low == high:  # the recording pauses for all that time: continue where it resumes
        high = np.searchsorted(time, time[low] + duration_s, side="right")
    rows = slice(int(low), int(high))
    part = Frames(
        time[rows] - time[low],
        messages.identifier[rows].copy(),
        messages.payload[rows].copy(),
        messages.length[rows].copy(),
        np.zeros(high - low, np.uint8),
    )
    forget_pages(messages)
    return part


def rename(frames: Frames, rng: np.random.Generator, taken: set[int], keep_order: bool) -> Frames:
    """Give every id a new random one that is not used, with the same order of priority or another."""
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
    num_bytes = int(frames.length[rows[0]])
    unused = np.arange(8)[None, :] >= frames.length[rows][:, None]
    frames.payload[rows] = np.where(unused, 0, frames.payload[rows])
    if num_bytes >= 3 and rng.random() < _SEALED_FRACTION:
        frames.payload[rows, num_bytes - 2] = np.arange(len(rows)) % (16, 15, 4)[rng.integers(3)]
        checksum, residual = int(rng.integers(NUM_CHECKSUMS)), int(rng.integers(16))
        place = num_bytes - 1 if rng.random() < 0.5 else 0
        words = np.ascontiguousarray(frames.payload[rows]).view("<u8").reshape(-1)
        frames.payload[rows] = sealed(checksum, residual, place, words, num_bytes).view(np.uint8).reshape(-1, 8)
        kind += " sealed"
    return kind


def _add_own_checksum(frames: Frames, rng: np.random.Generator, rows: NDArray[np.int64]) -> bool:
    """Let half a byte or a byte follow from the others in a way of the maker's own, beside a counter.

    While the payload does not change, it continues as a counter does; when that begins to move, it does not.
    """
    num_bytes = int(frames.length[rows[0]]) if len(rows) else 0
    if num_bytes < 3:
        return False
    payload = frames.payload[rows]
    counter, own = rng.permutation(num_bytes)[:2]
    bits = int(rng.integers(2, 5))  # of the counter
    shift = int(rng.integers(0, 9 - bits))
    field = np.uint8(((1 << bits) - 1) << shift)
    payload[:, counter] = (payload[:, counter] & ~field) | ((np.arange(len(rows)) << shift).astype(np.uint8) & field)
    if rng.random() < _OTHER_CYCLE_FRACTION:
        begin = int(rng.uniform(0.1, 0.9) * len(rows))
        end = begin + int(rng.exponential(0.3 * len(rows))) if rng.random() < 0.5 else len(rows)
        payload[begin:end, counter] ^= np.uint8(1 << (shift + bits if shift + bits < 8 else shift - 1))
    mask = np.uint8((0x0F, 0xF0, 0xFF)[rng.integers(3)])
    table = rng.integers(0, 256, (num_bytes, 256), dtype=np.uint8)
    covered = [place for place in range(num_bytes) if place != own and (place == counter or rng.random() < 0.7)]
    value = np.bitwise_xor.reduce([table[place][payload[:, place]] for place in covered], axis=0)
    payload[:, own] = (payload[:, own] & ~mask) | (value & mask)
    frames.payload[rows] = payload
    return True


def _change_mode(frames: Frames, rng: np.random.Generator, rows: NDArray[np.int64]) -> None:
    """Let one id's signals change their habits for a while, as when a car pulls away or a door opens.

    Its counters continue and its checksum holds.
    """
    rules = PayloadRules.of(frames.payload[rows], frames.length[rows])
    begin = rng.uniform(0.0, frames.time[-1])
    end = begin + rng.exponential(0.3 * frames.time[-1]) if rng.random() < 0.7 else np.inf
    inside = rows[(frames.time[rows] >= begin) & (frames.time[rows] < end)]
    columns = rng.choice(8, size=rng.integers(1, 6), replace=False)
    num_bytes = int(frames.length[rows[0]])
    kind = rng.integers(5)
    if kind == 1 and rng.random() < _STILL_FRACTION:  # nothing in its payload changes any more: the car has stopped
        columns = np.arange(8)
    columns = rules.free_columns(columns[columns < num_bytes])
    if len(inside) == 0 or len(columns) == 0:
        return
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
    frames.payload[inside] = rules.keep(frames.payload[inside], num_bytes)


def _stand(frames: Frames, rng: np.random.Generator) -> None:
    """Let many ids keep their payload from one moment on, as when the car stops: one that does alone may be an attack.

    Their counters continue and their checksums hold.
    """
    begin = rng.uniform(0.1, 0.8) * frames.time[-1]
    end = begin + rng.exponential(0.3 * frames.time[-1]) if rng.random() < 0.4 else np.inf
    share = rng.uniform(0.2, 0.9)
    for identifier in np.unique(frames.identifier):
        if rng.random() > share:
            continue
        rows = np.flatnonzero(frames.identifier == identifier)
        inside = rows[(frames.time[rows] >= begin) & (frames.time[rows] < end)]
        if len(inside) == 0:
            continue
        num_bytes = int(frames.length[rows[0]])
        rules = PayloadRules.of(frames.payload[rows], frames.length[rows])
        columns = rules.free_columns(np.arange(num_bytes))
        frames.payload[np.ix_(inside, columns)] = frames.payload[inside[0], columns]
        frames.payload[inside] = rules.keep(frames.payload[inside], num_bytes)


def _event_bursts(frames: Frames, rng: np.random.Generator, rows: NDArray[np.int64]) -> Frames:
    """Make an id cyclic and event driven: now and then it repeats itself quickly, as comfort signals do."""
    every_s, spacing_s = np.exp(rng.uniform(np.log(0.3), np.log(5.0))), np.exp(rng.uniform(np.log(0.002), np.log(0.05)))
    num_repeats = int(rng.integers(1, 6))
    since = rng.uniform(0.0, 0.9 * frames.time[-1]) if rng.random() < 0.6 else 0.0  # a habit that begins some time
    num_events = int(frames.time[-1] / every_s) + 1
    # By the driver's hand, or by a timer as an indicator's.
    pauses = rng.exponential(every_s, num_events) + 0.1 if rng.random() < 0.6 else np.full(num_events, every_s)
    begins = since + np.cumsum(pauses)
    begins = begins[begins < frames.time[-1]]
    times = (begins[:, None] + spacing_s * np.arange(num_repeats)[None, :]).reshape(-1)
    latest = rows[np.clip(np.searchsorted(frames.time[rows], times) - 1, 0, len(rows) - 1)]
    payload = frames.payload[latest].copy()
    if rng.random() < 0.5:  # the event is a changed bit
        num_bytes = max(1, int(frames.length[rows[0]]))
        column = int(rng.integers(num_bytes))
        payload[:, column] ^= np.uint8(1 << rng.integers(8))
        payload = PayloadRules.of(frames.payload[rows], frames.length[rows]).keep(payload, num_bytes)
    extra = frames.take(latest)
    extra.time, extra.payload = times, payload
    return extra


def _change_habit(
    frames: Frames, rng: np.random.Generator, rows: NDArray[np.int64], removed: NDArray[np.bool_]
) -> str | None:
    """Change how one id is sent or its payloads, in at most one way; mark rows that fall away, return what was done."""
    draw = rng.random()
    if draw < 0.15:
        return "payload " + _add_noise(frames, rng, rows)
    if draw < 0.27:
        interval = np.median(np.diff(frames.time[rows])) if len(rows) > 2 else 0.01
        frames.time[rows] += rng.normal(0.0, rng.uniform(0.01, 0.25) * interval, len(rows))
        return "jitter"
    if draw < 0.31:  # sent now and then, a few times in a row, as doors and buttons do
        events = np.cumsum(rng.exponential(np.exp(rng.uniform(np.log(0.8), np.log(20.0))), 200))
        spoken = np.zeros(len(rows), bool)
        first = np.searchsorted(frames.time[rows], events[events < frames.time[-1]])
        for later in range(int(rng.integers(1, 4))):
            spoken[np.minimum(first + later, len(rows) - 1)] = True
        removed[rows[~spoken]] = True
        return "rare"
    # Silences are habits from the beginning: a single one is what an attack looks like.
    if draw < 0.318:
        every_s, pause_s = rng.uniform(0.1, 1.0), rng.uniform(0.05, 1.0)
        removed[rows[(frames.time[rows] + pause_s) % (every_s + pause_s) < pause_s]] = True
        return "pauses"
    if draw < 0.368:
        slower = int(rng.integers(2, 11))
        removed[rows[np.arange(len(rows)) % slower != 0]] = True
        return "period slower"
    if draw < 0.376:
        slow = rows[(frames.time[rows] / rng.uniform(0.1, 1.0)).astype(np.int64) % 2 == 1]
        removed[slow[np.arange(len(slow)) % 2 == 1]] = True
        return "two periods"
    if draw < 0.386:
        on = rng.uniform(0.0, 1.0, 64) < 0.3
        removed[rows[~on[(frames.time[rows] / rng.uniform(0.1, 1.0)).astype(np.int64) % 64]]] = True
        return "event driven"
    if draw < 0.421:
        held = rng.integers(1, 30)
        frames.payload[rows] = frames.payload[rows[(np.arange(len(rows)) // held) * held]]
        return "payload held"
    return None


def _drop_ids(frames: Frames, rng: np.random.Generator, changes: list[str]) -> Frames:
    """Take some ids away, in six of ten vehicles."""
    ids = np.unique(frames.identifier)
    keep = np.ones(len(frames), bool)
    if rng.random() < 0.6:
        share = rng.uniform(0.05, 0.5)
        dropped = ids[rng.random(len(ids)) < share]
        if len(dropped) < len(ids):
            keep &= ~np.isin(frames.identifier, dropped)
            changes.append("ids dropped")
    return frames.take(keep)


def make_virtual(frames: Frames, rng: np.random.Generator) -> tuple[Frames, list[str]]:
    """Turn a stretch of benign traffic into that of another vehicle; also return what was changed."""
    changes: list[str] = []
    frames = _drop_ids(frames, rng, changes)
    if rng.random() < _STANDS_FRACTION:
        _stand(frames, rng)
        changes.append("stands")
    ids, inverse = np.unique(frames.identifier, return_inverse=True)
    removed = np.zeros(len(frames), bool)
    changing, bursting = rng.uniform(0.0, 0.4), rng.uniform(0.0, 0.1)
    bursts: list[Frames] = []
    counting: dict[int, PayloadRules] = {}
    for position in range(len(ids)):
        rows = np.flatnonzero(inverse == position)
        if rng.random() < changing:
            _change_mode(frames, rng, rows)
            changes.append("mode changes")
        before = frames.payload[rows]
        change = _change_habit(frames, rng, rows, removed)
        if change is not None:
            changes.append(change)
        if change in _OTHER_ORDER:
            counting[int(ids[position])] = PayloadRules.of(before, frames.length[rows])
        # Mixed sending is for what comes seldom; what comes all the time is sent by its timer alone.
        is_slow = len(rows) < frames.time[-1] / 0.08
        if rng.random() < (2.0 if is_slow else 0.1) * bursting:
            bursts.append(_event_bursts(frames, rng, rows))
            counting.setdefault(int(ids[position]), PayloadRules.of(frames.payload[rows], frames.length[rows]))
            changes.append("event bursts")
        elif rng.random() < _OWN_CHECKSUM_FRACTION and _add_own_checksum(frames, rng, rows[~removed[rows]]):
            counting.pop(int(ids[position]), None)
            changes.append("payload own checksum")
    frames = frames.take(~removed)
    if bursts:
        frames = Frames.join([frames, *bursts])
    for identifier, rules in counting.items():
        rows = np.flatnonzero(frames.identifier == identifier)
        rows = rows[np.argsort(frames.time[rows], kind="stable")]
        if len(rows):
            frames.payload[rows] = rules.count_on(frames.payload[rows], int(frames.length[rows[0]]))
    if rng.random() < 0.7:
        frames = rename(frames, rng, set(), keep_order=rng.random() < 0.5)
        changes.append("ids renamed")
    if rng.random() < 0.6:
        frames.time = frames.time * rng.uniform(0.6, 1.7)
        changes.append("clock scaled")
    frames = frames.take(np.argsort(frames.time, kind="stable"))
    if len(frames):
        frames.time = frames.time - frames.time[0]
    return frames, changes
