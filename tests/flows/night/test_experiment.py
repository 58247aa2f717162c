"""Nights of an experiment whose data lie in a folder, by calling the flow as a deployment does."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from prefect.client.schemas.objects import State

import kdgat
from flows.night.experiment import nightly_experiment
from kdgat.experiment.config import ExperimentConfig
from kdgat.family.night import NightLedger, NightlyDirectory
from kdgat.registry import Registry
from kdgat.stage import RunDirectory
from kdgat.stage.provenance import read_attempts
from tests.support.command_line import kdgat as command
from tests.support.servers import PrefectServer

SOURCE = """
from pathlib import Path

import torch
from lightning import LightningModule

from kdgat.experiment import Experiment


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def error(self, batch):
        return torch.nn.functional.mse_loss(self.layer(batch[0]).squeeze(1), batch[1])

    def training_step(self, batch):
        return self.error(batch)

    def validation_step(self, batch):
        self.log("val_loss", self.error(batch))

    def test_step(self, batch):
        self.log("test_error", self.error(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data(root: Path):
    slope = float((root / "slope.txt").read_text())
    x = torch.randn(96, 2, generator=torch.Generator().manual_seed(0))
    learned = [(one, slope * one.sum()) for one in x]
    noise = float((root / "noise.txt").read_text())
    return learned[:64], learned[64:80], [(one, one.sum() + noise) for one in x[80:]]


experiment = Experiment(Net, data, training={"monitor": "val_loss", "max_epochs": 10, "batch_size": 16})
"""


class Nights:
    """The places of a deployment, and one night after the other in it."""

    def __init__(self, path: Path) -> None:
        self.source, self.root = path / "lines.py", path / "numbers"
        self.registry, self.directory = Registry(path / "registry"), NightlyDirectory(path / "nights" / "lines")
        self.root.mkdir()
        self.source.write_text(SOURCE)

    def run(self, slope: float, *overrides: str, noise: float = 0.0, **others: Any) -> State[Any]:
        (self.root / "slope.txt").write_text(str(slope))
        (self.root / "noise.txt").write_text(str(noise))
        config = ExperimentConfig.from_preset("quick", {"source": str(self.source), "root": str(self.root)}, overrides)
        places = {"registry": self.registry.path, "out": self.directory.path}
        return nightly_experiment(config=config, **places, **others, return_state=True)

    def in_service(self) -> str | None:
        entry = self.registry.in_service("experiment", "lines")
        return None if entry is None else entry.id

    def models(self) -> list[str]:
        return [entry.id for entry in self.registry.read().models]


@pytest.fixture
def nights(prefect_server: PrefectServer, tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def test_a_better_model_goes_into_service_a_worse_one_does_not_and_without_a_change_none_is_trained(
    nights: Nights,
) -> None:
    state = nights.run(0.5)
    assert state.is_completed(), state.message
    first = nights.in_service()
    assert f"the first night; {first} went into service: no model was in service before" in str(state.message)
    assert str(nights.run(0.5).message) == f"nothing new; in service: {first}"
    assert nights.models() == [first]

    better = nights.run(1.0)
    assert better.is_completed(), better.message
    second = nights.in_service()
    assert second not in (first, None)
    assert f"files changed since {first}; {second} went into service: test.error is " in str(better.message)
    assert ", better than " in str(better.message)

    worse = nights.run(-1.0)
    assert worse.is_completed(), worse.message
    assert nights.in_service() == second
    third = nights.models()[-1]
    assert f"{third} was registered and did not go into service: test.error is " in str(worse.message)
    assert [one.accepted for one in nights.registry.read().decisions_about(third)] == [False]
    entries = nights.registry.read().models
    assert len({entry.test_set("test") for entry in entries}) == 1  # on equal samples they can be compared
    assert entries[0].metrics["test"]["error"] > entries[1].metrics["test"]["error"]
    report = nights.directory.latest_report()
    assert report is not None
    assert "| metric | in service before | new |" in report.read_text()

    # What is in service is a network by itself, and people decide by the commands that they know.
    network = kdgat.load_model(str(second), registry=nights.registry.path)
    assert network.layer.weight.detach() == pytest.approx(torch.ones(1, 2), abs=0.1)
    command("model", "promote", third, "--registry", nights.registry.path, status=0)
    command("model", "rollback", "--hold", "--registry", nights.registry.path, status=0)
    assert nights.in_service() == second
    held = nights.run(0.5, tolerance=10.0)  # as in the first night, whose stages are not repeated
    assert ", within the tolerance of 10; " in str(held.message)
    assert f"{second} is held by" in str(held.message)
    assert nights.in_service() == second
    assert nights.models() == [first, second, third]
    command("model", "release", "--registry", nights.registry.path, status=0)
    shown = command("model", "show", second, "--registry", nights.registry.path, status=0)
    assert "error" in shown.stdout


def test_a_model_in_service_is_measured_by_its_own_code_and_what_cannot_be_compared_waits_for_a_person(
    nights: Nights,
) -> None:
    assert nights.run(0.9).is_completed()
    first = nights.in_service()
    state = nights.run(0.9, noise=math.nan)
    assert str(state.message).endswith("did not go into service: test.error is nan")
    assert nights.in_service() == first
    assert nights.registry.read().models[-1].metrics == {"test": {"error": None}}

    wider = SOURCE.replace("torch.nn.Linear(2, 1)", "torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))")
    nights.source.write_text(wider)
    state = nights.run(0.9, "training.max_epochs=1", metric="test.error")
    assert state.is_completed(), state.message
    assert str(state.message).startswith(f"files and code and configuration changed since {nights.models()[1]}; ")
    assert ", worse than " in str(state.message)
    assert nights.in_service() == first

    # Samples that the model in service does not take: nobody but a person can say which is better.
    three = wider.replace("Linear(2, 3)", "Linear(3, 3)").replace("randn(96, 2", "randn(96, 3")
    nights.source.write_text(three)
    state = nights.run(0.9)
    assert state.is_completed(), state.message
    new = nights.models()[-1]
    assert f"{first} cannot be compared: " in str(state.message)
    assert f"decide by `kdgat model promote {new}`" in str(state.message)
    assert nights.in_service() == first
    nights.source.unlink()
    for model, width in ((str(first), 2), (new, 3)):
        assert next(kdgat.load_model(model, registry=nights.registry.path).parameters()).shape[1] == width


def test_a_night_that_dies_after_any_step_is_gone_on_with_and_decides_once(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nights.run(0.5).is_completed()
    first = nights.in_service()

    def die(*_: object, **__: object) -> None:
        raise ConnectionError("dead")

    steps = [(Registry, "add"), (Registry, "promote"), (Registry, "note"), (NightLedger, "write")]
    in_service = []
    for owner, name in steps:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, die)
            assert nights.run(1.0).is_failed()
        in_service.append(nights.in_service())
    second = nights.models()[-1]
    assert in_service == [first, first, second, second]
    assert str(nights.run(1.0).message).startswith(f"files changed since {first}; {second} went into service")
    assert nights.models() == [first, second]
    assert len(nights.directory.records()) == 2  # all in one run, whose stages were not repeated
    stages = [stage for path in nights.directory.records() for stage in path.glob("stages/*-seed0-*")]
    assert len(stages) == 6
    assert {len(read_attempts(RunDirectory(stage).provenance_path)) for stage in stages} == {1}
    assert str(nights.run(1.0).message) == f"nothing new; in service: {second}"
