"""Recordings as inputs of `prepare`."""

import shutil
from pathlib import Path

import pytest

from kdgat.can.config import CanConfig, DataConfig
from kdgat.can.inputs import check_evaluated, check_recordings, recording_inputs
from kdgat.canbus import RecordingError
from kdgat.canbus.catalog import DatasetError
from kdgat.canbus.simulation import write_dataset
from kdgat.family import ScoringRequest
from kdgat.run import OutputDirectory, RunError
from kdgat.run.directory import RunIndex
from tests.canbus.recording_files import random_messages, write_text
from tests.support.command_line import kdgat

HEADER = "timestamp,arbitration_id,data_field,attack\n"


def test_every_recording_is_an_input_whatever_is_held_out(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "synthetic", "tiny")  # DoS-alder both trains and tests
    paths = {str(path) for path in folder.iterdir()}
    for hold_out in ((), ("alder",)):
        inputs = recording_inputs(DataConfig(dataset="synthetic", data_root=str(tmp_path), hold_out=hold_out))
        assert {source.path for source in inputs.values()} == paths
    names = [key.removeprefix("test/held_out/") for key in inputs if key.startswith("test/")]
    assert {"attack-free-alder", "test_01_known_vehicle_known_attack/DoS-alder", "train_02_with_attacks/DoS-alder"} <= {
        *names
    }


def test_of_many_vehicles_some_validate_whole_and_are_named_before_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(8):
        for drive in (1, 2):
            messages = random_messages(50, seed=10 * number + drive)
            write_text(
                tmp_path / "fleet" / "train_a" / f"car{number}" / f"{drive}.csv", messages, "can-train-and-test.csv"
            )
    inputs = recording_inputs(DataConfig(dataset="fleet", data_root=str(tmp_path)))
    roles = {key.split("/")[0] for key in inputs}
    assert len(inputs) == 16
    assert {role.partition("@")[2] for role in roles} == {f"car{number}" for number in range(8)}
    assert sum(role.startswith("validation@") for role in roles) == 2  # and none of them has the other role, too
    assert len(roles) == 8
    validating = sorted(role.partition("@")[2] for role in roles if role.startswith("validation@"))
    check_recordings(CanConfig.from_preset("quick", {"data": {"dataset": "fleet", "data_root": str(tmp_path)}}, ()))
    assert caplog.messages == [f"whole vehicles validate, and train nothing, 2 of 8: {', '.join(validating)}"]


def config_of(root: Path, *overrides: str) -> CanConfig:
    data = {"dataset": "cars", "data_root": str(root)}
    return CanConfig.from_preset("quick", {"data": data}, overrides)


@pytest.fixture
def cars(tmp_path: Path) -> Path:
    """Return a folder of recordings that can be trained on."""
    folder = tmp_path / "cars"
    for name in ("train_a__drive.csv", "test_a__tour.csv"):
        write_text(folder / name, random_messages(5000), "can-train-and-test.csv")
    return folder


