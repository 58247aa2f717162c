"""The random forest tells classes and numbers from morphometrics."""

import numpy as np

from kdgat.trees.evaluation.forest import feature_table, forest_scores
from kdgat.trees.evaluation.morphometrics import morphometric_names
from kdgat.trees.synthetic.dataset import PART_START, draw


def features_and_labels(part, count, classes=None):
    trees = list(draw("neurons", classes, count, seed=0, start=PART_START[part]))
    return feature_table(each.tree for each in trees), np.array([each.label for each in trees])


def test_morphometrics_tell_most_classes_but_not_all():
    features, labels = features_and_labels("train", 200)
    test_features, test_labels = features_and_labels("test", 150)
    assert features.shape == (200, len(morphometric_names()))
    scores = forest_scores(features, labels, test_features, seed=0)
    np.testing.assert_allclose(scores.sum(axis=1), 1.0)
    accuracy = (scores.argmax(axis=1) == test_labels).mean()
    assert 0.5 < accuracy < 0.97
    assert np.array_equal(scores, forest_scores(features, labels, test_features, seed=0))
    assert not np.array_equal(scores, forest_scores(features, labels, test_features, seed=1))


def test_mirror_images_cannot_be_told_by_morphometrics():
    features, labels = features_and_labels("train", 120, ["reference", "mirror"])
    test_features, test_labels = features_and_labels("test", 120, ["reference", "mirror"])
    accuracy = (forest_scores(features, labels, test_features, seed=0).argmax(axis=1) == test_labels).mean()
    assert abs(accuracy - 0.5) < 5 * 0.5 / np.sqrt(120)


def test_labels_that_are_no_whole_numbers_are_a_regression():
    features, _ = features_and_labels("train", 120)
    target = np.log(features[:, morphometric_names().index("total length")])
    predicted = forest_scores(features[:80], target[:80], features[80:], seed=0)
    assert predicted.shape == (40,)
    residual = ((predicted - target[80:]) ** 2).mean() / target[80:].var()
    assert residual < 0.2
