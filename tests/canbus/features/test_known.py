"""What a profile adds to the habits of identifiers: from the first message on, and for single messages."""

from __future__ import annotations

import itertools
from functools import cache, reduce
from operator import xor

import numpy as np
import pytest
from numpy.typing import NDArray

from kdgat.canbus import OnlineWindows, WindowConfig
from kdgat.canbus.features.suspicion import Known, Reason, kind_of_reason
from kdgat.canbus.profile import learn_profile
from tests.canbus.profile.car import PERIODS_S, SPEED, Row, drive, rows_of
from tests.canbus.traffic import Judged

SIZE = 20


@cache
def _known() -> Known:
    return learn_profile([("a", drive(rows_of(120.0, 1)))]).known()


def _judged(rows: list[Row], known: Known | None, cuts: tuple[int, ...] = ()) -> Judged:
    messages = drive(rows)
    stream = OnlineWindows(WindowConfig(size=SIZE, stride=SIZE), known)
    borders = zip((0, *cuts), (*cuts, len(messages)), strict=True)
    found = [stream.feed(messages.select(slice(start, stop))) for start, stop in borders]
    return Judged(*(np.concatenate([part[name] for part in found]) for name in ("suspicion", "suspect")))


def _ends(rows: list[Row]) -> NDArray[np.float64]:
    return np.array([time_s for time_s, *_ in sorted(rows)][SIZE - 1 :: SIZE])


def _reasons(found: Judged) -> set[tuple[int, int]]:
    kinds = [kind_of_reason(reason) for reason in found.reason[found.is_alarm].tolist()]
    pairs = zip(kinds, found.suspect[found.is_alarm].tolist(), strict=True)
    return set(pairs)


def test_another_drive_of_the_car_is_no_alarm() -> None:
    assert not _judged(rows_of(60.0, 7), _known()).is_alarm.any()


def test_a_single_forged_value_is_found_and_nothing_beside_it() -> None:
    rows = rows_of(20.0, 7)
    own = [place for place, row in enumerate(rows) if row[1] == SPEED]
    times = []
    for place in own[100::100]:
        time_s, identifier, payload = rows[place]
        forged = (int.from_bytes(payload[:2], "big") + 20000) % 40000
        rows[place] = (time_s, identifier, forged.to_bytes(2, "big") + payload[2:])
        times.append(time_s)
    found, ends = _judged(rows, _known()), _ends(rows)
    assert not _judged(rows, None).is_alarm.any()
    assert all(found.is_alarm[(ends > time_s) & (ends < time_s + 0.1)].any() for time_s in times)
    near = np.min(np.abs(ends[:, None] - np.array(times)), axis=1) < 0.15
    assert not found.is_alarm[~near].any()
    assert _reasons(found) <= {(Reason.JUMP, SPEED), (Reason.MANY_BITS, SPEED)}


def test_a_single_random_payload_is_found() -> None:
    rows = rows_of(20.0, 7)
    place = [place for place, row in enumerate(rows) if row[1] == SPEED][500]
    before = rows[place][2]
    rows[place] = (*rows[place][:2], bytes(one ^ 0xFF for one in before))
    found = _judged(rows, _known())
    assert _reasons(found) <= {(Reason.JUMP, SPEED), (Reason.MANY_BITS, SPEED)}
    assert found.is_alarm.any()


def test_a_masquerade_whose_counter_stands_still_is_found() -> None:
    rows = rows_of(20.0, 7)
    constant = next(payload for _, identifier, payload in rows if identifier == SPEED)
    attacked = [(time, one, constant if one == SPEED and 8.0 < time < 14.0 else data) for time, one, data in rows]
    found, ends = _judged(attacked, _known()), _ends(attacked)
    assert found.is_alarm[(ends > 8.5) & (ends < 14.0)].mean() > 0.95
    assert (Reason.STILL, SPEED) in _reasons(found)
    assert not found.is_alarm[(ends < 8.0) | (ends > 14.5)].any()


def test_an_identifier_that_never_comes_is_missed_but_not_a_whole_unit() -> None:
    rows = [row for row in rows_of(20.0, 7) if row[1] != SPEED]
    found, ends = _judged(rows, _known()), _ends(rows)
    assert found.is_alarm[(ends > 2.7) & (ends < 6.5)].all()
    assert _reasons(found) == {(Reason.SILENT, SPEED)}
    assert not found.is_alarm[ends > 8.0].any()  # it is no news for ever
    unit = [row for row in rows_of(20.0, 7) if row[1] not in (SPEED, 0x220)]
    assert not _judged(unit, _known()).is_alarm.any()


