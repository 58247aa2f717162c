"""The pool of injected windows: what it keeps of each attack, and what it counts."""

from __future__ import annotations

import numpy as np

from kdgat.canbus import InjectionConfig, WindowConfig, inject_attacks, windows_to_graphs
from kdgat.canbus.injection import InjectedPool
from tests.canbus.traffic import bus_traffic

WINDOWS = WindowConfig()
EVERYTHING = {"kept_fraction": 1.0, "duration_s": (15.0, 20.0), "clean_fraction": 0.0, "original_fraction": 1.0}
LONGEST_PERIODS = 32.0


def test_windows_of_a_long_silence_are_kept() -> None:
    traffic = [bus_traffic(num_ids=15, duration_s=30.0, seed=seed, name=f"drive-{seed}") for seed in range(2)]
    config = InjectionConfig(**EVERYTHING, attack_weights={"suppression": 1.0})
    num_long = 0
    for variant, kept in enumerate(InjectedPool(traffic, config, WINDOWS, 3, range(24))):
        messages = inject_attacks(traffic, config, 3, variant).messages
        graphs = windows_to_graphs(messages, WINDOWS)
        kept_starts = set(kept["first_message"].tolist())
        for campaign in messages.campaigns:
            if not campaign.silences:
                continue
            own = messages.timestamp[messages.identifier == campaign.identifiers[0]]
            period_s = np.median(np.diff(own))
            last_s = own[own < campaign.begin_s].max(initial=-np.inf)
            following_s = own[own >= campaign.begin_s].min(initial=np.inf)
            is_long = (graphs["end_time"] > last_s + (LONGEST_PERIODS + 4.0) * period_s) & (
                graphs["end_time"] < min(following_s, campaign.end_s, last_s + 30.0)
            )
            num_long += int(is_long.sum())
            assert set(graphs["first_message"][is_long].tolist()) <= kept_starts
    assert num_long > 10


def test_every_vehicle_is_as_likely_however_much_there_is_of_it() -> None:
    lengths = (60.0, 60.0, 6.0)
    traffic = [bus_traffic(num_ids=8, duration_s=length, name=str(number)) for number, length in enumerate(lengths)]
    config = InjectionConfig(duration_s=(1.0, 2.0), original_fraction=1.0, clean_fraction=1.0)
    names = [
        inject_attacks(traffic, config, 0, variant, vehicles=["kia", "kia", "leaf"]).messages.name[-1]
        for variant in range(200)
    ]
    assert 80 < names.count("2") < 120
    assert abs(names.count("0") - names.count("1")) < 40


def test_the_same_pool_in_two_parts_is_the_same() -> None:
    traffic = [bus_traffic(num_ids=15, duration_s=20.0)]
    config = InjectionConfig(duration_s=(4.0, 6.0))
    whole = [graphs["first_message"].tolist() for graphs in InjectedPool(traffic, config, WINDOWS, 1, range(4))]
    parts = [
        graphs["first_message"].tolist()
        for variants in (range(2), range(2, 4))
        for graphs in InjectedPool(traffic, config, WINDOWS, 1, variants)
    ]
    assert whole == parts


def test_counts_are_of_what_is_kept() -> None:
    config = InjectionConfig(duration_s=(4.0, 6.0), attack_weights={"fuzzing": 1.0})
    pool = InjectedPool([bus_traffic(num_ids=15, duration_s=20.0)], config, WINDOWS, 1, range(4))
    kept = list(pool)
    totals = pool.counts()["totals"]
    assert totals["windows"] == sum(graphs.num_graphs for graphs in kept)
    assert totals["attack_windows"] == sum(int(graphs["y"].sum()) for graphs in kept)
    assert set(pool.counts()["attacks"]) == {"fuzzing"}


def test_windows_have_what_the_habits_say_of_the_whole_virtual_recording() -> None:
    """Most windows are not kept, but what came before each of them is known: habits need seconds."""
    traffic = [bus_traffic(num_ids=15, duration_s=30.0, seed=seed) for seed in range(2)]
    config = InjectionConfig(**EVERYTHING | {"kept_fraction": 0.2}, attack_weights={"dos": 1.0})
    num_found = 0
    for variant, kept in enumerate(InjectedPool(traffic, config, WINDOWS, 3, range(6))):
        whole = windows_to_graphs(inject_attacks(traffic, config, 3, variant).messages, WINDOWS)
        places = np.searchsorted(whole["first_message"], kept["first_message"])
        np.testing.assert_array_equal(kept["suspicion"], whole["suspicion"][places])
        num_found += int(((kept["suspicion"] != 0) & (kept["y"] == 1)).sum())
    assert num_found > 50
