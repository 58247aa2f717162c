"""What reports call the models of the family, and in what order."""

from collections.abc import Iterable

from kdgat.can.evaluation.results import DEFAULT_DETECTOR, DETECTOR
from kdgat.can.models.names import BASELINE_PREFIX, ENSEMBLE, HABITS

# In the order of the comparison: teachers, students, fusion. Except for the default detector a model has the same name
# everywhere: in results.json, in commands, as a stage, in the terminal and in the report.
MODELS = {
    DETECTOR: "",
    "autoencoder": "variational graph autoencoder (VGAE) that learns benign traffic alone",
    "normal": "graph attention network (GAT)",
    "curriculum": "the same network, trained with a curriculum",
    "distill_autoencoder": "small autoencoder that learns from the large one",
    "distill_gat": "small attention network that learns from the curriculum one",
    ENSEMBLE: "mean of the attention networks",
    "fusion": "learned combination of the large models",
    "fusion_small": "learned combination of the small ones",
    HABITS: "habits of identifiers alone; not trained",
}

# Whom a model learned from, to compare their sizes.
TEACHERS = {"distill_autoencoder": "autoencoder", "distill_gat": "curriculum"}


def model_of_count(key: str) -> str:
    """Name the model of a parameter count: `fusion-small-dqn` (stage, scale, part) -> `fusion_small_dqn`."""
    stage, scale, *parts = [*key.split("-"), ""] if "-" not in key else key.split("-")
    small_fusion = ["small"] if stage == "fusion" and scale == "small" else []
    return "_".join([stage, *small_fusion, *filter(None, parts)])


def model_name(key: str) -> str:
    """Name a model for people: its key, unless that is the default detector's or a baseline's.

    >>> model_name("fusion_small_dqn"), model_name("baseline: log_period")
    ('fusion_small_dqn', 'baseline: log period')
    """
    if key == DETECTOR:
        return DEFAULT_DETECTOR
    return key.replace("_", " ") if key.startswith(BASELINE_PREFIX) else key


def described(names: Iterable[str]) -> str:
    """Say what those of the models are that need a word, in the order of the comparison."""
    there = set(names)
    return "; ".join(f"{name}: {text}" for name, text in MODELS.items() if text and name in there)


def is_variant(key: str) -> bool:
    """Return whether a model is one kind of a fusion; the fusion under its own name is the kind that was chosen."""
    return key.startswith("fusion_") and key != "fusion_small"


def model_order(key: str) -> tuple[int, str]:
    """Sort models as the comparison shows them, unknown ones last."""
    names = list(MODELS)
    matches = [index for index, name in enumerate(names) if key == name or key.startswith(name + "_")]
    return (max(matches) if matches else len(names)), key
