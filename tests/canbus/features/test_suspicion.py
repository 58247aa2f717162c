"""The habits of identifiers: what they find without training, what they leave alone, and that nobody teaches them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kdgat.canbus import Messages, OnlineWindows, WindowConfig, make_vehicle, simulate, windows_to_graphs
from kdgat.canbus.features.suspicion import Reason
from tests.canbus.traffic import Judged, make_messages

PERIODS_S = {0x0A1: 0.01, 0x13B: 0.02, 0x153: 0.02, 0x220: 0.05, 0x316: 0.1, 0x43F: 0.1}
TARGET = 0x153
DURATION_S, BEGIN_S, END_S = 60.0, 30.0, 40.0


def _car(duration_s: float = DURATION_S, changed: dict[int, float] | None = None) -> list[tuple[float, int, bytes]]:
    """Return messages of timers with a little jitter, and a counter each; `changed`: other periods from BEGIN_S on."""
    random = np.random.default_rng(3)
    rows = []
    for identifier, period_s in PERIODS_S.items():
        time_s, count = float(random.random()) * period_s, 0
        while time_s < duration_s:
            rows.append(
                (time_s + float(random.normal(0.0, 2e-5)), identifier, bytes([count & 15, 0, 7, 0, 1, 2, 3, 4]))
            )
            step_s = (changed or {}).get(identifier, period_s) if time_s >= BEGIN_S else period_s
            time_s, count = time_s + step_s, count + 1
    return sorted(rows)


def _flood(times: float, payload: bytes | None = None) -> list[tuple[float, int, bytes]]:
    random, time_s, rows = np.random.default_rng(4), BEGIN_S, []
    while time_s < END_S:
        rows.append((time_s, TARGET, payload or random.bytes(8)))
        time_s += PERIODS_S[TARGET] / times * float(random.uniform(0.7, 1.3))
    return rows


def _messages(rows: list[tuple[float, int, bytes]]) -> Messages:
    times, identifiers, payloads = zip(*sorted(rows), strict=True)
    return make_messages(np.array(times), list(identifiers), np.array([list(one) for one in payloads]))


def _judged(content: Messages | list[tuple[float, int, bytes]], cuts: tuple[int, ...] = ()) -> Judged:
    messages = _messages(content) if isinstance(content, list) else content
    stream = OnlineWindows(WindowConfig(size=20, stride=20))
    borders = zip((0, *cuts), (*cuts, len(messages)), strict=True)
    found = [stream.feed(messages.select(slice(start, stop))) for start, stop in borders]
    return Judged(*(np.concatenate([part[name] for part in found]) for name in ("suspicion", "suspect")))


def _times(rows: list[tuple[float, int, bytes]]) -> NDArray[np.float64]:
    """Return when the windows end."""
    return np.array([time_s for time_s, *_ in sorted(rows)][19::20])


@pytest.mark.parametrize("times", [3, 8, 20])
@pytest.mark.parametrize("payload", [None, bytes(8)])
def test_a_flood_of_a_known_identifier_is_found_named_and_over_when_it_ends(times: int, payload: bytes | None) -> None:
    rows = _car() + _flood(times, payload)
    found, ends = _judged(rows), _times(rows)
    attack = (ends > BEGIN_S + 0.5) & (ends < END_S)
    assert found.is_alarm[attack].mean() > 0.95
    assert set(found.suspect[found.is_alarm]) == {TARGET}
    assert not found.is_alarm[(ends < BEGIN_S) | (ends > END_S + 1.0)].any()


def test_a_flood_teaches_nothing_so_that_the_next_one_is_found_as_well() -> None:
    second = [(time_s + 15.0, identifier, payload) for time_s, identifier, payload in _flood(3, bytes(8))]
    rows = _car() + _flood(3, bytes(8)) + second
    found, ends = _judged(rows), _times(rows)
    assert found.is_alarm[(ends > BEGIN_S + 15.5) & (ends < END_S + 15.0)].mean() > 0.95
    assert not found.is_alarm[ends > END_S + 16.0].any()


def test_an_identifier_that_alone_falls_silent_is_named_and_soon_no_news() -> None:
    rows = [row for row in _car() if row[1] != TARGET or row[0] < BEGIN_S]
    found, ends = _judged(rows), _times(rows)
    assert found.is_alarm[(ends > BEGIN_S + 0.5) & (ends < BEGIN_S + 4.5)].all()
    assert set(found.reason[found.is_alarm]) == {Reason.SILENT}
    assert set(found.suspect[found.is_alarm]) == {TARGET}
    assert not found.is_alarm[(ends < BEGIN_S) | (ends > BEGIN_S + 7.0)].any()


def test_an_irregular_attacker_who_sends_as_often_as_the_car_is_no_new_period_however_long_he_sends() -> None:
    random, times = np.random.default_rng(1), [BEGIN_S]
    while times[-1] < 200.0:
        times.append(times[-1] + float(random.gamma(16.0, PERIODS_S[TARGET] / 16.0)))
    rows = _car(200.0) + [(time_s, TARGET, bytes(8)) for time_s in times[:-1]]
    judged, ends = _judged(rows), _times(rows)
    assert judged.is_alarm[ends > BEGIN_S + 1.0].mean() > 0.95


@pytest.mark.parametrize("end", [BEGIN_S + 0.8, END_S])
def test_many_identifiers_that_come_once_add_up_though_each_is_another_one(end: float) -> None:
    random = np.random.default_rng(5)
    times = np.arange(BEGIN_S, end, 0.002)
    found = _car() + [(float(time_s), int(random.integers(0, 2048)), random.bytes(8)) for time_s in times]
    judged, ends = _judged(found), _times(found)
    assert judged.is_alarm[(ends > BEGIN_S + 0.4) & (ends < end)].mean() > 0.95
    assert Reason.STRANGERS in judged.reason
    assert not judged.is_alarm[(ends < BEGIN_S) | (ends > end + 1.0)].any()


def test_an_identifier_whose_payloads_often_change_by_much_does_not_keep_the_alarm_after_a_flood() -> None:
    random = np.random.default_rng(6)

    def busy(rows: list[tuple[float, int, bytes]]) -> list[tuple[float, int, bytes]]:
        return [(*row[:2], random.bytes(5) + bytes(3)) if row[1] == TARGET else row for row in rows]

    rows = busy(_car()) + _flood(3)
    judged, ends = _judged(rows), _times(rows)
    assert judged.is_alarm[(ends > BEGIN_S + 0.5) & (ends < END_S)].mean() > 0.95
    assert not judged.is_alarm[(ends < BEGIN_S) | (ends > END_S + 1.0)].any()


@pytest.mark.parametrize("off_s", [0.5, -0.5, 3600.0])
def test_time_stamps_of_few_messages_that_are_off_hide_no_silence(off_s: float) -> None:
    rows = [row for row in _car() if row[1] != TARGET or row[0] < BEGIN_S]
    ends = _times(rows)
    messages = _messages(rows)
    is_off = (np.random.default_rng(7).random(len(messages)) < 0.02) & (messages.timestamp > 1.0)
    messages.timestamp = messages.timestamp + np.where(is_off, off_s, 0.0)
    is_alarm = _judged(messages).is_alarm
    assert is_alarm[(ends > BEGIN_S + 0.5) & (ends < BEGIN_S + 4.5)].mean() > 0.95
    assert not is_alarm[(ends < BEGIN_S) | (ends > BEGIN_S + 7.0)].any()


def test_first_messages_at_the_same_time_hide_no_attack() -> None:
    rows = _car() + _flood(8)
    messages = _messages(rows)
    messages.timestamp[: 2 * len(PERIODS_S)] = messages.timestamp[0]
    ends = _times(rows)
    assert _judged(messages).is_alarm[(ends > BEGIN_S + 0.5) & (ends < END_S)].mean() > 0.95


def test_units_that_fall_asleep_together_are_no_news() -> None:
    assert not _judged([row for row in _car() if row[1] < 0x153 or row[0] < BEGIN_S]).is_alarm.any()


@pytest.mark.parametrize("period_s", [0.01, 0.04])
def test_a_clean_new_period_is_a_state_of_the_car(period_s: float) -> None:
    rows = _car(changed={TARGET: period_s})
    found, ends = _judged(rows), _times(rows)
    assert not found.is_alarm[(ends < BEGIN_S) | (ends > BEGIN_S + 1.5)].any()


def test_a_car_without_attacks_raises_no_alarm_on_any_simulated_vehicle() -> None:
    for seed in range(4):
        messages = simulate(make_vehicle(seed), 20.0, seed=seed)
        assert not (windows_to_graphs(messages, WindowConfig())["suspicion"] != Reason.NOTHING).any(), seed


def test_pieces_are_judged_as_the_whole() -> None:
    rows = _car() + _flood(8)
    whole, pieces = _judged(rows), _judged(rows, (7, 4000, 4001, 9000))
    for one, other in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_column_of_a_whole_recording_and_of_chosen_windows_is_that_of_a_stream() -> None:
    messages, config = _messages(_car() + _flood(8)), WindowConfig(size=50, stride=20)
    stream = OnlineWindows(config)
    whole, pieces = windows_to_graphs(messages, config), [stream.feed(messages), stream.finish()]
    chosen = np.flatnonzero(np.arange(whole.num_graphs) % 3 == 1)
    for name in ("suspicion", "suspect"):
        np.testing.assert_array_equal(np.concatenate([part[name] for part in pieces]), whole[name])
        np.testing.assert_array_equal(windows_to_graphs(messages, config, chosen)[name], whole[name][chosen])
    assert set(whole["suspect"]) == {-1, TARGET}


def test_every_window_that_is_an_alarm_names_an_identifier() -> None:
    judged = _judged(_car() + _flood(8))
    assert ((judged.suspect >= 0) == judged.is_alarm).all()


def _delayed(since: float, until: float, more: int) -> list[tuple[float, int, bytes]]:
    """Return a drive in which what TARGET would have sent from `since` on comes at `until`, and some more with it."""
    rows = [row for row in _car() if row[1] != TARGET or not since <= row[0] < until]
    missing = [row for row in _car() if row[1] == TARGET and since <= row[0] < until]
    times = until + np.cumsum(np.random.default_rng(8).uniform(0.001, 0.004, len(missing) + more))
    return rows + [(time_s, TARGET, missing[0][2]) for time_s in times.tolist()]


def test_messages_that_waited_in_their_senders_queue_are_no_flood_but_no_more_than_those() -> None:
    assert not _judged(_delayed(30.0, 30.2, more=0)).is_alarm.any()
    assert not _judged(_delayed(30.0, 30.1, more=0)).is_alarm.any()
    found = _judged(_delayed(30.0, 30.2, more=30))
    assert found.is_alarm.any()
    assert set(found.suspect[found.is_alarm]) == {TARGET}


@pytest.mark.parametrize("num_bytes", [1, 2, 3, 8])
def test_random_payloads_in_place_of_its_own_are_found_of_short_identifiers_too(num_bytes: int) -> None:
    random = np.random.default_rng(5)
    usual = bytes([7, 0, 1, 2, 3, 4, 5, 6])[:num_bytes]
    rows = [
        (time_s, one, payload if one != TARGET else random.bytes(num_bytes) if BEGIN_S < time_s < END_S else usual)
        for time_s, one, payload in _car()
    ]
    times, identifiers, payloads = zip(*sorted(rows), strict=True)
    messages = make_messages(
        np.array(times),
        list(identifiers),
        np.array([list(one.ljust(8, b"\0")) for one in payloads]),
        length=np.array([len(one) for one in payloads], np.uint8),
    )
    found, ends = _judged(messages), _times(rows)
    inside = (ends > BEGIN_S + 1.0) & (ends < END_S)
    assert found.is_alarm[inside].mean() > 0.5
    assert set(found.suspect[found.is_alarm]) == {TARGET}
    assert not found.is_alarm[ends < BEGIN_S].any()


def test_a_value_that_swings_around_a_carry_changes_many_bits_and_is_no_forgery() -> None:
    random = np.random.default_rng(6)

    def payload(time_s: float) -> bytes:
        value = 0x1000 + int(random.integers(-5, 6)) if time_s > BEGIN_S else 0x1234 + int(random.integers(0, 4))
        return 2 * value.to_bytes(2, "big") + bytes(4)

    rows = [(time_s, one, payload(time_s) if one == TARGET else data) for time_s, one, data in _car()]
    assert not _judged(rows).is_alarm.any()


def _trucks_units(begin_s: float, num: int, seed: int) -> list[tuple[float, int, bytes]]:
    """Return first messages of units with addresses of their own: each claims it, and then speaks to others."""
    random = np.random.default_rng(seed)
    times = begin_s + np.sort(random.uniform(0.0, 0.5, 3 * num))
    units = [address for address in range(num) for _ in range(3)]
    groups = [0x18EEFF00, 0x1CECFF00, 0x1CEBFF00]
    return [(float(time_s), groups[place % 3] + units[place], bytes(8)) for place, time_s in enumerate(times)]


def test_units_of_a_truck_that_claim_addresses_are_no_fuzzing_but_random_identifiers_of_29_bits_are() -> None:
    claims = _trucks_units(20.0, 1, seed=1) + _trucks_units(40.0, 30, seed=2)
    assert not _judged(_car() + claims).is_alarm.any()
    random = np.random.default_rng(3)
    fuzzed = [(float(one), int(random.integers(1 << 29)), bytes(8)) for one in np.arange(40.0, 42.0, 0.005)]
    rows = _car() + fuzzed
    found, ends = _judged(rows), _times(rows)
    assert found.is_alarm[(ends > 40.5) & (ends < 42.0)].mean() > 0.95
    assert not found.is_alarm[ends < 40.0].any()


def test_who_sends_late_and_then_at_once_again_and_again_floods() -> None:
    random = np.random.default_rng(9)
    rows = [row for row in _car() if row[1] != TARGET or not 20.0 <= row[0] < 30.0]
    for begin_s in np.arange(20.0, 30.0, 0.5):
        times = begin_s + 0.25 + np.cumsum(random.uniform(0.0002, 0.0006, 24))
        rows += [(time_s, TARGET, bytes(8)) for time_s in times.tolist()]
    found, ends = _judged(rows), _times(rows)
    assert found.is_alarm[(ends > 21.0) & (ends < 30.0)].mean() > 0.3


def test_what_was_sent_late_and_at_once_hides_no_later_silence() -> None:
    rows = [row for row in _delayed(20.0, 20.2, more=0) if row[1] != TARGET or row[0] < 40.0]
    found, ends = _judged(rows), _times(rows)
    assert found.is_alarm[(ends > 40.5) & (ends < 44.0)].mean() > 0.95
    assert not found.is_alarm[ends < 40.0].any()


@pytest.mark.parametrize("num_lost", [1, 2, 3])
def test_messages_that_are_lost_once_hide_no_later_silence(num_lost: int) -> None:
    own = [time_s for time_s, one, _ in _car() if one == TARGET and time_s > 20.0]
    lost = set(own[:num_lost])
    rows = [row for row in _car() if row[1] != TARGET or (row[0] not in lost and row[0] < 40.0)]
    found, ends = _judged(rows), _times(rows)
    assert found.is_alarm[(ends > 40.5) & (ends < 44.0)].mean() > 0.95
    assert not found.is_alarm[ends < 40.0].any()


def test_all_bits_flipped_are_many() -> None:
    rows = [
        (time_s, one, (b"\xff" if place % 2 else b"\x00") * 8 if one == TARGET and time_s > BEGIN_S else data)
        for place, (time_s, one, data) in enumerate(row for row in _car() if row[1] == TARGET)
    ]
    rows += [row for row in _car() if row[1] != TARGET]
    found, ends = _judged(sorted(rows)), _times(rows)
    assert found.is_alarm[(ends > BEGIN_S + 0.5) & (ends < BEGIN_S + 5.0)].mean() > 0.9


def _sampled(rows: list[tuple[float, int, bytes]], share: float = 0.4) -> list[tuple[float, int, bytes]]:
    """Return what a recorder keeps that misses most messages, so that no identifier comes evenly."""
    keeps = np.random.default_rng(5).random(len(rows)) < share
    return [row for row, is_kept in zip(rows, keeps, strict=True) if is_kept]


def test_a_bus_that_is_fuller_than_ever_is_an_alarm_where_no_identifier_comes_evenly() -> None:
    rows = _sampled(_car())
    replayed = [(time_s + 20.0, one, data) for time_s, one, data in rows if BEGIN_S - 20.0 <= time_s < END_S - 20.0]
    assert not _judged(rows).is_alarm.any()
    found, ends = _judged(rows + replayed), _times(rows + replayed)
    assert found.is_alarm[(ends > BEGIN_S + 1.0) & (ends < END_S)].mean() > 0.95
    assert not found.is_alarm[(ends < BEGIN_S) | (ends > END_S + 1.0)].any()


def test_units_that_wake_fill_the_bus_without_an_alarm() -> None:
    sleepers = (0x0A1, 0x13B, 0x220)
    rows = _sampled([row for row in _car() if row[1] not in sleepers or not 12.0 < row[0] < 25.0], 0.7)
    assert not _judged(rows).is_alarm.any()


def test_a_bus_that_stays_fuller_becomes_a_state_of_the_car() -> None:
    rows = _sampled(_car(140.0, {one: 0.6 * period_s for one, period_s in PERIODS_S.items()}))
    found, ends = _judged(rows), _times(rows)
    assert found.is_alarm[(ends > BEGIN_S + 1.0) & (ends < BEGIN_S + 20.0)].any()
    assert not found.is_alarm[ends > BEGIN_S + 80.0].any()


def test_replays_of_the_bus_teach_nothing_however_often_they_come() -> None:
    rows = _sampled(_car(100.0))
    begins = np.arange(30.0, 90.0, 10.0)
    replayed = [
        (begin + time_s - 10.0, one, data) for begin in begins for time_s, one, data in rows if 10.0 <= time_s < 13.0
    ]
    found, ends = _judged(rows + replayed), _times(rows + replayed)
    for begin in begins:
        assert found.is_alarm[(ends > begin + 0.5) & (ends < begin + 3.0)].mean() > 0.7


def test_helpers_that_wake_do_not_let_a_replay_pass() -> None:
    rows = _sampled(_car())
    helpers = [
        (25.0 + place / 9.0 + count / 6.0, 0x700 + place, bytes(8)) for place in range(4) for count in range(200)
    ]
    replayed = [
        (time_s + shift, one, data) for shift in (20.0, 20.003) for time_s, one, data in rows if 10.0 <= time_s < 20.0
    ]
    found, ends = _judged(rows + helpers + replayed), _times(rows + helpers + replayed)
    assert not found.is_alarm[ends < BEGIN_S].any()
    assert found.is_alarm[(ends > BEGIN_S + 1.0) & (ends < END_S)].mean() > 0.9


def test_a_few_identifiers_that_come_once_do_not_let_a_flood_pass() -> None:
    once = [(15.0 + 0.001 * place, 0x600 + place, bytes(8)) for place in range(16)] + [(15.112, 0x620, bytes(8))]
    rows = _car() + once + _flood(3.0)
    found, ends = _judged(rows), _times(rows)
    assert found.is_alarm[(ends > BEGIN_S + 0.5) & (ends < END_S)].mean() > 0.95
