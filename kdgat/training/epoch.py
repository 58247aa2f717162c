"""The epochs of a fit: training steps, from any of them on, and validation; both in parts where memory is short."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from kdgat.base import UserError
from kdgat.stage import Work
from kdgat.stage.work import GRAPHS
from kdgat.training.averages import Averages
from kdgat.training.batch_size import cut, double_parts
from kdgat.training.capture import CapturedSteps, require_random_numbers, why_not
from kdgat.training.checkpoints import CheckpointError
from kdgat.training.config import TrainingConfig
from kdgat.training.device import PlacedFabric
from kdgat.training.gradients import Gradients
from kdgat.training.graph_source import GraphSource
from kdgat.training.optimization import Optimization
from kdgat.training.profile import Profile
from kdgat.training.progress import Progress
from kdgat.training.random_state import separate_randomness
from kdgat.training.ranks import Ranks
from kdgat.training.source import EpochSource, plan_digest
from kdgat.training.state import FitState
from kdgat.training.steps import LossWatch, Steps

logger = logging.getLogger(__name__)


class Pause(Exception):  # noqa: N818 - leaves the loops, reports no error
    """Time to save and leave; `needed_s` is what a single step would have taken, where there was too little time."""

    def __init__(self, reason: str, needed_s: float | None = None) -> None:
        super().__init__(reason)
        self.needed_s = needed_s


@dataclass(eq=False)
class Epochs:
    """Go through the batches of an epoch, and then of the next; what a kill must not lose is in the state given."""

    fabric: PlacedFabric
    module: LightningModule
    steps: Steps
    optimization: Optimization
    optimizer: Any  # its optimizer, as fabric steps it
    train_source: EpochSource
    validation_source: EpochSource | None
    config: TrainingConfig
    seed: int
    averages: Averages
    progress: Progress
    profile: Profile
    work: Work

    def __post_init__(self) -> None:
        self.raw_optimizer = self.optimization.optimizer
        self.losses = LossWatch(self.fabric.device.type)
        self._clips_itself = is_overridden("configure_gradient_clipping", self.module)

    def share(self, ranks: Ranks, state: FitState) -> None:
        """Share batches among these ranks, and settle if steps are recorded; called once, before the first epoch."""
        self._ranks = ranks
        self._gradients = Gradients(
            self.fabric, self.module, self.raw_optimizer, self.train_source, self.averages, self.profile, self.steps,
            ranks,
        )  # fmt: skip
        self._captured = self._capture(state)
        state.is_captured = self._captured is not None

    def _capture(self, state: FitState) -> CapturedSteps | None:
        """Return what records steps, if they are to be: a fit that has begun goes on as it began."""
        source, wanted = self.train_source, self.config.capture
        if wanted is False or (wanted is None and state.global_step and not state.is_captured):
            return None
        reason = why_not(self.config, self.fabric.device, self.module, source, self._ranks.count)
        if state.num_parts > 1:
            reason = reason or "memory is short, and batches are gone through in parts"
        if reason:
            if wanted:
                logger.warning("training.capture=true changes nothing: %s", reason)
            elif state.is_captured:
                logger.warning("steps are not recorded any more, and their last bits are others: %s", reason)
            return None
        assert isinstance(source, GraphSource)
        return CapturedSteps(self.module, self.raw_optimizer, source, self.averages, self.config, self.fabric.autocast)

    def train(self, state: FitState, begin: Callable[[], None], between: Callable[[], None]) -> None:
        """Do the training steps of the current epoch that are not done yet.

        Args:
            state: which epoch, and how many of its steps are done; it follows.
            begin: called right before the first step.
            between: called after each step; may raise to leave.

        Raises:
            UserError: if there are no batches.
            CheckpointError: if they are others than before a restart.
            FloatingPointError: if a loss is not finite.
        """
        plan = self.train_source.plan(state.epoch)
        if len(plan) == 0:
            raise UserError(f"epoch {state.epoch} has no training batches: is the training split empty?")
        digest = plan_digest(plan)
        if state.step and digest != state.plan_digest:
            raise CheckpointError(
                f"the training source plans epoch {state.epoch} differently than before the restart: "
                "its plan must depend on seed, epoch and state_dict() alone"
            )
        self._ranks.check_same(lambda: digest, f"the batches of epoch {state.epoch}")
        state.plan_digest = digest
        num_steps = len(plan)
        size = self.work.size
        size[GRAPHS] = max(size.get(GRAPHS, 0), sum(map(len, plan)))
        self.module.train()
        self.progress.start_epoch(state.epoch, state.step, num_steps)
        begin()
        if state.step == 0:
            self.averages.clear()
            self._place(state)
            self.module.on_train_epoch_start()
        if self._captured is not None:
            self._captured.begin(plan)
        with self.averages.listen(self.module):
            for step in range(state.step, num_steps):
                self._step(state, plan[step], step, num_steps)
                between()
        self.losses.check()
        self.progress.end_epoch()

    def _step(self, state: FitState, indices: Any, step: int, num_steps: int) -> None:
        """Do one optimizer step."""
        config = self.config
        self._place(state)
        rate = self.optimization.begin_step((state.epoch + step / num_steps) / config.max_epochs)
        self.profile.start_step()
        if (captured := self._recorded(state, indices, rate)) is not None:
            loss = captured.step(len(indices))
        else:
            loss, state.num_parts = self._gradients.compute(indices, step, state.num_parts, (self.seed, state.epoch))
            with self.profile.phase("optimizer"):
                self.module.on_before_optimizer_step(self.raw_optimizer)
                if self._clips_itself:
                    self.module.configure_gradient_clipping(self.optimizer, config.gradient_clip, "norm")
                elif config.gradient_clip is not None:
                    # What is not finite shows in the next loss; 16-mixed meets it now and then and skips the step.
                    self.fabric.strategy.clip_gradients_norm(
                        self.module, self.raw_optimizer, max_norm=config.gradient_clip, error_if_nonfinite=False
                    )
                self.optimizer.step()
                self.module.on_before_zero_grad(self.raw_optimizer)
                self.raw_optimizer.zero_grad(set_to_none=True)
        self.profile.end_step()
        state.step += 1
        state.global_step += 1
        self.optimization.end_step(state.global_step)
        self._place(state)
        self.steps.end_batch()
        self.losses.note(state.epoch, state.step, rate, loss)
        self.progress.count(len(indices))
        if self.progress.due():
            self.progress.report(
                epoch=state.epoch, step=state.step, num_steps=num_steps, phase="train", loss=loss.item()
            )

    def _recorded(self, state: FitState, indices: Any, rate: float) -> CapturedSteps | None:
        """Return the recorded step of a batch; None if there is none, also where it failed and nobody asked for it."""
        if self._captured is None:
            return None
        try:
            self._captured.choose(indices, rate)
        except RuntimeError as error:
            if self.config.capture:
                raise
            logger.warning("steps are taken one by one from now on, for they could not be recorded: %s", error)
            require_random_numbers(self.fabric.device, error)
            self.raw_optimizer.zero_grad(set_to_none=True)  # of the memory of a recording
            self._captured, state.is_captured = None, False
        return self._captured

    def _place(self, state: FitState) -> None:
        """Let the module know how far training is."""
        self.fabric.current_epoch, self.fabric.global_step = state.epoch, state.global_step

    def validate(self, state: FitState, between: Callable[[], None]) -> dict[str, float]:
        """Return the metrics of the validation split, by rank 0 alone; what that changed in the module, all get.

        Each epoch has the same random numbers. `between` is called between two batches, and may raise `Pause`.

        Raises:
            UserError: if there are no batches.
            torch.OutOfMemoryError: if there is no memory for a single graph.
        """
        if (source := self.validation_source) is None:
            return {}
        self._place(state)
        metrics, state.num_parts = self._ranks.by_first(
            lambda: self._validate(source, state.epoch, state.num_parts, between), Pause
        )
        self._ranks.copy_buffers(self.module)
        return metrics

    def _validate(
        self, source: EpochSource, epoch: int, num_parts: int, between: Callable[[], None]
    ) -> tuple[dict[str, float], int]:
        """Return the metrics, and in how many parts batches went through; more than given, if memory is short."""
        plan = source.plan(epoch)
        if len(plan) == 0:
            raise UserError(f"epoch {epoch} has no validation batches: is the validation split empty?")
        self.module.eval()
        try:
            while True:
                try:
                    with separate_randomness(self.seed), torch.no_grad():
                        return self._validate_once(source, plan, epoch, num_parts, between), num_parts
                except torch.OutOfMemoryError as error:
                    # From its start: the module may have counted a part of the epoch already.
                    num_parts = double_parts(num_parts, max(len(indices) for indices in plan), error)
        finally:
            self.module.train()

    def _validate_once(
        self, source: EpochSource, plan: Sequence[Any], epoch: int, num_parts: int, between: Callable[[], None]
    ) -> dict[str, float]:
        with Averages().listen(self.module) as averages, contextlib.ExitStack() as stack:
            stack.callback(averages.clear)
            self.module.on_validation_start()
            self.module.on_validation_epoch_start()
            for step, whole in enumerate(plan):
                for indices in cut(whole, num_parts):
                    batch = self.steps.receive(self.fabric, source.gather(indices))
                    averages.for_batch_of(len(indices))
                    with self.fabric.autocast():
                        self.steps.validate(batch, step)
                if self.progress.due():
                    self.progress.report(
                        epoch=epoch, step=step + 1, num_steps=len(plan), phase="validation", loss=None
                    )  # fmt: skip
                between()
            self.module.on_validation_epoch_end()
            self.module.on_validation_end()
            return averages.end_epoch()
