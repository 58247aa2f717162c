"""What reports call the models of the family, and in what order."""

from kdgat.can.evaluation.results import DETECTOR
from kdgat.can.kinds import RUN_KINDS
from kdgat.can.models.names import BASELINE_PREFIX, CLOCK, ENSEMBLE, FUSIONS

# In the order of the comparison: teachers, students, fusion.
MODEL_NAMES = {
    DETECTOR: "Default detector",
    **{kind.name: kind.title for kind in RUN_KINDS if kind.trains and kind.name not in FUSIONS},
    ENSEMBLE: "Mean of the GATs",
    "fusion": RUN_KINDS["fusion"].title,
    "fusion_small": "Fusion of students",
    CLOCK: "Arrival clock",
}
ABBREVIATIONS = ("dqn", "mlp")

# Whom a model learned from, to compare their sizes.
TEACHERS = {"distill_autoencoder": "autoencoder", "distill_gat": "curriculum"}


def model_of_count(key: str) -> str:
    """Name the model of a parameter count: `fusion-small-dqn` (stage, scale, part) -> `fusion_small_dqn`."""
    stage, scale, *parts = [*key.split("-"), ""] if "-" not in key else key.split("-")
    small_fusion = ["small"] if stage == "fusion" and scale == "small" else []
    return "_".join([stage, *small_fusion, *filter(None, parts)])


def model_name(key: str) -> str:
    """Name a model for people: `fusion_small_dqn` -> `Fusion of students, DQN`."""
    if key.startswith(BASELINE_PREFIX):
        return f"Baseline: {key.removeprefix(BASELINE_PREFIX).replace('_', ' ')}"
    for known in sorted(MODEL_NAMES, key=len, reverse=True):
        if key == known:
            return MODEL_NAMES[known]
        if key.startswith(known + "_"):
            kind = key.removeprefix(known + "_")
            return f"{MODEL_NAMES[known]}, {kind.upper() if kind in ABBREVIATIONS else kind.replace('_', ' ')}"
    return key.replace("_", " ")


def is_variant(key: str) -> bool:
    """Return whether a model is one kind of a fusion; the fusion under its own name is the kind that was chosen."""
    return key.startswith("fusion_") and key != "fusion_small"


def model_order(key: str) -> tuple[int, str]:
    """Sort models as the comparison shows them, unknown ones last."""
    names = list(MODEL_NAMES)
    matches = [index for index, name in enumerate(names) if key == name or key.startswith(name + "_")]
    return (max(matches) if matches else len(names)), key
