"""Small runs on drawn trees for tests: a configuration of seconds, and its plan executed in this process."""

from collections.abc import Sequence
from pathlib import Path

from kdgat.run.directory import OutputDirectory
from kdgat.run.local import run_locally
from kdgat.trees.config import TreesConfig
from kdgat.trees.evaluation.results import TreesResults
from kdgat.trees.family import FAMILY

OVERRIDES = (
    "data.train=15",
    "data.validation=5",
    "data.test=10",
    "encoder={hidden: 8, interactions: 1, num_distances: 8}",
    "growth={num_lengths: 8, num_angles: 6, num_radii: 8, components: 2}",
    "order.width=8",
    "head.least_batches=1",
    "label_fractions=[0.4, 1.0]",
    "training={max_epochs: 2, batch_size: 8, patience: null}",
    "training_of={}",
    "evaluation={neighbours: 3, repeats: 1, optimum_draws: 16, pairs: 4}",
    "resources={default: {}}",
)


def small_config(*overrides: str) -> TreesConfig:
    """Build the configuration of a run of seconds; one seed, if no override says otherwise."""
    config = FAMILY.config.from_preset("quick", {}, [*OVERRIDES, "seeds=[0]", *overrides])
    assert isinstance(config, TreesConfig)
    return config


def make_run(path: Path, overrides: Sequence[str] = ()) -> TreesResults:
    """Run all stages in this process, and write the results."""
    run_locally(FAMILY.plan(small_config(*overrides)), path)
    return FAMILY.collect(OutputDirectory(path))