def test_a_flood_is_found_from_the_first_second_on() -> None:
    random = np.random.default_rng(2)
    times = np.cumsum(random.uniform(0.004, 0.008, 1000))
    rows = rows_of(20.0, 7) + [(float(one), SPEED, bytes(8)) for one in times if one < 3.0]
    found, ends = _judged(rows, _known()), _ends(rows)
    assert found.is_alarm[(ends > 0.3) & (ends < 3.0)].mean() > 0.9
    assert any(
        reason in (Reason.TOO_MANY, Reason.MANY_BITS, Reason.JUMP) and one == SPEED for reason, one in _reasons(found)
    )
    assert not found.is_alarm[ends > 4.0].any()


def test_one_message_a_second_of_an_unknown_identifier_is_found_once_it_is_no_chance() -> None:
    times = np.arange(0.5, 60.0, 1.0) + np.random.default_rng(1).uniform(-0.3, 0.3, 60)
    rows = rows_of(60.0, 7) + [(float(one), 0x188, bytes(8)) for one in times]
    found, ends = _judged(rows, _known()), _ends(rows)
    late = [one for one in times if one > 15.0]
    assert np.mean([found.is_alarm[np.searchsorted(ends, one)] for one in late]) > 0.9
    assert _reasons(found) == {(Reason.NEW, 0x188)}
    few = rows_of(60.0, 7) + [(float(one), 0x7DF, bytes(8)) for one in times[:4]]
    assert not _judged(few, _known()).is_alarm.any()


def test_pieces_are_judged_as_the_whole() -> None:
    rows = rows_of(20.0, 7)
    place = [place for place, row in enumerate(rows) if row[1] == SPEED][500]
    rows[place] = (*rows[place][:2], bytes(8))
    whole, pieces = _judged(rows, _known()), _judged(rows, _known(), cuts=(1, 777, 1778))
    for one, other in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_a_profile_knows_stays_in_a_long_drive() -> None:
    """What did not come again for minutes is forgotten, but not what the profile has."""
    rows = rows_of(300.0, 7)
    own = [place for place, row in enumerate(rows) if row[1] == SPEED]
    payload = rows[own[-200]][2]
    forged = (int.from_bytes(payload[:2], "big") + 20000) % 40000
    rows[own[-200]] = (*rows[own[-200]][:2], forged.to_bytes(2, "big") + payload[2:])
    found = _judged(rows, _known())
    assert {one for _, one in _reasons(found)} == {SPEED}
    assert 1 <= found.is_alarm.sum() <= 3
    assert len(PERIODS_S) == len(_known().identifier)


def test_an_identifier_that_is_nearly_even_is_judged_as_without_a_profile() -> None:
    def late(rows: list[Row]) -> list[Row]:
        own = [place for place, row in enumerate(rows) if row[1] == 0x220]
        for place in own[::25]:  # two of twenty-five intervals
            rows[place] = (rows[place][0] + 0.02, *rows[place][1:])
        return rows

    known = learn_profile([("a", drive(late(rows_of(120.0, 1))))]).known()
    random = np.random.default_rng(0)
    rows = [
        (time_s, one, random.bytes(8) if one == 0x220 and 20.0 < time_s < 30.0 else data)
        for time_s, one, data in late(rows_of(40.0, 7))
    ]
    for profile in (None, known):
        found, ends = _judged(rows, profile), _ends(rows)
        assert found.is_alarm[(ends > 21.0) & (ends < 30.0)].mean() > 0.9


def test_a_value_that_is_forged_with_many_bits_is_found_as_one_with_few() -> None:
    for mask in (0, 0xFF, 0x0F):
        rows = rows_of(20.0, 7)
        place = [place for place, row in enumerate(rows) if row[1] == SPEED][500]
        payload = rows[place][2]
        forged = ((int.from_bytes(payload[:2], "big") + 20000) % 40000).to_bytes(2, "big")
        rows[place] = (*rows[place][:2], forged + payload[2:3] + bytes(one ^ mask for one in payload[3:]))
        assert _judged(rows, _known()).is_alarm.any(), mask


