"""Features of messages: against plain Python, causal, relative to the id's own past, finite whatever the clock does."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdgat.canbus import Messages
from kdgat.canbus.features import features
from kdgat.canbus.features.features import MESSAGE_FEATURES, FeatureState
from kdgat.canbus.features.memory import LASTING, PASSING
from tests.canbus.recording_files import random_messages
from tests.canbus.traffic import bus_traffic, features_of, make_messages, merge


def _plain_features(messages: Messages) -> dict[str, list[float]]:
    """Compute the features that have a short definition, message by message."""
    start = float(messages.timestamp[0])
    previous: int | None = None
    times: dict[int, list[float]] = {}
    payloads: dict[int, list[int]] = {}
    lengths: dict[int, int] = {}
    bit_time: dict[tuple[int, int], float] = {}
    pairs: Counter[tuple[int, int]] = Counter()
    bands: Counter[int] = Counter()
    columns: dict[str, list[float]] = {}
    for message in range(len(messages)):
        now, identifier = float(messages.timestamp[message]), int(messages.identifier[message])
        word, length = int.from_bytes(messages.payload[message].tobytes(), "little"), int(messages.length[message])
        past, said = times.setdefault(identifier, []), payloads.setdefault(identifier, [])
        first = past[0] if past else now
        bits = 8 * max(1, length)
        row = dict.fromkeys(
            ("bits_changed", "toggle_surprise", "new_toggles", "twin", "length_changed", "order_surprise"), 0.0
        )
        row["recording_age"] = math.log2(1 + now - start) / 8
        row["novelty"] = (first - start) / (now - start + 0.5)
        row["experience"] = math.log2(1 + len(past)) / 16
        row["period_known"] = float(len(past) > 3)
        band = identifier >> 5 if identifier < 2048 else identifier >> 23
        row["priority"] = sum(count for other, count in bands.items() if other < band) / (message + 1)
        established = {
            other
            for other, seen in times.items()
            if any(
                k >= 8
                and seen[k - 1] - seen[0]
                > max(1.0 if seen[0] - start <= 2.0 else 60.0, min(0.5 * (seen[k - 1] - start), 60.0))
                for k in range(8, len(seen) + 1)
            )
        }
        row["outranks"] = float(now - start > 1.0 and all(identifier < other for other in established))
        if previous is not None:
            row["order_surprise"] = -math.log2((pairs[previous, identifier] + 0.25) / (len(times[previous]) + 8.0)) / 8
            pairs[previous, identifier] += 1
        if past:
            interval = max(now - past[-1], 1e-6)
            changed = word ^ said[-1]
            row["bits_changed"] = changed.bit_count() / bits
            row["length_changed"] = float(length != lengths[identifier])
            if len(past) > 1:
                row["twin"] = (changed.bit_count() - (word ^ said[-2]).bit_count()) / bits
                known = 0
                for one, other in pairwise(said):
                    known |= one ^ other
                row["new_toggles"] = (changed & ~known).bit_count() / 8
            surprise = 0.0
            for bit in range(64):
                if changed >> bit & 1:
                    spent = bit_time.get((identifier, bit), 0.0)
                    share = (spent + 0.02 * min(interval, 0.1)) / (max(now - first, 1e-3) + 0.02)
                    surprise -= math.log2(min(share, 1.0))
                    bit_time[identifier, bit] = spent + interval
            if len(past) > 3:
                row["toggle_surprise"] = min(surprise, 320.0) / 64
        past.append(now)
        said.append(word)
        lengths[identifier] = length
        bands[band] += 1
        previous = identifier
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def _mixed_traffic() -> Messages:
    random = np.random.default_rng(3)
    traffic = bus_traffic(num_ids=8, duration_s=4.0, seed=2)
    extended = make_messages(np.sort(random.uniform(1.5, 4.0, 60)), 0x0CF00400, random.integers(0, 256, (60, 8)))
    short = make_messages(np.arange(0.0, 4.0, 0.07), 0x21, length=np.arange(58) % 3)
    return merge(traffic, extended, short)


def test_features_agree_with_plain_python() -> None:
    messages = _mixed_traffic()
    features = features_of(messages)
    for name, expected in _plain_features(messages).items():
        np.testing.assert_allclose(features[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("period_s", [0.001, 0.01, 0.1, 1.0])
def test_interval_is_relative_to_the_known_period(period_s: float) -> None:
    times = np.arange(60) * period_s
    times[40:] += period_s  # one message missing
    times[50:] -= 0.75 * period_s  # one too early
    features = features_of(make_messages(times, 0x100))
    ratio = features["interval_ratio"]
    np.testing.assert_allclose(ratio[4:40], 0.0, atol=1e-3)
    assert ratio[40] == pytest.approx(1.0, abs=0.01)
    assert ratio[50] == pytest.approx(-2.0, abs=0.01)
    assert features["double_interval_ratio"][40] == pytest.approx(math.log2(1.5), abs=0.01)
    assert features["log_period"][59] == pytest.approx(math.log2(period_s) / 8, abs=1e-3)
    assert not ratio[:4].any()
    assert not features["period_known"][:4].any()
    assert features["interval_high_rank"][40] > features["interval_high_rank"][39] + 3
    assert features["interval_low_rank"][50] > 4
    assert features["interval_novelty"][50] > 0.8


@pytest.mark.parametrize(("num_bits", "surprise"), [(1, 20.0), (15, 300.0), (16, 320.0), (64, 320.0)])
def test_a_surprise_is_the_sum_over_bits_up_to_its_limit(num_bits: int, surprise: float) -> None:
    """Each bit is 2^-20 likely: the product for all 64 is less than any float."""
    times = np.arange(1001) * 0.02 * 0.1 * 2.0**20 / 1000
    payload = np.zeros((1001, 8), np.uint8)
    payload[-1] = np.packbits(np.arange(64) < num_bits)
    found = features_of(make_messages(times, 0x100, payload))["toggle_surprise"]
    assert not found[:-1].any()
    assert found[-1] == pytest.approx(surprise / 64, rel=1e-3)


def test_period_withstands_an_attack_of_less_than_half_the_time() -> None:
    """Injected messages come close together: most messages of the id are the attacker's, its period stays."""
    own = make_messages(np.arange(0.0, 20.0, 0.1), 0x100)
    attack = make_messages(np.arange(8.0, 14.0, 0.002), 0x100)
    messages = merge(own, attack)
    assert len(attack) > 10 * len(own)
    features = features_of(messages)
    period_s = np.exp2(8.0 * features["log_period"])
    assert messages.timestamp[-1] == own.timestamp[-1]
    np.testing.assert_allclose(period_s[10:], 0.1, rtol=0.1)
    inside = (messages.timestamp > 8.1) & (messages.timestamp < 13.9)
    assert np.median(features["interval_ratio"][inside]) < -5.0


