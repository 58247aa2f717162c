"""The flow `evaluate-can`: a run, or the model in service, on any recordings; nothing is trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flows.naming import artifact_key, evaluation_name
from flows.parameters import NO_REQUEST, AbsolutePath, ClusterResources, as_site, failing_in_one_sentence
from flows.publication import publish_table
from flows.shown_attempts import api_may_fail, shown
from flows.single_stage import run_single_stage
from flows.suspension import suspended_in_order
from kdgat.base import UserError, validate_config
from kdgat.can.evaluation.other_recordings import make_evaluation
from kdgat.can.family import FAMILY
from kdgat.cluster import LOCAL, ResourceRequest, Site
from kdgat.family import ScoringRequest
from kdgat.registry import Registry
from kdgat.run import EVALUATION, OutputDirectory
from kdgat.stage import Failed as StageFailed
from kdgat.stage import Finished

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
    logger = get_run_logger()
    where = as_site(site, command_line)
    source = run.absolute() if run is not None else _in_service(registry, model_of or dataset)
    logger.info("detectors of %s", source)
    with where.creating_files():
        directory = make_evaluation(
            ScoringRequest(source, data_root, dataset, catalog, profile=profile), below=out.absolute() / "evaluations"
        )
    trained = OutputDirectory(source).read_index().config
    stated, scope = trained.get("resources", {}), dataset or trained["data"]["dataset"]
    with suspended_in_order():
        outcome = run_single_stage(
            directory.path,
            where,
            command_line,
            like_stage=EVALUATION,
            begins_anew=True,
            requests={stage: validate_config(ResourceRequest, request) for stage, request in stated.items()},
            attempt_context=shown(EVALUATION, lambda message: logger.info("%s", message), scope),
            on_line=lambda line: logger.info("%s", line),
        )
    if isinstance(outcome, StageFailed):
        return Failed(message=outcome.describe())
    if not isinstance(outcome, Finished):
        return Cancelled(message=f"{outcome.reason}; an evaluation begins anew")
    results = FAMILY.results.read(directory.path / outcome.artifacts["results"])
    path = out.absolute() / f"{directory.path.name}.json"
    with where.creating_files():
        results.write(path)
    scores = next(table for table in FAMILY.tables(results) if table.key)
    caption = f"{results.detector.name} of `{source}` on {results.dataset}; all metrics are in `{path}`"
    with api_may_fail("results"):
        publish_table(replace(scores, caption=caption), artifact_key(EVALUATION, scope))
    for note in results.data.notes:
        logger.info("%s", note)
    return Completed(message=f"{'; '.join(FAMILY.conclusions(results))}; {path}")


def _in_service(registry: Path | None, dataset: str | None) -> Path:
    """Return the directory of the model in service."""
    if registry is None or dataset is None:
        raise UserError("what shall be evaluated? Give run, or registry and dataset (or model_of)")
    found = Registry(registry.absolute()).in_service(FAMILY.name, dataset)
    if found is None:
        raise UserError(
            f"dataset={dataset!r}: {registry} has no model in service for it; give run or model_of, or let the nightly "
            "flow train one (`kdgat model list` shows which there are)"
        )
    return Registry(registry.absolute()).model_path(found.id)
