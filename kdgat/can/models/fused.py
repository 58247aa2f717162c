"""Graph attention in one fused kernel of cuGraph, called through torch-geometric's CuGraphGATConv.

The kernel knows no edge features. torch-geometric 2.8 hands those that it is given to the kernel in the order of the
file while it sorts the edges by target, so that each edge would get another one's features without a word; a
configuration that asks for both is refused (`check_use_of_cugraph`), and only an empty [E, 0] is ever handed on.
"""

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric import EdgeIndex

from kdgat.can.capabilities import find_cuda, find_cugraph_convolution, make_cugraph_convolution, takes_edge_features

logger = logging.getLogger(__name__)


class FusedKernel:
    """Compute one layer's attention by the kernel, from parameters that belong to the layer.

    It is no module and owns no parameter: a model's weights are the same with the kernel and without.
    """

    def __init__(self, num_inputs: int, channels: int, heads: int) -> None:
        self._shape = (num_inputs, channels, heads)
        self._convolution: nn.Module | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_shape": self._shape, "_convolution": None}

    def is_usable(self, x: Tensor) -> bool:
        """Return whether the kernel can compute on nodes x [N, F]; warns once per process and reason if it cannot."""
        return _is_usable(x)

    def __call__(
        self, x: Tensor, edge_index: Tensor, weight: Tensor, att_src: Tensor, att_dst: Tensor, bias: Tensor
    ) -> Tensor:
        """Return node features [N, H * C] from x [N, F], edge_index [2, E], weight [H * C, F] and attention [1, H, C].

        In single precision also under autocast: what else the kernel computes in depends on its version.
        """
        if self._convolution is None:
            self._convolution = make_cugraph_convolution(*self._shape)
        parameters = {
            "lin.weight": weight.float(),
            "att": torch.cat([att_src.flatten(), att_dst.flatten()]).float(),  # of the source first
            "bias": bias.float(),
        }
        options: dict[str, Any] = {}
        if takes_edge_features(self._convolution):
            options["edge_attr"] = x.new_empty(edge_index.shape[1], 0, dtype=torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return functional_call(self._convolution, parameters, (x.float(), sort_edges(edge_index, len(x))), options)


def arrange_edges(edge_index: Tensor, x: Tensor) -> Tensor:
    """Return edges [2, E] as the layers will want them for nodes x [N, F]: for the kernel sorted, once for them all."""
    return sort_edges(edge_index, len(x)) if _is_usable(x) else edge_index


def sort_edges(edge_index: Tensor, num_nodes: int) -> EdgeIndex:
    """Return edges [2, E] sorted by target; those that are already are returned as they are."""
    if isinstance(edge_index, EdgeIndex):
        return edge_index
    # The size must be said: taken from the edges, it leaves out last nodes without one, and waits for the device.
    return EdgeIndex(edge_index, sparse_size=(num_nodes, num_nodes)).sort_by("col").values


def _is_usable(x: Tensor) -> bool:
    if x.is_cuda:
        found = find_cugraph_convolution()
        reason = "" if found.usable else found.detail
    else:
        device = find_cuda()
        reason = f"the model computes on the {x.device.type}" + ("" if device.usable else f", for {device.detail}")
    if reason:
        _warn_once(reason)
    return not reason


@cache
def _warn_once(reason: str) -> None:
    logger.warning(
        "use_cugraph: %s; the standard layer computes the same function from the same weights, slower", reason
    )