def test_twin_shows_forged_and_true_payloads_in_turn() -> None:
    payload = np.zeros((40, 8), np.uint8)
    payload[:, 0] = np.arange(40)  # a counter of its own: nothing returns
    payload[21::2, 3:] = 0xFF
    features = features_of(make_messages(np.arange(40) * 0.01, 0x100, payload))
    assert features["twin"][23:].min() > 0.5
    assert features["twin"][2:21].max() < 0.1
    assert features["twin_rank"][23] > 3
    assert features["new_toggles"][21] >= 40 / 8


def test_missing_toggle_marks_a_counter_that_stops() -> None:
    payload = np.zeros((60, 8), np.uint8)
    payload[:, 0] = np.arange(60)
    payload[50:, 0] -= 1
    features = features_of(make_messages(np.arange(60) * 0.01, 0x100, payload))
    assert features["missing_toggles"][50] == 1 / 8
    assert not np.delete(features["missing_toggles"], 50).any()
    assert features["repeat_rank"][50] > 4 > 1 > features["repeat_rank"][49]


def test_order_surprise_falls_as_a_sequence_repeats_and_rises_when_it_breaks() -> None:
    identifier = np.tile([0x10, 0x20, 0x30, 0x40], 50)
    identifier[160:164] = [0x10, 0x30, 0x20, 0x40]
    surprise = features_of(make_messages(np.arange(200) * 0.001, identifier))["order_surprise"]
    assert np.all(np.diff(surprise[1:160].reshape(-1, 3)[:, 0]) < 0.3)
    assert surprise[161] > 5 * surprise[159]
    assert surprise[159] < 0.1


