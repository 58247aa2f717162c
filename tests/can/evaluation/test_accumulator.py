"""Evidence that adds up: its false alarms on exchangeable evidence, what it finds, and how it goes on."""

import numpy as np
import pytest
from numpy.typing import NDArray

from kdgat.can.evaluation.accumulation import Accumulation, Reference
from kdgat.can.evaluation.accumulator import HOLD_S, MAX_IDENTIFIERS, Accumulated, Accumulator, bet_of

WINDOW_S = 0.05
IDENTIFIERS = np.arange(100, 110, dtype=np.int32)

Scores = NDArray[np.float64]  # [G, identifiers]


def reference() -> Reference:
    found = Reference.of_benign([np.random.default_rng(0).normal(size=50_000)])
    assert found is not None
    return found


def accumulator(hours: float = 24.0) -> Accumulator:
    return Accumulator(Accumulation(reference=reference(), hours_between_false_episodes=hours))


def add(chosen: Accumulator, scores: Scores, first: int = 0) -> Accumulated:
    num_windows, num_ids = scores.shape
    times = WINDOW_S * np.arange(first, first + num_windows + 1, dtype=np.float64)
    pointers = num_ids * np.arange(num_windows + 1)
    identifiers = np.resize(IDENTIFIERS, num_ids) if num_ids <= len(IDENTIFIERS) else np.arange(num_ids, dtype=np.int32)
    return chosen.add(times[:-1], times[1:], pointers, np.tile(identifiers, num_windows), scores.ravel())


def benign(num_windows: int, seed: int = 1) -> Scores:
    return np.random.default_rng(seed).normal(size=(num_windows, len(IDENTIFIERS)))


def alarms_in(found: Accumulated) -> int:
    return int(np.count_nonzero(np.diff(np.concatenate(([0], found.is_alarm.astype(int)))) == 1))


def test_bets_pay_at_most_one_on_average_where_shares_are_uniform() -> None:
    shares = np.exp(-np.linspace(0.0, 690.0, 100_000))
    paid = np.array([bet_of(share) for share in shares[:-1]])
    assert 0.98 < np.sum(-np.diff(shares) * paid) <= 1.0


@pytest.mark.parametrize("limit_s", [2.0, 20.0])
def test_exchangeable_evidence_alarms_no_more_often_than_designed(limit_s: float) -> None:
    num_windows = 40_000
    found = add(accumulator(limit_s / 3600.0), benign(num_windows))
    assert alarms_in(found) <= num_windows * WINDOW_S / limit_s


def test_evidence_of_unlike_identifiers_alarms_no_more_often_than_designed() -> None:
    num_windows, limit_s = 40_000, 20.0
    scores = benign(num_windows)
    scores[:, 3] += 2.0  # always a suspicious one: fifty times the share of the reference
    assert alarms_in(add(accumulator(limit_s / 3600.0), scores)) <= num_windows * WINDOW_S / limit_s


def test_evidence_that_repeats_within_neighbouring_blocks_alarms_no_more_often_than_designed() -> None:
    num_windows, limit_s = 40_000, 20.0
    scores = np.repeat(benign(num_windows // 16), 16, axis=0)  # the same for 0.8 s
    assert alarms_in(add(accumulator(limit_s / 3600.0), scores)) <= num_windows * WINDOW_S / limit_s


def test_a_weak_shift_that_persists_is_found_within_seconds_with_its_identifier() -> None:
    scores, begin = benign(4000), 3000
    shifted = np.random.default_rng(2).random(1000) < 0.6  # in most windows, never beyond what benign nodes reach
    scores[begin:, 4] = np.where(shifted, 3.6, scores[begin:, 4])
    found = add(accumulator(), scores)
    assert not found.is_alarm[:begin].any()
    first = int(np.flatnonzero(found.is_alarm)[0])
    assert (first - begin) * WINDOW_S < 10.0
    assert found.identifier[first].tolist() == [104, -1, -1, -1, -1]
    assert begin * WINDOW_S - 1.0 <= found.since_s[first, 0] <= begin * WINDOW_S + 1.0
    assert 0.4 * (first - begin) < found.num_windows[first, 0] <= first - begin + 5


def test_a_single_window_is_no_alarm_however_suspicious() -> None:
    scores = benign(2000)
    scores[1000, 4] = 50.0
    assert not add(accumulator(), scores).is_alarm.any()


def test_an_alarm_ends_soon_after_the_evidence_and_the_next_one_has_to_add_up_again() -> None:
    scores = benign(6000)
    scores[2000:2400, 4] = scores[4000:4400, 4] = 3.6
    found = add(accumulator(), scores)
    assert alarms_in(found) == 2
    hold = int(HOLD_S / WINDOW_S) + 2
    assert found.is_alarm[2399]
    assert not found.is_alarm[2400 + hold : 4000 + 10].any()


def test_what_comes_again_takes_more_evidence_than_the_first_time() -> None:
    scores = benign(8000)
    scores[2000:2400, 4] = scores[3000:3400, 4] = 3.6
    found = add(accumulator(), scores)
    first, second = (int(np.argmax(found.is_alarm[begin : begin + 400])) for begin in (2000, 3000))
    assert 0 < first < second or not found.is_alarm[3000:3400].any()


def test_what_is_always_so_becomes_a_habit() -> None:
    scores = benign(20_000)
    scores[2000:, 4] = 3.6  # from then on: at first an attack, an hour later how the vehicle is
    found = add(accumulator(), scores)
    assert found.is_alarm[2300:3000].any()
    assert not found.is_alarm[6000:].any()


@pytest.mark.parametrize("pieces", [[1, 2, 996], [1] * 60])
def test_windows_in_pieces_add_up_as_at_once(pieces: list[int]) -> None:
    scores = benign(1500)
    scores[300:, 2] = 3.6
    whole = add(accumulator(), scores)
    assert whole.is_alarm.any()
    streamed, begin, parts = accumulator(), 0, []
    for length in [*pieces, 1500 - sum(pieces)]:
        parts.append(add(streamed, scores[begin : begin + length], begin))
        begin += length
    for name, values in whole._asdict().items():
        found = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(found, values)


def test_any_number_of_identifiers_takes_bounded_memory() -> None:
    chosen = accumulator()
    found = add(chosen, np.random.default_rng(0).normal(size=(2, MAX_IDENTIFIERS + 500)))
    assert not found.is_alarm.any()


def test_gaps_and_times_that_run_backwards_are_no_evidence() -> None:
    chosen = accumulator(1.0 / 3600.0)
    add(chosen, benign(100))
    assert not add(chosen, benign(100), first=10**7).is_alarm.any()
    assert not add(chosen, benign(100), first=0).is_alarm.any()


def test_a_reference_takes_the_source_of_the_higher_scores_and_needs_enough_nodes() -> None:
    random = np.random.default_rng(0)
    calm, restless = random.normal(size=5000), random.normal(1.0, 1.0, 5000)
    both = Reference.of_benign([calm, restless])
    alone = Reference.of_benign([restless])
    assert both is not None
    assert alone is not None
    assert both.scores == alone.scores
    assert Reference.of_benign([calm, restless[:100]]) is None
    assert Reference.of_benign([]) is None
