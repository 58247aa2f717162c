"""Trained models from their weights, and what they say about many windows, in batches."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Batch

from kdgat.base import UserError, validate_config
from kdgat.can.backend import give_up, new_scaler
from kdgat.can.data.pool import PooledStores
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder, reconstruction_error
from kdgat.can.models.names import ATTENTION, AUTOENCODER
from kdgat.can.models.pooling import graph_max, graph_mean
from kdgat.can.models.standardise import column_statistics
from kdgat.can.sections import AttentionConfig, AutoencoderConfig
from kdgat.training import load_weights
from kdgat.training.device import choose_device

# On a CPU larger batches are slower: their intermediates no longer fit the cache. On a GPU they fill the device.
WINDOWS_PER_BATCH = {"cpu": 128, "cuda": 2048}
_accelerator = "auto"

Outputs = dict[str, Tensor]  # name -> [G, ...] of one batch
Progress = Callable[[int, int], None]  # windows done, of how many


def describe_model(model: GraphAttentionNetwork | GraphAutoencoder, pool: PooledStores) -> dict[str, Any]:
    """Return plain data from which `build_model` makes the same model: the `config` of its weights file."""
    is_attention = isinstance(model, GraphAttentionNetwork)
    return {
        "kind": ATTENTION if is_attention else AUTOENCODER,
        "model": model.config.model_dump(mode="json"),
        "num_node_features": pool.num_node_features,
        "num_edge_features": pool.num_edge_features,
        "node_features": list(pool.features[0]) if pool.features else None,
        "edge_features": list(pool.features[1]) if pool.features else None,
        "known_ids": model.known_ids.tolist() if isinstance(model, GraphAttentionNetwork) else [],
    }


def build_model(description: dict[str, Any]) -> GraphAttentionNetwork | GraphAutoencoder:
    """Make an untrained model from its description."""
    sizes = (description["num_node_features"], description["num_edge_features"])
    if description["kind"] == ATTENTION:
        config = validate_config(AttentionConfig, description["model"])
        return GraphAttentionNetwork(config, *sizes, known_ids=description["known_ids"])
    return GraphAutoencoder(validate_config(AutoencoderConfig, description["model"]), *sizes)


def load_attention(path: Path) -> tuple[GraphAttentionNetwork, dict[str, Any]]:
    """Read a trained attention network; UserError if the file holds something else, WeightsError if there is none."""
    model, description = load_network(path, ATTENTION)
    assert isinstance(model, GraphAttentionNetwork)
    return model, description


def load_autoencoder(path: Path) -> tuple[GraphAutoencoder, dict[str, Any]]:
    """Read a trained autoencoder; UserError if the file holds something else, WeightsError if there is none."""
    model, description = load_network(path, AUTOENCODER)
    assert isinstance(model, GraphAutoencoder)
    return model, description


def load_network(path: Path, kind: str) -> tuple[nn.Module, dict[str, Any]]:
    """Read a trained network of this kind; errors as of `load_attention`."""
    weights, description = load_weights(path)
    if description.get("kind") != kind:
        raise UserError(
            f"{path} holds weights of kind {description.get('kind')!r}, expected {kind!r}: give another stage"
        )
    model = build_model(description)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{path} does not fit the model of this kdgat ({error}): train again") from error
    return model.eval(), description


def check_features(description: dict[str, Any], pool: PooledStores, what: str) -> None:
    """Raise UserError unless a model was trained on the features that the pool has."""
    trained = (description["node_features"], description["edge_features"])
    widths = (description["num_node_features"], description["num_edge_features"])
    if widths != (pool.num_node_features, pool.num_edge_features):
        raise UserError(
            f"{what} was trained on {widths} node and edge features, the windows have "
            f"{(pool.num_node_features, pool.num_edge_features)}: prepare the data and train with the same version"
        )
    if pool.features is not None and trained[0] is not None:
        for expected, found in zip(trained, pool.features, strict=True):
            different = [f"{a} is now {b}" for a, b in zip(expected, found, strict=True) if a != b]
            if different:
                raise UserError(f"{what} was trained on other features ({different[0]}): train again on these windows")


def fit_standardisation(
    model: GraphAttentionNetwork | GraphAutoencoder, pool: PooledStores, chosen: NDArray[np.bool_]
) -> None:
    """Set the input scaling of a model from the windows marked in `chosen` [G]."""
    num_values = int(pool.node_counts[chosen].sum()) * pool.num_node_features
    model.standardise_nodes.set_statistics(*_statistics(lambda: pool.feature_chunks("node", chosen), num_values))
    num_values = int(pool.edge_counts[chosen].sum()) * pool.num_edge_features
    model.standardise_edges.set_statistics(*_statistics(lambda: pool.feature_chunks("edge", chosen), num_values))


def _statistics(
    chunks: Callable[[], Iterable[NDArray[np.float32]]], num_values: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and deviation per column, from the backend of the process."""
    scaler = new_scaler(num_values)
    if scaler is not None:
        try:
            return column_statistics(chunks, scaler=scaler)
        except UserError:
            raise
        except Exception as error:  # whatever a device can run into: memory, driver
            give_up("cuml", "the input scaling", error)
    return column_statistics(chunks)


