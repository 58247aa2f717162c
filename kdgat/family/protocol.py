"""The faces of a family: what each kind of process asks of it, with only the imports that this needs.

Planning runs on login nodes, in web forms and for --help: nothing that it imports may import torch. Telling runs after
a run and may import what tables and figures need, inside the methods. Compute, `stages.run(spec, directory)` in the
family's package, is called by name from specs and is no part of this object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from kdgat.base import UserError
from kdgat.run import FinishedRun

if TYPE_CHECKING:  # a command needs a part of them
    from torch import nn

    from kdgat.cluster import Estimate, Expectation, Resources
    from kdgat.report import Document, RunContent
    from kdgat.run import Measure, OutputDirectory, Run, RunConfig, Table
    from kdgat.run.results import RunResults
    from kdgat.stage import RunDirectory


VALIDATION: Final = "validation"  # objective of a sweep: what training is stopped by


@dataclass(frozen=True)
class Option:
    """One option of `kdgat train FAMILY` and `kdgat plan FAMILY`, beside those that every family has.

    Its value is set under `key` before presets are filled in; a path is made absolute. An option without a key is read
    by `apply`, or (of `plan` alone) by `Family.describe`.
    """

    name: str  # "data_root" becomes --data-root
    help: str
    key: str = ""  # dotted key of the configuration, "data.data_root"
    type: type = str  # str, int, bool or Path
    is_many: bool = False  # takes several values: --hold-out A B, or repeated
    is_required: bool = False  # by `train`
    plan_default: Any = None  # what `plan` takes where `train` requires a value
    is_override: bool = False  # checked together with -O, which may change what its values are compared with
    apply: Callable[[Any, Any], Any] | None = None  # (configuration, value) -> configuration
    plan_only: bool = False

    @property
    def flag(self) -> str:
        """Return how it is written, as --data-root."""
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True)
class PlanTable:
    """What a family adds to `kdgat plan`: columns between the stage's name and its job, and sentences around them."""

    headings: tuple[str, ...] = ()
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by name in the plan
    sources: str = "nothing"  # what a stage reads that needs no other one
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    times: Mapping[str, Estimate] = field(default_factory=dict)  # seconds of stages that no attempt has shown, by name


@dataclass(frozen=True)
class DataSize:
    """How much data there is to train on."""

    dataset: str
    graphs: int | None  # that train
    source: str  # where the number comes from, or why there is none
    complexity: str = ""  # the class of size that rules for jobs are made for


