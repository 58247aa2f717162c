"""GIN, the baseline that sees no geometry: who is joined to whom, and features of nodes."""

from torch import Tensor, nn
from torch_geometric.nn import GINConv

from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.graphs.columns import NODE_FEATURES
from kdgat.trees.models.message import two_layers
from kdgat.trees.models.paths import tree_edges
from kdgat.trees.sections import EncoderConfig


class GinEncoder(nn.Module):
    """Embed nodes by their neighbours (Xu et al., "How Powerful are Graph Neural Networks?", ICLR 2019).

    As published with batch norm, and with the sum over all rounds: the last one alone is nearly the same for all nodes.
    """

    def __init__(self, config: EncoderConfig) -> None:
        """Make as many rounds as reach as far as the encoder's paths of three edges do."""
        super().__init__()
        widths = [len(NODE_FEATURES), *[config.hidden] * (3 * config.interactions)]
        self.layers = nn.ModuleList(
            GINConv(two_layers(width, config.hidden, config.hidden), train_eps=True) for width in widths[:-1]
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(config.hidden) for _ in self.layers)

    def forward(self, tree: TreeBatch) -> Tensor:
        """Return embeddings of nodes [N, H]."""
        state, edges = tree.x, tree_edges(tree)
        total = tree.x.new_zeros(())
        for layer, norm in zip(self.layers, self.norms, strict=True):
            state = norm(layer(state, edges)).relu()
            total = total + state
        return total / len(self.layers)
