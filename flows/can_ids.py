"""The flow `can-ids`: recorded CAN traffic in, a trained, calibrated and evaluated detector out."""

from pathlib import Path
from typing import Any, Final

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import PositiveInt

from flows.execution import as_output
from flows.parameters import LOCAL_SITE, NO_REQUEST, FormConfig, Overrides, Preset, as_site, check_can_run
from flows.publication import publish_results
from flows.stages import execute, run_flow
from kdgat.can.config import CanConfig, complete_config
from kdgat.can.specs import can_run
from kdgat.cluster.resources import ResourceRequest
from kdgat.cluster.site import LOCAL, Site
from kdgat.run.directory import OutputDirectory
from kdgat.run.end import RunEnd

FLOW_NAME: Final = "can-ids"


@flow(
    name=FLOW_NAME,
    flow_run_name="{config.data.dataset}",
    task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
    persist_result=False,
)
def can_ids(
    *,  # in the order in which the form of the Prefect UI shows them
    preset: Preset | None = None,
    overrides: Overrides = (),
    out: Path,
    site: Site | str = LOCAL,
    parallel_stages: PositiveInt | None = None,
    command_line: ResourceRequest = NO_REQUEST,
    config: FormConfig,
) -> State[Any]:
    """Train, calibrate and evaluate CAN intrusion detectors; see `kdgat plan can` for the stages.

    Args:
        preset: fills what `config` leaves out; without one, the defaults do.
        overrides: single keys on top, as `training.max_epochs=5` or `seeds=[0, 1, 2]`; the same as `-O` of `kdgat`.
        out: output directory. Stages that finished in it before with the same inputs and configuration are not run
            again, those that were stopped go on from their checkpoints.
        site: where the stages run: `local`, the name of a site of `kdgat site list`, or a description of one.
        parallel_stages: how many stages run side by side; by default as many as the processors or the site allow.
        command_line: what every job asks for instead of what preset and site say.
        config: everything the run depends on; at least which data.
    """
    output = as_output(out)
    config, site = complete_config(config, preset, overrides), as_site(site, command_line)
    check_can_run(config, output, site)
    return execute(can_run(config), output, site, command_line, parallel_stages, publish_results)


def run_can_ids(
    config: CanConfig,
    output: OutputDirectory,
    parallel_stages: int | None = None,
    *,
    site: Site = LOCAL_SITE,
    command_line: ResourceRequest = NO_REQUEST,
) -> RunEnd:
    """Run the flow against the configured Prefect API, or an embedded one; `run_flow` says what it raises."""
    return run_flow(
        can_ids, output, config=config, parallel_stages=parallel_stages, site=site, command_line=command_line
    )
