import copy
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import conv

from kdgat.base import ConfigurationError
from kdgat.can.capabilities import find_cugraph_convolution
from kdgat.can.config import CanConfig
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.models.convolution import GraphAttention, build_convolution
from kdgat.can.models.fused import sort_edges
from kdgat.can.plan import START, plan_can
from kdgat.can.sections import AttentionConfig, AutoencoderConfig
from kdgat.graphs import TensorColumns
from kdgat.stage import Failed, Finished
from kdgat.stage.runner import run_stage
from tests.can.models.reference_kernel import Calls, forget, installed_kernel
from tests.can.small_runs import make_config
from tests.can.stage_inputs import FAST, SMALL_GAT, make_stage, make_stores
from tests.canbus.features.planted_graphs import NUM_EDGE_FEATURES, NUM_NODE_FEATURES, planted_columns

ATTENTION = AttentionConfig(hidden=4, heads=2, layers=2, stem=8, dropout=0.0, edge_features=False)
AUTOENCODER = AutoencoderConfig(hidden_dims=(16, 8, 4), heads=2, dropout=0.0, edge_features=False)
DATA = {"dataset": "synthetic", "data_root": "data"}


@pytest.fixture
def calls() -> Iterator[Calls]:
    with installed_kernel() as found:
        yield found


@pytest.fixture
def without_kernel() -> Iterator[None]:
    forget()
    yield
    forget()


def batch_of(num_graphs: int = 4):
    return TensorColumns.from_columns(planted_columns(num_graphs)).gather(np.arange(num_graphs))


def layers_of(*, inputs: int = 5, channels: int = 3, heads: int = 2) -> tuple[GraphAttention, GraphAttention]:
    """Return a layer that uses the kernel and one that does not, with the same weights."""
    torch.manual_seed(3)
    standard, fused = (build_convolution("gat", inputs, channels, heads, 0, use_cugraph=use) for use in (False, True))
    assert isinstance(standard, GraphAttention)
    assert isinstance(fused, GraphAttention)
    torch.nn.init.normal_(standard.bias)
    fused.load_state_dict(standard.state_dict())  # strict: the same names
    return standard, fused


def outputs_and_gradients(layer: torch.nn.Module, x: Tensor, edge_index: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    output = layer(x, edge_index, None)
    weight = torch.linspace(-1.0, 1.0, output.numel()).view_as(output)
    (output * weight).sum().backward()
    assert x.grad is not None
    return [output, x.grad, *(parameter.grad for parameter in layer.parameters() if parameter.grad is not None)]


# Edges out of order, a node with no edge into it, two edges of the same pair, a last node without any edge.
UNSORTED = torch.tensor([[0, 1, 2, 0, 3, 3, 4, 4], [2, 0, 1, 1, 1, 1, 4, 2]])


@pytest.mark.parametrize("edge_index", [UNSORTED, UNSORTED.flip(1), UNSORTED[:, :1]])
def test_the_kernel_computes_what_the_layer_computes_with_the_same_gradients(calls: Calls, edge_index: Tensor) -> None:
    standard, fused = layers_of()
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    expected = outputs_and_gradients(standard, x, edge_index)
    assert calls == []
    found = outputs_and_gradients(fused, x, edge_index)
    assert calls == [(edge_index.shape[1],)]
    assert len(expected) == len(found) == 2 + 4  # output, x, and lin, att_src, att_dst, bias
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other)


def test_the_layer_without_edge_features_is_the_one_of_the_library() -> None:
    for kind, library in (("gat", conv.GATConv), ("gatv2", conv.GATv2Conv)):
        torch.manual_seed(2)
        ours = build_convolution(kind, 5, 4, 3, 0)
        theirs = library(5, 4, heads=3, add_self_loops=False)
        theirs.load_state_dict(ours.state_dict())
        x = torch.randn(6, 5)
        torch.testing.assert_close(ours(x, UNSORTED, None), theirs(x, UNSORTED))


