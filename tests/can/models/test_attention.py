import numpy as np
import pytest
import torch
from torch import nn

from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.convolution import build_convolution, count_parameters
from kdgat.can.sections import AttentionConfig
from kdgat.graphs import TensorColumns
from tests.canbus.features.planted_graphs import NUM_EDGE_FEATURES, NUM_NODE_FEATURES, planted_columns

SMALL = AttentionConfig(hidden=4, heads=2, layers=2, stem=8, dropout=0.3)


def build(config: AttentionConfig = SMALL, **kwargs: object) -> GraphAttentionNetwork:
    torch.manual_seed(0)
    return GraphAttentionNetwork(config, NUM_NODE_FEATURES, NUM_EDGE_FEATURES, **kwargs)  # type: ignore[arg-type]


def batch_of(num_graphs: int = 8):
    return TensorColumns.from_columns(planted_columns(num_graphs)).gather(np.arange(num_graphs))


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_output_has_one_logit_per_window_and_one_per_node(kind: str) -> None:
    batch = batch_of()
    output = build(AttentionConfig(hidden=4, heads=2, layers=2, conv_type=kind, fc_layers=2))(batch)
    assert output.window_logit.shape == (8,)
    assert output.node_logit.shape == (batch.x.shape[0],)
    assert output.embedding.shape == (8, 2 * 2 * 8)


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_attention_depends_on_edge_features(kind: str) -> None:
    model = build(AttentionConfig(hidden=4, heads=2, layers=2, conv_type=kind)).eval()
    batch = batch_of()
    before = model(batch).window_logit
    batch.edge_attr = batch.edge_attr.flip(0)
    assert not torch.allclose(before, model(batch).window_logit)


def test_a_window_scores_the_same_alone_and_in_a_batch() -> None:
    columns = TensorColumns.from_columns(planted_columns(8))
    model = build().eval()
    together = model(columns.gather(np.arange(8))).window_logit
    alone = torch.cat([model(columns.gather(np.array([graph]))).window_logit for graph in range(8)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_convolutions_equal_those_of_the_library(kind: str) -> None:
    from torch_geometric.nn import GATConv, GATv2Conv

    torch.manual_seed(1)
    ours = build_convolution(kind, 5, 4, 3, NUM_EDGE_FEATURES)
    library = (GATConv if kind == "gat" else GATv2Conv)(5, 4, heads=3, edge_dim=NUM_EDGE_FEATURES, add_self_loops=False)
    library.load_state_dict(ours.state_dict())
    batch = batch_of()
    inputs = [torch.randn(batch.x.shape[0], 5) for _ in range(2)]
    weight = torch.randn(batch.x.shape[0], 12)
    inputs[1] = inputs[0].clone()
    outputs = []
    for layer, x in zip((ours, library), inputs, strict=True):
        out = layer(x.requires_grad_(), batch.edge_index, batch.edge_attr)
        (out * weight).sum().backward()
        outputs.append(out)
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    gradients = {name: parameter.grad for name, parameter in library.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name])


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_a_layer_with_weights_for_edges_refuses_to_compute_without_them(kind: str) -> None:
    batch, x = batch_of(), torch.randn(len(batch_of().x), 5)
    with pytest.raises(ValueError, match="has weights for edge features and was given none"):
        build_convolution(kind, 5, 4, 3, NUM_EDGE_FEATURES)(x, batch.edge_index, None)
    assert build_convolution(kind, 5, 4, 3, 0)(x, batch.edge_index, None).shape == (len(x), 12)


def test_unknown_identifiers_share_a_row_that_is_trained_by_dropout() -> None:
    config = AttentionConfig(hidden=4, heads=2, layers=1, id_embedding=5, id_dropout=0.5)
    batch = batch_of()
    known = sorted({int(i) for i in batch.node_id})
    model = build(config, known_ids=known)
    model.train()
    model(batch).window_logit.sum().backward()
    assert model.id_rows is not None
    assert model.id_rows.weight.grad is not None
    assert model.id_rows.weight.grad[0].abs().sum() > 0
    model.eval()
    assert model._id_row(torch.tensor([known[0], known[-1], 999_999, -5])).tolist() == [1, len(known), 0, 0]


def test_without_known_identifiers_every_one_is_unknown() -> None:
    model = build(AttentionConfig(hidden=4, heads=2, layers=1, id_embedding=5)).eval()
    assert model._id_row(torch.tensor([1, 2])).tolist() == [0, 0]


def test_identifiers_are_ignored_unless_asked_for() -> None:
    model = build().eval()
    batch = batch_of()
    before = model(batch).window_logit
    batch.node_id = batch.node_id + 7
    torch.testing.assert_close(before, model(batch).window_logit, rtol=0, atol=0)


def test_published_widths_have_the_expected_number_of_parameters() -> None:
    width = 48 * 8
    model = GraphAttentionNetwork(AttentionConfig(), 30, 10)
    stem = 30 * 64 + 64 + 2 * 64
    convolutions = (64 + 2 * width) * width + 3 * (10 * width + 3 * width + width)
    skips_and_norms = 64 * width + 3 * 2 * width
    heads = (3 * width + 1) + (2 * 3 * width + 2 + 1)
    assert count_parameters(model) == stem + convolutions + skips_and_norms + heads
    assert isinstance(model.skips[1], nn.Identity)


def test_a_network_without_edge_features_does_not_depend_on_them() -> None:
    model, batch, other = build(SMALL.model_copy(update={"edge_features": False})).eval(), batch_of(), batch_of()
    other.edge_attr = other.edge_attr.flip(0) + 1.0
    assert torch.equal(model(batch).window_logit, model(other).window_logit)
    assert not any("edge" in name for name, _ in model.named_parameters())
