"""The stage `prepare`: what validates or tests is never trained on, and the same recordings give the same bytes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdgat.base import UserError, sha256_of_file
from kdgat.can.data.pool import PooledStores
from kdgat.can.kinds import KINDS, PrepareConfig
from kdgat.can.sections import PreparedDataConfig
from kdgat.can.training import preparation
from kdgat.can.training.division import Division, VehicleDivision
from kdgat.can.training.preparation import preparation_parts, run_prepare
from kdgat.canbus import InjectionConfig, Messages, WindowConfig, windows_to_graphs, write_recording
from kdgat.canbus.features import RECORDINGS, TRAIN, VALIDATION
from kdgat.graphs import GraphStore
from kdgat.stage import Failed, FailureKind, Finished, Paused, RunDirectory, StageInput, StageSpec
from kdgat.stage.runner import run_stage
from kdgat.training import Deadline, Parts
from tests.canbus.traffic import bus_traffic, make_messages, merge

LAST_PART_ID, TEST_ID, FIRST_PART_ID = 0x7E1, 0x7E2, 0x7E3
NUM_VARIANTS = 6
CONFIG: dict[str, Any] = {
    "data": {"dataset": "hand", "validation_fraction": 0.3, "gap": 2, "seed": 3},
    "windows": {"size": 50, "stride": 20},
    # as recorded and without fuzzing, so that ids are neither renamed nor invented
    "injection": {
        "variants": NUM_VARIANTS,
        "validation_share": 0.5,
        "kept_fraction": 1.0,
        "duration_s": [8.0, 12.0],
        "original_fraction": 1.0,
        "clean_fraction": 0.0,
        "attack_weights": {"spoofing": 2.0, "replay": 1.0},
    },
}


def _planted(seed: int, duration_s: float = 20.0) -> Messages:
    """Make a recording whose first and last quarter each hold an id that nothing else has."""
    # in no rhythm: an id that falls silent is a node of the windows that miss it
    first = make_messages(np.sort(np.random.default_rng(seed).uniform(0.5, 0.2 * duration_s, 70)), FIRST_PART_ID)
    last = make_messages(np.arange(0.8 * duration_s, duration_s, 0.05), LAST_PART_ID)
    return merge(bus_traffic(num_ids=8, duration_s=duration_s, seed=seed), first, last)


def _test_recording() -> Messages:
    own = make_messages(np.arange(1.0, 5.0, 0.02), TEST_ID, label=np.ones(200))
    return merge(bus_traffic(num_ids=8, duration_s=6.0, seed=9), own)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StageInput]:
    folder = tmp_path_factory.mktemp("recordings")
    recordings = {
        "train/train_01_attack_free/one": _planted(1),
        "train/train_01_attack_free/two": _planted(2),
        "test/test_01_known/drive": _test_recording(),
        "test/test_02_other/drive": bus_traffic(num_ids=5, duration_s=4.0, seed=11),
        "duplicate/test_01_known/copy-of-one": _planted(1),
    }
    return {name: _write(folder, name, messages) for name, messages in recordings.items()}


def _write(folder: Path, name: str, messages: Messages) -> StageInput:
    path = folder / f"{name.replace('/', '__')}.parquet"
    write_recording(path, messages)
    return StageInput.of_file(path)


def _directory(path: Path, inputs: dict[str, StageInput], config: dict[str, Any] = CONFIG) -> RunDirectory:
    return RunDirectory(path).create(
        StageSpec(
            family="can",
            stage="prepare",
            seed=0,
            config=config,
            inputs=inputs,
            code_version=KINDS["prepare"].code_version,
        )
    )


@pytest.fixture(scope="module")
def prepared(inputs: dict[str, StageInput], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    directory = _directory(tmp_path_factory.mktemp("runs") / "prepare", inputs)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    return directory


def _stores(directory: RunDirectory) -> dict[str, GraphStore]:
    outcome = directory.read_outcome()
    assert isinstance(outcome, Finished)
    paths = {name: path for name, path in outcome.artifacts.items() if path.endswith(".h5")}
    return {name: GraphStore.open(directory.path / path) for name, path in paths.items()}


def _hashes(directory: RunDirectory) -> dict[str, str]:
    outcome = directory.read_outcome()
    assert isinstance(outcome, Finished)
    return {path: sha256_of_file(directory.path / path) for path in outcome.artifacts.values()}


def test_every_split_becomes_a_store(prepared: RunDirectory) -> None:
    stores = _stores(prepared)
    assert set(stores) == {
        "train", "validation", "injected", "injected_validation", "test-test_01_known", "test-test_02_other"
    }  # fmt: skip
    for store in stores.values():
        store.verify()
        store.columns.validate()
        assert store.num_graphs > 0
        assert store.build["windows"] == {"size": 50, "stride": 20}
    assert stores["train"].attributes[RECORDINGS] == ["train_01_attack_free/one", "train_01_attack_free/two"]
    assert stores["test-test_01_known"].attributes[RECORDINGS] == ["test_01_known/drive"]
    assert stores["test-test_01_known"].columns["y"].sum() > 5
    assert not stores["train"].columns["y"].any()
    assert len(stores["injected"].attributes[RECORDINGS]) == NUM_VARIANTS
    assert stores["injected"].columns["y"].any()
    assert not stores["injected"].columns["y"].all()


@pytest.fixture(scope="module")
def fleet(inputs: dict[str, StageInput], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    one, two = inputs["train/train_01_attack_free/one"], inputs["train/train_01_attack_free/two"]
    short = _write(tmp_path_factory.mktemp("recordings"), "short", bus_traffic(num_ids=6, duration_s=9.0, seed=21))
    given = {
        "train@kia/train_01_attack_free/one": one,
        "train@leaf/train_01_attack_free/short": short,
        "validation@bmw/train_01_attack_free/two": two,
    }
    directory = _directory(tmp_path_factory.mktemp("runs") / "prepare", given)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    return directory


def test_whole_vehicles_validate_and_none_of_their_messages_trains(fleet: RunDirectory) -> None:
    stores = _stores(fleet)
    for store, names in (("train", ["one", "short"]), ("validation", ["two"])):
        assert stores[store].attributes[RECORDINGS] == [f"train_01_attack_free/{name}" for name in names]
    validation = stores["validation"].columns
    assert validation["first_message"].min() == 0
    num_messages = len(_planted(2))
    assert (validation["first_message"] + validation["message_count"]).max() > num_messages - 20
    assert LAST_PART_ID in stores["train"].columns["node_id"]  # planted at the end: whole recordings train
    (note,) = json.loads((fleet.path / "data_summary.json").read_text())["notes"]
    assert note == "whole vehicles validate, and train nothing, 1 of 3: bmw"
    rows = json.loads((fleet.path / "data_summary.json").read_text())["recordings"]
    assert {row["name"]: (row["role"], row["vehicle"]) for row in rows} == {
        "one": ("train", "kia"), "short": ("train", "leaf"), "two": ("validation", "bmw")
    }  # fmt: skip


def test_virtual_recordings_are_made_of_short_recordings_of_a_vehicle_too(fleet: RunDirectory) -> None:
    injected = {store: _stores(fleet)[store].columns["node_id"] for store in ("injected", "injected_validation")}
    of_short = np.unique(bus_traffic(num_ids=6, duration_s=9.0, seed=21).identifier)
    only_short = np.setdiff1d(of_short, np.unique(_planted(1).identifier))
    assert np.isin(only_short, injected["injected"]).any()
    assert not np.isin(only_short, injected["injected_validation"]).any()


def test_windows_that_train_know_their_vehicle(fleet: RunDirectory) -> None:
    pool = PooledStores.open({store: fleet.path / f"{store}.h5" for store in ("train", "injected")})
    own = pool.vehicles[pool.indices_of("train")]
    assert np.array_equal(own == own[0], np.asarray(pool.parts[0]["recording"]) == 0)
    assert np.unique(pool.vehicles[pool.indices_of("injected")]).tolist() == [-1]


def test_vehicles_are_drawn_by_the_seed_and_a_further_one_moves_few() -> None:
    vehicles = [f"car-{number}" for number in range(20)]
    data = PreparedDataConfig(dataset="fleet")
    drawn = VehicleDivision.of(vehicles, data).validating
    assert len(drawn) == 4
    assert drawn == VehicleDivision.of(reversed([*vehicles, None]), data).validating
    assert drawn != VehicleDivision.of(vehicles, data.model_copy(update={"seed": 1})).validating
    assert len(drawn - VehicleDivision.of([*vehicles, "another"], data).validating) <= 1


def test_vehicles_whose_inputs_would_have_one_name_validate_together_or_not_at_all() -> None:
    vehicles = [f"kia/{number}" for number in range(20)]
    data = PreparedDataConfig(dataset="fleet")
    division = VehicleDivision.of([*vehicles, *(one.replace("/", "-") for one in vehicles)], data)
    assert len(division.known) == 20
    roles = {division.role_of("train", one) for one in vehicles}
    assert sum(one.startswith("validation@kia-") for one in roles) == len(division.validating) == 4
    assert roles == {division.role_of("train", one.replace("/", "-")) for one in vehicles}


def test_few_vehicles_validate_with_the_end_of_their_recordings_unless_asked() -> None:
    few = ["kia", "kia", "sonata", None]
    data = PreparedDataConfig(dataset="hcrl")
    assert not VehicleDivision.of(few, data).known
    assert not VehicleDivision.of([f"car-{number}" for number in range(7)], data).known
    asked = VehicleDivision.of(few, data.model_copy(update={"validation": "vehicles"}))
    assert (len(asked.validating), len(asked.known)) == (1, 2)
    kept = VehicleDivision.of(map(str, range(9)), data.model_copy(update={"validation": "recordings"}))
    assert (len(kept.validating), len(kept.known)) == (0, 9)
    with pytest.raises(UserError, match="name 1 vehicles"):
        VehicleDivision.of(["kia"], data.model_copy(update={"validation": "vehicles"}))


def test_training_and_validation_share_no_message_and_keep_a_gap(prepared: RunDirectory) -> None:
    stores = _stores(prepared)
    train, validation = stores["train"].columns, stores["validation"].columns
    for recording, messages in enumerate((_planted(1), _planted(2))):
        trained, validated = train["recording"] == recording, validation["recording"] == recording
        border = int(0.7 * len(messages))
        last_trained = (train["first_message"] + train["message_count"])[trained].max()
        first_validated = validation["first_message"][validated].min()
        assert border - 20 < last_trained <= border
        assert border + 2 * 20 <= first_validated < border + 3 * 20
        assert (validation["first_message"] + validation["message_count"])[validated].max() > len(messages) - 20
        assert train["first_message"][trained].min() == 0


@pytest.mark.parametrize(("size", "stride", "gap"), [(100, 100, 0), (100, 7, 0), (30, 50, 5), (64, 64, 1)])
def test_no_split_ever_shares_a_message(size: int, stride: int, gap: int) -> None:
    config = PrepareConfig.model_validate(
        {"data": {"dataset": "hand", "gap": gap}, "windows": {"size": size, "stride": stride}}
    )
    messages = _planted(4)
    graphs, division = windows_to_graphs(messages, config.windows), Division.of(len(messages), config)
    training, validation = (division.windows(graphs, store) for store in (TRAIN, VALIDATION))
    assert len(training)
    assert len(validation)
    assert (graphs["first_message"] + graphs["message_count"])[training].max() <= division.training_end
    assert graphs["first_message"][validation].min() >= division.validation_begin
    assert division.training_end == int(0.8 * len(messages))
    assert division.validation_begin == division.training_end + gap * stride


def _ids(store: GraphStore) -> set[int]:
    return set(np.unique(store.columns["node_id"]).tolist())


def test_training_stores_hold_nothing_of_validation_or_test(prepared: RunDirectory) -> None:
    stores = _stores(prepared)
    assert LAST_PART_ID in _ids(stores["validation"])
    assert FIRST_PART_ID not in _ids(stores["validation"])
    assert TEST_ID in _ids(stores["test-test_01_known"])
    for name in ("train", "injected"):
        assert FIRST_PART_ID in _ids(stores[name])
        assert not {LAST_PART_ID, TEST_ID} & _ids(stores[name])
    assert LAST_PART_ID in _ids(stores["injected_validation"])
    assert not {FIRST_PART_ID, TEST_ID} & _ids(stores["injected_validation"])
    trained = _ids(stores["train"])
    assert _ids(stores["injected"]) <= trained
    only_in_test = _ids(stores["test-test_01_known"]) | _ids(stores["test-test_02_other"])
    assert only_in_test - trained


def test_other_test_recordings_change_no_byte_of_the_training_stores(
    prepared: RunDirectory, inputs: dict[str, StageInput], tmp_path: Path
) -> None:
    changed = {name: source for name, source in inputs.items() if not name.startswith("test/test_02")}
    changed["test/test_01_known/drive"] = _write(tmp_path, "test/test_01_known/other", bus_traffic(seed=77))
    directory = _directory(tmp_path / "run", changed)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    for name in ("train", "validation", "injected", "injected_validation"):
        assert (directory.path / f"{name}.h5").read_bytes() == (prepared.path / f"{name}.h5").read_bytes()


def test_same_inputs_give_the_same_bytes(prepared: RunDirectory, inputs: dict[str, StageInput], tmp_path: Path) -> None:
    directory = _directory(tmp_path / "again", inputs)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert _hashes(directory) == _hashes(prepared)


class KilledError(BaseException):
    """Ends a process of the test as a signal does: nobody cleans up."""


def test_a_killed_preparation_keeps_its_parts_and_comes_to_the_same_bytes(
    prepared: RunDirectory, inputs: dict[str, StageInput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = _directory(tmp_path / "run", inputs)
    monkeypatch.setattr(preparation, "VARIANTS_IN_PART", 2)
    monkeypatch.setattr(preparation, "num_usable_cores", lambda: 1)
    made: list[str] = []
    make, kills = Parts.make, iter((1, 3, 4, 7))
    kill_at = next(kills)

    def dying(parts: Parts, name: str) -> None:
        if len(made) == kill_at:
            raise KilledError
        make(parts, name)
        made.append(name)

    monkeypatch.setattr(Parts, "make", dying)
    for following in (*kills, 1000):
        with pytest.raises(KilledError):
            run_stage(directory, quiet=True)
        assert directory.newest_checkpoint() == f"parts/{made[-1]}.json"
        kill_at = following
    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert len(made) == len(set(made)) == 10  # two train, 3 + 2 injected, two test, one duplicate
    assert _hashes(directory) == _hashes(prepared)
    assert not list(directory.parts_path.rglob("*.h5"))


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_the_number_of_cores_changes_no_byte(
    cores: int,
    prepared: RunDirectory,
    inputs: dict[str, StageInput],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = _directory(tmp_path / "run", inputs)
    monkeypatch.setattr(preparation, "VARIANTS_IN_PART", 1)
    monkeypatch.setattr(preparation, "num_usable_cores", lambda: cores)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert _hashes(directory) == _hashes(prepared)


def test_what_fails_on_one_core_abandons_the_others_and_what_is_made_stays_made(
    prepared: RunDirectory, inputs: dict[str, StageInput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = _directory(tmp_path / "run", inputs)
    monkeypatch.setattr(preparation, "VARIANTS_IN_PART", 2)
    monkeypatch.setattr(preparation, "num_usable_cores", lambda: 3)
    make, made = Parts.make, []

    def dying(parts: Parts, name: str) -> None:
        if name == "injected/00002":
            raise KilledError
        make(parts, name)
        made.append(name)

    monkeypatch.setattr(Parts, "make", dying)
    with pytest.raises(KilledError):
        run_stage(directory, quiet=True)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("part")]
    assert {"train/00000", "train/00001"} <= set(made)
    before = list(made)
    monkeypatch.setattr(Parts, "make", lambda parts, name: (make(parts, name), made.append(name))[0])
    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert len(made) == len(set(made)) > len(before)
    assert _hashes(directory) == _hashes(prepared)


def test_parts_that_others_made_ahead_in_any_order_are_joined_to_the_same_bytes(
    prepared: RunDirectory, inputs: dict[str, StageInput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = _directory(tmp_path / "run", inputs)
    parts = preparation_parts(directory.read_spec(), directory)
    for name in reversed(parts.missing()):
        parts.make(name)
        parts.make(name)
    assert parts.missing() == []
    monkeypatch.setattr(Parts, "make", lambda parts, name: pytest.fail(f"{name} is made again"))
    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert _hashes(directory) == _hashes(prepared)


def test_a_preparation_whose_parts_are_joined_already_finishes_without_them(
    prepared: RunDirectory, inputs: dict[str, StageInput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = _directory(tmp_path / "run", inputs)
    remove = Parts.remove_files

    def dying(parts: Parts, names: Iterable[str]) -> None:
        remove(parts, names)
        raise KilledError

    monkeypatch.setattr(Parts, "remove_files", dying)
    with pytest.raises(KilledError):
        run_stage(directory, quiet=True)
    monkeypatch.setattr(Parts, "remove_files", remove)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert _hashes(directory) == _hashes(prepared)


def test_a_preparation_whose_job_ends_pauses_after_a_part(
    inputs: dict[str, StageInput], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 0.0, *[1000.0] * 20])
    deadline = Deadline(end_time=1000.0, clock=lambda: next(now))
    monkeypatch.setattr(Deadline, "from_environment", classmethod(lambda *_: deadline))
    outcome = run_stage(_directory(tmp_path, inputs), quiet=True)
    assert isinstance(outcome, Paused)
    assert outcome.checkpoint.startswith("parts/train/")
    assert "of 14 recordings (5 real, 9 virtual) are done" in outcome.reason


def test_injected_traffic_depends_on_the_data_seed_alone(
    prepared: RunDirectory, inputs: dict[str, StageInput], tmp_path: Path
) -> None:
    other = _directory(tmp_path / "run", inputs, {**CONFIG, "data": {**CONFIG["data"], "seed": 4}})
    assert isinstance(run_stage(other, quiet=True), Finished)
    stores, originals = _stores(other), _stores(prepared)
    assert stores["train"].content_hash == originals["train"].content_hash
    assert stores["injected"].content_hash != originals["injected"].content_hash


def test_summary_reports_recordings_duplicates_and_attacks(prepared: RunDirectory) -> None:
    data = json.loads((prepared.path / "data_summary.json").read_text())
    assert data["num_dropped_duplicates"] == 1
    (duplicate,) = [row for row in data["recordings"] if row["role"] == "duplicate"]
    assert duplicate["name"] == "copy-of-one"
    assert duplicate["duplicate_of"] == "train_01_attack_free/one"
    assert [row["role"] for row in data["recordings"]] == ["train", "train", "test", "test", "duplicate"]
    stores = _stores(prepared)
    assert {name: split["num_windows"] for name, split in data["splits"].items()} == {
        name: store.num_graphs for name, store in stores.items()
    }
    assert data["splits"]["test-test_01_known"]["num_attack_windows"] == stores["test-test_01_known"].columns["y"].sum()
    injection = json.loads((prepared.path / "injection_summary.json").read_text())
    assert injection["enabled"]
    assert injection["num_windows"] == stores["injected"].num_graphs
    assert injection["num_attack_windows"] == stores["injected"].columns["y"].sum()
    assert sum(attack["num_recordings"] for attack in injection["attacks"].values()) == NUM_VARIANTS
    assert set(injection["attacks"]) <= {"spoofing", "replay"}


def test_injection_switched_off_makes_no_injected_store(inputs: dict[str, StageInput], tmp_path: Path) -> None:
    directory = _directory(tmp_path, inputs, {**CONFIG, "injection": {"enabled": False}})
    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert {"train", "validation"} <= set(_stores(directory))
    assert not any("injected" in name for name in _stores(directory))
    assert not list(tmp_path.glob("injected*.h5"))
    assert json.loads((tmp_path / "injection_summary.json").read_text())["enabled"] is False


def test_attacks_recorded_while_training_are_never_in_the_injected_pool(tmp_path: Path) -> None:
    """The pool is made of benign stretches: another attack of a training recording does not become benign traffic."""
    marked = make_messages(np.arange(11.0, 12.0, 0.002), 0x7E5, label=np.ones(500))
    name = "train/train_02_with_attacks/one"
    inputs = {name: _write(tmp_path, name, merge(_planted(1), marked))}
    directory = _directory(tmp_path / "run", inputs)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    stores = _stores(directory)
    assert 0x7E5 in _ids(stores["train"])
    assert 0x7E5 not in _ids(stores["injected"])


def _failure(path: Path, inputs: dict[str, StageInput], config: dict[str, Any] = CONFIG) -> str:
    directory = _directory(path, inputs, config)
    outcome = run_stage(directory, quiet=True)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.BAD_INPUT
    assert not list(path.glob("*.h5"))
    with pytest.raises(UserError, match=f"^{re.escape(outcome.evidence)}$"):
        run_prepare(directory.read_spec(), directory)
    return outcome.evidence


def test_dataset_without_training_recordings_is_an_error(inputs: dict[str, StageInput], tmp_path: Path) -> None:
    tests = {name: source for name, source in inputs.items() if name.startswith("test/")}
    evidence = _failure(tmp_path, tests)
    assert "dataset 'hand': no recording trains; name a scenario train_..., or list train_scenarios" in evidence


def test_validation_that_is_all_attacked_is_refused_with_the_fix(tmp_path: Path) -> None:
    name = "train/train_01/attacked"
    messages = make_messages(np.arange(2000) * 0.01, np.arange(2000) % 5, label=np.arange(2000) >= 1000)
    evidence = _failure(tmp_path / "run", {name: _write(tmp_path, name, messages)}, CONFIG)
    assert "every window for validation is attacked" in evidence
    assert "add a training recording that ends without attack" in evidence


def test_too_short_recordings_are_an_error_that_names_what_to_change(tmp_path: Path) -> None:
    name = "train/train_01/short"
    inputs = {name: _write(tmp_path, name, make_messages(np.arange(60) * 0.01, np.arange(60) % 5))}
    evidence = _failure(tmp_path / "run", inputs)
    for part in ("no window is left for train", "longer recordings", "data.validation_fraction=0.3", "windows.size=50"):
        assert part in evidence


def test_short_recordings_are_injected_into_as_far_as_they_go(tmp_path: Path) -> None:
    inputs = {"train/train_01_attack_free/short": _write(tmp_path, "short", _planted(4, duration_s=3.0))}
    directory = _directory(tmp_path / "run", inputs)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert _stores(directory)["injected"].num_graphs > 0


def test_recordings_always_under_attack_are_an_error_that_names_the_way_out(tmp_path: Path) -> None:
    messages = _planted(5)
    messages.label[::50] = 1
    text = _failure(tmp_path / "run", {"train/train_02_with_attacks/busy": _write(tmp_path, "busy", messages)})
    assert "without attack" in text
    assert "-O injection.enabled=false" in text


def _without_labels(messages: Messages) -> Messages:
    messages.labelled = False
    return messages


def test_training_recording_without_labels_is_refused(inputs: dict[str, StageInput], tmp_path: Path) -> None:
    name = "train/train_01/unknown"
    unlabelled = _write(tmp_path, name, _without_labels(_planted(5)))
    evidence = _failure(tmp_path / "run", {**inputs, name: unlabelled})
    assert "has no labels" in evidence
    assert "--attack-free" in evidence


def test_test_recording_without_labels_tests_nothing_and_is_noted(
    inputs: dict[str, StageInput], tmp_path: Path
) -> None:
    changed = {key: source for key, source in inputs.items() if not key.startswith("test/test_02")}
    for key in ("test/test_01_known/unknown", "test/test_03_unlabelled/unknown"):
        changed[key] = _write(tmp_path, key, _without_labels(_test_recording()))
    directory = _directory(tmp_path / "run", changed, {**CONFIG, "injection": {"enabled": False}})
    assert isinstance(run_stage(directory, quiet=True), Finished)
    stores = _stores(directory)
    assert set(stores) == {"train", "validation", "test-test_01_known"}
    assert stores["test-test_01_known"].attributes[RECORDINGS] == ["test_01_known/drive"]
    notes = json.loads((directory.path / "data_summary.json").read_text())["notes"]
    assert [note.partition(" has")[0] for note in notes] == ["test_01_known/unknown", "test_03_unlabelled/unknown"]


def test_a_plan_for_other_features_is_refused(inputs: dict[str, StageInput], tmp_path: Path) -> None:
    evidence = _failure(tmp_path, inputs, {**CONFIG, "feature_version": 1000})
    assert "planned for features of version 1000" in evidence


def test_misnamed_input_is_an_error(inputs: dict[str, StageInput], tmp_path: Path) -> None:
    evidence = _failure(tmp_path, {**inputs, "spare/one": next(iter(inputs.values()))})
    assert "input 'spare/one' is not named <train|validation|test|duplicate|labels>/<scenario>/<recording>" in evidence


def test_defaults_cut_windows_of_a_hundred_messages() -> None:
    config = PrepareConfig.model_validate({"data": {"dataset": "hand"}})
    assert config.windows == WindowConfig(size=100, stride=100)
    assert config.injection == InjectionConfig()
