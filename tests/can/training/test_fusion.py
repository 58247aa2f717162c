from pathlib import Path

import numpy as np
import pytest
import torch

from kdgat.base import UserError
from kdgat.can.models.fusion import (
    AUTOENCODER_COLUMN,
    GAT_COLUMN,
    STATE_COLUMNS,
    Fusion,
    exploration,
)
from kdgat.can.models.names import FUSION_KINDS
from kdgat.can.sections import FusionConfig
from kdgat.can.training.fusion import (
    DqnObjective,
    MlpObjective,
    fit_weighted_average,
    fuse,
    load_fusion,
    require_both_classes,
    state_source,
)
from kdgat.can.training.fusion_split import learned_blocks
from kdgat.stage import RunDirectory
from kdgat.training import TrainingConfig, seed_everything
from kdgat.training.fit import fit


def make_states(num_windows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """States whose attention logit is right and whose autoencoder score is noise."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(num_windows) < 0.4).astype(np.int8)
    states = generator.normal(size=(num_windows, len(STATE_COLUMNS))).astype(np.float32)
    states[:, GAT_COLUMN] = 4.0 * labels - 2.0 + 0.3 * states[:, GAT_COLUMN]
    states[:, AUTOENCODER_COLUMN] *= 4.0
    return states, labels


def make_fusion(dqn_hidden: tuple[int, ...] = (32,)) -> Fusion:
    torch.manual_seed(0)
    return Fusion((16, 8), dqn_hidden, 21)


def train(tmp_path: Path, name: str, fusion: Fusion, epochs: int = 15) -> None:
    states, labels = make_states(600)
    objective = MlpObjective(fusion) if name == "mlp" else DqnObjective(fusion, FusionConfig())
    config = TrainingConfig(max_epochs=epochs, learning_rate=5e-3, accelerator="cpu")
    seed_everything(0)
    sources = [state_source(states[rows], labels[rows], 64, 0, shuffle=True) for rows in (slice(400), slice(400, 600))]
    assert not fit(objective, sources[0], sources[1], config, RunDirectory(tmp_path), 0, name=name).paused


def accuracy(fusion: Fusion, kind: str) -> float:
    states, labels = make_states(500, seed=9)
    probability = torch.from_numpy(fuse(fusion.eval(), states, kind)).sigmoid()  # type: ignore[arg-type]
    return float((fusion.is_alarm(probability).numpy() == (labels == 1)).mean())


def test_the_reward_is_that_of_the_decision_which_is_used() -> None:
    fusion = make_fusion()
    states, labels = (torch.from_numpy(array) for array in make_states(50))
    rewards = DqnObjective(fusion, FusionConfig(margin_weight=0.0)).rewards(states, labels.float())
    action = fusion.action_values(states).argmax(dim=1)
    probability = fusion(states, "dqn").sigmoid()
    is_right = fusion.is_alarm(probability) == (labels == 1)
    chosen = rewards[torch.arange(50), action]
    assert torch.equal(chosen > 0, is_right)


def test_the_first_and_the_last_action_trust_one_member_alone() -> None:
    fusion = make_fusion()
    states = torch.from_numpy(make_states(20)[0])
    autoencoder, attention = fusion.member_logits(states)
    probabilities = fusion.fused_probabilities(states)
    torch.testing.assert_close(probabilities[:, 0], autoencoder.sigmoid())
    torch.testing.assert_close(probabilities[:, -1], attention.sigmoid())
    assert probabilities.shape == (20, 21)


def test_the_q_network_learns_whom_to_trust(tmp_path: Path) -> None:
    fusion = make_fusion()
    before = accuracy(fusion, "dqn")
    train(tmp_path, "dqn", fusion)
    assert accuracy(fusion, "dqn") > max(before, 0.97)


def test_the_mlp_learns_whom_to_trust(tmp_path: Path) -> None:
    fusion = make_fusion()
    train(tmp_path, "mlp", fusion)
    assert accuracy(fusion, "mlp") > 0.97


def test_the_weighted_average_learns_whom_to_trust() -> None:
    fusion = make_fusion()
    states, labels = make_states(400)
    fit_weighted_average(fusion, torch.from_numpy(states), torch.from_numpy(labels.astype(np.float32)))
    assert fusion.weighted_average.balance.sigmoid() > 0.9
    assert accuracy(fusion, "weighted_average") > 0.97


def test_training_one_fusion_leaves_the_others_alone(tmp_path: Path) -> None:
    fusion = make_fusion()
    before = {name: tensor.clone() for name, tensor in fusion.state_dict().items()}
    train(tmp_path, "mlp", fusion, epochs=1)
    changed = {
        name.split(".")[0] for name, tensor in fusion.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert changed == {"mlp"}


def test_exploration_falls_from_start_to_end() -> None:
    epsilons = [exploration(torch.tensor(step), 1.0, 0.05, 100.0).item() for step in (0, 100, 10_000)]
    assert epsilons[0] == pytest.approx(1.0)
    assert epsilons[1] == pytest.approx(0.05 + 0.95 / np.e, abs=1e-4)
    assert epsilons[2] == pytest.approx(0.05)


def test_published_widths_of_the_q_network() -> None:
    fusion = make_fusion((576, 576, 576))
    assert [layer.out_features for layer in fusion.dqn if hasattr(layer, "out_features")] == [576, 576, 576, 21]


def test_other_weights_are_not_taken_for_fusions(tmp_path: Path) -> None:
    from kdgat.training.weights import save_weights

    path = save_weights(RunDirectory(tmp_path), torch.nn.Linear(2, 2), {"kind": "attention"})
    with pytest.raises(UserError, match="expected 'fusion'"):
        load_fusion(path)
    assert FUSION_KINDS[0] == "weighted_average"  # the simplest, which wins ties


def test_fusions_learn_from_a_part_of_few_windows_too() -> None:
    for num_windows in (2, 40, 64, 10_000):
        learns = learned_blocks(num_windows, 64)
        assert 0.4 <= learns.mean() <= 0.7
        assert len(np.flatnonzero(np.diff(learns.astype(int)))) >= min(num_windows, 8) - 1  # in several places
    assert learned_blocks(10_000, 64)[:129].sum() == 65  # blocks as long as asked for, where there is enough


def test_nothing_to_learn_a_fusion_from_is_an_error_that_names_the_ways_out() -> None:
    require_both_classes(np.array([0, 1], np.int8), "validation")
    with pytest.raises(UserError, match=r"3 benign and 0 attacked windows.*fit_on=train.*stages="):
        require_both_classes(np.zeros(3, np.int8), "validation")
