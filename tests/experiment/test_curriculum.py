"""A function chooses the samples of each epoch, knowing the metrics before it, also after a kill."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdgat.api import train
from kdgat.experiment.check import check
from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.curriculum import CurriculumSource
from kdgat.experiment.declaration import ExperimentError
from kdgat.experiment.plan import plan_experiment
from kdgat.experiment.samples import Samples, write_samples
from kdgat.training import TrainingConfig
from tests.experiment.conftest import rings

EASY_FIRST = """
def easy_first(epoch, metrics, samples):
    assert len(metrics) == epoch
    order = samples.sizes.nodes.argsort(kind="stable")
    worse = epoch and metrics[-1]["val_loss"] > 2
    return order[: len(order) // 2] if worse or not epoch else samples.attribute("y").abs().double().numpy() + 0.1


experiment"""


def made(tmp_path: Path, function: Any) -> CurriculumSource:
    write_samples(tmp_path / "samples", rings(6), None)
    found = Samples(tmp_path / "samples").source(TrainingConfig(batch_size=4), 7, shuffle=True, curriculum=function)
    assert isinstance(found, CurriculumSource)
    return found


def with_curriculum(source: Path) -> ExperimentConfig:
    text = source.read_text().replace("\nexperiment", EASY_FIRST, 1)
    source.write_text(text.replace('frozen=["encoder.convs.0.*"]', "curriculum=easy_first"))
    return ExperimentConfig.from_preset("quick", {"source": str(source)})


def test_an_order_is_kept(tmp_path: Path) -> None:
    source = made(tmp_path, lambda epoch, metrics, samples: [5, 0, 0, 3, epoch])
    assert [batch.tolist() for batch in source.plan(1)] == [[5, 0, 0, 3], [1]]
    assert source.describe(1) == {"curriculum_samples": 4.0}


def test_weights_are_drawn_by_seed_and_epoch(tmp_path: Path) -> None:
    source = made(tmp_path, lambda epoch, metrics, samples: [0.0, 1, 0, 3, 0, 0])
    drawn = np.concatenate(source.plan(0))
    assert len(drawn) == 6
    assert set(drawn) <= {1, 3}
    assert all((a == b).all() for a, b in zip(source.plan(2), source.plan(2), strict=True))


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ([], "return weights"),
        ([[1, 2]], "return weights"),
        ([6], "samples are 0 to 5, not 6"),
        ([1.0, 2.0], "2 weights"),
        ([0.0] * 6, "not all 0"),
        ([float("nan")] * 6, "finite"),
    ],
)
def test_what_is_neither_order_nor_weights_is_refused(tmp_path: Path, found: Any, what: str) -> None:
    with pytest.raises(ExperimentError, match=what):
        made(tmp_path, lambda epoch, metrics, samples: found).plan(0)


def test_a_stage_with_a_curriculum_that_is_killed_ends_with_the_same_weights(source: Path) -> None:
    assert [found.problem for found in check(with_curriculum(source))] == ["", ""]


def test_a_curriculum_knows_the_metrics_before_and_tells_how_many_samples_it_chose(source: Path) -> None:
    with_curriculum(source)
    run = train("experiment", source.parent / "run", source=str(source), quiet=True)
    chosen = run.metrics["curriculum_samples"].dropna()
    assert len(chosen) == 3
    assert chosen.iloc[0] == 6


def test_a_change_of_a_curriculum_repeats_its_stage_alone(source: Path) -> None:
    before = {stage.name: stage.config for stage in plan_experiment(with_curriculum(source))}
    source.write_text(source.read_text().replace("> 2", "> 3"))
    after = plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(source)}))
    assert [stage.name for stage in after if stage.config != before[stage.name]] == ["large-seed0"]
