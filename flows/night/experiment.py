"""Nights of an experiment: trained again where files, code or configuration have changed, in service if not worse.

The flow has the name of the other nights: who is told of them, and what notices that none comes, knows it by that.
Nothing of a night that fails, is stopped or dies is lost: the next one goes on in its run, and decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from prefect import flow, get_run_logger, tags
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed
from pydantic import NonNegativeFloat, PositiveInt

from flows.experiment import experiment
from flows.lost_runs import mark_lost_runs, output_tag
from flows.naming import night_name
from flows.night.events import NightEvent, tell
from flows.night.gate import BY, compared_with, put_into_service, remove_old_runs, train
from flows.night.run import compare, publish
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
from flows.suspension import held, suspended_in_order
from kdgat.can.nightly.directory import NightlyDirectory, NightlyRecord
from kdgat.can.nightly.new_recordings import NightlyLedger
from kdgat.can.nightly.report import NIGHTS_OF_STANDSTILL
from kdgat.can.nightly.run import FLOW_NAME
from kdgat.cluster import LOCAL, ResourceRequest, Site
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
from kdgat.registry import Judgement, ModelEntry, Promotion, Registry, RegistryError
from kdgat.registry.entry import now
from kdgat.run import FinishedRun, OutputDirectory
from kdgat.stage import Failed as StageFailed
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
    tag = output_tag(OutputDirectory(night.directory.path))
    with suspended_in_order(), where.creating_files(), held(night.directory.lock), tags(tag):
        mark_lost_runs(OutputDirectory(night.directory.path))
        return night.run(metric, mode, tolerance, keep_runs)


@dataclass
class ExperimentNight:
    """One night: what its parts share."""

    config: ExperimentConfig
    registry: Registry
    directory: NightlyDirectory
    site: Site
    command_line: ResourceRequest

    @property
    def name(self) -> str:
        return self.directory.path.name

    def run(self, metric: str, mode: str | None, tolerance: float, keep_runs: int) -> State[Any]:
        planned, ledger = digests(FAMILY.plan(self.config)), NightlyLedger.read(self.directory.ledger_path)
        self.directory.close_runs(ledger.model)
        reason = self._reason(planned, ledger)
        if not reason:
            in_service = self.registry.in_service(FAMILY.name, self.name)
            text = f"nothing new; in service: {'none' if in_service is None else in_service.id}"
            self.directory.write_report("nothing-new", f"# {self.name}: {text}\n")
            return Completed(message=text)
        path, record = self._choose_run(planned)
        get_run_logger().info("training: %s; run %s", reason, path)
        state = train(experiment, self.config, path, self.site, self.command_line)
        if state.is_cancelled():
            return Cancelled(message=f"{state.message}; the next night goes on from there")
        if not state.is_completed():
            return Failed(message=f"training: {state.message}; the model in service stays, the next night tries again")
        model = TrainedModel.of_run(OutputDirectory(path))
        metric = chosen_metric(metric, model.scores)
        higher_is_better(metric, mode)  # else refused, before anything is decided
        against = compared_with(self.registry, FAMILY.name, self.name, model.content, record)
        current = None if against is None else self._measure(path, model, against)
        if isinstance(current, State):
            return current
        try:
            entry, decision = self._decide(path, record, model, against, current, metric, mode, tolerance)
        except RegistryError as error:  # somebody has changed which one is in service, or the registry is damaged
            return Cancelled(message=f"{error}; nothing is lost: the next night compares again")
        other = None if against is None else against.id
        self.registry.note(
            Judgement(model=entry.id, compared_with=other, accepted=decision.accepted, reasons=decision.reasons, by=BY)
        )
        what = "went into service" if decision.accepted else "was registered and did not go into service"
        sentence = f"{reason}; {entry.id} {what}: {decision.describe()}"
        report = _report(self.name, sentence, model.scores, current, path)
        self.directory.write_report(path.name, report)
        ledger.done, ledger.model = planned, entry.id
        ledger.write(self.directory.ledger_path)
        self.directory.close_runs(entry.id)
        publish(report, self.name)
        refused = len(self.registry.read().refused_since_promotion(FAMILY.name, self.name))
        if decision.accepted:
            tell(NightEvent.PROMOTED, self.name, sentence)
        elif refused % NIGHTS_OF_STANDSTILL == 0:
            tell(NightEvent.STANDSTILL, self.name, f"{refused} nights in a row promoted nothing; this one: {sentence}")
        remove_old_runs(self.directory, keep_runs)
        return Completed(message=sentence)

    def _reason(self, planned: Mapping[str, str], ledger: NightlyLedger) -> str:
        if ledger.model is None:
            return "the first night"
        if changed := changes(ledger.done, planned):
            return f"{changed} changed since {ledger.model}"
        if not self.registry.exists() or ledger.model not in [entry.id for entry in self.registry.read().models]:
            return "the model of the last night is not in the registry"
        return ""

    def _choose_run(self, planned: Mapping[str, str]) -> tuple[Path, NightlyRecord]:
        """Return the run that a night has left unfinished, or a new one."""
        files, rest = planned["files"], f"{planned['code']}{planned['configuration']}"
        for path, record in self.directory.records().items():
            if not record.is_over and (record.recordings, record.config) == (files, rest):
                return path, record
        record = NightlyRecord(created=now(), recordings=files, config=rest, start=None)
        path = self.directory.runs_path / "-".join(["night", *(digest[:6] for digest in planned.values())])
        self.directory.write(path, record)
        return path, record

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
                outcome = compare(directory, self.name, self.site, self.command_line)
                if isinstance(outcome, StageFailed) and outcome.kind in OF_THE_MODEL:
                    return outcome.evidence
                if isinstance(outcome, StageFailed):
                    return Failed(message=f"comparison: {outcome.evidence}; the next night tries again")
                if not isinstance(outcome, Finished):
                    return Cancelled(message=f"{outcome.reason}; the next night goes on from there")
            measured = directory.read_outcome()
            assert isinstance(measured, Finished)
            found.append(measured.metrics)
        return mean_scores(found)

    def _decide(
        self,
        path: Path,
        record: NightlyRecord,
        model: TrainedModel,
        against: ModelEntry | None,
        current: dict[str, float] | str | None,
        metric: str,
        mode: str | None,
        tolerance: float,
    ) -> tuple[ModelEntry, Promotion]:
        """Register the model, and put it into service if it is not worse."""
        other = None if against is None else against.id
        entry = self.registry.add(
            model.files,
            family=FAMILY.name,
            dataset=self.name,
            content=model.content,
            metrics=by_split(model.scores),
            provenance={**model.provenance, "compared_with": other},
        )
        # Before the promotion: should this process die after it, the next one must know what it was compared with.
        record = record.model_copy(update={"compared_with": other, "model": entry.id})
        self.directory.write(path, record)
        if isinstance(current, str):
            reason = f"{other} cannot be compared: {current}; decide by `kdgat model promote {entry.id}`"
            decision = Promotion(False, (reason,))
        else:
            decision = decide(metric, model.scores, current, tolerance, mode)
        return entry, put_into_service(self.registry, entry, decision, record)


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
