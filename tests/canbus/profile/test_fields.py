"""Fields of payloads: where they are, what they keep to, and when they no longer do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.profile.fields import PayloadField, find_fields
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


def _field(first_bit: int, num_bits: int, **more: Any) -> PayloadField:
    return PayloadField(first_bit=first_bit, num_bits=num_bits, kind="smooth", step=1, lowest=0, highest=1, **more)


def test_values_are_read_with_the_first_or_the_last_byte_as_the_highest() -> None:
    payload = np.frombuffer(bytes([0x12, 0x34, 0x56, 0, 0, 0, 0, 0x78]), "<u8").astype(np.uint64)
    assert _field(0, 16).values(payload).tolist() == [0x1234]
    assert _field(4, 8).values(payload).tolist() == [0x23]
    assert _field(0, 8, byte_order="little").values(payload).tolist() == [0x78]
    assert _field(48, 16, byte_order="little").values(payload).tolist() == [0x3412]


def test_fields_overlap_where_they_share_bits_in_whatever_order_they_are_read() -> None:
    first_byte = _field(0, 8)
    assert first_byte.overlaps(_field(48, 16, byte_order="little"))
    assert not first_byte.overlaps(_field(40, 16, byte_order="little"))


def _moving(lowest: int, highest: int, num: int = 3000) -> NDArray[np.int64]:
    """Return values that swing, in small steps with some noise."""
    swing = np.sin(np.arange(num) / 97.0) + 0.3 * np.sin(np.arange(num) / 23.0)
    noise = np.random.default_rng(3).integers(-3, 4, num)
    return np.round(lowest + (swing + 1.3) / 2.6 * (highest - lowest)).astype(np.int64) + noise


def test_a_number_whose_low_byte_comes_first_is_found_whole() -> None:
    words = _moving(2000, 48_000).astype("<u8") << np.uint64(8)  # the second and the third byte
    fields = find_fields([words.astype(np.uint64)], 4)
    assert [(one.byte_order, one.num_bits) for one in fields] == [("little", 16)]
    assert fields[0].values(words)[0] == _moving(2000, 48_000)[0]


def test_a_signed_number_is_found_though_it_goes_around_the_end_of_its_bits() -> None:
    numbers = _moving(-3000, 3000) & 0xFFFF
    fields = find_fields(
        [((numbers >> 8) | ((numbers & 255) << 8)).astype(np.uint64)], 2
    )  # the first byte is the high one
    assert any(one.kind == "smooth" and one.num_bits == 16 for one in fields)


def test_the_low_byte_of_a_number_that_is_not_read_whole_is_no_field() -> None:
    low = (np.arange(4000) * 7 % 256).astype(np.uint64)  # runs through all values, around and around
    low += np.random.default_rng(0).integers(0, 3, 4000).astype(np.uint64)
    assert [one for one in find_fields([low & np.uint64(255)], 1) if one.kind == "smooth"] == []


def test_few_messages_show_no_field() -> None:
    assert find_fields([_payloads()[:50]], 8) == []


def test_a_field_goes_on_as_long_as_its_rule_holds() -> None:
    smooth = next(one for one in find_fields([_payloads()], 8) if one.kind == "smooth")
    other = smooth.values(_payloads(seed=2))
    grown = smooth.goes_on_as([other])
    assert grown is not None
    assert grown.lowest <= other.min()
    assert grown.highest >= other.max()
    noise = np.random.default_rng(0).integers(0, 1 << smooth.num_bits, 200)
    assert smooth.goes_on_as([noise]) is None
    counter = next(one for one in find_fields([_payloads()], 8) if one.kind == "counter")
    assert counter.goes_on_as([np.zeros(200, np.int64)]) is None


def _counter(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    return (values << 4).astype(np.uint64)  # the upper half of the first byte


def test_a_counter_that_leaves_out_values_is_one_and_a_sum_that_counts_for_a_while_is_none() -> None:
    (counter,) = find_fields([_counter(np.arange(3000) % 15)], 1)
    assert (counter.kind, counter.modulus, counter.num_bits) == ("counter", 15, 4)
    assert find_fields([_counter(7 + np.arange(3000) % 4)], 1) == []


def test_a_counter_is_strict_as_long_as_it_goes_on_with_each_message_at_the_usual_interval() -> None:
    values = np.arange(1000) % 16
    are_usual = np.ones(999, np.bool_)
    (strict,) = find_fields([_counter(values)], 1, [are_usual])
    assert strict.is_strict
    lost = np.delete(values, 500)  # a message, so that an interval is twice as long
    assert find_fields([_counter(lost)], 1, [np.arange(998) != 499])[0].is_strict
    assert not find_fields([_counter(lost)], 1, [are_usual[1:]])[0].is_strict
    assert not find_fields([_counter(values)], 1)[0].is_strict  # nothing is known of the times
    grown = strict.goes_on_as([strict.values(_counter(lost))], [are_usual[1:]])
    assert grown is not None
    assert not grown.is_strict
