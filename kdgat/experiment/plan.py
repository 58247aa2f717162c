"""The stages of an experiment: a preparation for each set of data arguments, training, and an evaluation per seed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kdgat.base import Config
from kdgat.base.configuration import without_keys
from kdgat.base.hashes import sha256_once
from kdgat.experiment.code import code_digest
from kdgat.experiment.config import ExperimentConfig, takes_root
from kdgat.experiment.declaration import PREPARE, TRAINING, Experiment, ExperimentError
from kdgat.experiment.results import says_direction
from kdgat.experiment.source import SUFFIX, Source, load_experiment, read_source
from kdgat.run import EVALUATION, OutputDirectory, PlannedStage
from kdgat.run.kinds import StageKind, StageKinds
from kdgat.run.plan import InputReference
from kdgat.stage import RunDirectory
from kdgat.training import TrainingConfig

SCALE: Final = "own"
SPLITS: Final = ("train", "validation", "test")
START: Final = "start"
MADE_BY_PYG: Final = "pre_transform.pt"  # in folders where datasets of PyG keep what they have made of raw files


class PrepareConfig(Config):
    """What a preparation depends on."""

    arguments: dict[str, Any]
    code: str
    files: str
    is_packed: bool  # samples are kept one by one for a `collate`


class TrainingStageConfig(Config):
    """What a stage of training depends on."""

    arguments: dict[str, Any]
    code: str
    frozen: tuple[str, ...]
    training: TrainingConfig


class EvaluationStageConfig(Config):
    """What an evaluation depends on; `training` says how batches are cut."""

    arguments: dict[str, Any]
    code: str
    training: TrainingConfig


KINDS: Final = StageKinds(
    (
        StageKind(PREPARE, PrepareConfig, "kdgat.experiment.stages:prepare", trains=False),
        StageKind(TRAINING, TrainingStageConfig, "kdgat.experiment.stages:train"),
        StageKind(EVALUATION, EvaluationStageConfig, "kdgat.experiment.stages:evaluate", trains=False),
    )
)


def kind_of(stage: str) -> StageKind:
    """Return the kind of a stage by its name; what is neither preparation nor evaluation trains."""
    return KINDS[stage if stage in (PREPARE, EVALUATION) else TRAINING]


def plan_experiment(config: ExperimentConfig) -> list[PlannedStage]:
    """List the stages of a run in an order in which they can be executed."""
    source = read_source(config.source)
    if config.same_code is not None and not source.files:  # no stage carries its text
        raise ExperimentError(f"same_code: {source.name} is installed: give the file that holds the Experiment")
    experiment = load_experiment(source)
    preparations = _preparations(config, experiment, source)
    plan = list({id(stage): stage for stage in preparations.values()}.values())
    _check_modules(config, experiment)
    for seed in config.seeds:
        for stage in experiment.stages:
            inputs = {split: InputReference(preparations[stage.name].name, split) for split in SPLITS[:2]}
            if before := experiment.predecessor(stage.name):
                inputs[START] = InputReference(f"{before}-seed{seed}", "weights")
            sections = {
                "arguments": config.arguments("model", stage.name),
                "code": network_digest(experiment, source, stage.curriculum),
                "frozen": tuple(stage.frozen),
                "training": config.training_for(stage.name),
            }
            planned = KINDS[TRAINING].plan(f"{stage.name}-seed{seed}", SCALE, seed, sections, inputs)
            plan.append(_planned(config, source, planned, stage.name))
        last = experiment.stages[-1].name
        inputs = {
            "test": InputReference(preparations[last].name, "test", is_optional=True),
            "validation": InputReference(preparations[last].name, "validation"),
            "weights": InputReference(f"{last}-seed{seed}", "weights"),
        }
        sections["code"] = network_digest(experiment, source)
        planned = KINDS[EVALUATION].plan(f"{EVALUATION}-seed{seed}", SCALE, seed, sections, inputs)
        plan.append(_planned(config, source, planned))
    return plan if config.same_code is None else _with_code_of(OutputDirectory(Path(config.same_code)), plan)


def _with_code_of(output: OutputDirectory, plan: list[PlannedStage]) -> list[PlannedStage]:
    """Return stages whose code is taken to be what those of a run had; RunError if that is none.

    Evaluations are by the code of now: they cost little, and a new metric is no reason to train.
    """
    output.read_index("experiment")
    return [
        one if one.stage == EVALUATION else replace(one, config={**one.config, "code": _kept_code(output, one)})
        for one in plan
    ]


def _kept_code(output: OutputDirectory, planned: PlannedStage) -> str:
    """Return the code of the newest directory with this configuration, of one that has finished if there is any.

    `run.json` does not name it any more where a later command has begun another one, or was stopped before.
    """

    def configuration(config: Mapping[str, Any]) -> str:
        return json.dumps({**without_keys(config, planned.execution_keys), "code": ""}, sort_keys=True)

    found = [(False, 0, planned.config["code"])]
    for path in output.stages_path.glob(f"{planned.stage}-{planned.scale}-seed{planned.seed}-*"):
        directory = RunDirectory(path)
        with suppress(OSError, ValueError):  # of another version, or removed meanwhile
            config = directory.read_spec().config
            if configuration(config) == configuration(planned.config):
                found.append((directory.is_finished(), directory.spec_path.stat().st_mtime_ns, config["code"]))
    return max(found)[-1]


def network_digest(experiment: Experiment, source: Source, curriculum: Any = None) -> str:
    """Return the digest of the code that training depends on: the module's and that which makes and orders batches."""
    parts = (experiment.module, experiment.collate, curriculum)
    digests = [code_digest(one, source) for one in parts if one is not None]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def digest_of_root(experiment: Experiment, root: Path | None) -> str:
    """Return the digest of what the data function reads; ExperimentError if a root is missing, or given for nothing."""
    if not takes_root(experiment.data):
        if root is not None:
            raise ExperimentError(f"root={root}: the data function has no argument `root` that receives it")
        return ""
    if root is None:
        raise ExperimentError("root is missing: name the folder of the data, --root FOLDER")
    if not root.exists():
        raise ExperimentError(f"root {root} is not there: name the folder of the data, --root FOLDER")
    return files_digest(root)


