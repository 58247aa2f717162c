"""A sweep: trials that differ in a few keys, as one plan in which each stage that trials have in common stands once.

    OUT/sweep.json, run.json, stages/...         what is tried, and the stages of all trials
    OUT/trials/000/config.yaml, run.json         each trial as a run of its own; `stages` there is a link
    OUT/trials/000/kia/run.json, results.json    where a trial is several runs: one per vehicle that is left out

Trials are compared by what `Family.folds` says, which is validation and never a test: stages that would score tests are
not in the plan. A stage is known by its identity, as everywhere: a sweep that was stopped goes on, one with more trials
has those that were there finished.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from kdgat.base import UserError, write_bytes_atomically, write_json_atomically
from kdgat.base.configuration import execution_keys, without_keys, write_yaml
from kdgat.base.kept import read_kept
from kdgat.cluster import ResourceRequest
from kdgat.family.protocol import VALIDATION, Family
from kdgat.family.summary import SWEEP_FILE, TRIALS, trial_name
from kdgat.run import EVALUATION, Measure, OutputDirectory, PlannedStage, Run, RunConfig, StageRecord, StageState
from kdgat.run.directory import DONE_STATES, RunIndex
from kdgat.run.local import new_index
from kdgat.run.plan import InputReference, with_dependencies
from kdgat.stage import StageInput

STAGES: Final = "stages"
CONFIG_FILE: Final = "config.yaml"
# Sections and keys in which trials cannot differ and still be compared, with the reason.
NOT_SWEPT: Final = {
    "data": "it decides what trials are scored on",
    "seeds": "seeds are repetitions, not configurations: give --seeds 0 1 2",
    "preset": "give --preset",
    "resources": "it changes no result",
    "stages": "it decides by which stage trials are scored: give -O stages=[...]",
}
SCORED_BY: Final = ("monitor", "mode")  # of a section of training


class TrialRecord(BaseModel):
    """One trial in `sweep.json`: what it sets, as behind `-O`, and all of its configuration."""

    model_config = ConfigDict(extra="forbid")

    values: dict[str, str]
    config: dict[str, Any]


class SweepRecord(BaseModel):
    """The content of `sweep.json`."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = 1
    family: str
    objective: str
    trials: list[TrialRecord]


@dataclass(frozen=True)
class Trial:
    """One configuration of a sweep."""

    name: str
    values: Mapping[str, str]
    config: RunConfig


@dataclass(frozen=True)
class Fold:
    """One run of a trial."""

    trial: Trial
    name: str  # empty where the trial is one run
    run: Run
    names: Mapping[str, str]  # of its stages -> in the plan of the sweep

    @property
    def path(self) -> Path:
        """Return its output directory, below that of the sweep."""
        return Path(TRIALS, self.trial.name, self.name)


@dataclass(frozen=True)
class Outcome:
    """What came of a trial: its measures, the objective first, or none and the reason."""

    trial: Trial
    state: str
    measures: Sequence[Measure] = ()


