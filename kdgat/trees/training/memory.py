"""How much memory a training step takes: tables of bytes by nodes and paths, with nothing that computes loaded.

There can be most of it at two moments:

* **forwards**, when the last round of messages adds the states of the four nodes of a path: everything of the rounds
  before is kept for the backward pass. With recomputation that moment comes backwards, as the last round is computed
  again.
* **backwards**, through the order, whose squares make three more of what they have per pair; where nothing is learned
  of the order, through the growth.

`tests/trees/training/test_memory.py` holds the tables to what torch allocates, `benchmarks/tree_memory.py` to what a
process takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kdgat.training.footprint import FLOAT, Architecture, Footprint
from kdgat.trees.names import FINETUNE, GIN, PRETRAIN, SCRATCH
from kdgat.trees.sections import EncoderConfig, FinetuneStageConfig, PretrainStageConfig

HALF: Final = 2  # bytes
PAIRS: Final = 6  # of each node but roots, in the loss of the order

# Rows and widths: `rows_of` and `widths_of`.
ENCODER_WEIGHTS: Final[Footprint] = {
    "network": {
        "hidden": 22,
        "hidden hidden": 2,
        "rounds geometry hidden": 2,
        "rounds hidden hidden": 82,
        "rounds hidden": 26,
    }
}
HEAD_WEIGHTS: Final[Footprint] = {
    "network": {
        "": 4,
        "hidden": 12,
        "hidden hidden": 6,
        "hidden components": 18,
        "components": 10,
        "hidden order": 2,
        "order": 1,
    }
}
ENCODER: Final[Footprint] = {
    "node": {"": 124},  # the batch of the store: 88; and features as the encoder reads them
    "state": {"": 4, "hidden number": 1, "rounds hidden number": 1, "stored rounds hidden": 4, "stored rounds": 8},
    # Of a round: three geometries after the ReLU, their embeddings (3 H each), the ReLU of 4 H and of 2 H, the message.
    "path": {"": 32, "single geometry": 4, "stored rounds hidden number": 13, "stored rounds half geometry": 2},
    "weight": {"stored half": 2},  # autocast's copies
}
HEADS: Final[Footprint] = {
    "node": {"": 68, "hidden number": 3, "components": 60, "thresholds": 4, "components thresholds": 8},
    "ordered node": {"hidden number": 4, "order": 4},
    "pair": {"": 22, "order": 4},
}
# When a round adds the states of four nodes it has 21 H of a path, in place of the 13 H that it keeps.
FORWARDS: Final[Footprint] = {
    "node": {"hidden number": 7, "again hidden number": 1, "stored hidden": -4, "stored": -8},
    "ordered node": {"again hidden number": 3},  # gradients of both embeddings
    "below": {"hidden number": 8, "again hidden number": 10, "half geometry": 4, "again half geometry": -2},
    "ordered below": {"again hidden number": 3},
    "unordered node": ENCODER["state"],  # descendants are read whether or not anything is learned from them
    "unordered below": ENCODER["path"],
}
BACKWARDS: Final[Footprint] = {"pair": {"order": 12}, "unordered node": {"components lengths": 8}}
# Pooling keeps the embeddings beside each other, in float32, and what is left without their mean.
POOLING: Final[Footprint] = {"node": {"hidden": 32, "hidden half": 4}}
# What goes in, its layer, what is normalised, and its ReLU, in each of three layers a round; pooling; edges both ways.
GIN_KEPT: Final[Footprint] = {
    "node": {"": 88, "hidden": 12, "rounds hidden": 24, "rounds hidden number": 6},
    "edge": {"": 32},
}
FINETUNING: Final = Architecture((ENCODER_WEIGHTS,), forwards=(ENCODER, FORWARDS), backwards=(ENCODER, POOLING))
ARCHITECTURES: Final = {
    PRETRAIN: Architecture(
        (ENCODER_WEIGHTS, HEAD_WEIGHTS), forwards=(ENCODER, FORWARDS), backwards=(ENCODER, HEADS, BACKWARDS)
    ),
    FINETUNE: FINETUNING,
    SCRATCH: FINETUNING,
    GIN: Architecture(
        ({"network": {"rounds hidden hidden": 6, "rounds hidden": 12}},),
        forwards=(GIN_KEPT, {"edge": {"hidden number": 2}}),
        backwards=(GIN_KEPT, {"node": {"hidden": 8}}),
    ),
}


class TreeCounts(NamedTuple):
    """Count the nodes and the paths of a tree, of several, or of an average one."""

    nodes: float
    ancestors: float
    branches: float
    general: float

    def times(self, count: float) -> TreeCounts:
        """Return the counts of several trees."""
        return TreeCounts(*(count * one for one in self))

    def below(self, encoder: EncoderConfig) -> float:
        """Return the paths that an encoder reads beside those of ancestors."""
        return self.branches if encoder.kind == "gtmp" else self.general

    def paths(self, encoder: EncoderConfig) -> float:
        """Return all paths that an encoder reads: what `batches.max_paths` counts."""
        return self.ancestors + self.below(encoder)


def predict_peak(stage: str, config: PretrainStageConfig | FinetuneStageConfig, batch: TreeCounts) -> int:
    """Return the bytes that steps take, with weights and optimizer, above the process itself.

    Args:
        stage: pretrain, finetune, scratch or gin.
        config: of the stage.
        batch: what is in the model at one time: of a batch that is cut by `training.accumulate`, the largest part.
    """
    return ARCHITECTURES[stage].peak_bytes(rows_of(config, batch), widths_of(config), config.training)


def rows_of(config: PretrainStageConfig | FinetuneStageConfig, batch: TreeCounts) -> Mapping[str, float]:
    """Return what tensors of a step have a row for; where no order is learned, nothing is learned from descendants."""
    below = batch.below(config.encoder)
    learns_order = not isinstance(config, PretrainStageConfig) or config.order.weight > 0
    return {
        "node": batch.nodes,
        "ordered node": batch.nodes * learns_order,
        "unordered node": batch.nodes * (not learns_order),
        "state": batch.nodes * (1 + learns_order),  # of a node in one direction that is learned from
        "edge": batch.ancestors,
        "path": batch.ancestors + below * learns_order,  # that is learned from
        "below": below,
        "ordered below": below * learns_order,
        "unordered below": below * (not learns_order),
        "pair": PAIRS * batch.ancestors * learns_order,
    }


def widths_of(config: PretrainStageConfig | FinetuneStageConfig) -> Mapping[str, float]:
    """Return the widths of an encoder, and in a pretraining of its heads; some are 0 or 1 for no and yes."""
    encoder, is_half = config.encoder, config.training.precision.endswith("-mixed")
    widths = {
        "hidden": encoder.hidden,
        "rounds": encoder.interactions,
        "geometry": geometry_width(encoder),
        "number": HALF if is_half else FLOAT,  # bytes of one, where autocast may choose
        "half": is_half,
        "stored": not encoder.recompute,
        "again": encoder.recompute,
        "single": encoder.recompute or not is_half,  # features of paths are kept in float32
    }
    if isinstance(config, PretrainStageConfig):
        growth = config.growth
        widths |= {
            "components": growth.components,
            "lengths": growth.num_lengths,
            "thresholds": growth.num_lengths + growth.num_angles + growth.num_radii,
            "order": config.order.width,
        }
    return widths


def geometry_width(encoder: EncoderConfig) -> int:
    """Return how many numbers describe a path: distances of three geometries; angles, and the torsion."""
    return 3 * encoder.num_distances + 24


def work_of(encoder: EncoderConfig) -> float:
    """Return the arithmetic of a path, over that of one with hidden 64, 3 interactions and 50 distances."""
    return _products(encoder) / _products(EncoderConfig(hidden=64, interactions=3, num_distances=50))


def _products(encoder: EncoderConfig) -> float:
    # Per path three geometries, their layers before, 4 H, 2 H and H; per node the projected states.
    layers = (3 + 12 + 8 + 2 + 16) * encoder.hidden**2
    once = encoder.interactions * (geometry_width(encoder) * encoder.hidden + layers)
    return once * (4 / 3 if encoder.recompute else 1)
