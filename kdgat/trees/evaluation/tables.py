"""Results as tables, for the terminal, the Prefect UI and the report."""

from collections.abc import Sequence

from kdgat.run import Interval, Table
from kdgat.run.table import Cell
from kdgat.trees.evaluation.results import OPTIMUM, TreesResults

UNITS = {
    "length": "length (log)",
    "angle": "angle (rad)",
    "radius": "radius (log)",
    "count": "children (nats)",
    "total": "total",
}


def tables(results: TreesResults) -> Sequence[Table]:
    """Return all tables of a run."""
    found = [growth_table(results), order_table(results)]
    return [*found, *(score_table(results, fraction) for fraction in fractions(results))]


def fractions(results: TreesResults) -> list[float]:
    """Return the shares of labels, rising."""
    return sorted({row.label_fraction for row in results.scores})


def growth_table(results: TreesResults) -> Table:
    """Return the losses of growth of every method."""
    channels = list(dict.fromkeys(row.channel for row in results.growth))
    methods = list(dict.fromkeys(row.method for row in results.growth))
    losses = {channel: results.growth_of(channel) for channel in channels}
    best = {
        channel: min(one.mean for method, one in found.items() if method != OPTIMUM)
        for channel, found in losses.items()
    }  # fmt: skip
    rows = []
    for method in methods:
        cells: list[str | Cell] = [method]
        for channel in channels:
            one = losses[channel].get(method)
            is_best = one is not None and one.mean == best[channel] and method != OPTIMUM
            cells.append(_cell(one, is_best))
        rows.append(cells)
    header = ["method", *(UNITS.get(channel, channel) for channel in channels)]
    caption = "Growth: distance between predicted and true children of the test trees; less is better."
    return Table.of(header, rows, caption, key="trees-growth")


def order_table(results: TreesResults) -> Table:
    """Return how well ancestors are told from others."""
    best = max((row.auc.mean for row in results.order), default=0.0)

    rows: list[list[str | Cell]] = []
    for row in results.order:
        rows.append([row.method, _cell(row.auc, row.auc.mean == best), _cell(row.auc_not_turned)])
    caption = "Order: pairs of ancestor and descendant against others of the same tree."
    return Table.of(["method", "AUC", "AUC, no pair turned"], rows, caption, key="trees-order")


def score_table(results: TreesResults, fraction: float) -> Table:
    """Return what every method makes of a share of the labels."""
    found = sorted(
        (row for row in results.scores if row.label_fraction == fraction), key=lambda row: -row.score.mean
    )  # fmt: skip
    is_number = results.task == "number"
    rows: list[list[str | Cell]] = []
    for place, row in enumerate(found):
        other = row.error if is_number else row.auc
        rows.append([row.method, _cell(row.score, place == 0), _cell(other)])
    header = ["method", *(("R2", "error") if is_number else ("accuracy", "AUC"))]
    labels = found[0].num_labels if found else 0
    caption = (
        f"{fraction:.0%} of the training labels ({labels:.0f} trees): test trees; mean and 95 % interval over seeds. "
        "All validation labels choose epochs and penalties; kNN and the forest do without."
    )
    return Table.of(header, rows, caption, key=f"trees-scores-{100 * fraction:g}".replace(".", "-"))


def _cell(one: Interval | None, is_best: bool = False) -> Cell:
    if one is None:
        return Cell("-")
    note = f"{one.low:.3f} to {one.high:.3f}" if one.count > 1 else ""
    return Cell(f"{one.mean:.3f}", note=note, is_best=is_best)
