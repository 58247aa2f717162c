"""A look at a recording: what is useless is refused with the fix, and no honest log is, however slow or short."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kdgat.canbus import Messages, OnlineWindows, WindowConfig, make_vehicle, read_recording, simulate
from kdgat.canbus.findings import Findings
from kdgat.canbus.inspection import ContentHash
from kdgat.canbus.look import Look, look_at
from kdgat.canbus.messages import ReadOptions, Stated
from tests.canbus.traffic import make_messages, merge

DATA = Path(__file__).parents[3] / "shared" / "data"
RECORDINGS = sorted(DATA.rglob("*.parquet")) if DATA.exists() else []
TABLE = Stated(unit=False, base=False)
PER_S = {"ms": 1e3, "us": 1e6, "ns": 1e9}

Times = NDArray[np.float64]


@cache
def drive(seed: int = 5, duration_s: float = 12.0, attack: str | None = None) -> Messages:
    return simulate(make_vehicle(seed), duration_s, attack, seed=seed)


def timed(messages: Messages, change: Callable[[Times], Times]) -> Messages:
    return dataclasses.replace(messages, timestamp=change(messages.timestamp - messages.timestamp[0]))


def every(period_s: float, identifier: int, duration_s: float, jitter: float = 0.01, seed: int = 0) -> Messages:
    random = np.random.default_rng(seed + identifier)
    times = np.arange(random.uniform(0, period_s), duration_s, period_s)
    return make_messages(times + random.normal(0, jitter * period_s, len(times)), identifier)


def several(periods: list[float], duration_s: float) -> Messages:
    return merge(*(every(period, 0x100 + 7 * place, duration_s) for place, period in enumerate(periods)))


@pytest.mark.parametrize("unit", PER_S)
@pytest.mark.parametrize("decimals", [0, 3])
@pytest.mark.parametrize(("seed", "attack"), [(5, None), (3, "DoS"), (7, "malfunction")])
@pytest.mark.parametrize("start_s", [0.0, 1953.6])
def test_other_units_than_the_second_are_named(
    unit: str, decimals: int, seed: int, attack: str | None, start_s: float
) -> None:
    messages = timed(drive(seed, attack=attack), lambda times: np.round((start_s + times) * PER_S[unit], decimals))
    findings = look_at(messages)
    assert f"say --time-unit {unit} " in findings.problem()
    assert findings.problem(ReadOptions(time_unit="s")) == ""
    assert look_at(messages, Stated(unit=True, base=True)).problem() == ""


@pytest.mark.parametrize("decimals", [3, 4, 6])
@pytest.mark.parametrize("first", [0.0, 1.6e9])
def test_differences_are_named(decimals: int, first: float) -> None:
    def differences(times: Times) -> Times:
        return np.round(np.concatenate([[first], np.diff(times)]), decimals)

    assert "--time-unit differences" in look_at(timed(drive(), differences)).problem()


def test_differences_of_another_unit_are_no_times_either() -> None:
    def microseconds(times: Times) -> Times:
        return np.rint(1e6 * np.concatenate([[0.0], np.diff(times)]))

    problem = look_at(timed(drive(), microseconds)).problem()
    assert problem.endswith("(they do not grow): log absolute times (candump -L)")


@pytest.mark.parametrize(
    "lost",
    [
        np.floor,
        lambda times: np.floor(1.6e9 + times),
        lambda times: np.full(len(times), 1.61e9),
        lambda times: np.zeros(len(times)),
        lambda times: (1.6e9 + times).astype(np.float32).astype(np.float64),
    ],
    ids=["seconds", "absolute seconds", "spreadsheet", "zero", "single precision"],
)
def test_lost_times_are_refused(lost: Callable[[Times], Times]) -> None:
    assert look_at(timed(drive(), lost)).problem().startswith("times are lost: ")


def test_equal_times_are_refused_whatever_is_said() -> None:
    messages = timed(drive(), lambda times: np.full(len(times), 5.0))
    assert "all" in look_at(messages).problem(ReadOptions(time_unit="s"))


def test_more_messages_than_a_bus_carries_are_no_seconds() -> None:
    assert "more than a CAN bus can carry" in look_at(timed(drive(), lambda times: times / 86400.0)).problem()


def test_a_unit_that_is_said_is_not_believed_where_no_bus_could_carry_so_many_messages() -> None:
    problem = look_at(timed(drive(), lambda times: times / 1000.0)).problem(ReadOptions(time_unit="ms"))
    assert problem.endswith("more than a CAN bus can carry; another unit than was said (--time-unit)")
    assert look_at(drive()).problem(ReadOptions(time_unit="s")) == ""


HONEST = {
    "drive": lambda: drive(),
    "absolute": lambda: timed(drive(), lambda times: 1.7e9 + times),
    "under attack": lambda: drive(3, attack="DoS"),
    "half a second": lambda: drive().select(slice(0, 500)),
    "ten messages": lambda: drive().select(slice(0, 10)),
    "milliseconds kept": lambda: timed(drive(), lambda times: np.round(times, 3)),
    "hundredths kept": lambda: timed(drive(), lambda times: np.round(times, 2)),
    "one identifier": lambda: every(0.01, 0x123, 60.0),
    "one slow identifier": lambda: every(10.0, 0x123, 4000.0),
    "one slow identifier in whole seconds": lambda: timed(every(1.0, 0x123, 500.0), np.rint),
    "boat": lambda: several([0.1, 0.1, 0.25, 0.5, 1.0, 1.0, 2.5, 2.5], 300.0),
    "parked truck": lambda: several([1.0, 1.0, 5.0, 5.0, 10.0, 30.0], 3600.0),
    "heartbeats": lambda: several([60.0] * 12, 36_000.0),
    "car that sleeps": lambda: merge(
        *(timed(drive().select(slice(0, 300)), lambda times, wake=wake: times + wake) for wake in np.arange(8) * 3600.0)
    ),
    "batches": lambda: timed(drive(), lambda times: np.floor(times * 20.0) / 20.0),
    "out of order": lambda: timed(drive(), lambda times: times + np.where(np.arange(len(times)) % 7 == 0, 0.003, 0.0)),
}


@pytest.mark.parametrize("kind", HONEST)
def test_honest_logs_are_not_refused(kind: str) -> None:
    messages = HONEST[kind]()
    assert look_at(messages, TABLE).problem() == ""


@pytest.mark.skipif(not RECORDINGS, reason="needs ../shared/data")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_real_recordings_are_not_refused(path: Path) -> None:
    assert look_at(read_recording(path), TABLE).problem() == ""


def test_pieces_show_what_the_whole_does() -> None:
    messages, look = drive(attack="malfunction"), Look()
    for start in range(0, len(messages), 700):
        look.add(messages.select(slice(start, start + 700)))
    pieces, whole = look.findings().model_dump(), look_at(messages).model_dump()
    assert pieces == pytest.approx(whole)
    assert whole["num_identifiers"] == len(np.unique(messages.identifier))
    assert whole["num_judged"] > 0


def test_echoes_are_noted_and_floods_are_none() -> None:
    messages = drive()
    echo = dataclasses.replace(messages, timestamp=messages.timestamp + 2e-5)
    assert look_at(messages).twice_share < 0.01
    assert "every message comes twice (echo of the interface): --drop-echo" in look_at(merge(messages, echo)).notes()
    flood = make_messages(np.arange(0.0, 12.0, 4e-4), 0)
    assert look_at(merge(messages, flood)).notes() == []


def test_stamps_of_the_tool_and_of_two_clocks_are_noted() -> None:
    def of_two_clocks(times: Times) -> Times:
        return 100.0 + times + np.where(np.arange(len(times)) % 30 == 0, 6.0, 0.0)

    def of_the_tool(times: Times) -> Times:
        return np.where(np.arange(len(times)) % 100 == 50, 0.0, 100.0 + times)

    clocks, tool = look_at(timed(drive(), of_two_clocks)), look_at(timed(drive(), of_the_tool))
    assert clocks.problem() == tool.problem() == ""
    assert any("stamps of two clocks" in note for note in clocks.notes())
    assert any("have the time 0" in note for note in tool.notes())
    assert tool.span_s < 13.0


def test_decimal_identifiers_of_a_table_are_named() -> None:
    messages = drive()
    decimal = dataclasses.replace(
        messages, identifier=np.array([int(str(one), 16) for one in messages.identifier.tolist()], np.uint32)
    )
    assert "--ids decimal" in look_at(decimal, TABLE).problem()
    assert look_at(decimal, TABLE).problem(ReadOptions(identifiers="hexadecimal")) == ""
    assert look_at(decimal).problem() == ""  # a log whose format says that they are hexadecimal
    assert look_at(messages, TABLE).problem() == ""


def test_a_look_counts_as_judged_whom_the_stream_of_windows_does() -> None:
    messages, stream = drive(), OnlineWindows(WindowConfig())
    stream.feed(messages)
    found = look_at(messages)
    assert (found.num_judged, found.num_frequent) == stream.count_judged()


def test_what_cannot_be_judged_is_noted() -> None:
    coarse = look_at(timed(drive(), lambda times: np.round(times, 1)))
    assert coarse.num_judged is not None
    assert coarse.num_judged < (coarse.num_frequent or 0)
    assert Findings(num_judged=2, num_frequent=5).notes() == ["by their times 2 of 5 identifiers could be judged"]
    assert Findings(num_judged=4, num_frequent=5).notes() == []


def test_content_hash_of_pieces_is_that_of_the_recording() -> None:
    messages, content = drive(), ContentHash()
    for start in range(0, len(messages), 1000):
        content.add(messages.select(slice(start, start + 1000)))
    assert content.hexdigest() == messages.content_hash()
