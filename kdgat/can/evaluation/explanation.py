"""How suspicious each identifier of a window is, and whether those that an alarm names first are the attacked ones.

Evidence is what the network says of an identifier, and against whom its habits speak; ranks compare its order with the
truth of the recordings. Who names them is told apart: the mean of the attention networks beside the habits as
`kdgat detect` orders identifiers, each network alone with them, and the habits alone. A rank says where in its order
the first attacked identifier stands.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import write_bytes_atomically
from kdgat.can.evaluation.results import ExplanationScores, HitRates
from kdgat.can.models.names import ENSEMBLE, HABITS
from kdgat.can.models.scaling import CALIBRATED_LIMIT
from kdgat.canbus.features import NODE_FEATURES

if TYPE_CHECKING:
    from torch import nn

    from kdgat.can.data.pool import PooledStores

FLOOD_RATE: Final = 1.0  # log2 of the bus's rate over its long-run mean
FLOOD_NOVELTY: Final = 0.1  # share of the recording before the identifier came
FLOOD_SHARE: Final = 0.25  # of a window's messages that one identifier has
EVIDENCE_OF_FLOOD: Final = 10.0  # logits: what others suffer from a flood is no reason to name them first
EVIDENCE_OF_HABITS: Final = 20.0  # against whom they speak
MOST_EXPLAINED: Final = 20_000  # windows of a scenario, evenly spaced among those that are attacked
RANK_PREFIX: Final = "rank:"
_COLUMN: Final = {name: column for column, name in enumerate(NODE_FEATURES)}


def evidence_of(
    x: NDArray[np.float32],
    node_logit: NDArray[np.floating[Any]],
    num_messages: NDArray[Any],
    is_accused: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return how suspicious nodes [N] are, larger is more, from their features [N, F] and the network's logits [N].

    `num_messages` is how many messages their window has, of all or of each; the habits speak against who `is_accused`.
    """
    evidence = node_logit.astype(np.float64)
    evidence = np.where(flooding(x, num_messages), np.maximum(evidence, 0.0) + EVIDENCE_OF_FLOOD, evidence)
    return np.where(is_accused, np.maximum(evidence, 0.0) + EVIDENCE_OF_HABITS, evidence)


