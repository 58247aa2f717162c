"""One nightly run of retraining, without what executes it: its directories, its training run, and its report."""

import shutil
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kdgat.can.config import CanConfig
from kdgat.can.evaluation.lineage import lineage_of
from kdgat.can.evaluation.tables import format_value
from kdgat.can.kinds import ComparisonStageConfig
from kdgat.can.nightly.comparison import Comparison
from kdgat.can.nightly.new_recordings import NewRecordings, NightlyError
from kdgat.can.nightly.registered import NOT_COMPARED, config_hash, content_hash
from kdgat.family.summary import flattened
from kdgat.registry.entry import ModelEntry, ServiceChange, now
from kdgat.registry.promotion import FALSE_ALARMS, Promotion, PromotionRule
from kdgat.registry.registry import Registry, RegistryError
from kdgat.run.directory import Exclusive, OutputDirectory, RunError
from kdgat.run.finished import EVALUATION
from kdgat.stage.configuration import ConfigurationError, without_keys
from kdgat.stage.files import sha256_of_file, write_bytes_atomically

FLOW_NAME: Final = "nightly"
NEW: Final = "new"
IN_SERVICE: Final = "in_service"
NIGHTLY_FILE: Final = "night.json"  # marks a run directory as one that a night made

StartFrom = Literal["current", "scratch"]
Retrain = Literal["new", "always"]


class NightlyRecord(BaseModel):
    """The content of `night.json` in a run directory: what the run was made for, and how far its night came."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    created: str
    recordings: str  # hash of what it trains and tests on
    config: str  # hash of its configuration
    start: str | None  # id of the model that it starts from
    compared_with: str | None = None  # id of the model that was in service when it was decided
    model: str | None = None  # id under which it was registered
    is_over: bool = False  # decided: nothing resumes it


class NightlyDirectory(Exclusive):
    """Names of what the nightly runs of one dataset leave behind."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.ledger_path = self.path / "nightly.json"
        self.runs_path = self.path / "runs"
        self.reports_path = self.path / "reports"
        self.lock_path = self.path / "nightly.lock"
        self.owner_path = self.path / "nightly-owner.json"

    def busy(self, text: str) -> NightlyError:
        """Return the error of a second night in this directory."""
        return NightlyError(f"{text}; or choose another out")

    def records(self) -> dict[Path, NightlyRecord]:
        """Read what is known of the runs that nights made, oldest first; other directories are none of theirs."""
        found = {}
        for path in sorted(self.runs_path.glob(f"*/{NIGHTLY_FILE}")):
            try:
                found[path.parent] = NightlyRecord.model_validate_json(path.read_bytes())
            except ValidationError as error:
                raise NightlyError(
                    f"{path} is damaged ({error}): remove {path.parent}, a night trains again"
                ) from error
        return dict(sorted(found.items(), key=lambda pair: pair[1].created))

    def write(self, run: Path, record: NightlyRecord) -> None:
        """Write what is known of a run."""
        run.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(run / NIGHTLY_FILE, (record.model_dump_json(indent=2) + "\n").encode())

    def choose_run(
        self, config: CanConfig, new_recordings: NewRecordings, start: str | None
    ) -> tuple[Path, NightlyRecord]:
        """Return the run for these recordings and settings: one that a night left unfinished, or a new one.

        One that starts from other weights than those of the model in service is resumed; one that starts from
        scratch where it should not, or the other way round, is not.
        """
        recordings, settings = content_hash(new_recordings.recordings), config_hash(config.model_dump(mode="json"))
        wanted = recordings, settings, start is None
        for path, record in self.records().items():
            is_from_scratch = record.start is None
            if not record.is_over and (record.recordings, record.config, is_from_scratch) == wanted:
                return path, record
        record = NightlyRecord(created=now(), recordings=recordings, config=settings, start=start)
        path = self.runs_path / f"night-{content_hash([recordings, settings, start])[:12]}"
        self.write(path, record)
        return path, record

    def close_runs(self, model: str | None) -> None:
        """Mark what became the model of the last completed night as over, which a night that died may not have done."""
        for path, record in self.records().items():
            if not record.is_over and record.model is not None and record.model == model:
                self.write(path, record.model_copy(update={"is_over": True}))

    def latest_run(self) -> OutputDirectory | None:
        """Return the run that was begun or continued last; None before the first."""
        written = {path.parent: path.stat().st_mtime for path in self.runs_path.glob("*/run.json")}
        return OutputDirectory(max(written, key=lambda path: written[path])) if written else None

    def latest_report(self) -> Path | None:
        """Return the report that was written last; None before the first."""
        return max(self.reports_path.glob("*.md"), key=lambda path: path.stat().st_mtime_ns, default=None)

    def unfinished_runs(self) -> dict[Path, int]:
        """Return the runs whose nights did not end, as after a failure, and how many bytes each takes."""
        left = [path for path, record in self.records().items() if not record.is_over]
        return {path: _num_bytes(path) for path in left}

    def old_runs(self, keep: int) -> list[Path]:
        """List all but the newest `keep` runs that are registered and over."""
        over = [path for path, record in self.records().items() if record.is_over and record.model is not None]
        return over[: max(0, len(over) - keep)]

    def remove_run(self, path: Path) -> None:
        """Remove the directory of a run; RunError if somebody works in it."""
        with OutputDirectory(path).lock():
            # The marker goes last: what a kill leaves of the directory is still known to be a night's.
            for entry in path.iterdir():
                if entry.name != NIGHTLY_FILE:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        shutil.rmtree(path)


