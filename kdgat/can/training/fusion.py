"""The stage `fusion`: train the three fusions on what the two trained models say, and choose one on windows kept apart.

The deep Q network of the published system is kept with gamma 0: a window's score does not change the next window, so
the problem is a contextual bandit with 21 mixing weights as actions. Its reward, its validation and its use share one
decision, `Fusion.is_alarm`; batches are independent states, so there is nothing that a replay buffer would decorrelate.
"""

import io
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from kdgat.base import UserError, validate_config, write_bytes_atomically
from kdgat.can.data.pool import PooledStores, open_pool
from kdgat.can.kinds import FusionStageConfig
from kdgat.can.models.convolution import count_parameters
from kdgat.can.models.fusion import AUTOENCODER_COLUMN, GAT_COLUMN, Fusion, exploration
from kdgat.can.models.names import FUSION_KINDS, FusionKind
from kdgat.can.models.scaling import fit_scaling
from kdgat.can.models.scoring import (
    check_features,
    load_attention,
    load_autoencoder,
    score_network,
    window_states,
)
from kdgat.can.models.standardise import column_statistics
from kdgat.can.sections import FusionConfig
from kdgat.can.training.fusion_split import choose_kind, learned_recordings, learned_windows, recordings_of
from kdgat.can.training.objective import ConfusionCounts
from kdgat.can.training.start import read_start
from kdgat.canbus.features import INJECTED, INJECTED_VALIDATION, TRAIN, VALIDATION
from kdgat.stage import Finished, Outcome, RunDirectory, StageSpec, input_path
from kdgat.stage.directory import phase_progress
from kdgat.training import BatchLimit, GraphSizes, GraphSource, load_weights, seed_everything
from kdgat.training.fit import fit
from kdgat.training.weights import save_weights

logger = logging.getLogger(__name__)

KIND = "fusion"
STATES_FILE = "states.npz"
PUBLISHED_DQN = {"large": (576, 576, 576), "small": (160, 160)}
MAX_MIXING_STEPS = 200


class _States(NamedTuple):
    """What is known of windows, [W, S] and [W]; so little that every batch is sent."""

    states: Tensor
    labels: Tensor

    def gather(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(indices)
        return self.states[rows], self.labels[rows]

    def place_on(self, device: torch.device) -> None:
        pass

    def placed(self) -> None:
        pass


def state_source(
    states: NDArray[np.float32], labels: NDArray[np.int8], batch_size: int, seed: int, shuffle: bool
) -> GraphSource:
    """Return batches (states [B, S], labels [B]) of windows whose states are known."""
    store = _States(torch.from_numpy(states), torch.from_numpy(labels.astype(np.float32)))
    sizes = GraphSizes(np.ones(len(labels), np.int64), np.zeros(len(labels), np.int64))
    return GraphSource(store, sizes, BatchLimit("graphs", batch_size), seed, shuffle)


class MlpObjective(LightningModule):
    """Cross entropy of the MLP's logit."""

    def __init__(self, fusion: Fusion) -> None:
        super().__init__()
        self.fusion = fusion.requires_grad_(False)
        fusion.mlp.requires_grad_(True)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a batch of states."""
        states, labels = batch
        loss = functional.binary_cross_entropy_with_logits(self.fusion(states, "mlp"), labels)
        self.log("train_loss", loss.detach())
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Log the loss on windows kept apart."""
        states, labels = batch
        self.log("validation_loss", functional.binary_cross_entropy_with_logits(self.fusion(states, "mlp"), labels))


class DqnObjective(LightningModule):
    """Learn the reward of mixing weights by trying one per window: epsilon-greedy, gamma 0, all windows at once."""

    steps: Tensor

    def __init__(self, fusion: Fusion, config: FusionConfig) -> None:
        super().__init__()
        self.fusion = fusion.requires_grad_(False)
        fusion.dqn.requires_grad_(True)
        self.config = config
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))  # in the checkpoint: epsilon follows it

    def rewards(self, states: Tensor, labels: Tensor) -> Tensor:
        """Return the reward [G, A] of each action: +1 or -1 for the decision, and the margin of its probability."""
        fusion = self.fusion
        probability = fusion.fused_probabilities(states)
        is_right = fusion.is_alarm(probability) == (labels > 0.5).unsqueeze(1)
        of_label = torch.where((labels > 0.5).unsqueeze(1), probability, 1.0 - probability)
        return torch.where(is_right, 1.0, -1.0) + self.config.margin_weight * (2.0 * of_label - 1.0)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the Huber loss between the value of the tried action and its reward."""
        states, labels = batch
        config = self.config
        values = self.fusion.action_values(states)
        with torch.no_grad():
            epsilon = exploration(self.steps, config.epsilon_start, config.epsilon_end, config.epsilon_decay_steps)
            explores = torch.rand(len(labels), device=states.device) < epsilon
            tried = torch.randint(values.shape[1], (len(labels),), device=states.device)
            action = torch.where(explores, tried, values.argmax(dim=1)).unsqueeze(1)
            reward = self.rewards(states, labels).gather(1, action).squeeze(1)
            self.steps += 1
        loss = functional.smooth_l1_loss(values.gather(1, action).squeeze(1), reward)
        self.log("train_loss", loss.detach())
        self.log("train_reward", reward.mean())
        self.log("epsilon", epsilon)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Log the reward that the greedy policy misses, by the decision that is used later."""
        states, labels = batch
        rewards = self.rewards(states, labels)
        greedy = rewards.gather(1, self.fusion.action_values(states).argmax(dim=1, keepdim=True)).squeeze(1)
        self.log("validation_loss", (rewards.amax(dim=1) - greedy).mean())
        self.log("validation_reward", greedy.mean())


