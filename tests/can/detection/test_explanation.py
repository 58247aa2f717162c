"""The identifiers that an alarm names are the attacked ones, with the reason that the attack gives."""

from __future__ import annotations

import numpy as np
import pytest

from kdgat.can.detection.explanation import OVERDUE, PAYLOAD, TOO_EARLY, TOO_MANY, explain
from kdgat.can.detection.loading import load_detector
from kdgat.can.detection.watch import Watch
from kdgat.canbus import windows_to_graphs
from tests.can.detection.untrained import WINDOWS, drive

CASES = {  # attack -> guess, reasons of which the most suspicious identifier has one
    "malfunction": ("injected messages", {TOO_EARLY, TOO_MANY}),
    "replay": ("injected messages", {TOO_EARLY, TOO_MANY}),
    "suppression": ("suppressed messages", {OVERDUE}),
    "DoS": ("flood", {TOO_MANY}),
}


@pytest.mark.parametrize("attack", CASES)
def test_the_habits_name_the_attacked_identifier_and_the_kind(attack: str) -> None:
    messages = drive(attack, duration_s=25.0)
    guess, reasons = CASES[attack]
    habits, graphs = load_detector(None), windows_to_graphs(messages, WINDOWS)
    attacked = set(graphs["node_id"][graphs["node_y"] == 1].tolist())
    verdicts = habits.decide(graphs)
    named = [explain(graphs, verdicts, window).suspects for window in np.flatnonzero(verdicts.by_habits).tolist()]
    first = [suspects[0].identifier in attacked for suspects in named if suspects]
    assert np.mean(first) > 0.9
    alarms = list(Watch(habits).run([messages]))
    longest = max(alarms, key=lambda alarm: alarm.num_windows)
    assert longest.guess == guess
    assert reasons & set(longest.suspects[0].reasons)


def test_forged_payloads_are_a_reason() -> None:
    alarms = list(Watch(load_detector(None)).run([drive("malfunction", duration_s=25.0)]))
    assert PAYLOAD in {reason for alarm in alarms for reason in alarm.suspects[0].reasons}


def test_an_identifier_that_has_no_message_in_a_window_is_named_for_its_silence() -> None:
    graphs = windows_to_graphs(drive("suppression", duration_s=25.0), WINDOWS)
    verdicts = load_detector(None).decide(graphs)
    for window in np.flatnonzero(graphs["suspect"] >= 0).tolist():
        first = explain(graphs, verdicts, window).suspects[0]
        assert first.identifier == graphs["suspect"][window]
        assert first.reasons[0] == OVERDUE
