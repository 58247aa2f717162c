"""What a nightly run trains, why, and what its model is compared with, without what executes it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kdgat.base import ConfigurationError, UserError, sha256_of_file
from kdgat.base.configuration import without_keys
from kdgat.can.config import CanConfig
from kdgat.can.evaluation.run import lineage_of
from kdgat.can.kinds import ComparisonStageConfig
from kdgat.can.nightly.comparison import NEW, Comparison
from kdgat.can.nightly.new_recordings import NewRecordings
from kdgat.can.nightly.registered import NOT_COMPARED, config_hash
from kdgat.canbus.profile import Profile
from kdgat.family import flattened
from kdgat.family.night import NightlyDirectory, NightlyRecord, content_hash, is_registered
from kdgat.registry import ModelEntry, Registry, RegistryError
from kdgat.run import EVALUATION, OutputDirectory, RunError

StartFrom = Literal["current", "scratch"]
Retrain = Literal["new", "always"]


def run_config(config: CanConfig, new_recordings: NewRecordings, registry: Registry, start: str | None) -> CanConfig:
    """Return the configuration of a night's run: without the files that cannot be used, from the weights of a model."""
    data = config.data.model_copy(
        update={"leave_out": tuple(sorted({*config.data.leave_out, *new_recordings.leave_out}))}
    )
    start_from = None if start is None else str(registry.model_path(start).absolute())
    return config.model_copy(update={"data": data, "start_from": start_from})


def choose_run(
    directory: NightlyDirectory, config: CanConfig, new_recordings: NewRecordings, start: str | None
) -> tuple[Path, NightlyRecord]:
    """Return the run for these recordings and settings: one that a night left unfinished, or a new one."""
    settings = config_hash(config.model_dump(mode="json"))
    return directory.choose_run(content_hash(new_recordings.recordings), settings, start)


def night_config(config: CanConfig, profile: Path | None = None) -> CanConfig:
    """Return a configuration that a night can train, and judge by a profile; UserError names what it cannot do."""
    if profile is not None:
        Profile.read(profile)
        if config.evaluation.rule != "budget":
            raise UserError(
                f"profile={profile} is for the habits of identifiers, which evaluation.rule={config.evaluation.rule} "
                "does not ask: set evaluation.rule=budget, or leave the profile out"
            )
    if config.start_from is not None:
        raise UserError(f"config.start_from={config.start_from}: the night chooses it; give start_from instead")
    if EVALUATION not in config.stages:
        raise UserError("config.stages: a night compares models, which needs the stage evaluation; add it")
    return config


def reason_to_train(
    new_recordings: NewRecordings, config: CanConfig, registry: Registry, last: str | None, retrain: Retrain
) -> str:
    """State why a night trains; empty where it has no reason to, or nothing to train on.

    `last` is the id of the model of the last completed night; None before the first.
    """
    if not new_recordings.recordings:
        return ""
    if new_recordings.is_any:
        return new_recordings.describe()
    if last is None or not is_registered(last, registry):
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
    profile: Path | None = None,
) -> ComparisonPlan:
    """Plan to score a new model and those it is held to, without those of them whose files are damaged.

    `others` are by name, the model in service and its anchors, none for the first model; `contents` are hashes of the
    new model and of the recordings; `profile` is as of `compare_runs`.
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
    files = {"catalog": catalog, "profile": profile}
    contents |= {name: sha256_of_file(path) for name, path in files.items() if path is not None}
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
        profile=None if profile is None else str(profile.absolute()),
        contents=contents,
    )
    notes = tuple(dict.fromkeys(note for line in lines for note in line.notes))
    return ComparisonPlan(stage_config, notes, tuple(faults))
