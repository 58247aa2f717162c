"""How the habits of identifiers answer attacks put into recordings without any: found, how soon, for how long.

Files are named `...__VEHICLE-NN.parquet`; the longest recording of each vehicle is attacked, and three identifiers of
it, from fast to slow. Messages are judged one by one, as `kdgat detect` does. An alarm that is there without the attack
counts neither as found nor as one that does not clear. "In alarm" is the share of an attack's time after its first
.3 s, of a suppression its first 5 s.

    python -m benchmarks.injected_attacks FOLDER [--only VEHICLE ...] [--kinds KIND ...]
"""

import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.false_alarms import parser_of, vehicles_in
from kdgat.canbus import Messages, read_recording
from kdgat.canbus.features.bus_time import BusClock
from kdgat.canbus.features.memory import IdentifierNumbers
from kdgat.canbus.features.suspicion import Known, Reason, SuspicionState

Times = NDArray[np.float64]
LENGTHS_S = (1.0, 5.0, 20.0, 60.0)
EVEN, EVEN_S = (
    0.95,
    0.11,
)  # share of intervals near the usual one, and that one at most, of identifiers judged by themselves


@dataclass
class Traffic:
    """Messages of a bus [M]."""

    time: Times
    identifier: NDArray[np.uint32]
    payload: NDArray[np.uint64]
    length: NDArray[np.uint8]

    def select(self, rows: NDArray[np.bool_]) -> "Traffic":
        """Return some rows."""
        return Traffic(self.time[rows], self.identifier[rows], self.payload[rows], self.length[rows])

    def sent(self, time: Times, identifier: object, payload: object, length: object) -> "Traffic":
        """Return it with further messages."""
        values = (time, *(np.broadcast_to(np.asarray(value), time.shape) for value in (identifier, payload, length)))
        joined = [np.concatenate(pair) for pair in zip(vars(self).values(), values, strict=True)]
        order = np.argsort(joined[0], kind="stable")
        return Traffic(
            *(column[order].astype(own.dtype) for column, own in zip(joined, vars(self).values(), strict=True))
        )


@dataclass
class Attack:
    """Where and when one is made."""

    traffic: Traffic
    identifier: int
    begin: float
    end: float
    random: np.random.Generator

    def __post_init__(self) -> None:
        """Find what is attacked."""
        self.rows = self.traffic.identifier == self.identifier
        self.inside = self.rows & (self.traffic.time >= self.begin) & (self.traffic.time < self.end)
        self.own = self.traffic.time[self.rows]
        self.period = float(np.median(np.diff(self.own))) if len(self.own) > 2 else 0.01
        self.constant = self.traffic.payload[self.rows][0]
        self.bytes = int(self.traffic.length[self.rows][0])

    def random_payloads(self, num: int, num_bytes: int = 8) -> NDArray[np.uint64]:
        """Draw payloads."""
        bits = self.random.integers(0, 2**64, num, dtype=np.uint64)
        return bits >> np.uint64(8 * (8 - num_bytes)) if 0 < num_bytes < 8 else bits

    def irregular(self, mean_s: float) -> Times:
        """Draw times of an attacker without a timer."""
        times = self.begin + np.cumsum(
            self.random.gamma(4.0, mean_s / 4.0, int((self.end - self.begin) / mean_s * 1.5))
        )
        return times[times < self.end]

    def spoofed(self, times: Times) -> Traffic:
        """Send the identifier's first payload at times."""
        return self.traffic.sent(times, self.identifier, self.constant, self.bytes)


def _new_identifier(interval_s: float) -> Callable[[Attack], Traffic]:
    def make(attack: Attack) -> Traffic:
        times = np.arange(attack.begin, attack.end, interval_s)
        return attack.traffic.sent(times, 0, attack.random_payloads(len(times)), 8)

    return make


def _random_identifiers(attack: Attack) -> Traffic:
    times = attack.begin + np.cumsum(attack.random.exponential(0.002, int((attack.end - attack.begin) / 0.002)))
    times = times[times < attack.end]
    return attack.traffic.sent(
        times, attack.random.integers(0, 2048, len(times)), attack.random_payloads(len(times)), 8
    )


def _flood(rate: float) -> Callable[[Attack], Traffic]:
    return lambda attack: attack.spoofed(attack.irregular(attack.period / rate))


def _even_flood(rate: float) -> Callable[[Attack], Traffic]:
    return lambda attack: attack.spoofed(np.arange(attack.begin, attack.end, attack.period / rate))


