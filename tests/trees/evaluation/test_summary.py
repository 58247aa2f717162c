"""Evaluations of several seeds as one."""

import pytest

from kdgat.run import Interval
from kdgat.trees.evaluation.results import FINETUNED, Evaluation, ScoreRow, TaskKind
from kdgat.trees.evaluation.summary import summarise


@pytest.mark.parametrize("task", ["classes", "number"])
def test_the_interval_of_an_accuracy_is_held_within_0_and_1_and_pools_as_before(task: TaskKind) -> None:
    scores = (0.0, 0.75)
    evaluations = [
        Evaluation(
            seed=seed,
            task=task,
            trees={},
            nodes={},
            median_edge=1.0,
            growth=[],
            order=[],
            scores=[ScoreRow(method=FINETUNED, label_fraction=1.0, num_labels=4, draw=0, score=score)],
        )
        for seed, score in enumerate(scores)
    ]
    found = summarise(evaluations, created="now").scores[0].score
    assert ((found.low, found.high) == (0.0, 1.0)) == (task == "classes"), "R2 may be below 0"
    assert Interval.pooled([found, found]).deviation == pytest.approx(Interval.of(scores * 2).deviation)
    assert Interval.model_validate(found.model_dump()) == found