def test_the_kernel_is_called_by_the_form_that_takes_no_edge_features_too(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutEdgeFeatures(conv.CuGraphGATConv):
        """The form of torch-geometric 2.7."""

        def forward(self, x: Tensor, edge_index: EdgeIndex, max_num_neighbors: int | None = None) -> Tensor:
            assert max_num_neighbors is None
            return super().forward(x, edge_index, x.new_empty(edge_index.shape[1], 0))

    monkeypatch.setattr(conv, "CuGraphGATConv", WithoutEdgeFeatures)
    forget()
    assert "takes no edge_attr" in find_cugraph_convolution().detail
    standard, fused = layers_of()
    x = torch.randn(7, 5)
    torch.testing.assert_close(standard(x, UNSORTED, None), fused(x, UNSORTED, None))
    assert len(calls) == 1


def test_the_probe_says_in_which_form_the_layer_is_there(calls: Calls) -> None:
    found = find_cugraph_convolution()
    assert found.usable
    assert "needs edge_attr" in found.detail


def test_kernels_without_the_operator_are_not_taken_for_usable(calls: Calls) -> None:
    from torch_geometric.nn.conv.cugraph import gat_conv

    with pytest.MonkeyPatch.context() as patch:  # ends before what it takes from is taken down
        patch.delattr(gat_conv, "GATConvAgg")
        found = find_cugraph_convolution()
    assert found.usable is False
    assert "mha_gat_n2n" in found.detail


def test_under_autocast_the_kernel_gets_single_precision(calls: Calls) -> None:
    _, fused = layers_of()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused(torch.randn(7, 5).bfloat16(), UNSORTED, None)  # the reference refuses anything else
    assert len(calls) == 1


def test_edges_are_sorted_once_for_all_layers_and_keep_last_nodes() -> None:
    edges = sort_edges(UNSORTED, 7)
    assert edges.sparse_size() == (7, 7)
    assert edges[1].tolist() == sorted(UNSORTED[1].tolist())
    assert sort_edges(edges, 7) is edges


@pytest.mark.parametrize("is_training", [False, True])
def test_an_attention_network_says_the_same_with_the_kernel(calls: Calls, is_training: bool) -> None:
    batch = batch_of()
    outputs = []
    for config in (ATTENTION, ATTENTION.model_copy(update={"use_cugraph": True})):
        torch.manual_seed(0)
        model = GraphAttentionNetwork(config, NUM_NODE_FEATURES, NUM_EDGE_FEATURES).train(is_training)
        outputs.append(model(batch))
    assert len(calls) == ATTENTION.layers
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other)


