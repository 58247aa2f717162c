"""What embeddings are worth with few labels: a linear probe, nearest neighbours, a random forest on morphometrics.

Settings of a probe are chosen on the validation trees; the test trees are scored once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.trees.evaluation.results import ScoreRow
from kdgat.trees.training.finetuning import Task

NUM_FOREST_TREES: Final = 300
PENALTIES: Final = (0.003, 0.03, 0.3, 3.0)  # inverse strengths, of which the validation trees choose
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Labelled:
    """Hold features [G, F] of the trees of a split whose class or number [G] is known."""

    features: Floats
    labels: NDArray[Any]


def score(
    method: str, fraction: float, num_labels: int, draw: int, found: Floats, true: NDArray[Any], task: Task
) -> ScoreRow:
    """Return how good predictions are: probabilities [G, C] of classes, or numbers [G, 1], against the truth."""
    base: dict[str, Any] = {"method": method, "label_fraction": fraction, "num_labels": num_labels, "draw": draw}
    if task.classes:
        return ScoreRow(**base, score=float((found.argmax(1) == true).mean()), auc=mean_auc(found, true))
    numbers = found[:, 0]
    spread = float(((true - true.mean()) ** 2).sum())
    explained = 1 - float(((true - numbers) ** 2).sum()) / spread if spread > 0 else 0.0
    return ScoreRow(**base, score=explained, error=float(np.abs(true - numbers).mean()))


def mean_auc(found: Floats, true: NDArray[Any]) -> float | None:
    """Return the mean over classes of the AUC of one against the rest; None where no class has both."""
    from sklearn.metrics import roc_auc_score

    values = [
        float(roc_auc_score(true == one, found[:, one]))
        for one in range(found.shape[1])
        if 0 < (true == one).sum() < len(true)
    ]
    return float(np.mean(values)) if values else None


def probe(train: Labelled, validation: Labelled, test: Floats, task: Task) -> Floats:
    """Return what a linear model on standardised features predicts of the test trees."""
    from sklearn.linear_model import LogisticRegression, Ridge

    def fit(strength: float) -> Any:
        model = LogisticRegression(C=strength, max_iter=2000) if task.classes else Ridge(1 / strength)
        return _standardised(model).fit(train.features, train.labels)

    fitted = [fit(strength) for strength in PENALTIES]
    best = max(fitted, key=lambda model: model.score(validation.features, validation.labels))
    return _predict(best, test, task)


def nearest(train: Labelled, test: Floats, neighbours: int, task: Task) -> Floats:
    """Return what the nearest training trees say of the test trees."""
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

    kind = KNeighborsClassifier if task.classes else KNeighborsRegressor
    model = _standardised(kind(min(neighbours, len(train.labels))))
    return _predict(model.fit(train.features, train.labels), test, task)


def forest(train: Labelled, test: Floats, seed: int, task: Task) -> Floats:
    """Return what a random forest says of the test trees; on morphometrics, the baseline that learns no features."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    if task.classes:
        classifier = RandomForestClassifier(NUM_FOREST_TREES, random_state=seed, n_jobs=1)
        return _predict(classifier.fit(train.features, train.labels.astype(np.int64)), test, task)
    regressor = RandomForestRegressor(NUM_FOREST_TREES, max_features=1 / 3, random_state=seed, n_jobs=1)
    return _predict(regressor.fit(train.features, train.labels.astype(np.float64)), test, task)


def _standardised(model: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), model)


def _predict(model: Any, features: Floats, task: Task) -> Floats:
    if not task.classes:
        return np.asarray(model.predict(features), np.float64)[:, None]
    return _of_all_classes(model.predict_proba(features), model.classes_, task)


def _of_all_classes(found: Floats, classes: NDArray[np.int64], task: Task) -> Floats:
    """Return probabilities [G, C]; a class that gave no label has none."""
    whole = np.zeros((len(found), len(task.classes)))
    whole[:, classes] = found
    return whole


def plane(features: Floats) -> Floats:
    """Return the first two principal components [G, 2] of standardised features."""
    centred = features - features.mean(0)
    deviation = centred.std(0)
    _, _, axes = np.linalg.svd(centred / np.where(deviation > 0, deviation, 1.0), full_matrices=False)
    return (centred / np.where(deviation > 0, deviation, 1.0)) @ axes[:2].T
