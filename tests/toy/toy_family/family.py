"""Planning and telling; nothing here imports torch before a run has finished."""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from kdgat.base import Config
from kdgat.family import Family, Option
from kdgat.report import RunContent
from kdgat.run import FinishedRun, Measure, OutputDirectory, PlannedStage, Run, RunConfig, Table
from kdgat.run.kinds import StageKind, StageKinds
from kdgat.run.plan import InputReference
from kdgat.run.results import RunResults, origin
from kdgat.training import TrainingConfig


class DataConfig(Config):
    points: int = Field(256, ge=8, description="how many are drawn")
    noise: float = Field(0.1, ge=0, description="standard deviation around the line")


class ToyConfig(RunConfig):
    preset_package: ClassVar[str] = "toy_family"
    data: DataConfig = DataConfig()

    def stage_names(self) -> Sequence[str]:
        return KINDS.names

    def trained_stages(self) -> Sequence[str]:
        return KINDS.trained


class PrepareConfig(Config):
    data: DataConfig


class LineConfig(Config):
    training: TrainingConfig


KINDS = StageKinds(
    (
        StageKind("prepare", PrepareConfig, "toy_family.stages:prepare", trains=False),
        StageKind("line", LineConfig, "toy_family.stages:train_line", title="Line"),
        StageKind("evaluation", Config, "toy_family.stages:evaluate", trains=False),
    )
)


class ToyResults(RunResults):
    family: str = "toy"
    errors: dict[str, float]  # seed -> mean squared error

    def measures(self) -> list[Measure]:
        errors = {int(seed): error for seed, error in self.errors.items()}
        return [Measure.over_seeds("error", errors, is_higher_better=False)]


class ToyFamily(Family):
    name = "toy"
    title = "lines through points"
    training_help = "Fit a line through points."
    options = (Option("points", "How many points are drawn.", key="data.points", type=int),)
    config = ToyConfig
    results = ToyResults

    def plan(self, config: ToyConfig) -> Run:
        sections = {"data": config.data, "training": config.training_for("line")}
        store = InputReference("prepare", "points")
        plan: list[PlannedStage] = [KINDS["prepare"].plan("prepare", "shared", 0, sections)]
        for seed in config.seeds:
            plan.append(KINDS["line"].plan(f"line-seed{seed}", "small", seed, sections, {"points": store}))
            inputs = {"points": store, "weights": InputReference(f"line-seed{seed}", "weights")}
            plan.append(KINDS["evaluation"].plan(f"evaluation-seed{seed}", "small", seed, sections, inputs))
        return Run(self.name, config, plan, config.resources, config.training.num_threads, lambda planned: {})

    def reads(self, config: ToyConfig) -> Any:
        return []

    def collect(self, output: OutputDirectory) -> ToyResults:
        run = FinishedRun(output)
        errors = {str(seed): run.outcome(record).metrics["error"] for seed, record in sorted(run.evaluations().items())}
        results = ToyResults(**origin(run.index.config), seeds=[int(seed) for seed in errors], errors=errors)
        results.write(output.results_path)
        return results

    def tables(self, results: ToyResults) -> list[Table]:
        rows = [[seed, f"{error:.4f}"] for seed, error in results.errors.items()]
        return [Table.of(["seed", "error"], rows, "Error of the line.", key="errors")]

    def conclusions(self, results: ToyResults) -> list[str]:
        return [f"worst error {max(results.errors.values()):.4f}"]

    def report(self, content: RunContent[ToyResults]) -> Any:
        from kdgat.report import Document, Section, provenance, training

        curves = training.curves_by_stage(content.stages, lambda record, fit: record.stage)
        sections = [
            Section("errors", "Errors", tables=self.tables(content.results)),
            training.training_section(curves, "One line per seed."),
            provenance(content),
        ]
        return Document("Lines through points", sections, content.missing, {"Seeds": str(len(content.results.seeds))})


FAMILY = ToyFamily()
