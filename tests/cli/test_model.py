"""`kdgat model` on a small registry."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from flows.deployment.installation import Installation
from kdgat.registry import Judgement, ModelEntry, Registry
from tests.support.command_line import Answer, kdgat


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


def add(
    registry: Registry,
    number: int,
    dataset: str = "cars",
    *,
    f1: float = 0.5,
    measured_on: dict[str, str] | None = None,
) -> ModelEntry:
    known = {} if measured_on is None else {"measured_on": measured_on}
    entry = registry.add(
        {"run.json": b"{}", "weights": bytes([number])},
        family="can",
        dataset=dataset,
        content=f"{number:x}" * 64,
        metrics={"test_1": {"f1": f1, "num_windows": 10.0}, "test_2": {"f1": None}},
        provenance={"git": {"revision": "abcdef", "dirty": True}, "config_hash": "0123", **known},
    )
    registry.promote(entry.id, reason="better", by="nightly")
    return entry


def run(*words: str) -> Answer:
    return kdgat("model", *words)


def test_models_are_listed_with_the_one_in_service(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [add(registry, 1), add(registry, 2)]
    monkeypatch.setenv("KDGAT_REGISTRY", str(registry.path))
    status, out, _ = run("list")
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [entry.id for entry in entries]
    assert ["0.5000" in line for line in lines[1:]] == [True, True]
    assert [line.rstrip().endswith("yes") for line in lines[1:]] == [False, True]
    listed = json.loads(run("list", "--json")[1])
    assert listed["in_service"] == {"can/cars": entries[1].id}
    assert [model["mean_f1"] for model in listed["models"]] == [0.5, 0.5]


def test_ids_and_dates_stand_whole_on_one_line_of_a_terminal_of_eighty_columns(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.cli.tables.output_console", lambda: Console(highlight=False, width=80))
    entries = [add(registry, number, "hcrl_car_hacking") for number in (1, 2)]
    where = ("--registry", str(registry.path))
    out = run("list", *where)[1]
    for entry in entries:
        assert entry.id in out
        assert entry.created in out
    assert "0.5000" in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


def test_words_of_a_model_that_is_shown_are_broken_after_underscores_alone(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.cli.tables.output_console", lambda: Console(highlight=False, width=80))
    name = "test_02_unknown_vehicle_known_attack"
    content = {"f1": 0.5, "num_windows": 10.0}
    entry = registry.add(
        {"run.json": b"{}"}, family="can", dataset="cars", content="1" * 64, metrics={name: content}, provenance={}
    )
    other = add(registry, 2, "hcrl_car_hacking").id
    reasons = ("a: f1 0.9 -> 0.8, worse by more than 0.01",)
    registry.note(Judgement(model=entry.id, compared_with=other, accepted=False, reasons=reasons, by="nightly"))
    words = run("show", entry.id, "--registry", str(registry.path))[1].split()
    assert other in words
    parts = [*name.split("_"), "false", "alarm", "rate", "precision"]
    assert all(any(part in word.split("_") for word in words) for part in parts)


def test_means_of_different_test_sets_are_told_apart(registry: Registry) -> None:
    same, other = {"test_1": "aa", "test_2": "bb"}, {"test_1": "cc", "test_2": "bb"}
    add(registry, 1, measured_on=same)
    where = ("--registry", str(registry.path))
    add(registry, 2, measured_on=same)
    assert "only within a test set" not in run("list", *where)[1]
    add(registry, 3, measured_on=other)
    add(registry, 4, "trucks", measured_on=same)
    out = run("list", *where)[1]
    assert [line.split()[5] for line in out.splitlines()[1:5]] == ["A", "A", "B", "C"]
    assert "A mean F1 can be compared only within a test set." in out
    listed = json.loads(run("list", *where, "--json")[1])["models"]
    assert [model["test_sets"]["test_1"] for model in listed[:3]] == ["aa/10/0", "aa/10/0", "cc/10/0"]


def test_the_models_of_one_dataset_are_listed_alone(registry: Registry) -> None:
    add(registry, 1)
    truck = add(registry, 2, "trucks")
    where = ("--registry", str(registry.path))
    listed = json.loads(run("list", *where, "--dataset", "trucks", "--json")[1])
    assert [model["id"] for model in listed["models"]] == [truck.id]
    assert listed["in_service"] == {"can/trucks": truck.id}
    assert "did you mean 'trucks'" in run("list", *where, "--dataset", "truck")[2]


def test_two_models_are_compared_where_they_were_measured_on_the_same_recordings(registry: Registry) -> None:
    first = add(registry, 1, measured_on={"test_1": "aa", "test_2": "bb"})
    second = add(registry, 2, f1=0.75, measured_on={"test_1": "aa", "test_2": "cc"})
    third = add(registry, 3, f1=0.9, measured_on={"test_1": "dd", "test_2": "ee"})
    where = ("--registry", str(registry.path))
    status, out, _ = run("compare", first.id, second.id, *where)
    assert status == 0
    assert f"A is {first.id}, B is {second.id}" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith(("test_1", "mean"))}
    assert rows["test_1"][:4] == ["10", "0.5000", "0.7500", "+0.2500"]
    assert rows["mean"][:3] == ["0.5000", "0.7500", "+0.2500"]
    assert "test_2: other recordings" in out
    shown = json.loads(run("compare", first.id, second.id, *where, "--json")[1])
    assert shown["metrics"][second.id] == {"test_1": {"f1": 0.75, "num_windows": 10.0}}
    status, _, err = run("compare", second.id, third.id, *where)
    assert status == 1
    assert "were measured on different recordings: give --data-root DATA" in err


def test_why_a_model_did_not_go_into_service_is_shown(registry: Registry) -> None:
    first, second = add(registry, 1), add(registry, 2)
    reasons = ("mean f1 0.9 -> 0.9: not better [by far]", "a: f1 0.9 -> 0.8, worse by more than 0.01")
    decision = Judgement(model=second.id, compared_with=first.id, accepted=False, reasons=reasons, by="nightly")
    for again in (decision, decision.model_copy(update={"when": "2030-01-01T00:00:00+00:00"})):
        registry.note(again)  # a night that was continued says the same once more
    where = ("--registry", str(registry.path))
    out = run("show", second.id, *where)[1]
    assert "not into service" in out
    for reason in reasons:
        assert reason in out
    (shown,) = json.loads(run("show", second.id, *where, "--json")[1])["decisions"]
    assert shown["when"] == decision.when
    assert "decided" not in run("show", first.id, *where)[1]


def test_the_registry_of_the_installation_is_found(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order: --registry, KDGAT_REGISTRY, what `make deploy` was given, $KDGAT_HOME/registry."""
    home = registry.path.parent
    monkeypatch.delenv("KDGAT_REGISTRY", raising=False)
    monkeypatch.setenv("KDGAT_HOME", str(home))
    assert "which registry?" in run("list")[2]
    Installation.find({"KDGAT_HOME": str(home)}).write()
    assert run("list") == (0, "no model yet: the first night makes one\n", "")
    entry = add(registry, 1)
    assert entry.id in run("list")[1]
    given = Registry(home / "given")
    other = add(given, 2)
    Installation.find({"KDGAT_HOME": str(home), "KDGAT_REGISTRY": str(given.path)}).write()
    assert other.id in run("list")[1]
    monkeypatch.setenv("KDGAT_REGISTRY", str(registry.path))
    assert entry.id in run("list")[1]
    assert other.id in run("list", "--registry", str(given.path))[1]