def run_config(config: CanConfig, new_recordings: NewRecordings, registry: Registry, start: str | None) -> CanConfig:
    """Return the configuration of a night's run: without the files that cannot be used, from the weights of a model."""
    data = config.data.model_copy(
        update={"leave_out": tuple(sorted({*config.data.leave_out, *new_recordings.leave_out}))}
    )
    start_from = None if start is None else str(registry.model_path(start).absolute())
    return config.model_copy(update={"data": data, "start_from": start_from})


def night_config(config: CanConfig) -> CanConfig:
    """Return a configuration that a night can train; NightlyError names what it cannot do."""
    if config.start_from is not None:
        raise NightlyError(f"config.start_from={config.start_from}: the night chooses it; give start_from instead")
    if EVALUATION not in config.stages:
        raise NightlyError("config.stages: a night compares models, which needs the stage evaluation; add it")
    return config


def reason_to_train(
    new_recordings: NewRecordings, config: CanConfig, registry: Registry, last: str | None, retrain: Retrain
) -> str:
    """State why a night trains; empty where it has no reason to, or nothing to train on.

    Args:
        new_recordings: what the night found.
        config: of the night.
        registry: of the models.
        last: id of the model of the last completed night; None before the first.
        retrain: what the night was given.
    """
    if not new_recordings.recordings:
        return ""
    if new_recordings.is_any:
        return new_recordings.describe()
    if last is None or not registry.exists() or last not in [entry.id for entry in registry.read().models]:
        return "the model of the last night is not in the registry"
    if retrain == "always":
        return "retrain=always"
    changes = changed_settings(config, registry, last)
    return f"the configuration has changed since {last}: {', '.join(changes)}" if changes else ""


def changed_settings(config: CanConfig, registry: Registry, model: str) -> list[str]:
    """List what a model was trained with and the configuration has otherwise by now, as `key before -> now`."""
    try:
        content = OutputDirectory(registry.model_path(model)).read_index().config
    except (RunError, OSError):
        return []  # a damaged model: what is compared with it says so
    try:
        content, is_known = CanConfig.from_data(content).model_dump(mode="json"), True  # a key added since: its default
    except ConfigurationError:  # of another version of kdgat: what both have is compared
        is_known = False
    was, is_now = (flattened(without_keys(one, NOT_COMPARED)) for one in (content, config.model_dump(mode="json")))
    changes = []
    for key in {**was, **is_now}:
        before, after = was.get(key, "unset"), is_now.get(key, "unset")
        if before != after and (is_known or (key in was and key in is_now)):
            changes.append(f"{key} {before} -> {after}")
    return changes


@dataclass(frozen=True)
class ComparisonPlan:
    """What the stage `comparison` of a night is asked, and what is known before."""

    config: ComparisonStageConfig
    notes: tuple[str, ...]
    faults: tuple[str, ...]

    def add_to(self, comparison: Comparison) -> Comparison:
        """Return a comparison with what was known before."""
        notes, faults = (*comparison.notes, *self.notes), (*comparison.faults, *self.faults)
        return comparison.model_copy(update={"notes": notes, "faults": faults})


