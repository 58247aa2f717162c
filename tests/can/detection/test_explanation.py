"""The identifiers that an alarm names are the attacked ones, with the reason that the attack gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kdgat.can.detection.explanation import NETWORK, OVERDUE, PAYLOAD, TOO_EARLY, explain
from kdgat.can.detection.loading import load_detector
from kdgat.can.detection.watch import Watch
from kdgat.can.evaluation.evidence import clock_margins, evidence_of
from kdgat.can.evaluation.explained import first_rank
from kdgat.can.evaluation.untrained import ClockBounds
from kdgat.can.models.names import CLOCK
from kdgat.canbus import windows_to_graphs
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
    clock = load_detector(None, CLOCK)
    graphs = windows_to_graphs(messages, WINDOWS)
    verdicts = clock.decide(graphs)
    window = np.repeat(np.arange(graphs.num_graphs), graphs.node_counts)
    evidence = evidence_of(graphs.x, verdicts.node_logit, graphs["message_count"][window])
    is_attacked = graphs["node_y"] == 1
    rank = first_rank(evidence, is_attacked, window, graphs.num_graphs)
    has_attacked = np.bincount(window, is_attacked, graphs.num_graphs) > 0
    assert np.mean(rank[verdicts.is_alarm & has_attacked] == 1) > 0.9
    alarms = list(Watch(clock).run([messages]))
    longest = max(alarms, key=lambda alarm: alarm.num_windows)
    assert longest.guess == guess
    if reason is not None:
        assert reason in longest.suspects[0].reasons


def test_forged_payloads_are_a_reason() -> None:
    alarms = list(Watch(load_detector(None, CLOCK)).run([drive("malfunction", duration_s=25.0)]))
    assert PAYLOAD in {reason for alarm in alarms for reason in alarm.suspects[0].reasons}


@pytest.mark.parametrize("attack", ["malfunction", "replay", "suppression", "masquerade", "DoS", "fuzzing"])
@pytest.mark.parametrize("bounds", [ClockBounds(), ClockBounds(early=0.4, overdue=0.7)])
def test_what_the_clock_says_of_a_window_is_what_it_says_of_the_identifier_that_is_named(
    attack: str, bounds: ClockBounds
) -> None:
    messages = drive(attack, duration_s=25.0)
    clock, graphs = replace(load_detector(None, CLOCK), clock=bounds), windows_to_graphs(messages, WINDOWS)
    verdicts = clock.decide(graphs)
    for window in np.flatnonzero(verdicts.by_clock).tolist():
        nodes = slice(int(graphs.node_ptr[window]), int(graphs.node_ptr[window + 1]))
        early, overdue = clock_margins(graphs.x[nodes])
        assert early.max() == pytest.approx(graphs["early"][window], rel=1e-3) or graphs["early"][window] < bounds.early
        assert (
            overdue.max() == pytest.approx(graphs["overdue"][window], rel=1e-3)
            or graphs["overdue"][window] < bounds.overdue
        )
        first = explain(graphs, verdicts, window).suspects[0]
        assert NETWORK not in first.reasons
        if not explain(graphs, verdicts, window).signs:
            assert {TOO_EARLY, OVERDUE} & set(first.reasons)