def test_outranks_marks_ids_below_all_established_ones() -> None:
    established = [make_messages(np.arange(0.0, 6.0, 0.02) + k * 1e-3, 0x80 + k) for k in range(3)]
    urgent = make_messages(np.arange(3.0, 3.5, 0.001), 0x00)
    late = make_messages(np.arange(3.0, 6.0, 0.1), 0x7F0)
    messages = merge(*established, urgent, late)
    features = features_of(messages)
    old = messages.timestamp > 2.0
    assert features["outranks"][messages.identifier == 0].all()
    assert not features["outranks"][old & (messages.identifier != 0)].any()
    assert features["novelty"][messages.identifier == 0].min() > 0.7
    assert features["novelty"][messages.identifier == 0x80].max() == 0.0


def test_a_flood_outranks_for_as_long_as_it_lasts() -> None:
    own = make_messages(np.arange(0.0, 40.0, 0.02), 0x80)
    flood = make_messages(np.arange(3.3, 40.0, 0.01) + 1e-3, 0x00)  # for most of a short recording
    messages = merge(own, flood)
    assert features_of(messages)["outranks"][messages.identifier == 0].all()


def test_bus_rate_rises_under_a_flood_and_gap_after_a_pause() -> None:
    calm = make_messages(np.arange(0.0, 10.0, 0.005), 0x100)
    calm = calm.select((calm.timestamp < 6.0) | (calm.timestamp > 6.5))
    messages = merge(calm, make_messages(np.arange(8.0, 8.5, 0.0005), 0x0))
    features = features_of(messages)
    flood = (messages.timestamp > 8.2) & (messages.timestamp < 8.5)
    assert features["bus_rate"][flood].min() > 2.0
    assert abs(float(np.median(features["bus_rate"][~flood]))) < 0.3
    assert features["bus_gap"][np.searchsorted(messages.timestamp, 6.4)] > 5.0


@settings(max_examples=25, deadline=None)
@given(border=st.integers(1, 599), seed=st.integers(0, 1000))
def test_later_messages_never_change_earlier_rows(border: int, seed: int) -> None:
    """Neither their content nor their number; extended ids may follow standard ones."""
    messages, other = random_messages(600, seed=seed), random_messages(900, seed=seed + 1)
    messages.identifier[:300] %= 64
    later = make_messages(
        np.concatenate([messages.timestamp[:border], messages.timestamp[border] + other.timestamp - 1.5e9]),
        np.concatenate([messages.identifier[:border], other.identifier]),
        np.concatenate([messages.payload[:border], other.payload]),
        np.concatenate([messages.length[:border], other.length]),
    )
    whole, changed, head = features_of(messages), features_of(later), features_of(messages.select(slice(border)))
    for name in MESSAGE_FEATURES:
        np.testing.assert_array_equal(whole[name][:border], changed[name][:border], err_msg=name)
        np.testing.assert_array_equal(whole[name][:border], head[name], err_msg=name)


def _renamed(messages: Messages, table: dict[int, int]) -> Messages:
    identifier = np.array([table[i] for i in messages.identifier.tolist()])
    return make_messages(messages.timestamp, identifier, messages.payload, messages.length)