def plan_comparison(
    run: Path,
    config: CanConfig,
    recordings: Collection[str],
    contents: Mapping[str, str],
    registry: Registry,
    others: Mapping[str, ModelEntry],
) -> ComparisonPlan:
    """Plan to score a new model and those it is held to, without those of them whose files are damaged.

    Args:
        run: of the new model.
        config: of the run.
        recordings: files below the dataset's folder that the night knows.
        contents: hashes of the new model and of the recordings.
        registry: with the others.
        others: name -> the model in service and its anchors; none of them for the first model.
    """
    runs, contents = {NEW: run}, dict(contents)
    faults: list[str] = []
    for name, entry in others.items():
        try:
            registry.verify(entry)
        except RegistryError as error:
            faults.append(f"{name} cannot be compared: {error}")
        else:
            runs[name] = registry.model_path(entry.id).absolute()
            contents[name] = entry.content
    catalog = None if config.data.catalog is None else Path(config.data.catalog).absolute()
    if catalog is not None:
        contents["catalog"] = sha256_of_file(catalog)
    lines = [lineage_of(path) for path in runs.values()]
    stage_config = ComparisonStageConfig(
        runs={name: str(path) for name, path in runs.items()},
        data_root=str(Path(config.data.data_root).absolute()),
        dataset=config.data.dataset,
        catalog=None if catalog is None else str(catalog),
        hold_out=config.data.hold_out,
        leave_out=config.data.leave_out,
        only=tuple(sorted(recordings)),
        also_trained={key: name for line in lines for key, name in line.trained.items()},
        may_fail=tuple(others),
        contents=contents,
    )
    notes = tuple(dict.fromkeys(note for line in lines for note in line.notes))
    return ComparisonPlan(stage_config, notes, tuple(faults))


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

    def sentence(self) -> str:
        """Say in one sentence what changed."""
        what = "went into service" if self.decision.accepted else "was registered and did not go into service"
        return f"{self.reason or self.new_recordings.describe()}; {self.entry.id} {what}: {self.decision.describe()}"

    def markdown(self) -> str:
        """Write the morning's report."""
        default_detector = "goes into service" if self.decision.accepted else "does not go into service"
        current = "no model was in service" if self.compared_with is None else f"in service: `{self.compared_with.id}`"
        started = "from scratch" if self.record.start is None else f"from the weights of `{self.record.start}`"
        rule = self.rule
        margin = f"{rule.error_margin:g} of the error" if rule.margin is None else f"{rule.margin:g}"
        asks = f"better by {margin}" if rule.accept == "better" else f"below the best so far by no more than {margin}"
        if rule.accept == "not_worse" and rule.margin is None and rule.more_windows:
            asks += f" or {rule.more_windows} wrong windows"
        lines = [
            f"# {self.dataset}: the new model {default_detector}",
            "",
            f"`{self.entry.id}`, trained {started}; {current} when it was decided.",
            "",
            *(f"* {reason}" for reason in self.decision.reasons),
            "",
            *([f"**Warning**: {self.warning}.", ""] if self.warning else []),
            *([f"Trained because of this: {self.reason}.", ""] if self.reason else []),
            f"Rule: mean {rule.metric} over scenarios {asks}, none worse by more than "
            f"{rule.worse_by:g}; false alarm rate nowhere higher by more than {rule.more_false_alarms:g}; "
            f"no more than {rule.more_alarms_per_hour:g} false alarms per hour more on the mean; recall of "
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
        header += ["false alarms", "in service", "change"]
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


def _num_bytes(folder: Path) -> int:
    total = 0
    with suppress(OSError):  # of what goes while we look
        for file in folder.rglob("*"):
            status = file.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *(f"* {item}" for item in items), ""] if items else []


def _pairs(reasons: Mapping[str, str]) -> list[str]:
    return [f"`{name}`: {reason}" for name, reason in sorted(reasons.items())]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _difference(new: float | None, current: float | None) -> str:
    return "-" if new is None or current is None else f"{new - current:+.4f}"
