"""What the evaluations of an experiment measured: whatever its module logs of the test split, per seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from kdgat.run import FinishedRun, Measure, OutputDirectory, Table
from kdgat.run.results import RunResults, origin

# In names of metrics of which less is better; of all others more is.
LOWER_IS_BETTER: Final = ("loss", "error", "mae", "mse", "rmse", "nll", "perplexity", "distance")

NO_NUMBER: Final = "no number"


def is_higher_better(metric: str) -> bool:
    """Return whether more of a metric is better, as its name says."""
    return not any(word in metric.lower() for word in LOWER_IS_BETTER)


class ExperimentResults(RunResults):
    """Hold results.json of an experiment."""

    family: str = "experiment"
    source: str
    # Of the test split, or of validation where there is none -> seed -> value, None of what is no number.
    metrics: dict[str, dict[str, float | None]]

    def measures(self) -> Sequence[Measure]:
        """Return each metric over the seeds for which it is a number."""
        numbers = {
            name: {int(seed): value for seed, value in by_seed.items() if value is not None}
            for name, by_seed in self.metrics.items()
        }
        return [
            Measure.over_seeds(name, by_seed, is_higher_better=is_higher_better(name))
            for name, by_seed in numbers.items()
            if by_seed
        ]

    def tables(self) -> Sequence[Table]:
        """Return a row per metric: mean over seeds and each seed's."""
        texts = {one.name: one.text for one in self.measures()}
        rows = []
        for name, by_seed in self.metrics.items():
            of_seeds = [NO_NUMBER if value is None else f"{value:.4f}" for value in by_seed.values()]
            rows.append([name, texts.get(name, NO_NUMBER), *(of_seeds if len(of_seeds) > 1 else [])])
        seeds = [f"seed {seed}" for seed in self.seeds if len(self.seeds) > 1]
        caption = "What the module logged of each split, as means over its samples."
        return [Table.of(["metric", "value", *seeds], rows, caption, key="metrics")]


def collect_results(output: OutputDirectory) -> ExperimentResults:
    """Read the evaluations of all seeds, write results.json and return it; errors as of `FinishedRun`."""
    run = FinishedRun(output)
    metrics: dict[str, dict[str, float | None]] = {}
    evaluations = sorted(run.evaluations().items())
    for seed, record in evaluations:
        for name, value in run.outcome(record).metrics.items():
            metrics.setdefault(name, {})[str(seed)] = value if math.isfinite(value) else None
    results = ExperimentResults(
        **origin(run.index.config),
        seeds=[seed for seed, _ in evaluations],
        source=run.index.config["source"],
        metrics=metrics,
    )
    results.write(output.results_path)
    return results
