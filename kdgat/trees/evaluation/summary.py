"""The evaluations of all seeds as one: means with intervals, and sentences that say what they mean."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from kdgat.run import FinishedRun, Interval, OutputDirectory
from kdgat.run.results import origin
from kdgat.trees.evaluation.results import (
    FINETUNED,
    OPTIMUM,
    PROBE,
    SCRATCH,
    TRAINED,
    Evaluation,
    GrowthSummary,
    Memory,
    OrderRow,
    OrderSummary,
    ScoreSummary,
    TreesResults,
    with_untrained,
)
from kdgat.trees.names import PRETRAIN


def collect_results(output: OutputDirectory) -> TreesResults:
    """Summarise the finished evaluation stages of all seeds of a run: writes `results.json`.

    Raises:
        RunError: if no evaluation stage of the run has finished.
        RunError: if what one has written is damaged.
    """
    run = FinishedRun(output)
    evaluations = run.read_evaluations(Evaluation)
    results = summarise(evaluations, **origin(run.index.config)).model_copy(update={"memory": _memory(run)})
    results.write(output.results_path)
    return results


def _memory(run: FinishedRun) -> Memory | None:
    """Return what the pretraining of the first seed took, and what was predicted; None where nothing was pretrained."""
    for record in run.records(PRETRAIN):
        metrics = run.outcome(record).metrics
        if "peak_on_gpu" in metrics:
            return Memory(
                predicted_bytes=int(metrics["predicted_peak_bytes"]),
                measured_bytes=int(metrics["peak_bytes"]),
                where="the GPU" if metrics["peak_on_gpu"] else "torch's tensors on the CPU",
            )
    return None


def summarise(evaluations: Sequence[Evaluation], **origin: Any) -> TreesResults:
    """Put the evaluations of all seeds together, with sentences that say what they mean."""
    first = evaluations[0]
    results = TreesResults(
        **origin,
        seeds=[one.seed for one in evaluations],
        task=first.task,
        classes=first.classes,
        trees=first.trees,
        nodes=first.nodes,
        median_edge=first.median_edge,
        num_parameters=first.num_parameters,
        growth=_growth(evaluations),
        order=_order(evaluations),
        scores=_scores(evaluations),
        conclusions=[],
        shares=first.shares,
        pictures=first.pictures,
        map=first.map,
        notes=list(dict.fromkeys(note for one in evaluations for note in one.notes)),
    )
    return results.model_copy(update={"conclusions": conclude(results)})


def _growth(evaluations: Sequence[Evaluation]) -> list[GrowthSummary]:
    found: dict[tuple[str, str], list[float]] = {}
    for one in evaluations:
        for row in one.growth:
            found.setdefault((row.channel, row.method), []).append(row.loss)
    return [
        GrowthSummary(channel=channel, method=method, loss=Interval.of(losses))
        for (channel, method), losses in found.items()
    ]


def _order(evaluations: Sequence[Evaluation]) -> list[OrderSummary]:
    found: dict[str, list[OrderRow]] = {}
    for one in evaluations:
        for row in one.order:
            found.setdefault(row.method, []).append(row)
    return [
        OrderSummary(
            method=method,
            auc=Interval.of([row.auc for row in rows]).of_share(),
            auc_not_turned=_of_known([row.auc_not_turned for row in rows]),
        )
        for method, rows in found.items()
    ]


def _of_known(values: Sequence[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    return Interval.of(known).of_share() if known else None


def _scores(evaluations: Sequence[Evaluation]) -> list[ScoreSummary]:
    keys = list(dict.fromkeys((row.method, row.label_fraction) for one in evaluations for row in one.scores))

    def over_seeds(method: str, fraction: float, value: str) -> list[float]:
        means = []
        for one in evaluations:
            rows = [row for row in one.scores if (row.method, row.label_fraction) == (method, fraction)]
            values = [found for row in rows if (found := getattr(row, value)) is not None]
            if values:
                means.append(statistics.fmean(values))
        return means

    is_accuracy = evaluations[0].task == "classes"  # else R2, which may be below 0
    scores = {key: Interval.of(over_seeds(*key, "score")) for key in keys}
    return [
        ScoreSummary(
            method=method,
            label_fraction=fraction,
            num_labels=statistics.fmean(over_seeds(method, fraction, "num_labels")),
            score=one.of_share() if is_accuracy else one,
            auc=_of_known(over_seeds(method, fraction, "auc")),
            error=Interval.of(errors) if (errors := over_seeds(method, fraction, "error")) else None,
        )
        for (method, fraction), one in scores.items()
    ]


def conclude(results: TreesResults) -> list[str]:
    """Say in sentences what the numbers mean, good or bad."""
    return [*_of_growth(results), *_of_order(results), *_of_scores(results), *results.notes]


def _of_growth(results: TreesResults) -> list[str]:
    baseline = results.best_baseline("total")
    losses = results.growth_of("total")
    if baseline is None or TRAINED not in losses:
        return []
    own, best = losses[TRAINED].mean, losses[baseline].mean
    gain = 1 - own / best if best > 0 else 0.0
    sentence = (
        f"growth: loss {own:.3f}, {abs(gain):.0%} {'below' if gain >= 0 else 'above'} the best baseline ({baseline}, "
        f"{best:.3f})"
    )
    if gain <= 0:
        sentence += ": it has learned nothing that this baseline does not know"
    shared = [
        channel
        for channel in dict.fromkeys(row.channel for row in results.growth)
        if OPTIMUM in results.growth_of(channel)
    ]
    for channel in shared:
        of_channel = results.growth_of(channel)
        name = results.best_baseline(channel)
        if name is not None and of_channel[name].mean > of_channel[OPTIMUM].mean:
            way = (of_channel[name].mean - of_channel[TRAINED].mean) / (
                of_channel[name].mean - of_channel[OPTIMUM].mean
            )
            sentence += f"; {f'{way:.0%}' if way > 0 else 'none'} of the way to the optimum in {channel}"
    return [sentence]


def _of_order(results: TreesResults) -> list[str]:
    of_method = {row.method: row for row in results.order}
    if TRAINED not in of_method:
        return []
    own = of_method.pop(TRAINED)
    best = max(of_method.values(), key=lambda row: row.auc.mean)
    return [f"order: AUC {_aucs(own)}; best baseline {best.method}: {_aucs(best)}"]


def _aucs(row: OrderSummary) -> str:
    others = row.auc_not_turned
    return f"{row.auc.mean:.3f}" + ("" if others is None else f" ({others.mean:.3f} without turned pairs)")


def _of_scores(results: TreesResults) -> list[str]:
    sentences = []
    what = "accuracy" if results.task == "classes" else "R2"
    fractions = sorted({row.label_fraction for row in results.scores})
    for fraction in fractions:
        for one, other in ((PROBE, with_untrained(PROBE)), (FINETUNED, SCRATCH)):
            own, against = results.score_of(one, fraction), results.score_of(other, fraction)
            if own is None or against is None:
                continue
            if own.count < 2:
                verdict = "one seed: no interval"
            elif own.low > against.high:
                verdict = "better, outside both intervals"
            elif own.high < against.low:
                verdict = "worse, outside both intervals"
            else:
                verdict = "the intervals overlap"
            sentences.append(f"{fraction:.0%} of labels: {one} {what} {own.text}, {other} {against.text}: {verdict}")
        best = max((row for row in results.scores if row.label_fraction == fraction), key=lambda row: row.score.mean)
        sentences.append(f"{fraction:.0%} of labels: best is {best.method}, {what} {best.score.text}")
    return sentences
