"""The flow `progressive`: warm starts for linear assignment, trained stage after stage by the size of the matrix."""

from pathlib import Path
from typing import Any, Final

from kdgat.report.lap import write_report
from prefect import flow, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run as runtime_flow_run
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import PositiveInt

from flows.execution import as_output
from flows.parameters import LOCAL_SITE, NO_REQUEST, LapFormConfig, Overrides, Preset, as_site, check_output
from flows.stages import execute, run_flow
from kdgat.cluster.resources import ResourceRequest
from kdgat.cluster.site import LOCAL, Site
from kdgat.lap.config import LapConfig, complete_config
from kdgat.lap.evaluation import collect_results
from kdgat.lap.results import results_table
from kdgat.lap.specs import lap_run
from kdgat.run.directory import OutputDirectory
from kdgat.run.end import RunEnd

FLOW_NAME: Final = "progressive"


def _run_name() -> str:
    return Path(runtime_flow_run.parameters["out"]).name


@flow(
    name=FLOW_NAME,
    flow_run_name=_run_name,
    task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
    persist_result=False,
)
def progressive(
    *,  # in the order in which the form of the Prefect UI shows them
    preset: Preset | None = None,
    overrides: Overrides = (),
    out: Path,
    site: Site | str = LOCAL,
    parallel_stages: PositiveInt | None = None,
    command_line: ResourceRequest = NO_REQUEST,
    config: LapFormConfig = LapConfig(),  # noqa: B008 - frozen
) -> State[Any]:
    """Train networks that predict duals of assignment problems, from small matrices to large; see `kdgat plan lap`.

    Args:
        preset: fills what `config` leaves out; without one, the defaults do.
        overrides: single keys on top, as `training.max_epochs=5` or `stages=[small_512_only]`; the same as `-O`.
        out: output directory. Stages that finished in it before with the same inputs and configuration are not run
            again, those that were stopped go on from their checkpoints.
        site: where the stages run: `local`, the name of a site of `kdgat site list`, or a description of one.
        parallel_stages: how many stages run side by side; by default as many as the processors or the site allow.
        command_line: what every job asks for instead of what preset and site say.
        config: everything the run depends on.
    """
    output = as_output(out)
    run, site = lap_run(complete_config(config, preset, overrides)), as_site(site, command_line)
    check_output(output, site)
    return execute(run, output, site, command_line, parallel_stages, publish_results)


@task(name="results", task_run_name="results", cache_policy=NO_CACHE, persist_result=False)
def publish_results(output: OutputDirectory) -> str:
    """Summarise what all evaluations measured, write results and report, and return what they say in one line."""
    results = collect_results(output)
    report = write_report(output.path)
    header, rows = results_table(results)
    create_table_artifact(
        [dict(zip(header, row, strict=True)) for row in rows],
        key="warm-starts",
        description="seeds of the exact solver, trained and untrained, by family and size of the matrix",
    )
    conclusions = "\n".join(f"* {sentence}" for sentence in results.conclusions.values())
    create_markdown_artifact(
        f"# Does the trained model pay?\n\n{conclusions}\n",
        key="conclusions",
        description="the trained model against the best untrained seed, features and inference included",
    )
    create_link_artifact(report.absolute().as_uri(), link_text=str(report), key="report", description="HTML report")
    return "; ".join(results.conclusions.values())


def run_progressive(
    config: LapConfig,
    output: OutputDirectory,
    parallel_stages: int | None = None,
    *,
    site: Site = LOCAL_SITE,
    command_line: ResourceRequest = NO_REQUEST,
) -> RunEnd:
    """Run the flow against the configured Prefect API, or an embedded one; `run_flow` says what it raises."""
    return run_flow(
        progressive, output, config=config, parallel_stages=parallel_stages, site=site, command_line=command_line
    )
