"""What every released layout has on disk is read; what a later kdgat adds or changes is ignored, or named as newer."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from flows.deployment.service import read_note
from flows.watcher import WatcherState
from kdgat.base import sha256_of_file
from kdgat.base.hashes import KnownHashes
from kdgat.can.detection.model_file import _parameters
from kdgat.can.evaluation.costs import Costs
from kdgat.can.nightly.comparison import read_comparison
from kdgat.can.nightly.new_recordings import NightlyLedger
from kdgat.cluster import AttemptLedger
from kdgat.cluster.attendance import read_connection
from kdgat.cluster.child import read_progress
from kdgat.cluster.report import JobFiles
from kdgat.cluster.usage import read_usages
from kdgat.container.agreement import _read
from kdgat.family import Family
from kdgat.family.night import NightlyDirectory
from kdgat.family.sweep import read_sweep
from kdgat.lap.training.schedule import read_rates
from kdgat.registry import Registry
from kdgat.registry.registry import read_entry
from kdgat.run import OutputDirectory, StageState
from kdgat.stage import RunDirectory
from kdgat.stage.owner import read_owner
from kdgat.stage.provenance import note_in_attempt, read_attempts
from kdgat.training.batch_size.search import read_decision
from kdgat.training.checkpoints import Checkpoints
from kdgat.training.weights import read_description
from tests.layouts import FOLDER

LAYOUTS = sorted(path.name for path in FOLDER.iterdir())
LINE = "out/stages/line-small-seed0-7b4c0aab"


@dataclass(frozen=True)
class Kind:
    """A kind of file: one of the layout, how it is read, and whether one of a newer kdgat ends that, or is left out."""

    path: str
    read: Callable[[Path], Any]  # of the file
    is_refused: bool = True
    key: str = "schema_version"

    def change(self, path: Path, key: str, value: Any) -> None:
        """Set a key in the file, or in each line of it."""
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        path.write_text("".join(json.dumps({**json.loads(line), key: value}) + "\n" for line in lines))


def run_of(path: Path) -> RunDirectory:
    return RunDirectory(path.parent)


def toy_results(path: Path) -> Any:
    from kdgat.family.registry import find_family

    return find_family("toy").results.read(path)


KINDS = (
    Kind("out/run.json", lambda path: OutputDirectory(path.parent).read_index()),
    Kind("out/results.json", toy_results),
    Kind(f"{LINE}/spec.json", lambda path: run_of(path).read_spec()),
    Kind(f"{LINE}/outcome.json", lambda path: run_of(path).read_outcome()),
    Kind(f"{LINE}/attempts.jsonl", lambda path: AttemptLedger(run_of(path)).records),
    Kind(f"{LINE}/metrics.jsonl", lambda path: [row["step"] for row in run_of(path).read_metrics()]),
    Kind(f"{LINE}/provenance.json", read_attempts),
    Kind(f"{LINE}/report-17.json", lambda path: JobFiles(run_of(path), "17").read_report()),
    Kind(f"{LINE}/work.json", lambda path: run_of(path).read_work(), is_refused=False),
    Kind(f"{LINE}/progress.json", lambda path: read_progress(run_of(path))["phase"], is_refused=False),
    Kind(f"{LINE}/hashes.json", lambda path: list(KnownHashes(path)._known), is_refused=False),
    Kind(f"{LINE}/checkpoints/batches.json", lambda path: read_decision(path.parent)),
    Kind("registry/index.json", lambda path: Registry(path.parent).read()),
    Kind("nights/nightly.json", NightlyLedger.read),
    Kind(
        "nights/runs/night-9e5baf483937/night.json",
        lambda path: [*NightlyDirectory(path.parents[2]).records().values()],
    ),
    Kind("history/out-0484b5c7.jsonl", lambda path: read_usages(path.parent), is_refused=False, key="v"),
    Kind("others/watcher.json", WatcherState.read),
    Kind("others/server.json", lambda path: read_note(path)["port"]),
    Kind("others/connection.json", read_connection, is_refused=False),
    Kind("others/.image.sif.kdgat.json", _read, is_refused=False),
    Kind("others/sweep.json", lambda path: len(read_sweep(OutputDirectory(path.parent)).trials)),
    Kind("others/comparison.json", lambda path: read_comparison(run_of(path)).metrics),
    Kind("others/costs.json", lambda path: Costs.read(path).models["normal"]),
    Kind("others/rates.json", lambda path: read_rates(path).byte_s),
    Kind("others/detector.json", lambda path: _parameters(path, path.read_text()).name, key="format_version"),
)


def add(registry: Registry) -> None:
    registry.add({"run.json": b"{}"}, family="can", dataset="cars", content="cd" * 32)


each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.path.rpartition("/")[2])
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture
def folder(tmp_path: Path, layout: str, toy: Family) -> Path:
    shutil.copytree(FOLDER / layout, tmp_path / "files")
    return tmp_path / "files"


@each_layout
@each_kind
def test_each_file_of_a_layout_is_read(folder: Path, kind: Kind) -> None:
    assert kind.read(folder / kind.path)


@each_layout
@each_kind
def test_a_key_that_is_not_known_is_ignored(folder: Path, kind: Kind) -> None:
    path = folder / kind.path
    before = kind.read(path)
    if kind.path != f"{LINE}/hashes.json":  # of which all keys are files
        kind.change(path, "key_of_a_later_kdgat", {"a": [1]})
    after = kind.read(path)
    assert _known(after) == _known(before)


def _known(found: Any) -> Any:
    if isinstance(found, list):
        return [_known(one) for one in found]
    # What is written again keeps the key.
    return found.model_dump(exclude={"key_of_a_later_kdgat"}) if isinstance(found, BaseModel) else found


@each_layout
@each_kind
def test_a_newer_schema_is_named_as_such_and_never_as_damage(folder: Path, kind: Kind) -> None:
    path = folder / kind.path
    kind.change(path, kind.key, 2)
    content = path.read_bytes()
    if kind.is_refused:
        with pytest.raises(ValueError, match=r"was written by a newer kdgat \(.* update kdgat$") as caught:
            kind.read(path)
        assert str(path) in str(caught.value)
        assert "damaged" not in str(caught.value)
        assert "remove" not in str(caught.value)
    else:
        kind.read(path)
    assert path.read_bytes() == content


@each_layout
def test_a_nested_key_that_is_not_known_is_ignored(folder: Path) -> None:
    for name, place in (("spec.json", "inputs"), ("report-17.json", "outcome")):
        path = folder / LINE / name
        content = json.loads(path.read_text())
        (content["inputs"]["points"] if place == "inputs" else content["outcome"])["more"] = 1
        path.write_text(json.dumps(content))
    directory = RunDirectory(folder / LINE)
    report = JobFiles(directory, "17").read_report()
    assert report is not None
    assert report.outcome == directory.read_outcome()
    assert directory.read_spec().directory_name() == directory.path.name  # the identity is that of all versions


@each_layout
def test_a_run_of_an_earlier_version_is_done_and_has_its_identities(folder: Path, toy: Family) -> None:
    output = OutputDirectory(folder / "out")
    for record in output.read_index().stages:
        directory = output.stage_directory(record)
        assert record.state == StageState.FINISHED
        assert directory.read_spec().directory_name() == directory.path.name
        assert directory.is_finished()


@each_layout
def test_checkpoints_and_weights_of_an_earlier_version_are_read_and_newer_ones_are_named(folder: Path) -> None:
    directory = RunDirectory(folder / LINE)
    found = Checkpoints(directory).load_newest()
    assert found is not None
    assert read_description(directory)["config"]
    with directory.lock():
        newer = Checkpoints(directory).write({**found[1], "schema_version": 2})
    with pytest.raises(ValueError, match=rf"{newer.name} was written by a newer kdgat"):
        Checkpoints(directory).load_newest()
    assert newer.is_file()


@each_layout
def test_what_is_written_again_keeps_the_keys_of_a_later_version(folder: Path) -> None:
    registry, nights = Registry(folder / "registry"), NightlyDirectory(folder / "nights")
    for path in [registry.index_path, nights.ledger_path, next(iter(nights.records())) / "night.json"]:
        path.write_text(json.dumps({**json.loads(path.read_text()), "later": {"a": 1}}))
    content = json.loads(registry.index_path.read_text())
    content["models"][0]["later"] = 1
    registry.index_path.write_text(json.dumps(content))
    add(registry)
    NightlyLedger.read(nights.ledger_path).write(nights.ledger_path)
    (run, record), *_ = nights.records().items()
    nights.write(run, record.model_copy(update={"is_over": True}))
    for path in (registry.index_path, nights.ledger_path, run / "night.json"):
        assert json.loads(path.read_text())["later"] == {"a": 1}
    assert json.loads(registry.index_path.read_text())["models"][0]["later"] == 1


@each_layout
def test_files_of_a_newer_kdgat_from_which_nothing_is_resumed_stay_as_they_are(folder: Path) -> None:
    directory = RunDirectory(folder / LINE)
    paths = (directory.hashes_path, directory.provenance_path)
    for path in paths:
        path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 2}))
    before = [sha256_of_file(path) for path in paths]
    known = KnownHashes(directory.hashes_path)
    known.sha256(directory.weights_path, is_finished=True)
    known.write()
    note_in_attempt(directory.provenance_path, device="cpu")
    assert [sha256_of_file(path) for path in paths] == before


@each_layout
def test_an_owner_is_known_whatever_else_the_note_says(folder: Path) -> None:
    path = folder / "owner.json"
    path.write_text(json.dumps({"token": "a", "pid": 1, "host": "n1", "schema_version": 2, "more": 1}))
    assert read_owner(path)["token"] == "a"


@each_layout
def test_a_model_of_a_newer_kdgat_is_not_taken_for_no_model(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(folder / "registry")
    model = registry.read().models[0]
    entry = registry.model_path(model.id) / "entry.json"
    entry.write_text(json.dumps({**json.loads(entry.read_text()), "schema_version": 2}))
    with pytest.raises(ValueError, match="written by a newer kdgat"):
        read_entry(entry)
    registry.index_path.unlink()
    add(registry)
    assert "written by a newer kdgat" in caplog.text
    assert entry.is_file()
