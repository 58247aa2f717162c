"""`deployments/prefect.yaml` against the flows that it names: what it says, they take."""

import importlib.util
import inspect
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.schemas.schedules import CronSchedule
from prefect.flows import Flow
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object
from prefect.utilities.schema_tools.validation import validate
from prefect.utilities.templating import apply_values

from flows.deployment.installation import POOL, PREFECT_FILE, Installation, describe
from flows.deployment.service import MARK
from flows.log_tail import MAX_LOG_BYTES
from kdgat.canbus.catalog import load_catalog

SET_FOLDER = "prefect.deployments.steps.set_working_directory"
ROOT = Path(__file__).parents[2]
CONTENT: dict[str, Any] = yaml.safe_load((ROOT / PREFECT_FILE).read_text())
DEPLOYMENTS: list[dict[str, Any]] = CONTENT["deployments"]


def flow_of(deployment: dict[str, Any]) -> Flow[..., Any]:
    path, _, name = deployment["entrypoint"].partition(":")
    found = import_object(f"{path.removesuffix('.py').replace('/', '.')}.{name}")
    assert isinstance(found, Flow)
    return found


def full_name(deployment: dict[str, Any]) -> str:
    return f"{flow_of(deployment).name}/{deployment['name']}"


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("KDGAT_DATA_ROOT", "KDGAT_SITE", "KDGAT_NIGHTLY_CRON", "KDGAT_TIMEZONE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KDGAT_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "data" / "hcrl_sa").mkdir(parents=True)
    return describe()


def filled(deployment: dict[str, Any], installation: dict[str, Any]) -> dict[str, Any]:
    content = apply_values(deployment, {"installation": installation})
    assert "{{" not in yaml.safe_dump(content)
    return content


def test_every_dataset_of_the_catalog_is_trained_and_has_its_nights() -> None:
    trained = {name.replace("_", "-") for name in load_catalog(None)}
    names = sorted(full_name(deployment) for deployment in DEPLOYMENTS)
    assert names == sorted(
        [f"{flow}/{name}" for flow in ("can", "nightly") for name in trained]
        + ["evaluate-can/recordings", "lap/assignment", "trees/folder"]
    )


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=full_name)
def test_parameters_are_those_of_the_flow_and_of_the_kind_that_it_takes(
    deployment: dict[str, Any], installation: dict[str, Any]
) -> None:
    flow, content = flow_of(deployment), filled(deployment, installation)
    parameters = inspect.signature(flow.fn).parameters
    assert set(content["parameters"]) <= set(parameters)
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    assert required <= set(content["parameters"])
    # The check that the server makes, and the one that the flow makes.
    validate(content["parameters"], parameter_schema(flow).model_dump_for_openapi(), raise_on_error=True)
    assert flow.validate_parameters(content["parameters"])


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=full_name)
def test_a_person_finds_out_what_it_does(deployment: dict[str, Any]) -> None:
    assert deployment["description"].endswith(".")
    assert len({"can", "lap", "trees"} & set(deployment["tags"])) == 1
    assert len(deployment["tags"]) > 1
    assert deployment["work_pool"] == {"name": POOL}
    dataset = deployment["parameters"].get("config", {}).get("data", {}).get("dataset")
    if dataset is not None:
        assert deployment["name"] == dataset.replace("_", "-")
        assert dataset in deployment["tags"]
        assert Path(deployment["parameters"]["out"]).name == dataset
        assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}


def test_no_two_deployments_write_into_one_directory() -> None:
    places = [deployment["parameters"]["out"] for deployment in DEPLOYMENTS]
    assert len(set(places)) == len(places)


def test_nights_have_a_time_and_a_zone_and_are_awake_where_there_are_data(installation: dict[str, Any]) -> None:
    nights = [filled(d, installation) for d in DEPLOYMENTS if flow_of(d).name == "nightly"]
    assert nights
    for night in nights:
        (schedule,) = night["schedules"]
        checked = CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
        assert (checked.cron, checked.timezone) == ("0 2 * * *", Installation.find().timezone)
        assert schedule["active"] is (night["name"] == "hcrl-sa")


def test_runs_begin_in_the_checkout(installation: dict[str, Any]) -> None:
    (inputs,) = [step[SET_FOLDER] for step in CONTENT["pull"] if SET_FOLDER in step]
    assert apply_values(inputs, {"installation": installation}) == {"directory": str(ROOT)}
    assert importlib.util.find_spec("flows.deployment.installation") is not None


def test_runs_begin_with_logs_of_bounded_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = {name for step in CONTENT["pull"] for name in step} - {SET_FOLDER}
    log = tmp_path / "worker.log"
    log.write_bytes(b"a line\n" * (2 * MAX_LOG_BYTES // 7))
    step = import_object(name)
    monkeypatch.delenv(MARK, raising=False)
    step()
    assert log.stat().st_size > MAX_LOG_BYTES
    monkeypatch.setenv(MARK, str(tmp_path / "worker.json"))
    step()
    assert log.stat().st_size <= MAX_LOG_BYTES


@pytest.mark.processes
def test_a_dataset_of_ones_own_gets_the_deployments_of_the_synthetic_one_by_one_command(tmp_path: Path) -> None:
    path = tmp_path / PREFECT_FILE
    path.parent.mkdir()
    for name in (PREFECT_FILE, "Makefile"):
        shutil.copy(ROOT / name, tmp_path / name)

    def make(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "-C", str(tmp_path), "deployment", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert "error: name its folder: " in make().stderr
    assert "error: name its folder: " in make("DATASET=my cars").stderr
    assert path.read_text() == (ROOT / PREFECT_FILE).read_text()
    assert make("DATASET=my_cars").returncode == 0
    *before, training, night = yaml.safe_load(path.read_text())["deployments"]
    assert before == DEPLOYMENTS
    for new, like in zip((training, night), (one for one in DEPLOYMENTS if one["name"] == "synthetic"), strict=True):
        assert full_name(new) == full_name(like).replace("synthetic", "my-cars")
        assert new["parameters"] == yaml.safe_load(yaml.safe_dump(like["parameters"]).replace("synthetic", "my_cars"))
    assert "active" not in night["schedules"][0]
    assert "has my_cars" in make("DATASET=my_cars").stderr
