"""HCRL Car-Hacking as published becomes a dataset: divided by time, nothing on both sides, and it says how."""

from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import read_recording
from kdgat.canbus.car_hacking import ATTACKS, GAP_S, TRAIN_SHARE
from kdgat.canbus.catalog import discover_recordings
from tests.support.command_line import Answer, kdgat

BEGIN_S = 1478198376.389427
DURATION_S = 100.0
FILES = {
    "DoS_dataset.csv": "0000",
    "Fuzzy_dataset.csv": "0545",
    "gear_dataset.csv": "043f",
    "RPM_dataset.csv": "0316",
}


def write_attacked(path: Path, injected: str) -> None:
    """Write rows as published: no header, fewer columns for fewer bytes, R or T behind them; an injection each 20 s."""
    rows = []
    for time in np.arange(0.0, DURATION_S, 0.01):
        second = BEGIN_S + time
        rows.append(f"{second:.6f},0316,8,05,21,68,09,21,21,00,6f,R")
        rows.append(f"{second + 0.001:.6f},02b0,5,c0,ff,00,07,d7,R")
        if time % 20 < 3:
            rows.append(f"{second + 0.002:.6f},{injected},8,00,00,00,00,00,00,00,00,T")
    path.write_text("\n".join(rows) + "\n")


def write_normal(path: Path) -> None:
    path.write_text(
        "".join(
            f"Timestamp: {1479121434.850202 + number / 100:.6f}        ID: 0350    000    DLC: 8    "
            f"05 28 84 66 6d 00 00 {number % 256:02x}\n"
            for number in range(5000)
        )
    )


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = tmp_path / "Car-Hacking Dataset"
    (folder / "inner").mkdir(parents=True)
    for name, injected in FILES.items():
        write_attacked(folder / name, injected)
    write_normal(folder / "inner" / "normal_run_data.txt")
    return folder


def imported(published: Path, *options: object, status: int = 0) -> Answer:
    root = published.parent / "data"
    return kdgat("data", "import", "hcrl_ch", published, "--data-root", root, *options, status=status)


def test_the_published_files_become_train_and_test_recordings(published: Path) -> None:
    said = imported(published).stdout
    places = discover_recordings(published.parent / "data" / "hcrl_ch")
    assert {(place.scenario, place.name) for place in places} == {
        ("train_01_attack_free", "normal"),
        *(("train_02_with_attacks", name) for name, _ in ATTACKS.values()),
        *((scenario, name) for name, scenario in ATTACKS.values()),
    }
    assert "the first 70% of its time trains, the next 10 s are left out, and what follows tests" in said
    normal = next(place for place in places if place.name == "normal")
    assert read_recording(normal.path).num_attacks == 0
    assert read_recording(normal.path).labelled


def test_what_tests_begins_behind_what_trains_and_a_gap_and_nothing_else_is_lost(published: Path) -> None:
    imported(published, "--quiet")
    by_name = {(place.scenario, place.name): read_recording(place.path) for place in
               discover_recordings(published.parent / "data" / "hcrl_ch")}  # fmt: skip
    source = read_recording(published / "gear_dataset.csv")
    train, test = by_name["train_02_with_attacks", "gear"], by_name["test_03_gear_spoofing", "gear"]
    assert train.duration_s == pytest.approx(TRAIN_SHARE * DURATION_S, abs=0.1)
    assert test.timestamp.min() - train.timestamp.max() == pytest.approx(GAP_S, abs=0.1)
    within = (source.timestamp > train.timestamp.max()) & (source.timestamp < test.timestamp.min())
    assert len(train) + len(test) + int(within.sum()) == len(source)
    assert min(train.num_attacks, test.num_attacks) > 0
    short = test.identifier == 0x2B0
    assert set(test.length[short]) == {5}


def test_a_missing_or_doubled_file_is_named_and_nothing_is_written(published: Path) -> None:
    (published / "gear_dataset.csv").rename(published / "inner" / "GEAR_dataset.csv")
    (published / "RPM_dataset.csv").unlink()
    assert "rpm_dataset (.csv, or .txt) missing" in imported(published, status=1).stderr
    write_attacked(published / "gear_dataset.csv", "043f")
    assert "are both gear_dataset: move one away" in imported(published, status=1).stderr
    assert not (published.parent / "data").exists()


