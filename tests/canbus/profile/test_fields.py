"""Fields of payloads: where they are, what they keep to, and when they no longer do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.profile.fields import find_fields, values_of
from tests.canbus.profile.car import SPEED, rows_of


def _payloads(duration_s: float = 60.0, seed: int = 1) -> NDArray[np.uint64]:
    rows = [payload for _, identifier, payload in rows_of(duration_s, seed) if identifier == SPEED]
    return np.frombuffer(b"".join(rows), "<u8").astype(np.uint64)


def test_a_value_and_a_counter_are_found_where_they_are_and_noise_is_none() -> None:
    fields = find_fields([_payloads()], 8)
    kinds = {one.kind: (one.first_bit, one.first_bit + one.num_bits) for one in fields}
    assert set(kinds) == {"smooth", "counter"}
    assert kinds["counter"] == (16, 20)
    assert kinds["smooth"][1] == 16
    assert kinds["smooth"][0] <= 3  # bits that never change are left out


def test_values_are_read_with_the_first_byte_as_the_highest() -> None:
    payload = np.frombuffer(bytes([0x12, 0x34, 0x56, 0, 0, 0, 0, 0]), "<u8").astype(np.uint64)
    assert values_of(payload, 0, 16).tolist() == [0x1234]
    assert values_of(payload, 4, 8).tolist() == [0x23]


def test_few_messages_show_no_field() -> None:
    assert find_fields([_payloads()[:50]], 8) == []


def test_a_field_goes_on_as_long_as_its_rule_holds() -> None:
    smooth = next(one for one in find_fields([_payloads()], 8) if one.kind == "smooth")
    other = values_of(_payloads(seed=2), smooth.first_bit, smooth.num_bits)
    grown = smooth.goes_on_as([other])
    assert grown is not None
    assert grown.lowest <= other.min()
    assert grown.highest >= other.max()
    noise = np.random.default_rng(0).integers(0, 1 << smooth.num_bits, 200)
    assert smooth.goes_on_as([noise]) is None
    counter = next(one for one in find_fields([_payloads()], 8) if one.kind == "counter")
    assert counter.goes_on_as([np.zeros(200, np.int64)]) is None
    assert "count by 1" in counter.in_words()
