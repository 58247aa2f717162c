"""The table of the report that says what each model costs."""

from __future__ import annotations

from pathlib import Path

from kdgat.can.evaluation.costs import COSTS_FILE, Costs
from kdgat.can.report.names import model_name, model_order
from kdgat.run.table import Table

HEADER = ("Model", "Parameters", "Weights, kB", "ms per window, median", "99 %", "Windows per s, in batches")


def costs_table(output: Path) -> Table | None:
    """Return size and latency of each model of a run; None where they were not measured."""
    path = output / COSTS_FILE
    if not path.is_file():
        return None
    costs = Costs.read(path)
    rows = [
        [
            model_name(name),
            f"{cost.num_parameters:,}",
            f"{cost.num_bytes / 1000:,.0f}",
            f"{cost.median_ms:.3g}",
            f"{cost.percentile_99_ms:.3g}",
            f"{cost.windows_per_second:,.0f}",
        ]
        for name, cost in sorted(costs.models.items(), key=lambda item: model_order(item[0]))
    ]
    caption = (
        f"Size and latency of the models of seed {costs.seed} on {costs.device}, one thread: up to"
        f" {costs.num_single:,} windows one by one, and batches of {costs.batch_size:,}. From a window's graph to its"
        " score in torch, without making the graph. A fusion's times include its members', its size does not."
    )
    return Table.of(HEADER, rows, caption)
