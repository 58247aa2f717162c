"""What the evaluations of an experiment measured: whatever its module logs of the test split, per seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kdgat.run import FinishedRun, Measure, OutputDirectory, Table
from kdgat.run.results import RunResults, origin

# In names of metrics of which less is better; of all others more is.
LOWER_IS_BETTER: Final = ("loss", "error", "mae", "mse", "rmse", "nll", "perplexity", "distance")


def is_higher_better(metric: str) -> bool:
    """Return whether more of a metric is better, as its name says."""
    return not any(word in metric.lower() for word in LOWER_IS_BETTER)


class ExperimentResults(RunResults):
    """Hold results.json of an experiment."""

    family: str = "experiment"
    source: str
    metrics: dict[str, dict[str, float]]  # of the test split, or of validation where there is none -> seed -> value

    def measures(self) -> Sequence[Measure]:
        """Return each metric over seeds."""
        return [
            Measure.over_seeds(
                name,
                {int(seed): value for seed, value in by_seed.items()},
                is_higher_better=is_higher_better(name),
            )
            for name, by_seed in self.metrics.items()
        ]

    def tables(self) -> Sequence[Table]:
        """Return a row per metric: mean over seeds and each seed's."""
        rows = [
            [one.name, one.text, *(f"{value:.4f}" for value in one.by_seed.values() if len(one.by_seed) > 1)]
            for one in self.measures()
        ]
        seeds = [f"seed {seed}" for seed in self.seeds if len(self.seeds) > 1]
        caption = "What the module logged of each split, as means over its samples."
        return [Table.of(["metric", "value", *seeds], rows, caption, key="metrics")]


def collect_results(output: OutputDirectory) -> ExperimentResults:
    """Read the evaluations of all seeds, write results.json and return it; errors as of `FinishedRun`."""
    run = FinishedRun(output)
    metrics: dict[str, dict[str, float]] = {}
    evaluations = sorted(run.evaluations().items())
    for seed, record in evaluations:
        for name, value in run.outcome(record).metrics.items():
            metrics.setdefault(name, {})[str(seed)] = value
    results = ExperimentResults(
        **origin(run.index.config),
        seeds=[seed for seed, _ in evaluations],
        source=run.index.config["source"],
        metrics=metrics,
    )
    results.write(output.results_path)
    return results
