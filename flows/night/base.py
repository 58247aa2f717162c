"""What every night does alike: its training, what the new model is held to, the way into service, and its end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from prefect import Flow, get_run_logger, tags, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flows.lost_runs import mark_lost_runs, output_tag
from flows.naming import artifact_key
from flows.night.events import NightEvent, tell
from flows.shown_attempts import OUTER_LOG, api_may_fail, shown
from flows.single_stage import run_single_stage
from flows.suspension import held, suspended_in_order
from kdgat.cluster import ResourceRequest, Site
from kdgat.family.night import ModelSource, NightLedger, NightlyDirectory, NightlyRecord
from kdgat.registry import Judgement, ModelEntry, Promotion, Registry
from kdgat.registry.entry import Metrics
from kdgat.run import EVALUATION, OutputDirectory, RunConfig, RunError
from kdgat.stage import Failed as StageFailed
from kdgat.stage import Finished, Outcome, RunDirectory

BY: Final = "nightly"  # in the history of the registry
ARTIFACT_KEY: Final = "night"
GOES_ON: Final = "the next night goes on from there"


@dataclass
class Night:
    """One night: what its parts share."""

    family: ClassVar[str]

    config: Any
    registry: Registry
    directory: NightlyDirectory
    site: Site
    command_line: ResourceRequest

    @property
    def name(self) -> str:
        """Return whose model it is, in the registry."""
        raise NotImplementedError

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Be the only night in its directory."""
        output = OutputDirectory(self.directory.path)
        with suspended_in_order(), self.site.creating_files(), held(self.directory.lock), tags(output_tag(output)):
            mark_lost_runs(output)  # of nights, and of their training: it has the same tag
            yield

    def in_service(self) -> ModelEntry | None:
        """Return the model in service."""
        return self.registry.in_service(self.family, self.name)

    def train(self, flow: Flow[..., State[Any]], config: RunConfig, path: Path) -> State[Any] | None:
        """Train by a family's flow; return the state in which the night ends where that does not end well."""
        outer = OUTER_LOG.set(get_run_logger())  # which tells of the stages, too
        try:
            state = flow(config=config, out=path, site=self.site, command_line=self.command_line, return_state=True)
        finally:
            OUTER_LOG.reset(outer)
        if state.is_cancelled():
            return Cancelled(message=f"{state.message}; {GOES_ON}")
        if not state.is_completed():
            return Failed(message=f"training: {state.message}; the model in service stays, the next night tries again")
        return None

    def compared_with(self, content: str, record: NightlyRecord) -> ModelEntry | None:
        """Return the model in service, or the one before where this night had come as far as putting its own there."""
        current = self.in_service()
        if current is not None and (current.content, current.id) == (content, record.model):
            return None if record.compared_with is None else self.registry.entry(record.compared_with)
        return current

    def measure(self, directory: RunDirectory) -> Finished | StageFailed | State[Any]:
        """Run a stage that measures models, unless it has run; return the state in which the night ends if stopped."""
        is_there = directory.is_finished()
        outcome = directory.read_outcome() if is_there else compare(directory, self.name, self.site, self.command_line)
        if isinstance(outcome, Finished | StageFailed):
            return outcome
        assert outcome is not None
        return Cancelled(message=f"{outcome.reason}; {GOES_ON}")

    def register(
        self,
        path: Path,
        record: NightlyRecord,
        source: ModelSource,
        against: ModelEntry | None,
        metrics: Metrics,
        **provenance: Any,
    ) -> tuple[ModelEntry, NightlyRecord]:
        """Register the model of a run, and note in its record what it is compared with."""
        other = None if against is None else against.id
        entry = self.registry.add(
            source.files,
            family=self.family,
            dataset=self.name,
            content=source.content,
            parent=record.start,
            metrics=metrics,
            provenance={**source.provenance, "compared_with": other, **provenance},
        )
        # Before the promotion: should this process die after it, the next one must know what it was compared with.
        record = record.model_copy(update={"compared_with": other, "model": entry.id})
        self.directory.write(path, record)
        return entry, record

    def put_into_service(
        self,
        entry: ModelEntry,
        decision: Promotion,
        record: NightlyRecord,
        anchors: Callable[[], tuple[str, ...]] | None = None,
    ) -> Promotion:
        """Put a model into service that was accepted, unless it is there, was taken out again, or another one is held.

        Args:
            decision: on the scores alone.
            record: of the run, with the model in service that it was compared with.
            anchors: what those are that later models are held to.

        Returns:
            What was decided in the end.
        """
        index = self.registry.read()
        current, held = index.in_service(entry.family, entry.dataset), index.held(entry.family, entry.dataset)
        if current == entry.id:
            if record.compared_with == entry.id:
                return Promotion(False, ("it is the model in service: nothing that training reads has changed",))
            return decision
        if held is not None:
            reason = f"{current} is {held.describe_hold()}; `kdgat model release` lets nights replace it"
            return Promotion(False, (*decision.reasons, reason))
        if not decision.accepted:
            return decision
        earlier = index.promoted_since(entry.id, record.created)
        if earlier is not None:  # this night died after it had put its model there, and somebody has thought otherwise
            reason = f"it went into service at {earlier.when} and was taken out again since: {current} stays"
            return Promotion(False, (*decision.reasons, reason))
        self.registry.promote(
            entry.id,
            reason=decision.describe(),
            by=BY,
            expected=record.compared_with,
            anchors=None if anchors is None else anchors(),
        )
        return decision

    def note(self, record: NightlyRecord, decision: Promotion) -> list[Judgement]:
        """Note what was decided; return the decisions since a model went into service, none of which put one there."""
        assert record.model is not None
        self.registry.note(Judgement(model=record.model, compared_with=record.compared_with, by=BY, **vars(decision)))
        return self.registry.read().refused_since_promotion(self.family, self.name)

    def end(
        self,
        path: Path,
        ledger: NightLedger,
        decision: Promotion,
        sentence: str,
        report: str,
        standstill: str,
        keep_runs: int,
    ) -> State[Any]:
        """Report, mark what was trained on as done with, tell people, and remove old runs."""
        self.directory.write_report(path.name, report)
        ledger.write(self.directory.ledger_path)
        self.directory.close_runs(ledger.model)
        publish(report, self.name)
        if decision.accepted:
            tell(NightEvent.PROMOTED, self.name, sentence)
        elif standstill:
            tell(NightEvent.STANDSTILL, self.name, standstill)
        remove_old_runs(self.directory, keep_runs)
        return Completed(message=sentence)


