"""A spec is known by what determines the result: its inputs' content, not where they lie."""

import errno
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from kdgat.base.hashes import KnownHashes
from kdgat.stage import EnvironmentFaultError, StageInput, StageInputError, StageSpec
from kdgat.stage.faults import is_environment_fault


def make_spec(**changes):
    values = {"family": "can", "stage": "normal", "seed": 1, "config": {"b": 1, "a": [1.5, None]}} | changes
    return StageSpec(**values)


def test_identity_ignores_paths_and_key_order(tmp_path):
    source = StageInput(path="/a/train.h5", sha256="0" * 64)
    moved = StageInput(path="elsewhere/train.h5", sha256="0" * 64)
    first = make_spec(inputs={"train": source})
    assert first.identity() == make_spec(inputs={"train": moved}, config={"a": [1.5, None], "b": 1}).identity()
    assert len(first.identity()) == 16
    assert first.directory_name() == f"normal-large-seed1-{first.identity()[:8]}"


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"scale": "small"},
        {"stage": "curriculum"},
        {"config": {"b": 2, "a": [1.5, None]}},
        {"inputs": {"train": StageInput(path="a", sha256="1" * 64)}},
        {"inputs": {"other": StageInput(path="a", sha256="0" * 64)}},
    ],
)
def test_identity_changes_with_everything_else(change):
    base = {"inputs": {"train": StageInput(path="a", sha256="0" * 64)}}
    assert make_spec(**(base | change)).identity() != make_spec(**base).identity()


def test_identity_is_stable_across_versions_of_this_code():
    assert make_spec().identity() == "92b99e5ae22e36f0"


@pytest.mark.parametrize("scale", ["../../x", "a/b", ".", "", "large\n", "a b"])
def test_a_scale_that_could_lead_out_of_the_folder_of_stages_is_refused(scale):
    with pytest.raises(ValidationError, match="scale"):
        make_spec(scale=scale)


@pytest.mark.parametrize("scale", ["large", "32_64", "1.5B"])
def test_a_scale_is_a_word_or_a_number(scale):
    assert f"-{scale}-" in make_spec(scale=scale).directory_name()


def test_unknown_keys_and_bad_hashes_are_refused():
    with pytest.raises(ValidationError, match="sede"):
        make_spec(sede=1)
    with pytest.raises(ValidationError, match="sha256"):
        StageInput(path="a", sha256="short")


def test_input_is_verified_by_content_relative_to_the_run_directory(tmp_path):
    known = KnownHashes(tmp_path / "hashes.json")
    (tmp_path / "train.h5").write_bytes(b"graphs")
    made = StageInput.of_file(tmp_path / "train.h5")
    relative = made.model_copy(update={"path": "train.h5"})
    assert relative.verify(tmp_path, known) == tmp_path / "train.h5"
    assert made.verify(tmp_path / "anywhere", known) == tmp_path / "train.h5"
    (tmp_path / "train.h5").write_bytes(b"other graphs")
    with pytest.raises(StageInputError, match=r"train.h5 has sha256 .* the file was rewritten since"):
        relative.verify(tmp_path, known)
    (tmp_path / "train.h5").unlink()
    with pytest.raises(StageInputError, match=r"train.h5 does not exist: run the stage that writes it"):
        relative.verify(tmp_path, known)
    with pytest.raises(StageInputError, match="not a file"):
        StageInput.of_file(tmp_path / "train.h5")


def test_input_on_a_filesystem_that_is_not_mounted_is_no_mistake_of_the_user(tmp_path):
    path = tmp_path / "fs" / "data" / "train.h5"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"graphs")
    made = StageInput.of_file(path)
    (tmp_path / "fs").rename(tmp_path / "elsewhere")
    (tmp_path / "fs").mkdir()
    with pytest.raises(EnvironmentFaultError, match=rf"{tmp_path / 'fs'} is empty: its filesystem is not mounted"):
        made.verify(tmp_path, KnownHashes(tmp_path / "hashes.json"))
    (tmp_path / "fs" / "other").touch()
    with pytest.raises(StageInputError, match=r"train.h5 does not exist"):
        made.verify(tmp_path, KnownHashes(tmp_path / "hashes.json"))


def test_an_input_that_a_client_does_not_find_though_its_folder_has_it_is_no_mistake_of_the_user(tmp_path, monkeypatch):
    path = tmp_path / "train.h5"
    path.write_bytes(b"graphs")
    made = StageInput.of_file(path)
    ask = Path.stat

    def not_found(self, **options):
        if self == path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return ask(self, **options)

    monkeypatch.setattr(Path, "stat", not_found)
    for look in (
        lambda: made.verify(tmp_path, KnownHashes(tmp_path / "hashes.json")),
        lambda: StageInput.of_file(path),
    ):
        with pytest.raises(OSError, match="not known to be gone") as caught:
            look()
        assert is_environment_fault(caught.value)


def test_inputs_inside_a_moved_folder_are_found_where_it_lies_now(tmp_path):
    weights, recording = tmp_path / "out" / "a" / "weights", tmp_path / "data" / "recording"
    for path in (weights, recording):
        path.parent.mkdir(parents=True)
        path.write_bytes(path.name.encode())
    spec = StageSpec(
        family="can",
        stage="curriculum",
        seed=0,
        inputs={"weights": StageInput.of_file(weights), "recording": StageInput.of_file(recording)},
    )
    movable = spec.movable(tmp_path / "out" / "b", tmp_path / "out")
    assert movable.identity() == spec.identity()
    (tmp_path / "out" / "b").mkdir()
    (tmp_path / "out").rename(tmp_path / "moved")
    for source in movable.inputs.values():
        source.verify(tmp_path / "moved" / "b", KnownHashes(tmp_path / "hashes.json"))
