from __future__ import annotations

from types import SimpleNamespace

import pytest

from kdgat.lap.evaluation import timing
from kdgat.lap.evaluation.timing import describe_machine, take_turns


def test_methods_take_turns_and_each_round_begins_with_another_one() -> None:
    calls: list[str] = []
    timed = take_turns({name: lambda name=name: calls.append(name) or name for name in "abc"}, 3, 0, 10.0)
    assert calls == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert {name: (one.result, len(one.seconds), len(one.results)) for name, one in timed.items()} == {
        name: (name, 3, 3) for name in "abc"
    }


def test_warm_ups_are_called_and_not_counted() -> None:
    calls: list[int] = []
    timed = take_turns({"a": lambda: calls.append(0)}, 2, 3, 10.0)
    assert len(calls) == 5
    assert len(timed["a"].seconds) == 2


def test_a_slow_method_is_measured_once_and_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock of its own: on a machine that does other things a call of no time may take 20 ms.
    now, calls = [0.0], {"slow": 0, "fast": 0}
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def count(name: str, seconds: float) -> None:
        calls[name] += 1
        now[0] += seconds

    timed = take_turns({"slow": lambda: count("slow", 3.0), "fast": lambda: count("fast", 0.25)}, 4, 1, 2.0)
    assert calls == {"slow": 1, "fast": 5}
    assert len(timed["slow"].seconds) == 1
    assert timed["slow"].median == 3.0


def test_fewer_than_one_repeat_is_refused() -> None:
    with pytest.raises(ValueError, match="repeats 0"):
        take_turns({"a": lambda: None}, 0, 0, 1.0)


def test_a_library_that_is_not_there_is_named() -> None:
    versions = describe_machine().versions
    assert set(versions) == {"scipy", "lapx", "numba", "numpy", "torch"}
    assert versions["numpy"][0].isdigit()
    assert all(version for version in versions.values())
