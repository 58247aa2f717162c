"""Train a LightningModule so that a kill at any moment costs nothing but time.

The loop is explicit, on lightning.fabric: Lightning's Trainer keeps the accumulators of a running epoch, the random
states and its loaders' positions to itself, so a run resumed in the middle of an epoch is not the run that was killed.
Fabric gives what differs between machines: device, precision, gradient scaling and clipping. It never looks at SLURM
(`LightningEnvironment`), so nothing requeues a job behind the flow's back.
"""

import logging
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from lightning import LightningModule

from kdgat.base import ConfigurationError, UserError
from kdgat.stage import RunDirectory
from kdgat.stage.provenance import note_in_attempt
from kdgat.stage.signals import StopFlag, stop_signals
from kdgat.training.attributes import Attributes
from kdgat.training.averages import Averages
from kdgat.training.batch_size import settle_batches
from kdgat.training.checkpoints import Checkpoints
from kdgat.training.config import TrainingConfig
from kdgat.training.deadline import Deadline
from kdgat.training.device import PlacedFabric, describe_machine, make_fabric, products_of
from kdgat.training.epoch import Epochs, Pause
from kdgat.training.gpu_memory import memory_watched
from kdgat.training.graph_source import GraphSource
from kdgat.training.loggers import End, Loggers
from kdgat.training.optimization import Optimization, has_optimizer
from kdgat.training.profile import Profile
from kdgat.training.progress import Progress
from kdgat.training.random_state import repeatable, restore_random_state, seed_everything
from kdgat.training.ranks import FitOver, Ranks, Seat, is_seated, num_ranks, open_ranks, seat_at
from kdgat.training.running_time import RunningTime
from kdgat.training.snapshot import Snapshot, warn_of_other_ranks, weights_digest
from kdgat.training.source import EpochSource
from kdgat.training.state import FitResult, FitState
from kdgat.training.steps import Steps

logger = logging.getLogger(__name__)

GO_ON, SAVE, PAUSE = range(3)  # what follows a step: what the most urgent rank wishes


def fit(
    module: LightningModule,
    train: EpochSource,
    validation: EpochSource | None,
    config: TrainingConfig,
    directory: RunDirectory,
    seed: int,
    deadline: Deadline | None = None,
    name: str = "",
) -> FitResult:
    """Train `module`, or resume from the newest checkpoint, until done, stopped early, out of time or asked to leave.

    Args:
        module: its `training_step(batch)` returns the loss; what it logs becomes epoch means weighted by graphs.
        train: batches to learn from, planned anew each epoch.
        validation: batches to select by; None if `config.monitor` is a training metric.
        config: settings; all that influence the result must be the same when resuming.
        directory: checkpoints, metrics.jsonl and progress.json go there.
        seed: of everything random in training; build the module under `seed_everything(seed)` too.
        deadline: end of the job; None to ask SLURM.
        name: tells several fits in one run directory apart.

    Raises:
        FloatingPointError: if a loss or the monitored metric is not finite.
        ConfigurationError: if `config.monitor` is not among the metrics, no batch fits `config.memory_budget`, or a
            package that `config.loggers` needs is not installed.
        CheckpointError: if the checkpoint belongs to another configuration or seed, or none of those there is good.
        EnvironmentFaultError: if the GPU that the job was given cannot be used, or `config.deterministic` is true and
            the checkpoint is from another kind of machine.
    """
    config.require_loggers()
    seat = seat_at(name)
    if seat is not None and seat.rank > 0:
        deadline = Deadline()  # rank 0 looks at the clock
    if deadline is None:
        deadline = Deadline.from_environment(config.checkpoint_margin_s)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_signals())
        fabric = make_fabric(config)
        on_cpu = fabric.device.type == "cpu"
        deterministic = on_cpu if config.deterministic is None else config.deterministic
        stack.enter_context(repeatable(config.num_threads, deterministic, strict=config.deterministic is True))
        stack.enter_context(products_of(config.precision))
        is_first = seat is None or seat.rank == 0
        stack.enter_context(memory_watched(config, directory, name, fabric.device, is_first=is_first))
        machine = describe_machine(fabric.device)
        note_in_attempt(directory.provenance_path, trains_on=machine)
        work = directory.work
        work.device, work.precision, work.threads = machine["device"], config.precision, config.num_threads
        work.parameters = max(work.parameters, sum(parameter.numel() for parameter in module.parameters()))
        one = _Fit(fabric, module, train, validation, config, directory, seed, deadline, name, stop, machine, seat)
        stack.enter_context(one.running_time.watched())
        result = one.run()
    if one.rank > 0:
        raise FitOver
    return result


