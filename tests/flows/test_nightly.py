"""NightlyRuns of retraining on tiny synthetic traffic, by calling the flow as a deployment does."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.states import Cancelling

import flows.night.run as module
from flows.cancellation import is_cancelling
from flows.parameters import NO_REQUEST, as_site
from kdgat.can.evaluation.other_recordings import evaluate_run
from kdgat.can.nightly.comparison import IN_SERVICE, NEW, Comparison
from kdgat.can.nightly.run import ComparisonPlan
from kdgat.cluster import LOCAL
from kdgat.family.night import ModelSource, NightlyDirectory, NightlyRecord
from kdgat.registry import Promotion, PromotionRule, Registry
from kdgat.registry.entry import Metrics, now
from kdgat.run import OutputDirectory
from tests.can.small_runs import small_config
from tests.flows.nights import WITHOUT_FLOORS, NightlyRuns
from tests.support.command_line import kdgat, processes_of
from tests.support.servers import PrefectServer
from tests.support.small_runs import ONE_NETWORK, UNTRAINED, as_options
from tests.support.waiting import wait_until

BETTER = ("training.max_epochs=25", "training.learning_rate=0.005")
INBOX_RECORDING = "train_02_with_attacks__DoS-birch"


def test_training_stops_when_the_night_that_it_is_a_part_of_is_cancelled(prefect_server: PrefectServer) -> None:
    @flow
    def training() -> tuple[bool, bool]:
        before = is_cancelling()
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(night_id[0], Cancelling(), force=True)
        return before, is_cancelling()

    @flow
    def night() -> tuple[bool, bool]:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        night_id.append(context.flow_run.id)
        return training()

    night_id: list[UUID] = []
    assert night() == (False, True)


class Decisions:
    """Nights of which only the end is real: models are registered and decided of, what they score is given."""

    def __init__(self, path: Path) -> None:
        self.registry = Registry(path / "registry")
        directory, rule = NightlyDirectory(path / "nights"), PromotionRule()
        self.run = module.NightRun(
            small_config(path), self.registry, directory, as_site(LOCAL, NO_REQUEST), NO_REQUEST, rule
        )
        self.scores: dict[str, Metrics] = {}

    def night(self, name: str, **f1: float) -> tuple[str, Promotion]:
        self.last = source = ModelSource({"weights": name.encode()}, name.encode().hex().ljust(64, "0"), {})
        record = NightlyRecord(created=now(), recordings=name, config="", start=None)
        path = self.run.directory.runs_path / name
        against = self.run.compared_with(source.content, record)
        measured: Metrics = {
            scenario: {"f1": value, "false_alarm_rate": 0.0, "num_windows": 500.0, "num_attack_windows": 50.0}
            for scenario, value in f1.items()
        }
        others = {key: self.scores[entry.id] for key, entry in self.run._held_to(against).items()}
        comparison = Comparison(metrics={NEW: measured, **others}, recordings=[], left_out={})
        entry, decision, _ = self.run._decide(path, record, source, against, comparison)
        self.scores[entry.id] = measured
        return entry.id, decision

    def in_service(self) -> str | None:
        return self.registry.read().in_service("can", "synthetic")


@pytest.fixture
def decisions(tmp_path: Path) -> Decisions:
    return Decisions(tmp_path)


def test_a_night_is_held_to_the_best_of_all_nights_before(decisions: Decisions) -> None:
    first, decision = decisions.night("first", a=0.9, b=0.8)
    assert decision.accepted
    second, decision = decisions.night("second", a=0.895, b=0.9)
    assert decision.accepted
    third, decision = decisions.night("third", a=0.889, b=0.95)  # worse by 0.006 than the second, 0.011 than the first
    assert not decision.accepted
    assert f"a: f1 0.9000 (the best so far, of {first}) -> 0.8890" in decision.describe()
    fourth, decision = decisions.night("fourth", a=0.92, b=0.95)
    assert decision.accepted
    (*_, last) = decisions.registry.read().history
    assert (last.model, last.anchors) == (fourth, ())  # it is the best everywhere

    decisions.registry.promote(third, reason="it is faster", by="ann")
    fifth, decision = decisions.night("fifth", a=0.885, b=0.98)  # a person has given up what the fourth had
    assert decision.accepted
    assert decisions.registry.read().served("can", "synthetic") == [first, second, fourth, third, fifth]


def test_a_scenario_that_vanished_waits_for_a_person(decisions: Decisions) -> None:
    decisions.night("first", a=0.9, b=0.8)
    for name in ("second", "third"):
        decisions.scores = {model: {"a": scores["a"]} for model, scores in decisions.scores.items()}
        model, decision = decisions.night(name, a=0.95)
        assert not decision.accepted
        assert "b: the model in service was measured there, and no test recording of it is left" in decision.describe()
        assert f"decide by `kdgat model promote {model}`" in decision.describe()
    decisions.registry.promote(model, reason="b is no more", by="ann")
    assert decisions.night("fourth", a=0.97)[1].accepted


def test_the_first_model_must_reach_the_floors(decisions: Decisions) -> None:
    assert not decisions.night("first", a=0.1)[1].accepted
    assert decisions.in_service() is None
    assert decisions.night("second", a=0.6)[1].accepted


def test_a_night_leaves_a_model_that_a_person_holds_and_says_who_and_why(decisions: Decisions) -> None:
    first, _ = decisions.night("first", a=0.8)
    decisions.night("second", a=0.9)
    decisions.registry.rollback("can", "synthetic", reason="it beeps", by="ann", hold=True)
    _, decision = decisions.night("third", a=0.95)
    assert not decision.accepted
    assert decisions.in_service() == first
    assert "mean f1 0.8000 -> 0.9500, 75.0% less error: better" in decision.describe()
    assert f"{first} is held by ann since " in decision.describe()
    assert "it beeps; `kdgat model release`" in decision.describe()
    decisions.registry.release("can", "synthetic", reason="", by="ann")
    assert decisions.night("fourth", a=0.96)[1].accepted


def test_a_night_that_died_after_its_promotion_decides_the_same_again(decisions: Decisions) -> None:
    first, _ = decisions.night("first", a=0.9, b=0.8)
    decisions.night("second", a=0.895, b=0.9)
    third, decision = decisions.night("third", a=0.895, b=0.95)
    assert decision.accepted
    record = decisions.run.directory.records()[decisions.run.directory.runs_path / "third"]
    against = decisions.run.compared_with(decisions.last.content, record)
    assert against is not None
    held_to = decisions.run._held_to(against)
    assert [entry.id for entry in held_to.values()] == [against.id, first]
    before = decisions.registry.read()
    metrics = {NEW: decisions.scores[third], **{key: decisions.scores[entry.id] for key, entry in held_to.items()}}
    comparison = Comparison(metrics=metrics, recordings=[], left_out={})
    path = decisions.run.directory.runs_path / "third"
    assert decisions.run._decide(path, record, decisions.last, against, comparison)[1] == decision
    assert decisions.registry.read() == before


def test_a_night_compares_again_where_the_model_in_service_changes_in_that_second(
    decisions: Decisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = decisions.night("first", a=0.8)
    second, _ = decisions.night("second", a=0.9)
    scores = {"f1": 0.95, "false_alarm_rate": 0.0, "num_windows": 500.0, "num_attack_windows": 50.0}
    registry, compared, promote = decisions.registry, [], decisions.registry.promote

    def compare(path: Path, plan: ComparisonPlan) -> Comparison:
        compared.append(Path(plan.config.runs[IN_SERVICE]).name)
        return Comparison(metrics={NEW: {"a": scores}, IN_SERVICE: decisions.scores[first]}, recordings=[], left_out={})

    monkeypatch.setattr(decisions.run, "_compare", compare)
    monkeypatch.setattr(module, "get_run_logger", logging.getLogger)
    for name, hold in (("third", False), ("fourth", True)):
        if decisions.in_service() != second:
            promote(second, reason="again", by="ann")
        compared.clear()

        def promote_late(*arguments: Any, hold: bool = hold, **others: Any) -> Any:
            if len(compared) == 1:
                promote(first, reason="it is faster", by="ann", hold=hold)  # at this very moment
            return promote(*arguments, **others)

        monkeypatch.setattr(registry, "promote", promote_late)
        path = decisions.run.directory.runs_path / name
        source = ModelSource({"weights": name.encode()}, name.encode().hex().ljust(64, "0"), {})
        record = NightlyRecord(created=now(), recordings=name, config="", start=None)
        decided = decisions.run._decided(path, record, source, decisions.run.config, {})
        assert not isinstance(decided, State)
        _, _, entry, decision, _ = decided
        assert compared == [second, first]
        assert decision.accepted is not hold
        assert decisions.in_service() == (first if hold else entry.id)
        assert ("is held by ann" in decision.describe()) is hold


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
    better = nights.run(*BETTER)
    assert better.is_completed(), better.message
    second = nights.in_service()
    assert second != first, better.message
    entries = {entry.id: entry for entry in nights.registry.read().models}
    assert entries[second].parent == first
    assert entries[second].provenance["compared_with"] == first
    assert set(entries[second].metrics) == set(entries[first].metrics)
    report = nights.report()
    run = nights.directory.latest_run()
    assert run is not None
    named = (INBOX_RECORDING, "train_03__broken.parquet", first, second, str(run.report_path))
    for words in (*named, "goes into service", "| change |", "wrong windows"):
        assert words in report
    for name in entries[second].metrics:
        assert entries[first].test_set(name) == entries[second].test_set(name)
    # `prefect deployment run --watch` shows what the night's own flow run logs.
    wait_until(lambda: "evaluation-large-seed0 is finished" in logged(better), "a stage's end in the log of the night")
    (decision,) = nights.registry.read().decisions_about(second)
    assert decision.accepted
    assert decision.compared_with == first
    events({"kdgat.night.refused": "train_03__broken.parquet", "kdgat.night.promoted": second})
    assert (nights.dataset / f"{INBOX_RECORDING}.parquet").is_file()

    # What could not be read is refused again, no run is made, no model registered.
    runs = sorted(nights.directory.runs_path.iterdir())
    places = {"--data-root": nights.data_root, "--inbox": nights.inbox, "--registry": nights.registry.path}
    options = [word for option in {**places, "--out": nights.directory.path}.items() for word in option]
    quiet = kdgat("night", "synthetic", *options, "--settle-s", 0, *as_options(*ONE_NETWORK, *BETTER), status=0)
    assert quiet.stdout.startswith("nothing new: recordings: 1 refused")
    assert quiet.stdout.splitlines()[-1] == f"report   {nights.directory.latest_report()}"
    assert "recordings: 1 refused" in quiet.stderr  # what the night logs
    assert "train_03__broken.parquet" in nights.report()
    assert sorted(nights.directory.runs_path.iterdir()) == runs
    assert len(nights.registry.read().models) == 2


def logged(night: State[Any]) -> str:
    """Return what the flow run of a night itself has logged."""
    own = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[night.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        return "\n".join(log.message for log in client.read_logs(own))


def events(wanted: dict[str, str]) -> None:
    """Wait until the last text of each event has what is wanted: that of an earlier night may be there before."""
    content = {"filter": {"event": {"prefix": ["kdgat.night."]}, "order": "ASC"}, "limit": 50}

    def read() -> dict[str, str]:
        with get_client(sync_client=True) as client:
            found = client.request("POST", "/events/filter", json=content).json()["events"]
        return {event["event"]: event["payload"]["text"] for event in found}

    wait_until(
        lambda: all(text in read().get(name, "") for name, text in wanted.items()), f"events of nights: {wanted}"
    )


def test_a_change_of_configuration_is_a_reason_to_train_and_a_night_can_be_forced(nights: NightlyRuns) -> None:
    service = nights.in_service()
    changed = nights.run(*UNTRAINED)
    assert changed.is_completed(), changed.message
    for words in (f"the configuration has changed since {service}: ", "training.max_epochs 25 -> 1", "not better"):
        assert words in str(changed.message)
    assert nights.in_service() == service
    model = nights.registry.read().models[-1]
    shown = kdgat("model", "show", model.id, "--registry", nights.registry.path, status=0)
    assert "not into service" in shown.stdout
    assert "not better by the margin of 0.05 of the error" in shown.stdout
    assert str(nights.run(*UNTRAINED).message).startswith("nothing new")

    # With nothing changed it is the same model: nothing is trained again, and it is decided by the rule of tonight.
    lenient = WITHOUT_FLOORS.model_copy(update={"accept": "not_worse", "margin": 1.0, "worse_by": 1.0})
    forced = nights.run(*UNTRAINED, retrain="always", promotion=lenient)
    assert forced.is_completed(), forced.message
    assert str(forced.message).startswith(f"retrain=always; {model.id} went into service: mean f1")
    assert nights.registry.read().models[-1] == model
    assert [decision.accepted for decision in nights.registry.read().decisions_about(model.id)] == [False, True]
    nights.registry.rollback("can", "synthetic", reason="it was a trial", by="a person")


def test_a_night_of_which_every_new_file_is_refused_is_not_green(nights: NightlyRuns) -> None:
    broken = nights.inbox / "train_04__broken.csv"
    broken.write_text("on Monday it rained")
    night = nights.run(*UNTRAINED)
    assert night.is_failed()
    assert str(night.message).startswith("every new file was refused: ")
    assert f"{broken}: " in str(night.message)
    assert "every new file was refused" in nights.report()
    again = nights.run(*UNTRAINED)
    assert again.is_completed()
    assert str(again.message).startswith("nothing new: recordings: 2 refused")
    broken.unlink()


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
    assert str(nights.run(*settings).message).startswith("nothing new")

    # Each model is a run that can be evaluated, wherever the registry lies, and a person can go back.
    moved = Registry(shutil.copytree(nights.registry.path, tmp_path / "moved"))
    for entry in moved.read().models:
        moved.verify(entry)
        results = evaluate_run(moved.model_path(entry.id), nights.data_root)
        assert results.f1 == {name: scores["f1"] for name, scores in entry.metrics.items()}
    shown = kdgat("model", "rollback", "--registry", moved.path, "--json", status=0)
    assert json.loads(shown.stdout)["previous"] == second

    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["night-synthetic"]))
        )
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
    assert str(nights.run(*UNTRAINED).message).startswith("nothing new")
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
    settings = BETTER
    with monkeypatch.context() as patch:
        patch.setattr(NightlyDirectory, "write_report", die)  # what comes after the decision
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
    assert str(nights.run(*settings).message).startswith("nothing new")
