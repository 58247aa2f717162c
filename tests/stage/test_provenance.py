import json
import logging
from pathlib import Path

import pytest

from kdgat.stage import StageInput, StageSpec, provenance
from kdgat.stage.provenance import (
    code_difference,
    git_state,
    image_state,
    note_in_attempt,
    processor_name,
    record_attempt,
)
from tests.support.faults import unwritable

DIGEST, OTHER = "a" * 64, "b" * 64
INSIDE = {
    "APPTAINER_CONTAINER": "/images/kdgat.sif",
    "KDGAT_IMAGE": "/images/kdgat.sif",
    "KDGAT_IMAGE_SHA256": DIGEST,
    "KDGAT_IMAGE_STAMP": "5:1700000000",
    "KDGAT_IMAGE_STARTED": "5:1700000000",
}


def test_outside_of_an_image_there_is_none_whatever_the_environment_says() -> None:
    assert image_state({name: text for name, text in INSIDE.items() if name != "APPTAINER_CONTAINER"}) is None


def test_inside_the_digest_is_that_of_the_file_that_the_job_started() -> None:
    assert image_state(INSIDE) == {"path": "/images/kdgat.sif", "sha256": DIGEST, "doubt": None}


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [({"KDGAT_IMAGE_STARTED": "6:1700000000"}, "changed before the job began"), ({"KDGAT_IMAGE_SHA256": ""}, "not be")],
)
def test_a_digest_that_is_not_certain_is_not_stated(
    changes: dict[str, str], doubt: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = image_state({**INSIDE, **changes})
    assert found is not None
    assert found["sha256"] is None
    assert doubt in str(found["doubt"])
    assert "/images/kdgat.sif is not known" in caplog.text


def test_an_image_that_differs_from_the_attempt_before_is_noted_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "provenance.json"
    for digest in (DIGEST, DIGEST, OTHER):
        for name, text in {**INSIDE, "KDGAT_IMAGE_SHA256": digest}.items():
            monkeypatch.setenv(name, text)
        record_attempt(path)
    attempts = json.loads(path.read_text())["attempts"]
    assert [attempt["image"]["sha256"] for attempt in attempts] == [DIGEST, DIGEST, OTHER]
    assert [attempt.get("image_changed_from") for attempt in attempts] == [None, None, DIGEST]
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert DIGEST in warning.getMessage()
    assert OTHER in warning.getMessage()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("0123abcd", {"revision": "0123abcd", "dirty": False}),
        ("0123abcd-dirty", {"revision": "0123abcd", "dirty": True}),
        ("unknown", None),
        ("", None),
    ],
)
def test_the_revision_of_an_image_is_the_one_that_it_was_built_from(
    said: str, expected: dict[str, object] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KDGAT_REVISION", said)
    assert git_state(tmp_path) is None
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/kdgat.sif")
    assert git_state(tmp_path) == expected
    monkeypatch.delenv("KDGAT_REVISION")
    (tmp_path / "labels.json").write_text(json.dumps({"org.opencontainers.image.revision": said}))
    monkeypatch.setattr(provenance, "IMAGE_LABELS", tmp_path / "labels.json")
    assert git_state(tmp_path) == expected


def test_an_attempt_names_the_spec_and_the_data_that_it_was_made_for(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("data")
    source = StageInput.of_file(tmp_path / "train.csv")
    spec = StageSpec(family="can", stage="prepare", seed=0, inputs={"train": source}, reads=("/data/one",))
    record_attempt(tmp_path / "provenance.json", spec)
    (attempt,) = json.loads((tmp_path / "provenance.json").read_text())["attempts"]
    assert attempt["spec"] == {"identity": spec.identity(), "inputs": {"train": source.sha256}}
    assert spec.identity() == spec.model_copy(update={"reads": ()}).identity()


def test_other_code_than_that_of_the_last_attempt_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "provenance.json"
    assert code_difference(path) == "", "there was no attempt"
    record_attempt(path)
    assert code_difference(path) == ""
    content = json.loads(path.read_text())
    content["attempts"][-1]["packages"]["torch"] = "2.0.0"
    if content["attempts"][-1]["git"]:
        content["attempts"][-1]["git"]["revision"] = "0" * 40
    path.write_text(json.dumps(content))
    assert "torch was 2.0.0, is " in code_difference(path)
    content["attempts"][-1]["packages"]["torch"] = provenance.package_version("torch")
    content["attempts"][-1]["git"] = {"revision": "0123456789abcdef", "dirty": False}
    path.write_text(json.dumps(content))
    monkeypatch.setattr(provenance, "git_state", lambda folder: {"revision": "0123456789abcdef", "dirty": True})
    assert code_difference(path) == "revision was 0123456789ab, is 0123456789ab-dirty"
    content["attempts"][-1] |= {"packages": None, "git": None}
    path.write_text(json.dumps(content))
    assert code_difference(path) == "", "what is not known is no difference"


def test_what_an_attempt_finds_out_later_is_added_to_its_record_and_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "provenance.json"
    note_in_attempt(path, trains_on="cpu")
    assert not path.exists(), "nobody began an attempt"
    for _ in range(2):
        record_attempt(path)
    note_in_attempt(path, trains_on="cpu")
    with unwritable(path):
        note_in_attempt(path, trains_on="cuda")
        record_attempt(path)
    attempts = json.loads(path.read_text())["attempts"]
    assert [attempt.get("trains_on") for attempt in attempts] == [None, "cpu"]


def test_the_model_of_the_processor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz\n")
    assert processor_name(path) == "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz"
    assert processor_name(tmp_path / "none") is None


@pytest.mark.parametrize("text", [b"", b"\x80", b"null", b"[]", b'{"attempts": [3]}', b'{"attempts": [{"git": "x"}]}'])
def test_a_damaged_record_ends_nothing(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "provenance.json"
    path.write_bytes(text)
    assert code_difference(path) == ""
    note_in_attempt(path, num_ranks=2)
    record_attempt(path)
