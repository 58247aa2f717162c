"""Weights of a pretraining that others start from."""

from pathlib import Path

from kdgat.stage import StageInputError
from kdgat.training import check_start
from kdgat.training.weights import read_description
from kdgat.trees.names import FAMILY
from kdgat.trees.sections import FEATURE_VERSION, EncoderConfig, read_encoder


def check_encoder(path: Path, encoder: EncoderConfig) -> None:
    """Check that an encoder of this configuration may start from these weights.

    Raises:
        StageInputError: naming the key in which they differ.
        WeightsError: if the file is damaged.
    """
    expected = {"family": FAMILY, "feature_version": FEATURE_VERSION, "encoder": read_encoder(encoder)}
    found = read_description(path)["config"]
    if "growth" not in found or "length_range" not in found:
        raise StageInputError(
            f"{path} holds no pretraining, but {found.get('kind', 'another model')}: name one of `pretrain`"
        )
    known = {key: found.get(key) for key in expected}
    check_start(path, known, expected, advice="keep the configuration of that encoder, or pretrain anew")