def fit_weighted_average(fusion: Fusion, states: Tensor, labels: Tensor) -> None:
    """Fit the three parameters of the weighted average by L-BFGS on all windows: milliseconds, nothing to resume."""
    autoencoder, attention = fusion.member_logits(states)
    model = fusion.weighted_average
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=MAX_MIXING_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(model(autoencoder, attention), labels)
        # A weak pull to scale 1 and no bias: separable windows would send the scale to infinity.
        loss = loss + 1e-3 * (model.log_scale.square() + model.bias.square())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]


def load_fusion(path: Path) -> tuple[Fusion, dict[str, Any]]:
    """Read trained fusions and their description (`default` names the chosen one)."""
    weights, description = load_weights(path)
    if description.get("kind") != KIND:
        raise UserError(f"{path} holds weights of kind {description.get('kind')!r}, expected {KIND!r}")
    fusion = Fusion(tuple(description["hidden"]), tuple(description["dqn_hidden"]), description["num_actions"])
    fusion.load_state_dict(weights)
    return fusion.eval(), description


def fuse(fusion: Fusion, states: NDArray[np.float32], kind: FusionKind) -> NDArray[np.float32]:
    """Return the fused logits [G] of states [G, S]."""
    with torch.inference_mode():
        return fusion(torch.from_numpy(states), kind).numpy()


