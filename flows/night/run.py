"""What a night does once its flow has begun: train, compare, decide, report."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flows.can import can
from flows.night.base import Night, publish
from flows.night.events import NightEvent, tell
from kdgat.can.config import CanConfig
from kdgat.can.family import FAMILY
from kdgat.can.nightly.comparison import IN_SERVICE, NEW, Comparison, make_comparison, read_comparison
from kdgat.can.nightly.new_recordings import NightlyLedger, gather_new_recordings
from kdgat.can.nightly.registered import model_source
from kdgat.can.nightly.report import NightlyReport, idle_run
from kdgat.can.nightly.run import (
    ComparisonPlan,
    Retrain,
    StartFrom,
    choose_run,
    plan_comparison,
    reason_to_train,
    run_config,
)
from kdgat.canbus.reading import ReadingProcess
from kdgat.family.night import ModelSource, NightlyRecord
from kdgat.registry import ModelEntry, Promotion, PromotionRule, RegistryError, judge
from kdgat.registry.promotion import best_models, ceiling, lost_scenarios
from kdgat.stage import Failed as StageFailed

MAX_DECISIONS: Final = 3  # of one night, where the model in service changes while it compares


@dataclass
class NightRun(Night):
    """A night of a dataset."""

    family = FAMILY.name

    config: CanConfig
    rule: PromotionRule
    profile: Path | None = None

    @property
    def name(self) -> str:
        """Return the dataset."""
        return self.config.data.dataset

    def run(
        self, inbox: Path | None, start_from: StartFrom, retrain: Retrain, keep_runs: int, settle_s: float
    ) -> State[Any]:
        logger = get_run_logger()
        current = self.in_service()
        ledger = NightlyLedger.read(self.directory.ledger_path)
        self.directory.close_runs(ledger.model)
        if inbox is not None and not inbox.exists():
            logger.info("inbox %s was not there and is made: new recordings go into it", inbox)
        try:
            with ReadingProcess() as reader:
                new_recordings = gather_new_recordings(
                    self.config.data, inbox, ledger, settle_s, reader, self.directory.being_read_path
                )
        finally:
            ledger.write(self.directory.ledger_path)  # what was imported is imported, whatever comes after
        logger.info("%s", new_recordings.describe())
        for file, reason in new_recordings.refused.items():
            logger.warning("refused %s: %s", file, reason)
        unfinished = self.directory.unfinished_runs()
        for path, num_bytes in unfinished.items():
            logger.warning("%s: the run of a night that did not end, %.1f MB", path, num_bytes / 1e6)
        reason = reason_to_train(new_recordings, self.config, self.registry, ledger.model, retrain)
        if not reason:
            held = None if current is None else self.registry.read().held(FAMILY.name, self.name)
            sentence, text = idle_run(
                self.name, new_recordings, None if current is None else current.id, held, unfinished
            )
            self.directory.write_report("refused" if new_recordings.all_refused else "nothing-new", text)
            publish(text, self.name)
            if new_recordings.all_refused:  # whoever put them there believes that they are learned from
                return Failed(message=f"{sentence}; {new_recordings.describe_refusals()}")
            return Completed(message=sentence)
        logger.info("training: %s", reason)
        if new_recordings.newly_refused:
            tell(NightEvent.REFUSED, self.name, new_recordings.describe_refusals())

        start = current.id if current is not None and start_from == "current" else None
        path, record = choose_run(self.directory, self.config, new_recordings, start)
        config = run_config(self.config, new_recordings, self.registry, record.start)
        logger.info("run %s, %s", path, "from scratch" if record.start is None else f"from {record.start}")
        if (ended := self.train(can, config, path)) is not None:
            return ended
        decided = self._decided(path, record, model_source(path), config, new_recordings.recordings)
        if isinstance(decided, State):
            return decided
        against, comparison, entry, decision, record = decided
        refused = self.note(record, decision)
        ledger.done, ledger.model = new_recordings.recordings, entry.id
        now_in_service = entry if decision.accepted else against
        warning = (
            ""
            if now_in_service is None
            else ceiling(comparison.metrics.get(NEW if now_in_service is entry else IN_SERVICE, {}), self.rule)
        )
        if warning:
            logger.warning("%s", warning)
        report = NightlyReport(
            dataset=self.name,
            new_recordings=new_recordings,
            record=record,
            entry=entry,
            compared_with=against,
            comparison=comparison,
            rule=self.rule,
            decision=decision,
            run=path,
            unfinished={other: num_bytes for other, num_bytes in unfinished.items() if other != path},
            reason="" if new_recordings.is_any else reason,
            warning=warning,
            refused=refused,
        )
        return self.end(path, ledger, decision, report.sentence(), report.markdown(), report.standstill(), keep_runs)

    def _decided(
        self, path: Path, record: NightlyRecord, source: ModelSource, config: CanConfig, recordings: Mapping[str, str]
    ) -> tuple[ModelEntry | None, Comparison, ModelEntry, Promotion, NightlyRecord] | State[Any]:
        """Compare and decide, and once more where the model in service is another one, or held, by then.

        Return with what it was compared; the state in which the night ends where the comparison fails or is stopped.
        """
        logger = get_run_logger()
        for left in reversed(range(MAX_DECISIONS)):
            against = self.compared_with(source.content, record)
            others = self._held_to(against)
            contents = {NEW: source.content, "recordings": record.recordings}
            plan = plan_comparison(path, config, recordings, contents, self.registry, others, self.profile)
            said = {NEW: "the new model", IN_SERVICE: "the model in service"}
            names = [said.get(name, name) for name in plan.config.runs]
            logger.info("scoring %s on the same test recordings", " and ".join(names))
            comparison = self._compare(path, plan)
            if isinstance(comparison, State):
                return comparison
            try:
                return against, comparison, *self._decide(path, record, source, against, comparison)
            except RegistryError as error:
                index = self.registry.read()
                current, held = index.in_service(FAMILY.name, self.name), index.held(FAMILY.name, self.name)
                if held is None and current == (None if against is None else against.id):
                    raise  # nothing has changed: it is damaged, or busy
                if not left:
                    return Cancelled(message=f"{error}; nothing is lost: the next night compares again")
                logger.warning("%s: this night does", error)
        raise AssertionError

    def _held_to(self, against: ModelEntry | None) -> dict[str, ModelEntry]:
        """Name the models that a new one is measured with: the one in service, and earlier ones that still bind."""
        if against is None:
            return {}
        names = self.registry.read().anchors(against)
        return {IN_SERVICE: against, **{name: self.registry.entry(name) for name in names}}

    def _compare(self, path: Path, plan: ComparisonPlan) -> Comparison | State[Any]:
        """Score what is compared; the state in which the night ends where that fails or is asked to stop."""
        directory = make_comparison(path / "comparisons", plan.config)
        ended = self.measure(directory)
        if isinstance(ended, StageFailed):
            text = f"comparison: {ended.evidence}; the model in service stays, the next night tries again"
            return Failed(message=text)
        return ended if isinstance(ended, State) else plan.add_to(read_comparison(directory))

    def _decide(
        self,
        path: Path,
        record: NightlyRecord,
        source: ModelSource,
        against: ModelEntry | None,
        comparison: Comparison,
    ) -> tuple[ModelEntry, Promotion, NightlyRecord]:
        """Register the model, and put it into service if the rule says so."""
        scores = comparison.metrics[NEW]
        entry, record = self.register(path, record, source, against, scores, measured_on=comparison.test_sets())
        metrics, current_scores = comparison.metrics, comparison.metrics.get(IN_SERVICE)
        anchors = {name: found for name, found in metrics.items() if name not in (NEW, IN_SERVICE)}
        lost = [] if against is None else lost_scenarios(scores, against.metrics, self.rule)
        faults = [f"{fault}; decide by `kdgat model promote {entry.id}`" for fault in (*comparison.faults, *lost)]
        decision = judge(scores, current_scores, self.rule, faults, anchors)

        def best() -> tuple[str, ...]:
            measured = {entry.id: scores}
            if against is not None and current_scores is not None:
                measured |= {against.id: current_scores, **anchors}
            return tuple(name for name in best_models(measured, self.rule) if name != entry.id)

        return entry, self.put_into_service(entry, decision, record, best), record
