"""What is refused before a run is made, with deployments as `deployments/prefect.yaml` has them."""

from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object
from prefect.utilities.templating import apply_values

from flows.deployment.data import NO_DATA
from flows.deployment.installation import PREFECT_FILE, describe
from flows.deployment.server_api import ServerApi
from flows.deployment.submission import Deployment, check, output_of, read_parameters, submit
from kdgat.canbus.simulation import write_dataset
from kdgat.stage.families import is_user_error

ROOT = Path(__file__).parents[2]


@cache
def schema_of(module: str, name: str) -> dict[str, Any]:
    return parameter_schema(import_object(f"{module}.{name}")).model_dump_for_openapi()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home")
    write_dataset(path / "data", "synthetic", "tiny")
    return path


@pytest.fixture
def deployments(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Deployment]:
    for name in ("KDGAT_DATA_ROOT", "KDGAT_OUTPUTS", "KDGAT_INBOX", "KDGAT_SITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KDGAT_HOME", str(home))
    content = apply_values(yaml.safe_load((ROOT / PREFECT_FILE).read_text()), {"installation": describe()})
    found = {}
    for row in content["deployments"]:
        module, _, function = row["entrypoint"].partition(":")
        module = module.removesuffix(".py").replace("/", ".")
        name = f"{import_object(f'{module}.{function}').name}/{row['name']}"
        found[name] = Deployment(name, {**row, "parameter_openapi_schema": schema_of(module, function)})
    return found


def test_every_deployment_with_data_is_taken_as_it_stands_and_those_without_are_refused(
    deployments: dict[str, Deployment], home: Path
) -> None:
    for name, deployment in deployments.items():
        given = read_parameters(deployment, (), ())
        dataset = name.partition("/")[2].replace("-", "_")
        if name.startswith(("can-ids", "nightly")) and dataset != "synthetic":
            with pytest.raises(ValueError, match=f"{name} has no data yet: {home}/data/{dataset} is not there"):
                check(deployment, given)
        else:
            check(deployment, given)
        out = output_of(deployment, deployment.row["parameters"])
        trains_itself = not name.startswith(("nightly", "evaluate-can"))
        assert out == (Path(deployment.row["parameters"]["out"]) if trains_itself else None)


