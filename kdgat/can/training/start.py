"""Weights that a stage starts from: those that the same stage, of the same scale and seed, has trained before.

They are an input of the stage, known by content like any other, so they are part of its identity. Whatever does not
fit is an error: a stage that was told to start from weights never starts from scratch.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from kdgat.base import Config, validate_config
from kdgat.can.data.pool import PooledStores
from kdgat.can.models.scoring import check_features
from kdgat.can.plan import START
from kdgat.stage import RunDirectory, StageInputError, StageSpec, input_path
from kdgat.training import check_start, load_weights


def read_start(
    spec: StageSpec, directory: RunDirectory, kind: str, expected: Mapping[str, Any], pool: PooledStores | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read the weights that a stage starts from and their description; None if it starts from scratch.

    Args:
        spec, directory: the stage.
        kind: of the weights.
        expected: entries that the description must have, so that the model is the same one.
        pool: windows whose features the weights must have been trained on.

    Raises:
        StageInputError, UserError: if the weights are of another model or of other features.
        WeightsError: if the file is damaged.
    """
    if START not in spec.inputs:
        return None
    path = input_path(spec, directory, START)
    weights, description = load_weights(path)
    if description.get("kind") != kind:
        raise StageInputError(f"{path} holds weights of kind {description.get('kind')!r}, {spec.stage} needs {kind!r}")
    for name, value in expected.items():
        found = description.get(name)
        if isinstance(value, Config):  # a key that is younger than the weights has its default there
            found, value = (dict(config) for config in (validate_config(type(value), found or {}), value))
        check_start(path, found, value, name)
    if pool is not None:
        check_features(description, pool, f"{path}, which {spec.stage} should start from,")
    return weights, description