def test_recordings_that_can_be_trained_on_are_looked_at_and_not_read(
    cars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.canbus.catalog.read_recording", None)
    check_recordings(config_of(cars.parent))
    check_recordings(config_of(cars.parent, "data.hold_out=[tour]"))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("train_a__b.csv", b"", "is empty"),
        ("train_a__b.csv", b"foo,bar,baz\n1,2,3\n", "header 'foo,bar,baz'"),
        (
            "train_a__b.csv",
            b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9,
            "is an image or a document; name a log",
        ),
        ("train_a__b.csv", bytes(range(1, 256)) * 9, r"is no text \(it starts with '\.{5,9},?'\)"),
        ("train_a__b.csv", b"a" * 999 + b",b\n1,2\n", r"has the header 'a{200}'\.\.\., which is not known"),
        ("train_a__b.log", b"MZ" + bytes(99) + b"a" * 99, r"is no text \(it starts with 'MZ\.{58}'\)"),
        ("train_a__b.csv", HEADER.encode("utf-16"), "is text in UTF-16, .* save it as UTF-8"),
        ("train_a__b.csv", HEADER.encode("utf-16-le"), "is text in UTF-16, .* save it as UTF-8"),
        ("train_a__b.parquet", b"PAR1" + bytes(40), "no readable Parquet file"),
        ("test_a__b.blf", b"no", "is named .blf, but is no Vector BLF file"),
        ("nothing.csv", b"1", "no scenario in its name"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_before_anything_starts(
    cars: Path, name: str, data: bytes, words: str
) -> None:
    (cars / name).write_bytes(data)
    with pytest.raises((RecordingError, DatasetError), match=words):
        check_recordings(config_of(cars.parent))


def test_recordings_without_labels_are_named_before_anything_starts_with_what_gives_them(
    cars: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_text(cars / "test_b__walk.log", random_messages(500), "candump.log")
    check_recordings(config_of(cars.parent))
    (said,) = caplog.messages
    assert said.startswith(f"no labels, and so no part in any test: {cars / 'test_b__walk.log'}; if it holds no attack")
    assert said.endswith(f"a table begin,end,id in seconds, to {cars / 'test_b__walk.attacks.csv'}")
    caplog.clear()
    (cars / "test_b__walk.attacks.csv").write_text("0.1,0.2\n")
    write_text(cars / "train_attack_free__ride.log", random_messages(500), "candump.log")
    check_recordings(config_of(cars.parent))
    assert not caplog.messages
    write_text(cars / "train_b__ride.log", random_messages(500), "candump.log")
    with pytest.raises(RecordingError, match=r"ride\.log: has no labels, so attacks .* put attack_free into"):
        check_recordings(config_of(cars.parent))


def test_what_tells_the_labels_of_a_recording_is_an_input_too(cars: Path) -> None:
    write_text(cars / "test_b__walk.log", random_messages(500, 1), "candump.log")
    write_text(cars / "train_b__ride.csv", random_messages(500, 2), "can-train-and-test.csv")
    config = DataConfig(dataset="cars", data_root=str(cars.parent))
    assert not any(key.startswith("labels/") for key in recording_inputs(config))
    (cars / "test_b__walk.attacks.csv").write_text("0.1,0.2\n")
    (cars / "test_a__tour.attacks.csv").write_text("0.1,0.2\n")  # beside labels of its own
    inputs = {key: source for key, source in recording_inputs(config).items() if key.startswith("labels/")}
    assert list(inputs) == ["labels/test_b/walk"]
    before = inputs["labels/test_b/walk"]
    (cars / "test_b__walk.attacks.csv").write_text("0.1,0.3\n")
    assert recording_inputs(config)["labels/test_b/walk"] != before


def test_a_dataset_that_nothing_can_be_trained_on_is_refused_before_anything_starts(cars: Path) -> None:
    with pytest.raises(DatasetError, match=r"hold_out=\['ferrari'\] matches no recording; their names are drive, tour"):
        check_recordings(config_of(cars.parent, "data.hold_out=[ferrari]"))
    write_text(cars / "train_a__drive.csv", random_messages(90), "can-train-and-test.csv")
    with pytest.raises(DatasetError, match=r"the longest training recording has 92 messages at most, too few for"):
        check_recordings(config_of(cars.parent))
    (cars / "train_a__drive.csv").unlink()
    with pytest.raises(DatasetError, match=r"no training scenario \(found test_a\): name a folder train_"):
        check_recordings(config_of(cars.parent))
    shutil.rmtree(cars)
    cars.mkdir()
    with pytest.raises(DatasetError, match="no recording; expected"):
        check_recordings(config_of(cars.parent))


def test_what_cannot_be_evaluated_is_refused_before_anything_heavy_is_loaded(cars: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not the output of a training run"):
        check_evaluated(ScoringRequest(tmp_path / "none", tmp_path))
    output = OutputDirectory(tmp_path / "run")
    output.path.mkdir()
    output.write_index(RunIndex(family="lap", config={}, stages=[]))
    with pytest.raises(RunError, match="is a run of family 'lap': name one of `kdgat train can`"):
        check_evaluated(ScoringRequest(output.path, tmp_path))
    for words in (
        ("detect", tmp_path / "drive.log", "--model", output.path),
        ("model", "export", output.path, "--out", tmp_path / "x.onnx"),
    ):
        refused = kdgat(*words, status=1)
        assert "is a run of family 'lap': name one of `kdgat train can`" in refused.stderr
