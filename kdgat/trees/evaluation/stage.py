"""The stage `evaluation`.

Inputs of the stage: the three stores, `start` (pretrained weights), and the weights of every model that was trained
for the task. Work is done in parts, each a summary of its own, so that a stage that was stopped resumes with the next
one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from kdgat.base import validate_config
from kdgat.base.hdf5 import open_hdf5
from kdgat.graphs import GraphStore
from kdgat.run import WEIGHTS
from kdgat.stage import Finished, Outcome, RunDirectory, StageSpec, input_path
from kdgat.training import Deadline, Part, Parts, TrainingConfig, seed_everything
from kdgat.trees.evaluation.downstream import Labelled, forest, nearest, plane, probe, score
from kdgat.trees.evaluation.morphometrics import feature_table
from kdgat.trees.evaluation.pretext import BASELINE_NODES, measure_growth, measure_optimum, measure_order
from kdgat.trees.evaluation.results import (
    FINETUNED,
    FOREST,
    GIN,
    NEIGHBOURS,
    PROBE,
    SCRATCH,
    TRAINED,
    UNTRAINED,
    DrawnTree,
    Evaluation,
    Point,
    ScoreRow,
    with_untrained,
)
from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.graphs.columns import tree_of
from kdgat.trees.graphs.networks import Networks
from kdgat.trees.models.encoder import pool
from kdgat.trees.names import SPLITS, START, TEST, TRAIN, VALIDATION
from kdgat.trees.plan import scale_of
from kdgat.trees.sections import (
    EvaluationStageConfig,
    PretrainStageConfig,
)
from kdgat.trees.stages import open_store, task_of
from kdgat.trees.structure.tree import Tree
from kdgat.trees.training.finetuning import load_predictor, predictions
from kdgat.trees.training.labels import choose_labelled, describe_untrained, labelled
from kdgat.trees.training.pretraining import PretrainedTrees, load_pretrained
from kdgat.trees.training.source import TreeBatchSource

logger = logging.getLogger(__name__)

EVALUATION_FILE: Final = "evaluation.json"
NUM_PICTURES: Final = 10
NUM_POINTS: Final = 500
MOST_NODES: Final = 2000  # of a picture; what a larger tree has beyond is left out from the deepest on
METHODS: Final = {"finetune": FINETUNED, "scratch": SCRATCH, "gin": GIN}
BATCH_TREES: Final = 64
Floats = NDArray[np.float64]


def run_evaluation(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Measure what was learned, on the test trees: the artifact `results`; Paused if the job ends before it is done."""
    work = _Work(spec, directory)
    steps: dict[str, Callable[[Path], Any]] = {"pretext": _without_file(work.pretext)}
    embedded = [(TRAINED, TEST)] if work.task is None else list(product((TRAINED, UNTRAINED), SPLITS))
    steps |= {_embeddings_name(*which): partial(work.embed, *which) for which in embedded}
    steps["pictures"] = _without_file(work.pictures)
    if work.task is not None:
        for name in work.trained():
            steps[f"score-{name}"] = _without_file(partial(work.model, name))
        steps["morphometrics"] = _without_file(work.morphometrics)
        for fraction in work.config.label_fractions:
            steps[f"score-probes-{scale_of(fraction)}"] = _without_file(partial(work.probes, fraction))
    work.parts = Parts(directory, "steps", [Part(name, 1, step) for name, step in steps.items()])
    if paused := work.parts.make_missing(Deadline.from_environment()):
        return paused
    found = {name: work.parts.summary(name) for name in steps}
    scores = [row for name, one in found.items() if name.startswith("score-") for row in one]
    evaluation = Evaluation.model_validate({
        "seed": spec.seed,
        "task": "none" if work.task is None else "classes" if work.task.classes else "number",
        "classes": [] if work.task is None else list(work.task.classes),
        "trees": {split: len(networks) for split, networks in work.networks.items()},
        "nodes": {split: work.num_nodes(split) for split in work.stores},
        "median_edge": work.stores[TRAIN].build["scale"],
        "scores": scores,
        "notes": work.notes(),
        **found["pretext"],
        **found["pictures"],
    })  # fmt: skip
    evaluation.write(directory.path / EVALUATION_FILE)
    work.parts.remove_files(_embeddings_name(*which) for which in embedded)
    return Finished(metrics=_metrics(evaluation), artifacts={"results": EVALUATION_FILE})


def _without_file(step: Callable[[], Any]) -> Callable[[Path], Any]:
    """Return a step that writes no file beside its summary."""

    def make(_: Path) -> Any:
        return step()

    return make


def _embeddings_name(method: str, split: str) -> str:
    return f"embeddings-{method.replace(' ', '-')}-{split}"