def test_an_autoencoder_says_the_same_with_the_kernel(calls: Calls) -> None:
    batch = batch_of()
    losses = []
    for config in (AUTOENCODER, AUTOENCODER.model_copy(update={"use_cugraph": True})):
        torch.manual_seed(0)
        model = GraphAutoencoder(config, NUM_NODE_FEATURES, NUM_EDGE_FEATURES)
        loss = model.loss(batch, model(batch)).total
        loss.backward()
        losses.append((loss, *(p.grad for p in model.parameters() if p.grad is not None)))
    assert len(calls) == 4
    for one, other in zip(*losses, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_weights_go_from_one_to_the_other_and_survive_a_copy(calls: Calls) -> None:
    models = [
        GraphAttentionNetwork(ATTENTION.model_copy(update={"use_cugraph": use}), NUM_NODE_FEATURES, NUM_EDGE_FEATURES)
        for use in (True, False)
    ]
    models[1].load_state_dict(models[0].state_dict())
    batch = batch_of()
    expected = models[1].eval()(batch).window_logit
    torch.testing.assert_close(models[0].eval()(batch).window_logit, expected)
    torch.testing.assert_close(copy.deepcopy(models[0])(batch).window_logit, expected)


def test_without_the_kernel_the_standard_layer_computes_and_one_warning_says_why(
    without_kernel: None, caplog: pytest.LogCaptureFixture
) -> None:
    standard, fused = layers_of()
    x = torch.randn(7, 5)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert torch.equal(fused(x, UNSORTED, None), standard(x, UNSORTED, None))
    (record,) = caplog.records
    assert "use_cugraph: the model computes on the cpu" in record.getMessage()


def test_on_a_device_without_kernels_the_warning_names_the_package(
    calls: Calls, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_geometric.nn.conv.cugraph import base

    monkeypatch.setattr(base, "HAS_PYLIBCUGRAPHOPS", False)
    _, fused = layers_of()
    with caplog.at_level(logging.WARNING):
        fused(torch.randn(7, 5), UNSORTED, None)
    assert calls == []
    (record,) = caplog.records
    assert "pylibcugraphops" in record.getMessage()


def test_a_model_with_the_kernel_begins_with_the_weights_of_one_without() -> None:
    states = []
    for use in (False, True):
        torch.manual_seed(0)
        config = ATTENTION.model_copy(update={"use_cugraph": use})
        states.append(GraphAttentionNetwork(config, NUM_NODE_FEATURES, NUM_EDGE_FEATURES).state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_model_without_edge_features_does_not_depend_on_them() -> None:
    attention = GraphAttentionNetwork(ATTENTION, NUM_NODE_FEATURES, NUM_EDGE_FEATURES).eval()
    autoencoder = GraphAutoencoder(AUTOENCODER, NUM_NODE_FEATURES, NUM_EDGE_FEATURES).eval()
    batch, other = batch_of(), batch_of()
    other.edge_attr = other.edge_attr.flip(0) + 1.0
    assert torch.equal(attention(batch).window_logit, attention(other).window_logit)
    assert torch.equal(autoencoder(batch).reconstruction, autoencoder(other).reconstruction)
    assert not any("edge" in name for name, _ in attention.named_parameters())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["gat.large.use_cugraph=true"], ["gat.large.use_cugraph=True", "edge_features=false"]),
        (["autoencoder.small.use_cugraph=true"], ["autoencoder.small.use_cugraph=True", "edge_features=false"]),
        (
            ["gat.large.use_cugraph=true", "gat.large.edge_features=false", "gat.large.conv_type=gatv2"],
            ["gat.large.use_cugraph=True", "conv_type=gatv2", "conv_type=gat,"],
        ),
        (
            ["gat.large.use_cugraph=true", "gat.large.edge_features=false", "gat.large.attention_dropout=0.1"],
            ["gat.large.use_cugraph=True", "attention_dropout=0.1", "attention_dropout=0,"],
        ),
        (["gat.large.use_cugraph=maybe"], ["gat.large.use_cugraph=maybe", "bool"]),
    ],
)
def test_what_the_kernel_cannot_do_is_refused_with_key_value_and_fix(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        make_config("quick", overrides, data=DATA)
    for word in words:
        assert word in str(error.value)


def test_the_kernel_can_be_asked_for_without_edge_features() -> None:
    config = make_config("quick", ["gat.large.use_cugraph=true", "gat.large.edge_features=false"], data=DATA)
    assert config.gat.large.use_cugraph
    assert CanConfig.model_validate(config.model_dump(mode="json")) == config


def test_keys_that_say_what_was_always_done_change_no_stage_and_others_do() -> None:
    def configs(*overrides: str) -> dict[str, object]:
        return {stage.name: stage.config for stage in plan_can(make_config("quick", overrides, data=DATA))}

    plain = configs()
    said = configs("gat.large.edge_features=true", "gat.large.use_cugraph=false")
    assert plain == said
    assert "use_cugraph" not in str(plain)
    without = configs("gat.large.edge_features=false")
    changed = {name for name in plain if plain[name] != without[name]}
    assert changed == {"normal-large-seed0", "curriculum-large-seed0"}


def test_a_stage_starts_from_weights_that_were_trained_with_the_kernel_but_not_from_another_model(
    tmp_path: Path,
) -> None:
    stores = make_stores(tmp_path)
    edge_free = SMALL_GAT | {"edge_features": False}
    with_kernel = edge_free | {"use_cugraph": True}
    first = make_stage(tmp_path / "first", "normal", {"gat": with_kernel, "training": FAST}, stores)
    assert isinstance(run_stage(first, quiet=True), Finished)
    weights = {START: first.weights_path}
    second = make_stage(tmp_path / "second", "normal", {"gat": edge_free, "training": FAST}, stores, **weights)
    assert isinstance(run_stage(second, quiet=True), Finished)
    other = make_stage(tmp_path / "other", "normal", {"gat": SMALL_GAT, "training": FAST}, stores, **weights)
    outcome = run_stage(other, quiet=True)
    assert isinstance(outcome, Failed)
    assert "edge_features is True and was False" in outcome.evidence