def run_fusion(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Train all three fusions and hand them on with the name of the best."""
    config = validate_config(FusionStageConfig, spec.config)
    learn, choose, learned = _learn_and_choose(spec, directory, config.fusion)
    require_both_classes(learn[1], config.fusion.fit_on)
    seed_everything(spec.seed)
    dqn_hidden = config.fusion.dqn_hidden or PUBLISHED_DQN.get(spec.scale, PUBLISHED_DQN["large"])
    fusion = Fusion(config.fusion.hidden, dqn_hidden, config.fusion.num_actions)
    shape = {
        "hidden": list(config.fusion.hidden),
        "dqn_hidden": list(dqn_hidden),
        "num_actions": config.fusion.num_actions,
    }
    start = read_start(spec, directory, KIND, shape)
    if start is not None:
        # Only what is learned by steps: the members are other ones than before, so what puts their outputs on one
        # scale, and the average that is fitted in closed form, would be wrong.
        for name, network in (("mlp", fusion.mlp), ("dqn", fusion.dqn)):
            own = {key.removeprefix(f"{name}."): value for key, value in start[0].items() if key.startswith(f"{name}.")}
            network.load_state_dict(own)
    for row, column in enumerate((AUTOENCODER_COLUMN, GAT_COLUMN)):  # on one scale: logits of a window's probability
        scaling = fit_scaling(learn[0][:, column], learn[1])
        fusion.scaling[row] = torch.tensor([1.0 / scaling.temperature, scaling.bias])
    fusion.standardise.set_statistics(*column_statistics(lambda: [learn[0]]))
    fit_weighted_average(fusion, torch.from_numpy(learn[0]), torch.from_numpy(learn[1].astype(np.float32)))

    # Not in mixed precision: the networks are too small to gain by it, and rewards differ by little.
    training, seed = config.training.model_copy(update={"precision": "32-true"}), spec.seed
    epochs: dict[str, float] = {}
    for name in ("mlp", "dqn"):  # each objective freezes what it does not train, so it is made when its turn comes
        module = MlpObjective(fusion) if name == "mlp" else DqnObjective(fusion, config.fusion)
        train = state_source(*learn, training.batch_size, seed, shuffle=True)
        validation = state_source(*choose, training.batch_size, seed, shuffle=False)
        result = fit(module, train, validation, training, directory, seed, name=name)
        if result.paused:
            return result.as_paused()
        epochs[f"{name}_best_epoch"] = float(result.best_epoch)
    fusion = fusion.cpu().eval()

    rates = {kind: _rates(fusion, *choose, kind) for kind in FUSION_KINDS}
    default = choose_kind(rates, choose[1])
    counts = {kind: count_parameters(getattr(fusion, kind).requires_grad_(True)) for kind in FUSION_KINDS}
    logger.info("fusion %s: F1 %s; chosen: %s", spec.scale, {kind: rates[kind]["f1"] for kind in FUSION_KINDS}, default)
    logger.info("fusion %s: parameters %s", spec.scale, counts)
    description = {
        "kind": KIND,
        "default": default,
        # Fusions are useless with other members: the weights they were trained on are known by content.
        "members": {name: spec.inputs[name].sha256 for name in ("autoencoder", "gat")},
        **learned,
        **shape,
    }
    metadata = {"stage": spec.stage, "seed": seed, "monitor": "validation_f1", "rates": rates, "num_parameters": counts}
    save_weights(directory, fusion, description, metadata)
    metrics = {f"{kind}_validation_{name}": value for kind in FUSION_KINDS for name, value in rates[kind].items()}
    metrics |= {f"{kind}_num_parameters": float(count) for kind, count in counts.items()}
    artifacts = {"weights": directory.weights_path.name, "model": directory.model_config_path.name}
    return Finished(metrics={**metrics, **epochs, "best_kind": float(FUSION_KINDS.index(default))}, artifacts=artifacts)


States = tuple[NDArray[np.float32], NDArray[np.int8]]


def _learn_and_choose(
    spec: StageSpec, directory: RunDirectory, config: FusionConfig
) -> tuple[States, States, dict[str, Any]]:
    """Return (states, labels) to learn from and to choose by, and which windows the former are.

    The states are computed once and kept in a file.
    """
    path = directory.path / STATES_FILE
    if not path.is_file():
        pools = {"validation": open_pool(spec, directory, VALIDATION, INJECTED_VALIDATION)}
        if config.fit_on == "train":
            pools["train"] = open_pool(spec, directory, TRAIN, INJECTED)
        arrays: dict[str, NDArray[Any]] = {}
        for name, pool in pools.items():
            arrays[f"{name}_states"] = member_states(
                input_path(spec, directory, "autoencoder"), input_path(spec, directory, "gat"), pool, directory
            )
            arrays[f"{name}_labels"] = pool.labels
            arrays[f"{name}_recording"] = recordings_of(pool)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        write_bytes_atomically(path, buffer.getvalue())
    with np.load(path) as arrays:
        states, labels = arrays["validation_states"], arrays["validation_labels"]
        if config.fit_on == "train":
            learned: dict[str, Any] = {"learned_recordings": None, "learned_block": None}
            return (arrays["train_states"], arrays["train_labels"]), (states, labels), learned
        recording = arrays["validation_recording"]
    numbers = learned_recordings(recording, labels)
    if numbers is None:
        logger.info("fusion %s: too few recordings to split by: blocks of windows learn and choose in turn", spec.scale)
    learned = {"learned_recordings": numbers, "learned_block": config.block if numbers is None else None}
    learns = learned_windows(learned, recording)
    return (states[learns], labels[learns]), (states[~learns], labels[~learns]), learned


def require_both_classes(labels: NDArray[np.int8], fit_on: str) -> None:
    """Raise UserError where there is no attack, or nothing else, to learn from."""
    num_attacks = int(np.count_nonzero(labels))
    if not 0 < num_attacks < len(labels):
        raise UserError(
            f"fusion.fit_on={fit_on} gives {len(labels) - num_attacks} benign and {num_attacks} attacked windows to "
            "learn from, and both are needed: give longer recordings, a larger data.validation_fraction, a smaller "
            "data.gap, -O fusion.fit_on=train, or leave the fusions out by -O 'stages=[normal, curriculum, evaluation]'"
        )


def member_states(
    autoencoder_path: Path, gat_path: Path, pool: PooledStores, directory: RunDirectory
) -> NDArray[np.float32]:
    """Return the state [G, S] of every window of a pool."""
    autoencoder, autoencoder_description = load_autoencoder(autoencoder_path)
    attention, attention_description = load_attention(gat_path)
    check_features(autoencoder_description, pool, str(autoencoder_path))
    check_features(attention_description, pool, str(gat_path))
    return window_states(
        [
            score_network(autoencoder, pool, progress=phase_progress(directory, "autoencoder states")),
            score_network(attention, pool, progress=phase_progress(directory, "attention states")),
        ]
    )


def _rates(fusion: Fusion, states: NDArray[np.float32], labels: NDArray[np.int8], kind: FusionKind) -> dict[str, float]:
    """Return precision, recall, F1 and false alarm rate by the fusion's own decision."""
    probability = torch.from_numpy(fuse(fusion, states, kind)).sigmoid()
    counts = ConfusionCounts()
    counts.add(fusion.is_alarm(probability).float() - 0.5, torch.from_numpy(labels))
    return counts.rates()