def test_what_is_there_is_replaced_only_when_asked(published: Path) -> None:
    imported(published, "--quiet")
    assert "exists already; give --replace" in imported(published, "--quiet", status=1).stderr
    assert imported(published, "--quiet", "--replace").stdout == ""


def test_other_imports_still_need_dataset_and_scenario(published: Path) -> None:
    assert "--scenario" in kdgat("data", "import", published, "--dataset", "mine", status=2).stderr
    refused = kdgat("data", "import", "hcrl_ch", published / "gear_dataset.csv", status=1).stderr
    assert "give the one folder that holds its five files" in refused


def test_published_files_in_the_folder_of_the_dataset_are_refused_before_anything_is_read(published: Path) -> None:
    target = published.parent / "data" / "hcrl_ch"
    for place in (target, target / "raw"):
        place.parent.mkdir(parents=True, exist_ok=True)
        published.rename(place)
        for folder in (place, target, target.parent):
            refused = kdgat("data", "import", "hcrl_ch", folder, "--data-root", target.parent, status=1).stderr
            assert f"move the published files out of {target}: " in refused
        assert not list(target.rglob("*.parquet"))
        place.rename(published)


def test_stamps_that_are_no_times_do_not_move_the_cut_and_a_side_without_messages_is_refused(published: Path) -> None:
    for name, wrong in (("DoS_dataset.csv", 1999999999), ("gear_dataset.csv", 0)):
        rows = (published / name).read_text().splitlines()
        rows.insert(50, f"{wrong}.000000,02b0,5,c0,ff,00,07,d7,R")
        (published / name).write_text("\n".join(rows))
    imported(published, "--quiet")
    by_name = {(place.scenario, place.name): read_recording(place.path).timestamp for place in
               discover_recordings(published.parent / "data" / "hcrl_ch")}  # fmt: skip
    for name, scenario in ATTACKS.values():
        train, test = by_name["train_02_with_attacks", name], by_name[scenario, name]
        assert train.max() - BEGIN_S == pytest.approx(TRAIN_SHARE * DURATION_S, abs=0.2)
        assert test.min() - train.max() == pytest.approx(GAP_S, abs=0.1)
    rows = (published / "RPM_dataset.csv").read_text().splitlines()
    late = [f"{float(row[:17]) + 1e6:.6f}{row[17:]}" for row in rows[-len(rows) // 20 :]]
    (published / "RPM_dataset.csv").write_text("\n".join(rows[: -len(late)] + late))
    assert (
        "RPM_dataset.csv: by its times 95% of the messages would train and 5% test"
        in imported(published, "--replace", status=1).stderr
    )


def test_rows_that_are_dropped_are_said_once_and_how_rows_are_read_counts(published: Path) -> None:
    with (published / "gear_dataset.csv").open("a") as file:
        file.write("rubbish\n")
    said = imported(published).stderr
    assert said.count("gear_dataset.csv:") == 1
    assert "dropped" in said
    assert "--max-bad-fraction" in imported(published, "--replace", "--max-bad-fraction", 0, status=1).stderr


@pytest.mark.parametrize("option", [("--name", "mine"), ("--attack-free",), ("--attacks", "times.csv")])
def test_an_option_that_means_nothing_there_is_refused(published: Path, option: tuple[str, ...]) -> None:
    assert f"Invalid value for {option[0]}" in imported(published, *option, status=2).stderr
    assert not (published.parent / "data").exists()


@pytest.mark.parametrize("option", [("--channel", "can0"), ("--ids", "decimal"), ("--label-column", "Flag")])
def test_how_the_files_are_not_written_is_no_way_to_read_them(published: Path, option: tuple[str, str]) -> None:
    assert "leave it out" in imported(published, *option, status=1).stderr


def test_an_import_that_fails_half_way_leaves_what_was_there(published: Path) -> None:
    good = (published / "RPM_dataset.csv").read_text()
    (published / "RPM_dataset.csv").write_text(good.replace(",R\n", "\n").replace(",T\n", "\n"))
    target = published.parent / "data" / "hcrl_ch"
    assert "no R or T behind its rows" in imported(published, status=1).stderr
    assert list(target.iterdir()) == []
    (published / "RPM_dataset.csv").write_text(good)
    imported(published)
    before = {path: path.stat().st_mtime_ns for path in target.iterdir()}
    (published / "RPM_dataset.csv").write_text("rubbish")
    imported(published, "--replace", status=1)
    assert {path: path.stat().st_mtime_ns for path in target.iterdir()} == before
