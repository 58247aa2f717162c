"""NightlyRuns of retraining on tiny synthetic traffic, by calling the flow as a deployment does."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.context import FlowRunContext
from prefect.states import Cancelling

import flows.nightly as module
from flows.stages import _is_cancelling
from kdgat.can.evaluation.stage import evaluate_run
from kdgat.registry.registry import Registry
from kdgat.run.directory import OutputDirectory
from tests.flows.nights import NightlyRuns
from tests.support.command_line import kdgat, processes_of
from tests.support.servers import PrefectServer
from tests.support.small_runs import UNTRAINED
from tests.support.waiting import wait_until

INBOX_RECORDING = "train_02_with_attacks__DoS-birch"


def test_training_stops_when_the_night_that_it_is_a_part_of_is_cancelled(prefect_server: PrefectServer) -> None:
    @flow
    def training() -> tuple[bool, bool]:
        before = _is_cancelling()
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(night_id[0], Cancelling(), force=True)
        return before, _is_cancelling()

    @flow
    def night() -> tuple[bool, bool]:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        night_id.append(context.flow_run.id)
        return training()

    night_id: list[UUID] = []
    assert night() == (False, True)


@pytest.fixture(scope="module")
def nights(prefect_server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> NightlyRuns:
    """Return nights of which the first one has put an untrained model into service."""
    nights = NightlyRuns(tmp_path_factory.mktemp("nights"))
    for path in nights.dataset.glob("test_0[34]*"):  # in which one that always alarms has the best F1
        path.unlink()
    aside = nights.inbox.parent / f"{INBOX_RECORDING}.parquet"
    (nights.dataset / aside.name).rename(aside)
    state = nights.run(*UNTRAINED)
    assert state.is_completed(), state.message
    shutil.copy(aside, nights.inbox / aside.name)
    return nights


def test_a_better_model_goes_into_service_and_a_night_with_nothing_new_rests(nights: NightlyRuns) -> None:
    first = nights.in_service()
    (nights.inbox / "train_03__broken.parquet").write_bytes(b"no parquet")

    # A recording came into the inbox, and this time the model learns something.
    better = nights.run("training.max_epochs=25", "training.learning_rate=0.005")
    assert better.is_completed(), better.message
    second = nights.in_service()
    assert second != first, better.message
    entries = {entry.id: entry for entry in nights.registry.read().models}
    assert entries[second].parent == first
    assert entries[second].provenance["compared_with"] == first
    assert set(entries[second].metrics) == set(entries[first].metrics)
    report = nights.report()
    for words in (INBOX_RECORDING, "train_03__broken.parquet", "goes into service", first, second, "| change |"):
        assert words in report
    assert (nights.dataset / f"{INBOX_RECORDING}.parquet").is_file()

    # What could not be read is refused again, no run is made, no model registered.
    runs = sorted(nights.directory.runs_path.iterdir())
    quiet = nights.run()
    assert quiet.is_completed()
    assert str(quiet.message).startswith("nothing new")
    assert sorted(nights.directory.runs_path.iterdir()) == runs
    assert len(nights.registry.read().models) == 2


NIGHT = """
import json, sys
from pathlib import Path
from flows.nightly import nightly
from kdgat.can.config import CanConfig

