"""Find the size of batches before training begins: what a batch may hold so that its step fits a memory budget.

`training.batch_size_mode` says how; all three measure steps of the model at hand on graphs of its epochs:

* `static`: two steps of different size, from which follow the bytes per node and edge; the largest limit is taken whose
  largest batch should fit.
* `tuner`: steps on the largest batch that an epoch really has with a limit, which is doubled while that fits; then
  the largest one that fits is searched for between the last two.
* `trial`: steps on the heaviest graphs that could ever meet in a batch; the limit is doubled while that fits, and
  halved until it does.

What is looked at is the largest epoch that the source plans, as a curriculum begins with small ones. The safety factor
leaves room for what no measured step has shown. The decision is kept beside the checkpoints from before the first step
on, and in each of them: a resumed fit has the batches that it began with, however much memory there is now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from lightning import Fabric, LightningModule
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from kdgat.base import MIB, ConfigurationError, UserError, write_bytes_atomically
from kdgat.base.files import to_json
from kdgat.base.kept import read_kept
from kdgat.stage import RunDirectory
from kdgat.training import EpochSource, TrainingConfig
from kdgat.training.batch_size.limit import LimitedSource, Unit
from kdgat.training.batch_size.trial import StepTrials, memory_budget, step_trials
from kdgat.training.checkpoints import CheckpointError
from kdgat.training.config import ANY_DATASET, BatchSizeMode
from kdgat.training.footprint import UNLIMITED, largest_that_fits

logger = logging.getLogger(__name__)

FILE_NAME: Final = "batches.json"

Graphs = NDArray[np.int64]


class BatchDecision(BaseModel):
    """What was found, and what a batch holds at most because of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: BatchSizeMode
    unit: Unit
    found: int = Field(ge=1)
    factor: float
    size: int = Field(ge=1)  # found times factor: the limit of each batch
    epoch: int = Field(ge=0)  # the largest one, which was looked at
    num_batches: int = Field(ge=1)  # of that epoch, with this size

    def describe(self) -> str:
        """Say in one line what was found, the factor, what is used and how many batches an epoch has."""
        return (
            f"{self.mode} found {self.found:,} {self.unit}, times {self.factor:g} (training.safety_factor): "
            f"{self.size:,}; {self.num_batches:,} batches per epoch" + f" (epoch {self.epoch})" * (self.epoch > 0)
        )


def settle_batches(
    saved: Mapping[str, Any],
    fabric: Fabric,
    module: LightningModule,
    train: EpochSource,
    validation: EpochSource | None,
    config: TrainingConfig,
    checkpoints: Path,
    directory: RunDirectory,
    seed: int,
    check: Callable[[], None],
) -> dict[str, Any]:
    """Let the sources of a fit plan batches of the size that was found for it, or is found now.

    Args:
        saved: what this returned when the checkpoint was written that the fit goes on from; empty if there is none.
        fabric, module, train, validation, config, seed: of the fit.
        checkpoints: folder of the fit's checkpoints.
        directory: that it belongs to.
        check: called before each step that measures; may raise to end the search.

    Returns:
        The decision as plain data, for the checkpoints.

    Raises:
        CheckpointError: if the file of an earlier decision is damaged.
        ConfigurationError, torch.OutOfMemoryError: as `decide_batches`.
    """
    sources = [require_limited(source, config) for source in (train, validation) if source is not None]
    decision = BatchDecision.model_validate(saved, extra="ignore") if saved else read_decision(checkpoints)
    if decision is None:
        decision = decide_batches(fabric, module, train, config, seed, check)
        write_decision(checkpoints, decision, directory)
        logger.info("%s", decision.describe())
    else:
        logger.info("as decided before: %s", decision.describe())
    for source in sources:
        source.limit.size = decision.size
    return decision.model_dump(mode="json")


