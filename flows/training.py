"""The flow `train`: a run of any family; the flows of single families are this one with a typed configuration.

A family whose runs are started from the Prefect UI has a flow of its own, because its form and its checks want the
type of the configuration. A family without one is trained by this flow.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Final, Unpack

from prefect import Flow
from prefect.client.schemas.objects import State
from pydantic import NonNegativeInt, PositiveInt

from flows.execution import as_output
from flows.naming import artifact_scope, training_name
from flows.parameters import (
    LOCAL_SITE,
    NO_REQUEST,
    AbsolutePath,
    ClusterResources,
    Overrides,
    Preset,
    StageExecution,
    WithoutDefaults,
    as_site,
    check_output,
    failing_in_one_sentence,
)
from flows.publication import publish_results
from flows.stages import StageFuture, execute, run_flow, stages_flow
from kdgat.cluster import LOCAL, ResourceRequest, Site
from kdgat.family import Family, find_family
from kdgat.run import OutputDirectory, RunConfig, RunEnd

FLOW_NAME: Final = "train"
USUAL_OVERRIDES: Final = "`training.max_epochs=5` or `seeds=[0, 1, 2]`; the same as `-O` of `kdgat`"


@stages_flow(FLOW_NAME, training_name)
def train(
    *,
    family: str,
    preset: str | None = None,
    overrides: Overrides = (),
    out: AbsolutePath,
    site: Site | str = LOCAL,
    parallel_stages: PositiveInt | None = None,
    pool: NonNegativeInt = 0,
    command_line: ClusterResources = NO_REQUEST,
    config: dict[str, Any],
) -> State[Any]:
    """Train and evaluate the models of a family; see `kdgat plan FAMILY` for the stages.

    Args:
        family: of the models, by name.
        preset: fills what `config` leaves out; without one, the defaults do.
        overrides: single keys on top, as `training.max_epochs=5` or `seeds=[0, 1, 2]`; the same as `-O` of `kdgat`.
        out: output directory. Stages that finished in it before with the same inputs and configuration are not run
            again, those that were stopped resume from their checkpoints.
        site: where the stages run: `local`, the name of a site of `kdgat site list`, or a description of one.
        parallel_stages: how many stages run side by side; by default as many as the processors or the site allow.
        pool: how many workers at most make the parts of a preparation ahead of it, side by side; 0 for none.
        command_line: what jobs ask for on a cluster (walltime, memory, cores, GPUs), instead of preset and site.
        config: everything the run depends on.
    """
    found = find_family(family)
    typed = found.config.from_data(config)
    return train_family(found, typed, preset, overrides, out, site, parallel_stages, pool, command_line)


def training_flow(
    family: Family, config: RunConfig | None = None, *, overrides: str = USUAL_OVERRIDES
) -> Callable[[Callable[[], None]], Flow[..., State[Any]]]:
    """Make the flow `train` of one family out of a function that gives its name and the first line of its description.

    Its form in the Prefect UI has the family's presets and every key of the configuration, which is required unless it
    has a default here; `overrides` are what the form shows as examples.
    """
    own: dict[str, Any] = {
        "preset": Preset | None,
        "config": Annotated[family.config, WithoutDefaults()],
    }
    of_all = inspect.signature(train.fn).parameters.values()
    parameters = [one.replace(annotation=own.get(one.name, one.annotation)) for one in of_all if one.name != "family"]
    if config is not None:
        parameters[-1] = parameters[-1].replace(default=config)
    _, _, described = (inspect.getdoc(train.fn) or "").partition("Args:\n")
    _, _, arguments = described.replace(USUAL_OVERRIDES, overrides).partition("\n")  # the first one is the family
    if config is None:
        arguments = f"{arguments.removesuffix('.')}; at least which data."

    def make(named: Callable[[], None]) -> Flow[..., State[Any]]:
        def run(**given: Any) -> State[Any]:
            return train_family(family, **given)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__name__, run.__qualname__, run.__module__ = named.__name__, named.__qualname__, named.__module__
        run.__doc__ = f"{named.__doc__}\n\nArgs:\n{arguments}"
        return stages_flow(named.__name__.replace("_", "-"), training_name)(run)

    return make


@failing_in_one_sentence
def train_family(
    family: Family,
    config: RunConfig,
    preset: str | None,
    overrides: Overrides,
    out: Path,
    site: Site | str,
    parallel_stages: int | None,
    pool: int,
    command_line: ResourceRequest,
) -> State[Any]:
    """Complete and plan a run inside a flow run, execute it, and return how it ended; arguments as of `train`.

    Raises:
        ValueError: of the family, the site or the resources, naming key, value and fix, before anything is started.
    """
    output, where = as_output(out), as_site(site, command_line)
    run = family.plan_into(config.completed(preset, overrides), output.path)
    if where.image is None:  # else the packages are those of the image
        run.config.require_loggers()
    check_output(output, where)

    def publish(output: OutputDirectory, evaluations: Sequence[StageFuture]) -> str:
        # In the graph an arrow leads there from each evaluation.
        return publish_results(family.name, output, artifact_scope(run, output), wait_for=evaluations)

    return execute(run, output, where, command_line, parallel_stages, pool, publish)


def run_training(
    family: Family,
    config: RunConfig,
    output: OutputDirectory,
    *,
    site: Site = LOCAL_SITE,
    **how: Unpack[StageExecution],
) -> RunEnd:
    """Run a family's flow against the configured Prefect API, or an embedded one; `run_flow` says what it raises."""
    if family.flow:
        own: Flow[..., State[Any]] = resolve_name(family.flow)
        return run_flow(own, output, site, config=config, **how)
    return run_flow(train, output, site, family=family.name, config=config.model_dump(mode="json"), **how)
