"""Nights of an experiment: trained again where files, code or configuration have changed, in service if not worse.

The flow has the name of the other nights: who is told of them, and what notices that none comes, knows it by that.
Nothing of a night that fails, is stopped or dies is lost: the next one goes on in its run, and decides.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed
from pydantic import NonNegativeFloat, PositiveInt

from flows.experiment import experiment
from flows.naming import night_name
from flows.night.base import Night
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
from kdgat.cluster import LOCAL, Site
from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.evaluation import evaluations_on
from kdgat.experiment.family import FAMILY
from kdgat.experiment.night import (
    TrainedModel,
    by_split,
    changes,
    chosen_metric,
    decide,
    digests,
    higher_is_better,
    mean_scores,
)
from kdgat.family.night import (
    FLOW_NAME,
    NIGHTS_OF_STANDSTILL,
    NightLedger,
    NightlyDirectory,
    describe_decision,
    is_registered,
)
from kdgat.registry import ModelEntry, Promotion, Registry, RegistryError
from kdgat.run import FinishedRun, OutputDirectory
from kdgat.stage import FailureKind, Finished, RunDirectory

OF_THE_MODEL: Final = (FailureKind.BAD_INPUT, FailureKind.ERROR, FailureKind.NUMERIC)  # another try ends the same
COMPARISONS: Final = "comparisons"


@flow(name=FLOW_NAME, flow_run_name=night_name, retries=0, persist_result=False)
@failing_in_one_sentence
def nightly_experiment(
    *,
    preset: Preset | None = None,
    overrides: Overrides = (),
    metric: str = "",
    mode: Literal["min", "max"] | None = None,
    tolerance: NonNegativeFloat = 0.0,
    registry: AbsolutePath,
    out: AbsolutePath,
    site: Site | str = LOCAL,
    command_line: ClusterResources = NO_REQUEST,
    keep_runs: PositiveInt = 3,
    config: Annotated[ExperimentConfig, WithoutDefaults()],
) -> State[Any]:
    """Train an experiment again where it has changed, and put the new model into service if it is not worse.

    Args:
        preset: fills what `config` leaves out.
        overrides: single keys on top, as `training.max_epochs=5`; the same as `-O` of `kdgat`.
        metric: by which models are compared, as `test.error`; may be left out where there is one.
        mode: whether less (`min`) or more (`max`) of the metric is better, where its name does not say so.
        tolerance: by how much the new model may be worse.
        registry: directory of all models, and of which one is in service.
        out: directory for runs and reports; its name is that of the experiment in the registry.
        site: where the stages run: `local`, the name of a site, or a description of one.
        command_line: what jobs ask for on a cluster (walltime, memory, cores, GPUs), instead of preset and site.
        keep_runs: how many run directories of registered models stay.
        config: everything that training depends on; at least the source.
    """
    where = as_site(site, command_line)
    night = ExperimentNight(
        config.completed(preset, overrides), Registry(registry), NightlyDirectory(out), where, command_line
    )
    with night.begun():
        return night.run(metric, mode, tolerance, keep_runs)


class ExperimentNight(Night):
    """A night of an experiment."""

    family = FAMILY.name

    @property
    def name(self) -> str:
        """Return the name that the deployment has given it."""
        return self.directory.path.name

    def run(self, metric: str, mode: str | None, tolerance: float, keep_runs: int) -> State[Any]:
        planned, ledger = digests(FAMILY.plan(self.config)), NightLedger.read(self.directory.ledger_path)
        self.directory.close_runs(ledger.model)
        reason = self._reason(planned, ledger)
        if not reason:
            in_service = self.in_service()
            text = f"nothing new; in service: {'none' if in_service is None else in_service.id}"
            self.directory.write_report("nothing-new", f"# {self.name}: {text}\n")
            return Completed(message=text)
        path, record = self.directory.choose_run(planned["files"], f"{planned['code']}{planned['configuration']}")
        get_run_logger().info("training: %s; run %s", reason, path)
        if (ended := self.train(experiment, self.config, path)) is not None:
            return ended
        model = TrainedModel.of_run(OutputDirectory(path))
        metric = chosen_metric(metric, model.scores)
        higher_is_better(metric, mode)  # else refused, before anything is decided
        against = self.compared_with(model.source.content, record)
        current = None if against is None else self._measure(path, model, against)
        if isinstance(current, State):
            return current
        try:
            entry, record = self.register(path, record, model.source, against, by_split(model.scores))
            if isinstance(current, str):
                text = f"{record.compared_with} cannot be compared: {current}"
                decision = Promotion(False, (f"{text}; decide by `kdgat model promote {entry.id}`",))
            else:
                decision = decide(metric, model.scores, current, tolerance, mode)
            decision = self.put_into_service(entry, decision, record)
        except RegistryError as error:  # somebody has changed which one is in service, or the registry is damaged
            return Cancelled(message=f"{error}; nothing is lost: the next night compares again")
        nights = len(self.note(record, decision))
        sentence = describe_decision(reason, entry.id, decision)
        report = _report(self.name, sentence, model.scores, current, path)
        ledger.done, ledger.model = planned, entry.id
        standstill = f"{nights} nights in a row promoted nothing; this one: {sentence}"
        is_told = nights % NIGHTS_OF_STANDSTILL == 0
        return self.end(path, ledger, decision, sentence, report, standstill if is_told else "", keep_runs)

    def _reason(self, planned: Mapping[str, str], ledger: NightLedger) -> str:
        if ledger.model is None:
            return "the first night"
        if changed := changes(ledger.done, planned):
            return f"{changed} changed since {ledger.model}"
        is_there = is_registered(ledger.model, self.registry)
        return "" if is_there else "the model of the last night is not in the registry"

    def _measure(self, path: Path, model: TrainedModel, other: ModelEntry) -> dict[str, float] | str | State[Any]:
        """Measure a registered model on the samples of the new one.

        Return why it cannot be, or the state in which the night ends where that is stopped or fails for another reason.
        """
        try:
            self.registry.verify(other)
            registered = FinishedRun(OutputDirectory(self.registry.model_path(other.id)))
            specs = [spec for _, spec in evaluations_on(registered, model.samples)]
        except ValueError as error:
            return str(error)
        found = []
        for spec in specs:
            directory = RunDirectory(path / COMPARISONS / spec.directory_name())
            if not directory.is_finished():
                directory.create(spec)
            ended = self.measure(directory)
            if isinstance(ended, Finished):
                found.append(ended.metrics)
            elif isinstance(ended, State):
                return ended
            elif ended.kind in OF_THE_MODEL:
                return ended.evidence
            else:
                return Failed(message=f"comparison: {ended.evidence}; the next night tries again")
        return mean_scores(found)


def _report(
    name: str, sentence: str, scores: Mapping[str, float], current: Mapping[str, float] | str | None, path: Path
) -> str:
    before = current if isinstance(current, Mapping) else {}
    rows = [
        f"| {metric} | {f'{before[metric]:.6g}' if metric in before else '-'} | {value:.6g} |"
        for metric, value in scores.items()
    ]
    table = ["| metric | in service before | new |", "|---|---|---|", *rows]
    return "\n".join([f"# {name}", "", sentence, "", *table, "", f"The run: {OutputDirectory(path).report_path}", ""])