def _copies(rate: int) -> Callable[[Attack], Traffic]:
    def make(attack: Attack) -> Traffic:
        times = attack.traffic.time[attack.inside]
        return attack.spoofed((times[:, None] + 0.0003 * np.arange(1, rate + 1)).ravel())

    return make


def _ramp(attack: Attack) -> Traffic:
    times = [attack.begin]
    while times[-1] < attack.end:
        share = (times[-1] - attack.begin) / (attack.end - attack.begin)
        times.append(times[-1] + attack.period / (1.0 + 12.0 * share))
    return attack.spoofed(np.array(times[:-1]))


def _random_payloads(attack: Attack) -> Traffic:
    times = attack.irregular(attack.period)
    payloads = attack.random_payloads(len(times), attack.bytes)
    return attack.traffic.sent(times, attack.identifier, payloads, attack.bytes)


def _replay(attack: Attack) -> Traffic:
    before = attack.rows & (attack.traffic.time < attack.begin)
    old = attack.traffic.select(before)
    count = int(attack.inside.sum()) + 1
    times = old.time[-count:] - old.time[-count:][0] + attack.begin + 0.3 * attack.period
    keep = times < attack.end
    return attack.traffic.sent(times[keep], attack.identifier, old.payload[-count:][keep], old.length[-count:][keep])


def _replay_bus(attack: Attack) -> Traffic:
    length = min(attack.end - attack.begin, attack.begin)
    old = attack.traffic.select((attack.traffic.time >= attack.begin - length) & (attack.traffic.time < attack.begin))
    return attack.traffic.sent(old.time + length + 0.0004, old.identifier, old.payload, old.length)


def _suppression(attack: Attack) -> Traffic:
    return attack.traffic.select(~attack.inside)


def _masquerade(attack: Attack) -> Traffic:
    payload, time = attack.traffic.payload.copy(), attack.traffic.time.copy()
    payload[attack.inside] = attack.random_payloads(int(attack.inside.sum()), attack.bytes)
    time[attack.inside] += 0.35 * attack.period
    order = np.argsort(time, kind="stable")
    traffic = attack.traffic
    return Traffic(time[order], traffic.identifier[order], payload[order], traffic.length[order])


def _twice_for_good(attack: Attack) -> Traffic:
    traffic = attack.traffic
    own = traffic.select(attack.rows & (traffic.time >= attack.begin))
    times = (own.time[:-1] + own.time[1:]) / 2.0
    return traffic.sent(times, attack.identifier, own.payload[:-1], own.length[:-1])


def _half_for_good(attack: Attack) -> Traffic:
    rows = np.flatnonzero(attack.rows & (attack.traffic.time >= attack.begin))
    keep = np.ones(len(attack.traffic.time), np.bool_)
    keep[rows[1::2]] = False
    return attack.traffic.select(keep)


OF_THE_BUS: dict[str, Callable[[Attack], Traffic]] = {
    "new identifier, 1 ms": _new_identifier(0.001),
    "new identifier, 10 ms": _new_identifier(0.01),
    "random identifiers, 500 a second": _random_identifiers,
    "replay of the bus": _replay_bus,
}
OF_AN_IDENTIFIER: dict[str, Callable[[Attack], Traffic]] = {
    **{f"flood, {rate} times": _flood(rate) for rate in (3, 8, 20)},
    **{f"even flood, {rate} times": _even_flood(rate) for rate in (1.1, 3, 8, 20)},
    **{f"copies, {rate} times": _copies(rate) for rate in (3, 13)},
    "ramp to 13 times": _ramp,
    "random payloads": _random_payloads,
    "replay": _replay,
    "suppression": _suppression,
    "masquerade, random payloads": _masquerade,
    "rate doubled for good": _twice_for_good,
    "rate halved for good": _half_for_good,
}


def judge(traffic: Traffic, known: Known | None = None) -> NDArray[np.bool_]:
    """Return which messages are alarms, by what a profile knows, too, if it is given."""
    read = BusClock().read(traffic.time)
    time = np.maximum.accumulate(read.time)
    numbered = IdentifierNumbers().number(traffic.identifier)
    state = SuspicionState(known)
    found = state.judge(time, traffic.identifier, numbered, traffic.payload, traffic.length, read.breaks)
    return found.reason != Reason.NOTHING


def traffic_of(messages: Messages) -> Traffic:
    """Return messages as arrays; time begins with 0."""
    payload = np.ascontiguousarray(messages.payload).view("<u8").reshape(-1)
    time = messages.timestamp - messages.timestamp[0]
    return Traffic(time, np.ascontiguousarray(messages.identifier), payload, np.ascontiguousarray(messages.length))


