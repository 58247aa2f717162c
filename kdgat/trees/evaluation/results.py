"""What an evaluation measures, and the shape of evaluation.json (one seed) and results.json (all seeds, summarised)."""

from __future__ import annotations

import math
from typing import ClassVar, Final, Literal

from pydantic import Field

from kdgat.base import Config
from kdgat.run import Interval, Measure
from kdgat.run.results import Count, Finite, RunResults, Value, Versioned
from kdgat.trees.names import FAMILY

TRAINED: Final = "pretrained"
OPTIMUM: Final = "optimum"
PROBE, NEIGHBOURS, FOREST = "linear probe", "kNN", "random forest on morphometrics"
FINETUNED, SCRATCH, GIN = "fine-tuned", "from scratch", "GIN"
UNTRAINED: Final = "untrained encoder"  # after a method: with an encoder as it is initialised
TaskKind = Literal["classes", "number", "none"]


def with_untrained(method: str) -> str:
    """Name a method on embeddings of an untrained encoder."""
    return f"{method}, {UNTRAINED}"


class GrowthRow(Config):
    """Mean earth mover's distance of one method in one channel, over the nodes of the test trees that have children."""

    channel: str = Field(
        description="length (log), angle (rad) or radius (log), count (nats), or total (their weighted sum)"
    )
    method: str = Field(
        description="pretrained, a baseline, or optimum: the best that is possible where the law is known"
    )
    loss: Finite


class OrderRow(Config):
    """How well one method tells pairs of ancestor and descendant from others."""

    method: str
    auc: Finite = Field(description="over all pairs: half of the others are such pairs turned round")
    auc_not_turned: Value = Field(
        description="against pairs of one tree of which neither is the other's ancestor alone"
    )


class ScoreRow(Config):
    """One method on the test trees, with one draw of the labels."""

    method: str
    label_fraction: Finite
    num_labels: Count
    draw: Count = Field(description="which draw of the labels")
    score: Finite = Field(description="accuracy; for numbers R2")
    auc: Value = Field(default=None, description="one against the rest, mean of classes, against true labels")
    error: Value = Field(default=None, description="mean absolute error of a number")


class Shares(Config):
    """Mean histogram of a channel over nodes at some depths: what is, and what was predicted."""

    channel: str
    depth: str
    edges: list[Finite] = Field(description="thresholds between the bins")
    true: list[Finite]
    predicted: list[Finite]
    baseline: list[Finite] = Field(description="mean of the training trees")


class DrawnTree(Config):
    """One tree for a picture: nodes in a plane of its two widest axes, in median edges."""

    name: str
    label: str | None = None
    parent: list[int]
    x: list[Finite]
    y: list[Finite]
    width: list[Finite]


class Point(Config):
    """One tree on the map of embeddings."""

    name: str
    label: str | None = None
    target: Value = None
    x: Finite
    y: Finite


class Memory(Config):
    """What a pretraining took."""

    predicted_bytes: Count
    measured_bytes: Count
    where: str = Field(description="the GPU, or torch's tensors on the CPU")


class Evaluation(Versioned):
    """Everything one evaluation stage measured (evaluation.json)."""

    fix: ClassVar[str] = "run the evaluation stage again"

    seed: int
    task: TaskKind
    classes: list[str] = Field(default=[])
    trees: dict[str, Count] = Field(description="split -> trees")
    nodes: dict[str, Count] = Field(description="split -> nodes")
    median_edge: Finite
    num_parameters: dict[str, Count] = Field(default={})
    growth: list[GrowthRow]
    order: list[OrderRow]
    scores: list[ScoreRow] = Field(default=[])
    shares: list[Shares] = Field(default=[])
    pictures: list[DrawnTree] = Field(default=[])
    map: list[Point] = Field(default=[])
    notes: list[str] = Field(default=[], description="what the scores cannot say")


class GrowthSummary(Config):
    """One method in one channel, over seeds."""

    channel: str
    method: str
    loss: Interval


class OrderSummary(Config):
    """One method, over seeds."""

    method: str
    auc: Interval
    auc_not_turned: Interval | None


class ScoreSummary(Config):
    """One method with one share of the labels, over seeds; draws of labels are averaged within a seed."""

    method: str
    label_fraction: Finite
    num_labels: Finite
    score: Interval
    auc: Interval | None = None
    error: Interval | None = None


class TreesResults(RunResults):
    """The results of a run, over seeds."""

    family: str = FAMILY
    task: TaskKind
    classes: list[str]
    trees: dict[str, Count]
    nodes: dict[str, Count]
    median_edge: Finite
    num_parameters: dict[str, Count]
    growth: list[GrowthSummary]
    order: list[OrderSummary]
    scores: list[ScoreSummary]
    conclusions: list[str]
    shares: list[Shares] = Field(description="of the first seed")
    pictures: list[DrawnTree] = Field(description="test trees")
    map: list[Point] = Field(description="of the first seed")
    memory: Memory | None = None
    notes: list[str] = Field(default=[], description="what the scores cannot say")

    def measures(self) -> list[Measure]:
        """Return what the pretrained model predicts of growth and order, and what it is worth with few labels."""
        losses = {row.channel: row.loss for row in self.growth if row.method == TRAINED}
        growth = [Measure(f"growth loss, {name}", one.mean, one, False) for name, one in losses.items()]
        order = [Measure("order AUC", row.auc.mean, row.auc) for row in self.order if row.method == TRAINED]
        scores = [
            Measure(f"{FINETUNED}, {row.label_fraction:.0%} of labels", row.score.mean, row.score)
            for row in self.scores
            if row.method == FINETUNED
        ]
        return sorted(growth, key=lambda one: not one.name.endswith("total")) + order + scores

    def growth_of(self, channel: str) -> dict[str, Interval]:
        """Return the losses in a channel by method."""
        return {row.method: row.loss for row in self.growth if row.channel == channel}

    def best_baseline(self, channel: str) -> str | None:
        """Return the baseline of the smallest loss in a channel."""
        found = {name: one.mean for name, one in self.growth_of(channel).items() if name not in (TRAINED, OPTIMUM)}
        return min(found, key=lambda name: found[name]) if found else None

    def score_of(self, method: str, fraction: float) -> Interval | None:
        """Return the score of a method with a share of the labels."""
        for row in self.scores:
            if row.method == method and math.isclose(row.label_fraction, fraction):
                return row.score
        return None
