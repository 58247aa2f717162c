"""The flow `can-ids`: recorded CAN traffic in, a trained, calibrated and evaluated detector out."""

from typing import Annotated, Any, Final

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import NonNegativeInt, PositiveInt

from flows.naming import training_name
from flows.parameters import NO_REQUEST, AbsolutePath, ClusterResources, Overrides, Preset, WithoutDefaults
from flows.training import train_family
from kdgat.can.config import CanConfig
from kdgat.can.family import FAMILY
from kdgat.cluster.site import LOCAL, Site

FLOW_NAME: Final = "can-ids"
FormConfig = Annotated[CanConfig, WithoutDefaults(CanConfig.preset_package)]


@flow(
    name=FLOW_NAME,
    flow_run_name=training_name,
    task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
    persist_result=False,
)
def can_ids(
    *,  # in the order in which the form of the Prefect UI shows them
    preset: Preset | None = None,
    overrides: Overrides = (),
    out: AbsolutePath,
    site: Site | str = LOCAL,
    parallel_stages: PositiveInt | None = None,
    pool: NonNegativeInt = 0,
    command_line: ClusterResources = NO_REQUEST,
    config: FormConfig,
) -> State[Any]:
    """Train, calibrate and evaluate CAN intrusion detectors; see `kdgat plan can` for the stages.

    Args:
        preset: fills what `config` leaves out; without one, the defaults do.
        overrides: single keys on top, as `training.max_epochs=5` or `seeds=[0, 1, 2]`; the same as `-O` of `kdgat`.
        out: output directory. Stages that finished in it before with the same inputs and configuration are not run
            again, those that were stopped resume from their checkpoints.
        site: where the stages run: `local`, the name of a site of `kdgat site list`, or a description of one.
        parallel_stages: how many stages run side by side; by default as many as the processors or the site allow.
        pool: how many workers at most make the parts of a preparation ahead of it, side by side; 0 for none.
        command_line: what jobs ask for on a cluster (walltime, memory, cores, GPUs), instead of preset and site.
        config: everything the run depends on; at least which data.
    """
    return train_family(FAMILY, config, preset, overrides, out, site, parallel_stages, pool, command_line)
