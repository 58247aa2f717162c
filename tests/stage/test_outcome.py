"""Outcomes survive the way through a file and give the exit status."""

import math

import pytest

from kdgat.stage import Failed, FailureKind, Finished, Paused, RunDirectoryError
from kdgat.stage.outcome import exit_status, parse_outcome

OUTCOMES = [
    (Finished(metrics={"f1": 0.5}, artifacts={"weights": "weights.safetensors"}), 0),
    (Paused(checkpoint="checkpoints/checkpoint-00000001.pt", reason="SIGTERM received"), 75),
    (Failed(kind=FailureKind.CUDA_OOM, evidence="out of memory"), 1),
    (Failed(kind=FailureKind.ENVIRONMENT, evidence="Stale file handle"), 69),
]


@pytest.mark.parametrize(("outcome", "status"), OUTCOMES)
def test_round_trip_and_exit_status(outcome, status):
    assert parse_outcome(outcome.model_dump_json()) == outcome
    assert exit_status(outcome) == status


def test_metric_that_is_undefined_survives_as_nan():
    outcome = parse_outcome(Finished(metrics={"auc": math.nan}).model_dump_json())
    assert isinstance(outcome, Finished)
    assert math.isnan(outcome.metrics["auc"])


def test_unknown_status_is_refused():
    with pytest.raises(RunDirectoryError, match="is not what this kdgat writes"):
        parse_outcome('{"status": "vanished"}')