def test_a_model_is_shown_with_where_it_comes_from_and_only_while_its_files_are_whole(registry: Registry) -> None:
    first, second = add(registry, 1), add(registry, 2)
    where = ("--registry", str(registry.path))
    status, out, _ = run("show", first.id, *where)
    assert status == 0
    for words in ("abcdef with changes", "scratch", "test_1", f"since then: {second.id}", str(registry.path)):
        assert words in out
    shown = json.loads(run("show", second.id, *where, "--json")[1])
    assert shown["in_service"]
    assert shown["files"].keys() == {"run.json", "weights"}
    assert [change["model"] for change in shown["history"]] == [second.id]
    (registry.model_path(first.id) / "weights").unlink()
    status, _, err = run("show", first.id, *where)
    assert status == 1
    assert "weights is missing" in err


def test_a_person_promotes_and_rolls_back_and_the_history_says_who_and_why(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    first, second = add(registry, 1), add(registry, 2)
    where = ("--registry", str(registry.path))
    assert run("promote", first.id, *where, "--reason", "the new one beeps")[0] == 0
    assert run("rollback", *where)[1].startswith(f"can/cars: {second.id} is in service")
    changes = registry.read().history
    assert [(change.kind, change.by, change.reason) for change in changes[2:]] == [
        ("promotion", "ann", "the new one beeps"),
        ("rollback", "ann", "by hand"),
    ]
    assert run("rollback", *where)[0] == 0
    status, _, err = run("rollback", *where)
    assert status == 1
    assert f"no model was in service before {first.id}" in err


def test_a_person_holds_a_model_and_releases_it_and_everybody_sees_who_and_why(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    first, second = add(registry, 1), add(registry, 2)
    where = ("--registry", str(registry.path))
    assert "held" not in run("list", *where)[1]
    shown = run("rollback", "--hold", "--reason", "it [always] beeps", *where)
    assert shown[1] == f"can/cars: {first.id} is held in service, before: {second.id}\n"
    lines = run("list", *where)[1].splitlines()
    assert [line.rstrip().endswith("held") for line in lines[1:3]] == [True, False]
    assert lines[3].startswith(f"can/cars: {first.id} is held by ann since ")
    assert lines[3].endswith("it [always] beeps")
    listed = json.loads(run("list", *where, "--json")[1])
    assert listed["held"]["can/cars"]["by"] == "ann"
    assert [model["held"] for model in listed["models"]] == [True, False]
    out = run("show", first.id, *where)[1]
    assert "held by ann since" in out
    assert out.count("it [always] beeps") == 2  # the hold, and the history
    assert json.loads(run("show", first.id, *where, "--json")[1])["held"]["reason"] == "it [always] beeps"
    assert json.loads(run("show", second.id, *where, "--json")[1])["held"] is None

    assert run("release", *where)[1] == f"can/cars: {first.id} is in service\n"
    assert json.loads(run("list", *where, "--json")[1])["held"] == {}
    assert "nights may replace it" in run("show", first.id, *where)[1]
    assert "no model is held in service" in run("release", *where)[2]
    assert run("promote", first.id, "--hold", *where)[1] == f"can/cars: {first.id} is held in service\n"
    assert "nights leave it in service" in run("show", first.id, *where)[1]
    assert run("promote", second.id, *where)[0] == 0  # what a person decides next ends a hold
    assert registry.read().holds() == {}


def test_a_dataset_may_have_any_name(registry: Registry) -> None:
    name = "[red]müller/süd"
    entry = add(registry, 1, name)
    where = ("--registry", str(registry.path))
    assert name in run("list", *where)[1]
    assert name in run("show", entry.id, *where)[1]
    assert run("promote", entry.id, "--hold", *where)[1].startswith(f"can/{name}: ")
    assert run("release", "--dataset", name, *where)[0] == 0


def test_mistakes_are_one_line_that_says_what_to_do(registry: Registry) -> None:
    entry = add(registry, 1)
    where = ("--registry", str(registry.path))
    for words, expected in (
        (("show", entry.id[:-1], *where), f"did you mean {entry.id}"),
        (("promote", entry.id, *where), "in service for can/cars already"),
        (("rollback", "--dataset", "card", *where), "did you mean 'cars'"),
    ):
        status, out, err = run(*words)
        assert (status, out) == (1, "")
        assert expected in err
        assert err.count("\n") == 1
    add(registry, 2, "trucks")
    assert "name one of cars, trucks" in run("rollback", *where)[2]
