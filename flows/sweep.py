"""The flow `sweep`: all trials of a sweep as one run, whose stages are executed as those of any other."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Unpack

from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import NonNegativeInt, PositiveInt

from flows.execution import as_output
from flows.naming import sweep_name
from flows.parameters import LOCAL_SITE, NO_REQUEST, StageExecution, as_site, check_output
from flows.stages import StageFuture, execute, run_flow, stages_flow
from kdgat.cluster import LOCAL, ResourceRequest, Site
from kdgat.family import Sweep
from kdgat.family.sweep import read_sweep
from kdgat.run import OutputDirectory, RunEnd

FLOW_NAME: Final = "sweep"


@stages_flow(FLOW_NAME, sweep_name)
def sweep(
    *,
    out: Path,
    site: Site | str = LOCAL,
    parallel_stages: PositiveInt | None = None,
    pool: NonNegativeInt = 0,
    command_line: ResourceRequest = NO_REQUEST,
) -> State[Any]:
    """Train the trials that `sweep.json` in the output directory keeps; arguments as of the flow `train`."""
    output, where = as_output(out), as_site(site, command_line)
    planned = read_sweep(output)
    check_output(output, where)
    publish = partial(_describe, planned)
    state = execute(planned.run, output, where, command_line, parallel_stages, pool, publish)
    return Completed(message=publish(output)) if state.is_completed() else state


def _describe(planned: Sweep, output: OutputDirectory, _: Sequence[StageFuture] = ()) -> str:
    return f"{len(planned.trials)} trials are done: {output.path}"


def run_sweep(output: OutputDirectory, *, site: Site = LOCAL_SITE, **how: Unpack[StageExecution]) -> RunEnd:
    """Run the flow against the configured Prefect API, or an embedded one; `run_flow` says what it raises."""
    return run_flow(sweep, output, site, **how)