def decide_batches(
    fabric: Fabric,
    module: LightningModule,
    source: EpochSource,
    config: TrainingConfig,
    seed: int,
    check: Callable[[], None] = lambda: None,
) -> BatchDecision:
    """Search for the limit of batches; module, source and random states are afterwards what they were.

    Args:
        fabric, module: as training has them.
        source: of the training graphs.
        config: of the fit, whose `batch_size_mode` is not `fixed`.
        seed: of the fit.
        check: called before each step; may raise to end the search.

    Raises:
        ConfigurationError: if the source has no limit, or no graph fits the budget.
        torch.OutOfMemoryError: if a single graph is too large for the GPU.
    """
    limited = require_limited(source, config)
    factor = config.safety_factor[ANY_DATASET]
    before = limited.limit.size
    budget = memory_budget(config, fabric.device)
    try:
        with step_trials(fabric, module, source, config, seed) as trials:
            search = BatchSearch(limited, trials, budget, check)
            found = search.find(config.batch_size_mode)
        limited.limit.size = size = max(1, int(found * factor))
        num_batches = len(limited.plan(search.epoch))
    finally:
        limited.limit.size = before
    return BatchDecision(
        mode=config.batch_size_mode, unit=limited.limit.unit, found=found, factor=factor, size=size,
        epoch=search.epoch, num_batches=num_batches,
    )  # fmt: skip


def require_limited(source: EpochSource, config: TrainingConfig) -> LimitedSource:
    """Return the source as one whose batches follow a limit; ConfigurationError if they do not."""
    if not isinstance(source, LimitedSource):
        raise ConfigurationError(
            f"training.batch_size_mode={config.batch_size_mode} needs a source with a limit that can be set, and "
            f"{type(source).__name__} has none: set training.batch_size_mode=fixed"
        )
    return source