said = json.loads(sys.argv[1])
paths = {name: Path(said[name]) for name in ("registry", "out", "inbox")}
nightly(config=CanConfig.from_data(said["config"]), start_from="scratch", settle_s=0.0, **paths)
"""


def test_a_night_that_fails_or_dies_changes_nothing_the_next_one_goes_on_and_a_worse_model_is_refused(
    nights: NightlyRuns, prefect_server: PrefectServer, tmp_path: Path
) -> None:
    second, models = nights.in_service(), nights.registry.read().models
    recording = f"{INBOX_RECORDING}.parquet"
    shutil.copy(nights.dataset / "train_02_with_attacks__DoS-alder.parquet", nights.inbox / recording)

    def nothing_changed() -> bool:
        return nights.in_service() == second and nights.registry.read().models == models

    failed = nights.run("seeds=[1]")
    assert failed.is_failed()
    assert "has no finished normal-large-seed1" in str(failed.message)
    assert nothing_changed()

    settings = (*UNTRAINED, "training.max_epochs=100", "training.checkpoint_every_steps=2")
    said = nights.parameters(*settings)
    said = {name: str(said[name]) for name in ("registry", "out", "inbox")} | {
        "config": said["config"].model_dump(mode="json")
    }
    with (tmp_path / "night.log").open("w") as log:
        command = [sys.executable, "-c", NIGHT, json.dumps(said)]
        night = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            checkpoints = "*/stages/normal-*/checkpoints/checkpoint-*.pt"
            known = set(nights.directory.runs_path.glob(checkpoints))
            wait_until(
                lambda: night.poll() is not None or set(nights.directory.runs_path.glob(checkpoints)) - known,
                "a checkpoint",
            )
            assert night.poll() is None, (tmp_path / "night.log").read_text()
        finally:
            os.killpg(night.pid, signal.SIGKILL)
            night.wait()
    wait_until(lambda: not processes_of(nights.directory.path), "the end of the night's processes")
    assert nothing_changed()
    unfinished = [path for path, record in nights.directory.records().items() if not record.is_over]

    worse = nights.run(*settings, start_from="scratch", keep_runs=1)
    assert worse.is_completed(), worse.message
    assert str(worse.message).startswith("recordings: 1 changed")
    assert "did not go into service" in str(worse.message)
    assert nights.in_service() == second
    third = nights.registry.read().models[-1]
    assert len(nights.registry.read().models) == len(models) + 1
    (resumed,) = [path for path in unfinished if nights.directory.records()[path].is_over]
    epochs = [json.loads(line)["epoch"] for line in next(resumed.glob("stages/normal-*/metrics.jsonl")).open()]
    assert epochs == list(range(100))
    over = [path for path, record in nights.directory.records().items() if record.is_over]
    assert over == [resumed]  # the runs of the other models are gone
    assert str(nights.run().message).startswith("nothing new")

    # Each model is a run that can be evaluated, wherever the registry lies, and a person can go back.
    moved = Registry(shutil.copytree(nights.registry.path, tmp_path / "moved"))
    for entry in moved.read().models:
        moved.verify(entry)
        results = evaluate_run(moved.model_path(entry.id), nights.data_root)
        assert results.f1 == {name: scores["f1"] for name, scores in entry.metrics.items()}
    shown = kdgat("model", "rollback", "--registry", moved.path, "--json", status=0)
    assert json.loads(shown.stdout)["previous"] == second

    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["night"])))
        flow_id = client.read_flow_by_name("nightly").id
        # Others use this server, too.
        runs = [run for run in client.read_flow_runs() if run.flow_id == flow_id or run.parent_task_run_id]
    assert sum(third.id in str(artifact.data) for artifact in artifacts) == 1
    ends = {run.state_type.value for run in runs if run.state_type is not None}
    assert "CRASHED" in ends
    assert ends <= {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}  # nothing seems to run for ever


@pytest.mark.nightly
def test_where_the_model_in_service_is_damaged_the_new_one_waits_for_a_person(nights: NightlyRuns) -> None:
    service, models = nights.in_service(), nights.registry.read().models
    weights = next(nights.registry.model_path(service).glob("stages/normal-*/*.safetensors"))
    weights.chmod(0o644)
    weights.write_bytes(b"damaged")
    recording = "train_02_with_attacks__DoS-{}.parquet"
    shutil.copy(nights.dataset / recording.format("alder"), nights.inbox / recording.format("again"))

    night = nights.run(*UNTRAINED, start_from="scratch")
    assert night.is_completed(), night.message
    new = nights.registry.read().models[-1]
    assert new not in models
    assert f"cannot be compared: model {service}: " in str(night.message)
    assert f"decide by `kdgat model promote {new.id}`" in str(night.message)
    assert new.metrics  # its own are known
    assert nights.in_service() == service
    assert str(nights.run().message).startswith("nothing new")
    nights.registry.promote(new.id, reason="the other is damaged", by="a person")


@pytest.mark.nightly
def test_a_night_that_died_after_its_decision_does_not_undo_what_a_person_decided_since(
    nights: NightlyRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise ConnectionError("dead")

    before = nights.in_service()
    aside = nights.inbox.parent / f"{INBOX_RECORDING}.parquet"
    shutil.copy(aside, nights.inbox / aside.name)
    settings = ("training.max_epochs=25", "training.learning_rate=0.005")
    with monkeypatch.context() as patch:
        patch.setattr(module._NightlyRun, "_write_report", die)  # what comes after the decision
        assert nights.run(*settings, start_from="scratch").is_failed()
    better = nights.in_service()
    assert better != before
    nights.registry.rollback("can", "synthetic", reason="it beeps", by="a person")

    over = [path for path, record in nights.directory.records().items() if record.is_over]
    with OutputDirectory(over[0]).lock():  # that somebody works in an old run is nothing to the night
        night = nights.run(*settings, start_from="scratch", keep_runs=1)
    assert night.is_completed(), night.message
    assert [path.is_dir() for path in over] == [True, False]
    assert "was taken out again since" in str(night.message)
    assert better in str(night.message)
    assert nights.in_service() == before
    assert str(nights.run().message).startswith("nothing new")