def use_accelerator(accelerator: str) -> None:
    """Choose where this process computes what is no training, as `training.accelerator` has it."""
    global _accelerator
    _accelerator = accelerator


def stage_device() -> torch.device:
    """Return the device of this process; errors of `kdgat.training.device.check_accelerator`."""
    return choose_device(_accelerator)


def run_model(
    model: nn.Module,
    pool: PooledStores,
    forward: Callable[[Any, Batch], Outputs],
    indices: NDArray[np.int64] | None = None,
    progress: Progress | None = None,
) -> dict[str, NDArray[np.float32]]:
    """Return `forward(model, batch)` for windows `indices` (default: all), one row per window in that order.

    The model is used in evaluation mode and left so, on the device of this process.
    """
    chosen = np.arange(pool.num_graphs) if indices is None else np.asarray(indices, np.int64)
    order = np.argsort(chosen, kind="stable")  # the pool keeps ascending indices in their order
    device = stage_device()
    size = WINDOWS_PER_BATCH[device.type]
    model = model.to(device).eval()
    results: dict[str, NDArray[np.float32]] = {}
    with torch.inference_mode():
        for start in range(0, len(chosen), size):
            places = order[start : start + size]
            outputs = forward(model, pool.gather(chosen[places]).to(device, non_blocking=True))
            for name, values in outputs.items():
                if name not in results:
                    results[name] = np.empty((len(chosen), *values.shape[1:]), np.float32)
                results[name][places] = values.float().cpu().numpy()
            if progress is not None:
                progress(min(start + size, len(chosen)), len(chosen))
    return results


def attention_outputs(model: GraphAttentionNetwork, batch: Batch) -> Outputs:
    """Return what is known of each window from a graph attention network, [G] each and [G, 4] of the embedding."""
    output = model(batch)
    return {
        "logit": output.window_logit,
        "node_logit_max": graph_max(output.node_logit, batch.batch, int(batch.num_graphs)),
        "node_logit_mean": graph_mean(output.node_logit, batch.batch, batch.ptr),
        "embedding": _summary(output.embedding),
    }


def autoencoder_outputs(model: GraphAutoencoder, batch: Batch) -> Outputs:
    """Return what is known of each window from an autoencoder: log errors [G] and a summary [G, 4] of the latent.

    Errors are logarithms: they span decades, and a threshold or a linear model works on their ratios.
    """
    output = model(batch)
    error = reconstruction_error(batch, output)
    latent = graph_mean(output.latent_mean, batch.batch, batch.ptr)
    logs = {"mean": error.mean.clamp(min=1e-12).log(), "max": error.maximum.clamp(min=1e-12).log()}
    return {
        "score": logs[model.config.score],
        "error_mean": logs["mean"],
        "error_max": logs["max"],
        "latent": _summary(latent),
    }


def score_network(
    model: GraphAttentionNetwork | GraphAutoencoder,
    pool: PooledStores,
    indices: NDArray[np.int64] | None = None,
    progress: Progress | None = None,
) -> dict[str, NDArray[np.float32]]:
    """Return `attention_outputs` of many windows, with the score in `logit`, or `autoencoder_outputs`, in `score`."""
    if isinstance(model, GraphAttentionNetwork):
        return run_model(model, pool, attention_outputs, indices, progress)
    return run_model(model, pool, autoencoder_outputs, indices, progress)


def window_states(sources: Sequence[dict[str, NDArray[np.float32]]]) -> NDArray[np.float32]:
    """Put the outputs of several models side by side: one state [G, S] per window."""
    columns = [values.reshape(len(values), -1) for outputs in sources for values in outputs.values()]
    return np.concatenate(columns, axis=1)


def _summary(values: Tensor) -> Tensor:
    """Return mean, deviation, maximum and minimum over the columns of [G, P], as [G, 4]."""
    return torch.stack(
        [values.mean(dim=1), values.std(dim=1, correction=0), values.amax(dim=1), values.amin(dim=1)], dim=1
    )