def flooding(x: NDArray[np.float32], num_messages: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the nodes [N] of windows of so many messages that fill the bus and are foreign to it, or make it fast."""
    has_sent = x[:, _COLUMN["waiting"]] == 0.0
    # A whole number: the logarithm was rounded, and a share of exactly FLOOD_SHARE is none that is larger.
    share = np.rint(np.exp2(4.0 * x[:, _COLUMN["count"]].astype(np.float64))) / num_messages
    is_foreign = (x[:, _COLUMN["outranks_maximum"]] > 0.0) | (x[:, _COLUMN["novelty_maximum"]] > FLOOD_NOVELTY)
    return has_sent & (share > FLOOD_SHARE) & (is_foreign | (x[:, _COLUMN["bus_rate_maximum"]] > FLOOD_RATE))


@dataclass(frozen=True)
class Ranks:
    """Where the first attacked identifier stands in the order of suspicion, of A attacked windows of a scenario."""

    window: NDArray[np.int64]  # [A] index among the scenario's windows
    num_nodes: NDArray[np.int32]  # [A] identifiers
    num_attacked: NDArray[np.int32]  # [A] of them attacked ones, at least one
    ranks: dict[str, NDArray[np.int32]]  # who orders them -> [A], 1 is the most suspicious


def rank_attacked(networks: Mapping[str, nn.Module], pool: PooledStores) -> Ranks | None:
    """Order the identifiers of attacked windows by each network, by their mean, and by the habits alone.

    None for windows of other features than those that evidence is read from.
    """
    import torch  # whom an alarm names, `kdgat detect` asks without it

    from kdgat.can.models.scoring import WINDOWS_PER_BATCH, stage_device

    if pool.features is None or tuple(pool.features[0]) != tuple(NODE_FEATURES):
        return None
    attacked = np.concatenate([np.asarray(part["node_y"]) == 1 for part in pool.parts])
    num_attacked = np.add.reduceat(attacked, pool.node_ptr[:-1], dtype=np.int32) if pool.num_graphs else np.zeros(0)
    chosen = np.flatnonzero(num_attacked)
    if len(chosen) > MOST_EXPLAINED:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_EXPLAINED).astype(np.int64)]
    num_messages, suspect = (
        np.concatenate([np.asarray(part[name]) for part in pool.parts]) for name in ("message_count", "suspect")
    )
    device = stage_device()
    found: dict[str, list[NDArray[np.int32]]] = {}
    for start in range(0, len(chosen), WINDOWS_PER_BATCH[device.type]):
        some = chosen[start : start + WINDOWS_PER_BATCH[device.type]]
        batch = pool.gather(some)
        x, window = batch.x.numpy(), batch.batch.numpy()
        is_attacked, messages = batch.node_y.numpy() == 1, num_messages[some][window]
        is_accused = batch.node_id.numpy() == suspect[some][window]
        logits = {HABITS: np.full(len(x), -CALIBRATED_LIMIT)}
        on_device = batch.to(device)
        with torch.inference_mode():
            for name, network in networks.items():
                logits[name] = network.to(device).eval()(on_device).node_logit.double().cpu().numpy()
        if networks:
            logits[ENSEMBLE] = np.mean([logits[name] for name in networks], axis=0)
        for name, values in logits.items():
            rank = first_rank(evidence_of(x, values, messages, is_accused), is_attacked, window, len(some))
            found.setdefault(name, []).append(rank)
    return Ranks(
        window=chosen.astype(np.int64),
        num_nodes=pool.node_counts[chosen].astype(np.int32),
        num_attacked=num_attacked[chosen].astype(np.int32),
        ranks={name: np.concatenate(parts) for name, parts in found.items()},
    )


def first_rank(
    evidence: NDArray[np.float64], is_attacked: NDArray[np.bool_], window: NDArray[np.int64], num_windows: int
) -> NDArray[np.int32]:
    """Return at which place [G] the first attacked node of each window comes, by evidence [N]; of equals, by order.

    >>> first_rank(np.array([1.0, 3.0, 2.0, 5.0]), np.array([False, False, True, True]), np.array([0, 0, 0, 1]), 2)
    array([2, 1], dtype=int32)
    """
    order = np.lexsort((-evidence, window))
    first_row = np.searchsorted(window[order], np.arange(num_windows))
    place = np.arange(len(order)) - first_row[window[order]] + 1
    rank = np.full(num_windows, np.iinfo(np.int32).max, np.int64)
    hit = is_attacked[order]
    np.minimum.at(rank, window[order][hit], place[hit])
    return rank.astype(np.int32)


def score_explanations(
    ranks: Sequence[Ranks], model: str, is_alarm: NDArray[np.bool_], by_habits: NDArray[np.bool_]
) -> ExplanationScores | None:
    """Score the explanations of attacked windows that raise an alarm; None where no window is attacked.

    Args:
        ranks: of each seed of the detector.
        model: the detector; one that judges no identifiers, as a fusion, leaves that to the mean of the networks.
        is_alarm: the detector's decision, [G].
        by_habits: that of the habits alone, [G].
    """
    names = [name for name in (model, ENSEMBLE, HABITS) if all(name in one.ranks for one in ranks)]
    if not ranks or not names:
        return None
    first = ranks[0]
    return ExplanationScores(
        named_by=names[0],
        num_attacked_windows=len(first.window),
        detector=_hit_rates([one.ranks[names[0]] for one in ranks], first, is_alarm[first.window]),
        habits=_hit_rates([first.ranks[HABITS]], first, by_habits[first.window]),
    )


def _hit_rates(ranks: Sequence[NDArray[np.int32]], of: Ranks, chosen: NDArray[np.bool_]) -> HitRates:
    """Return the mean over seeds of what is hit in the chosen windows [A], and what a random order would hit."""
    if not chosen.any():
        return HitRates(num_windows=0)
    counts = list(zip(of.num_nodes[chosen].tolist(), of.num_attacked[chosen].tolist(), strict=True))
    hits = {place: float(np.mean([rank[chosen] <= place for rank in ranks])) for place in (1, 3)}
    random = {place: float(np.mean([random_hit(*count, place) for count in counts])) for place in (1, 3)}
    return HitRates(
        num_windows=len(counts), hit_at_1=hits[1], hit_at_3=hits[3], random_at_1=random[1], random_at_3=random[3]
    )


def random_hit(num_nodes: int, num_attacked: int, place: int) -> float:
    """Return the chance that one of some identifiers drawn at random is among the attacked ones.

    >>> random_hit(4, 1, 1), random_hit(4, 2, 3)
    (0.25, 1.0)
    """
    return 1.0 - comb(num_nodes - num_attacked, place) / comb(num_nodes, place) if num_nodes >= place else 1.0


def write_ranks(path: Path, ranks: Ranks) -> None:
    """Write ranks as npz, atomically."""
    buffer = io.BytesIO()
    columns = {f"{RANK_PREFIX}{name}": values for name, values in ranks.ranks.items()}
    np.savez(buffer, window=ranks.window, num_nodes=ranks.num_nodes, num_attacked=ranks.num_attacked, **columns)  # type: ignore[arg-type]
    write_bytes_atomically(path, buffer.getvalue())


def read_ranks(path: Path) -> Ranks:
    """Read what `write_ranks` wrote."""
    with np.load(path, allow_pickle=False) as file:
        columns = {name: file[name] for name in file.files}
    ranks = {name.removeprefix(RANK_PREFIX): columns[name] for name in columns if name.startswith(RANK_PREFIX)}
    return Ranks(columns["window"], columns["num_nodes"], columns["num_attacked"], ranks)