class _Work:
    """What the steps share."""

    parts: Parts

    def __init__(self, spec: StageSpec, directory: RunDirectory) -> None:
        self.spec, self.directory = spec, directory
        self.config = validate_config(EvaluationStageConfig, spec.config)
        self.stores = {split: open_store(spec, directory, split) for split in SPLITS}
        self.networks = {split: Networks.of(store.columns) for split, store in self.stores.items()}
        self.task = task_of(self.stores[TRAIN]) if self.config.label_fractions else None

    @cached_property
    def pretrained(self) -> tuple[PretrainedTrees, PretrainStageConfig]:
        """Return the pretrained model, and what it was made of."""
        return load_pretrained(input_path(self.spec, self.directory, START))

    @cached_property
    def untrained(self) -> PretrainedTrees:
        """Return the same network as it is initialised."""
        model, config = self.pretrained
        seed_everything(self.spec.seed)
        return PretrainedTrees(config, model.growth.channels).eval()

    def num_nodes(self, split: str) -> int:
        """Return the nodes of the networks of a split."""
        return int(self.stores[split].columns.node_counts[self.networks[split].first].sum())

    def batches(self, split: str, chosen: NDArray[np.int64] | None = None) -> Iterator[Any]:
        """Yield all trees of a split's networks in order, or of those chosen."""
        source = TreeBatchSource(
            self.stores[split].columns,
            self.pretrained[1].encoder,
            self.config.batches,
            TrainingConfig(batch_size=BATCH_TREES),
            0,
            shuffle=False,
            chosen=chosen,
            every_tree=True,
        )
        for indices in source.plan(0):
            yield source.gather(indices)

    def trees(self, split: str, chosen: NDArray[np.int64] | None = None) -> Iterator[TreeBatch]:
        """Yield the trees of a split's networks in order, or of those chosen."""
        return (TreeBatch.of(batch) for batch in self.batches(split, chosen))

    def _draw_of_train(self) -> NDArray[np.int64]:
        """Draw training networks until they have enough nodes for the baselines: all of them, as a rule."""
        networks = self.networks[TRAIN]
        order = np.random.default_rng([self.spec.seed, 4]).permutation(len(networks))
        nodes = self.stores[TRAIN].columns.node_counts[networks.first] * networks.count
        before = np.cumsum(nodes[order]) - nodes[order]
        return np.sort(order[before < BASELINE_NODES])

    def pretext(self) -> dict[str, Any]:
        """Measure growth and order."""
        model, config = self.pretrained
        seed_everything(self.spec.seed)
        some = self._draw_of_train()
        growth, shares = measure_growth(model, lambda: self.trees(TRAIN, some), lambda: self.trees(TEST), config.growth)
        order = measure_order(model, self.untrained, lambda: self.trees(TEST), self.config.evaluation.pair_draws)
        if (generate := self.config.generate) is not None:
            scale = self.stores[TRAIN].build["scale"]
            draws = self.config.evaluation.optimum_draws
            growth += measure_optimum(generate, model.growth.channels, config.growth, scale, draws, self.spec.seed)
        parameters = {"encoder": sum(one.numel() for one in model.encoder.parameters())}
        return {
            "growth": [row.model_dump(mode="json") for row in growth],
            "order": [row.model_dump(mode="json") for row in order],
            "shares": [one.model_dump(mode="json") for one in shares],
            "num_parameters": parameters,
        }

    def embed(self, method: str, split: str, path: Path) -> dict[str, int]:
        """Write the embeddings of all networks of a split, [W, F]: the mean of its trees."""
        model = self.untrained if method == UNTRAINED else self.pretrained[0]
        with torch.no_grad():
            rows = [pool(model(tree).both, tree) for tree in self.trees(split)]
        found = self.networks[split].mean(torch.cat(rows).double().numpy())
        with open_hdf5(path, "w") as file:
            file["embeddings"] = found
        return {"networks": len(found)}

    def embeddings(self, method: str, split: str) -> Floats:
        """Read what `embed` has written."""
        with open_hdf5(self.parts.path(_embeddings_name(method, split))) as file:
            found: Floats = file["embeddings"][:]
        return found

    def notes(self) -> list[str]:
        """Return sentences on what the scores cannot say."""
        if self.task is None:
            return []
        return describe_untrained({split: store.columns for split, store in self.stores.items()}, self.task.classes)

    def truth(self, split: str, chosen: NDArray[np.int64]) -> NDArray[Any]:
        """Return classes or numbers of networks."""
        assert self.task is not None
        columns = self.stores[split].columns
        return np.asarray(columns["label" if self.task.classes else "target"])[
            self.networks[split].first[chosen]
        ].astype(np.int64 if self.task.classes else np.float64)

    def known(self, split: str, features: Floats, chosen: NDArray[np.int64] | None = None) -> Labelled:
        """Return features and labels of the networks of a split that have one, or of those chosen."""
        places = labelled(self.stores[split].columns) if chosen is None else chosen
        return Labelled(features[places], self.truth(split, places))

    def morphometrics(self) -> dict[str, list[list[float]]]:
        """Return the morphometrics of all networks by split: the mean of its trees."""
        return {
            split: self.networks[split]
            .mean(feature_table(tree_of(store.columns, place) for place in range(store.num_graphs)))
            .tolist()
            for split, store in self.stores.items()
        }

    def probes(self, fraction: float) -> list[dict[str, Any]]:
        """Score probes with a share of the labels, drawn several times."""
        assert self.task is not None
        table = self.parts.summary("morphometrics")
        features = {
            TRAINED: {split: self.embeddings(TRAINED, split) for split in SPLITS},
            UNTRAINED: {split: self.embeddings(UNTRAINED, split) for split in SPLITS},
            FOREST: {split: np.array(table[split]) for split in SPLITS},
        }
        rows: list[ScoreRow] = []
        draws = self.config.evaluation.repeats if fraction < 1 else 1
        for draw in range(draws):
            seed = self.spec.seed * draws + draw
            chosen = choose_labelled(self.stores[TRAIN].columns, fraction, seed)
            for name, of_split in features.items():
                train = self.known(TRAIN, of_split[TRAIN], chosen)
                validation, test = (self.known(split, of_split[split]) for split in (VALIDATION, TEST))
                if name == FOREST:
                    found = {FOREST: forest(train, test.features, seed, self.task)}
                else:
                    found = {
                        PROBE: probe(train, validation, test.features, self.task),
                        NEIGHBOURS: nearest(train, test.features, self.config.evaluation.neighbours, self.task),
                    }
                for method, one in found.items():
                    called = with_untrained(method) if name == UNTRAINED else method
                    rows.append(score(called, fraction, len(chosen), draw, one, test.labels, self.task))
        return [row.model_dump(mode="json") for row in rows]

    def trained(self) -> list[str]:
        """Return the inputs that are networks trained for the task."""
        kinds = {name: name.split("-") for name in sorted(self.spec.inputs)}
        return [name for name, parts in kinds.items() if parts[0] == WEIGHTS and parts[1] in METHODS]

    def model(self, name: str) -> list[dict[str, Any]]:
        """Score a network that was trained for the task."""
        kind = name.split("-")[1]
        model, task, description = load_predictor(input_path(self.spec, self.directory, name))
        places = labelled(self.stores[TEST].columns)
        found = self.networks[TEST].mean(predictions(model, self.batches(TEST, places), task), places)
        fraction = description["label_fraction"]
        num_labels = len(choose_labelled(self.stores[TRAIN].columns, fraction, self.spec.seed))
        row = score(METHODS[kind], fraction, num_labels, 0, found, self.truth(TEST, places), task)
        return [row.model_dump(mode="json")]

    def pictures(self) -> dict[str, Any]:
        """Draw some test trees, and place them on a map of their embeddings."""
        store = self.stores[TEST]
        columns, names, first = store.columns, store.attributes["trees"], self.networks[TEST].first
        labels = _label_names(store)
        drawn = [
            draw_tree(tree_of(columns, int(first[place]), names[place]), labels[place]).model_dump(mode="json")
            for place in spread(labels, NUM_PICTURES)
        ]
        places = plane(self.embeddings(TRAINED, TEST)) if len(names) > 1 else np.zeros((1, 2))
        is_number = self.task is not None and not self.task.classes
        points = [
            Point(
                name=names[place],
                label=labels[place],
                target=float(columns["target"][first[place]])
                if is_number and columns["labelled"][first[place]]
                else None,
                x=float(places[place, 0]),
                y=float(places[place, 1]),
            ).model_dump(mode="json")
            for place in spread(labels, NUM_POINTS)
        ]
        return {"pictures": drawn, "map": points}