def test_renaming_ids_in_the_same_order_changes_nothing_but_the_priority_bands() -> None:
    messages = bus_traffic(num_ids=20, duration_s=5.0, seed=5)
    ids = np.unique(messages.identifier).tolist()
    new = np.sort(np.random.default_rng(1).choice(2048, len(ids), replace=False)).tolist()
    renamed = features_of(_renamed(messages, dict(zip(ids, new, strict=True))))
    for name, column in features_of(messages).items():
        if name != "priority":
            np.testing.assert_array_equal(column, renamed[name], err_msg=name)
    # one id in each band of 32: then the share of lower ids depends on their order alone
    spread = {identifier: 64 * k for k, identifier in enumerate(ids)}
    shifted = {identifier: 64 * k + 31 for k, identifier in enumerate(ids)}
    one, other = features_of(_renamed(messages, spread)), features_of(_renamed(messages, shifted))
    np.testing.assert_array_equal(one["priority"], other["priority"])


def test_any_renaming_keeps_all_that_does_not_compare_ids() -> None:
    messages = bus_traffic(num_ids=20, duration_s=5.0, seed=6)
    ids = np.unique(messages.identifier).tolist()
    mirrored = features_of(_renamed(messages, {identifier: 2047 - identifier for identifier in ids}))
    for name, column in features_of(messages).items():
        if name not in ("priority", "outranks"):
            np.testing.assert_array_equal(column, mirrored[name], err_msg=name)


def test_moving_the_clock_changes_nothing() -> None:
    messages = bus_traffic(num_ids=10, duration_s=4.0, seed=7)
    messages.timestamp = np.round(messages.timestamp * 1024) / 1024  # so that the sum is exact
    moved = make_messages(messages.timestamp + 2**20, messages.identifier, messages.payload, messages.length)
    for name, column in features_of(messages).items():
        np.testing.assert_array_equal(column, features_of(moved)[name], err_msg=name)


def _described(messages: Messages, cuts: list[int]) -> NDArray[np.float32]:
    """Compute the features of a recording in pieces."""
    state = FeatureState()
    bounds = [0, *sorted(cuts), len(messages)]
    payload = np.ascontiguousarray(messages.payload).view("<u8").reshape(-1)
    return np.concatenate(
        [
            state.describe(
                messages.timestamp[start:stop],
                messages.identifier[start:stop],
                payload[start:stop],
                messages.length[start:stop],
            )[1]
            for start, stop in pairwise(bounds)
        ]
    )


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 900), max_size=12), seed=st.integers(0, 1000), num_ids=st.integers(1, 400))
def test_pieces_of_any_size_have_the_features_of_the_whole(cuts: list[int], seed: int, num_ids: int) -> None:
    """Bit for bit, with identifiers that appear in any piece."""
    messages = random_messages(900, seed=seed)
    messages.identifier %= num_ids
    np.testing.assert_array_equal(_described(messages, cuts), _described(messages, []))


def test_one_message_at_a_time_has_the_features_of_the_whole() -> None:
    messages = bus_traffic(num_ids=20, duration_s=3.0, seed=8)
    whole = _described(messages, [])
    np.testing.assert_array_equal(_described(messages, list(range(1, len(messages)))), whole)


def test_an_identifier_that_was_forgotten_in_a_flood_is_new_again() -> None:
    num_flood = LASTING + 2 * PASSING
    random = np.random.default_rng(0)
    passing = np.full(100, 0x1ABCDEF)
    flood = random.permutation(np.arange(1 << 20, (1 << 20) + num_flood))
    identifier = np.concatenate([np.tile([1, 2], 50), flood[: LASTING + 10], passing, flood[LASTING + 10 :], passing])
    messages = make_messages(
        np.arange(len(identifier)) * 1e-4, identifier, random.integers(0, 256, (len(identifier), 8))
    )
    features = dict(zip(MESSAGE_FEATURES, _described(messages, [5000, 20_000]).T, strict=True))
    again = np.flatnonzero(identifier == 0x1ABCDEF)[100:]
    np.testing.assert_allclose(features["experience"][again], np.log2(1.0 + np.arange(100)) / 16, rtol=1e-6)
    assert features["novelty"][again[0]] > 0.8
    np.testing.assert_array_equal(_described(messages, [12_345, 30_000]), _described(messages, []))


