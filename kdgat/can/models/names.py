"""The names of trained models and of the detectors that can be made of them."""

from collections.abc import Iterable
from typing import Final, Literal, get_args

FusionKind = Literal["weighted_average", "mlp", "dqn"]
FUSION_KINDS: tuple[FusionKind, ...] = get_args(FusionKind)  # simplest first

# The kinds of networks, as their files of weights say.
ATTENTION: Final = "attention"
AUTOENCODER: Final = "autoencoder"

# The mean of the logits of all attention networks that the run has: what one of them gets wrong on an unknown vehicle
# the others seldom do.
ENSEMBLE: Final = "ensemble"
ENSEMBLE_MEMBERS: Final[tuple[str, ...]] = ("normal", "curriculum", "distill_gat")

# Their raw score is a log error, of any scale; that of all others is the logit of a probability.
ERROR_MODELS: Final[tuple[str, ...]] = ("autoencoder", "distill_autoencoder")

# The habits of identifiers alone: nothing is trained, and no label is read.
HABITS: Final = "habits"
BASELINE_PREFIX: Final = "baseline: "  # one feature alone, which a model has to beat

FUSIONS: Final[tuple[str, ...]] = ("fusion", "fusion_small")

# What the graph of an exported network reads and says.
EXPORT_INPUTS: Final = ("x", "edge_index", "edge_attr", "batch", "num_graphs")
EXPORT_OUTPUTS: Final = ("window_logit", "node_logit")


def detector_names(models: Iterable[str]) -> list[str]:
    """List what can be asked for where these models are trained: themselves, each kind of a fusion, the ensemble.

    >>> detector_names(["autoencoder", "normal"])
    ['autoencoder', 'normal', 'ensemble']
    """
    names: list[str] = []
    for name in models:
        names += [name, *(f"{name}_{kind}" for kind in FUSION_KINDS if name in FUSIONS)]
    return [*names, ENSEMBLE] if any(member in names for member in ENSEMBLE_MEMBERS) else names


def describe_simple(name: str, models: Iterable[str]) -> str:
    """State what a model that is no fusion is made of, where these are trained.

    >>> describe_simple("ensemble", ["distill_gat", "normal"])
    'mean of normal, distill_gat'
    """
    if name != ENSEMBLE:
        return name
    known = set(models)
    return f"mean of {', '.join(member for member in ENSEMBLE_MEMBERS if member in known)}"
