"""A registry of models: nothing in it changes, whoever dies while writing to it."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kdgat.registry import ModelEntry, Registry, RegistryError
from kdgat.registry import registry as module
from kdgat.registry.entry import now
from kdgat.registry.registry import ENTRY_FILE, UNFINISHED
from tests.support.waiting import TIMEOUT_S


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


def add(registry: Registry, text: str = "first", dataset: str = "cars") -> ModelEntry:
    return registry.add(
        {"run.json": b"{}", "stages/normal/weights.bin": text.encode()},
        family="can",
        dataset=dataset,
        content=f"{abs(hash(text)):064x}",
        metrics={"test": {"f1": 0.5, "auc": None}},
        provenance={"git": {"revision": "abc"}},
    )


def promote(registry: Registry, entry: ModelEntry) -> None:
    registry.promote(entry.id, reason="better", by="test")


def test_a_model_is_kept_with_its_files_and_found_again_where_the_registry_is_moved_to(
    registry: Registry, tmp_path: Path
) -> None:
    source = tmp_path / "weights"
    source.write_bytes(b"weights")
    entry = registry.add({"a/weights": source}, family="can", dataset="my cars", content="ab" * 32, parent="older")
    registry.path.rename(tmp_path / "elsewhere")
    moved = Registry(tmp_path / "elsewhere")
    assert moved.entry(entry.id) == entry
    assert (moved.model_path(entry.id) / "a" / "weights").read_bytes() == b"weights"
    assert entry.parent == "older"
    assert entry.id.startswith("my-cars-")
    moved.verify(entry)


def test_the_same_model_is_registered_once(registry: Registry) -> None:
    assert add(registry) == add(registry)
    assert add(registry, "second") != add(registry)
    assert len(registry.read().models) == 2


def test_of_each_dataset_one_model_is_in_service(registry: Registry) -> None:
    assert registry.in_service("can", "cars") is None  # before there is a registry
    first, second, other = add(registry), add(registry, "second"), add(registry, "third", "trucks")
    assert registry.in_service("can", "cars") is None
    for entry in (first, other, second):
        promote(registry, entry)
    assert registry.in_service("can", "cars") == second
    assert registry.in_service("can", "trucks") == other
    assert registry.read().services() == {"can/cars": second.id, "can/trucks": other.id}
    with pytest.raises(RegistryError, match="in service for can/cars already"):
        promote(registry, second)


def test_a_rollback_goes_further_back_each_time_and_says_where_the_end_is(registry: Registry) -> None:
    entries = [add(registry, text) for text in ("one", "two", "three")]
    for entry in entries:
        promote(registry, entry)
    for expected in (entries[1], entries[0]):
        change = registry.rollback("can", "cars", reason="worse in the field", by="ann")
        assert registry.in_service("can", "cars") == expected
        assert (change.kind, change.by, change.model) == ("rollback", "ann", expected.id)
    with pytest.raises(RegistryError, match=f"before {entries[0].id}"):
        registry.rollback("can", "cars", reason="", by="")
    with pytest.raises(RegistryError, match="no model is in service"):
        registry.rollback("can", "trucks", reason="", by="")
    promote(registry, entries[2])
    assert registry.in_service("can", "cars") == entries[2]
    kinds = [change.kind for change in registry.read().history]
    assert kinds == ["promotion"] * 3 + ["rollback"] * 2 + ["promotion"]


def test_a_decision_made_against_another_model_is_refused(registry: Registry) -> None:
    first, second, third = (add(registry, text) for text in ("one", "two", "three"))
    registry.promote(first.id, reason="", by="", expected=None)
    registry.promote(second.id, reason="", by="", expected=first.id)
    for expected in (first.id, None):
        with pytest.raises(RegistryError, match=f"{second.id} is in service by now"):
            registry.promote(third.id, reason="", by="", expected=expected)
    assert registry.in_service("can", "cars") == second


def test_a_changed_or_missing_file_keeps_a_model_out_of_service(registry: Registry) -> None:
    first, second = add(registry), add(registry, "second")
    promote(registry, first)
    weights = registry.model_path(second.id) / "stages" / "normal" / "weights.bin"
    weights.chmod(0o644)
    weights.write_bytes(b"secomd")
    with pytest.raises(RegistryError, match="not the file that was registered"):
        promote(registry, second)
    weights.unlink()
    with pytest.raises(RegistryError, match=r"weights\.bin is missing"):
        promote(registry, second)
    assert registry.in_service("can", "cars") == first


def test_a_wrong_id_names_the_nearest_one(registry: Registry) -> None:
    entry = add(registry)
    with pytest.raises(RegistryError, match=f"did you mean {entry.id}"):
        registry.entry(entry.id[:-1] + "x")
    with pytest.raises(RegistryError, match="kdgat model list"):
        registry.entry("?")


@pytest.mark.parametrize("text", ["", "no json", '{"models": [{"id": 3}]}'])
def test_a_damaged_index_is_named_with_what_to_do(registry: Registry, text: str) -> None:
    entry = add(registry)
    registry.index_path.write_text(text)
    for call in (registry.read, lambda: add(registry, "second"), lambda: promote(registry, entry)):
        with pytest.raises(RegistryError, match=r"index\.json is (damaged|not what) .*put a copy of it back"):
            call()
    assert registry.index_path.read_text() == text  # nobody writes over what could still be mended
    registry.index_path.unlink()
    second = add(registry, "second")
    assert registry.read().models == (entry, second)  # found again by its own entry


def test_no_registry_is_an_error_for_readers(registry: Registry) -> None:
    with pytest.raises(RegistryError, match=r"index\.json is missing"):
        registry.read()


WRITER = """
import os, signal, sys
from pathlib import Path
from kdgat.registry import registry as module