class Family(Protocol):
    """What commands, flows and reports need of a family; what has a default here is inherited by a subclass."""

    name: str  # "lap": in specs, run.json and commands
    title: str  # "learned warm starts for linear assignment": in help texts and reports
    training_help: str  # the help text of `kdgat train FAMILY`: one line, an empty one, what else there is to know
    flow: str = ""  # "module:name" of its own flow, for deployments; "" for the common one
    options: Sequence[Option] = ()

    # ---- planning: without torch

    @property
    def config(self) -> type[RunConfig]:
        """Return the configuration of its runs."""
        ...

    def plan(self, config: Any) -> Run:
        """Describe a run for what executes it; every mistake that a user can make is a ValueError of this method.

        The stage whose outcomes become the results of a run is called `evaluation`, one per seed.
        """
        ...

    def check(self, config: Any, out: Path | None) -> None:
        """Refuse, with a ValueError, what a plan does not need but a run does: data, fitting `out` if any."""
        return None  # nothing, unless a family says so

    def plan_into(self, config: RunConfig, out: Path) -> Run:
        """Check a run whose output directory is `out` and describe it; ValueError as of `check` and `plan`."""
        self.check(config, out)
        config.refuse_own_output(out)
        return self.plan(config)

    def describe(self, run: Run, jobs: Mapping[str, Resources], options: Mapping[str, Any]) -> PlanTable:
        """Return what `kdgat plan` shows of a run.

        `jobs` has what each stage's job would ask for, nothing where stages are no jobs; `options` has values of the
        family's options that were given. Both are by name.
        """
        return PlanTable()

    def data_sizes(self, config: Any) -> Sequence[tuple[DataSize, Any]]:
        """Return each dataset that runs can be compared on, with this configuration changed to it; here its own."""
        return [(self.data_size(config), config)]

    def data_size(self, config: Any) -> DataSize:
        """Return how much there is to train on: counted, or known of the dataset, or neither."""
        return DataSize("", None, "")

    def assume(self, run: Run, inputs: Mapping[str, Path] | None = None) -> Mapping[str, Expectation]:
        """Return what stages are taken to need where no attempt has shown it, by name; here nothing is known.

        Args:
            run: of `plan`, with all stages or some.
            inputs: files that its only stage reads, where they are there already.
        """
        return {}

    # ---- telling: after a run

    @property
    def results(self) -> type[RunResults]:
        """Return the model of its results.json."""
        ...

    def collect(self, output: OutputDirectory) -> RunResults:
        """Read what the evaluations of all seeds have left behind, write results.json and return it."""
        ...

    def tables(self, results: Any) -> Sequence[Table]:
        """Return what the terminal prints, and the Prefect UI where a table has a key."""
        ...

    def conclusions(self, results: Any) -> Sequence[str]:
        """Return what the results say, in a sentence or a few."""
        ...

    def report(self, content: RunContent[Any]) -> Document:
        """Return the sections of the HTML report and its summary."""
        ...

    def load_model(self, weights: Path) -> nn.Module:
        """Return the network, in eval mode, of a weights file that one of its stages wrote."""
        raise UserError(f"{self.name} says of no weights which network they are of: give its FAMILY a `load_model`")

    # ---- comparing: runs beside each other

    def objective(self, run: FinishedRun) -> Measure | None:
        """Return the one number by which configurations may be chosen: of validation data, never of a test.

        Here it is what the last stage that trained was stopped by, over seeds; None if none has finished.
        """
        return run.validation()

    # ---- choosing: trials of a sweep, by validation and never by a test

    objectives: Sequence[str] = (VALIDATION,)  # by which trials can be compared, the usual one first

    def folds(self, config: Any, objective: str) -> Mapping[str, RunConfig]:
        """Return the runs that judge a configuration, by name; a ValueError where nothing can.

        Here itself, of which a sweep executes what `judged_stage` needs.
        """
        return {"": config}

    def judged_stage(self, trained: Sequence[str]) -> str | None:
        """Name the stage whose validation is the objective, of those of a run that train; here the last one."""
        return trained[-1] if trained else None

    def validated_on(self, preparation: Mapping[str, Any]) -> Any:
        """Return, as plain data, what in a preparation's configuration decides on which data training is validated.

        Trials of a sweep that differ in it cannot be compared by validation. Here all of it.
        """
        return preparation

    def judge(self, folds: Mapping[str, OutputDirectory], objective: str) -> Sequence[Measure]:
        """Return the objective of finished folds, and behind it what it is made of; nothing if there is none."""
        found = self.objective(FinishedRun(folds[""]))
        return () if found is None else (found,)

    def reads(self, config: Any) -> Any:
        """Return, as plain data, what decides which files stages read that no stage has written.

        Trials that agree in it share their stages. Here all of the configuration, so that none do.
        """
        return config.model_dump(mode="json")


@dataclass(frozen=True)
class ScoringRequest:
    """Which data are scored, and by which run."""

    run: Path  # its output directory
    data_root: Path  # holds the dataset's folder
    dataset: str | None = None  # by default the run's own
    catalog: Path | None = None  # of datasets of one's own; by default the run's
    profile: Path | None = None  # of the data's source, by which its detector judges, too


@runtime_checkable
class Detects(Protocol):
    """A family whose finished runs can be used on data of other people: `kdgat evaluate FAMILY`."""

    def evaluate(self, request: ScoringRequest, progress: Callable[[str, int, int], None]) -> RunResults:
        """Score data in this process; `progress` receives what is done, how much, of how much."""
        ...

    def make_evaluation(self, request: ScoringRequest) -> RunDirectory:
        """Make the run directory of a stage that does the same as a job; its artifact `results` holds them."""
        ...

    def notes(self, results: Any) -> Iterable[str]:
        """Return what people should know of the data that was scored."""
        ...
