"""A file of one's own as a deployment: the block that `make deployment` writes, and runs of it on an installation."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object
from prefect.utilities.schema_tools.validation import ValidationError, validate
from prefect.utilities.templating import apply_values

from flows.deployment.installation import PREFECT_FILE
from flows.deployment.server_content import missing_folder
from flows.experiment import experiment
from flows.night.experiment import nightly_experiment
from kdgat.experiment import example
from kdgat.experiment.results import ExperimentResults
from kdgat.registry import Registry
from kdgat.run import OutputDirectory, StageState
from tests.deployments.installed import ROOT, Installed
from tests.support.waiting import wait_until

SMALL = ["data.graphs=40", "model.hidden=4", "training.max_epochs=1"]


class Written:
    """A file of a person, and the deployments of a checkout that has been given it."""

    def __init__(self, path: Path) -> None:
        self.source, self.root = path / "my files" / "my_net.py", path / "graphs"
        self.prefect_file = path / PREFECT_FILE
        for folder in (self.source.parent, self.root, self.prefect_file.parent):
            folder.mkdir()
        shutil.copy(example.__file__, self.source)
        for name in (PREFECT_FILE, "Makefile"):
            shutil.copy(ROOT / name, path / name)

    def make(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Give `make deployment`."""
        command = ["make", "-C", str(self.prefect_file.parents[1]), "deployment", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def blocks(self) -> list[dict[str, Any]]:
        known = len(yaml.safe_load((ROOT / PREFECT_FILE).read_text())["deployments"])
        return list(yaml.safe_load(self.prefect_file.read_text())["deployments"][known:])


@pytest.mark.processes
def test_a_file_gets_its_deployments_by_one_command_with_parameters_that_server_and_flow_take(tmp_path: Path) -> None:
    written = Written(tmp_path)
    assert written.make(f"FILE={written.source}", f"ROOT={written.root}").returncode == 0
    blocks = written.blocks()
    assert len({block["parameters"]["out"] for block in blocks}) == 2
    installation = {"outputs": "/outputs", "site": "local", "registry": "/registry"}
    for block, flow in zip(blocks, (experiment, nightly_experiment), strict=True):
        assert block["name"] == "my-net"
        path, _, name = block["entrypoint"].partition(":")
        assert import_object(f"{path.removesuffix('.py').replace('/', '.')}.{name}") is flow
        assert block["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
        parameters = apply_values(block["parameters"], {"installation": installation})
        assert Path(parameters["out"]).name == "my-net"
        config = parameters["config"]
        assert config == {"source": str(written.source), "root": str(written.root)}
        schema = parameter_schema(flow).model_dump_for_openapi()
        validate(parameters, schema, raise_on_error=True)
        assert flow.validate_parameters(parameters)["config"].source == str(written.source)
        for wrong in ({"source": "net.py"}, {**config, "root": "graphs"}, {}):  # the worker runs in another folder
            with pytest.raises(ValidationError):
                validate({**parameters, "config": wrong}, schema, raise_on_error=True)
    (schedule,) = blocks[1]["schedules"]
    assert (schedule["slug"], schedule["active"]) == ("night", True)


@pytest.mark.processes
def test_what_is_no_file_or_has_its_deployment_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    written = Written(tmp_path)
    assert written.make(f"FILE={written.source}").returncode == 0
    blocks = written.blocks()
    assert [set(block["parameters"]["config"]) for block in blocks] == [{"source"}] * 2
    assert blocks[1]["schedules"][0]["active"] is False  # nothing new comes by night
    assert "has deployments called my-net" in written.make(f"FILE={written.source}").stderr
    assert "No such file" in written.make("FILE=missing.py").stderr
    assert "name a Python file" in written.make(f"FILE={written.root}").stderr
    assert written.blocks() == blocks


def test_arguments_of_a_data_function_are_no_dataset_of_a_catalog(tmp_path: Path) -> None:
    data = {"dataset": "hcrl_sa", "data_root": str(tmp_path)}
    assert missing_folder({"config": {"data": data}}) == tmp_path / "hcrl_sa"
    assert missing_folder({"config": {"source": "/net.py", "data": data}}) is None


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    found = Installed(tmp_path / "installation")
    try:
        answer = found.command("up")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        yield found
    finally:
        found.command("down")
        assert found.processes() == {}


@pytest.mark.prefect
def test_a_deployed_file_runs_leaves_its_results_has_nights_and_one_run_at_a_time(
    installed: Installed, tmp_path: Path
) -> None:
    written = Written(tmp_path)
    assert written.make(f"FILE={written.source}").returncode == 0
    environment = {**installed.environment, **installed.here.environment()}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--prefect-file", str(written.prefect_file)]
    command += ["--name", "experiment/my-net", "--name", "nightly/my-net"]
    deployed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    assert installed.command("update").returncode == 0
    listed = installed.command("status").stdout
    assert "  experiment/my-net\n" in listed
    assert re.search("  nightly/my-net +schedule paused\n", listed)

    done = installed.watched_run("experiment/my-net", overrides=SMALL)
    assert done.returncode == 0, done.stdout + done.stderr + installed.log()
    out = installed.here.outputs / "experiment" / "my-net"
    results = ExperimentResults.read(out / "results.json")
    assert list(results.metrics) == ["test.error"]
    assert (out / "report.html").is_file()
    config = OutputDirectory(out).read_index().config
    assert config["training"]["batch_size"] == 32  # as the file declares
    keys = {row["key"] for row in installed.api("POST", "/artifacts/filter", {})}
    assert {"report-experiment-my-net", "metrics-experiment-my-net"} <= keys

    night = installed.watched_run("nightly/my-net", overrides=SMALL)
    assert night.returncode == 0, night.stdout + night.stderr + installed.log()
    assert "went into service: no model was in service before; test.error is " in night.stdout
    assert Registry(installed.here.registry).in_service("experiment", "my-net") is not None
    keys = {row["key"] for row in installed.api("POST", "/artifacts/filter", {})}
    assert "night-my-net" in keys

    moved = installed.watched_run("experiment/my-net", config={"source": str(tmp_path / "moved.py")})
    assert moved.returncode == 1
    assert f"source {tmp_path / 'moved.py'} is no file: name the one that holds the Experiment" in moved.stdout

    endless = [*SMALL, "training.max_epochs=100000", "training.checkpoint_every_steps=1", "training.patience=null"]
    long = tmp_path / "long"
    first = installed.start_run("experiment/my-net", overrides=endless, out=str(long))
    wait_until(lambda: list(long.glob("stages/small-*/checkpoints/*.pt")), "a checkpoint", log=installed.log)
    second = installed.watched_run("experiment/my-net", overrides=SMALL)
    assert second.returncode == 1
    assert "finished in state 'Cancelled'" in second.stdout + second.stderr
    assert installed.prefect("flow-run", "cancel", first).returncode == 0
    installed.wait_for_state(first, "Cancelled")
    assert OutputDirectory(long).read_index().record("small-seed0").state == StageState.PAUSED
