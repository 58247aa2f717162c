"""All trained models of one seed as one thing that scores windows: each runs once, the fusions read its outputs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Batch

from kdgat.base import UserError, sha256_of_file
from kdgat.can.data.pool import PooledStores
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.models.fusion import Fusion
from kdgat.can.models.names import (
    ATTENTION,
    ENSEMBLE,
    ENSEMBLE_MEMBERS,
    FUSION_KINDS,
    describe_simple,
    detector_names,
)
from kdgat.can.models.scoring import (
    Progress,
    attention_outputs,
    autoencoder_outputs,
    check_features,
    load_attention,
    load_autoencoder,
    score_network,
    window_states,
)
from kdgat.can.training.fusion import KIND as FUSION
from kdgat.can.training.fusion import fuse, load_fusion
from kdgat.can.training.fusion_split import learned_windows, recordings_of
from kdgat.training import load_weights

Columns = dict[str, NDArray[np.float32]]  # model -> raw score [G]; larger means attack


class DetectorSet:
    """Score windows with any of the trained models of one seed.

    A fusion is found again by the content of the two weights it was trained on, so it can never be given others. It
    appears under its own name, as the kind that its stage chose, and under `<name>_<kind>` for each kind.
    """

    def __init__(self, weights: Mapping[str, Path]) -> None:
        """Hold the weights files of the models; they are read when they are needed."""
        self._paths = dict(weights)
        self._descriptions: dict[str, dict[str, Any]] = {name: load_weights(path)[1] for name, path in weights.items()}
        self._fusions: dict[str, tuple[Fusion, dict[str, Any]]] = {}
        hashes = {sha256_of_file(path): name for name, path in weights.items()}
        self._members: dict[str, tuple[str, str]] = {}
        for name, description in self._descriptions.items():
            if description["kind"] == FUSION:
                self._fusions[name] = load_fusion(self._paths[name])
                members = [hashes.get(description["members"][role]) for role in ("autoencoder", "gat")]
                if None in members:
                    raise UserError(
                        f"{weights[name]} was trained on other weights than those of {', '.join(sorted(weights))}: "
                        "train the fusion again"
                    )
                self._members[name] = (str(members[0]), str(members[1]))

    @property
    def names(self) -> list[str]:
        """List what can be asked for."""
        return detector_names(self._paths)

    @property
    def ensemble_members(self) -> list[str]:
        """List the attention networks that are there."""
        return [name for name in ENSEMBLE_MEMBERS if name in self._paths]

    def learned_from(self, pool: PooledStores) -> NDArray[np.bool_]:
        """Mark the validation windows [G] that a fusion has learned from, so that none is judged by them."""
        recording, learned = recordings_of(pool), np.zeros(pool.num_graphs, bool)
        for _, description in self._fusions.values():
            learned |= learned_windows(description, recording)
        return learned

    def describe(self, name: str) -> str:
        """State what a model is made of."""
        fusion = self._fusion_of(name)
        if fusion is None:
            return describe_simple(name, self._paths)
        return f"{self._kind_of(name, fusion)} of {' and '.join(self._members[fusion])}"

    def score(self, pool: PooledStores, wanted: list[str] | None = None, progress: Progress | None = None) -> Columns:
        """Return the raw scores [G] of the wanted models (default: all) for every window of a pool.

        For the mean of the attention networks these are the scores of each: whoever knows validation windows calibrates
        them before they are averaged.
        """
        wanted = self.names if wanted is None else wanted
        unknown = [name for name in wanted if name not in self.names]
        if unknown:
            raise UserError(f"model {unknown[0]!r} is not among the trained ones: {', '.join(self.names)}")
        members_of = {ENSEMBLE: self.ensemble_members}
        wanted = list(dict.fromkeys(member for name in wanted for member in members_of.get(name, [name])))
        fusions = {name: fusion for name in wanted if (fusion := self._fusion_of(name)) is not None}
        single = [name for name in wanted if name not in fusions]
        members = [member for fusion in fusions.values() for member in self._members[fusion]]
        needed = list(dict.fromkeys([*single, *members]))
        outputs = {
            name: self._run(name, pool, _part(progress, place, len(needed), pool.num_graphs))
            for place, name in enumerate(needed)
        }
        scores: Columns = {}
        for name in wanted:
            if name in fusions:
                states = window_states([outputs[member] for member in self._members[fusions[name]]])
                scores[name] = fuse(self._fusions[fusions[name]][0], states, self._kind_of(name, fusions[name]))
            else:
                scores[name] = outputs[name]["logit" if self._descriptions[name]["kind"] == ATTENTION else "score"]
        return scores

    @property
    def trained(self) -> list[str]:
        """List the models that have weights of their own."""
        return list(self._paths)

    def network(self, name: str) -> GraphAttentionNetwork:
        """Load an attention network; UserError if the name is that of something else."""
        return load_attention(self._paths[name])[0]

    def num_parameters(self, name: str) -> int:
        """Count the trainable parameters of a model with weights of its own; of a fusion, what it adds."""
        if name in self._fusions:
            return sum(parameter.numel() for parameter in self._fusions[name][0].parameters())
        return sum(parameter.numel() for parameter in self._load(name).parameters())

    def num_bytes(self, name: str) -> int:
        """Return the size of a model's file of weights."""
        return self._paths[name].stat().st_size

    def forward(self, name: str, device: torch.device) -> Callable[[Batch], Columns]:
        """Return what gives the outputs of a model, or of a fusion behind its members, for a batch on the device."""
        if name in self._fusions:
            members = [self.forward(member, device) for member in self._members[name]]
            fusion, description = self._fusions[name]
            return lambda batch: {
                "logit": fuse(fusion, window_states([run(batch) for run in members]), description["default"])
            }
        model = self._load(name).to(device).eval()
        outputs: Callable[[Any, Batch], dict[str, torch.Tensor]] = (
            attention_outputs if self._descriptions[name]["kind"] == ATTENTION else autoencoder_outputs
        )
        return lambda batch: {key: value.float().cpu().numpy() for key, value in outputs(model, batch).items()}

    def _load(self, name: str) -> GraphAttentionNetwork | GraphAutoencoder:
        load = load_attention if self._descriptions[name]["kind"] == ATTENTION else load_autoencoder
        return load(self._paths[name])[0]

    def _run(self, name: str, pool: PooledStores, progress: Progress | None) -> Columns:
        path = self._paths[name]
        check_features(self._descriptions[name], pool, str(path))
        return score_network(self._load(name), pool, progress=progress)

    def _fusion_of(self, name: str) -> str | None:
        """Return the fusion weights behind a name such as `fusion_small_mlp`, None for a single model."""
        for fusion in self._fusions:
            if name == fusion or name in [f"{fusion}_{kind}" for kind in FUSION_KINDS]:
                return fusion
        return None

    def _kind_of(self, name: str, fusion: str) -> Any:
        return self._fusions[fusion][1]["default"] if name == fusion else name.removeprefix(f"{fusion}_")


def _part(progress: Progress | None, place: int, count: int, num_windows: int) -> Callable[[int, int], None] | None:
    """Report the progress of one of several models as that of all."""
    if progress is None:
        return None
    return lambda done, total: progress(place * num_windows + done, count * num_windows)
