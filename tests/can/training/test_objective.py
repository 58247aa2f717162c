import numpy as np
import pytest
import torch
from torch.nn import functional

from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.sections import AttentionConfig, AutoencoderConfig, DetectionLossConfig, DistillationConfig
from kdgat.can.training.objective import (
    AutoencoderObjective,
    ConfusionCounts,
    DetectionObjective,
    smoothed_cross_entropy,
)
from kdgat.graphs import TensorColumns
from kdgat.graphs.padding import Capacity, StaticGather
from tests.canbus.features.planted_graphs import NUM_EDGE_FEATURES, NUM_NODE_FEATURES, planted_columns


class Recorder(dict):
    """Receive what a module logs, as `fit` does."""

    def __call__(self, name: str, value: object, **_: object) -> None:
        self[name] = float(torch.as_tensor(value).detach())


def batch_of(num_graphs: int = 12):
    return TensorColumns.from_columns(planted_columns(num_graphs)).gather(np.arange(num_graphs))


def detector(**options: object) -> GraphAttentionNetwork:
    torch.manual_seed(0)
    config = AttentionConfig(hidden=4, heads=2, layers=1, dropout=0.0)
    return GraphAttentionNetwork(config, NUM_NODE_FEATURES, NUM_EDGE_FEATURES)


def objective(**loss: float) -> DetectionObjective:
    module = DetectionObjective(detector(), DetectionLossConfig(**loss))
    module.__dict__["log"] = Recorder()
    return module


def test_the_loss_is_window_plus_weighted_node_cross_entropy() -> None:
    module, batch = objective(node_weight=0.5), batch_of()
    output = module.model(batch)
    window = functional.binary_cross_entropy_with_logits(output.window_logit, batch.y.float())
    node = functional.binary_cross_entropy_with_logits(output.node_logit, batch.node_y.float())
    torch.testing.assert_close(module.training_step(batch), window + 0.5 * node)


def test_without_node_weight_the_node_head_is_not_trained() -> None:
    module = objective(node_weight=0.0)
    module.model.config  # noqa: B018
    module.training_step(batch_of()).backward()
    # The window head still reads the node logits; only the labels of nodes are out of the game.
    other = batch_of()
    other.node_y = 1 - other.node_y
    torch.testing.assert_close(module.training_step(other), module.training_step(batch_of()))


def test_smoothing_and_weights_of_the_cross_entropy() -> None:
    logit, label = torch.tensor([2.0, -1.0]), torch.tensor([1, 0])
    target, weight = torch.tensor([0.9, 0.1]), torch.tensor([3.0, 1.0])
    expected = functional.binary_cross_entropy_with_logits(logit, target, weight=weight)
    torch.testing.assert_close(smoothed_cross_entropy(logit, label, 3.0, 0.1), expected)


def test_validation_rates_are_those_of_the_whole_split() -> None:
    counts = ConfusionCounts()
    counts.add(torch.tensor([1.0, 1.0, -1.0]), torch.tensor([1, 0, 1]))
    counts.add(torch.tensor([-1.0, 2.0]), torch.tensor([0, 1]))
    rates = counts.rates()
    assert rates["precision"] == pytest.approx(2 / 3)
    assert rates["recall"] == pytest.approx(2 / 3)
    assert rates["f1"] == pytest.approx(2 / 3)
    assert rates["false_alarm_rate"] == pytest.approx(1 / 2)


def test_each_validation_starts_counting_anew() -> None:
    module, batch = objective(), batch_of()
    for _ in range(2):
        module.on_validation_epoch_start()
        module.validation_step(batch)
        module.on_validation_epoch_end()
    assert sum(module._validation._counts.tolist()) == 12
    assert {"validation_loss", "validation_f1", "validation_false_alarm_rate"} <= set(module.__dict__["log"])


def test_a_distilled_detector_needs_no_labels_at_weight_one() -> None:
    module = DetectionObjective(detector(), DetectionLossConfig(), DistillationConfig(weight=1.0))
    module.__dict__["log"] = Recorder()
    batch = batch_of()
    output = module.model(batch)
    batch.teacher_window_logit, batch.teacher_node_logit = output.window_logit.detach(), output.node_logit.detach()
    loss = module.training_step(batch)
    assert loss.item() == pytest.approx(0.0, abs=1e-6)  # it agrees with its teacher already
    loss.backward()
    assert all(p.grad.abs().max() < 1e-5 for p in module.model.parameters() if p.grad is not None)


def test_the_projection_of_a_distilled_autoencoder_is_trained_with_it() -> None:
    torch.manual_seed(0)
    model = GraphAutoencoder(AutoencoderConfig(hidden_dims=(8, 4, 2), heads=1), NUM_NODE_FEATURES, NUM_EDGE_FEATURES)
    module = AutoencoderObjective(model, DistillationConfig(), num_teacher_latent=5)
    module.__dict__["log"] = Recorder()
    batch = batch_of()
    batch.teacher_latent = torch.randn(batch.x.shape[0], 5)
    batch.teacher_reconstruction = torch.randn_like(batch.x)
    module.training_step(batch).backward()
    assert module.projection is not None
    assert module.projection.weight.grad.abs().sum() > 0
    assert not any("projection" in name for name in model.state_dict())


def taught(values: torch.Tensor) -> torch.Tensor:
    """Return what a teacher could say of rows, those of padding included."""
    return (3.0 * values + 1.0).cos()


@pytest.mark.parametrize("is_student", [False, True])
@pytest.mark.parametrize("kind", ["detector", "weighted detector", "autoencoder", "autoencoder of identifiers"])
def test_padding_changes_neither_loss_nor_gradient(kind: str, is_student: bool) -> None:
    distillation = DistillationConfig() if is_student else None
    module: DetectionObjective | AutoencoderObjective
    if kind.endswith("detector"):
        loss = {"positive_weight": 3.0, "node_weight": 0.5, "label_smoothing": 0.1} if kind != "detector" else {}
        module = DetectionObjective(detector(), DetectionLossConfig(**loss), distillation)
    else:
        torch.manual_seed(0)
        config = AutoencoderConfig(hidden_dims=(16, 8, 4), heads=2, id_buckets=8 if "identifiers" in kind else 0)
        model = GraphAutoencoder(config, NUM_NODE_FEATURES, NUM_EDGE_FEATURES)
        module = AutoencoderObjective(model, distillation, num_teacher_latent=5)
    module.eval()  # what is drawn depends on the number of nodes
    columns = TensorColumns.from_columns(planted_columns(20))
    indices = np.array([4, 11, 2, 19])
    padded = StaticGather(columns, Capacity.of(columns, [np.arange(9)]))
    padded.choose(indices)
    found = []
    for batch in (columns.gather(indices), padded()):
        module.zero_grad()
        batch.teacher_window_logit = taught(batch.y.float())
        batch.teacher_node_logit = taught(batch.node_y.float())
        batch.teacher_latent, batch.teacher_reconstruction = taught(batch.x[:, :5]), taught(batch.x)
        logged = Recorder()
        module.__dict__["log"] = logged
        module.training_step(batch).backward()
        gradient = torch.cat([one.grad.flatten() for one in module.parameters() if one.grad is not None])
        found.append((logged, gradient))
    (plain, gradient), (other, of_padded) = found
    assert other == pytest.approx(plain, rel=1e-5)
    assert (gradient - of_padded).norm() < 1e-5 * gradient.norm()
