"""What a pretraining has learned of growth and order, beside what is known without it.

Baselines of growth are fitted on the training trees and applied to the test trees: the mean and the median
distribution of all nodes and of those of the same depth (medians are the better ones: the loss is one of absolute
differences), and the node's own edge taken for its children's. Losses are means over nodes, as the optimum is.
Of many training trees a draw of about `BASELINE_NODES` nodes is enough for the baselines, whose medians need all of
them in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kdgat.trees.evaluation.results import OPTIMUM, TRAINED, UNTRAINED, GrowthRow, OrderRow, Shares
from kdgat.trees.graphs.batch import TreeBatch, measure_edges
from kdgat.trees.objectives.growth import (
    ANGLE,
    LENGTH,
    MOST_CHILDREN,
    RADIUS_RATIO,
    Channel,
    Growth,
    distances,
    growth_targets,
)
from kdgat.trees.objectives.order import Pairs, draw_pairs, energy, pair_auc
from kdgat.trees.sections import GeneratedConfig, GrowthConfig
from kdgat.trees.training.pretraining import PretrainedTrees

COUNT, TOTAL = "count", "total"
BEST_OF_EACH = "the best one in each channel"
BASELINE_NODES = 500_000  # 150 MB
FEWEST = 5  # nodes of a depth, for a distribution of their own
Batches = Callable[[], Iterator[TreeBatch]]


def growth_weights(channels: Sequence[Channel], growth: GrowthConfig) -> list[float]:
    """Return the weight of each channel in the total."""
    return [{"length": 1.0, "angle": growth.angle_weight, "radius": growth.radius_weight}[one.name] for one in channels]


class _Fitted:
    """Distributions of the training trees, of all nodes and by depth."""

    def __init__(self, train: Batches, channels: Sequence[Channel]) -> None:
        shares: list[list[Tensor]] = [[] for _ in channels]
        depths: list[list[Tensor]] = [[] for _ in channels]
        counts, count_depths = [], []
        for tree in train():
            target = growth_targets(tree, channels)
            for place in range(len(channels)):
                known = target.known[:, place]
                shares[place].append(target.shares[place][known])
                depths[place].append(tree.depth[known])
            counts.append(target.count)
            count_depths.append(tree.depth)
        self.shares = [torch.cat(one) for one in shares]
        self.depths = [torch.cat(one) for one in depths]
        self.counts, self.count_depths = torch.cat(counts), torch.cat(count_depths)

    def everywhere(self, average: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Return one distribution per channel, [1, T]."""
        return [average(one)[None] if len(one) else one.new_zeros(1, one.shape[1]) for one in self.shares]

    def by_depth(self, average: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Return a table per channel, [D, T]: of depths with few nodes, that of all."""
        tables = []
        for shares, depths, whole in zip(self.shares, self.depths, self.everywhere(average), strict=True):
            deepest = int(depths.max()) + 1 if len(depths) else 1
            counts = torch.bincount(depths, minlength=deepest).tolist()
            rows = torch.split(shares[torch.argsort(depths, stable=True)], counts)
            tables.append(torch.cat([average(row)[None] if len(row) >= FEWEST else whole for row in rows]))
        return tables

    def count_tables(self) -> tuple[Tensor, Tensor]:
        """Return logarithms of the shares of numbers of children: of all nodes [1, K], and by depth [D, K]."""
        deepest = int(self.count_depths.max()) + 1
        table = torch.zeros(deepest, MOST_CHILDREN + 1, dtype=torch.float64)
        table.index_put_((self.count_depths, self.counts), torch.ones(len(self.counts), dtype=torch.float64), True)
        whole = table.sum(0, keepdim=True) + 0.5  # an event that was not seen is possible all the same
        by_depth = table + whole / whole.sum()
        return (whole / whole.sum()).log(), (by_depth / by_depth.sum(1, keepdim=True)).log()


def _median(values: Tensor) -> Tensor:
    return values.median(dim=0).values


def _mean(values: Tensor) -> Tensor:
    return values.mean(dim=0)


def _at_depth(tables: Sequence[Tensor], tree: TreeBatch) -> list[Tensor]:
    return [table[tree.depth.clamp(max=len(table) - 1)] for table in tables]


def measure_growth(
    model: PretrainedTrees, train: Batches, test: Batches, growth: GrowthConfig
) -> tuple[list[GrowthRow], list[Shares]]:
    """Return losses of the model and of the baselines on the test trees, and mean histograms by depth."""
    channels = model.growth.channels
    fitted = _Fitted(train, channels)
    tables = {
        "mean of all nodes": fitted.everywhere(_mean),
        "median of all nodes": fitted.everywhere(_median),
    }
    by_depth = {"mean by depth": fitted.by_depth(_mean), "median by depth": fitted.by_depth(_median)}
    whole_count, depth_count = fitted.count_tables()
    sums: dict[str, Tensor] = {}
    num_known = torch.zeros(len(channels), dtype=torch.float64)
    counts = {TRAINED: 0.0, "mean of all nodes": 0.0, "mean by depth": 0.0}
    num_nodes = 0
    histograms = _Histograms(channels, tables["mean of all nodes"])

    def add(method: str, shares: Sequence[Tensor], target: Growth) -> None:
        loss = distances(shares, target, channels).double().sum(0)
        sums[method] = sums.get(method, torch.zeros_like(loss)) + loss

    with torch.no_grad():
        for tree in test():
            target = growth_targets(tree, channels)
            num_known += target.known.double().sum(0)
            num_nodes += tree.num_nodes
            prediction = model.growth(model(tree).up, tree)
            add(TRAINED, prediction.shares, target)
            for method, one in tables.items():
                add(method, one, target)
            for method, one in by_depth.items():
                add(method, _at_depth(one, tree), target)
            own = measure_edges(tree).values
            add(
                "the node's own edge",
                [
                    (own[:, place, None] <= own.new_tensor(channel.thresholds)).float()
                    for place, channel in enumerate(channels)
                ],
                target,
            )
            histograms.add(tree, target, prediction.shares)
            counts[TRAINED] += float(functional.cross_entropy(prediction.count.double(), target.count, reduction="sum"))
            counts["mean of all nodes"] -= float(whole_count[0][target.count].sum())
            depth = tree.depth.clamp(max=len(depth_count) - 1)
            counts["mean by depth"] -= float(depth_count[depth, target.count].sum())
    rows = []
    weights = torch.tensor(growth_weights(channels, growth), dtype=torch.float64)
    is_known = num_known > 0
    for method, total in sums.items():
        losses = total / num_known.clamp(min=1)
        rows += [
            GrowthRow(channel=channel.name, method=method, loss=float(losses[place]))
            for place, channel in enumerate(channels)
            if is_known[place]
        ]
        rows.append(GrowthRow(channel=TOTAL, method=method, loss=float((losses * weights)[is_known].sum())))
    rows.append(GrowthRow(channel=TOTAL, method=BEST_OF_EACH, loss=_best_of_each(rows, channels, weights.tolist())))
    rows += [
        GrowthRow(channel=COUNT, method=method, loss=total / max(num_nodes, 1)) for method, total in counts.items()
    ]  # fmt: skip
    return rows, histograms.rows()


def measure_optimum(
    generate: GeneratedConfig, channels: Sequence[Channel], growth: GrowthConfig, scale: float, draws: int, seed: int
) -> list[GrowthRow]:
    """Return the least losses that any prediction can have of drawn test trees, whose law is known.

    `scale` is length 1 of the channels; `draws` are of children, per node.
    """
    from kdgat.trees.synthetic.dataset import PART_START, draw
    from kdgat.trees.synthetic.optimum import growth_optimum

    drawn = list(draw(generate.kind, generate.classes, generate.test, generate.seed, PART_START["test"]))
    named = {channel.name: channel for channel in channels}
    length, angle, radius = (named[name] for name in (LENGTH, ANGLE, RADIUS_RATIO))
    found = growth_optimum(
        drawn,
        np.exp(length.thresholds) * scale,
        angle.thresholds,
        (np.full(length.count, length.step), np.full(angle.count, angle.step)),
        draws,
        seed,
        radius=(radius.thresholds, np.full(radius.count, radius.step)),
    )
    rows = {LENGTH: found["length"], ANGLE: found["angle"], RADIUS_RATIO: found["radius"]}
    weights = growth_weights([length, angle, radius], growth)
    rows[TOTAL] = sum(weight * loss for weight, loss in zip(weights, list(rows.values()), strict=True))
    rows[COUNT] = found["num_children"]
    return [GrowthRow(channel=channel, method=OPTIMUM, loss=loss) for channel, loss in rows.items()]


def _best_of_each(rows: Sequence[GrowthRow], channels: Sequence[Channel], weights: Sequence[float]) -> float:
    """Return the total of a baseline that takes the best in each channel, chosen on the test trees in its favour."""
    total = 0.0
    for channel, weight in zip(channels, weights, strict=True):
        losses = [row.loss for row in rows if row.channel == channel.name and row.method != TRAINED]
        total += weight * min(losses) if losses else 0.0
    return total


class _Histograms:
    """Sums of shares over nodes, by depth."""

    GROUPS = (("1 to 2", 1, 2), ("3 to 5", 3, 5), ("6 and deeper", 6, 1 << 30))

    def __init__(self, channels: Sequence[Channel], baseline: Sequence[Tensor]) -> None:
        self.channels, self.baseline = channels, baseline
        self.sums: dict[tuple[int, str], tuple[Tensor, Tensor, int]] = {}

    def add(self, tree: TreeBatch, target: Growth, predicted: Sequence[Tensor]) -> None:
        """Add the nodes of a batch."""
        for place, channel in enumerate(self.channels):
            for name, low, high in self.GROUPS:
                chosen = target.known[:, place] & (tree.depth >= low) & (tree.depth <= high)
                zeros = torch.zeros(channel.count)
                true, guess, count = self.sums.get((place, name), (zeros, zeros, 0))
                self.sums[place, name] = (
                    true + target.shares[place][chosen].sum(0).cpu(),
                    guess + predicted[place][chosen].sum(0).cpu(),
                    count + int(chosen.sum()),
                )

    def rows(self) -> list[Shares]:
        """Return the means of groups that have nodes."""
        return [
            Shares(
                channel=self.channels[place].name,
                depth=name,
                edges=self.channels[place].thresholds,
                true=_histogram(true / count),
                predicted=_histogram(guess / count),
                baseline=_histogram(self.baseline[place][0].cpu()),
            )
            for (place, name), (true, guess, count) in self.sums.items()
            if count
        ]


def _histogram(shares: Tensor) -> list[float]:
    """Return shares of the bins between thresholds, and of those below the first and above the last."""
    whole = torch.cat([shares.new_zeros(1), shares, shares.new_ones(1)])
    return [float(value) for value in whole.diff()]


def measure_order(model: PretrainedTrees, untrained: PretrainedTrees, test: Batches, repeats: int) -> list[OrderRow]:
    """Return AUCs of pairs of the test trees: of both models, of depth alone, and of the size of subtrees alone."""
    energies: dict[str, list[Tensor]] = {}
    ancestor, turned = [], []
    with torch.no_grad():
        for tree in test():
            places = {TRAINED: model.order(model(tree).both), UNTRAINED: untrained.order(untrained(tree).both)}
            for _ in range(repeats):
                pairs = draw_pairs(tree)
                ancestor.append(pairs.is_ancestor)
                turned.append(pairs.is_turned)
                for method, one in places.items():
                    energies.setdefault(method, []).append(energy(one, pairs))
                for method, one in _known_orders(tree, pairs).items():
                    energies.setdefault(method, []).append(one)
    is_ancestor, is_turned = torch.cat(ancestor), torch.cat(turned)
    if not is_ancestor.any() or is_ancestor.all():
        return []
    straight = ~is_turned
    has_others = bool((straight & ~is_ancestor).any())  # a chain has none
    rows = []
    for method, parts in energies.items():
        found = torch.cat(parts)
        rows.append(
            OrderRow(
                method=method,
                auc=pair_auc(found, is_ancestor),
                auc_not_turned=pair_auc(found[straight], is_ancestor[straight]) if has_others else None,
            )
        )
    return rows


def _known_orders(tree: TreeBatch, pairs: Pairs) -> dict[str, Tensor]:
    """Return energies that anybody knows: how much deeper the first is, how much smaller its subtree."""
    depth, size = tree.depth.double(), tree.subtree.double()
    return {
        "depth alone": depth[pairs.above] - depth[pairs.below],
        "size of the subtree alone": size[pairs.below] - size[pairs.above],
    }
