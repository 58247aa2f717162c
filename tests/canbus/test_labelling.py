"""Labels of logs that have none: times of attacks, ROAD's metadata, and names."""

import json
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import Messages, RecordingError, make_vehicle, read_recording, simulate, write_recording
from kdgat.canbus.catalog import DatasetEntry, find_recordings
from kdgat.canbus.importing import import_recording
from kdgat.canbus.inspection import inspect_file
from kdgat.canbus.labelling import label_by_times, labels_beside
from kdgat.canbus.logs import has_labels
from kdgat.canbus.messages import ReadOptions
from tests.canbus.recording_files import write_text

START = 1.5e9


def _drive() -> Messages:
    """Return 100 messages in ten seconds of two ids, the payload of each its number."""
    number = np.arange(100)
    payload = np.zeros((100, 8), np.uint8)
    payload[:, 1] = number
    return Messages(
        timestamp=START + number / 10,
        identifier=np.where(number % 2, 0x153, 0x0A1).astype(np.uint32),
        payload=payload,
        length=np.full(100, 2, np.uint8),
        label=np.zeros(100, np.uint8),
        name="drive",
        labelled=False,
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_text(tmp_path / "test_a__drive.log", _drive(), "candump.log")


def _attacked(log: Path, table: str, name: str = "times.csv") -> list[int]:
    attacks = log.with_name(name)
    attacks.write_text(table)
    messages = read_recording(log)
    label_by_times(messages, log, attacks)
    return np.flatnonzero(messages.label).tolist()


@pytest.mark.parametrize(
    "table",
    [
        "begin,end,id\n2.0,3.0,153\n",
        "Start;Stop;ID\n2.0;3.0;0x153\n",
        f"begin,end,id\n{START + 2.0},{START + 3.0},153\n",  # on the clock of the log
        "# noted by hand\n\n2,3,153",
        "\ufeffbegin,end,id\r\n2.0,3.0,153\r\n",
    ],
)
def test_messages_of_an_id_in_its_time_are_attacks(log: Path, table: str) -> None:
    assert _attacked(log, table) == [21, 23, 25, 27, 29]


@pytest.mark.parametrize("identifier", ["", ",", ",*", ",any"])
def test_without_an_id_all_of_the_time_is_attacked_and_nobody_knows_by_what(log: Path, identifier: str) -> None:
    assert _attacked(log, f"2.0,2.35{identifier}\n") == [20, 21, 22, 23]
    messages = read_recording(log)
    label_by_times(messages, log, log.with_name("times.csv"))
    (campaign,) = messages.campaigns
    assert (campaign.kind, campaign.identifiers) == ("unknown", ())
    assert (campaign.begin_s, campaign.end_s) == (START + 2.0, START + 2.35)


def test_a_payload_with_wildcards_tells_the_injected_from_the_others(log: Path) -> None:
    assert _attacked(log, "begin,end,id,data\n0,9.9,153,XX1X\n") == list(range(17, 32, 2))  # payloads 0x10 to 0x1F
    with pytest.raises(RecordingError, match="id 153 does not come then with the payload XXXXXX0X"):
        _attacked(log, "begin,end,id,data\n0,9.9,153,XXXXXX0X\n")  # payloads are shorter


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("begin,end\n3,2\n", "line 2: ends at 2, before it begins at 3"),
        ("begin,end\n20,30\n", r"line 2 \(20 to 30\): lies outside of the log, which goes from 1500000000"),
        ("begin,end\n2,300\n", "lies outside of the log"),
        ("begin,end,id\n2,3,7FF\n", "id 7FF never comes in the log; its ids are A1, 153"),
        ("begin,end,id\n2,3,door\n", "id 'door' is no hexadecimal number"),
        ("begin,end,id\n2,3,FFFFFFFF\n", "is beyond 29 bits"),
        ("begin,end,id,data\n2,3,153,G0\n", "data 'G0' holds other than hexadecimal digits"),
        ("begin,end\n2\n", "begin '2' and end None are no two numbers"),
        ("from,to\n2,3\n", "has the header 'from,to', which is not known; write a table begin,end,id"),
    ],
)
def test_times_that_do_not_fit_are_refused(log: Path, table: str, words: str) -> None:
    with pytest.raises(RecordingError, match=words):
        _attacked(log, table)


