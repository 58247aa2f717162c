from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from flows import parameters
from flows.can import can
from flows.nightly import nightly
from flows.parameters import as_site
from flows.trees import trees
from kdgat.base import UserError
from kdgat.can.config import CanConfig
from kdgat.can.family import FAMILY
from kdgat.canbus.catalog import DatasetError
from kdgat.cluster import ResourceRequest, Site, SiteError
from kdgat.training import TrainingConfig
from tests.can.small_runs import make_config

CONFIG = {"data": {"dataset": "synthetic", "data_root": "data"}}
GOOD = {"config": CONFIG, "out": "/runs/a", "preset": "quick"}


@cache
def schema_of(flow: Any) -> dict[str, Any]:
    return dict(parameter_schema(flow).model_dump_for_openapi())


def fields_of_config(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Walk all fields of the configuration, at any depth."""

    def walk(reference: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for key, field in schema["definitions"][reference.rpartition("/")[2]]["properties"].items():
            yield f"{path}{key}", field
            for part in (field, *field.get("anyOf", ()), *field.get("allOf", ())):
                if "$ref" in part:
                    yield from walk(part["$ref"], f"{path}{key}.")

    yield from walk(schema["properties"]["config"]["$ref"], "")


CAN_KEYS = {"gat.large.hidden", "injection.enabled"}
TREES_KEYS = {"data.reading.components", "data.contract", "encoder.hidden", "batches.max_paths", "label_fractions"}


@pytest.mark.parametrize(
    ("flow", "keys"),
    [(can, CAN_KEYS), (nightly, CAN_KEYS), (trees, TREES_KEYS)],
    ids=["can", "nightly", "trees"],
)
def test_the_form_finds_nothing_in_the_configuration_to_send_that_nobody_typed(flow: Any, keys: set[str]) -> None:
    fields = dict(fields_of_config(schema_of(flow)))
    assert {"training.max_epochs", "training_of", *keys} <= set(fields)
    for path, field in fields.items():
        assert "default" not in field, path
        assert field.get("type") != "boolean", path
        assert not any(part.get("type") == "boolean" for part in field.get("anyOf", ())), path


@pytest.mark.parametrize("flow", [can, trees], ids=lambda flow: flow.name)
def test_every_field_of_the_configuration_is_explained(flow: Any) -> None:
    fields = dict(fields_of_config(schema_of(flow)))
    silent = [path for path, field in fields.items() if "$ref" not in field and not field.get("description")]
    assert silent == []


def test_a_field_is_explained_with_its_default() -> None:
    fields = dict(fields_of_config(schema_of(can)))
    meaning = TrainingConfig.model_fields["max_epochs"].description
    assert fields["training.max_epochs"]["description"] == f"{meaning} (default: 30)"
    assert fields["injection.enabled"]["description"].endswith("(default: true)")
    assert fields["windows.size"]["description"].count("default") == 1


def test_what_is_changed_most_comes_first_in_the_form() -> None:
    properties = schema_of(can)["properties"]
    order = sorted(properties, key=lambda name: properties[name]["position"])
    assert order[:4] == ["preset", "overrides", "out", "site"]
    assert order[-2:] == ["command_line", "config"]  # long ones, which hide all below them
    sections = {name.partition(".")[0]: True for name, _ in fields_of_config(schema_of(can))}
    assert next(iter(sections)) == "data"


@pytest.mark.parametrize("flow", [can, nightly, trees], ids=lambda flow: flow.name)
def test_the_form_asks_for_each_thing_once_in_words_that_users_know(flow: Any) -> None:
    schema = schema_of(flow)
    assert schema["properties"]["command_line"]["title"] == "Cluster resources"
    assert "preset" in schema["properties"]
    assert "preset" not in dict(fields_of_config(schema))


@pytest.mark.parametrize(
    ("parameters", "where"),
    [
        ({"preset": "fast"}, "preset"),
        ({"overrides": ["training.max_epochs"]}, "overrides"),
        ({"parallel_stages": 0}, "parallel_stages"),
        ({"config": {**CONFIG, "trainin": {}}}, "config"),
        ({"config": {**CONFIG, "training": {"max_epochs": "many"}}}, "config.training.max_epochs"),
        ({"config": {**CONFIG, "training": {"max_epochs": 0}}}, "config.training.max_epochs"),
        ({"config": {**CONFIG, "injection": {"enabled": "perhaps"}}}, "config.injection.enabled"),
        ({"config": {"data": {"dataset": "synthetic"}}}, "config.data"),
        ({"site": {"name": "a", "scheduler": "pbs"}}, "site"),
        ({"command_line": {"walltim": "90"}}, "command_line"),
        ({"command_line": {"walltime": "abc"}}, "command_line.walltime"),
        ({"command_line": {"memory": "85 gigabytes"}}, "command_line.memory"),
    ],
)
def test_a_server_refuses_a_wrong_parameter_and_knows_its_name(parameters: dict[str, Any], where: str) -> None:
    with pytest.raises(Exception, match=where):
        validate({**GOOD, **parameters}, schema_of(can), raise_on_error=True)


def test_a_server_takes_right_parameters() -> None:
    validate(GOOD, schema_of(can), raise_on_error=True)
    for walltime in ("90", "16:00:00", "2-00:00:00"):
        validate({**GOOD, "command_line": {"walltime": walltime, "memory": "85g"}}, schema_of(can), raise_on_error=True)


def test_a_configuration_of_a_finished_run_can_be_given_as_it_is() -> None:
    config = make_config("quick", data=CONFIG["data"]).model_dump(mode="json")
    validate({"config": config, "out": "/runs/a"}, schema_of(can), raise_on_error=True)
    assert can.validate_parameters({"config": config, "out": "/runs/a"})["config"] == CanConfig.model_validate(config)


def test_a_site_is_given_by_name_or_described(tmp_path: Path) -> None:
    assert as_site("local").scheduler == "local"
    assert as_site(Site(name="mine")).name == "mine"
    path = tmp_path / "here.yaml"
    path.write_text("scheduler: local\n")
    assert as_site(str(path)).name == "here"
    with pytest.raises(SiteError, match="slurm-test"):
        as_site("slurm-tset")


def test_what_a_described_site_leaves_open_is_taken_from_a_persons_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parameters, "require_usable", lambda _: None)
    monkeypatch.setenv("SBATCH_ACCOUNT", "theirs")
    assert as_site(Site(name="mine", scheduler="slurm")).account == "theirs"
    assert as_site(Site(name="mine", scheduler="slurm", account="ours")).account == "ours"


def test_what_a_site_does_not_grant_is_refused_at_once() -> None:
    with pytest.raises(SiteError, match="command_line"):
        as_site("local", ResourceRequest(walltime="16:00:00"))
    with pytest.raises(UserError, match="cores"):
        as_site("slurm-test", ResourceRequest(cores=64))


def test_a_dataset_that_is_not_there_is_said_before_anything_is_started(tmp_path: Path) -> None:
    config = make_config("quick", data={"dataset": "hcrl_sa", "data_root": str(tmp_path)})
    with pytest.raises(DatasetError, match="hcrl_sa"):
        FAMILY.check(config, tmp_path / "out")
