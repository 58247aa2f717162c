"""What a run consists of: stages that name what they need of each other, and how names become files with hashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kdgat.base import unknown_key_text
from kdgat.base.hashes import KnownHashes
from kdgat.base.text import list_some
from kdgat.cluster import ResourceRequest
from kdgat.run.config import RunConfig
from kdgat.run.directory import OutputDirectory, RunError
from kdgat.stage import Finished, RunDirectory, StageInput, StageSpec

MOST_STAGES = 10  # that are named where a plan is shown


@dataclass(frozen=True)
class InputReference:
    """An artifact of another stage; a name that ends in `*` stands for every artifact that begins so."""

    stage: str  # PlannedStage.name
    artifact: str
    is_optional: bool = False  # the stage may run without it


@dataclass(frozen=True)
class PlannedStage:
    """One node of the plan: what `StageSpec` will hold, with inputs still named instead of hashed.

    >>> train = PlannedStage("train-seed0", "train", "large", 0, {}, {"data": InputReference("prepare", "store")})
    >>> train.depends_on
    ('prepare',)
    """

    name: str  # unique in the plan, for instance "normal-large-seed0"
    stage: str
    scale: str
    seed: int
    config: dict[str, Any]
    inputs: dict[str, InputReference] = field(default_factory=dict)
    execution: dict[str, Any] = field(default_factory=dict)  # changes no result, and is no part of the identity
    execution_keys: tuple[str, ...] = ()  # keys of `config` of which the same holds
    code_version: int = 1  # of the stage kind
    parts: str = ""  # of the stage kind
    reads: tuple[str, ...] = ()  # absolute paths of what it reads beside its inputs

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Name the stages that must have finished before, each once."""
        return tuple(dict.fromkeys(reference.stage for reference in self.inputs.values()))


@dataclass(frozen=True, repr=False)
class Run:
    """What is to be executed, whatever the family."""

    family: str
    config: RunConfig
    plan: Sequence[PlannedStage]  # what a stage depends on stands before it
    resources: Mapping[str, ResourceRequest]  # by name of the stage, or "default"
    num_threads: int  # of each stage's process
    # What a stage reads that no other stage has written; asked for when the stage is about to start.
    external_inputs: Callable[[PlannedStage], Mapping[str, StageInput]]

    def __repr__(self) -> str:
        return f"Run({self.family}: {list_some([one.name for one in self.plan], MOST_STAGES)})"


def with_dependencies(plan: Sequence[PlannedStage], wanted: set[str]) -> list[PlannedStage]:
    """Choose the stages of these names and all that they depend on, in the order of the plan.

    >>> def stage(name, **inputs):
    ...     return PlannedStage(name=name, stage=name, scale="large", seed=0, config={}, inputs=inputs)
    >>> plan = [stage("prepare"), stage("train", data=InputReference("prepare", "store")), stage("other")]
    >>> [planned.name for planned in with_dependencies(plan, {"train"})]
    ['prepare', 'train']
    """
    known = [stage.name for stage in plan]
    for name in wanted:
        if name not in known:
            raise RunError(f"the plan has no stage of this name: {unknown_key_text(name, known)}")
    kept = set(wanted)
    for stage in reversed(plan):  # dependencies stand before what depends on them
        if stage.name in kept:
            kept.update(stage.depends_on)
    return [stage for stage in plan if stage.name in kept]


def make_spec(
    family: str,
    planned: PlannedStage,
    finished: Mapping[str, RunDirectory],
    external: Mapping[str, StageInput],
) -> StageSpec:
    """Describe a stage by the content of its inputs.

    Those of other stages lie in the run directories `finished`, by name in the plan; the others are `external`.

    Raises:
        RunError: if a stage it depends on has not finished or lacks the artifact.
    """
    inputs: dict[str, StageInput] = {}
    for name, reference in planned.inputs.items():
        found = artifacts_of(reference, finished)
        known = KnownHashes(finished[reference.stage].hashes_path)
        for artifact, path in found.items():
            source = StageInput.of_file(path, known)
            inputs[name + artifact.removeprefix(reference.artifact.removesuffix("*"))] = source
    return StageSpec(
        family=family,
        stage=planned.stage,
        scale=planned.scale,
        seed=planned.seed,
        config=planned.config,
        inputs={**inputs, **external},
        reads=planned.reads,
        execution=planned.execution,
        execution_keys=planned.execution_keys,
        code_version=planned.code_version,
    )


def artifacts_of(reference: InputReference, finished: Mapping[str, RunDirectory]) -> dict[str, Path]:
    """Find the files that a reference stands for, by artifact name; none if it is optional and was not made."""
    directory = finished.get(reference.stage)
    outcome = directory.read_outcome() if directory is not None else None
    if directory is None or not isinstance(outcome, Finished):
        raise RunError(f"stage {reference.stage} has not finished: run it before what depends on it")
    found = {
        name: directory.path / path
        for name, path in sorted(outcome.artifacts.items())
        if fnmatchcase(name, reference.artifact)
    }
    if not found and not reference.is_optional:
        known = ", ".join(sorted(outcome.artifacts)) or "none"
        raise RunError(f"{directory.path} has no artifact {reference.artifact!r} (it has: {known})")
    return found


def find_stage(
    run: Run, planned: PlannedStage, finished: Mapping[str, RunDirectory], output: OutputDirectory
) -> tuple[RunDirectory, StageSpec]:
    """Return the run directory that a stage has or will have, and its spec, as it stands there.

    A stage that is to be done otherwise than before gets a directory of its own.

    Raises:
        RunError: if a stage it depends on has not finished or lacks the artifact.
    """
    spec = make_spec(run.family, planned, finished, run.external_inputs(planned))
    directory = RunDirectory(output.stages_path / spec.directory_name())
    return directory, spec.movable(directory.path, output.path)


def create_stage(
    run: Run, planned: PlannedStage, finished: Mapping[str, RunDirectory], output: OutputDirectory
) -> tuple[RunDirectory, str]:
    """Make the run directory of a stage that has not finished; return it with its identity. See `find_stage`."""
    directory, spec = find_stage(run, planned, finished, output)
    if not directory.is_finished():
        directory.create(spec)
    return directory, spec.identity()


def flowchart(plan: Sequence[PlannedStage], states: Mapping[str, str] | None = None) -> str:
    """Return the stages of a plan as boxes, with an arrow from each to those that need it.

    Args:
        plan: stages, each after those that it depends on.
        states: by name of the stage, written below it; None where there is no run yet.

    >>> print(flowchart([PlannedStage("prepare", "prepare", "all", 0, {})], {"prepare": "finished"}))
    flowchart TD
        s0["prepare<br/>finished"]
    """
    ids = {planned.name: f"s{number}" for number, planned in enumerate(plan)}
    lines = ["flowchart TD"]
    for name, id in ids.items():
        state = (states or {}).get(name, "")
        lines.append(f'    {id}["{name}{"<br/>" + state if state else ""}"]')
    lines += [f"    {ids[need]} --> {ids[planned.name]}" for planned in plan for need in planned.depends_on]
    return "\n".join(lines)