def remove_old_runs(directory: NightlyDirectory, keep: int) -> None:
    """Remove the oldest runs whose models are registered; one that cannot be stays: what the night decided holds."""
    logger = get_run_logger()
    for old in directory.old_runs(keep):
        try:
            directory.remove_run(old)
        except (RunError, OSError) as error:
            logger.warning("%s stays until a later night: %s", old, error)
        else:
            logger.info("removed %s, whose model is in the registry", old)


@task(name="comparison", task_run_name="comparison", cache_policy=NO_CACHE, retries=0, persist_result=False)
def compare(directory: RunDirectory, dataset: str, site: Site, command_line: ResourceRequest) -> Outcome:
    """Score the new model and the one in service on the same recordings, in a process or a job of its own."""
    logger = get_run_logger()
    return run_single_stage(
        directory.path,
        site,
        command_line,
        like_stage=EVALUATION,
        begins_anew=True,
        attempt_context=shown("comparison", lambda message: logger.info("%s", message), dataset),
        on_line=lambda line: logger.info("%s", line),
    )


def publish(text: str, dataset: str) -> None:
    """Show the report of a night in the Prefect UI."""
    with api_may_fail("report"):
        create_markdown_artifact(text, key=artifact_key(ARTIFACT_KEY, dataset), description="what the night changed")