def files_digest(root: Path) -> str:
    """Return the digest of the names and contents of all files of a folder, or of one file, as 64 hex digits.

    What PyG's datasets have made of their raw files is left out, and must not be older than those, as it is not made
    anew: ExperimentError.
    """
    if root.is_file():
        return sha256_once(root)
    digest = hashlib.sha256()
    made, newest = [], (0.0, root)
    for folder, folders, names in os.walk(root, followlinks=True):
        here = Path(folder)
        made += [here / name for name in folders if (here / name / MADE_BY_PYG).is_file()]
        folders[:] = sorted(name for name in folders if here / name not in made and not _is_above(here / name))
        for path in sorted(here / name for name in names):
            digest.update(f"{path.relative_to(root)} {sha256_once(path)}\n".encode())
            newest = max(newest, (path.stat().st_mtime, path))
    for old in made:
        if (old / MADE_BY_PYG).stat().st_mtime < newest[0]:
            raise ExperimentError(f"{old} was made before {newest[1]}, and PyG would use it as it is: remove it")
    return digest.hexdigest()


def _is_above(link: Path) -> bool:
    """Return whether a folder is a link to one that it is in."""
    return link.is_symlink() and link.parent.resolve().is_relative_to(link.resolve())


def _check_modules(config: ExperimentConfig, experiment: Experiment) -> None:
    from kdgat.experiment.network import check_module

    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for stage in experiment.stages:
        arguments, training = config.arguments("model", stage.name), config.training_for(stage.name)
        if (is_higher_better := says_direction(training.monitor)) is not None:
            _check_mode(stage.name, training, "max" if is_higher_better else "min")
        shapes[stage.name] = check_module(experiment, stage.name, arguments, stage.frozen, training)
        before = experiment.predecessor(stage.name)
        if before is not None and shapes[before] != shapes[stage.name]:
            name, *_ = sorted(dict(shapes[before].items() ^ shapes[stage.name].items()))
            raise ExperimentError(
                f"stage {stage.name} cannot start from the weights of {before}: {name} is "
                f"{shapes[stage.name].get(name, 'not there')} instead of {shapes[before].get(name, 'not there')}; "
                'give both the same arguments, or starts_from=""'
            )


def _check_mode(stage: str, training: TrainingConfig, mode: str) -> None:
    if training.mode != mode:
        raise ExperimentError(
            f"stage {stage}: training.mode={training.mode} would keep the worst epoch by {training.monitor}, if its "
            f'name is right: give training={{"mode": "{mode}", ...}} in the file, or -O training.mode={mode}'
        )


def _preparations(config: ExperimentConfig, experiment: Experiment, source: Source) -> dict[str, PlannedStage]:
    """Return the preparation of each stage; stages with the same arguments share one."""
    root = None if config.root is None else Path(config.root)
    code, files = code_digest(experiment.data, source), digest_of_root(experiment, root)
    found: dict[str, PlannedStage] = {}
    for stage in experiment.stages:
        arguments = config.arguments("data", stage.name)
        same = [planned for planned in found.values() if planned.config["arguments"] == arguments]
        name = f"{PREPARE}-{stage.name}" if found else PREPARE
        sections = {"arguments": arguments, "code": code, "files": files, "is_packed": experiment.collate is None}
        found[stage.name] = same[0] if same else _planned(config, source, KINDS[PREPARE].plan(name, SCALE, 0, sections))
    return found


def _planned(config: ExperimentConfig, source: Source, planned: PlannedStage, stage: str = "") -> PlannedStage:
    """Return a stage that carries its source and knows where data lie, which is no part of its identity."""
    root = None if config.root is None else str(Path(config.root).absolute())
    beside = [str(Path(config.source).parent)] if config.source.endswith(SUFFIX) else []
    return replace(
        planned,
        stage=stage or planned.stage,
        execution={**source.as_execution(), "root": root},
        reads=(*beside, *([root] if root is not None else [])),
    )
