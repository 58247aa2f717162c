"""What commands, flows and reports need of an experiment; nothing but its own file imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.plan import plan_experiment
from kdgat.experiment.results import ExperimentResults, collect_results
from kdgat.family import Family, Option
from kdgat.run import OutputDirectory, Run, Table
from kdgat.stage import RunDirectory

if TYPE_CHECKING:
    from torch import nn

    from kdgat.report import Document, RunContent

OPTIONS: Final = (
    Option("source", "Python file, or package.module:name, that holds the Experiment.", "source", is_required=True),
    Option("root", "Folder or file that the data function receives as root.", "root", type=Path),
    Option(
        "same_code",
        "Run whose stages stay as they are: the code has changed in nothing that counts.",
        "same_code",
        Path,
    ),
)


class ExperimentFamily(Family):
    """Models of one's own: a LightningModule and its data in one file."""

    name = "experiment"
    title = "a model of one's own"
    training_help = (
        "Train the LightningModule of a file: `kdgat train FILE` is `kdgat train experiment --source FILE`."
        "\n\nA command that was stopped or killed goes on where it was when it is given again. With --site NAME each "
        "stage runs in jobs of a cluster, and goes on in the next one where the walltime cut it. docs/experiment.md"
    )
    flow = "flows.experiment:experiment"
    options = OPTIONS
    config = ExperimentConfig
    results = ExperimentResults

    def plan(self, config: ExperimentConfig) -> Run:
        """Describe a run; ExperimentError or ConfigurationError names what cannot be planned."""
        plan = plan_experiment(config)
        return Run(self.name, config, plan, config.resources, config.training.num_threads, lambda planned: {})

    def reads(self, config: ExperimentConfig) -> Any:
        """Return what decides which samples are read."""
        return [config.source, config.root, config.data]

    def load_model(self, weights: Path) -> nn.Module:
        """Return the module that a weights file is of, in eval mode.

        Its source is that of the stage whose directory the file lies in; of a file elsewhere, what is there now.
        """
        from kdgat.experiment.network import trained_module
        from kdgat.experiment.source import Source, load_experiment, read_source
        from kdgat.training.weights import read_description

        stage = RunDirectory(weights.parent)
        if stage.spec_path.exists():
            source = Source.of(stage.read_spec().execution)
        else:
            source = read_source(read_description(weights)["config"]["source"])
        return trained_module(load_experiment(source), weights).eval()

    def collect(self, output: OutputDirectory) -> ExperimentResults:
        """Summarise the evaluations of all seeds; errors as of `collect_results`."""
        return collect_results(output)

    def tables(self, results: ExperimentResults) -> Sequence[Table]:
        """Return a row per metric."""
        return results.tables()

    def conclusions(self, results: ExperimentResults) -> Sequence[str]:
        """Say what was measured, and on how many seeds."""
        of_test = any(name.startswith("test.") for name in results.metrics)
        where = "the test split" if of_test else "the validation split, which chose the epoch: return a test split, too"
        return [] if of_test and results.metrics else [f"Measured on {where}."]

    def report(self, content: RunContent[ExperimentResults]) -> Document:
        """Return the report."""
        from kdgat.report import Document, provenance, training

        curves = training.curves_by_stage(content.stages, lambda record, fit: record.stage)
        results = content.results
        sections = [
            training.training_section(curves, "One line per seed. The star marks the best epoch."),
            provenance(content),
        ]
        facts = {"Source": results.source, "Seeds": str(len(results.seeds))}
        return Document(Path(results.source).name, sections, content.missing, facts, answer=results.tables())


FAMILY: Final = ExperimentFamily()
