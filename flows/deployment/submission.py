"""A run of a deployment, asked for by a person: everything that can be wrong is found before the run is made."""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from flows.deployment.data import NO_DATA, how_to_get, marked, missing_folder
from flows.deployment.installation import HOME_VARIABLE
from flows.deployment.runs import has_worker
from flows.deployment.server_api import RefusedError, ServerApi, ServerError
from flows.parameters import as_site, check_output
from kdgat.base.configuration import ConfigurationError, unknown_key_text, validate_config
from kdgat.cluster.resources import ResourceRequest
from kdgat.cluster.site import LOCAL, Site
from kdgat.family.protocol import Family
from kdgat.family.registry import find_family
from kdgat.registry.promotion_rule import PromotionRule
from kdgat.run.directory import OutputDirectory
from kdgat.stage.families import family_names

NIGHT: Final = "flows.nightly:nightly"
NIGHT_FAMILY: Final = "can"  # nights are CAN's until a second family asks for them
ANY_FAMILY: Final = "flows.training:train"
ACTIVE: Final = ("RUNNING", "PENDING", "CANCELLING")  # a run that holds its dataset
WAITING: Final = ("PAUSED", "SCHEDULED")  # a run that goes on once somebody or something lets it
_REFUSED: Final = ("CANCEL_NEW",)  # strategies with which a second run on a dataset does not wait for the first


class SubmissionError(ValueError):
    """A run cannot be made as it was asked for, and was not made; the text says why, and what to do."""


@dataclass(frozen=True)
class Deployment:
    """One deployment of a server, by its name `FLOW/DEPLOYMENT` and as the server describes it."""

    name: str
    row: Mapping[str, Any]

    @property
    def flow(self) -> str:
        """Return its flow as `module:name`."""
        path, _, name = str(self.row["entrypoint"]).partition(":")
        return f"{path.removesuffix('.py').replace('/', '.')}:{name}"

    @property
    def is_night(self) -> bool:
        """Tell whether its runs are nights, which train in runs of their own."""
        return self.flow == NIGHT

    def family(self, parameters: Mapping[str, Any]) -> Family | None:
        """Return the family that it trains; None if it trains nothing."""
        if self.is_night:
            return find_family(NIGHT_FAMILY)
        if self.flow == ANY_FAMILY:
            return find_family(str(parameters.get("family")))
        return next((family for family in map(find_family, family_names()) if family.flow == self.flow), None)


def find_deployment(api: ServerApi, name: str) -> Deployment:
    """Find a deployment by its name.

    Raises:
        SubmissionError: if there is none of that name, with the nearest ones.
    """
    row = api.ask("GET", f"/deployments/name/{name}") if name.count("/") == 1 else None
    if row is not None:
        return Deployment(name, row)
    known = list(api.deployments())
    near = [other for other in known if other.partition("/")[2] == name]  # of one dataset, training and nights
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known) or 'none'}"
    raise SubmissionError(f"unknown deployment {name!r}: {hint}")


def output_of(deployment: Deployment, parameters: Mapping[str, Any]) -> Path | None:
    """Return the output directory in which stages of a run with these parameters run; None if it has none itself."""
    if deployment.is_night or deployment.family(parameters) is None:
        return None
    return _path("out", parameters)


def read_parameters(deployment: Deployment, texts: Sequence[str], overrides: Sequence[str]) -> dict[str, Any]:
    """Return what somebody gives a deployment, by name: `NAME=VALUE` each, and overrides above its own.

    A value is JSON, or text. A path is taken from the current folder: the flow runs in another one.

    Raises:
        SubmissionError: if the deployment has no such parameter, with the nearest one.
    """
    known = _properties(deployment)
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise SubmissionError(f"-p {text!r} has no NAME=VALUE form: write for instance -p preset=full")
        _refuse_unknown(name.strip(), known)
        found[name.strip()] = _as_value(value, known[name.strip()])
    if overrides:
        _refuse_unknown("overrides", known)
        own = found.get("overrides", deployment.row["parameters"].get("overrides") or ())
        found["overrides"] = [*own, *overrides] if isinstance(own, list | tuple) else own
    return found


