"""The identifiers that an alarm names are the attacked ones, with the reason that the attack gives."""

from __future__ import annotations

import pytest

from kdgat.can.detection.explanation import OVERDUE, PAYLOAD, TOO_EARLY, hit_rates
from kdgat.can.detection.loading import load_detector
from kdgat.can.detection.watch import Watch
from kdgat.can.windows.graphs import build_graphs
from tests.can.detection.untrained import WINDOWS, drive

CASES = {  # attack -> guess, a reason of the most suspicious identifier
    "malfunction": ("injected messages", TOO_EARLY),
    "replay": ("injected messages", TOO_EARLY),
    "suppression": ("suppressed messages", OVERDUE),
    "DoS": ("flood", None),
}


@pytest.mark.parametrize("attack", CASES)
def test_the_clock_names_the_attacked_identifier_and_the_kind(attack: str) -> None:
    messages = drive(attack, duration_s=25.0)
    guess, reason = CASES[attack]
    clock = load_detector(None)
    graphs = build_graphs(messages, WINDOWS)
    hits = hit_rates(graphs, clock.decide(graphs))
    assert hits[1] is not None
    assert hits[1] > 0.9
    assert hits[3] is not None
    assert hits[3] >= hits[1]
    alarms = list(Watch(clock).run([messages]))
    longest = max(alarms, key=lambda alarm: alarm.num_windows)
    assert longest.guess == guess
    if reason is not None:
        assert reason in longest.suspects[0].reasons


def test_forged_payloads_are_a_reason() -> None:
    alarms = list(Watch(load_detector(None)).run([drive("malfunction", duration_s=25.0)]))
    assert PAYLOAD in {reason for alarm in alarms for reason in alarm.suspects[0].reasons}


def test_a_recording_without_attacks_has_no_hits() -> None:
    clock, graphs = load_detector(None), build_graphs(drive(None), WINDOWS)
    assert hit_rates(graphs, clock.decide(graphs)) == {1: None, 3: None}
