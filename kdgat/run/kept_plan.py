"""The plan that an output directory was begun with: `plan.json`, which commands given later are compared with.

A command that is given again is planned anew, with the code, configuration and recordings of that day. While jobs of
the plan before train, a difference is nobody's decision: the run goes on as it was planned, until a person gives that
plan up (`kdgat train ... --replan`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from kdgat.base import write_bytes_atomically
from kdgat.base.kept import read_kept
from kdgat.run.directory import DONE_STATES, OutputDirectory, RunError
from kdgat.run.plan import PlannedStage, Run
from kdgat.run.rerun import changed_keys, flat
from kdgat.stage import StageInput
from kdgat.stage.provenance import describe_code

if TYPE_CHECKING:
    from kdgat.family import Family

SCHEMA_VERSION = 1
MOST_DIFFERENCES = 6  # that are named; the others are counted
GIVE_UP = "`kdgat train ... --replan` gives up that plan, and what its jobs have trained"


class KeptPlan(BaseModel):
    """The content of `plan.json`."""

    schema_version: int = SCHEMA_VERSION
    family: str
    code: str = ""  # that it was planned with; "" where no one noted it
    config: dict[str, Any]
    stages: list[PlannedStage]
    inputs: dict[str, dict[str, StageInput]] = Field(default_factory=dict)  # external ones, by name of the stage

    @classmethod
    def of_run(cls, run: Run) -> KeptPlan:
        """Describe a run of which no stage has asked for its inputs."""
        config = run.config.model_dump(mode="json")
        return cls(family=run.family, code=describe_code(), config=config, stages=list(run.plan))

    @classmethod
    def read(cls, output: OutputDirectory) -> KeptPlan | None:
        """Read it; None of a directory without one, as those of older versions are.

        Raises:
            RunError: if it cannot be understood, with what to do.
        """
        try:
            content = output.plan_path.read_bytes()
        except FileNotFoundError:
            return None
        return read_kept(cls, content, output.plan_path, GIVE_UP, RunError)

    def write(self, output: OutputDirectory) -> None:
        """Write it atomically."""
        content = {**self.model_dump(mode="json", exclude={"stages"}), "stages": [asdict(one) for one in self.stages]}
        write_bytes_atomically(output.plan_path, (json.dumps(content, indent=1) + "\n").encode())

    def run(self, family: Family, run: Run) -> Run:
        """Return the run as it was planned here; stages that have not asked for their inputs yet ask `run` for them.

        Raises:
            RunError: if this version of the family does not know the configuration.
        """
        try:
            config = family.config.from_data(self.config)
        except ValueError as error:
            raise RunError(
                f"this kdgat cannot read the plan that its jobs were made from ({error}); {GIVE_UP}"
            ) from error

        names = {planned.name for planned in run.plan}

        def external(planned: PlannedStage) -> Mapping[str, StageInput]:
            if planned.name in self.inputs:
                return self.inputs[planned.name]
            if planned.name not in names:
                raise RunError(f"what {planned.name} reads is not known, as it is not planned any more; {GIVE_UP}")
            return run.external_inputs(planned)

        return replace(run, config=config, plan=self.stages, external_inputs=external)

    def noting_inputs(self, run: Run, output: OutputDirectory) -> Run:
        """Return a run whose external inputs are noted here, and in the file, when a stage first asks for them."""
        lock = threading.Lock()  # stages start in several threads

        def external(planned: PlannedStage) -> Mapping[str, StageInput]:
            found = dict(run.external_inputs(planned))
            with lock:
                if self.inputs.get(planned.name) != found:
                    self.inputs[planned.name] = found
                    self.write(output)
            return found

        return replace(run, external_inputs=external)

    def differences(self, run: Run) -> list[str]:
        """Say what another plan has otherwise, of the stages that are here; nothing if it has all of them.

        The code is named first where it is other code, which alone is no other plan.
        """
        found = list(dict.fromkeys(self._differences(run)))
        is_other = bool(found and self.code) and (now := describe_code()) != self.code
        return [f"planned by {self.code}, now {now}", *found] if is_other else found

    def _differences(self, run: Run) -> Iterator[str]:
        if run.family != self.family:
            yield f"it is a run of {self.family}, not of {run.family}"
            return
        planned = {one.name: one for one in run.plan}
        for kept in self.stages:
            new = planned.get(kept.name)
            if new is None:
                yield f"{kept.name} is not planned any more"
                continue
            if new.code_version != kept.code_version:
                yield f"code_version of {kept.stage}: {kept.code_version}, now {new.code_version}"
            yield from (f"{key}: {before!r}, now {after!r}" for key, before, after in changed_keys(kept, new))
            if kept.inputs != new.inputs:
                yield f"{kept.name} reads other stages"
            if kept.name in self.inputs:
                yield from self._other_inputs(self.inputs[kept.name], run, new)

    def _other_inputs(self, kept: Mapping[str, StageInput], run: Run, new: PlannedStage) -> Iterator[str]:
        try:
            found = run.external_inputs(new)
        except (OSError, ValueError) as error:  # what cannot be read is no other plan
            yield f"its inputs cannot be compared ({error})"
            return
        for name in sorted({*kept, *found}):
            if name not in kept:
                yield f"{found[name].path} is new"
            elif name not in found:
                yield f"{kept[name].path} is gone"
            elif kept[name].sha256 != found[name].sha256:
                yield f"{kept[name].path} has changed"


def describe_differences(differences: list[str]) -> str:
    """Say in one sentence what is otherwise in a plan, and what becomes of it.

    >>> describe_differences(["training.max_epochs: 3, now 5"])[:97]
    'jobs of another plan are under way, and the run goes on with that one (training.max_epochs: 3, no'
    """
    more = len(differences) - MOST_DIFFERENCES
    named = [*differences[:MOST_DIFFERENCES], *([f"{more} more"] if more > 0 else [])]
    return f"jobs of another plan are under way, and the run goes on with that one ({'; '.join(named)}); {GIVE_UP}"


def describe_other_epochs(output: OutputDirectory, run: Run) -> str:
    """Say what becomes of a finished run whose numbers of epochs alone are others now; empty of any other run."""
    try:
        kept, index = KeptPlan.read(output), output.read_index()
    except RunError:  # nothing is known to have finished
        return ""
    if kept is None or any(record.state not in DONE_STATES for record in index.stages):
        return ""
    before, now = (  # what says nothing, as `training_of.line: {}`, is no difference
        {key: value for key, value in flat(config) if value != {}}
        for config in (kept.config, run.config.model_dump(mode="json"))
    )
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    if not changed or any(key.rpartition(".")[2] != "max_epochs" for key in changed):
        return ""
    named = "; ".join(f"{key}: {before.get(key)}, now {now.get(key)}" for key in changed)
    return (
        f"what has finished in {output.path} had another number of epochs ({named}): as the learning rate follows it, "
        "those stages train anew from step 0, beside it. To begin from the weights that are there, give another --out "
        f"and -O start_from={output.path}"
    )
