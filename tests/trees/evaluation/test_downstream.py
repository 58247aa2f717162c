"""A random forest tells classes and numbers from morphometrics."""

import numpy as np

from kdgat.trees.evaluation.downstream import Labelled, forest
from kdgat.trees.evaluation.morphometrics import feature_table, morphometric_names
from kdgat.trees.synthetic.classes import CLASSES
from kdgat.trees.synthetic.dataset import PART_START, draw
from kdgat.trees.training.finetuning import Task


def features_and_labels(part, count, classes=None):
    trees = list(draw("neurons", classes, count, seed=0, start=PART_START[part]))
    return feature_table(each.tree for each in trees), np.array([each.label for each in trees])


def test_morphometrics_tell_most_classes_but_not_all():
    features, labels = features_and_labels("train", 200)
    test_features, test_labels = features_and_labels("test", 150)
    assert features.shape == (200, len(morphometric_names()))
    task = Task(CLASSES["neurons"])
    scores = forest(Labelled(features, labels), test_features, 0, task)
    np.testing.assert_allclose(scores.sum(axis=1), 1.0)
    accuracy = (scores.argmax(axis=1) == test_labels).mean()
    assert 0.5 < accuracy < 0.97
    assert np.array_equal(scores, forest(Labelled(features, labels), test_features, 0, task))
    assert not np.array_equal(scores, forest(Labelled(features, labels), test_features, 1, task))


def test_mirror_images_cannot_be_told_by_morphometrics():
    features, labels = features_and_labels("train", 120, ["reference", "mirror"])
    test_features, test_labels = features_and_labels("test", 120, ["reference", "mirror"])
    task = Task(("reference", "mirror"))
    accuracy = (forest(Labelled(features, labels), test_features, 0, task).argmax(axis=1) == test_labels).mean()
    assert abs(accuracy - 0.5) < 5 * 0.5 / np.sqrt(120)


def test_labels_that_are_no_whole_numbers_are_a_regression():
    features, _ = features_and_labels("train", 120)
    target = np.log(features[:, morphometric_names().index("total length")])
    predicted = forest(Labelled(features[:80], target[:80]), features[80:], 0, Task(()))
    assert predicted.shape == (40, 1)
    residual = ((predicted[:, 0] - target[80:]) ** 2).mean() / target[80:].var()
    assert residual < 0.2
