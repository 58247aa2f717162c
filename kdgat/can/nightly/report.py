"""The morning's report of a night, as Markdown: of one that trained, and of one that had nothing to train on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kdgat.can.evaluation.tables import format_value
from kdgat.can.nightly.comparison import IN_SERVICE, NEW, Comparison
from kdgat.can.nightly.new_recordings import NewRecordings
from kdgat.family.night import NIGHTS_OF_STANDSTILL, NightlyRecord, describe_decision
from kdgat.registry import Judgement, ModelEntry, Promotion, PromotionRule, ServiceChange
from kdgat.registry.promotion_rule import FALSE_ALARMS
from kdgat.run import OutputDirectory


@dataclass(frozen=True)
class NightlyReport:
    """The report of a nightly run that trained."""

    dataset: str
    new_recordings: NewRecordings
    record: NightlyRecord
    entry: ModelEntry
    compared_with: ModelEntry | None
    comparison: Comparison
    rule: PromotionRule
    decision: Promotion
    run: Path
    unfinished: Mapping[Path, int] = field(default_factory=dict)  # run of a night that did not end -> bytes
    reason: str = ""  # why it was trained, where that was for no new recording
    warning: str = ""  # that no later night can replace the model in service
    refused: Sequence[Judgement] = ()  # of this night and those before it, since a model went into service

    def sentence(self) -> str:
        """Say in one sentence what changed."""
        return describe_decision(self.reason or self.new_recordings.describe(), self.entry.id, self.decision)

    def standstill(self) -> str:
        """Say that nights promote nothing, since when and why; empty for a night of which nobody need be told."""
        nights = len(self.refused)
        if self.decision.accepted or not (self.warning or (nights and nights % NIGHTS_OF_STANDSTILL == 0)):
            return ""
        since = [f"nights that trained and promoted nothing since {first.when}: {nights}" for first in self.refused[:1]]
        return "; ".join([*([self.warning] if self.warning else []), *since, f"this one: {self.decision.describe()}"])

    def markdown(self) -> str:
        """Write the morning's report."""
        service = "goes into service" if self.decision.accepted else "does not go into service"
        current = "no model was in service" if self.compared_with is None else f"in service: `{self.compared_with.id}`"
        started = "from scratch" if self.record.start is None else f"from the weights of `{self.record.start}`"
        rule = self.rule
        margin = f"{rule.error_margin:g} of the error" if rule.margin is None else f"{rule.margin:g}"
        asks = f"better by {margin}" if rule.accept == "better" else f"below the best so far by no more than {margin}"
        if rule.accept == "not_worse" and rule.margin is None and rule.more_windows:
            asks += f" or {rule.more_windows} wrong windows"
        lines = [
            f"# {self.dataset}: the new model {service}",
            "",
            f"`{self.entry.id}`, trained {started}; {current} when it was decided.",
            "",
            *(f"* {reason}" for reason in self.decision.reasons),
            "",
            *([f"**Warning**: {self.warning}.", ""] if self.warning else []),
            *([f"Nights in a row that promoted nothing: {len(self.refused)}.", ""] if self.refused else []),
            *([f"Trained because of this: {self.reason}.", ""] if self.reason else []),
            f"Rule: mean {rule.metric} over scenarios {asks}, none worse by more than "
            f"{rule.worse_by:g}; false alarm rate nowhere higher by more than {rule.more_false_alarms:g}; "
            f"no more than {rule.more_alarms_per_hour:g} benign windows in alarm per hour more on the mean; recall of "
            f"{', '.join(rule.held_kinds) or 'no kind of attack'} held as the metric is.",
            *(f"Held to what was best before, too: `{name}`." for name in self._anchors()),
            "",
            *new_recordings_lines(self.new_recordings),
            "## Scores",
            "",
            *self._table(),
            "",
        ]
        lines += _listed("Test recordings left out of the comparison", _pairs(self.comparison.left_out))
        lines += _listed("Notes", self.comparison.notes)
        lines += unfinished_lines(self.unfinished)
        lines += [f"Run: `{self.run}`", ""]
        report = OutputDirectory(self.run).report_path
        lines += [f"Its report, with curves and all scores: `{report}`", ""] if report.is_file() else []
        return "\n".join(lines)

    def _anchors(self) -> list[str]:
        return [name for name in self.comparison.metrics if name not in (NEW, IN_SERVICE)]

    def _table(self) -> list[str]:
        new = self.comparison.metrics.get(NEW, {})
        current = self.comparison.metrics.get(IN_SERVICE, {})
        if not new:
            return ["No test recording is left that none of the models was trained on."]
        metric = self.rule.metric
        # Short words: the Prefect UI cuts off what is wider than its column.
        header = ["scenario", "windows", f"{metric} new", "in service", "change"]
        header += ["benign in alarm", "in service", "change"]
        rows = []
        for scenario, scores in new.items():
            other = current.get(scenario, {})
            cells = [scenario, f"{scores['num_windows'] or 0:,.0f}"]
            for name in (metric, FALSE_ALARMS):
                values = (scores.get(name), other.get(name))
                cells += [*map(format_value, values), _difference(*values)]
            rows.append(cells)
        return [_row(header), _row(["---"] * len(header)), *map(_row, rows)]


def idle_run(
    dataset: str,
    new_recordings: NewRecordings,
    model: str | None,
    held: ServiceChange | None = None,
    unfinished: Mapping[Path, int] | None = None,
) -> tuple[str, str]:
    """Return sentence and report of a nightly run with nothing to train on."""
    service = "no model is in service" if model is None else f"{model} stays in service"
    service += "" if held is None else f", {held.describe_hold()}"
    title = "every new file was refused" if new_recordings.all_refused else "nothing new"
    sentence = f"{title}: {new_recordings.describe()}; {service}"
    if new_recordings.waiting:
        sentence += "; a file that changed less than settle_s seconds ago waits for the next night"
    lines = [
        f"# {dataset}: {title}",
        "",
        f"{sentence[0].upper()}{sentence[1:]}.",
        "",
        *new_recordings_lines(new_recordings),
        *unfinished_lines(unfinished or {}),
    ]
    return sentence, "\n".join(lines)


def unfinished_lines(unfinished: Mapping[Path, int]) -> list[str]:
    """List the runs of nights that did not end, which stay for a night with the same recordings and settings."""
    return _listed(
        "Unfinished runs, which stay until somebody removes them",
        [f"`{path}`: {num_bytes / 1e6:,.1f} MB" for path, num_bytes in unfinished.items()],
    )


def new_recordings_lines(new_recordings: NewRecordings) -> list[str]:
    """List the recordings that are new or changed, refused or waiting."""
    came_from = {target: source for source, target in new_recordings.imported.items()}

    def named(paths: Sequence[str]) -> list[str]:
        return [f"`{path}`" + (f" from `{came_from[path]}`" if path in came_from else "") for path in paths]

    return [
        *_listed("New recordings", named(new_recordings.new)),
        *_listed("Changed recordings", named(new_recordings.changed)),
        *_listed("Recordings that are gone", named(new_recordings.gone)),
        *_listed("Refused files, looked at again every night", _pairs(new_recordings.refused)),
        *_listed(
            "Files that are still being written, for the next night", [f"`{name}`" for name in new_recordings.waiting]
        ),
    ]


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *(f"* {item}" for item in items), ""] if items else []


def _pairs(reasons: Mapping[str, str]) -> list[str]:
    return [f"`{name}`: {reason}" for name, reason in sorted(reasons.items())]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _difference(new: float | None, current: float | None) -> str:
    return "-" if new is None or current is None else f"{new - current:+.4f}"
