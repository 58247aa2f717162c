import numpy as np
import pytest
import torch

from kdgat.can.models.autoencoder import GraphAutoencoder, hash_bucket, reconstruction_error
from kdgat.can.sections import AutoencoderConfig
from kdgat.graphs import TensorColumns
from tests.canbus.features.planted_graphs import NUM_EDGE_FEATURES, NUM_NODE_FEATURES, planted_columns

SMALL = AutoencoderConfig(hidden_dims=(16, 8, 4), heads=2)


def build(config: AutoencoderConfig = SMALL) -> GraphAutoencoder:
    torch.manual_seed(0)
    return GraphAutoencoder(config, NUM_NODE_FEATURES, NUM_EDGE_FEATURES)


def batch_of(num_graphs: int = 8):
    return TensorColumns.from_columns(planted_columns(num_graphs)).gather(np.arange(num_graphs))


def test_scores_are_a_function_of_the_window() -> None:
    model, batch = build().eval(), batch_of()
    first, second = model(batch), model(batch)
    torch.testing.assert_close(first.reconstruction, second.reconstruction, rtol=0, atol=0)
    torch.testing.assert_close(first.latent, first.latent_mean, rtol=0, atol=0)
    assert torch.equal(model.loss(batch, first).total, model.loss(batch, second).total)


def test_training_samples_the_latent() -> None:
    model, batch = build().train(), batch_of()
    output = model(batch)
    assert not torch.equal(output.latent, output.latent_mean)


def test_error_per_window_is_mean_and_maximum_over_its_nodes() -> None:
    model, batch = build().eval(), batch_of()
    error = reconstruction_error(batch, model(batch))
    for graph in range(8):
        nodes = error.node[batch.batch == graph]
        torch.testing.assert_close(error.mean[graph], nodes.mean())
        torch.testing.assert_close(error.maximum[graph], nodes.max())


def test_neighbourhood_loss_never_calls_a_real_edge_absent() -> None:
    """On a complete graph every drawn pair is an edge, so that only the positive part is left."""
    from torch_geometric.data import Batch, Data

    size = 4
    target, source = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    graph = Data(
        x=torch.randn(size, NUM_NODE_FEATURES),
        edge_index=torch.stack([source.flatten(), target.flatten()]),
        edge_attr=torch.randn(size * size, NUM_EDGE_FEATURES),
        node_id=torch.arange(size),
    )
    batch = Batch.from_data_list([graph, graph])
    model = build().eval()
    latent = model(batch).latent
    logits = (
        model.neighbour_source(latent)[batch.edge_index[0]] * model.neighbour_target(latent)[batch.edge_index[1]]
    ).sum(dim=1)
    expected = 0.5 * torch.nn.functional.softplus(-logits).mean()
    torch.testing.assert_close(model._neighbourhood_loss(batch, latent), expected)


def test_every_part_of_the_loss_reaches_its_head() -> None:
    model, batch = build(AutoencoderConfig(hidden_dims=(16, 8, 4), heads=2, id_buckets=32)).train(), batch_of()
    loss = model.loss(batch, model(batch))
    loss.total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert model.id_head is not None
    assert model.id_head.out_features == 32


def test_published_widths_can_be_built() -> None:
    model = GraphAutoencoder(AutoencoderConfig(), 30, 10)
    assert model.latent_mean.out_features == 48
    small = GraphAutoencoder(AutoencoderConfig(hidden_dims=(80, 40, 16), heads=1), 30, 10)
    assert small.latent_mean.out_features == 16


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden_dims: 10 is not a multiple of heads=4"):
        build(AutoencoderConfig(hidden_dims=(10, 8, 4), heads=4))


def test_hash_buckets_spread_neighbouring_identifiers() -> None:
    bucket = hash_bucket(torch.arange(0x100, 0x100 + 64), 64)
    assert bucket.min() >= 0
    assert bucket.max() < 64
    assert len(bucket.unique()) > 32


def test_training_lowers_the_error_on_benign_windows() -> None:
    columns = planted_columns(64, attack_share=0.0)
    batch = TensorColumns.from_columns(columns).gather(np.arange(64))
    model = build().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = model.loss(batch, model(batch))
        loss.total.backward()
        optimizer.step()
        losses.append(loss.features.item())
    assert losses[-1] < 0.6 * losses[0]


def test_an_autoencoder_without_edge_features_does_not_depend_on_them() -> None:
    model, batch, other = build(SMALL.model_copy(update={"edge_features": False})).eval(), batch_of(), batch_of()
    other.edge_attr = other.edge_attr.flip(0) + 1.0
    assert torch.equal(model(batch).reconstruction, model(other).reconstruction)