@dataclass(frozen=True)
class Sweep:
    """Trials, and the plan that makes all of them."""

    family: Family
    objective: str
    trials: Sequence[Trial]
    folds: Sequence[Fold]
    run: Run

    @classmethod
    def of(cls, family: Family, configs: Sequence[tuple[Mapping[str, str], RunConfig]], objective: str) -> Sweep:
        """Plan a sweep of `configs`: per trial what it sets, and its whole configuration.

        Raises:
            UserError: if the objective cannot be computed.
            ValueError: as of `Family.plan`.
        """
        if objective not in family.objectives:
            raise UserError(f"--objective {objective}: {family.name} has {', '.join(family.objectives)}")
        trials = [Trial(trial_name(number), values, config) for number, (values, config) in enumerate(configs)]
        runs = [
            (trial, name, _judged_part(family, family.plan(config), objective))
            for trial in trials
            for name, config in family.folds(trial.config, objective).items()
        ]
        if objective == VALIDATION:
            _require_one_score(family, [(trial, run) for trial, _, run in runs])
        merged = _Merged(family)
        keys = [merged.add(trial, name, run) for trial, name, run in runs]
        names = merged.names()
        folds = [
            Fold(trial, name, run, {own: names[key] for own, key in of_run.items()})
            for (trial, name, run), of_run in zip(runs, keys, strict=True)
        ]
        return cls(family, objective, trials, folds, merged.run(names))

    def record(self) -> SweepRecord:
        """Return what `sweep.json` keeps."""
        trials = [
            TrialRecord(values=dict(one.values), config=one.config.model_dump(mode="json")) for one in self.trials
        ]
        return SweepRecord(family=self.family.name, objective=self.objective, trials=trials)

    def write(self, output: OutputDirectory) -> None:
        """Write down what is tried, before anything is started."""
        write_json_atomically(output.path / SWEEP_FILE, self.record().model_dump(mode="json"))
        for trial in self.trials:
            folder = output.path / TRIALS / trial.name
            folder.mkdir(parents=True, exist_ok=True)
            text = write_yaml(_file_content(trial.config), sort_keys=False)
            if more := overrides_beside_file(trial.config):
                words = shlex.join(word for override in more for word in ("-O", override))
                text = f"# A file is merged with its preset and cannot take keys from it. Give besides: {words}\n{text}"
            write_bytes_atomically(folder / CONFIG_FILE, text.encode())

    def finish(self, output: OutputDirectory) -> list[Outcome]:
        """Write each trial down as a run, as far as it has come, and return what came of them, the best first."""
        stages = self._records(output)
        found = []
        for trial in self.trials:
            folds = {fold.name: fold for fold in self.folds if fold.trial is trial}
            outputs = {name: _write_fold(fold, stages, output) for name, fold in folds.items()}
            records = [stages[name] for fold in folds.values() for name in fold.names.values()]
            state = _state_of(records)
            measures = self.family.judge(outputs, self.objective) if state == "finished" else ()
            found.append(Outcome(trial, state, measures))
        return sorted(found, key=_rank)

    def _records(self, output: OutputDirectory) -> dict[str, StageRecord]:
        """Return where each stage of the plan stands, by name.

        The index is of the sweep as it was before, other trials included, where this one was stopped before its first
        stage: what is not in it, or was done by another configuration, is planned.
        """
        records = {record.name: record for record in new_index(self.run).stages}
        planned = {one.name: one for one in self.run.plan}
        for record in output.read_index().stages:
            if record.name in planned and (
                record.state not in DONE_STATES or _is_made_by(planned[record.name], record, output)
            ):
                records[record.name] = record
        return records


def read_sweep(output: OutputDirectory) -> Sweep:
    """Plan again what `sweep.json` keeps; UserError if it is damaged."""
    from kdgat.family.registry import find_family

    path = output.path / SWEEP_FILE
    record = read_kept(SweepRecord, path.read_bytes(), path, "give the command of the sweep again")
    family = find_family(record.family)
    configs = [(one.values, family.config.from_data(one.config)) for one in record.trials]
    return Sweep.of(family, configs, record.objective)


def overrides_beside_file(config: RunConfig) -> list[str]:
    """Return what `-O` has to say besides a trial's config.yaml: sections that the preset would add keys to."""
    content = _file_content(config)
    if config.preset is None:
        return []
    read = config.from_preset(str(content.pop("preset")), content).model_dump(mode="json")
    wanted = config.model_dump(mode="json")
    if _without_empty(read) == _without_empty(wanted):
        return []
    # With sections that are empty: they may name stages that there are no more.
    return [f"{key}={json.dumps(wanted[key])}" for key, value in read.items() if value != wanted[key]]


def _file_content(config: RunConfig) -> dict[str, Any]:
    content = config.model_dump(mode="json")
    return content if config.preset else without_keys(content, ("preset",))


def _without_empty(value: Any) -> Any:
    """Return nested plain data without empty mappings, which say nothing."""
    if not isinstance(value, Mapping):
        return value
    below = {key: _without_empty(one) for key, one in value.items()}
    return {key: one for key, one in below.items() if one != {}}


