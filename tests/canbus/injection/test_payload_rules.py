"""Rules of payloads: counters and a checksum are found, and kept when other bytes change."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.injection.payload_rules import PayloadRules


def _payloads(num: int = 400) -> NDArray[np.uint8]:
    random = np.random.default_rng(5)
    payload = np.zeros((num, 8), np.uint8)
    payload[:, 0] = random.integers(0, 256, num)
    payload[:, 1] = 0x70 | (np.arange(num) % 15)
    payload[:, 5] = np.bitwise_xor.reduce(payload[:, :5], axis=1) ^ 0x21
    return payload


def test_a_counter_and_a_checksum_are_found() -> None:
    rules = PayloadRules.of(_payloads(), np.full(400, 6, np.uint8))
    assert np.flatnonzero(rules.counters).tolist() == [1]
    assert rules.checksum is not None
    assert rules.place in (0, 5)


def test_payloads_that_keep_to_the_rules_stay_as_they_are() -> None:
    payload = _payloads()
    assert (PayloadRules.of(payload, np.full(400, 6, np.uint8)).keep(payload, 6) == payload).all()


def test_the_checksum_holds_again_after_a_change() -> None:
    payload = _payloads()
    rules = PayloadRules.of(payload, np.full(400, 6, np.uint8))
    payload[:, 3] = 0x99
    kept = rules.keep(payload, 6)
    assert (np.bitwise_xor.reduce(kept[:, :6], axis=1) == 0x21).all()


def test_a_change_leaves_out_the_counter_and_the_checksum() -> None:
    rules = PayloadRules.of(_payloads(), np.full(400, 6, np.uint8))
    free = rules.free_columns(np.arange(6)).tolist()
    assert 1 not in free
    assert rules.place not in free
    assert 3 in free


def test_random_payloads_have_no_rules() -> None:
    payload = np.random.default_rng(0).integers(0, 256, (400, 8), dtype=np.uint8)
    rules = PayloadRules.of(payload, np.full(400, 8, np.uint8))
    assert not rules.counters.any()
    assert rules.checksum is None
    assert (rules.keep(payload, 8) == payload).all()


def test_few_payloads_prove_nothing() -> None:
    payload = np.zeros((400, 8), np.uint8)
    payload[::2, 2] = 7
    assert PayloadRules.of(payload, np.full(400, 8, np.uint8)).checksum is None


def test_counters_go_on_where_messages_fell_away_or_came_twice() -> None:
    payload = _payloads()
    rules = PayloadRules.of(payload, np.full(400, 6, np.uint8))
    sent = payload[np.repeat(np.arange(0, 400, 3), 2)]
    counted = rules.count_on(sent, 6)
    assert (np.diff(counted[:, 1].astype(np.int64)) % 15 == 1).all()
    assert (counted[:, 1] >> 4 == 7).all()
    assert (np.bitwise_xor.reduce(counted[:, :6], axis=1) == 0x21).all()
    assert (rules.count_on(payload, 6) == payload).all()


def test_a_checksum_of_half_a_byte_beside_a_counter_leaves_the_counter_alone() -> None:
    payload = np.zeros((400, 8), np.uint8)
    payload[:, 2] = np.random.default_rng(6).integers(0, 256, 400)
    payload[:, 7] = np.arange(400) % 4
    halves = (payload & 15).sum(axis=1) + (payload >> 4).sum(axis=1)
    payload[:, 7] |= (((-halves) & 15) << 4).astype(np.uint8)
    rules = PayloadRules.of(payload, np.full(400, 8, np.uint8))
    payload[:, 2] ^= 0x35
    kept = rules.keep(payload, 8)
    assert (kept[:, 7] & 15 == np.arange(400) % 4).all()
    assert (((kept & 15).sum(axis=1) + (kept >> 4).sum(axis=1)) % 16 == 0).all()
