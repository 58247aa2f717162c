"""What commands, flows and reports need of the family; nothing here imports torch."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kdgat.base import describe_bytes
from kdgat.cluster import Estimate, Expectation, Resources
from kdgat.family import DataSize, Family, Option, PlanTable
from kdgat.run import OutputDirectory, Run, Table
from kdgat.training.weights import read_description
from kdgat.trees.config import TreesConfig
from kdgat.trees.evaluation.results import TreesResults
from kdgat.trees.inputs import check_files, trees_run
from kdgat.trees.names import FAMILY as NAME
from kdgat.trees.names import PRETRAIN
from kdgat.trees.training.counts import estimate_counts
from kdgat.trees.training.recommendation import describe_memory, epoch_seconds, pretraining, stage_bytes

if TYPE_CHECKING:
    from torch import nn

    from kdgat.report import Document, RunContent

OPTIONS: Final = (
    Option(
        "data_root",
        "Folder of trees: SWC, GeoJSON, shapefiles or masks; without it trees are drawn.",
        key="data.data_root",
        type=Path,
    ),
    Option(
        "labels",
        "Table of labels: CSV with the columns file, and label or target. labels.csv in the folder is found by itself.",
        key="data.labels",
        type=Path,
    ),
    Option("stages", "Stages to run, with what they need, as --stages pretrain.", key="stages", is_many=True),
    Option(
        "gpu_memory",
        "Recommend batch, width and depth for a GPU of this size, as 8G.",
        plan_only=True,
    ),
)  # fmt: skip


class TreesFamily(Family):
    """Pretraining without labels on geometric trees."""

    name = NAME
    title = "self-supervised learning on geometric trees"
    training_help = (
        "Pretrain an encoder of geometric trees without labels, then use it: classes or numbers from few labels.\n\n"
        "Without --data-root trees with known classes are drawn. A command that was stopped or killed goes on where it "
        "was when it is given again. With --site NAME each stage runs in jobs of a cluster, and goes on in the next "
        "one where the walltime cut it."
    )
    flow = "flows.trees:trees"
    options = OPTIONS
    config = TreesConfig
    results = TreesResults

    def plan(self, config: TreesConfig) -> Run:
        """Describe a run; errors as of `trees_run`."""
        return trees_run(config)

    def check(self, config: TreesConfig, out: Path | None) -> None:
        """Refuse, before anything is started, files that cannot be used; see `check_files`."""
        check_files(config)

    def describe(self, run: Run, jobs: Mapping[str, Resources], options: Mapping[str, Any]) -> PlanTable:
        """Return what steps take, and with `gpu_memory` what fits such a GPU; errors of `estimate_counts`."""
        config = run.config
        assert isinstance(config, TreesConfig)
        counts = estimate_counts(config)
        taken = {planned.name: stage_bytes(planned, counts) for planned in run.plan}
        device = "gpu" if any(jobs[planned.name].gpus for planned in run.plan if planned.name in jobs) else "cpu"
        own = pretraining(config)
        seconds = math.ceil(own.training.max_epochs * epoch_seconds(own, counts, device))
        source = "steps measured on a core" if device == "cpu" else "what a GPU takes at most, which was not measured"
        return PlanTable(
            times={planned.name: Estimate(seconds, None, source) for planned in run.plan if planned.stage == PRETRAIN},
            headings=("step memory",),
            cells={name: ["" if amount is None else describe_bytes(amount)] for name, amount in taken.items()},
            sources="nothing" if config.data.data_root is None else "files",
            after=describe_memory(config, options.get("gpu_memory"), counts),
        )

    def data_size(self, config: TreesConfig) -> DataSize:
        """Return the trees that train."""
        counts = estimate_counts(config)
        name = config.data.kind if config.data.data_root is None else Path(config.data.data_root).name
        return DataSize(name, counts.num_training, counts.source)

    def assume(self, run: Run, inputs: Mapping[str, Path] | None = None) -> Mapping[str, Expectation]:
        """Return the memory of a GPU that the largest steps of stages take, by the formula of `kdgat plan trees`."""
        config = run.config
        assert isinstance(config, TreesConfig)
        if inputs is not None:  # when a stage starts nobody asks for it
            return {}
        counts = estimate_counts(config)
        taken = {planned.name: stage_bytes(planned, counts) for planned in run.plan}
        return {
            name: {"gpu_memory": Estimate(-(-amount >> 20), None, "largest step, by its formula")}
            for name, amount in taken.items()
            if amount is not None
        }

    def judged_stage(self, trained: Sequence[str]) -> str | None:
        """Name the pretraining: what labels are worth is measured on tests."""
        return PRETRAIN if PRETRAIN in trained else None

    def reads(self, config: TreesConfig) -> Any:
        """Return what decides which trees and weights are read."""
        return [config.data.model_dump(mode="json"), config.start_from]

    def load_model(self, weights: Path) -> "nn.Module":
        """Return a pretrained encoder with its heads, or a network that was trained for the task."""
        from kdgat.trees.training.finetuning import load_predictor
        from kdgat.trees.training.pretraining import load_pretrained

        is_pretrained = "growth" in read_description(weights)["config"]
        return load_pretrained(weights)[0] if is_pretrained else load_predictor(weights)[0]

    def collect(self, output: OutputDirectory) -> TreesResults:
        """Summarise the evaluations of all seeds; errors as of `collect_results`."""
        from kdgat.trees.evaluation.summary import collect_results

        return collect_results(output)

    def tables(self, results: TreesResults) -> Sequence[Table]:
        """Return growth beside its baselines, the order, and what labels are worth."""
        from kdgat.trees.evaluation.tables import tables

        return tables(results)

    def conclusions(self, results: TreesResults) -> Sequence[str]:
        """Say whether pretraining has learned anything, and whether that is of use."""
        return results.conclusions

    def report(self, content: "RunContent[TreesResults]") -> "Document":
        """Return the report."""
        from kdgat.trees.report.page import document

        return document(content)


FAMILY: Final = TreesFamily()