def check_key(config: type[RunConfig], key: str) -> None:
    """Refuse a key in which trials cannot differ and be compared; whether it exists is seen when it is set."""
    section, *rest = key.split(".")
    if section in NOT_SWEPT:
        raise UserError(f"{key}: {NOT_SWEPT[section]}")
    if section in ("training", "training_of") and rest and rest[-1] in SCORED_BY:
        raise UserError(f"{key}: it decides by which number trials are scored: give -O {key}=...")
    executed = execution_keys(config)
    name = f"training.{rest[-1]}" if section == "training_of" and rest else key
    if any(f"{name}.".startswith(f"{one}.") for one in executed):
        raise UserError(f"{key}: it changes where or when something is computed, and no result")


def _judged_part(family: Family, run: Run, objective: str) -> Run:
    """Return what is needed of a run to judge it: of validation no test is scored, and no other stage trained."""
    if objective != VALIDATION:
        if not any(planned.stage == EVALUATION for planned in run.plan):
            raise UserError(
                f"--objective {objective} needs the stage {EVALUATION}: add it by -O stages=[...], or give "
                f"--objective {VALIDATION}"
            )
        return run
    trained = [planned.stage for planned in run.plan if _is_trained(planned)]
    judged = family.judged_stage(list(dict.fromkeys(trained)))
    if judged is None:
        raise UserError(
            f"--objective {VALIDATION}: no stage of this run is validated: choose others by -O stages=[...]"
        )
    names = {planned.name for planned in run.plan if planned.stage == judged}
    return replace(run, plan=with_dependencies(run.plan, names))


def _require_one_score(family: Family, runs: Sequence[tuple[Trial, Run]]) -> None:
    """Refuse trials that are validated by different numbers, or on different data, whatever key made them so."""
    (_, first_run), *others = runs
    first = _score_of(family, first_run)
    for trial, run in others:
        for (name, expected), (_, found) in zip(first, _score_of(family, run), strict=True):
            if found != expected:
                set_by = ", ".join(f"{key}={value}" for key, value in trial.values.items())
                raise UserError(
                    f"trial {trial.name} ({set_by}): its {name} is not that of the first trial, so that validation "
                    "does not compare them: sweep keys that leave it as it is, and set others for all trials by -O"
                )


def _score_of(family: Family, run: Run) -> list[tuple[str, Any]]:
    """Return by which number, which end of it and which data the last stage of a run is validated, for each seed."""
    stages = {planned.name: planned for planned in run.plan}
    trained = [planned for planned in run.plan if _is_trained(planned)]
    judged = [planned for planned in trained if planned.stage == trained[-1].stage]
    fits = [(planned.config.get("fits") or [planned.config])[-1]["training"] for planned in judged]
    data = [
        family.validated_on(stages[name].config)
        for planned in judged
        for name in planned.depends_on
        if not _is_trained(stages[name])
    ]
    return [(f"training.{key}", [fit[key] for fit in fits]) for key in SCORED_BY] + [("validation data", data)]


def _is_trained(planned: PlannedStage) -> bool:
    return "training" in planned.config or bool(planned.config.get("fits"))