def test_a_flood_of_an_unknown_identifier_does_not_make_single_ones_suspicious_for_minutes() -> None:
    flood = [(20.0 + 0.005 * count, 0x600, bytes(8)) for count in range(2000)]
    seldom = [(35.0 + 11.0 * count, 0x601 + count, bytes(8)) for count in range(20)]
    rows = rows_of(260.0, 7) + flood + seldom
    found, ends = _judged(rows, _known()), _ends(rows)
    assert found.is_alarm[(ends > 20.5) & (ends < 25.0)].mean() > 0.95
    assert not found.is_alarm[ends > 80.0].any()


def test_a_log_that_is_shorter_than_a_window_is_judged_by_the_profile_too() -> None:
    rows = rows_of(2.0, 7)
    own = [place for place, row in enumerate(rows) if row[1] == SPEED]
    payload = rows[own[50]][2]
    forged = (int.from_bytes(payload[:2], "big") + 20000) % 40000
    rows[own[50]] = (*rows[own[50]][:2], forged.to_bytes(2, "big") + payload[2:])
    stream = OnlineWindows(WindowConfig(size=1000, stride=1000), _known())
    stream.feed(drive(rows))
    (reason,), (suspect,) = (stream.finish()[name] for name in ("suspicion", "suspect"))
    assert (kind_of_reason(int(reason)), suspect) in ((Reason.JUMP, SPEED), (Reason.MANY_BITS, SPEED))


def test_a_state_in_which_values_move_faster_than_in_the_profile_is_no_alarm() -> None:
    def shaken(rows: list[Row]) -> list[Row]:
        random = np.random.default_rng(4)
        for place, (time_s, one, data) in enumerate(rows):
            if one == SPEED and 8.0 < time_s < 12.0:
                speed = 20_000 + int(random.normal(0.0, 250.0))
                rows[place] = (time_s, one, speed.to_bytes(2, "big") + data[2:])
        return rows

    found = _judged(shaken(rows_of(20.0, 7)), _known())
    assert found.is_alarm.sum() <= 2  # the first of them may be one


def test_unknown_identifiers_of_a_unit_that_wakes_are_no_alarm_but_not_any_number_of_them() -> None:
    random = np.random.default_rng(5)
    events = [5.0 + float(one) for one in (0.0, 0.3, 1.2, 2.1, 3.5, 20.0, 20.4, 21.0)]
    woken = [(one + float(random.uniform(0.0, 0.05)), 0x700 + place, bytes(8)) for one in events for place in range(6)]
    assert not _judged(rows_of(60.0, 7) + woken, _known()).is_alarm.any()
    many = [(one, 0x400 + place, bytes(8)) for place, one in enumerate(np.arange(5.0, 15.0, 0.05).tolist())]
    assert _judged(rows_of(20.0, 7) + many, _known()).is_alarm.any()


def test_units_that_wake_in_a_state_that_the_profile_has_not_met_are_news_but_not_to_the_end() -> None:
    fast = [
        (20.0 + 0.03 * place + 0.0021 * count, 0x700 + place, bytes(8)) for place in range(5) for count in range(5000)
    ]
    bursts = [  # three messages at once, twenty times a second, of each of eight identifiers
        (20.0 + 0.05 * count + 0.0013 * part + 0.0001 * place, 0x710 + place, bytes(8))
        for place in range(8)
        for count in range(400)
        for part in range(3)
    ]
    for woken in (fast, bursts):
        rows = rows_of(50.0, 7) + woken
        found, ends = _judged(rows, _known()), _ends(rows)
        assert not found.is_alarm[ends > 21.0].any()
    alone = fast[:5000]
    rows = rows_of(50.0, 7) + alone
    found, ends = _judged(rows, _known()), _ends(rows)
    assert found.is_alarm[(ends > 21.0) & (ends < alone[-1][0])].mean() > 0.9


def test_a_flood_of_an_unknown_identifier_is_an_alarm_while_its_messages_come() -> None:
    bursts = [(begin + 0.0003 * count, 0x001, bytes(8)) for begin in np.arange(5.0, 15.0, 0.5) for count in range(60)]
    rows = rows_of(20.0, 7) + [(float(time_s), one, data) for time_s, one, data in bursts]
    found, ends = _judged(rows, _known()), _ends(rows)
    begins = np.concatenate([[0.0], ends[:-1]])
    holds_any = np.array(
        [any(begin < time_s <= end for time_s, *_ in bursts) for begin, end in zip(begins, ends, strict=True)]
    )
    assert found.is_alarm[holds_any].mean() > 0.9
    assert found.is_alarm[~holds_any].mean() < 0.05
    assert {one for _, one in _reasons(found)} == {0x001}


