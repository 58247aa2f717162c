"""Synthetic traffic: reproducible, physically possible, labelled, and not solved by counting messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.canbus import (
    Messages,
    find_recordings,
    make_vehicle,
    read_recording,
    simulate,
    write_recording,
)
from kdgat.canbus.catalog import RecordingCatalog
from kdgat.canbus.simulation import AttackKind, num_recordings, write_dataset
from kdgat.canbus.simulation.bus import BITS_PER_SECOND
from kdgat.canbus.simulation.synthetic import Vehicle
from kdgat.canbus.simulation.vehicle import ByteKind

WINDOW = 100


@pytest.fixture(scope="module")
def vehicle() -> Vehicle:
    return make_vehicle(7, "oak")


@pytest.fixture(scope="module")
def clean(vehicle: Vehicle) -> Messages:
    return simulate(vehicle, 30.0, seed=1)


@pytest.fixture(scope="module")
def attacked(vehicle: Vehicle) -> dict[AttackKind, Messages]:
    return {kind: simulate(vehicle, 30.0, kind, seed=1) for kind in AttackKind}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> RecordingCatalog:
    root = tmp_path_factory.mktemp("data")
    write_dataset(root, size="small", seed=3)
    return find_recordings(root, "synthetic")


@pytest.mark.processes
def test_same_seed_gives_the_same_messages_in_another_process(vehicle: Vehicle) -> None:
    code = (
        "from kdgat.canbus.simulation.synthetic import simulate, make_vehicle\n"
        "print(*(simulate(make_vehicle(7), 5.0, kind, seed=2).content_hash() for kind in (None, 'replay')))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = [simulate(vehicle, 5.0, kind, seed=2).content_hash() for kind in (None, "replay")]
    assert result.stdout.split() == here


def test_other_seeds_give_other_vehicles_and_other_drives(vehicle: Vehicle, clean: Messages) -> None:
    assert set(make_vehicle(8).identifier.tolist()) != set(vehicle.identifier.tolist())
    assert simulate(vehicle, 30.0, seed=2).content_hash() != clean.content_hash()


def test_no_two_frames_overlap_on_the_bus(attacked: dict[AttackKind, Messages]) -> None:
    for messages in attacked.values():
        shortest_s = (47 + 8 * messages.length[1:].astype(float)) / BITS_PER_SECOND
        assert np.all(np.diff(messages.timestamp) >= shortest_s - 2e-6)


def test_every_frame_keeps_its_period_on_average(vehicle: Vehicle, clean: Messages) -> None:
    for frame in np.flatnonzero(~vehicle.is_event):
        time = clean.timestamp[clean.identifier == vehicle.identifier[frame]]
        assert np.diff(time).mean() == pytest.approx(vehicle.period_s[frame], rel=0.02)
    assert set(clean.identifier.tolist()) <= set(vehicle.identifier.tolist())
    assert vehicle.period_s.min() == 0.01
    assert vehicle.period_s[~vehicle.is_event].max() == 5.0


def test_gaps_tremble_and_lower_ids_delay_higher_ones(vehicle: Vehicle, clean: Messages) -> None:
    fast = np.flatnonzero(vehicle.period_s == 0.01)
    spreads = [np.diff(clean.timestamp[clean.identifier == vehicle.identifier[k]]).std() for k in fast]
    assert min(spreads) > 2e-5


def test_counters_count_and_checksums_check(vehicle: Vehicle, clean: Messages) -> None:
    frames, places = np.nonzero((vehicle.byte_kind == ByteKind.COUNTER) & ~vehicle.is_event[:, None])
    assert len(frames) > 3
    for frame, place in zip(frames, places, strict=True):
        modulus, high = vehicle.byte_parameters[frame, place, :2]
        values = clean.payload[clean.identifier == vehicle.identifier[frame], place].astype(int) - high
        np.testing.assert_array_equal(values, np.arange(len(values)) % modulus)
    frames, places = np.nonzero(vehicle.byte_kind == ByteKind.XOR_CHECKSUM)
    assert len(frames) > 1
    for frame, place in zip(frames, places, strict=True):
        payload = clean.payload[clean.identifier == vehicle.identifier[frame]]
        expected = np.bitwise_xor.reduce(payload[:, :place], axis=1) ^ vehicle.byte_parameters[frame, place, 0]
        np.testing.assert_array_equal(payload[:, place], expected)


def test_slow_signals_move_in_small_steps(vehicle: Vehicle, clean: Messages) -> None:
    frames, places = np.nonzero(vehicle.byte_kind == ByteKind.SIGNAL_BYTE)
    moving = 0
    for frame, place in zip(frames, places, strict=True):
        signal, scale = vehicle.byte_parameters[frame, place, :2]
        values = clean.payload[clean.identifier == vehicle.identifier[frame], place].astype(int)
        if vehicle.period_s[frame] <= 0.02 and signal % 4 != 3:
            assert np.median(np.abs(np.diff(values))) <= max(1.0, 0.1 * scale)
            moving += len(np.unique(values)) > 3
    assert moving


def test_payloads_are_zero_behind_their_length(attacked: dict[AttackKind, Messages]) -> None:
    for messages in attacked.values():
        assert not messages.payload[np.arange(8) >= messages.length[:, None]].any()


def test_attack_free_recording_has_no_attack(clean: Messages) -> None:
    assert clean.num_attacks == 0


def test_attacks_come_in_campaigns_with_quiet_times_between(attacked: dict[AttackKind, Messages]) -> None:
    for messages in attacked.values():
        time = messages.timestamp - messages.timestamp[0]
        assert messages.num_attacks > 20
        assert time[messages.label == 1][0] > 2.5
        seconds = np.bincount(time[messages.label == 1].astype(int), minlength=30) > 0
        assert np.count_nonzero(np.diff(seconds.astype(int)) == 1) >= 2
        assert seconds.mean() < 0.7


def test_flood_has_the_most_urgent_id_and_slows_the_others(
    vehicle: Vehicle, clean: Messages, attacked: dict[AttackKind, Messages]
) -> None:
    flood = attacked[AttackKind.DOS]
    assert flood.identifier[flood.label == 1].max() < vehicle.identifier.min()
    assert np.count_nonzero(flood.label == 0) <= len(clean)


def test_fuzzing_brings_ids_that_the_vehicle_does_not_have(
    vehicle: Vehicle, attacked: dict[AttackKind, Messages]
) -> None:
    fuzzing = attacked[AttackKind.FUZZING]
    assert len(set(fuzzing.identifier[fuzzing.label == 1].tolist()) - set(vehicle.identifier.tolist())) > 50


@pytest.mark.parametrize("kind", [AttackKind.MALFUNCTION, AttackKind.REPLAY])
def test_injection_adds_messages_beside_real_ones_of_the_same_id(
    vehicle: Vehicle, clean: Messages, attacked: dict[AttackKind, Messages], kind: AttackKind
) -> None:
    injected = attacked[kind]
    assert len(injected) == len(clean) + injected.num_attacks
    assert set(injected.identifier.tolist()) == set(clean.identifier.tolist())


def test_replay_repeats_what_was_said_before(attacked: dict[AttackKind, Messages]) -> None:
    replay = attacked[AttackKind.REPLAY]
    content = [(i, bytes(p)) for i, p in zip(replay.identifier.tolist(), replay.payload, strict=True)]
    said: set[tuple[int, bytes]] = set()
    for message, label in zip(content, replay.label.tolist(), strict=True):
        assert not label or message in said
        said.add(message)


def test_suppression_removes_messages_and_marks_survivors_and_the_first_one_after(
    clean: Messages, attacked: dict[AttackKind, Messages]
) -> None:
    suppressed = attacked[AttackKind.SUPPRESSION]
    assert len(suppressed) < len(clean)
    for identifier in np.unique(suppressed.identifier[suppressed.label == 1]):
        label = suppressed.label[suppressed.identifier == identifier]
        time = suppressed.timestamp[suppressed.identifier == identifier]
        usual_s = np.median(np.diff(time))
        assert np.diff(time)[label[1:] == 1].max() > 1.8 * usual_s
        # Behind a long gap stands a marked message: the first one after the silence is part of the attack.
        assert np.all(label[1:][np.diff(time) > 1.8 * usual_s] == 1)


def test_masquerade_keeps_the_number_of_messages_and_the_ids(
    clean: Messages, attacked: dict[AttackKind, Messages]
) -> None:
    masquerade = attacked[AttackKind.MASQUERADE]
    assert abs(len(masquerade) - len(clean)) <= 2
    assert set(masquerade.identifier.tolist()) == set(clean.identifier.tolist())


def test_what_is_kept_off_the_bus_is_said_by_campaigns(attacked: dict[AttackKind, Messages]) -> None:
    for kind in (AttackKind.SUPPRESSION, AttackKind.MASQUERADE):
        messages = attacked[kind]
        silences = [campaign for campaign in messages.campaigns if campaign.silences]
        assert silences
        marked = set(messages.identifier[messages.label == 1].tolist())
        assert {i for campaign in silences for i in campaign.identifiers} <= marked
        for campaign in silences:
            assert campaign.kind == kind
            own = np.isin(messages.identifier, np.array(campaign.identifiers)) & (messages.label == 1)
            inside = (messages.timestamp >= campaign.begin_s - 1e-6) & (messages.timestamp <= campaign.end_s + 1e-6)
            assert (own & inside).any()
    assert not any(campaign.silences for campaign in attacked[AttackKind.REPLAY].campaigns)


def test_campaigns_survive_a_file(attacked: dict[AttackKind, Messages], tmp_path: Path) -> None:
    for kind, messages in attacked.items():
        write_recording(tmp_path / f"{kind}.parquet", messages)
        assert read_recording(tmp_path / f"{kind}.parquet").campaigns == messages.campaigns != ()


def test_impossible_wish_is_an_error(vehicle: Vehicle) -> None:
    with pytest.raises(UserError, match="attack 'tickling' is unknown: choose one of DoS, fuzzing"):
        simulate(vehicle, 2.0, "tickling")
    for duration_s in (0.5, float("nan")):
        with pytest.raises(UserError, match=f"duration_s={duration_s}"):
            simulate(vehicle, duration_s)


def test_dataset_has_known_and_unknown_vehicles_and_attacks_in_their_scenarios(dataset: RecordingCatalog) -> None:
    assert len(dataset) == num_recordings("small") == 20
    assert not dataset.dropped
    known = {file.vehicle for file in dataset.train}
    known_attacks = {file.name.split("-")[0] for file in dataset.train if file.num_attacks}
    assert len(known) == 2
    for scenario, files in dataset.test.items():
        assert all((file.vehicle in known) == ("_known_vehicle" in scenario) for file in files)
        attacks = {file.name.split("-")[0] for file in files}
        assert (attacks <= known_attacks) == scenario.endswith("_known_attack")
        assert all(file.num_attacks for file in files)
    assert 60_000 < sum(file.num_messages for file in dataset.train) < 160_000


def _window_rates(recordings: RecordingCatalog, scenario: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    durations, labels = [], []
    for file in recordings.test[scenario]:
        messages = file.read()
        num_windows = len(messages) // WINDOW
        time = messages.timestamp[: num_windows * WINDOW].reshape(num_windows, WINDOW)
        durations.append(time[:, -1] - time[:, 0])
        labels.append(messages.label[: num_windows * WINDOW].reshape(num_windows, WINDOW).any(axis=1))
    return np.concatenate(durations), np.concatenate(labels)


def test_no_threshold_on_the_message_rate_solves_it(dataset: RecordingCatalog) -> None:
    best = {}
    for scenario in dataset.test:
        duration, label = _window_rates(dataset, scenario)
        scores = []
        for direction in (duration, -duration):
            hits = np.cumsum(label[np.argsort(direction)])
            scores.append((2 * hits / (np.arange(1, len(label) + 1) + label.sum())).max())
        best[scenario] = max(scores)
    assert min(best.values()) < 0.6
    assert best["test_04_unknown_vehicle_unknown_attack"] < 0.8


def test_unknown_size_and_occupied_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="size='huge' is unknown: choose one of tiny"):
        write_dataset(tmp_path, size="huge")
    (tmp_path / "synthetic").mkdir()
    (tmp_path / "synthetic" / "notes.md").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        write_dataset(tmp_path, size="tiny")


def test_interrupted_writing_leaves_no_dataset(tmp_path: Path) -> None:
    def interrupt(messages: Messages) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path, size="tiny", on_recording=interrupt)
    assert list(tmp_path.iterdir()) == []
