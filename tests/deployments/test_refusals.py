"""Where a wrong parameter is refused: by the server before there is a run, else by the flow before anything starts."""

from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.flow_engine import run_flow
from prefect.states import Completed
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object
from prefect.utilities.schema_tools.validation import ValidationError, validate
from prefect.utilities.templating import apply_values

from flows.deployment.installation import PREFECT_FILE, describe
from flows.parameters import failing_in_one_sentence
from kdgat.canbus.simulation import write_dataset
from kdgat.run import RunError
from kdgat.stage.families import is_user_error
from tests.support.servers import PrefectServer

ROOT = Path(__file__).parents[2]


@cache
def schema_of(found: Any) -> dict[str, Any]:
    return dict(parameter_schema(found).model_dump_for_openapi())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("home")
    write_dataset(path / "data", "synthetic", "tiny")
    return path


@pytest.fixture
def deployments(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return the flow and the parameters of each deployment, as `deployments/prefect.yaml` has them."""
    for name in ("KDGAT_DATA_ROOT", "KDGAT_OUTPUTS", "KDGAT_INBOX", "KDGAT_SITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KDGAT_HOME", str(home))
    content = apply_values(yaml.safe_load((ROOT / PREFECT_FILE).read_text()), {"installation": describe()})
    found = {}
    for row in content["deployments"]:
        module, _, function = row["entrypoint"].partition(":")
        made = import_object(f"{module.removesuffix('.py').replace('/', '.')}.{function}")
        found[f"{made.name}/{row['name']}"] = (made, row["parameters"])
    return found


def refused(found: Any, parameters: dict[str, Any]) -> tuple[Literal["server", "flow"], str]:
    """Return who refuses parameters, and the sentence, without a server: both ask the flow's own description."""
    try:
        validate(parameters, schema_of(found), raise_on_error=True)
    except ValidationError as error:
        return "server", str(error)
    with pytest.raises(ValueError, match=r".") as raised:
        found.fn(**found.validate_parameters(parameters))
    assert is_user_error(raised.value)
    return "flow", str(raised.value)


@pytest.mark.parametrize(
    ("name", "given", "by", "words"),
    [
        ("can/synthetic", {"overrides": ["training"]}, "server", ["overrides", "'training'"]),
        ("can/synthetic", {"overrides": [3]}, "server", ["overrides", "3 is not of type 'string'"]),
        ("can/synthetic", {"preset": "fast"}, "server", ["preset", "'fast'", "quick"]),
        ("can/synthetic", {"parallel_stages": 0}, "server", ["parallel_stages", "minimum of 0"]),
        ("can/synthetic", {"out": "runs/a"}, "server", ["'out'", "'runs/a'", "'^/'"]),
        ("can/synthetic", {"out": "~/runs/a"}, "server", ["'out'", "'~/runs/a'", "'^/'"]),
        ("can/synthetic", {"out": ""}, "server", ["'out'", "''", "'^/'"]),
        ("can/synthetic", {"site": {"nam": "a"}}, "server", ["site", "'nam'"]),
        ("can/synthetic", {"command_line": {"walltime": "abc"}}, "server", ["command_line.walltime", "'abc'"]),
        ("can/synthetic", {"command_line": {"walltim": "90"}}, "server", ["command_line", "'walltim'"]),
        ("can/synthetic", {"config": 3}, "server", ["config", "3 is not of type 'object'"]),
        ("can/synthetic", {"config": {"dat": {}}}, "server", ["config", "'dat'", "|windows|"]),
        ("can/synthetic", {"overrides": ["a=1"]}, "flow", ["override a=1", "unknown key 'a'"]),
        ("can/synthetic", {"overrides": ["training.max_epoch=3"]}, "flow", ["did you mean 'max_epochs'"]),
        ("can/synthetic", {"overrides": ["training.max_epochs=many"]}, "flow", ["max_epochs=many", "whole number"]),
        ("can/synthetic", {"overrides": ["data.data_root=/nowhere"]}, "flow", ["/nowhere: data root not found"]),
        ("can/synthetic", {"site": "pitzerr"}, "flow", ["site 'pitzerr'", "did you mean 'osc-pitzer'"]),
        ("can/synthetic", {"command_line": {"walltime": "90"}}, "flow", ["site local", "leave it out"]),
        ("can/hcrl-sa", {}, "flow", ["hcrl_sa", "put recordings there"]),
        ("nightly/synthetic", {"promotion": {"margi": 0.1}}, "server", ["promotion", "'margi'"]),
        ("nightly/synthetic", {"registry": "models"}, "server", ["'registry'", "'models'", "'^/'"]),
        ("nightly/synthetic", {"overrides": ["training.max_epoch=3"]}, "flow", ["did you mean 'max_epochs'"]),
        ("nightly/synthetic", {"overrides": ["stages=[normal]"]}, "flow", ["stage evaluation; add it"]),
        ("nightly/synthetic", {"overrides": ["evaluation.models=[abc]"]}, "flow", ["evaluation.models", "'abc'"]),
        ("lap/assignment", {"overrides": ["training.max_epoch=3"]}, "flow", ["did you mean 'max_epochs'"]),
        ("trees/folder", {"preset": "fast"}, "server", ["preset", "'fast'"]),
        ("evaluate-can/recordings", {"run": "runs/a"}, "server", ["'run'", "'runs/a'", "'^/'"]),
    ],
)
def test_a_mistake_is_refused_with_key_and_value(
    deployments: dict[str, Any], name: str, given: dict[str, Any], by: str, words: list[str]
) -> None:
    found, own = deployments[name]
    who, sentence = refused(found, {**own, **given})
    assert who == by, sentence
    assert "\n" not in sentence
    for word in words:
        assert word in sentence


def test_a_run_of_a_deployment_fails_with_the_sentence_alone_and_a_command_gets_the_error(
    prefect_server: PrefectServer,
) -> None:
    @flow(name="mistaken", persist_result=False)
    @failing_in_one_sentence
    def mistaken(text: str = "out=/a is in use: name another one") -> State[Any]:
        if text == "a bug":
            raise ValueError(text)
        if text:
            raise RunError(text)
        return Completed(message="done")

    def end_of(**parameters: str) -> State[Any]:
        run = client.create_flow_run_from_deployment(deployment, parameters=parameters)
        run_flow(mistaken, flow_run=run, parameters=parameters, return_type="state")
        state = client.read_flow_run(run.id).state
        assert state is not None
        return state

    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow(mistaken), "of-mistaken")
        failed = end_of()
        assert (failed.name, failed.message) == ("Failed", "out=/a is in use: name another one")
        assert str(end_of(text="a bug").message).endswith("ValueError: a bug")
        assert end_of(text="").message == "done"
    with pytest.raises(RunError, match="in use"):
        mistaken()
