"""What a file of one's own declares: a model, data, and the stages of training."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kdgat.base import UserError, unknown_key_text
from kdgat.run import EVALUATION

if TYPE_CHECKING:
    from lightning import LightningModule

PREPARE: Final = "prepare"
TRAINING: Final = "training"  # the stage of an experiment that lists none
NAME_PATTERN: Final = r"^[a-z][a-z0-9_]*$"


class ExperimentError(UserError):
    """What a file declares cannot be planned or trained."""


@dataclass(frozen=True)
class Stage:
    """One stage of training: in what it differs from the experiment.

    >>> Stage("large", data={"largest": 64}, training={"max_epochs": 5}, frozen=["encoder.*"]).name
    'large'
    """

    name: str
    data: Mapping[str, Any] = field(default_factory=dict)  # arguments of the data function that differ
    model: Mapping[str, Any] = field(default_factory=dict)  # arguments of the module that differ
    training: Mapping[str, Any] = field(default_factory=dict)  # keys of the section `training` that differ
    starts_from: str | None = None  # whose best weights it starts from: by default the stage before; "" for none
    frozen: Sequence[str] = ()  # patterns of parameters that keep their values, as "encoder.*"
    curriculum: Callable[[int, list[dict[str, float]], Any], Any] | None = None  # (epoch, metrics so far, Samples)


@dataclass(frozen=True)
class Experiment:
    """A model and its data; a file that `kdgat train FILE` takes holds one.

    Args:
        module: a LightningModule; arguments of its constructor are the keys `model.*`.
        data: returns train, validation and, if there is one, test: sequences of PyG `Data` or `HeteroData`, of tensors,
            or of lists and dictionaries of them. Its arguments are the keys `data.*`; one that is called `root`
            receives the path that `--root` names.
        stages: of training, one after the other; by default a single one.
        training: defaults of the section `training`, as {"monitor": "val_loss", "max_epochs": 50}.
        collate: makes a batch of a list of samples; by default PyG's batch, or torch's `default_collate`.
    """

    module: type[LightningModule]
    data: Callable[..., Any]
    stages: Sequence[Stage] = (Stage(TRAINING),)
    training: Mapping[str, Any] = field(default_factory=dict)
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if not names:
            raise ExperimentError("stages is empty: list at least one, or leave it away for one")
        for place, stage in enumerate(self.stages):
            if not re.fullmatch(NAME_PATTERN, stage.name) or stage.name in (PREPARE, EVALUATION, "default"):
                raise ExperimentError(f"{stage.name!r} is no name for a stage: write small letters, digits and _")
            if stage.name in names[:place]:
                raise ExperimentError(f"two stages are called {stage.name!r}: give each another name")
            if stage.starts_from and stage.starts_from not in names[:place]:
                raise ExperimentError(
                    f"stage {stage.name} starts from {stage.starts_from!r}, which no stage before it is called: "
                    f"{unknown_key_text(stage.starts_from, names[:place])}"
                )

    def stage(self, name: str) -> Stage:
        """Return the stage of this name."""
        return next(stage for stage in self.stages if stage.name == name)

    def predecessor(self, name: str) -> str | None:
        """Name the stage whose weights a stage starts from; None if it starts from scratch."""
        names = [stage.name for stage in self.stages]
        place, wanted = names.index(name), self.stage(name).starts_from
        if wanted is None:
            return names[place - 1] if place else None
        return wanted or None