def test_transitions_of_an_identifier_that_lost_its_number_are_not_those_of_the_next_holder() -> None:
    state, column = FeatureState(), MESSAGE_FEATURES.index("order_surprise")
    time = 0.0

    def surprise(identifier: NDArray[np.int64]) -> NDArray[np.float32]:
        nonlocal time
        times = time + 1e-3 * np.arange(1, len(identifier) + 1)
        time = float(times[-1])
        num = len(identifier)
        words, length = np.zeros(num, np.uint64), np.full(num, 8, np.uint8)
        return state.describe(times, identifier.astype(np.uint32), words, length)[1][:, column]

    surprise(np.arange(LASTING))  # all numbers that last
    old, new, steady = 100_000, 200_000, 7
    often = np.tile([old, steady], 200)
    surprise(often)
    surprise(np.arange(300_000, 300_000 + PASSING - 1))  # the numbers of all others in turn
    assert (surprise(np.array([steady, new, steady])) > 0.0).all()


def test_state_never_crosses_recordings() -> None:
    first, second = bus_traffic(seed=1, duration_s=3.0), bus_traffic(seed=2, duration_s=3.0)
    alone = features_of(second)
    features_of(first)
    for name, column in features_of(second).items():
        np.testing.assert_array_equal(column, alone[name], err_msg=name)


CLOCKS: dict[str, NDArray[np.float64]] = {
    "equal": np.zeros(400),
    "backward": np.arange(400.0)[::-1] * 0.01,
    "reset": np.concatenate([1e9 + np.arange(200) * 0.01, np.arange(200) * 0.01]),
    "jump": np.concatenate([np.arange(200) * 0.01, 1e9 + np.arange(200) * 0.01]),
    "two pauses": np.concatenate([np.arange(200) * 0.001, 1000 + np.arange(100) * 0.001, 1100 + np.arange(100) * 1e-3]),
    "noise": 100.0 + np.random.default_rng(0).normal(0.0, 1.0, 400),
    "nanoseconds": np.arange(400) * 1e-9,
    "slow": np.arange(400) * 1e4,
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_any_clock_gives_finite_features(clock: str) -> None:
    content = random_messages(400, seed=1)
    content.identifier[:] %= 9
    messages = make_messages(CLOCKS[clock], content.identifier, content.payload, content.length)
    for name, column in features_of(messages).items():
        assert np.isfinite(column).all(), name


def test_extended_and_standard_ids_share_the_priority_of_their_first_bits() -> None:
    messages = make_messages(np.arange(6) * 0.1, [0x100, 0x18FEF100, 0x0CF00400, 0x7FF, 0x18FEF100, 0x1FFFFFFF])
    expected = [0, 1 / 2, 1 / 3, 3 / 4, 2 / 5, 4 / 6]  # 0x18FEF100 begins like 0x63F, 0x0CF00400 like 0x33C
    np.testing.assert_allclose(features_of(messages)["priority"], expected, rtol=1e-6)


def test_empty_and_one_message_recordings() -> None:
    assert all(len(column) == 0 for column in features_of(make_messages([], 0)).values())
    features = features_of(make_messages([5.0], 0x123))
    assert {name for name, column in features.items() if column.any()} == set()


def test_all_standard_ids_at_once() -> None:
    random = np.random.default_rng(0)
    identifier = np.concatenate([random.permutation(2048) for _ in range(6)])
    features = features_of(make_messages(np.arange(len(identifier)) * 1e-4, identifier))
    assert all(np.isfinite(column).all() for column in features.values())
    assert features["period_known"].sum() == 2 * 2048
    np.testing.assert_allclose(features["experience"][-2048:], math.log2(6) / 16, rtol=1e-6)


def test_logarithms_are_not_reordered_whoever_calls_them() -> None:
    """Else what a message gets would depend on its row in a block, and a stream would not be the whole."""
    assert features._write_logarithms.targetoptions["fastmath"] is False
