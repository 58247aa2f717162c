"""What cuGraph's attention kernel is promised to do, in plain torch, node by node, behind torch-geometric's own layer.

`pylibcugraphops` exists for CUDA only and was last released in December 2024. The layer that calls it is the real one;
this is what it calls, with every condition that the kernel's callers must keep.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv.cugraph import base, gat_conv

from kdgat.can import capabilities
from kdgat.can.capabilities import CUDA, Capability
from kdgat.can.models import fused


class CSC:
    """Edges by target: those into node i have the sources `indices[offsets[i]:offsets[i + 1]]`."""

    def __init__(
        self, offsets: Tensor, indices: Tensor, num_src_nodes: int, dst_max_in_degree: int | None = None
    ) -> None:
        for tensor in (offsets, indices):
            assert tensor.dim() == 1
            assert tensor.dtype in (torch.int32, torch.int64)
            assert not isinstance(tensor, EdgeIndex)
        assert int(offsets[0]) == 0
        assert int(offsets[-1]) == len(indices)
        assert bool((offsets[1:] >= offsets[:-1]).all())
        assert len(indices) == 0 or int(indices.max()) < num_src_nodes
        assert dst_max_in_degree is None, "only a graph whose sources are not its targets needs the largest degree"
        self.offsets, self.indices, self.num_nodes = offsets, indices, num_src_nodes


def mha_gat_n2n(
    node_feat: Tensor,
    attn_weights: Tensor,
    graph: CSC,
    num_heads: int = 1,
    activation: str = "LeakyReLU",
    negative_slope: float = 0.2,
    concat_heads: bool = True,
    edge_feat: Tensor | None = None,
) -> Tensor:
    """Return [N, H * C] from projected features [N, H * C] and attention [2 * H * C], the source's half first."""
    assert activation == "LeakyReLU"
    assert concat_heads
    assert node_feat.dtype == attn_weights.dtype == torch.float32
    num_nodes = len(graph.offsets) - 1
    assert len(node_feat) == num_nodes == graph.num_nodes, "a last node without edges is a node"
    assert edge_feat is None or edge_feat.shape == (len(graph.indices), 0), "edge features would need att of 3 * H * C"
    values = node_feat.view(num_nodes, num_heads, -1)
    assert attn_weights.shape == (2 * values.shape[1] * values.shape[2],)
    of_source, of_target = attn_weights.view(2, num_heads, -1)
    rows = []
    for target in range(num_nodes):
        sources = graph.indices[int(graph.offsets[target]) : int(graph.offsets[target + 1])]
        score = (values[sources] * of_source).sum(dim=2) + (values[target] * of_target).sum(dim=1)
        attention = torch.where(score > 0, score, negative_slope * score).softmax(dim=0)  # [edges into it, H]
        rows.append((attention.unsqueeze(2) * values[sources]).sum(dim=0).flatten())
    return torch.stack(rows)


class Calls(list[tuple[int, ...]]):
    """Shapes of the edges of each call of the kernel."""


@contextmanager
def installed_kernel() -> Iterator[Calls]:
    """Put the reference where torch-geometric calls the kernel; tensors of the CPU say that they are on a device."""
    calls = Calls()

    def counted(*arguments: object, **words: object) -> Tensor:
        calls.append(tuple(arguments[2].indices.shape))  # type: ignore[attr-defined]
        return mha_gat_n2n(*arguments, **words)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "HAS_PYLIBCUGRAPHOPS", True)
        patch.setattr(base, "CSC", CSC, raising=False)
        patch.setattr(gat_conv, "GATConvAgg", counted, raising=False)
        patch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
        patch.setattr(capabilities, "find_cuda", lambda: Capability(CUDA, True, "13.0", "a device"))
        forget()
        yield calls
    forget()


def forget() -> None:
    """Ask anew what is there, and warn anew of what is not."""
    capabilities.find_cugraph_convolution.cache_clear()
    fused._warn_once.cache_clear()