class BatchSearch:
    """The three ways to find a limit."""

    def __init__(
        self, source: LimitedSource, trials: StepTrials, budget: int, check: Callable[[], None] = lambda: None
    ) -> None:
        """Search for the largest limit of `source` with which `trials` stay within `budget` bytes."""
        self._source, self._trials, self._budget, self._check = source, trials, budget, check
        self._limit, self._elements = source.limit, source.graph_sizes.elements
        self._weights = source.graph_sizes.of(self._limit.unit)
        self.epoch = source.largest_epoch()

    def find(self, mode: BatchSizeMode) -> int:
        """Return the largest limit that fits; errors of `decide_batches`."""
        start = self._limit.size
        cap = int(self._weights[self._largest_batch(UNLIMITED)].sum())  # a larger one makes no difference
        match mode:
            case "static":
                per_element = self._bytes_per_element(min(start, cap), cap)
                found = largest_that_fits(lambda size: self._should_fit(size, per_element), start, cap)
            case "tuner":
                found = largest_that_fits(lambda size: self._fits(self._largest_batch(size), size), start, cap)
            case "trial":
                found = largest_that_fits(
                    lambda size: self._fits(self._heaviest_batch(size), size), start, cap, is_exact=False
                )
            case "fixed":
                raise AssertionError("there is nothing to search for")
        return found or self._one_graph()

    def _largest_batch(self, size: int) -> Graphs:
        """Return the batch of the largest epoch that takes most memory, with this limit."""
        self._limit.size = size
        plan = self._source.plan(self.epoch)
        if len(plan) == 0:
            raise UserError(f"epoch {self.epoch} has no training batches: is the training split empty?")
        return max(plan, key=self._sum)

    def _heaviest_batch(self, size: int) -> Graphs:
        """Return the graphs that take most memory of all that could meet in a batch of this limit, each once."""
        graphs = self._source.graphs()
        elements, weights = self._elements[graphs], self._weights[graphs]
        largest = int(elements.argmax())
        if weights[largest] > size:
            return graphs[[largest]]  # a graph above the limit forms a batch of its own
        order = np.lexsort((graphs, -elements / np.maximum(weights, 1)))
        order = order[weights[order] <= size]
        return graphs[order[np.cumsum(weights[order]) <= size]]

    def _fits(self, indices: Graphs, size: int) -> bool:
        """Return whether a step on a batch stays within the budget."""
        taken = self._measure(indices)
        logger.info(
            "batches of %s %s: a step on the largest (graphs: %s) takes %s of %s",
            f"{size:,}", self._limit.unit, f"{len(indices):,}",
            "more than the device has" if taken is None else _mebibytes(taken), _mebibytes(self._budget),
        )  # fmt: skip
        return taken is not None and taken <= self._budget

    def _measure(self, indices: Graphs) -> int | None:
        self._check()
        return self._trials.measure(indices)

    def _bytes_per_element(self, start: int, cap: int) -> float:
        """Measure two steps and return the bytes that follow from them.

        Weights, gradients and moments are known; beside them a step takes so many bytes per node and edge. A small
        batch says too many, because a gradient on its way may outweigh it. So a second one, as large as may be by the
        first, is on the safe side, and close to what is looked for.
        """
        kept = self._trials.kept_bytes()
        first = self._largest_batch(start)
        while (taken := self._measure(first)) is None:
            if len(first) == 1:
                raise self._trials.too_large()
            first = first[: len(first) // 2]
        per_element = (taken - kept) / max(self._sum(first), 1)
        size = largest_that_fits(lambda size: self._should_fit(size, per_element), start, cap)
        second = self._largest_batch(max(size, 1))
        if (taken := self._measure(second)) is not None:
            per_element = (taken - kept) / max(self._sum(second), 1)
        logger.info("a step takes %s and %.0f bytes per %s", _mebibytes(kept), per_element, self._element_words())
        return per_element

    def _sum(self, indices: Graphs) -> int:
        return int(self._elements[indices].sum())

    def _element_words(self) -> str:
        return "node and edge" if self._source.graph_sizes.paths is None else "node and path"

    def _should_fit(self, size: int, per_element: float) -> bool:
        """Return whether the largest batch should fit, given the bytes per node and edge."""
        return self._trials.kept_bytes() + per_element * self._sum(self._largest_batch(size)) <= self._budget

    def _one_graph(self) -> int:
        """Return the smallest limit, if the largest graph alone fits; the error says what it takes if it does not."""
        graphs = self._source.graphs()
        largest = graphs[[int(self._elements[graphs].argmax())]]
        taken = self._measure(largest)
        if taken is None:
            raise self._trials.too_large()
        if taken <= self._budget:
            return 1
        raise ConfigurationError(
            f"training.memory_budget={self._budget // MIB}M is too small for a batch of one graph: with the largest "
            f"one, of {self._sum(largest):,} ({self._element_words()}), a step takes "
            f"{_mebibytes(taken)} with weights and moments; set training.memory_budget to at least "
            f"{-(-taken // MIB)}M, or choose a smaller model"
        )


def _mebibytes(amount: float) -> str:
    """Write bytes to a tenth of a MiB: small models take few of them, and what differs by little is compared."""
    return f"{amount / MIB:,.1f} MiB"


def decision_path(checkpoints: Path) -> Path:
    """Return where the decision of a fit lies, given the folder of its checkpoints."""
    return checkpoints / FILE_NAME


def read_decision(checkpoints: Path) -> BatchDecision | None:
    """Return what an earlier process of this fit decided, which may not have come to its first checkpoint.

    Raises:
        CheckpointError: if the file is damaged.
    """
    path = decision_path(checkpoints)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return read_kept(BatchDecision, content, path, "remove it to search for the batch size again", CheckpointError)


def write_decision(checkpoints: Path, decision: BatchDecision, directory: RunDirectory) -> None:
    """Keep a decision before the first step that follows it; OwnerLostError if another process took the directory."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(
        decision_path(checkpoints), to_json(decision.model_dump(mode="json")), before_rename=directory.check_owner
    )
