"""The timer of an identifier: who takes over is out of step for as long as he stays, and the owner is known again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.features.timer import NUM_TIMER_STATE, follow

PERIOD_S = 0.01


def _sent(begin_s: float, end_s: float, phase: float = 0.0, seed: int = 0) -> NDArray[np.float64]:
    slots = np.arange(begin_s, end_s, PERIOD_S) + phase * PERIOD_S
    return np.sort(slots + np.random.default_rng(seed).normal(0.0, 0.01 * PERIOD_S, len(slots)))


def _runs(times: NDArray[np.float64], is_calm: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """Return how many messages in a row were off, after each."""
    timer = np.zeros(NUM_TIMER_STATE)
    calm = np.ones(len(times), bool) if is_calm is None else is_calm
    return np.array([follow(timer, PERIOD_S, bool(one), now)[1] for now, one in zip(times, calm, strict=True)])


def test_a_sender_with_another_timer_is_off_for_as_long_as_he_stays() -> None:
    runs = _runs(np.concatenate([_sent(0.0, 40.0), _sent(40.0, 55.0, 0.4, 1)]))
    attacked = runs[-1500:]
    assert (attacked[5:] > 3.0).mean() > 0.99


def test_the_owner_is_in_step_again_after_three_messages_however_long_he_was_silenced() -> None:
    for silenced_s in (2.0, 12.0, 50.0):
        end_s = 40.0 + silenced_s
        parts = [_sent(0.0, 40.0), _sent(40.0, end_s, 0.4, 1), _sent(end_s, end_s + 20.0, 0.0, 2)]
        runs = _runs(np.concatenate(parts))
        back = runs[-len(parts[-1]) :]
        assert back[4:].max() <= 2.0


def test_what_was_followed_for_a_short_time_is_given_up_soon() -> None:
    runs = _runs(np.concatenate([_sent(0.0, 1.0, 0.4), _sent(1.0, 20.0, 0.0, 1)]))  # it may have been the attacker's
    assert runs[-1400:].max() == 0.0


def test_a_sender_near_the_timer_pulls_it_but_little() -> None:
    parts = [_sent(0.0, 5.0), _sent(5.0, 6.0, 0.045, 1), _sent(6.0, 12.0, 0.0, 2)]
    assert _runs(np.concatenate(parts))[-600:].max() <= 2.0


def test_the_timer_stands_still_while_extra_messages_come() -> None:
    own, extra = _sent(0.0, 20.0), _sent(10.0, 15.0, 0.03, 1)
    times = np.concatenate([own, extra])
    order = np.argsort(times)
    is_calm = (times[order] < 10.0) | (times[order] > 15.3)
    assert _runs(times[order], is_calm)[-400:].max() <= 2.0
