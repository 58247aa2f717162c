"""Payload fields: what keeps to an identifier's own rules teaches them, what breaks them is odd."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kdgat.canbus.features.checksums import NUM_CHECKSUMS, sealed
from kdgat.canbus.features.fields import FIELD_FEATURES, FieldState
from kdgat.canbus.features.memory import IdentifierNumbers, Numbered

COLUMN = {name: column for column, name in enumerate(FIELD_FEATURES)}
PERIOD_S = 0.01


def _drive(num: int, seed: int = 0) -> NDArray[np.uint8]:
    """Draw payloads of a control unit: a constant, a signal of two bytes, a flag, a counter and a CRC."""
    random = np.random.default_rng(seed)
    payload = np.zeros((num, 8), np.uint8)
    payload[:, 0] = 0x4D
    signal = (20_000 + 3_000 * np.sin(np.arange(num) / 200.0) + random.normal(0.0, 20.0, num)).astype(np.int64)
    payload[:, 1], payload[:, 2] = signal >> 8, signal & 255
    payload[:, 3] = 0x10 * ((np.arange(num) // 700) % 2)
    payload[:, 6] = 0xA0 | (np.arange(num) % 16)
    return _sealed(payload)


def _sealed(payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return sealed(5, 0x3C, 7, _words(payload), 8).view(np.uint8).reshape(-1, 8)


def _words(payload: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(payload).view("<u8").reshape(-1)


def _judge(
    payload: NDArray[np.uint8],
    time: NDArray[np.float64] | None = None,
    state: FieldState | None = None,
    length: NDArray[np.uint8] | None = None,
) -> NDArray[np.float32]:
    time = PERIOD_S * np.arange(len(payload)) if time is None else time
    is_new = np.zeros(len(payload), bool)
    is_new[0] = state is None
    numbered = Numbered(np.zeros(len(payload), np.int32), is_new, 1)
    length = np.full(len(payload), 8, np.uint8) if length is None else length
    return (state or FieldState()).describe(time, numbered, _words(payload), length)


def test_what_a_control_unit_says_is_hardly_ever_odd() -> None:
    found = _judge(_drive(6_000))
    assert found[:, COLUMN["odd"]].mean() < 0.002
    assert found[:, COLUMN["checksum_break"]].max() == 0.0
    assert found[500:, COLUMN["checksum_known"]].min() == 1.0
    assert found[500:, COLUMN["counter_break"]].max() == 0.0


def test_an_injected_payload_is_odd_and_the_owners_next_one_is_not() -> None:
    payload = _drive(3_000)
    places = np.arange(1_000, 2_000, 7)
    forged = payload[places].copy()
    forged[:, 2] ^= 0xFF
    mixed = np.insert(payload, places, forged, axis=0)
    is_forged = np.insert(np.zeros(len(payload), bool), places, True)
    found = _judge(mixed)
    assert (found[is_forged, COLUMN["odd"]] == 1.0).all()
    assert (found[is_forged, COLUMN["checksum_break"]] > 0.5).all()
    assert found[~is_forged, COLUMN["odd"]].mean() < 0.01


def test_a_forger_who_knows_the_checksum_is_betrayed_by_the_counter() -> None:
    payload = _drive(3_000)
    places = np.arange(1_000, 2_000, 50)
    forged = payload[places - 5].copy()
    mixed = np.insert(payload, places, forged, axis=0)
    is_forged = np.insert(np.zeros(len(payload), bool), places, True)
    found = _judge(mixed)
    assert found[is_forged, COLUMN["checksum_break"]].max() == 0.0
    assert (found[is_forged, COLUMN["counter_break"]] > 0.3).all()


@pytest.mark.parametrize("kind", range(NUM_CHECKSUMS))
def test_a_payload_that_is_cut_to_one_byte_breaks_its_checksum(kind: int) -> None:
    """Also one whose residual is 0: what is left has a residual of its own, not that of nothing."""
    payload = sealed(kind, 0, 7, _words(_drive(200)), 8).view(np.uint8).reshape(-1, 8).copy()
    length = np.full(len(payload), 8, np.uint8)
    length[-1] = 1
    payload[-1, 1:] = 0
    found = _judge(payload, length=length)
    assert found[:-1, COLUMN["checksum_break"]].max() == 0.0
    assert found[-1, COLUMN["checksum_break"]] > 0.0
    assert found[-1, COLUMN["odd"]] == 1.0


def test_one_forged_payload_that_keeps_to_another_checksum_does_not_end_the_true_one() -> None:
    payload = _drive(600)
    for row in range(400):  # at first, all bytes' XOR is constant as well
        for value in range(256):
            payload[row, 5] = value
            payload[row] = _sealed(payload[row][None])[0]
            if np.bitwise_xor.reduce(payload[row]) == 0x5A:
                break
        else:
            raise AssertionError("no payload keeps to both")
    forged = payload[380].copy()
    forged[[2, 3]] ^= 0x11  # the XOR does not see it
    payload = np.insert(payload, 390, forged, axis=0)
    forged[4] ^= 0x22
    payload = np.insert(payload, 595, forged, axis=0)
    found = _judge(payload)
    assert found[595, COLUMN["checksum_break"]] > 0.5
    assert np.delete(found[:, COLUMN["checksum_break"]], 595).max() == 0.0


def test_many_odd_messages_count_as_one_event_and_do_not_become_usual() -> None:
    payload = _drive(4_000)
    places = np.repeat(np.arange(1_000, 1_500), 3)  # three beside each of the owner's, for five seconds
    forged = np.random.default_rng(1).integers(0, 256, (len(places), 8), dtype=np.uint8)
    mixed = np.insert(payload, places, forged, axis=0)
    is_forged = np.insert(np.zeros(len(payload), bool), places, True)
    time = np.sort(np.concatenate([PERIOD_S * np.arange(4_000), PERIOD_S * (places - 0.5)]))
    found = _judge(mixed, time)
    last = np.flatnonzero(is_forged)[-300:]
    assert found[last, COLUMN["odd"]].mean() > 0.99
    after = len(mixed) - 500
    assert found[after:, COLUMN["odd"]].max() == 0.0
    assert found[after:, COLUMN["odd_run"]].max() == 0.0


def test_a_frozen_payload_has_not_changed_for_longer_than_usual() -> None:
    payload = _drive(3_000)
    payload[2_000:] = payload[2_000]
    found = _judge(payload)
    assert found[1_000:2_000, COLUMN["frozen"]].max() < 1.0
    assert found[2_100:, COLUMN["frozen"]].min() == 2.0


def test_a_lamp_that_is_switched_on_is_odd_once() -> None:
    payload = _drive(3_000)
    payload[1_500:, 0] = 0x7F
    payload = _sealed(payload)
    odd = _judge(payload)[:, COLUMN["odd"]]
    assert odd[1_501:].mean() < 0.005


def test_a_stream_in_pieces_is_described_as_the_whole() -> None:
    payload = _drive(2_000)
    whole = _judge(payload)
    state, time = FieldState(), PERIOD_S * np.arange(2_000)
    parts = []
    for number, begin in enumerate(range(0, 2_000, 130)):
        piece = slice(begin, min(begin + 130, 2_000))
        size = piece.stop - piece.start
        is_new = np.zeros(size, bool)
        is_new[0] = number == 0
        numbered = Numbered(np.zeros(size, np.int32), is_new, 1)
        parts.append(state.describe(time[piece], numbered, _words(payload[piece]), np.full(size, 8, np.uint8)))
    assert (np.concatenate(parts) == whole).all()


def test_an_identifier_that_was_forgotten_begins_anew() -> None:
    identifier = np.zeros(400, np.uint32)
    numbered = IdentifierNumbers().number(identifier)
    is_new = numbered.is_new.copy()
    is_new[200] = True  # its number was given to another one
    payload = np.concatenate([_drive(200), _drive(200)])
    length, time = np.full(400, 8, np.uint8), PERIOD_S * np.tile(np.arange(200), 2)
    found = FieldState().describe(time, Numbered(numbered.number, is_new, 1), _words(payload), length)
    assert (found[:200] == found[200:]).all()


def test_payloads_of_no_bytes_say_nothing() -> None:
    numbered = Numbered(np.zeros(100, np.int32), np.arange(100) == 0, 1)
    length = np.zeros(100, np.uint8)
    found = FieldState().describe(PERIOD_S * np.arange(100), numbered, np.zeros(100, np.uint64), length)
    assert found[:, COLUMN["odd"]].max() == 0.0
    assert np.isfinite(found).all()
