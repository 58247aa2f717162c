"""Numbers of identifiers: in order of appearance, the same for pieces, and bounded whatever is sent."""

from __future__ import annotations

import mmap
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdgat.canbus.features.memory import LASTING, PASSING, IdentifierNumbers, _slot, untouched, with_room


def test_numbers_follow_the_order_of_appearance() -> None:
    numbered = IdentifierNumbers().number(np.array([7, 3, 7, 0x1FFFFFFF, 0, 3], np.uint32))
    assert numbered.number.tolist() == [0, 1, 0, 2, 3, 1]
    assert numbered.is_new.tolist() == [True, True, False, True, True, False]
    assert numbered.num_numbers == 4


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 60_000), max_size=6), seed=st.integers(0, 100))
def test_pieces_get_the_numbers_of_the_whole(cuts: list[int], seed: int) -> None:
    """More identifiers than there are numbers, some of them again and again."""
    random = np.random.default_rng(seed)
    identifier = random.integers(0, 1 << 29, 60_000).astype(np.uint32)
    identifier[::7] = random.integers(0, 30_000, len(identifier[::7]))
    whole = IdentifierNumbers().number(identifier)
    numbers = IdentifierNumbers()
    bounds = [0, *sorted(cuts), len(identifier)]
    parts = [numbers.number(identifier[start:stop]) for start, stop in pairwise(bounds)]
    np.testing.assert_array_equal(np.concatenate([part.number for part in parts]), whole.number)
    np.testing.assert_array_equal(np.concatenate([part.is_new for part in parts]), whole.is_new)
    assert parts[-1].num_numbers == whole.num_numbers == LASTING + PASSING


def test_a_flood_of_identifiers_agrees_with_plain_python() -> None:
    random = np.random.default_rng(0)
    identifier = random.integers(0, 40_000, 120_000).astype(np.uint32)
    known: dict[int, int] = {}
    owners: dict[int, int] = {}
    expected, new = [], 0
    for one in identifier.tolist():
        if one not in known:
            number = new if new < LASTING + PASSING else LASTING + (new - LASTING) % PASSING
            known.pop(owners.get(number, -1), None)
            known[one], owners[number] = number, one
            new += 1
        expected.append(known[one])
    assert IdentifierNumbers().number(identifier).number.tolist() == expected


def test_what_came_before_a_flood_keeps_its_number_and_what_comes_after_is_learned() -> None:
    numbers = IdentifierNumbers()
    before = numbers.number(np.arange(300, dtype=np.uint32)).number
    numbers.number(np.arange(1 << 20, (1 << 20) + 100_000, dtype=np.uint32))
    assert numbers.number(np.arange(300, dtype=np.uint32)).number.tolist() == before.tolist()
    after = numbers.number(np.array([5000, 1, 5000, 2, 5000], np.uint32))
    assert after.is_new.tolist() == [True, False, False, False, False]
    assert len(set(after.number[::2].tolist())) == 1
    assert after.num_numbers == LASTING + PASSING


def test_identifiers_chosen_to_share_a_place_in_one_table_do_not_in_another() -> None:
    """Each search would pass over all of them otherwise: an attacker knows the program, not the seed."""
    mask, tables = 0xFFFF, (np.uint64(1), np.uint64(2))
    candidates = range(1 << 18)
    chosen = [one for one in candidates if _slot(np.int64(one), mask, tables[0]) < 256]
    assert len(chosen) > 500
    elsewhere = {_slot(np.int64(one), mask, tables[1]) for one in chosen}
    assert sum(slot < 256 for slot in elsewhere) < 0.05 * len(chosen)
    assert len(elsewhere) > 0.9 * len(chosen)
    assert IdentifierNumbers()._seed != IdentifierNumbers()._seed


def test_room_is_made_once_and_only_what_is_written_to_takes_memory() -> None:
    def new(num_ids: int) -> tuple[NDArray[np.float64]]:
        return (untouched((num_ids, 4096)),)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    columns, before = new(0), resident_bytes()
    columns = with_room(columns, 1, new)
    assert with_room(columns, LASTING + PASSING, new) is columns
    columns[0][7] = 1.0
    assert columns[0][6:9, 5].tolist() == [0.0, 1.0, 0.0]
    assert columns[0].nbytes > 500e6
    assert resident_bytes() - before < 10e6