def test_an_alarm_names_the_bytes_of_a_value_whose_low_byte_comes_first() -> None:
    def turned(rows: list[Row]) -> list[Row]:
        return [(time_s, one, data[1:2] + data[:1] + data[2:]) for time_s, one, data in rows]

    known = learn_profile([("a", drive(turned(rows_of(120.0, 1))))]).known()
    rows = turned(rows_of(20.0, 7))
    place = [place for place, row in enumerate(rows) if row[1] == SPEED][500]
    payload = rows[place][2]
    forged = (int.from_bytes(payload[:2], "little") + 20000) % 40000
    rows[place] = (*rows[place][:2], forged.to_bytes(2, "little") + payload[2:])
    found = _judged(rows, known)
    (reason,) = set(found.reason[found.is_alarm].tolist())
    assert kind_of_reason(reason) == Reason.JUMP
    place, bits = known.field_of(SPEED, reason)
    assert place == "bytes 0 to 1, low byte first"
    assert len(bits) >= 14
    assert bits <= set(range(16))


def _sealed(rows: list[Row]) -> list[Row]:
    """Return rows whose last byte is the exclusive or of the others."""
    return [(time_s, one, data[:7] + bytes([reduce(xor, data[:7])])) for time_s, one, data in rows]


def test_a_wrong_checksum_is_an_alarm_of_that_message_alone() -> None:
    known = learn_profile([("a", drive(_sealed(rows_of(120.0, 1))))]).known()
    rows = _sealed(rows_of(20.0, 7))
    assert not _judged(rows, known).is_alarm.any()
    places = [place for place, row in enumerate(rows) if row[1] == SPEED][500:600:20]
    for place in places:
        data = rows[place][2]
        rows[place] = (*rows[place][:2], data[:4] + bytes([data[4] ^ 1]) + data[5:])
    found = _judged(rows, known)
    assert _reasons(found) == {(Reason.CHECKSUM, SPEED)}
    assert found.is_alarm.sum() == len({place // SIZE for place in places})


def test_a_replay_breaks_the_counter_where_it_begins_and_where_it_ends() -> None:
    rows = rows_of(30.0, 7)
    own = [place for place, row in enumerate(rows) if row[1] == SPEED]
    for place, earlier in zip(own[703:1000], own[100:400], strict=False):
        rows[place] = (*rows[place][:2], rows[earlier][2])
    found, ends = _judged(rows, _known()), _ends(rows)
    assert (Reason.BREAK, SPEED) in _reasons(found)
    borders = [rows[own[703]][0], rows[own[1000]][0]]
    times = ends[found.is_alarm]
    assert all(np.abs(times - border).min() < 0.1 for border in borders)
    assert all(min(abs(one - border) for border in borders) < 0.1 for one in times)


def test_lost_messages_break_no_counter() -> None:
    rows = rows_of(30.0, 7)
    lost = set(np.random.default_rng(3).choice(len(rows), 200, replace=False).tolist())
    assert not _judged([row for place, row in enumerate(rows) if place not in lost], _known()).is_alarm.any()


def test_a_counter_that_counts_no_longer_is_soon_no_news() -> None:
    rows = [
        (time_s, one, data[:2] + bytes([data[2] ^ (16 * (place % 2))]) + data[3:] if one == SPEED else data)
        for place, (time_s, one, data) in enumerate(rows_of(20.0, 7))
    ]
    found, ends = _judged(rows, _known()), _ends(rows)
    assert found.is_alarm[ends < 1.0].any()
    assert not found.is_alarm[ends > 1.0].any()


def test_a_constant_in_place_of_payloads_that_always_change_is_found_without_a_counter() -> None:
    def noisy(rows: list[Row]) -> list[Row]:
        return [
            (time_s, one, bytes([data[3], data[3] ^ 0x55, place & 1]) + bytes(5))
            for place, (time_s, one, data) in enumerate(rows)
        ]

    rows = noisy(rows_of(120.0, 1))
    changing = [
        (time_s, one, data[:2] + bytes([place % 251]) + data[3:]) for place, (time_s, one, data) in enumerate(rows)
    ]
    known = learn_profile([("a", drive(changing))]).known()
    judged = [
        (time_s, one, data[:2] + bytes([place % 251]) + data[3:])
        for place, (time_s, one, data) in enumerate(noisy(rows_of(30.0, 7)))
    ]
    assert not _judged(judged, known).is_alarm.any()
    constant = [
        (time_s, one, bytes(8) if one == SPEED and 10.0 < time_s < 20.0 else data) for time_s, one, data in judged
    ]
    found, ends = _judged(constant, known), _ends(constant)
    assert (Reason.STILL, SPEED) in _reasons(found)
    assert found.is_alarm[(ends > 10.5) & (ends < 19.5)].mean() > 0.9


def test_a_counter_that_stands_still_while_other_bits_move_is_found() -> None:
    rows = [
        (time_s, one, data[:2] + bytes([0x70]) + data[3:] if one == SPEED and 8.0 < time_s < 14.0 else data)
        for time_s, one, data in rows_of(20.0, 7)
    ]
    found, ends = _judged(rows, _known()), _ends(rows)
    assert found.is_alarm[(ends > 8.5) & (ends < 14.0)].mean() > 0.95


@pytest.mark.parametrize(("num_identifiers", "a_second"), [(1, 40), (2, 5), (2, 15), (20, 30), (30, 100)])
def test_unknown_identifiers_hide_neither_by_coming_often_nor_by_coming_together(
    num_identifiers: int, a_second: int
) -> None:
    random = np.random.default_rng(5)
    times = 20.0 + np.cumsum(random.exponential(1.0 / a_second, 20 * a_second))
    unknown = [
        (float(one) + 0.003 * place, 0x600 + place, bytes(8))
        for one in times[times < 40.0]
        for place in ((0, 1) if num_identifiers == 2 else (int(random.integers(num_identifiers)),))
    ]
    rows = rows_of(45.0, 7) + unknown
    found, ends = _judged(rows, _known()), _ends(rows)
    assert found.is_alarm[(ends > 30.0) & (ends < 40.0)].mean() > 0.3
    assert not found.is_alarm[(ends < 20.0) | (ends > 41.0)].any()


def test_a_large_step_hides_no_value_that_is_far_off() -> None:
    rows = rows_of(20.0, 7)
    own = [place for place, row in enumerate(rows) if row[1] == SPEED]
    step = 1.75 * max(
        abs(int.from_bytes(rows[after][2][:2], "big") - int.from_bytes(rows[place][2][:2], "big"))
        for place, after in itertools.pairwise(own)
    )
    for count, place in enumerate(own[400:700]):
        time_s, one, data = rows[place]
        value = int.from_bytes(data[:2], "big") + int(step)  # from the opening on
        if count and count % 20 == 0:
            value = (value + 20000) % 40000
        rows[place] = (time_s, one, value.to_bytes(2, "big") + data[2:])
    found, ends = _judged(rows, _known()), _ends(rows)
    times = [rows[place][0] for place in own[420:700:20]]
    assert np.mean([found.is_alarm[(ends > one) & (ends < one + 0.1)].any() for one in times]) > 0.9


def test_a_flood_in_the_first_half_second_is_found_though_a_recorder_may_deliver_what_waited() -> None:
    flood = [(0.05 + 0.001 * count, identifier, bytes(8)) for count in range(450) for identifier in (SPEED,)]
    rows = rows_of(5.0, 7) + flood
    found, ends = _judged(rows, _known()), _ends(rows)
    assert found.is_alarm[(ends > 0.15) & (ends < 0.5)].mean() > 0.9


def test_a_payload_of_another_length_does_not_evade_the_checksum() -> None:
    known = learn_profile([("a", drive(_sealed(rows_of(120.0, 1))))]).known()
    messages = drive(_sealed(rows_of(20.0, 7)))
    place = np.flatnonzero(messages.identifier == SPEED)[500]
    messages.length[place] = 7
    stream = OnlineWindows(WindowConfig(size=SIZE, stride=SIZE), known)
    found = stream.feed(messages)
    assert {kind_of_reason(one) for one in found["suspicion"].tolist() if one} == {Reason.CHECKSUM}
