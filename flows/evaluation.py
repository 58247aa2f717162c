"""The flow `evaluate-can`: a run, or the model in service, on any recordings; nothing is trained."""

from typing import Any, Final

from prefect import flow
from prefect.client.schemas.objects import State

from flows.naming import evaluation_name
from flows.night.evaluation import evaluate
from flows.parameters import NO_REQUEST, AbsolutePath, ClusterResources, failing_in_one_sentence
from kdgat.cluster import LOCAL, Site

FLOW_NAME: Final = "evaluate-can"


@flow(name=FLOW_NAME, flow_run_name=evaluation_name, retries=0, persist_result=False)
@failing_in_one_sentence
def evaluate_can(
    *,
    dataset: str | None = None,
    run: AbsolutePath | None = None,
    model_of: str | None = None,
    registry: AbsolutePath | None = None,
    data_root: AbsolutePath,
    catalog: AbsolutePath | None = None,
    profile: AbsolutePath | None = None,
    out: AbsolutePath,
    site: Site | str = LOCAL,
    command_line: ClusterResources = NO_REQUEST,
) -> State[Any]:
    """Score recordings with the detectors of a run, or of the model in service; see `kdgat evaluate can`.

    Recordings that the detectors were trained on are left out. All metrics are written to a new JSON file below `out`,
    in the format of `results.json`.

    Args:
        dataset: folder below `data_root`; by default the one that the run was trained on.
        run: output directory of a run whose detectors are used; by default the model in service is.
        model_of: the dataset whose model in service is used; by default `dataset`.
        registry: directory of all models.
        data_root: folder that holds the dataset's folder.
        catalog: YAML file with entries of datasets of one's own.
        profile: file of `kdgat profile` by which the habits of identifiers, and the network's scores, are judged.
        out: where results go.
        site: where it is computed: `local`, the name of a site of `kdgat site list`, or a description of one.
        command_line: what jobs ask for on a cluster (walltime, memory, cores, GPUs), instead of preset and site.
    """
    return evaluate(
        dataset=dataset,
        run=run,
        model_of=model_of,
        registry=registry,
        data_root=data_root,
        catalog=catalog,
        profile=profile,
        out=out,
        site=site,
        command_line=command_line,
    )
