"""What the evaluations of an experiment measured: whatever its module logs of the test split, per seed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from kdgat.run import FinishedRun, Measure, OutputDirectory, Table
from kdgat.run.directory import RunIndex
from kdgat.run.results import RunResults, origin

# Parts of names of metrics that turn what others say.
_TURNING: Final = ("neg", "negative", "minus")
# Parts of names of metrics: the last one that is known says whether less or more of it is better.
_LOWER: Final = (
    *("loss", "error", "err", "mae", "mse", "rmse", "mape", "rmsd", "nll", "ce", "bce", "crossentropy", "entropy"),
    *(
        "perplexity",
        "distance",
        "deviation",
        "brier",
        "wer",
        "cer",
        "fpr",
        "fnr",
        "ece",
        "kl",
        "divergence",
        "residual",
    ),
)
_HIGHER: Final = (
    *("accuracy", "acc", "f", "f1", "auc", "auroc", "auprc", "ap", "map", "precision", "recall", "sensitivity", "tpr"),
    *("specificity", "tnr", "r2", "score", "correlation", "pearson", "spearman", "mcc", "kappa", "iou", "dice", "hits"),
    *("mrr", "ndcg", "likelihood"),
)

NO_NUMBER: Final = "no number"


def knows_direction(metric: str) -> bool | None:
    """Return whether more of a metric is better, as its name says; None if it says nothing.

    >>> knows_direction("test.crossentropy"), knows_direction("test.loss_free_accuracy"), knows_direction("test.x")
    (False, True, None)
    """
    found = [part in _HIGHER for part in _parts(metric) if part in _HIGHER or part in _LOWER]
    return found[-1] if found else None


def says_direction(metric: str) -> bool | None:
    """Return the same where a name leaves no doubt; None of one that says both, turns what it says, or is a score.

    >>> [says_direction(name) for name in ("val/auroc", "val_loss", "mae_f", "neg_log_likelihood", "fid_score")]
    [True, False, None, None, None]
    """
    parts = set(_parts(metric))
    found = {part in _HIGHER for part in parts - {"score"} if part in _HIGHER or part in _LOWER}
    return found.pop() if len(found) == 1 and not parts & set(_TURNING) else None


def _parts(metric: str) -> list[str]:
    return re.findall("[a-z][a-z0-9]*", metric.lower().partition(".")[2] or metric.lower())


def is_higher_better(metric: str) -> bool:
    """Return whether more of a metric is better, for tables: where its name says nothing, it is."""
    return knows_direction(metric) is not False


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
        caption = (
            "What the module logged of each split: numbers as means over its samples, metric objects over all of them"
            f"{'; +-: half the 95 % interval of the mean over seeds' if len(self.seeds) > 1 else ''}."
        )
        return [Table.of(["metric", "value", *seeds], rows, caption, key="metrics")]


def collect_results(output: OutputDirectory) -> ExperimentResults:
    """Read the evaluations of all seeds, write results.json and return it; errors as of `FinishedRun`."""
    run = FinishedRun(output)
    evaluations = sorted(run.evaluations().items())
    results = results_of(run.index, {seed: run.outcome(record).metrics for seed, record in evaluations})
    results.write(output.results_path)
    return results


def results_of(index: RunIndex, measured: Mapping[int, Mapping[str, float]]) -> ExperimentResults:
    """Return the results of a run from what its module logged, by seed."""
    metrics: dict[str, dict[str, float | None]] = {}
    for seed, values in measured.items():
        for name, value in values.items():
            metrics.setdefault(name, {})[str(seed)] = value if math.isfinite(value) else None
    return ExperimentResults(
        **origin(index.config), seeds=list(measured), source=index.config["source"], metrics=metrics
    )
