"""How much memory a training step takes: computed from counts of nodes and paths, with nothing that computes loaded.

A step has few moments at which its memory can be largest; each is a sum of tensors that follow from the configuration:

* **forwards**, when the last round of messages adds the states of the four nodes: everything of the rounds before is
  kept for the backward pass, and the round holds 21 H numbers per path (three embedded geometries, the layer before
  each, and their concatenation, 3 H each; the sum so far, what is gathered, and the new sum, 4 H each). With
  recomputation the same moment comes backwards, when the last round is computed again.
* **backwards through the order**: everything is kept, and the square makes three more of what it has per pair.
* **backwards through the growth**, which counts where nothing is learned of the order.
* **the optimizer**: weights, gradients and two moments.

Of a round, 13 H numbers per path are kept: three geometries after the ReLU (3 H), their embeddings (3 H), the ReLU of
4 H and of 2 H, and the message (H). `tests/trees/training/test_memory.py` holds all this to what torch allocates,
`benchmarks/tree_memory.py` to what a process takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kdgat.trees.sections import EncoderConfig, FinetuneStageConfig, GrowthConfig, PretrainStageConfig

FLOAT, HALF, INDEX, FLAG = 4, 2, 8, 1  # bytes
NUM_FEATURES: Final = 9  # of a node and its own edge
GEOMETRIES: Final = 3  # of a path; each has the distances, the second and the third more
MORE_GEOMETRY: Final = 24  # angles of the second and the third, and the torsion
CHANNELS: Final = 3  # of growth
CHILD_CLASSES: Final = 4
PAIRS: Final = 6  # of each node but roots, in the loss of the order
# x, pos, length, depth, subtree, batch, parent and the edge, of a batch of the store.
NODE_BYTES: Final = 6 * FLOAT + 3 * FLOAT + FLOAT + 2 * INDEX + INDEX + INDEX + 2 * INDEX
KEPT_WIDTHS, WIDEST_WIDTHS = 13, 21  # of H numbers per path in a round


@dataclass(frozen=True)
class TreeCounts:
    """Count the nodes and the paths of a tree, of several, or of an average one."""

    nodes: float
    ancestors: float
    branches: float
    general: float

    def times(self, count: float) -> TreeCounts:
        """Return the counts of several trees."""
        return TreeCounts(*(count * one for one in self.numbers))

    def plus(self, other: TreeCounts) -> TreeCounts:
        """Return the sum."""
        return TreeCounts(*(one + more for one, more in zip(self.numbers, other.numbers, strict=True)))

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """Return all of them."""
        return self.nodes, self.ancestors, self.branches, self.general

    def below(self, encoder: EncoderConfig) -> float:
        """Return the paths that an encoder reads beside those of ancestors."""
        return self.branches if encoder.kind == "gtmp" else self.general

    def paths(self, encoder: EncoderConfig) -> float:
        """Return all paths that an encoder reads: what `batches.max_paths` counts."""
        return self.ancestors + self.below(encoder)


def num_parameters(config: PretrainStageConfig) -> int:
    """Return the number of weights of a pretraining."""
    hidden, growth = config.encoder.hidden, config.growth
    heads = _two_layers(hidden, 2 * hidden, _growth_width(growth)) + growth.components
    return num_encoder_parameters(config.encoder) + heads + _two_layers(2 * hidden, 2 * hidden, config.order.width)


def num_encoder_parameters(encoder: EncoderConfig) -> int:
    """Return the number of weights of both directions."""
    hidden, distances = encoder.hidden, encoder.num_distances
    widths = GEOMETRIES * distances + MORE_GEOMETRY
    embeddings = widths * hidden + GEOMETRIES * (hidden + hidden**2 + hidden)
    layers = (7 * hidden + 1) * 4 * hidden + _two_layers(4 * hidden, 2 * hidden, hidden)
    return 2 * (_two_layers(NUM_FEATURES, hidden, hidden) + encoder.interactions * (embeddings + layers))


def _two_layers(width: int, hidden: int, out: int) -> int:
    return (width + 1) * hidden + (hidden + 1) * out


def _growth_width(growth: GrowthConfig) -> int:
    return 3 * growth.components * CHANNELS + CHILD_CLASSES


@dataclass(frozen=True)
class _Rounds:
    """Bytes of the messages along one kind of paths."""

    encoder: EncoderConfig
    number: int  # bytes of one, where autocast may choose

    def geometry(self) -> int:
        """Count what a path has before any round: its features in float32, and its nodes."""
        return FLOAT * (GEOMETRIES * self.encoder.num_distances + MORE_GEOMETRY) + 4 * INDEX

    def cast(self) -> int:
        """Count the copy of the features of a path that each round makes in half precision."""
        return self.geometry_width() * HALF if self.number == HALF else 0

    def geometry_width(self) -> int:
        return GEOMETRIES * self.encoder.num_distances + MORE_GEOMETRY

    def kept(self, nodes: float, paths: float) -> float:
        """Count what one round keeps."""
        hidden = self.encoder.hidden
        if self.encoder.recompute:
            return nodes * hidden * self.number
        of_node = hidden * self.number + hidden * FLOAT + 2 * FLOAT  # state; sum before the normalisation, its moments
        return nodes * of_node + paths * (KEPT_WIDTHS * hidden * self.number + self.cast())

    def widest(self, nodes: float, paths: float) -> float:
        """Count what one round holds when it adds the states of the four nodes."""
        hidden = self.encoder.hidden
        return hidden * self.number * (8 * nodes + WIDEST_WIDTHS * paths) + paths * self.cast()

    def all_kept(self, nodes: float, paths: float, *, inside: bool) -> float:
        """Count what all rounds keep; `inside` the pass, features in float32 are there whatever keeps them."""
        of_path = self.geometry()
        if self.number == HALF and not (self.encoder.recompute or inside):
            of_path = 4 * INDEX
        embedded = nodes * (self.encoder.hidden * self.number + FLOAT)
        return embedded + paths * of_path + self.encoder.interactions * self.kept(nodes, paths)


def kept_bytes(config: PretrainStageConfig, batch: TreeCounts) -> int:
    """Return the bytes that are kept of a batch from the forward pass to the backward pass, the batch included."""
    return round(_kept(config, batch))


def _kept(config: PretrainStageConfig, batch: TreeCounts) -> float:
    has_order = config.order.weight > 0  # else nothing that is learned follows from descendants
    return _heads(config, batch) + _encoder_kept(config, batch, num_parameters(config), is_down_learned=has_order)


def _encoder_kept(
    config: PretrainStageConfig | FinetuneStageConfig, batch: TreeCounts, weights: int, *, is_down_learned: bool = True
) -> float:
    """Count what batch and encoder keep."""
    rounds = _Rounds(config.encoder, _number(config))
    kept = rounds.all_kept(batch.nodes, batch.ancestors, inside=False)
    if is_down_learned:
        kept += rounds.all_kept(batch.nodes, batch.below(config.encoder), inside=False)
    if rounds.number == HALF and not config.encoder.recompute:
        kept += HALF * weights  # autocast's copies
    return (NODE_BYTES + _features(rounds.number)) * batch.nodes + kept


def _number(config: PretrainStageConfig | FinetuneStageConfig) -> int:
    return HALF if config.training.precision.endswith("-mixed") else FLOAT


def _features(number: int) -> int:
    return NUM_FEATURES * (number if number == FLOAT else 2 * number)  # each direction makes its own copy in half


def _heads(config: PretrainStageConfig, batch: TreeCounts) -> float:
    """Count what growth and order keep."""
    hidden, growth, number = config.encoder.hidden, config.growth, _number(config)
    thresholds = growth.num_lengths + growth.num_angles + growth.num_radii
    of_node = (hidden + 2 * hidden) * number  # what growth is predicted from, and the layer behind
    of_node += FLOAT * (_growth_width(growth) + CHILD_CLASSES + 2 * CHANNELS * growth.components)
    of_node += FLOAT * thresholds * (2 * growth.components + 1)  # distances, shares of each component, differences
    of_node += 4 * FLOAT + 2 * INDEX + 4 * FLAG
    return batch.nodes * of_node + _order(config, batch)


def _order(config: PretrainStageConfig, batch: TreeCounts) -> float:
    order, hidden = config.order, config.encoder.hidden
    if order.weight == 0:
        return 0.0
    of_node = 4 * hidden * _number(config) + order.width * FLOAT
    of_pair = (order.width + 1) * FLOAT + 2 * INDEX + 2 * FLAG
    return batch.nodes * of_node + PAIRS * batch.ancestors * of_pair


@dataclass(frozen=True)
class Peak:
    """Hold the bytes of each moment at which a step can take most."""

    forwards: float
    backwards: float
    optimizer: float

    @property
    def bytes(self) -> int:
        """Return the largest one."""
        return round(max(self.forwards, self.backwards, self.optimizer))


def predict_peak(config: PretrainStageConfig, batch: TreeCounts) -> Peak:
    """Return what pretraining steps take, with weights and optimizer, above the process itself.

    Args:
        config: of the stage.
        batch: what is in the model at one time: of a batch that is cut by `training.accumulate`, the largest part.
    """
    encoder, order, number = config.encoder, config.order, _number(config)
    rounds = _Rounds(encoder, number)
    nodes, below = batch.nodes, batch.below(encoder)
    weights = FLOAT * num_parameters(config)
    state = 3 * weights + (weights if config.training.accumulate > 1 else 0)
    kept = _kept(config, batch)
    if order.weight > 0:
        forwards = _widest_moment(rounds, batch, kept - _heads(config, batch))
    else:
        forwards = kept - _heads(config, batch) + rounds.all_kept(nodes, below, inside=True)
        forwards += rounds.widest(nodes, below) - rounds.kept(nodes, below) * (not encoder.recompute)
        if encoder.recompute:
            forwards -= GEOMETRIES * encoder.hidden * number * below  # no layer before the embeddings is kept
    if order.weight > 0:
        backwards = kept + 3 * PAIRS * batch.ancestors * order.width * FLOAT
    else:
        backwards = kept + 2 * nodes * config.growth.components * config.growth.num_lengths * FLOAT
    return Peak(state + forwards, state + backwards, 4 * weights)


def _widest_moment(rounds: _Rounds, batch: TreeCounts, kept: float) -> float:
    """Return what there is when the last round adds the states of the four nodes; `kept` at last."""
    nodes, below = batch.nodes, batch.below(rounds.encoder)
    if rounds.encoder.recompute:  # backwards: gradients of both embeddings are there, too
        return kept + 3 * rounds.encoder.hidden * rounds.number * nodes + rounds.widest(nodes, below)
    inside, outside = (rounds.all_kept(nodes, below, inside=one) for one in (True, False))
    return kept + inside - outside - rounds.kept(nodes, below) + rounds.widest(nodes, below)


def predict_finetune_peak(config: FinetuneStageConfig, batch: TreeCounts) -> Peak:
    """Return what steps of a fine-tuning take; see `predict_peak`."""
    encoder, number = config.encoder, _number(config)
    rounds = _Rounds(encoder, number)
    kept = _encoder_kept(config, batch, num_encoder_parameters(encoder))
    # Pooling keeps the embeddings beside each other, in float32, and what is left without their mean.
    pooled = 2 * encoder.hidden * batch.nodes * (number * (number == HALF) + 2 * FLOAT)
    weights = FLOAT * num_encoder_parameters(encoder)
    state = 3 * weights + (weights if config.training.accumulate > 1 else 0)
    backwards = kept + pooled + 2 * 2 * encoder.hidden * batch.nodes * FLOAT
    return Peak(state + _widest_moment(rounds, batch, kept), state + backwards, 4 * weights)


def predict_gin_peak(config: FinetuneStageConfig, batch: TreeCounts) -> Peak:
    """Return what steps of GIN take, whose rounds go along edges; see `predict_peak`."""
    hidden, number, layers = config.encoder.hidden, _number(config), 3 * config.encoder.interactions
    weights = FLOAT * (layers * (_two_layers(hidden, hidden, hidden) + 2 * hidden))
    state = 3 * weights + (weights if config.training.accumulate > 1 else 0)
    # What goes in, its layer, what is normalised, and its ReLU; pooling; then messages of an edge both ways.
    kept = batch.nodes * (NODE_BYTES + layers * hidden * (2 * number + 2 * FLOAT) + 3 * hidden * FLOAT)
    kept += 2 * batch.ancestors * 2 * INDEX
    return Peak(state + kept + 2 * batch.ancestors * hidden * number, state + kept + 2 * batch.nodes * hidden * FLOAT,
                4 * weights)  # fmt: skip


def work_of(encoder: EncoderConfig) -> float:
    """Return the arithmetic of a path, over that of one with hidden 64, 3 interactions and 50 distances."""

    def products(hidden: int, interactions: int, distances: int, recompute: bool) -> float:
        geometry = (GEOMETRIES * distances + MORE_GEOMETRY) * hidden
        # Per path three geometries, their layers before, 4 H, 2 H and H; per node the projected states.
        layers = (3 + 12 + 8 + 2 + 16) * hidden**2
        return interactions * (geometry + layers) * (4 / 3 if recompute else 1)

    own = products(encoder.hidden, encoder.interactions, encoder.num_distances, encoder.recompute)
    return own / products(64, 3, 50, False)
