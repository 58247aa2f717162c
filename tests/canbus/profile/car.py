"""A car with a value that moves smoothly, a counter, and noise, as drives of any length."""

from __future__ import annotations

import numpy as np

from kdgat.canbus import Messages
from tests.canbus.traffic import make_messages

PERIODS_S = {0x0A1: 0.01, 0x13B: 0.02, 0x153: 0.02, 0x220: 0.05, 0x316: 0.1, 0x43F: 0.1}
SPEED = 0x153  # bytes 0 and 1: a speed; byte 2: a counter in its upper half; byte 3 noise

Row = tuple[float, int, bytes]


def rows_of(duration_s: float, seed: int) -> list[Row]:
    """Return messages, in order."""
    random = np.random.default_rng(seed)
    rows = []
    for identifier, period_s in PERIODS_S.items():
        time_s, speed, count = float(random.random()) * period_s, float(random.integers(8000, 30000)), 0
        while time_s < duration_s:
            speed = float(np.clip(speed + random.normal(0.0, 60.0), 0.0, 40000.0))
            payload = bytes([*int(speed).to_bytes(2, "big"), (count & 15) << 4, int(random.integers(256)), 0, 0, 0, 7])
            rows.append((time_s + float(random.normal(0.0, 2e-5)), identifier, payload))
            time_s, count = time_s + period_s, count + 1
    return sorted(rows)


def drive(rows: list[Row]) -> Messages:
    """Return messages of rows."""
    times, identifiers, payloads = zip(*sorted(rows), strict=True)
    return make_messages(np.array(times), list(identifiers), np.array([list(one) for one in payloads]))