def _label_names(store: GraphStore) -> list[str | None]:
    classes = store.attributes["classes"]
    found = np.asarray(store.columns["label"])[Networks.of(store.columns).first]
    return [classes[label] if label >= 0 else None for label in found.tolist()]


def _metrics(evaluation: Evaluation) -> Mapping[str, float]:
    """Return what one line should say of a seed."""
    metrics = {f"growth_{row.channel}": row.loss for row in evaluation.growth if row.method == TRAINED}
    order = [row.auc for row in evaluation.order if row.method == TRAINED]
    return {**metrics, "order_auc": order[0]} if order else metrics


def draw_tree(tree: Tree, label: str | None = None) -> DrawnTree:
    """Project a tree onto its two widest axes."""
    order = np.sort(np.argsort(tree.depth, kind="stable")[:MOST_NODES])  # parents of what is kept are kept
    place = np.full(tree.num_nodes, -1)
    place[order] = np.arange(len(order))
    centred = tree.position[order] - tree.position[order].mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ axes[:2].T
    parent = np.where(tree.parent[order] >= 0, place[tree.parent[order]], -1)
    return DrawnTree(
        name=tree.name,
        label=label,
        parent=parent.tolist(),
        x=np.round(flat[:, 0], 3).tolist(),
        y=np.round(flat[:, 1], 3).tolist(),
        width=np.round(tree.radius[order], 3).tolist(),
    )


def spread(labels: list[str | None], count: int) -> list[int]:
    """Choose places so that each label comes in turn."""
    of_label: dict[str | None, list[int]] = {}
    for place, label in enumerate(labels):
        of_label.setdefault(label, []).append(place)
    order = [place for turn in zip(*(_padded(one, count) for one in of_label.values()), strict=True) for place in turn]
    return [place for place in order if place >= 0][:count]


def _padded(places: list[int], count: int) -> list[int]:
    return (places + [-1] * count)[:count]
