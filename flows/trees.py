"""The flow `trees`: an encoder of geometric trees, pretrained without labels, and what it is worth with some."""

from flows.training import training_flow
from kdgat.trees.config import TreesConfig
from kdgat.trees.family import FAMILY


@training_flow(FAMILY, TreesConfig(), overrides="`training.max_epochs=5` or `seeds=[0, 1]`; the same as `-O`")
def trees() -> None:
    """Pretrain an encoder of geometric trees by growth and order, and use it with few labels; see `kdgat plan trees`."""  # noqa: E501
