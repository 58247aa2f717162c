"""The flow `nightly`: new recordings in, a retrained model out, in service only if it is better on the same recordings.

What a night learns of recordings and models is written when it is certain: a night that fails, is stopped or dies
leaves the model in service alone and new recordings unmarked: the next one finds them again and resumes its run.
"""

from typing import Annotated, Any, Final

from prefect import flow
from prefect.client.schemas.objects import State
from pydantic import NonNegativeFloat, PositiveInt

from flows.naming import night_name
from flows.night.run import NightRun
from flows.parameters import (
    NO_REQUEST,
    AbsolutePath,
    ClusterResources,
    Overrides,
    Preset,
    WithoutDefaults,
    as_site,
    failing_in_one_sentence,
)
from kdgat.can.config import CanConfig
from kdgat.can.family import FAMILY
from kdgat.can.inputs import refuse_within_dataset
from kdgat.can.nightly.run import Retrain, StartFrom, night_config
from kdgat.cluster import LOCAL, Site
from kdgat.family.night import FLOW_NAME, NightlyDirectory
from kdgat.registry import PromotionRule, Registry

DEFAULT_RULE: Final = PromotionRule()


@flow(name=FLOW_NAME, flow_run_name=night_name, retries=0, persist_result=False)
@failing_in_one_sentence
def nightly(
    *,  # in the order in which the form of the Prefect UI shows them
    preset: Preset | None = None,
    overrides: Overrides = (),
    start_from: StartFrom = "current",
    retrain: Retrain = "new",
    promotion: PromotionRule = DEFAULT_RULE,
    inbox: AbsolutePath | None = None,
    registry: AbsolutePath,
    out: AbsolutePath,
    profile: AbsolutePath | None = None,
    site: Site | str = LOCAL,
    command_line: ClusterResources = NO_REQUEST,
    keep_runs: PositiveInt = 3,
    settle_s: NonNegativeFloat = 60.0,
    config: Annotated[CanConfig, WithoutDefaults()],
) -> State[Any]:
    """Retrain on what came in since the last completed night, and put the new model into service if it is better.

    Args:
        registry: directory of all models, and of which one is in service.
        out: directory for runs, reports and what is known of recordings; one per dataset.
        inbox: folder in the layout of a dataset's folder, whose new and changed files are imported; made if missing.
        profile: file of `kdgat profile`: models are compared with the habits of identifiers judged by it, as `kdgat
            detect --profile` does, on recordings that it fits.
        preset: fills what `config` leaves out.
        overrides: single keys on top, as `training.max_epochs=5`; the same as `-O` of `kdgat`.
        start_from: `current` trains on from the weights of the model in service, `scratch` begins anew each night.
        retrain: `new` trains if recordings or the configuration have changed since the last completed night, `always`
            also if nothing has.
        promotion: by how much a model must be better, and how much worse than the best so far in any one scenario.
        site: where the stages run: `local`, the name of a site, or a description of one.
        command_line: what jobs ask for on a cluster (walltime, memory, cores, GPUs), instead of preset and site.
        keep_runs: how many run directories of registered models stay; what the registry holds of them always does.
        settle_s: a file that changed less than this many seconds ago waits for the next night.
        config: everything that training depends on; at least which data.
    """
    config = night_config(config.completed(preset, overrides), profile)
    FAMILY.plan(config)  # what its training would refuse, before recordings are read
    refuse_within_dataset(config.data, out)
    where = as_site(site, command_line)
    night = NightRun(
        config, Registry(registry.absolute()), NightlyDirectory(out), where, command_line, promotion, profile
    )
    with night.begun():
        return night.run(inbox, start_from, retrain, keep_runs, settle_s)
