"""Stages of every family search for the size of their batches, train with it, and keep it when they are killed."""

import itertools
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kdgat.family import find_family
from kdgat.run import OutputDirectory, RunConfig, run_locally
from kdgat.run.plan import create_stage
from kdgat.stage import Finished, RunDirectory
from kdgat.stage.runner import run_stage
from kdgat.training.batch_size.search import FILE_NAME, BatchDecision
from tests.can.stage_inputs import FAST, SMALL_AUTOENCODER, SMALL_GAT, make_stage, make_stores
from tests.lap.runs import SMALL
from tests.lap.runs import small_config as small_lap
from tests.trees.small_runs import small_config as small_trees

FAMILIES = ("can", "lap", "trees")
MODES = ("static", "tuner", "trial")
BUDGETS = {"can": "1M", "lap": "1M", "trees": "2M"}
FACTOR = 0.5

# A stage that dies as soon as its decision has its name, before any step of training.
KILLED = f"""
import os, runpy, signal, sys

is_decided = False

def see(name, arguments):
    global is_decided
    if is_decided and name == "open":
        os.kill(os.getpid(), signal.SIGKILL)
    is_decided |= name == "os.rename" and str(arguments[1]).endswith("{FILE_NAME}")

sys.addaudithook(see)
runpy.run_module("kdgat.stage", run_name="__main__")
"""

Maker = Callable[[str, str], RunDirectory]
"""Makes the directory of a stage that trains, given a mode and a memory budget."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def make(family: str, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    path = tmp_path_factory.mktemp(family)
    return make_can(path) if family == "can" else make_planned(family, path)


def make_can(path: Path) -> Maker:
    """Return what makes curricula, whose epochs grow, on planted windows."""
    stores = make_stores(path)
    config = {"autoencoder": SMALL_AUTOENCODER, "training": FAST}
    autoencoder = make_stage(path / "autoencoder", "autoencoder", config, stores)
    run(autoencoder)

    def of(mode: str, budget: str) -> RunDirectory:
        training = FAST | {"batch_size_mode": mode, "memory_budget": budget, "safety_factor": FACTOR}
        curriculum = {"start_ratio": 0.5, "end_ratio": 2.0, "ramp_fraction": 1.0}
        config = {"gat": SMALL_GAT, "training": training, "curriculum": curriculum}
        weights = autoencoder.weights_path
        return make_stage(path / f"{mode}-{budget}", "curriculum", config, stores, autoencoder=weights)

    return of


def make_planned(name: str, path: Path) -> Maker:
    """Return what makes the first training stage of a plan, whose preparation has finished."""
    stage = {"lap": f"{SMALL}-seed0", "trees": "pretrain-seed0"}[name]

    def of(mode: str, budget: str) -> RunDirectory:
        overrides = (
            f"training.batch_size_mode={mode}",
            f"training.memory_budget={budget}",
            f"training.safety_factor={FACTOR}",
            "training.accelerator=cpu",  # which alone has so little memory
        )
        config: RunConfig = small_lap(overrides, stages=[SMALL]) if name == "lap" else small_trees(*overrides)
        planned_run = find_family(name).plan(config)
        planned = next(one for one in planned_run.plan if one.name == stage)
        finished = run_locally(planned_run, path, only=planned.depends_on)
        return create_stage(planned_run, planned, finished, OutputDirectory(path))[0]

    return of


def decision_of(directory: RunDirectory) -> BatchDecision:
    [path] = directory.checkpoints_path.rglob(FILE_NAME)
    return BatchDecision.model_validate_json(path.read_bytes())


def steps_of(directory: RunDirectory) -> list[int]:
    """Return the optimizer steps of each epoch."""
    ends = [0, *(int(str(row["step"])) for row in directory.read_metrics())]
    return [end - begin for begin, end in itertools.pairwise(ends)]


def run(directory: RunDirectory) -> None:
    """Run a stage in this process, if it has not finished."""
    if not directory.is_finished():
        outcome = run_stage(directory, quiet=True)
        assert isinstance(outcome, Finished), outcome


@pytest.mark.parametrize("mode", MODES)
def test_epochs_have_as_many_steps_as_the_size_that_was_found_makes_batches(
    make: Maker, family: str, mode: str
) -> None:
    directory = make(mode, BUDGETS[family])
    run(directory)
    decision, steps = decision_of(directory), steps_of(directory)
    assert (decision.mode, decision.factor) == (mode, FACTOR)
    assert decision.size == int(decision.found * FACTOR)
    assert decision.unit == {"can": "graphs", "lap": "edges", "trees": "paths"}[family]
    assert decision.epoch == (2 if family == "can" else 0)
    assert steps[decision.epoch] == decision.num_batches
    assert decision.num_batches > 1
    if family == "can":
        assert steps[0] < steps[-1]
    assert decision.describe() in directory.log_path.read_text()
    work = directory.read_work()
    assert work is not None
    assert list(work.batch_size.values()) == [decision.size]


def test_a_budget_twice_as_large_makes_batches_twice_as_large(make: Maker, family: str) -> None:
    found = []
    for budget in (BUDGETS[family], f"{2 * int(BUDGETS[family][:-1])}M"):
        directory = make("static", budget)
        run(directory)
        found.append(decision_of(directory).found)
    assert 1.5 < found[1] / found[0] < 2.7


@pytest.mark.processes
def test_a_stage_that_is_killed_after_the_search_ends_with_the_same_bytes(make: Maker, family: str) -> None:
    undisturbed = make("tuner", BUDGETS[family])
    run(undisturbed)
    killed = RunDirectory(undisturbed.path.with_name("killed"))
    shutil.rmtree(killed.path, ignore_errors=True)
    killed.create(undisturbed.read_spec())
    process = subprocess.run([sys.executable, "-c", KILLED, str(killed.path), "--quiet"])
    assert process.returncode == -signal.SIGKILL
    assert killed.newest_checkpoint() == ""
    assert decision_of(killed) == decision_of(undisturbed)
    run(killed)
    assert f"as decided before: {decision_of(undisturbed).describe()}" in killed.log_path.read_text()
    assert steps_of(killed) == steps_of(undisturbed)
    assert killed.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()
    assert killed.metrics_path.read_bytes() == undisturbed.metrics_path.read_bytes()
