"""Synthetic CAN traffic for people without the datasets: several vehicles, six kinds of attack, labelled."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kdgat.base import UserError
from kdgat.canbus.catalog import check_dataset_name
from kdgat.canbus.logs import write_recording
from kdgat.canbus.messages import SCENARIO_SEPARATOR, AttackCampaign, Messages
from kdgat.canbus.simulation.attacks import AttackKind, Campaign, attack_vehicle, draw_campaigns
from kdgat.canbus.simulation.bus import drive_signals, fill_payloads, send, vehicle_frames
from kdgat.canbus.simulation.vehicle import Vehicle, make_vehicle

__all__ = ["SIZES", "AttackKind", "DatasetSize", "Vehicle", "make_vehicle", "simulate", "write_dataset"]

EPOCH_S = 1_700_000_000.0
"""Where recordings start; which one of several thousand hours later is drawn."""
KNOWN_VEHICLES = ("alder", "birch", "cedar")
UNKNOWN_VEHICLES = ("dogwood", "elm", "fir")
KNOWN_ATTACKS = (AttackKind.DOS, AttackKind.FUZZING, AttackKind.REPLAY)
UNKNOWN_ATTACKS = (AttackKind.MALFUNCTION, AttackKind.SUPPRESSION, AttackKind.MASQUERADE)


@dataclass(frozen=True, slots=True)
class DatasetSize:
    """State how many known (and as many unknown) vehicles there are and how long each recording is."""

    num_vehicles: int
    free_s: float
    """Seconds of each attack-free training recording."""
    attack_s: float
    """Seconds of each training recording with attacks."""
    test_s: float
    """Seconds of each test recording."""


SIZES = {
    "tiny": DatasetSize(num_vehicles=2, free_s=4.0, attack_s=2.0, test_s=2.0),
    "small": DatasetSize(num_vehicles=2, free_s=15.0, attack_s=8.0, test_s=8.0),
    "quick": DatasetSize(num_vehicles=3, free_s=40.0, attack_s=14.0, test_s=20.0),
    "full": DatasetSize(num_vehicles=3, free_s=150.0, attack_s=60.0, test_s=60.0),
}
"""Around 30, 100, 300 thousand and 1.2 million messages that train."""


def simulate(
    vehicle: Vehicle,
    duration_s: float,
    attack: AttackKind | str | None = None,
    seed: int = 0,
    *,
    scenario: str = "",
) -> Messages:
    """Simulate one drive of a vehicle, attacked in several campaigns or not at all.

    Labels are 1 for injected and forged messages; under suppression for the surviving messages of the silenced
    frames and the first one after. What is kept off the bus has no message: `campaigns` states when. The same
    arguments give the same messages in every process.

    Args:
        vehicle: by `make_vehicle`.
        duration_s: seconds of the drive, at least 1.
        attack: one of `kdgat.canbus.simulation.AttackKind`; None drives without attack.
        seed: of the drive and the attack.
        scenario: of the recording.

    Raises:
        UserError: for an unknown attack or less than a second.

    >>> messages = simulate(make_vehicle(5, "alder"), 2.0, "fuzzing", seed=1)
    >>> messages.name, messages.labelled, messages.num_attacks > 0
    ('fuzzing-alder', True, True)
    """
    if not duration_s >= 1.0:
        raise UserError(f"duration_s={duration_s}: simulate at least 1 second")
    random = np.random.default_rng([seed, vehicle.seed, 0xD21])
    signals = drive_signals(duration_s + 1.0, random)
    waiting = vehicle_frames(vehicle, duration_s, random)
    noise_seed = int(random.integers(0, 1 << 62))
    sent = send(waiting)
    fill_payloads(vehicle, sent, signals, noise_seed)
    silences: list[tuple[Campaign, tuple[int, ...]]] = []
    campaigns: list[Campaign] = []
    if attack is not None:
        kind = _attack_kind(attack)
        campaigns = draw_campaigns(duration_s, random)
        attacked = attack_vehicle(kind, vehicle, waiting, sent, campaigns, random)
        sent = send(attacked.frames)
        fill_payloads(vehicle, sent, signals, noise_seed)
        silences = attacked.relabel(sent)
    start_s = EPOCH_S + 3600.0 * float(random.integers(0, 5000))
    return Messages(
        timestamp=np.round(start_s + sent.time, 6),
        identifier=sent.identifier,
        payload=sent.payload,
        length=sent.length,
        label=sent.label,
        name=f"{attack or 'attack-free'}-{vehicle.name}",
        scenario=scenario,
        campaigns=tuple(
            AttackCampaign(str(attack), start_s + campaign.start_s, start_s + campaign.end_s, identifiers)
            for campaign, identifiers in [*((campaign, ()) for campaign in campaigns), *silences]
        ),
    )


def _attack_kind(attack: AttackKind | str) -> AttackKind:
    for kind in AttackKind:
        if str(attack).lower() == kind.value.lower():
            return kind
    raise UserError(f"attack {attack!r} is unknown: choose one of {', '.join(AttackKind)}")


def write_dataset(
    root: Path | str,
    name: str = "synthetic",
    size: str = "quick",
    seed: int = 0,
    on_recording: Callable[[Messages], None] | None = None,
) -> Path:
    """Write a whole dataset of training and test scenarios as `<root>/<name>/<scenario>__<recording>.parquet`.

    Three kinds of attack and half of the vehicles appear in the training scenarios. Return the dataset's folder.
    Raise DatasetError for a name that is no folder's, UserError for an unknown size or a folder that is not empty.
    """
    check_dataset_name(name)
    plan = _plan(_size_named(size))
    folder = Path(root) / name
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; remove it, or choose another folder or dataset name")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and moved at the end: a folder of that name always holds the whole dataset.
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        unfinished = Path(temporary) / name
        for scenario, vehicle_name, attack, duration_s in plan:
            vehicle = make_vehicle(_seed_of(seed, vehicle_name), vehicle_name)
            recording_seed = _seed_of(seed, f"{scenario}/{vehicle_name}/{attack}")
            messages = simulate(vehicle, duration_s, attack, recording_seed, scenario=scenario)
            write_recording(unfinished / f"{scenario}{SCENARIO_SEPARATOR}{messages.name}.parquet", messages)
            if on_recording is not None:
                on_recording(messages)
        unfinished.rename(folder)
    return folder


def num_recordings(size: str) -> int:
    """Count the recordings that `write_dataset` writes."""
    return len(_plan(_size_named(size)))


def _size_named(size: str) -> DatasetSize:
    if size not in SIZES:
        raise UserError(f"size={size!r} is unknown: choose one of {', '.join(SIZES)}")
    return SIZES[size]


def _plan(size: DatasetSize) -> list[tuple[str, str, AttackKind | None, float]]:
    """List (scenario, vehicle, attack, seconds) of every recording."""
    known, unknown = KNOWN_VEHICLES[: size.num_vehicles], UNKNOWN_VEHICLES[: size.num_vehicles]
    plan: list[tuple[str, str, AttackKind | None, float]] = []
    plan += [("train_01_attack_free", vehicle, None, size.free_s) for vehicle in known]
    plan += [("train_02_with_attacks", v, attack, size.attack_s) for v in known for attack in KNOWN_ATTACKS]
    tests = {
        "test_01_known_vehicle_known_attack": (known, KNOWN_ATTACKS),
        "test_02_unknown_vehicle_known_attack": (unknown, KNOWN_ATTACKS),
        "test_03_known_vehicle_unknown_attack": (known, UNKNOWN_ATTACKS),
        "test_04_unknown_vehicle_unknown_attack": (unknown, UNKNOWN_ATTACKS),
    }
    for scenario, (vehicles, attacks) in tests.items():
        plan += [(scenario, vehicles[k % len(vehicles)], attack, size.test_s) for k, attack in enumerate(attacks)]
    return plan


def _seed_of(seed: int, text: str) -> int:
    """Derive a seed from a name; unlike `hash` it is the same in every process."""
    return zlib.crc32(f"{seed}/{text}".encode())