place = sys.argv[2]
def die(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGKILL)
if place == "copying":
    module.sha256_of_file = die
elif place == "renaming":
    module.put_in_place = die
elif place == "indexing":
    module.Registry._write = die
elif place == "replacing":
    Path.replace = lambda self, target: die() if Path(target).name == "index.json" else os.replace(self, target)
module.Registry(sys.argv[1]).add({"a": b"a", "b/c": b"bc"}, family="can", dataset="cars", content="cd" * 32)
"""


@pytest.mark.parametrize("place", ["copying", "renaming", "indexing", "replacing"])
@pytest.mark.processes
def test_a_writer_that_is_killed_leaves_a_readable_registry_and_the_next_one_cleans_up(
    registry: Registry, place: str
) -> None:
    first = add(registry)
    promote(registry, first)
    before = registry.index_path.read_bytes()
    done = subprocess.run([sys.executable, "-c", WRITER, str(registry.path), place], check=False)
    assert done.returncode == -signal.SIGKILL
    assert registry.index_path.read_bytes() == before
    assert registry.in_service("can", "cars") == first

    second = registry.add({"a": b"a", "b/c": b"bc"}, family="can", dataset="cars", content="cd" * 32)
    registry.verify(second)
    assert registry.read().models == (first, second)
    assert {path.name for path in registry.models_path.iterdir()} == {first.id, second.id}
    assert not list(registry.path.rglob(".*.tmp"))
    assert not list(registry.models_path.glob(f"{UNFINISHED}*"))
    assert json.loads((registry.model_path(second.id) / ENTRY_FILE).read_text())["id"] == second.id


def _add_many(path: Path, name: str) -> None:
    module.LOCK_POLL_S = 0.01  # of this process alone
    for number in range(5):
        Registry(path).add(
            {"a": name.encode()}, family="can", dataset="cars", content=f"{name}{number}".encode().hex().ljust(64, "0")
        )


@pytest.mark.processes
def test_several_writers_at_once_lose_nothing(registry: Registry) -> None:
    context = multiprocessing.get_context("spawn")  # a copy of a process with threads may wait for ever
    writers = [context.Process(target=_add_many, args=(registry.path, name)) for name in "xyz"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(TIMEOUT_S)
        assert writer.exitcode == 0
    assert len(registry.read().models) == 15
    assert len({entry.content for entry in registry.read().models}) == 15


def test_a_registry_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "registry").write_text("a file where a folder should be")
        with pytest.raises(OSError, match="registry"):
            add(Registry(tmp_path / "registry"))
    else:
        (tmp_path / "registry" / "models").mkdir(parents=True)
        (tmp_path / "registry").chmod(0o555)
        with pytest.raises(RegistryError, match="cannot be written to"):
            add(Registry(tmp_path / "registry"))


def test_a_model_that_went_into_service_and_was_taken_out_again_is_remembered(registry: Registry) -> None:
    first, second = add(registry), add(registry, "second")
    before = now()
    promote(registry, first)
    promote(registry, second)
    registry.rollback("can", "cars", reason="it beeps", by="a person")
    index = registry.read()
    change = index.promoted_since(second.id, before)
    assert change is not None
    assert change.kind == "promotion"
    assert index.promoted_since(second.id, "9999-01-01T00:00:00+00:00") is None
    assert index.promoted_since("other", before) is None


def test_copies_and_foreign_folders_beside_the_models_are_no_models(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    first = add(registry)
    folder = registry.model_path(first.id)
    shutil.copytree(folder, registry.models_path / f"{first.id}.bak")
    for name, text in (("half", '{"id": "half"'), ("other", '{"name": "what another program calls entry.json"}')):
        (registry.models_path / name).mkdir()
        (registry.models_path / name / ENTRY_FILE).write_text(text)
    (registry.models_path / "folder" / ENTRY_FILE).mkdir(parents=True)
    (registry.models_path / "notes.txt").write_text("mine")
    second = add(registry, "second")
    promote(registry, second)
    promote(registry, first)
    assert registry.read().models == (first, second)
    assert [record.getMessage().split(" is no model")[0] for record in caplog.records] == [
        str(registry.models_path / name) for name in (f"{first.id}.bak", "folder", "half", "other")
    ]
    # Whoever loses the index finds the models again, and those alone.
    registry.index_path.unlink()
    third = add(registry, "third")
    assert registry.read().models == (first, second, third)


def test_a_damaged_entry_of_one_model_is_in_nobodys_way(registry: Registry) -> None:
    first = add(registry)
    entry = registry.model_path(first.id) / ENTRY_FILE
    entry.write_text("{")
    second = add(registry, "second")
    promote(registry, second)
    promote(registry, first)  # the index knows what it was
    assert registry.read().models == (first, second)


def test_a_model_that_an_index_names_several_times_is_named_once_after_the_next_write(registry: Registry) -> None:
    first = add(registry)
    index = registry.read()
    registry.index_path.write_text(index.model_copy(update={"models": (first, first, first)}).model_dump_json())
    promote(registry, first)
    assert registry.read().models == (first,)


def test_a_folder_that_has_the_name_of_a_new_model_is_not_written_over(registry: Registry) -> None:
    first = add(registry)
    registry.index_path.unlink()
    weights = registry.model_path(first.id) / "stages" / "normal" / "weights.bin"
    (registry.model_path(first.id) / ENTRY_FILE).write_text("{")
    second = add(registry)
    assert second.id != first.id
    assert weights.read_bytes() == b"first"
    assert registry.read().models == (second,)


@pytest.mark.parametrize(
    ("dataset", "begins"),
    [
        ("müller", "m-ller-"),
        ("my cars", "my-cars-"),
        ("fleet/north", "fleet-north-"),
        ("../../etc", "etc-"),
        ("a.b..c", "a-b--c-"),
        (".hidden", "hidden-"),
        ("車", "model-"),
        ("", "model-"),
        ("²½", "model-"),
        ("x" * 400, "x" * 60 + "-"),
        ("[bold]\n", "bold-"),
    ],
)
def test_a_dataset_may_have_any_name(registry: Registry, dataset: str, begins: str) -> None:
    entry, other = add(registry, dataset=dataset), add(registry, "second", dataset)
    promote(registry, entry)
    promote(registry, other)
    registry.rollback("can", dataset, reason="", by="")
    assert entry.id.startswith(begins)
    assert entry.id.isascii()
    assert Registry(registry.path).in_service("can", dataset) == entry
    assert registry.model_path(entry.id).parent == registry.models_path


def test_a_model_that_a_person_holds_stays_until_it_is_released(registry: Registry) -> None:
    first, second, third = (add(registry, text) for text in ("one", "two", "three"))
    promote(registry, first)
    promote(registry, second)
    assert registry.read().held("can", "cars") is None
    registry.rollback("can", "cars", reason="it beeps", by="ann", hold=True)
    held = registry.read().held("can", "cars")
    assert held is not None
    assert (held.model, held.by, held.reason) == (first.id, "ann", "it beeps")
    with pytest.raises(RegistryError, match=rf"{first.id} is held by ann since .*: it beeps"):
        registry.promote(third.id, reason="better", by="nightly", expected=first.id, anchors=())
    assert registry.in_service("can", "cars") == first
    with pytest.raises(RegistryError, match="`kdgat model release` lets nights replace it"):
        promote(registry, first)

    registry.release("can", "cars", reason="mended", by="ben")
    assert registry.read().held("can", "cars") is None
    with pytest.raises(RegistryError, match="no model is held in service"):
        registry.release("can", "cars", reason="", by="")
    registry.promote(third.id, reason="better", by="nightly", expected=first.id, anchors=())

    # The one in service can be held where it is, and what a person decides next ends that.
    registry.promote(third.id, reason="a demonstration", by="ann", hold=True)
    registry.promote(second.id, reason="", by="ann")
    index = registry.read()
    assert index.held("can", "cars") is None
    assert index.served("can", "cars") == [first.id, third.id, second.id]
    kinds = [change.kind for change in index.history]
    assert kinds == ["promotion", "promotion", "rollback", "release", "promotion", "hold", "promotion"]


def test_a_hold_of_one_dataset_is_none_of_another(registry: Registry) -> None:
    first, other = add(registry), add(registry, "second", "trucks")
    registry.promote(first.id, reason="", by="ann", hold=True)
    promote(registry, other)
    assert registry.read().held("can", "trucks") is None
    assert registry.read().held("can", "cars") is not None


def test_a_model_that_was_only_held_was_not_put_into_service_anew(registry: Registry) -> None:
    first, second = add(registry), add(registry, "second")
    promote(registry, first)
    promote(registry, second)
    after = "9999-01-01T00:00:00+00:00"
    registry.promote(second.id, reason="", by="ann", hold=True)
    index = registry.read()
    late = [change.model_copy(update={"when": after}) if change.hold else change for change in index.history]
    index = index.model_copy(update={"history": tuple(late)})
    assert index.promoted_since(second.id, after) is None


def test_what_a_night_is_held_to_is_told_by_its_promotion_and_by_none_of_a_person(registry: Registry) -> None:
    first, second, third = (add(registry, text) for text in ("one", "two", "three"))
    promote(registry, first)
    registry.promote(second.id, reason="", by="nightly", expected=first.id, anchors=(first.id,))
    assert registry.read().anchors(second) == (first.id,)
    registry.promote(third.id, reason="", by="nightly", expected=second.id, anchors=(first.id, second.id))
    registry.promote(third.id, reason="", by="ann", hold=True)  # changes nothing of that
    assert registry.read().anchors(third) == (first.id, second.id)
    registry.rollback("can", "cars", reason="", by="ann")
    assert registry.read().anchors(second) == (first.id,)
    promote(registry, third)
    assert registry.read().anchors(third) == ()


def test_an_index_of_before_there_were_holds_and_anchors_is_read(registry: Registry) -> None:
    first = add(registry)
    promote(registry, first)
    content = json.loads(registry.index_path.read_text())
    for name in ("hold", "anchors"):
        del content["history"][0][name]
    registry.index_path.write_text(json.dumps(content))
    index = registry.read()
    assert index.in_service("can", "cars") == first.id
    assert index.held("can", "cars") is None
    assert index.anchors(first) == ()


@pytest.mark.parametrize("name", ["../../outside.txt", "a/../../outside.txt", "/tmp/outside.txt"])
def test_no_file_of_a_model_is_written_outside_of_it(registry: Registry, name: str) -> None:
    with pytest.raises(RegistryError, match="lies outside of the model's directory"):
        registry.add({name: b"a"}, family="can", dataset="cars", content="cd" * 32)
    assert not registry.path.exists()
