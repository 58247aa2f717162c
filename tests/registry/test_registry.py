"""A registry of models: nothing in it changes, whoever dies while writing to it."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kdgat.registry import registry as module
from kdgat.registry.entry import ModelEntry, now
from kdgat.registry.registry import ENTRY_FILE, UNFINISHED, Registry, RegistryError


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


@pytest.mark.parametrize("text", ["", "no json", '{"models": [{"id": 3}]}', '{"surprise": 1}', '{"schema_version": 2}'])
def test_a_damaged_index_is_named_with_what_to_do(registry: Registry, text: str) -> None:
    entry = add(registry)
    registry.index_path.write_text(text)
    for call in (registry.read, lambda: add(registry, "second"), lambda: promote(registry, entry)):
        with pytest.raises(RegistryError, match=r"index\.json is damaged .*put a copy of it back"):
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
    Path.rename = die
elif place == "indexing":
    module.Registry._write = die
elif place == "replacing":
    Path.replace = lambda self, target: die() if Path(target).name == "index.json" else os.replace(self, target)
module.Registry(sys.argv[1]).add({"a": b"a", "b/c": b"bc"}, family="can", dataset="cars", content="cd" * 32)
"""


@pytest.mark.parametrize("place", ["copying", "renaming", "indexing", "replacing"])
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
    for number in range(5):
        Registry(path).add(
            {"a": name.encode()}, family="can", dataset="cars", content=f"{name}{number}".encode().hex().ljust(64, "0")
        )


def test_several_writers_at_once_lose_nothing(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_POLL_S", 0.01)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(registry.path, name)) for name in "xyz"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
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
