"""Recordings that are partly the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import Messages, find_recordings, make_vehicle, simulate, write_recording
from kdgat.canbus.near_copies import SKETCH, holds_much_of, kept_blocks, shared_blocks, sketch
from kdgat.canbus.simulation import AttackKind

VEHICLE = make_vehicle(5, "rowan")


@pytest.fixture(scope="module")
def drive() -> Messages:
    return simulate(VEHICLE, 30.0, seed=1)


def test_a_cut_at_any_place_is_found(drive: Messages) -> None:
    blocks = kept_blocks(drive)
    assert shared_blocks(blocks, kept_blocks(drive.select(slice(1237, 9001)))) == 1.0


def test_times_and_labels_do_not_hide_a_copy(drive: Messages) -> None:
    moved = replace(drive, timestamp=drive.timestamp * 1.01 + 5.0, label=1 - drive.label)
    np.testing.assert_array_equal(kept_blocks(moved), kept_blocks(drive))


def test_a_drive_with_attacks_added_shares_what_lies_between_them(drive: Messages) -> None:
    rows = np.sort(np.concatenate([np.arange(len(drive)), np.repeat(np.arange(4000, 8000), 3)]))
    assert 0.3 < shared_blocks(kept_blocks(drive), kept_blocks(drive.select(rows))) < 1.0


def test_two_drives_of_one_vehicle_share_nothing(drive: Messages) -> None:
    for other in (simulate(VEHICLE, 30.0, seed=2), simulate(VEHICLE, 30.0, AttackKind.REPLAY, seed=3)):
        assert shared_blocks(kept_blocks(drive), kept_blocks(other)) == 0.0


def test_less_than_a_block_is_known_by_nothing(drive: Messages) -> None:
    few = kept_blocks(drive.select(slice(0, 255)))
    assert few.size == 0
    assert shared_blocks(few, kept_blocks(drive)) == 0.0


def test_a_sketch_of_a_long_recording_finds_a_part_and_a_whole_of_it(drive: Messages) -> None:
    known = sketch(kept_blocks(drive))
    assert len(known) <= SKETCH
    assert holds_much_of(kept_blocks(drive.select(slice(2000, 12000))), known)
    assert not holds_much_of(kept_blocks(simulate(VEHICLE, 30.0, seed=2)), known)
    assert not holds_much_of(kept_blocks(drive), [])


@pytest.mark.parametrize("share", [0.02, 0.04, 0.2])
def test_a_short_cut_of_a_long_recording_is_found_by_its_sketch(share: float) -> None:
    random = np.random.default_rng(7)
    blocks = np.unique(random.integers(0, 1 << 63, 60_000).astype(np.uint64))
    begin, size = 11_000, int(share * len(blocks))
    cut = np.sort(random.permutation(blocks)[begin : begin + size])
    assert holds_much_of(cut, sketch(blocks))
    assert holds_much_of(blocks, sketch(cut))
    others = np.unique(random.integers(0, 1 << 63, size).astype(np.uint64))
    assert not holds_much_of(others, sketch(blocks))


def test_a_training_recording_that_overlaps_a_test_recording_is_left_out(drive: Messages, tmp_path: Path) -> None:
    half, fifth = len(drive) // 2, len(drive) // 5
    for name, part in {
        "train_01__apart": simulate(VEHICLE, 10.0, seed=8),
        "train_01__overlapping": drive.select(slice(0, half)),
        "train_01__touching": drive.select(slice(0, half - fifth)),
        "test_01__drive": drive.select(slice(half - fifth, len(drive))),
    }.items():
        write_recording(tmp_path / "mine" / f"{name}.parquet", part)
    found = find_recordings(tmp_path, "mine")
    assert [file.name for file in found.train] == ["apart", "touching"]
    assert [drop.recording.name for drop in found.dropped] == ["overlapping"]
    assert found.dropped[0].kept.name == "drive"
    assert "of the blocks of messages with a test recording" in found.dropped[0].reason
