"""Random forests on morphometrics: the baseline of the downstream tasks that needs no learnt representation."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from kdgat.trees.evaluation.morphometrics import morphometric_names, morphometrics
from kdgat.trees.structure.tree import Tree

_NUM_TREES = 300


def feature_table(trees: Iterable[Tree]) -> NDArray[np.float64]:
    """Return the morphometrics of trees, [trees, names]; columns as in `morphometric_names`."""
    names = morphometric_names()
    measured = [morphometrics(tree) for tree in trees]
    return np.array([[each[name] for name in names] for each in measured]).reshape(-1, len(names))


def forest_scores(
    train_features: ArrayLike, train_labels: ArrayLike, test_features: ArrayLike, seed: int
) -> NDArray[np.float64]:
    """Fit a random forest and return what it makes of the test features.

    Args:
        train_features: [train, features].
        train_labels: [train]; whole numbers are classes, others what is to be predicted by regression.
        test_features: [test, features].
        seed: of the forest.

    Returns:
        [test, classes] probabilities, classes in rising order; for regression [test] predictions.
    """
    labels = np.asarray(train_labels)
    if np.issubdtype(labels.dtype, np.floating):
        regressor = RandomForestRegressor(_NUM_TREES, max_features=1 / 3, random_state=seed, n_jobs=1)
        return regressor.fit(train_features, labels).predict(test_features)
    classifier = RandomForestClassifier(_NUM_TREES, random_state=seed, n_jobs=1)
    return classifier.fit(train_features, labels).predict_proba(test_features)