@pytest.mark.parametrize("is_beside", [False, True])
def test_times_that_fit_no_log_in_milliseconds_are_not_what_is_refused(tmp_path: Path, is_beside: bool) -> None:
    drive = simulate(make_vehicle(5), 12.0)
    times = np.rint(1e3 * (drive.timestamp - drive.timestamp[0]))
    rows = [f"{time:.0f},{identifier:x},00" for time, identifier in zip(times, drive.identifier, strict=True)]
    log = tmp_path / "test_a__drive.csv"
    log.write_text("\n".join(["timestamp,id,data_field", *rows]))
    attacks = log.with_name("test_a__drive.attacks.csv" if is_beside else "times.csv")
    attacks.write_text("20.2,20.8\n")  # of 12 s, and between two milliseconds
    given = None if is_beside else attacks
    with pytest.raises(RecordingError, match=r"drive\.csv: times are milliseconds, as it seems: .*say --time-unit ms"):
        import_recording(log, tmp_path / "mine", "test_b", attacks=given)
    with pytest.raises(RecordingError, match=r"lies outside of the log, .* for 11\.997 s"):
        import_recording(log, tmp_path / "mine", "test_b", attacks=given, options=ReadOptions(time_unit="ms"))


ROAD = {"injection_id": "0x153", "injection_interval": [2.0, 3.0], "injection_data_str": "X" * 16, "modified": True}


@pytest.mark.parametrize(
    ("change", "attacked"),
    [
        ({}, [21, 23, 25, 27, 29]),
        ({"injection_id": "XXX"}, list(range(20, 31))),
        ({"injection_data_str": "XX1DXXXXXXXXXXXX"}, [29]),
        ({"injection_interval": [[2.0, 2.2], [3.0, 3.2]]}, [21, 31]),
    ],
)
def test_metadata_of_road_beside_a_log_labels_it(log: Path, change: dict[str, object], attacked: list[int]) -> None:
    log.with_name("capture_metadata.json").write_text(json.dumps({"drive": {**ROAD, **change}, "other": {}}))
    read = read_recording(log)
    assert read.labelled
    assert np.flatnonzero(read.label).tolist() == attacked
    assert has_labels(log, "test_a")
    assert inspect_file(log).notes == [f"labels: {log.with_name('capture_metadata.json')}"]


def test_metadata_that_tells_no_injection_labels_nothing(log: Path) -> None:
    metadata = log.with_name("capture_metadata.json")
    metadata.write_text(json.dumps({"drive": {"injection_interval": None}}))
    assert not read_recording(log).labelled
    assert not has_labels(log, "test_a")
    for text, words in (('{"a": {}}', "tells nothing of 'drive'; it tells of a"), ("{", "no valid JSON")):
        metadata.write_text(text)
        with pytest.raises(RecordingError, match=words):
            label_by_times(read_recording(log) if words[0] == "t" else _drive(), log, metadata)


def test_a_table_beside_a_log_labels_it_and_is_no_recording(log: Path) -> None:
    table = log.with_name("test_a__drive.attacks.csv")
    table.write_text("begin,end,id\n2,3,153\n")
    (file,) = find_recordings(log.parent.parent, DatasetEntry(name=log.parent.name))
    assert (file.labelled, file.num_attacks, file.labels_from) == (True, 5, str(table))
    assert file.read().num_attacks == 5
    table.write_text("begin,end,id\n")  # no attack
    assert read_recording(log).labelled
    assert read_recording(log).num_attacks == 0


def test_times_count_from_the_first_message_whatever_the_tool_has_sent_itself(log: Path) -> None:
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:50], "(0.000000) vcan0 7DF#0201", *lines[50:], ""]))
    assert _attacked(log, "2.0,3.0,153\n") == [21, 23, 25, 27, 29]


def test_labels_of_the_file_itself_count_more_than_what_is_beside_it(tmp_path: Path) -> None:
    messages = _drive()
    messages.labelled = True
    write_recording(tmp_path / "test_a__drive.parquet", messages)
    (tmp_path / "test_a__drive.attacks.csv").write_text("begin,end,id\n2,3,153\n")
    assert read_recording(tmp_path / "test_a__drive.parquet").num_attacks == 0


@pytest.mark.parametrize("name", ["train_attack_free__a.log", "Attack-free ride__b.log", "attack free/c.log"])
def test_a_log_is_attack_free_by_its_scenario(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "drives"
    log = write_text(folder / name, _drive(), "candump.log")
    read = read_recording(log)
    assert (read.labelled, read.num_attacks) == (True, 0)
    assert has_labels(log, "")
    assert read_recording(write_text(folder / "a.log", _drive(), "candump.log"), scenario="attack_free_1").labelled
    assert labels_beside(folder / "a.log") is None
    assert labels_beside(folder / "attack_free.log") is None
    assert labels_beside(folder / "test_attack_freeze__a.log") is None


def test_import_keeps_the_labels_in_what_it_writes(log: Path) -> None:
    attacks = log.with_name("times.csv")
    attacks.write_text("2,3\n")
    target, _ = import_recording(log, log.parent / "mine", "test_b", attacks=attacks)
    read = read_recording(target)
    assert np.flatnonzero(read.label).tolist() == list(range(20, 31))
    assert [campaign.kind for campaign in read.campaigns] == ["unknown"]
    with pytest.raises(RecordingError, match="has labels of its own; leave --attacks"):
        import_recording(target, log.parent / "mine", "test_c", attacks=attacks)