def check(deployment: Deployment, given: Mapping[str, Any]) -> None:
    """Refuse everything that the flow would refuse at its start.

    Raises:
        ValueError: of our own, naming key, value and fix.
    """
    parameters = {**deployment.row["parameters"], **given}
    request = _validated(ResourceRequest, "command_line", parameters.get("command_line") or {})
    site = parameters.get("site") or LOCAL
    where = as_site(site if isinstance(site, str) else _validated(Site, "site", site), request)
    family = deployment.family(parameters)
    if family is None:
        return
    stated = parameters.get("config") or {}
    config = family.config.from_data(_mapping("config", stated))
    config = config.completed(parameters.get("preset"), _texts("overrides", parameters.get("overrides") or ()))
    folder = missing_folder({**parameters, "config": config.model_dump()})  # an override may have named other data
    if folder is not None:
        raise SubmissionError(f"{deployment.name} has no data yet: {folder} is not there: {how_to_get(folder)}")
    out = output_of(deployment, parameters)
    if out is None:
        _check_night(family, config, parameters)
        return
    family.plan_into(config, out)
    check_output(OutputDirectory(out), where)


def _check_night(family: Family, config: Any, parameters: Mapping[str, Any]) -> None:
    if parameters.get("promotion") is not None:
        _validated(PromotionRule, "promotion", parameters["promotion"])
    for name in ("out", "registry"):
        _path(name, parameters)
    family.plan(config)
    from kdgat.can.nightly.run import night_config  # imports torch: a misspelt key is found before that

    night_config(config)


def require_free(api: ServerApi, deployment: Deployment, given: Mapping[str, Any]) -> None:
    """Refuse to make a run that would end at once, because another one has its dataset or its output directory.

    Raises:
        SubmissionError: naming the run that has the dataset.
        RunError, UserError: naming the process that has the directory, for instance a `kdgat train`.
    """
    limit = deployment.row.get("global_concurrency_limit")
    if limit is not None:
        strategy = (deployment.row.get("concurrency_options") or {}).get("collision_strategy")
        if strategy not in _REFUSED:
            return  # it waits for its turn
        _require_free_dataset(api, deployment, limit)
    parameters = {**deployment.row["parameters"], **given}
    if deployment.is_night:
        from kdgat.can.nightly.directory import NightlyDirectory  # imports torch

        NightlyDirectory(_path("out", parameters)).require_free()
    elif (out := output_of(deployment, parameters)) is not None:
        OutputDirectory(out).require_free()


def _require_free_dataset(api: ServerApi, deployment: Deployment, limit: Mapping[str, Any]) -> None:
    names = {
        row["id"]: name
        for name, row in api.deployments().items()
        if (row.get("global_concurrency_limit") or {}).get("id") == limit["id"]
    }
    runs = active_runs(api, list(names))
    if len(runs) >= limit["limit"]:
        name = names[runs[0]["deployment_id"]]
        raise SubmissionError(
            f"{deployment.name}: a run of {name} has {limit['name']} ({runs[0]['name']}): "
            f"`kdgat run {name} --follow` watches it, `kdgat run {name} --cancel` lets it save and stop"
        )


def active_runs(api: ServerApi, deployment_ids: Sequence[str]) -> list[dict[str, Any]]:
    """List the runs of deployments that go on, the one first that began last."""
    wanted = {"state": {"type": {"any_": list(ACTIVE)}}}
    return api.flow_runs(flow_runs=wanted, deployments={"id": {"any_": list(deployment_ids)}})


def waiting_runs(api: ServerApi, deployment_ids: Sequence[str]) -> list[dict[str, Any]]:
    """List the runs of deployments that are suspended, or wait to be begun; not those that a schedule has for later."""
    wanted = {
        "state": {"type": {"any_": list(WAITING)}},
        "expected_start_time": {"before_": datetime.now(UTC).isoformat()},
    }
    return api.flow_runs(flow_runs=wanted, deployments={"id": {"any_": list(deployment_ids)}})


