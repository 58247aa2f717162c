"""Names of messages and signals, and in which bits of a payload each signal lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdgat.canbus import RecordingError
from kdgat.canbus.profile import Database

DBC = """VERSION ""

NS_ :

BS_:

BU_: X

BO_ 339 Dynamics: 8 X
 SG_ Speed : 7|16@0+ (0.01,0) [0|400] "km/h" X
 SG_ Torque : 28|12@1- (1,0) [-1000|1000] "Nm" X

BO_ 2566844926 Engine: 8 X
 SG_ Revolutions : 24|16@1+ (0.125,0) [0|8000] "rpm" X
"""


def test_signals_lie_where_the_database_says_in_both_byte_orders(tmp_path: Path) -> None:
    path = tmp_path / "car.dbc"
    path.write_text(DBC)
    database = Database.read(path)
    assert (database.message(339), database.message(0x18FEF1FE), database.message(340)) == ("Dynamics", "Engine", "")
    bits = {signal.name: signal.bits for signals in database.signals.values() for signal in signals}
    assert bits["Speed"] == set(range(16))
    assert bits["Torque"] == {24, 25, 26, 27, *range(32, 40)}  # the upper half of the fourth byte is its low part
    assert bits["Revolutions"] == set(range(24, 40))
    assert database.signals_in(339, frozenset({15, 16})) == ("Speed",)
    assert database.signals_in(339, frozenset(range(64))) == ("Speed", "Torque")
    assert database.signals_in(340, frozenset(range(64))) == ()


@pytest.mark.parametrize("content", [b"", b"BO_ nonsense\n", bytes(range(256))])
def test_what_is_no_database_is_refused_with_the_fix(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "car.dbc"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="export it as DBC"):
        Database.read(path)
    with pytest.raises(RecordingError, match="name a database"):
        Database.read(tmp_path / "none.dbc")
