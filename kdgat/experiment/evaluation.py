"""A finished run on other data: its data function called with other arguments, its modules measured on the result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdgat.base import ConfigurationError, UserError, validate_config
from kdgat.base.configuration import apply_overrides
from kdgat.experiment.config import arguments_of
from kdgat.experiment.plan import SPLITS, PrepareConfig, digest_of_root
from kdgat.experiment.results import ExperimentResults, results_of
from kdgat.experiment.source import Source, load_experiment
from kdgat.run import WEIGHTS, FinishedRun, OutputDirectory
from kdgat.stage import Finished, RunDirectory, StageInput, StageSpec

SECTION: Final = "data."  # of the keys that may differ


@dataclass(frozen=True)
class OtherData:
    """What a run is measured on: stages below its `evaluations`, by the code that it was trained with."""

    run: FinishedRun
    preparation: StageSpec

    @classmethod
    def of_run(cls, output: OutputDirectory, root: Path | None, overrides: Sequence[str] = ()) -> OtherData:
        """Plan the preparation.

        Raises:
            RunError: if the run has not finished.
            UserError: if nothing differs from what it was measured on, or something else than data would.
        """
        run = FinishedRun(OutputDirectory(Path(os.path.normpath(output.path.absolute()))), "experiment")
        output = run.output
        evaluation = output.stage_directory(next(iter(run.evaluations().values())))
        prepared = RunDirectory(evaluation.read_spec().inputs[SPLITS[1]].resolve(evaluation.path).parent)
        spec = prepared.read_spec()
        experiment = load_experiment(Source.of(spec.execution))
        known, config = arguments_of(experiment.data), validate_config(PrepareConfig, spec.config)
        if others := [text for text in overrides if not text.startswith(SECTION)]:
            raise UserError(f"-O {others[0]}: an evaluation takes keys of `data` alone, as -O data.KEY=VALUE")
        keys = [text.removeprefix(SECTION) for text in overrides]
        try:
            arguments = apply_overrides(validate_config(known, config.arguments), keys)
        except ConfigurationError as error:
            raise ConfigurationError(f"data: {error}") from None
        named = spec.execution["root"] if root is None else os.path.normpath(root.absolute())
        files = digest_of_root(experiment, None if named is None else Path(named))
        changed = config.model_copy(update={"arguments": arguments.model_dump(mode="json"), "files": files})
        if changed == config:
            raise UserError("the run was measured on these data: name others by --root or -O data.KEY=VALUE")
        reads = (*spec.reads, *([] if root is None else [named]))
        execution = {**spec.execution, "root": named}
        update = {"config": changed.model_dump(mode="json"), "execution": execution, "reads": reads}
        return cls(run, spec.model_copy(update=update))

    def prepare(self) -> RunDirectory:
        """Return the directory in which the preparation is, or is to be, done."""
        return self._created(self.preparation)

    def evaluations(self, prepared: RunDirectory) -> Iterator[tuple[int, RunDirectory]]:
        """Yield the seeds of the run, and the directory in which each is, or is to be, measured."""
        outcome = prepared.read_outcome()
        assert isinstance(outcome, Finished)
        samples: dict[str, StageInput] = {
            split: StageInput.of_file(prepared.path / outcome.artifacts[split])
            for split in SPLITS[1:]
            if split in outcome.artifacts
        }
        for seed, spec in evaluations_on(self.run, samples):
            yield seed, self._created(spec)

    def results(self, measured: Mapping[int, Finished]) -> ExperimentResults:
        """Return what the evaluations measured."""
        return results_of(self.run.index, {seed: outcome.metrics for seed, outcome in measured.items()})

    def _created(self, spec: StageSpec) -> RunDirectory:
        directory = RunDirectory(self.run.output.evaluations_path / spec.directory_name())
        if not directory.is_finished():
            directory.create(spec)
        return directory


def evaluations_on(run: FinishedRun, samples: Mapping[str, StageInput]) -> Iterator[tuple[int, StageSpec]]:
    """Yield each seed of a run, and the stage that measures its module on these samples, by its own code."""
    for seed, record in sorted(run.evaluations().items()):
        directory = run.output.stage_directory(record)
        spec = directory.read_spec()
        # Without `..`: in an image the directories that it leads through are not there.
        weights = StageInput.of_file(spec.inputs[WEIGHTS].resolve(directory.path).resolve())
        yield seed, spec.model_copy(update={"inputs": {**samples, WEIGHTS: weights}})
