"""Virtual vehicles under attack: reproducible, honestly labelled, possible on a real bus; typos are refused."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdgat.base import ConfigurationError, validate_config
from kdgat.base.configuration import apply_overrides
from kdgat.canbus import InjectionConfig, Messages, inject_attacks
from kdgat.canbus.injection import clean_stretches
from kdgat.canbus.injection.injection import Injected
from kdgat.canbus.settings import ATTACKS
from tests.canbus.traffic import bus_traffic, make_messages

SHORT = {"duration_s": (4.0, 6.0)}
NUM_VARIANTS = 6
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def recordings() -> list[Messages]:
    return [bus_traffic(num_ids=15, duration_s=12.0, seed=seed, name=f"drive-{seed}") for seed in range(3)]


def _only(attack: str, **values: Any) -> InjectionConfig:
    return InjectionConfig(**{**SHORT, "attack_weights": {attack: 1.0}, "clean_fraction": 0.0, **values})


@pytest.fixture(scope="module")
def attacked(recordings: list[Messages]) -> dict[str, list[Injected]]:
    """Each attack on vehicles as they were recorded."""
    return {
        attack: [inject_attacks(recordings, _only(attack, original_fraction=1.0), 5, k) for k in range(NUM_VARIANTS)]
        for attack in ATTACKS
    }


def _content(messages: Messages, rows: slice | np.ndarray[Any, Any] = slice(None)) -> Counter[tuple[int, bytes]]:
    part = messages.select(rows)
    return Counter(zip(part.identifier.tolist(), map(bytes, part.payload), strict=True))


def test_same_seed_and_variant_give_the_same_traffic(recordings: list[Messages]) -> None:
    config = InjectionConfig(**SHORT)
    hashes = [inject_attacks(recordings, config, 1, variant).messages.content_hash() for variant in range(8)]
    again = [inject_attacks(recordings, config, 1, variant).messages.content_hash() for variant in reversed(range(8))]
    assert again[::-1] == hashes
    assert len(set(hashes)) == 8
    assert inject_attacks(recordings, config, 2, 0).messages.content_hash() not in hashes


def test_order_of_the_weights_changes_nothing(recordings: list[Messages]) -> None:
    config = InjectionConfig(**SHORT)
    turned = InjectionConfig(**SHORT, attack_weights=dict(reversed(config.attack_weights.items())))
    for variant in range(6):
        one, other = (inject_attacks(recordings, either, 1, variant) for either in (config, turned))
        assert one.messages.content_hash() == other.messages.content_hash()


@pytest.mark.processes
def test_same_traffic_in_another_process(recordings: list[Messages]) -> None:
    code = (
        "from kdgat.canbus.injection.injection import inject_attacks\n"
        "from kdgat.canbus.settings import InjectionConfig\n"
        "from tests.canbus.traffic import bus_traffic\n"
        "recordings = [bus_traffic(num_ids=15, duration_s=12.0, seed=seed) for seed in range(3)]\n"
        "config = InjectionConfig(duration_s=(4.0, 6.0))\n"
        "print(*(inject_attacks(recordings, config, 1, k).messages.content_hash() for k in range(3)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    here = [inject_attacks(recordings, InjectionConfig(**SHORT), 1, k).messages.content_hash() for k in range(3)]
    assert result.stdout.split() == here


def test_source_recordings_are_not_changed(recordings: list[Messages]) -> None:
    hashes = [recording.content_hash() for recording in recordings]
    for variant in range(10):
        inject_attacks(recordings, InjectionConfig(**SHORT, clean_fraction=0.0), 3, variant)
    assert [recording.content_hash() for recording in recordings] == hashes
    assert not any(recording.label.any() for recording in recordings)


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_happens_and_time_runs_forward(attacked: dict[str, list[Injected]], attack: str) -> None:
    for injected in attacked[attack]:
        assert [text.partition(":")[0] for text in injected.attacks] == [attack]
        assert np.all(np.diff(injected.messages.timestamp) > 0.0)
        assert set(np.unique(injected.messages.label).tolist()) <= {0, 1}
        unused = np.arange(8) >= injected.messages.length[:, None]
        assert not injected.messages.payload[unused].any()
    assert sum(injected.messages.num_attacks > 0 for injected in attacked[attack]) >= NUM_VARIANTS - 1
    assert all(injected.messages.num_attacks < len(injected.messages) for injected in attacked[attack])


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack not in ("suppression", "masquerade")])
def test_labels_mark_exactly_the_injected_messages(
    recordings: list[Messages], attacked: dict[str, list[Injected]], attack: str
) -> None:
    """What is not labelled is a stretch of the recording, complete but for frames that a flood kept off the bus."""
    for injected in attacked[attack]:
        source = next(recording for recording in recordings if injected.messages.name.endswith(f"-of-{recording.name}"))
        benign = injected.messages.select(injected.messages.label == 0)
        assert not _content(benign) - _content(source)
        for identifier in np.unique(benign.identifier):
            kept = list(map(bytes, benign.payload[benign.identifier == identifier]))
            said = list(map(bytes, source.payload[source.identifier == identifier]))
            if attack in ("dos", "fuzzing"):  # some are lost; those that are left keep their order
                follow = iter(said)
                assert all(payload in follow for payload in kept)
            else:
                assert any(said[k : k + len(kept)] == kept for k in range(len(said)))


def test_without_an_attack_the_traffic_is_a_stretch_of_the_recording(recordings: list[Messages]) -> None:
    config = InjectionConfig(**SHORT, original_fraction=1.0, clean_fraction=1.0)
    for variant in range(6):
        injected = inject_attacks(recordings, config, 2, variant)
        source = next(recording for recording in recordings if injected.messages.name.endswith(recording.name))
        assert injected.attacks == []
        assert injected.messages.num_attacks == 0
        assert "-clean-of-" in injected.messages.name
        assert injected.changes == ["recording as it is"]
        assert not _content(injected.messages) - _content(source)
        assert 3.9 < injected.messages.duration_s < 6.1


def test_suppression_and_masquerade_take_frames_away(attacked: dict[str, list[Injected]]) -> None:
    for injected in attacked["suppression"]:
        messages = injected.messages
        assert len(np.unique(messages.identifier[messages.label == 1])) <= 1
        for campaign in (campaign for campaign in messages.campaigns if campaign.silences):
            own = messages.timestamp[messages.identifier == campaign.identifiers[0]]
            inside = (own > campaign.begin_s - 0.05) & (own < campaign.end_s + 0.05)
            assert inside.sum() <= 1 + 0.8 * (campaign.end_s - campaign.begin_s) / np.median(np.diff(own)) + 2
    for injected in attacked["masquerade"]:
        messages = injected.messages
        for identifier in np.unique(messages.identifier[messages.label == 1]):
            own = messages.identifier == identifier
            gaps = np.diff(messages.timestamp[own])
            # the forger keeps the victim's pace: nothing is sent beside what it replaces
            assert np.quantile(gaps, 0.02) > 0.5 * np.median(gaps)


def test_flood_has_one_id_and_forgers_use_ids_of_the_vehicle(attacked: dict[str, list[Injected]]) -> None:
    for injected in attacked["dos"]:
        assert len(np.unique(injected.messages.identifier[injected.messages.label == 1])) == 1
    for attack in ("spoofing", "systematic", "sparse", "replay"):
        for injected in attacked[attack]:
            messages = injected.messages
            assert np.isin(messages.identifier[messages.label == 1], messages.identifier[messages.label == 0]).all()
    num_targets = [
        len(np.unique(injected.messages.identifier[injected.messages.label == 1]))
        for injected in attacked["systematic"]
    ]
    assert max(num_targets) > 1


def test_virtual_vehicles_differ_from_what_was_recorded(recordings: list[Messages]) -> None:
    config = InjectionConfig(**SHORT, original_fraction=0.0, clean_fraction=1.0, interleave_fraction=0.5)
    changes: set[str] = set()
    for variant in range(25):
        injected = inject_attacks(recordings, config, 4, variant)
        changes.update(injected.changes)
        assert injected.messages.num_attacks == 0
        assert np.all(np.diff(injected.messages.timestamp) > 0.0)
        if "ids renamed" not in injected.changes and "second bus interleaved" not in injected.changes:
            assert np.isin(injected.messages.identifier, np.concatenate([r.identifier for r in recordings])).all()
    assert {"ids renamed", "ids dropped", "clock scaled", "jitter", "second bus interleaved"} <= changes
    assert "pauses of the bus" in changes


def test_pauses_of_a_virtual_bus_are_no_attack(recordings: list[Messages]) -> None:
    config = InjectionConfig(**SHORT, original_fraction=0.0, clean_fraction=1.0)
    paused = [made for made in (inject_attacks(recordings, config, 4, k) for k in range(30)) if _is_paused(made)]
    assert len(paused) >= 3
    for injected in paused:
        assert np.diff(injected.messages.timestamp).max() > 0.1
        assert not injected.messages.campaigns


def _is_paused(injected: Injected) -> bool:
    return "pauses of the bus" in injected.changes


def test_pause_longer_than_a_virtual_recording_is_survived() -> None:
    messages = bus_traffic(duration_s=3.0)
    messages.timestamp[len(messages) // 2 :] += 1000.0
    config = InjectionConfig(**SHORT, original_fraction=1.0)
    assert all(len(inject_attacks([messages], config, 0, variant).messages) for variant in range(8))


def test_a_handful_of_messages_is_survived() -> None:
    messages = make_messages([0.0, 0.01, 0.02, 0.03], [1, 2, 1, 2])
    config = InjectionConfig(**SHORT, original_fraction=0.0, interleave_fraction=1.0)
    for variant in range(60):
        assert len(inject_attacks([messages], config, 0, variant).messages) <= 20


def test_clean_stretches_lie_between_the_attacks() -> None:
    label = np.zeros(1000, int)
    label[[0, 300, 301, 950]] = 1
    messages = make_messages(np.arange(1000) * 0.01, 1, label=label)
    stretches = clean_stretches(messages, 1.0)
    assert [len(stretch) for stretch in stretches] == [299, 648]
    assert not any(stretch.label.any() for stretch in stretches)
    (whole,) = clean_stretches(make_messages(np.arange(1000) * 0.01, 1), 1.0)
    assert len(whole) == 1000
    assert clean_stretches(make_messages([], 0), 1.0) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attack_weights": {"fuzing": 1.0}}, "attack_weights: unknown key 'fuzing': did you mean 'fuzzing'"),
        ({"attack_weights": {"dos": -1.0, "replay": 2.0}}, r"attack_weights.dos=-1.0: give a number from 0 up"),
        ({"attack_weights": {"dos": float("nan")}}, r"attack_weights.dos=nan: give a number from 0 up"),
        ({"attack_weights": {"dos": 0.0}}, "give at least one attack a weight above 0"),
        ({"attack_weights": {}}, "give at least one attack a weight above 0"),
        ({"duration_s": [45.0, 15.0]}, r"duration_s=\[45.0, 15.0\]: expected \[shortest, longest\]"),
        ({"duration_s": [0.0, 15.0]}, "0 < shortest <= longest"),
        ({"variants": 0}, "variants=0"),
    ],
)
def test_wrong_configuration_is_refused_with_key_value_and_fix(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        validate_config(InjectionConfig, values)


def test_attacks_are_chosen_by_override(recordings: list[Messages]) -> None:
    config = InjectionConfig(**SHORT, clean_fraction=0.0)
    off = [f"attack_weights.{attack}=0" for attack in ATTACKS if attack not in ("dos", "sparse")]
    chosen = apply_overrides(config, off)
    drawn = {inject_attacks(recordings, chosen, 0, variant).attacks[0].partition(":")[0] for variant in range(12)}
    assert drawn == {"dos", "sparse"}
    with pytest.raises(ConfigurationError, match="attack_weights"):
        apply_overrides(config, ["attack_weights.doss=1"])