@pytest.mark.parametrize(
    ("name", "parameters", "overrides", "words"),
    [
        ("can-ids/synthetic", [], ["training.max_epoch=3"], ["training.max_epoch=3", "did you mean 'max_epochs'"]),
        ("can-ids/synthetic", [], ["training.max_epochs=many"], ["training.max_epochs=many", "int"]),
        ("can-ids/synthetic", [], ["training"], ["'training' has no key=value form"]),
        ("can-ids/synthetic", ['overrides=["a=1"]'], [], ["a=1", "unknown key 'a'"]),
        ("can-ids/synthetic", ["overrides=[3]"], [], ["overrides=[3]", "write overrides="]),
        ("can-ids/synthetic", ["presett=full"], [], ["unknown parameter 'presett'", "did you mean 'preset'"]),
        ("can-ids/synthetic", ["preset=fast"], [], ["preset 'fast'", "full, quick, tutorial"]),
        ("can-ids/synthetic", ["preset"], [], ["'preset' has no NAME=VALUE form"]),
        ("can-ids/synthetic", ["site=pitzerr"], [], ["site 'pitzerr'", "did you mean 'osc-pitzer'"]),
        ("can-ids/synthetic", ['site={"nam": "a"}'], [], ["site.", "unknown key 'nam'", "'name'"]),
        ("can-ids/synthetic", ['command_line={"walltime": "abc"}'], [], ["command_line.walltime='abc'", "16:00:00"]),
        ("can-ids/synthetic", ['command_line={"walltim": "90"}'], [], ["command_line.", "'walltim'", "'walltime'"]),
        ("can-ids/synthetic", ['command_line={"walltime": "90"}'], [], ["site local", "leave it out"]),
        ("can-ids/synthetic", ["config=3"], [], ["config=3", "JSON object"]),
        ("can-ids/synthetic", ['config={"dat": {}}'], [], ["unknown key 'dat'", "'data'"]),
        ("nightly/synthetic", [], ["training.max_epoch=3"], ["did you mean 'max_epochs'"]),
        ("nightly/synthetic", ["promotions={}"], [], ["did you mean 'promotion'"]),
        ("nightly/synthetic", ['promotion={"margi": 0.1}'], [], ["promotion.", "'margi'", "'margin'"]),
        ("nightly/synthetic", [], ["stages=[normal]"], ["stage evaluation; add it"]),
        ("progressive/assignment", [], ["training.max_epoch=3"], ["did you mean 'max_epochs'"]),
        ("gtssl/trees", ["preset=fast"], [], ["preset 'fast'"]),
        ("evaluate-can/recordings", [], ["a=1"], ["unknown parameter 'overrides'"]),
    ],
)
def test_a_mistake_is_refused_in_one_line_with_key_value_and_fix(
    deployments: dict[str, Deployment], name: str, parameters: list[str], overrides: list[str], words: list[str]
) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        check(deployments[name], read_parameters(deployments[name], parameters, overrides))
    assert is_user_error(error.value)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_values_are_read_as_their_parameters_want_them(
    deployments: dict[str, Deployment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ["out=runs/a", "pool=2", "preset=full", 'command_line={"cores": 4}']
    assert read_parameters(deployments["can-ids/synthetic"], texts, ()) == {
        "out": str(tmp_path / "runs" / "a"),  # the flow runs in another folder
        "pool": 2,
        "preset": "full",
        "command_line": {"cores": 4},
    }
    evaluation = deployments["evaluate-can/recordings"]
    assert read_parameters(evaluation, ["run=a", "dataset=2026"], ()) == {"run": str(tmp_path / "a"), "dataset": "2026"}
    assert read_parameters(evaluation, ["run=null"], ()) == {"run": None}


def test_overrides_come_after_those_of_the_deployment(deployments: dict[str, Deployment]) -> None:
    row = deployments["can-ids/synthetic"].row
    own = Deployment("can-ids/synthetic", {**row, "parameters": {**row["parameters"], "overrides": ["seeds=[1]"]}})
    assert read_parameters(own, (), ["seeds=[2]"]) == {"overrides": ["seeds=[1]", "seeds=[2]"]}
    assert read_parameters(own, ['overrides=["seeds=[3]"]'], ["a=1"]) == {"overrides": ["seeds=[3]", "a=1"]}


def test_a_night_whose_recordings_wait_in_the_inbox_has_data(deployments: dict[str, Deployment], home: Path) -> None:
    waiting = home / "inbox" / "hcrl_sa" / "train_01__drive.parquet"
    waiting.parent.mkdir(parents=True)
    waiting.write_bytes(b"")
    try:
        check(deployments["nightly/hcrl-sa"], {})
    finally:
        waiting.unlink()


@pytest.mark.parametrize("name", ["can-ids/hcrl-sa", "nightly/hcrl-sa"])
def test_data_that_an_override_names_are_looked_for_instead_of_the_deployments_own(
    deployments: dict[str, Deployment], home: Path, tmp_path: Path, name: str
) -> None:
    overrides = [f"data.data_root={tmp_path}"]
    given = read_parameters(deployments[name], (), overrides)
    with pytest.raises(ValueError, match=f"{name} has no data yet: {tmp_path}/hcrl_sa is not there"):
        check(deployments[name], given)
    (tmp_path / "hcrl_sa").symlink_to(home / "data" / "synthetic")
    check(deployments[name], given)


def test_a_run_with_data_of_its_own_leaves_the_deployment_marked_as_one_without(
    deployments: dict[str, Deployment], home: Path
) -> None:
    asked = []

    class Server:
        def ask(self, method: str, path: str, content: Any = None) -> Any:
            asked.append(method)
            return {"id": "1"}

    row = {**deployments["can-ids/hcrl-sa"].row, "id": "a", "tags": [NO_DATA], "description": ""}
    submit(cast(ServerApi, Server()), Deployment("can-ids/hcrl-sa", row), {"overrides": ["data.data_root=/other"]})
    assert asked == ["POST"]
    (home / "data" / "hcrl_sa").mkdir()
    try:
        submit(cast(ServerApi, Server()), Deployment("can-ids/hcrl-sa", row), {})
    finally:
        (home / "data" / "hcrl_sa").rmdir()
    assert asked == ["POST", "POST", "PATCH"]
