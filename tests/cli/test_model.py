"""`kdgat model` on a small registry."""

import json
from pathlib import Path

import pytest

from kdgat.registry.entry import ModelEntry
from kdgat.registry.registry import Registry
from tests.support.command_line import Answer, kdgat


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


def add(registry: Registry, number: int, dataset: str = "cars") -> ModelEntry:
    entry = registry.add(
        {"run.json": b"{}", "weights": bytes([number])},
        family="can",
        dataset=dataset,
        content=f"{number:x}" * 64,
        metrics={"test_1": {"f1": 0.5, "num_windows": 10.0}, "test_2": {"f1": None}},
        provenance={"git": {"revision": "abcdef", "dirty": True}, "config_hash": "0123"},
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


def test_mistakes_are_one_line_that_says_what_to_do(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KDGAT_REGISTRY", raising=False)
    entry = add(registry, 1)
    where = ("--registry", str(registry.path))
    for words, expected in (
        (("list",), "--registry DIR, or set KDGAT_REGISTRY"),
        (("list", "--registry", str(tmp_path)), "is no registry"),
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