def require_worker(api: ServerApi, deployment: Deployment) -> None:
    """Refuse to make a run that nobody would begin.

    Raises:
        SubmissionError: with the way to a worker.
    """
    home = api.address.home
    pool = deployment.row["work_pool_name"]
    if home is not None and not has_worker(home):  # the server notices after a minute or more
        raise SubmissionError(
            f"no worker runs that could begin {deployment.name}: `{HOME_VARIABLE}={home} make deploy`"
        )
    if not api.has_worker(pool):
        raise SubmissionError(
            f"no worker of the work pool {pool} runs: `prefect worker start --pool {pool}` starts one"
        )


def submit(api: ServerApi, deployment: Deployment, given: Mapping[str, Any]) -> dict[str, Any]:
    """Make a run and return it as the server describes it.

    Raises:
        SubmissionError: if the server refuses a parameter.
    """
    try:
        run: dict[str, Any] | None = api.ask(
            "POST", f"/deployments/{deployment.row['id']}/create_flow_run", {"parameters": dict(given)}
        )
    except RefusedError as error:
        raise SubmissionError(f"{deployment.name}: {_reason(str(error))}") from error
    if run is None:
        raise ServerError(f"{deployment.name} is not there any more: somebody has removed it")
    # They have come since it was deployed; the run itself may have data of its own.
    if NO_DATA in deployment.row["tags"] and missing_folder(deployment.row["parameters"]) is None:
        mark = marked(deployment.row["tags"], deployment.row["description"], None)
        api.ask("PATCH", f"/deployments/{deployment.row['id']}", mark)
    return run


def cancel(api: ServerApi, run_id: str) -> None:
    """Ask for the end of a run: its stages write their checkpoints."""
    api.ask("POST", f"/flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})


def _properties(deployment: Deployment) -> Mapping[str, Any]:
    return (deployment.row.get("parameter_openapi_schema") or {}).get("properties", {})


def _refuse_unknown(name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise SubmissionError(unknown_key_text(name, list(known)).replace("key", "parameter"))


def _as_value(text: str, schema: Mapping[str, Any]) -> Any:
    kinds = list(_kinds(schema))
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    types = {kind.get("type") for kind in kinds}
    if "string" in types and not types & {"integer", "number", "boolean"} and isinstance(value, int | float):
        value = text  # a name that looks like a number
    is_path = any(kind.get("format") == "path" for kind in kinds)
    return str(Path(value).expanduser().absolute()) if is_path and isinstance(value, str) else value


def _kinds(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _kinds(part)


def _validated(model: Any, name: str, value: Any) -> Any:
    """Read a parameter; its name stands before each key that is wrong."""
    try:
        return validate_config(model, _mapping(name, value))
    except ConfigurationError as error:
        raise SubmissionError(f"{name}.{str(error).removeprefix(f'{model.__name__}: ')}") from error


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SubmissionError(f'{name}={value!r} is no JSON object: write for instance \'{name}={{"key": "value"}}\'')
    return value


def _path(name: str, parameters: Mapping[str, Any]) -> Path:
    value = parameters.get(name)
    if not isinstance(value, str) or not value:
        raise SubmissionError(f"{name}={value!r} is no path: give one, as in -p {name}=PATH")
    return Path(value).absolute()


def _texts(name: str, value: Any) -> Sequence[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise SubmissionError(f'{name}={value!r} is no list of texts: write {name}=["training.max_epochs=2"]')
    return list(value)


def _reason(text: str) -> str:
    """Say in few words what the server answers to a wrong parameter."""
    before, separator, reason = text.partition("Failure reason: ")
    key = before.partition("for field '")[2].partition("'")[0]
    return f"{key}: {reason}" if separator and key else text
