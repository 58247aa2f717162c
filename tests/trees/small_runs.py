"""Small runs on trees for tests: a configuration of seconds, its plan run in this process, and folders of trees."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kdgat.run import OutputDirectory, run_locally
from kdgat.stage import Outcome, RunDirectory
from kdgat.trees.config import TreesConfig
from kdgat.trees.evaluation.results import TreesResults
from kdgat.trees.family import FAMILY
from kdgat.trees.structure.tree import Tree
from tests.trees.examples import random_tree

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
    "evaluation={neighbours: 3, repeats: 1, optimum_draws: 16, pair_draws: 1}",
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


def run_up_to(config: TreesConfig, path: Path, last: str) -> dict[str, RunDirectory]:
    """Run a stage and what it needs in this process; return the directories of all that have finished."""
    finished = run_locally(FAMILY.plan(config), path, only=[last])
    assert last in finished, OutputDirectory(path).read_index()
    return finished


def outcome_of(path: Path, name: str) -> Outcome:
    """Return how the last attempt at a stage ended."""
    output = OutputDirectory(path)
    outcome = output.stage_directory(output.read_index().record(name)).read_outcome()
    assert outcome is not None
    return outcome


def write_swc(path: Path, tree: Tree) -> None:
    """Write a tree as an SWC file, without a soma, which readers make one node."""
    rows = [
        f"{node + 1} {max(tree.kind[node], 2)} {x:.4f} {y:.4f} {z:.4f} {tree.radius[node]:.4f} "
        f"{tree.parent[node] + 1 if tree.parent[node] >= 0 else -1}"
        for node, (x, y, z) in enumerate(tree.position)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n")


def write_folder(folder: Path, count: int = 24, labels: Mapping[str, Sequence[Any]] | None = None) -> Path:
    """Write some SWC files, and a table of labels with these columns beside `file`."""
    for place in range(count):
        write_swc(folder / f"cell{place:02d}.swc", random_tree(place, 20 + place))
    if labels is not None:
        write_labels(folder, "cell{:02d}.swc", labels)
    return folder


def write_labels(folder: Path, name: str, labels: Mapping[str, Sequence[Any]]) -> None:
    """Write a table of labels with these columns beside `file`, whose cells are `name` with the number of the row."""
    columns = list(labels)
    rows = [
        ",".join([name.format(place), *(str(labels[column][place]) for column in columns)])
        for place in range(len(labels[columns[0]]))
    ]
    (folder / "labels.csv").write_text("\n".join([",".join(["file", *columns]), *rows]) + "\n")


def write_braids(folder: Path, count: int, labels: Mapping[str, Sequence[Any]] | None = None) -> Path:
    """Write rivers of 10 to 12 nodes with three loops each, but every fourth without; and labels, as `write_folder`."""
    folder.mkdir(parents=True)
    for place in range(count):
        generator = np.random.default_rng(place)
        river = [[0.1 * float(generator.normal()), -float(y)] for y in range(10)]
        arms = [[river[at], [1.0 + float(generator.random()), river[at][1] - 1], river[at + 2]] for at in (1, 3, 6)]
        lines = {"type": "MultiLineString", "coordinates": [river, *(arms if place % 4 else ())]}
        (folder / f"braid{place:02d}.geojson").write_text(
            json.dumps({"type": "Feature", "properties": {}, "geometry": lines})
        )
    if labels is not None:
        write_labels(folder, "braid{:02d}.geojson", labels)
    return folder
