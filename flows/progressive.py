"""The flow `progressive`: warm starts for linear assignment, trained stage after stage by the size of the matrix."""

from typing import Annotated, Any, Final

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import NonNegativeInt, PositiveInt

from flows.naming import training_name
from flows.parameters import NO_REQUEST, AbsolutePath, ClusterResources, Overrides, Preset, WithoutDefaults
from flows.training import train_family
from kdgat.cluster.site import LOCAL, Site
from kdgat.lap.config import LapConfig
from kdgat.lap.family import FAMILY

FLOW_NAME: Final = "progressive"
FormConfig = Annotated[LapConfig, WithoutDefaults(LapConfig.preset_package)]


@flow(
    name=FLOW_NAME,
    flow_run_name=training_name,
    task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
    persist_result=False,
)
def progressive(
    *,  # in the order in which the form of the Prefect UI shows them
    preset: Preset | None = None,
    overrides: Overrides = (),
    out: AbsolutePath,
    site: Site | str = LOCAL,
    parallel_stages: PositiveInt | None = None,
    pool: NonNegativeInt = 0,
    command_line: ClusterResources = NO_REQUEST,
    config: FormConfig = LapConfig(),  # noqa: B008 - frozen
) -> State[Any]:
    """Train networks that predict duals of assignment problems, from small matrices to large; see `kdgat plan lap`.

    Args:
        preset: fills what `config` leaves out; without one, the defaults do.
        overrides: single keys on top, as `training.max_epochs=5` or `stages=[small_512_only]`; the same as `-O`.
        out: output directory. Stages that finished in it before with the same inputs and configuration are not run
            again, those that were stopped resume from their checkpoints.
        site: where the stages run: `local`, the name of a site of `kdgat site list`, or a description of one.
        parallel_stages: how many stages run side by side; by default as many as the processors or the site allow.
        pool: how many workers at most make the parts of a preparation ahead of it, side by side; 0 for none.
        command_line: what jobs ask for on a cluster (walltime, memory, cores, GPUs), instead of preset and site.
        config: everything the run depends on.
    """
    return train_family(FAMILY, config, preset, overrides, out, site, parallel_stages, pool, command_line)