def find_targets(traffic: Traffic) -> list[tuple[int, bool]]:
    """Return three identifiers that come all the time, fast to slow, and whether each is even and fast enough."""
    found = []
    for identifier in np.unique(traffic.identifier).tolist():
        times = traffic.time[traffic.identifier == identifier]
        if len(times) > 80 and times[0] < 3.0 and times[-1] > traffic.time[-1] - 2.0:
            intervals = np.diff(times)
            usual = float(np.median(intervals))
            evenness = float(np.mean(np.abs(intervals - usual) < 0.3 * usual + 0.001))
            found.append((usual, evenness > EVEN and usual <= EVEN_S, identifier))
    found.sort()
    places = sorted({int(share * (len(found) - 1)) for share in (0.0, 0.5, 0.85)}) if found else []
    return [(found[place][2], found[place][1]) for place in places]


def measure(
    traffic: Traffic, clean: NDArray[np.bool_], attacked: Traffic, attack: Attack, judged_s: float
) -> list[float]:
    """Return the delay, the share in alarm, and how long after the end the last alarm is."""
    is_alarm, time = judge(attacked), attacked.time
    before = clean[np.clip(np.searchsorted(traffic.time, time, side="right") - 1, 0, len(clean) - 1)]
    steps = np.diff(np.append(time, time[-1]))
    inside = (time >= attack.begin) & (time < attack.end)
    hits = time[inside & is_alarm & ~before]
    counted = inside & (time >= attack.begin + 0.3) & (time < attack.begin + judged_s)
    share = float(steps[counted & is_alarm].sum() / max(steps[counted].sum(), 1e-9))
    after = time[(time >= attack.end) & is_alarm & ~before]
    return [
        float(hits[0] - attack.begin) if len(hits) else np.inf,
        share,
        float(after[-1] - attack.end) if len(after) else 0.0,
    ]


def main() -> None:
    """Print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--kinds", nargs="+", default=[""], help="kinds whose names begin so")
    parser.add_argument("--cases", action="store_true", help="print each attack, too")
    options = parser.parse_args()
    longest: dict[str, Traffic] = {}
    for vehicle, path in vehicles_in(options.folder, options.only):
        traffic = traffic_of(read_recording(path))
        if vehicle not in longest or traffic.time[-1] > longest[vehicle].time[-1]:
            longest[vehicle] = traffic
    found: dict[tuple[str, bool], list[list[float]]] = defaultdict(list)
    longest = {
        vehicle: traffic
        for vehicle, traffic in longest.items()
        if traffic.time[-1] >= 17.0 and traffic.time.min() >= 0.0
    }
    for vehicle, traffic in longest.items():
        clean, last = judge(traffic), traffic.time[-1]
        begin = max(8.0, min(0.4 * last, 30.0))
        for place, (identifier, is_even) in enumerate(find_targets(traffic)):
            for kind, make in {**({} if place else OF_THE_BUS), **OF_AN_IDENTIFIER}.items():
                if not kind.startswith(tuple(options.kinds)):
                    continue
                for length in LENGTHS_S:
                    if (length > 1.0 and begin + length > last - 2.5) or (
                        kind.startswith("replay") and length > begin - 0.5
                    ):
                        continue
                    if kind.endswith("for good") and length > 1.0:
                        continue
                    random = np.random.default_rng(zlib.crc32(f"{vehicle} {kind} {length} {identifier}".encode()))
                    attack = Attack(traffic, identifier, begin, begin + length, random)
                    row = measure(traffic, clean, make(attack), attack, 5.0 if kind == "suppression" else np.inf)
                    group = is_even or kind in OF_THE_BUS
                    found[kind, group].append(row)
                    if options.cases:
                        evenness = "even" if is_even else "uneven"
                        print(f"{vehicle} {identifier:X} {attack.period:.3f} s {evenness} {kind} {length:.0f} s: {row}")
    print(f"{len(longest)} vehicles")
    columns = ("kind", "identifiers", "attacks", "found", "within .5 s", "in alarm", "clear within 1 s", "latest")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for group in (True, False):
        for kind in (*OF_THE_BUS, *OF_AN_IDENTIFIER):
            if rows := found.get((kind, group)):
                delay, share, late = np.array(rows).T
                name = "bus" if kind in OF_THE_BUS else "even, at most 110 ms" if group else "others"
                shares = (np.isfinite(delay).mean(), (delay <= 0.5).mean(), share.mean(), (late <= 1.0).mean())
                cells = (kind, name, str(len(rows)), *(f"{value:.2f}" for value in shares), f"{late.max():.1f} s")
                print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
