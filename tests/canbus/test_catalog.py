"""Catalog: both layouts, roles, copies, hold-out, and errors that say what to do."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import RecordingError, find_recordings, write_recording
from kdgat.canbus.catalog import (
    HELD_OUT,
    DatasetEntry,
    DatasetError,
    RecordingCatalog,
    find_entry,
    load_catalog,
    split_roles,
)
from tests.canbus.log_files import frames, write_log
from tests.canbus.recording_files import REAL_DATA, random_messages, write_text


def _write(root: Path, scenario: str, name: str, seed: int, num_messages: int = 60) -> Path:
    path = root / f"{scenario}__{name}.parquet"
    write_recording(path, random_messages(num_messages, seed, name, scenario))
    return path


@pytest.fixture
def cars(tmp_path: Path) -> Path:
    """Make a data root with a dataset `cars`: two vehicles, training and test scenarios."""
    folder = tmp_path / "data" / "cars"
    _write(folder, "train_01", "free-Alpha", 1)
    _write(folder, "train_01", "free-beta", 2)
    _write(folder, "train_02", "dos-alpha", 3)
    _write(folder, "test_01", "dos-beta", 4)
    _write(folder, "anything_else", "spoof-alpha", 5)
    return folder.parent


def _names(recordings: RecordingCatalog) -> dict[str, list[str]]:
    return {"train": [f.name for f in recordings.train]} | {
        scenario: [f.name for f in files] for scenario, files in recordings.test.items()
    }


def test_roles_follow_scenario_names_and_unknown_scenarios_are_tests(cars: Path) -> None:
    assert _names(find_recordings(cars, "cars")) == {
        "train": ["free-Alpha", "free-beta", "dos-alpha"],
        "anything_else": ["spoof-alpha"],
        "test_01": ["dos-beta"],
    }


def test_folder_per_scenario_gives_the_same_as_flat_files(cars: Path, tmp_path: Path) -> None:
    for place in find_recordings(cars, "cars"):
        write_text(
            tmp_path / "other" / "cars" / place.scenario / f"{place.name}.csv", place.read(), "can-train-and-test.csv"
        )
    flat, nested = find_recordings(cars, "cars"), find_recordings(tmp_path / "other", "cars")
    assert [(f.scenario, f.name, f.content_hash) for f in flat] == [
        (f.scenario, f.name, f.content_hash) for f in nested
    ]


def test_reading_a_found_recording_gives_its_name_and_scenario(tmp_path: Path) -> None:
    write_text(tmp_path / "cars" / "test_x" / "a__b.csv", random_messages(), "can-train-and-test.csv")
    (file,) = find_recordings(tmp_path, "cars")
    messages = file.read()
    assert (messages.scenario, messages.name, len(messages)) == ("test_x", "a__b", 200)


def test_copy_of_a_training_recording_is_used_once_and_reported(cars: Path) -> None:
    shutil.copy(cars / "cars" / "train_01__free-beta.parquet", cars / "cars" / "train_02__free-beta.parquet")
    found = find_recordings(cars, "cars")
    assert len(found.train) == 3
    (dropped,) = found.dropped
    assert (dropped.recording.scenario, dropped.kept.scenario) == ("train_02", "train_01")


def test_copy_is_found_by_messages_although_the_files_differ(cars: Path) -> None:
    path = cars / "cars" / "train_02" / "renamed.csv"
    write_text(path, random_messages(60, 2), "can-train-and-test.csv")
    found = find_recordings(cars, "cars")
    assert [drop.recording.path for drop in found.dropped] == [path]


def test_training_copy_of_a_test_recording_is_dropped_so_that_no_test_trains(cars: Path) -> None:
    relabelled = random_messages(60, 4, "innocent", "train_02")
    relabelled.label[:] = 0
    write_recording(cars / "cars" / "train_02__innocent.parquet", relabelled)
    found = find_recordings(cars, "cars")
    assert "innocent" not in [file.name for file in found.train]
    assert [file.name for file in found.test["test_01"]] == ["dos-beta"]
    assert found.dropped[0].reason == "same messages as a test recording"


def test_of_training_copies_with_other_labels_the_one_with_attacks_stays(cars: Path) -> None:
    benign = random_messages(60, 3, "a-benign", "train_01")
    benign.label[:] = 0
    write_recording(cars / "cars" / "train_01__a-benign.parquet", benign)
    found = find_recordings(cars, "cars")
    assert "dos-alpha" in [file.name for file in found.train]
    assert found.dropped[0].recording.name == "a-benign"
    assert "labels more attacks" in found.dropped[0].reason


def test_test_recording_in_two_test_scenarios_stays_in_both_but_once_in_each(cars: Path) -> None:
    for target in ("test_02__dos-beta", "test_01__dos-beta-again"):
        shutil.copy(cars / "cars" / "test_01__dos-beta.parquet", cars / "cars" / f"{target}.parquet")
    names = _names(find_recordings(cars, "cars"))
    assert (names["test_01"], names["test_02"]) == (["dos-beta"], ["dos-beta"])


def test_logs_of_vendors_and_compressed_ones_belong_to_a_dataset(cars: Path) -> None:
    folder = cars / "cars"
    write_log(folder / "test_02__drive.BLF", frames(random_messages(50, 11)))
    write_log(folder / "test_02" / "inner" / "other drive.asc", frames(random_messages(50, 12)))
    log = write_text(cars / "a.log", random_messages(50, 13), "candump.log")
    (folder / "test_02__third.log.gz").write_bytes(gzip.compress(log.read_bytes()))
    (folder / "test_02__archive.zip.gz").write_bytes(b"no recording")
    (folder / "test_02__weights.gz").write_bytes(b"no recording")
    found = find_recordings(cars, "cars")
    assert sorted(file.name for file in found.test["test_02"]) == ["drive", "inner/other drive", "third"]


def test_one_name_in_two_formats_keeps_both_apart(cars: Path) -> None:
    write_text(cars / "cars" / "train_02" / "dos-alpha.csv", random_messages(60, 9), "can-train-and-test.csv")
    assert {"dos-alpha.csv", "dos-alpha.parquet"} <= {file.name for file in find_recordings(cars, "cars")}


def test_held_out_word_moves_matching_recordings_to_one_test_and_all_others_to_training(cars: Path) -> None:
    assert _names(split_roles(find_recordings(cars, "cars"), ["ALPHA"])) == {
        "train": ["dos-beta", "free-beta"],
        HELD_OUT: ["spoof-alpha", "free-Alpha", "dos-alpha"],
    }


def test_several_held_out_words_add_up(cars: Path) -> None:
    assert _names(split_roles(find_recordings(cars, "cars"), ["alpha", "dos"]))["train"] == ["free-beta"]


def test_vehicle_of_the_catalog_can_be_held_out(cars: Path) -> None:
    entry = DatasetEntry(name="cars", vehicles={"red": "alpha", "blue": "beta"})
    held_out = split_roles(find_recordings(cars, entry), ["red"])
    assert {file.vehicle for file in held_out.train} == {"blue"}


def test_no_held_out_word_changes_nothing(cars: Path) -> None:
    found = find_recordings(cars, "cars")
    assert split_roles(found, []) == found


def test_held_out_word_that_matches_nothing_is_an_error_with_the_names(cars: Path) -> None:
    with pytest.raises(DatasetError, match=r"'gamma'.*matches no recording.*free-Alpha"):
        split_roles(find_recordings(cars, "cars"), ["gamma"])


def test_held_out_recording_does_not_train_through_a_copy_under_another_name(cars: Path) -> None:
    shutil.copy(cars / "cars" / "test_01__dos-beta.parquet", cars / "cars" / "test_07__mystery.parquet")
    held_out = split_roles(find_recordings(cars, "cars"), ["beta"])
    assert "mystery" not in [file.name for file in held_out.train]


def test_dataset_without_training_scenario_is_an_error_only_for_training(cars: Path) -> None:
    for path in (cars / "cars").glob("train_*"):
        path.unlink()
    found = find_recordings(cars, "cars")
    assert len(found.test) == 2
    with pytest.raises(DatasetError, match=r"'cars' has no training scenario \(found anything_else, test_01\)"):
        found.require_train()


def test_an_only_training_recording_that_is_tested_on_is_named_with_the_test(cars: Path) -> None:
    first, *others = (cars / "cars").glob("train_*")
    for path in others:
        path.unlink()
    shutil.copy(first, cars / "cars" / "test_07__copy.parquet")
    message = rf"nothing to train on: .*{first.name} is left out \(same messages as a test recording: .*copy.parquet\)"
    with pytest.raises(DatasetError, match=message):
        find_recordings(cars, "cars").require_train()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("carz", r"unknown dataset 'carz'.*did you mean 'cars'"),
        ("hcrl_sa", r"^dataset 'hcrl_sa': no folder .*data root holds cars"),
    ],
)
def test_missing_dataset_folder_names_what_is_there(cars: Path, dataset: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        find_recordings(cars, dataset)


def test_missing_data_root_and_dataset_given_as_data_root_are_told_apart(cars: Path) -> None:
    with pytest.raises(DatasetError, match="data root not found"):
        find_recordings(cars / "nowhere", "cars")
    with pytest.raises(DatasetError, match=f"is the dataset itself: give its parent, --data-root {cars}"):
        find_recordings(cars / "cars", "cars")


def test_recording_without_scenario_and_empty_folder_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="no recording; expected <scenario>__<recording>"):
        find_recordings(tmp_path, "empty")
    write_recording(tmp_path / "flat" / "drive.parquet", random_messages())
    with pytest.raises(DatasetError, match=r"drive\.parquet: no scenario in its name; rename it"):
        find_recordings(tmp_path, "flat")


def test_unreadable_recording_is_an_error_that_names_it(cars: Path) -> None:
    (cars / "cars" / "train_02").mkdir()
    (cars / "cars" / "train_02" / "broken.csv").write_text("what,is,this,file\n1,2,3,4\n")
    with pytest.raises(RecordingError, match=r"broken\.csv: has the header"):
        find_recordings(cars, "cars")


def test_user_catalog_adds_and_replaces_entries(cars: Path, tmp_path: Path) -> None:
    catalog = tmp_path / "mine.yaml"
    catalog.write_text("my_fleet: {folder: cars, train_scenarios: [anything_*], vehicles: {red: alpha}}\n")
    found = find_recordings(cars, "my_fleet", catalog=catalog)
    assert [(file.name, file.vehicle, file.dataset) for file in found.train] == [("spoof-alpha", "red", "my_fleet")]
    assert "hcrl_sa" in load_catalog(catalog)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("my_fleet: {vehicels: {}}", "did you mean 'vehicles'"),
        ("my_fleet: {vehicles: {red: '('}}", "no regular expression"),
        ("- my_fleet", "must map dataset names"),
        ("a: b: c", "no valid YAML"),
        ("my_fleet: 3", "entry 'my_fleet'"),
    ],
)
def test_wrong_catalog_is_an_error_that_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    catalog = tmp_path / "mine.yaml"
    catalog.write_text(text)
    with pytest.raises(DatasetError, match=message) as caught:
        load_catalog(catalog)
    assert "mine.yaml" in str(caught.value)


def test_missing_catalog_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="catalog file not found"):
        load_catalog(tmp_path / "none.yaml")


def test_published_datasets_have_entries() -> None:
    entries = load_catalog()
    assert {"hcrl_ch", "hcrl_sa", "set_01", "set_02", "set_03", "set_04", "synthetic"} <= set(entries)
    sa = entries["hcrl_sa"]
    assert [sa.vehicle_of(name) for name in ("DoS-kia", "fuzzing-Spark", "malfunction-sonata", "x")] == [
        "kia",
        "spark",
        "sonata",
        None,
    ]


@pytest.mark.parametrize(
    ("recording", "vehicle"),
    [
        ("bmw-e65-01", "bmw-e65"),
        ("honda-civic-type-r-2019-01", "honda-civic-type-r-2019"),
        ("kia soul 3", "kia soul"),
        ("bmw-e65/monday/drive-7", "bmw-e65"),
        ("monday", None),
        ("drive-7", None),
        ("fuzzing_attack_1", None),
        ("DoS-3", None),
        ("arbitrarysequencereplay-n-2", None),
        ("payloadfuzzing-id-145", None),
        ("denialofservice-1", None),
        ("Kia-1", "kia"),
        ("adosa-1", "adosa"),
        ("T4-1", "t4"),
        ("canary-wharf-1", "canary-wharf"),
        ("candump-2024-03-01_120000", None),
        ("20240301_120000", None),
        ("2024-03-01", None),
        ("2024-03-01/a", None),
        ("kia-2024-03-01_120000", "kia"),
        ("kia-20240302", "kia"),
        ("kia-2024-03-01/a", "kia"),
        *((name, None) for name in ("session-3", "run_1", "test-1", "gear_2", "drive-2", "log_3", "rec-1", "trip 4")),
        *((name, None) for name in ("Drive1-2", "day1/rec2", "part-00-1", "abnormal-2", "Fuzzy_1", "kia_attack_1")),
    ],
)
def test_folder_without_an_entry_has_vehicles_by_subfolder_or_by_a_number_at_the_end(
    recording: str, vehicle: str | None
) -> None:
    assert DatasetEntry.of_folder("fleet").vehicle_of(recording) == vehicle


def test_one_pattern_names_the_vehicles_that_are_not_listed(tmp_path: Path) -> None:
    catalog = tmp_path / "mine.yaml"
    pattern = r"'^(?P<vehicle>.+)_drive\d+$'"
    catalog.write_text(f"fleet: {{vehicles: {{kia: soul}}, vehicle_pattern: {pattern}}}")
    entry = load_catalog(catalog)["fleet"]
    found = [entry.vehicle_of(name) for name in ("Soul_drive1", "leaf_drive2", "leaf-3")]
    assert found == ["kia", "leaf", None]


@pytest.mark.parametrize(("pattern", "message"), [("(", "no regular expression"), (r"^(.+)-\d+$", r"\?P<vehicle>")])
def test_pattern_that_names_no_vehicle_is_refused(tmp_path: Path, pattern: str, message: str) -> None:
    catalog = tmp_path / "mine.yaml"
    catalog.write_text(f"fleet: {{vehicle_pattern: '{pattern}'}}")
    with pytest.raises(DatasetError, match=message):
        load_catalog(catalog)


@pytest.mark.processes
def test_catalog_needs_neither_polars_nor_numba() -> None:
    code = (
        "import sys; sys.modules['polars'] = sys.modules['numba'] = None\n"
        "from kdgat.canbus.catalog import load_catalog; print(len(load_catalog()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) >= 7


@pytest.mark.skipif(not (REAL_DATA / "hcrl_sa").is_dir(), reason="needs ../shared/data/hcrl_sa")
def test_real_copies_are_used_once() -> None:
    found = find_recordings(REAL_DATA, "hcrl_sa")
    assert sum(file.num_messages for file in found.train) == 192_516 + 117_173 + 181_901 + 135_670
    assert sorted(drop.recording.name for drop in found.dropped) == ["attack-free-kia", "attack-free-sonata"]
    train_hashes = {file.content_hash for file in found.train}
    assert not train_hashes & {file.content_hash for files in found.test.values() for file in files}
    assert found.train[0].num_messages == len(np.unique(found.train[0].read().timestamp))


def test_entry_of_a_folder_without_one_is_the_default(cars: Path) -> None:
    assert find_entry("cars", cars) == DatasetEntry.of_folder("cars")


@pytest.mark.parametrize("name", ["hcrl_sa", "set_01", "my_cars", "can-train-and-test", "v1.5", "é à"])
def test_names_of_folders_are_names_of_datasets(cars: Path, name: str) -> None:
    (cars / name).mkdir()
    assert find_entry(name, cars).folder_in(cars) == cars / name


def test_a_catalog_names_no_dataset_by_a_path(tmp_path: Path) -> None:
    catalog = tmp_path / "own.yaml"
    catalog.write_text("../cars: {description: x}\n")
    with pytest.raises(DatasetError, match=r"own.yaml: entry '../cars': dataset='../cars' cannot be part of a file"):
        load_catalog(catalog)