class _Merged:
    """The plan of several runs, in which stages that do the same stand once."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._stages: dict[str, tuple[PlannedStage, Run, dict[str, InputReference]]] = {}  # inputs by key
        self._used_by: dict[str, dict[str, str]] = {}  # key -> trial -> name of the fold

    def add(self, trial: Trial, fold: str, run: Run) -> dict[str, str]:
        """Add the stages of a run; return the key of each by its name in that run."""
        reads = self._family.reads(run.config)
        keys: dict[str, str] = {}
        for planned in run.plan:
            inputs = {
                name: replace(reference, stage=keys[reference.stage]) for name, reference in planned.inputs.items()
            }
            key = json.dumps(
                [
                    planned.stage, planned.scale, planned.seed, planned.code_version,
                    without_keys(planned.config, planned.execution_keys),
                    {name: [one.stage, one.artifact, one.is_optional] for name, one in inputs.items()},
                    reads,
                ],
                sort_keys=True, default=str,
            )  # fmt: skip
            keys[planned.name] = key
            self._stages.setdefault(key, (planned, run, inputs))
            self._used_by.setdefault(key, {}).setdefault(trial.name, fold)
        return keys

    def names(self) -> dict[str, str]:
        """Name each stage by key: as in its run, with the fold, and with the trial where no other has it."""
        found: dict[str, str] = {}
        taken: dict[str, int] = {}
        for key, (planned, _, _) in self._stages.items():
            users = self._used_by[key]
            [(trial, fold), *others] = users.items()
            name = "-".join(filter(None, (fold, planned.name, "" if others else f"trial{trial}")))
            taken[name] = taken.get(name, 0) + 1
            found[key] = name if taken[name] == 1 else f"{name}-{taken[name]}"
        return found

    def run(self, names: Mapping[str, str]) -> Run:
        """Return all of it as one run."""
        plan, origins = [], {}
        resources: dict[str, ResourceRequest] = {}
        for key, (planned, run, inputs) in self._stages.items():
            renamed = {name: replace(one, stage=names[one.stage]) for name, one in inputs.items()}
            plan.append(replace(planned, name=names[key], inputs=renamed))
            origins[names[key]] = (planned, run)
            for stage, request in run.resources.items():
                before = resources.get(stage)
                if before is None or (request.memory_mib or 0) > (before.memory_mib or 0):
                    resources[stage] = request

        def external_inputs(planned: PlannedStage) -> Mapping[str, StageInput]:
            own, run = origins[planned.name]
            return run.external_inputs(own)

        runs = [run for _, run, _ in self._stages.values()]
        threads = max(run.num_threads for run in runs)
        return Run(self._family.name, runs[0].config, plan, resources, threads, external_inputs)


def _write_fold(fold: Fold, stages: Mapping[str, StageRecord], output: OutputDirectory) -> OutputDirectory:
    """Write `run.json` of one run of a trial, and the link to the stages; what was made of other stages is removed."""
    found = OutputDirectory(output.path / fold.path)
    found.path.mkdir(parents=True, exist_ok=True)
    index = new_index(fold.run)
    index.created = output.read_index().created
    for record in index.stages:
        for key in ("directory", "identity", "state", "attempts", "message"):
            setattr(record, key, getattr(stages[fold.names[record.name]], key))
    if not found.stages_path.is_symlink():
        depth = len(fold.path.parts)
        found.stages_path.symlink_to(Path(*[".."] * depth, STAGES))
    if not _is_of(found, index):
        found.results_path.unlink(missing_ok=True)
    found.write_index(index)
    return found


def _is_made_by(planned: PlannedStage, record: StageRecord, output: OutputDirectory) -> bool:
    """Return whether a stage that is done was done by the configuration that is planned."""
    configs = (planned.config, output.stage_directory(record).read_spec().config)
    made, wanted = (
        json.dumps(without_keys(one, planned.execution_keys), sort_keys=True, default=str) for one in configs
    )
    return made == wanted


def _is_of(output: OutputDirectory, index: RunIndex) -> bool:
    """Return whether results that are there were made of these stages, by this configuration."""
    try:
        before = output.read_index()
    except ValueError:
        return False
    identities = [[(record.name, record.identity) for record in one.stages] for one in (before, index)]
    return before.config == index.config and identities[0] == identities[1]


def _state_of(records: Sequence[StageRecord]) -> str:
    if all(record.state in DONE_STATES for record in records):
        return "finished"
    failed = next((record for record in records if record.state == StageState.FAILED), None)
    if failed is not None:
        return f"failed: {failed.name}: {failed.reason}"
    done = sum(record.state in DONE_STATES for record in records)
    return f"{done} of {len(records)} stages done"


def _rank(outcome: Outcome) -> tuple[bool, float]:
    """Sort by the objective; what has none comes last."""
    if not outcome.measures:
        return (True, 0.0)
    first = outcome.measures[0]
    return (False, -first.value if first.is_higher_better else first.value)
