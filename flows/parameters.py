"""What people give a flow: presets and sites by name, and what is checked before anything is started."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal, ParamSpec, TypedDict

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import FailedRun
from prefect.states import Failed
from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from kdgat.base.place import describe_os_error
from kdgat.cluster import LOCAL, ResourceRequest, Site, SiteError, load_site
from kdgat.cluster.request import check_command_line
from kdgat.cluster.script import require_one_word
from kdgat.cluster.site import require_usable, with_personal_words
from kdgat.run import OutputDirectory
from kdgat.stage.families import is_user_error

Preset = Literal["quick", "full", "tutorial"]
Overrides = tuple[Annotated[str, Field(pattern=r"^\s*[A-Za-z_]\w*(\.\w+)*\s*=")], ...]
# The worker runs a flow in another folder than that of the person who starts it: the server refuses any other path.
AbsolutePath = Annotated[Path, Field(json_schema_extra={"pattern": "^/"})]
RUN_LOGGER: Final = "prefect.flow_runs"
P = ParamSpec("P")


@dataclass(frozen=True)
class WithoutDefaults:
    """Write a model's JSON schema with each default in its description, where it is read and not sent.

    The form of the Prefect UI sends every `default` of the schema along. A configuration that comes from there would
    leave nothing out, and a preset would have nothing to fill.
    """

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Rewrite the schema of the model and of all models in it."""
        written = handler(schema)
        resolved = handler.resolve_ref_schema(written)
        _rewrite(resolved, handler)
        # The flow has a parameter of this name. A configuration of a finished run, which notes it, is taken as it is.
        properties = resolved["properties"]
        noted = properties.pop(NOTED)
        # The server names these patterns where it refuses a section: the second one is there to be read.
        resolved["patternProperties"] = {f"^{NOTED}$": noted, f"^({'|'.join(properties)})$": {}}
        first = resolved.get("required", [])  # what somebody has to fill in, before what may stay empty
        resolved["properties"] = dict(sorted(properties.items(), key=lambda field: field[0] not in first))
        return written


def _rewrite(schema: JsonSchemaValue, handler: GetJsonSchemaHandler) -> None:
    for field in schema.get("properties", {}).values():
        parts = [field, *field.get("anyOf", ()), *field.get("allOf", ())]
        models = [{"$ref": part["$ref"]} for part in parts if "$ref" in part]
        for model in models:
            _rewrite(handler.resolve_ref_schema(model), handler)
        if any(part.get("type") == "boolean" for part in parts):  # the form sends false for a switch nobody touched
            field["enum"] = [True, False, *([None] if "anyOf" in field else [])]
            field.pop("type", None)
            field.pop("anyOf", None)
        text = field.get("description", "")
        default = field.pop("default", None)
        if default is not None and not models:
            value = default if isinstance(default, str) else json.dumps(default)
            field["description"] = f"{text}{' ' if text else ''}(default: {value})"


NOTED: Final = "preset"
# Of the flows' parameters in the form; on the command line they are options of their own.
ClusterResources = Annotated[ResourceRequest, Field(json_schema_extra={"title": "Cluster resources"})]
NO_REQUEST: Final = ResourceRequest()
LOCAL_SITE: Final = Site(name=LOCAL)


class StageExecution(TypedDict, total=False):
    """How the stages of a run are executed at a site, where a flow is called with it; the flow explains each."""

    parallel_stages: int | None
    pool: int
    command_line: ResourceRequest


def as_site(site: Site | str, command_line: ResourceRequest = NO_REQUEST) -> Site:
    """Return the site that was named, usable from this machine, and with room for what is asked of it.

    Raises:
        SiteError: if it is unknown, its file is wrong, or it cannot be used from here.
        UserError: if the request is more than the site grants.
    """
    found = load_site(site) if isinstance(site, str) else with_personal_words(site)
    if found.scheduler == "local" and (explicit := command_line.explicit_values()):
        raise SiteError(
            f"command_line={explicit}: on site {found.name} stages are processes of this machine, which use what it "
            "has: leave it out, or name a cluster by site"
        )
    check_command_line(command_line, found)
    require_usable(found)
    return found


def check_output(output: OutputDirectory, site: Site) -> None:
    """Refuse, with a ValueError that names it, an output directory that jobs of the site cannot be given."""
    if site.scheduler == "slurm":
        require_one_word(output.slurm_path)


def failing_in_one_sentence(flow: Callable[P, State[Any]]) -> Callable[P, State[Any]]:
    """Let a run of a deployment fail with the sentence of a user's mistake alone as the message of its state.

    Where a command has called the flow, the error is raised: the command prints it.
    """

    @wraps(flow)
    def run(*args: P.args, **parameters: P.kwargs) -> State[Any]:
        context = FlowRunContext.get()
        if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
            return flow(*args, **parameters)
        logging.getLogger(RUN_LOGGER).addFilter(_is_no_returned_state)
        try:
            return flow(*args, **parameters)
        except (ValueError, OSError) as error:
            if not is_user_error(error):
                raise
            return Failed(message=describe_os_error(error) if isinstance(error, OSError) else str(error))

    return run


def _is_no_returned_state(record: logging.LogRecord) -> bool:
    """Drop the traceback that Prefect's engine logs, as its last line, of a state that the flow itself has returned."""
    return not (record.exc_info and isinstance(record.exc_info[1], FailedRun))