class _Fit:
    """One call of `fit`: objects, state and loops."""

    def __init__(
        self,
        fabric: PlacedFabric,
        module: LightningModule,
        train: EpochSource,
        validation: EpochSource | None,
        config: TrainingConfig,
        directory: RunDirectory,
        seed: int,
        deadline: Deadline,
        name: str,
        stop: StopFlag,
        machine: Mapping[str, str],
        seat: Seat | None,
    ) -> None:
        self.fabric, self.module, self.train, self.validation = fabric, module, train, validation
        self.config, self.directory, self.seed, self.deadline = config, directory, seed, deadline
        self.name, self.stop = name, stop
        self.rank, self.num_ranks = (0, num_ranks(config, fabric.device)) if seat is None else (seat.rank, seat.count)
        self.ranks = Ranks()  # until the others are there
        self.running_time = RunningTime()
        self.checkpoints = Checkpoints(directory, name)
        self.progress = Progress(
            directory, name, config.max_epochs, deadline, self.running_time, may_end_early=config.patience is not None
        )
        is_profiled = config.profile and self.rank == 0
        self.profile = Profile(directory, name, config.profile_steps if is_profiled else 0, fabric.device)
        self.loggers = Loggers(
            () if is_seated() else config.loggers, directory, name,
            spare_s=lambda: deadline.spare_s, is_stopped=lambda: bool(stop),
        )  # fmt: skip
        self.state = FitState(num_parts=config.accumulate)
        self.averages = Averages()
        steps = Steps(module)  # refuses what cannot be trained
        # fabric.setup moves the parameters, so the optimizer is made after the module has its device.
        fabric.to_device(module)
        module.trainer = fabric  # type: ignore[assignment] # else its current_epoch stays 0
        for source in (train, validation):
            if isinstance(source, GraphSource):
                source.place_on(fabric.device)
        if has_optimizer(module):
            fabric.max_epochs, fabric.num_training_batches = config.max_epochs, len(train.plan(0))
        self.optimization = Optimization(module, config, fabric)
        _, optimizer = fabric.setup(module, self.optimization.optimizer)
        self.snapshot = Snapshot(
            fabric, module, self.optimization, Attributes(module), self.averages, train, validation, deadline, config,
            seed, machine,
        )  # fmt: skip
        self.epochs = Epochs(
            fabric, module, steps, self.optimization, optimizer, train, validation, config, seed, self.averages,
            self.progress, self.profile, directory.work,
        )  # fmt: skip
        self.step_began = 0.0
        self.random_state: dict[str, Any] | None = None  # to restore before the next step, after a resume
        self.resumed: dict[str, Any] | None = None  # what the other ranks have to know
        self.checkpoint_path = ""
        self.last_checkpoint_time = time.monotonic()
        self.checkpointed = (0, 0)  # epoch and step of the newest checkpoint; a fresh start needs none

    def run(self) -> FitResult:
        """Resume or start, then train epoch by epoch."""
        # Before what a checkpoint holds is put in place, so that it wins over what they set.
        self.module.on_fit_start()
        self.module.on_train_start()
        self.snapshot.attributes.state_dict()  # sees what they have changed
        if self.rank == 0:
            self._resume()
        end: End = "failed"
        try:
            if not self.state.stop_reason:
                if self.deadline.too_late_to_begin():
                    needed_s = self.deadline.margin_s + self.deadline.step_s
                    raise Pause(f"refused to train: {self.deadline.describe()}", needed_s)
                if self.rank == 0:
                    self._settle_batches()
                self.loggers.follow()
                with open_ranks(
                    self.directory, self.name, self.num_ranks, self.fabric.device, self._go_on_or_pause
                ) as ranks:
                    self._train(ranks)
            end = "success"
            if self.stop:
                # Trained to the end, but the stage was asked to leave before it does more.
                return self._result(paused=True, reason=f"{self.stop.signal_name} after the last epoch")
        except Pause as pause:
            end = "paused"
            logger.info("paused at epoch %d step %d: %s", self.state.epoch, self.state.step, pause)
            return self._result(paused=True, reason=str(pause), needed_s=pause.needed_s)
        finally:
            self.profile.close()
            self.progress.end(is_done=bool(self.state.stop_reason))
            self.loggers.close(len(self.state.history), end)
        self.module.on_train_end()
        self.module.on_fit_end()
        self._restore_random_state()  # what follows the fit draws the same numbers after a resume
        self.module.load_state_dict(self.state.best_weights)
        self.module.eval()
        return self._result(paused=False, reason=self.state.stop_reason)

    def _settle_batches(self) -> None:
        """Let the sources plan by the limit that a search finds, or found for this fit before."""
        if self.config.batch_size_mode != "fixed":
            self.state.batches = settle_batches(
                self.state.batches, self.fabric, self.module, self.train, self.validation, self.config,
                self.checkpoints.path, self.directory, self.seed, self._go_on_or_pause,
            )  # fmt: skip
            self.directory.work.batch_size[self.name] = self.state.batches["size"]

    def _train(self, ranks: Ranks) -> None:
        """Train epoch by epoch; save before a pause."""
        self.ranks = ranks
        if ranks.count > 1:
            begun = self.resumed or self.snapshot.take(self.state, [self.averages.state_dict()] * ranks.count)
            self.resumed, begun = None, ranks.first(begun)
            note_in_attempt(self.directory.provenance_path, num_ranks=ranks.count)
            self.directory.work.num_ranks = ranks.count
            if ranks.rank > 0:
                self._take_over(begun, "what rank 0 has begun with")
                self._settle_batches()  # as rank 0 has
        self.epochs.share(ranks, self.state)
        try:
            while not self.state.stop_reason:
                self.epochs.train(self.state, self._begin_steps, self._between_steps)
                self.snapshot.hold()  # a validation that is left begins anew
                validated = self.epochs.validate(self.state, self._go_on_or_pause)
                self.snapshot.release()
                with self.averages.listen(self.module):
                    self.module.on_train_epoch_end()
                metrics = self._training_metrics() | validated
                ranks.check_same(lambda: weights_digest(self.module), "the weights")
                self._end_epoch(metrics)
        except Pause:
            self._write_checkpoint()
            raise

    def _training_metrics(self) -> dict[str, float]:
        """Return what all ranks have counted."""
        if self.ranks.count == 1:
            return self.averages.end_epoch()
        if self.averages.metrics:
            raise UserError(
                f"{', '.join(self.averages.metrics)}: a metric object of training counts one rank's graphs alone: log "
                "numbers, or set training.num_ranks=1"
            )
        return Averages.merged(self.ranks.gather(self.averages.state_dict())).means()

    def _begin_steps(self) -> None:
        self._restore_random_state()
        self.step_began = self.running_time()

    def _between_steps(self) -> None:
        self.deadline.observe_step(self.running_time() - self.step_began)
        self._save_or_pause()
        self.step_began = self.running_time()

    def _end_epoch(self, metrics: dict[str, float]) -> None:
        """Write the row of the epoch, keep the best weights, move the curriculum, decide whether to continue."""
        state, config = self.state, self.config
        if config.monitor not in metrics:
            raise ConfigurationError(
                f"training.monitor={config.monitor!r} is no metric of this model: "
                f"choose one of {', '.join(sorted(metrics))}"
            )
        value = metrics[config.monitor]
        if not math.isfinite(value):
            raise FloatingPointError(f"{config.monitor} is {value} in epoch {state.epoch} (step {state.global_step})")
        is_best = state.take_best(self.module, value, config.mode, config.monitor_tolerance)
        if is_best:
            state.best_attributes = self.snapshot.attributes.changed_values()
        row = {"epoch": state.epoch, "step": state.global_step, "learning_rate": self.optimization.rate, **metrics}
        row |= {**self.train.describe(state.epoch), "is_best": is_best}
        state.history.append(row)
        self.directory.append_metrics(self._named(row))
        self.train.on_epoch_end(state.epoch, metrics)
        if self.validation is not None and self.validation is not self.train:
            self.validation.on_epoch_end(state.epoch, metrics)
        text = ", ".join(f"{name} {number:.5g}" for name, number in metrics.items())
        logger.info("%sepoch %d: %s%s", f"{self.name} " if self.name else "", state.epoch, text, " (best)" * is_best)
        state.epoch, state.step, state.plan_digest = state.epoch + 1, 0, ""
        self.averages.clear()
        self.optimization.end_epoch(state.epoch, metrics)
        if state.epoch >= config.max_epochs:
            state.stop_reason = f"all {config.max_epochs} epochs done"
        elif config.patience is not None and state.epochs_without_progress >= config.patience:
            state.stop_reason = f"{config.monitor} has not improved for {config.patience} epochs"
            logger.info("stopped early: %s (training.patience)", state.stop_reason)
        if state.stop_reason or config.checkpoint_every_epoch:
            self._write_checkpoint()
        if not state.stop_reason:
            self._save_or_pause()

    def _save_or_pause(self) -> None:
        """Between two steps: leave if it is time for any rank, else write a checkpoint if one is due."""
        reason = self._reason_to_pause()
        every, interval_s = self.config.checkpoint_every_steps, self.config.checkpoint_interval_s
        by_steps = every is not None and self.state.step > 0 and self.state.global_step % every == 0
        by_time = self.rank == 0 and time.monotonic() - self.last_checkpoint_time >= interval_s
        wish = self.ranks.worst(PAUSE if reason else SAVE if by_steps or by_time else GO_ON)
        if wish == PAUSE:
            raise Pause(next(filter(None, self.ranks.gather(reason))))
        if wish == SAVE:
            self._write_checkpoint()

    def _go_on_or_pause(self) -> None:
        """Between two steps of one rank: leave if this one wants to, or cannot go on."""
        self.ranks.check()
        if reason := self._reason_to_pause():
            raise Pause(reason)

    def _reason_to_pause(self) -> str:
        """Return why this rank wants to leave; empty if it does not."""
        if self.stop:
            return f"{self.stop.signal_name} received{f' by rank {self.rank}' if self.rank else ''}"
        return self.deadline.describe() if self.deadline.reached() else ""

    def _write_checkpoint(self) -> None:
        """Save everything that the next step depends on, unless that is saved already; rank 0 writes it."""
        state = self.state
        if self.checkpointed == (state.epoch, state.step):
            return
        self.epochs.losses.check()  # never keep a state that is beyond repair
        started = self.running_time()
        saved = self.snapshot.take(state, self.ranks.gather(self.averages.state_dict()))
        if self.rank == 0:
            path = self.checkpoints.write(saved)
            self.checkpoint_path = str(path.relative_to(self.directory.path))
        self.deadline.observe_checkpoint(self.running_time() - started)
        self.last_checkpoint_time = time.monotonic()
        self.checkpointed = (state.epoch, state.step)

    def _resume(self) -> None:
        """Load the newest checkpoint, or start from the beginning if there is none."""
        found = self.checkpoints.load_newest()
        if found is None:
            seed_everything(self.seed)
        else:
            path, saved = found
            self._take_over(saved, path.name)
            self.checkpoint_path = str(path.relative_to(self.directory.path))
            logger.info("going on from %s: epoch %d step %d", path.name, self.state.epoch, self.state.step)
            # Epochs are counted from 1 where people see them.
            self.progress.resumed = f"{self.name} epoch {self.state.epoch + 1} step {self.state.step}".lstrip()
            if not self.state.stop_reason:
                warn_of_other_ranks(saved, self.num_ranks, path.name)
                self.resumed = saved if self.num_ranks > 1 else None
        # Rows that a killed process wrote past its last checkpoint are written again when that epoch ends again.
        others = [row for row in self.directory.read_metrics() if row.get("fit", "") != self.name]
        self.directory.replace_metrics([*others, *(self._named(row) for row in self.state.history)])

    def _take_over(self, saved: dict[str, Any], name: str) -> None:
        """Stand where a checkpoint, or rank 0, stands."""
        self.state = self.snapshot.apply(saved, name, self.rank, self.num_ranks)
        self.random_state = saved["random"]
        self.checkpointed = (self.state.epoch, self.state.step)

    def _restore_random_state(self) -> None:
        """Once after a resume: continue with the random numbers of the checkpoint."""
        if self.random_state is not None:
            restore_random_state(self.random_state)
            self.random_state = None

    def _named(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"fit": self.name, **row} if self.name else dict(row)

    def _result(self, *, paused: bool, reason: str, needed_s: float | None = None) -> FitResult:
        state = self.state
        best = state.history[state.best_epoch] if state.best_epoch >= 0 else {}
        return FitResult(
            paused=paused,
            reason=reason,
            checkpoint=self.checkpoint_path,
            best_epoch=state.best_epoch,
            best_metric=best.get(self.config.monitor, state.best_metric),
            epochs=state.epoch,
            metrics={name: float(value) for name, value in best.items()},
            attributes=state.best_attributes,
            history=state.history,
            needed_s=needed_s,
        )
