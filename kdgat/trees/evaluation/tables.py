"""Results as tables, for the terminal, the Prefect UI and the report."""

from collections.abc import Sequence

from kdgat.run import Interval, Table
from kdgat.run.table import Cell
from kdgat.trees.evaluation.results import OPTIMUM, OrderSummary, TreesResults

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
        cells = [Cell(method)]
        for channel in channels:
            one = losses[channel].get(method)
            cells.append(Cell("-") if one is None else _cell(one, one.mean == best[channel] and method != OPTIMUM))
        rows.append(cells)
    header = [Cell("method"), *(Cell(UNITS.get(channel, channel)) for channel in channels)]
    return Table(
        header,
        rows,
        "Growth: distance between predicted and true children of the test trees; less is better.",
        key="trees-growth",
    )


def order_table(results: TreesResults) -> Table:
    """Return how well ancestors are told from others."""
    best = max((row.auc.mean for row in results.order), default=0.0)

    def cells(row: OrderSummary) -> list[Cell]:
        others = row.auc_not_turned
        return [Cell(row.method), _cell(row.auc, row.auc.mean == best), Cell("-") if others is None else _cell(others)]

    rows = [cells(row) for row in results.order]
    header = [Cell("method"), Cell("AUC"), Cell("AUC, no pair turned")]
    return Table(
        header, rows, "Order: pairs of ancestor and descendant against others of the same tree.", key="trees-order"
    )


def score_table(results: TreesResults, fraction: float) -> Table:
    """Return what every method makes of a share of the labels."""
    found = sorted(
        (row for row in results.scores if row.label_fraction == fraction), key=lambda row: -row.score.mean
    )  # fmt: skip
    is_number = results.task == "number"
    rows = []
    for place, row in enumerate(found):
        other = row.error if is_number else row.auc
        rows.append([Cell(row.method), _cell(row.score, place == 0), Cell("-") if other is None else _cell(other)])
    header = [Cell("method"), Cell("R2" if is_number else "accuracy"), Cell("error" if is_number else "AUC")]
    labels = found[0].num_labels if found else 0
    caption = (
        f"{fraction:.0%} of the training labels ({labels:.0f} trees): test trees; mean and 95 % interval over seeds. "
        "All validation labels choose epochs and penalties; kNN and the forest do without."
    )
    return Table(header, rows, caption, key=f"trees-scores-{100 * fraction:g}".replace(".", "-"))


def _cell(one: Interval, is_best: bool = False) -> Cell:
    note = f"{one.low:.3f} to {one.high:.3f}" if one.count > 1 else ""
    return Cell(f"{one.mean:.3f}", note=note, is_best=is_best)
