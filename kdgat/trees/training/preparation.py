"""The stage `prepare`: trees that are drawn, or read from files, become three stores of graphs.

Work is done in parts of some trees, each a file of its own, so that a killed preparation loses one part. Parts hold
lengths as they are; what counts as length 1, the median edge of the training trees, is known when all are there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError, validate_config, write_json_atomically
from kdgat.graphs import GraphColumns, GraphStore, write_store
from kdgat.stage import Finished, Outcome, RunDirectory, StageSpec, input_path
from kdgat.training import Part, Parts, Preparation
from kdgat.training.preparation import cut
from kdgat.trees.graphs.columns import NODE_FEATURES, SCHEMA, scaled, tree_columns
from kdgat.trees.graphs.networks import Networks
from kdgat.trees.names import FAMILY, SPLITS, TRAIN, file_input
from kdgat.trees.reading.collection import Refusal, TreeSource, check_refusals, read_sources
from kdgat.trees.sections import FEATURE_VERSION, GeneratedConfig, PrepareConfig
from kdgat.trees.structure.tree import Tree, contract
from kdgat.trees.training.labels import describe_untrained
from kdgat.trees.training.splits import split_files

logger = logging.getLogger(__name__)

TREES_IN_PART: Final = 100  # that are drawn
FILES_IN_PART: Final = 20
QUANTILES: Final = (0.005, 0.995)  # of the training trees' edges: where growth is compared


@dataclass(frozen=True, eq=False)
class PreparedTree:
    """One tree, or the spanning trees of one network, with what is known of it."""

    trees: tuple[Tree, ...]
    label: int | None
    target: float | None


def run_prepare(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Write the stores `train`, `validation` and `test`, and what was left out of them.

    Raises:
        UserError: if too many files cannot be used, or a split has none.
    """
    return _Preparation(spec, directory).run()


def preparation_parts(spec: StageSpec, directory: RunDirectory) -> Parts:
    """Return the parts of a preparation, which may be made in any order and anywhere; raises what the stage does."""
    return _Preparation(spec, directory).parts


class _Preparation(Preparation):
    """The parts of one preparation, and how they are joined."""

    def __init__(self, spec: StageSpec, directory: RunDirectory) -> None:
        self.config = validate_config(PrepareConfig, spec.config)
        self.seed = spec.seed
        generate = self.config.generate
        if generate is not None:
            from kdgat.trees.synthetic.classes import CLASSES

            self.classes = generate.classes or CLASSES[generate.kind]
            super().__init__(directory, "trees", self._drawn_parts(generate))
        else:
            self.classes = tuple(sorted({file.label for file in self.config.files if file.label is not None}))
            super().__init__(directory, "files", self._file_parts(spec, directory))

    def _drawn_parts(self, config: GeneratedConfig) -> dict[str, list[Part]]:
        counts = {"train": config.train, "validation": config.validation, "test": config.test}
        return {
            split: cut(split, count, TREES_IN_PART, partial(self._draw, config, split))
            for split, count in counts.items()
        }

    def _file_parts(self, spec: StageSpec, directory: RunDirectory) -> dict[str, list[Part]]:
        files = self.config.files
        contents = [spec.inputs[file_input(place)].sha256 for place in range(len(files))]
        sources = [
            TreeSource(file.name, input_path(spec, directory, file_input(place))) for place, file in enumerate(files)
        ]  # fmt: skip
        return {
            split: cut(split, len(places), FILES_IN_PART, partial(self._read, sources, places))
            for split, places in split_files(files, contents, spec.seed).items()
        }

    def _draw(self, config: GeneratedConfig, split: Any, places: range, path: Path) -> dict[str, Any]:
        from kdgat.trees.synthetic.dataset import PART_START, draw

        drawn = draw(
            config.kind, config.classes, len(places), config.seed, PART_START[split] + places.start
        )  # fmt: skip
        self._write(path, [PreparedTree((one.tree,), one.label, None) for one in drawn])
        return {"refused": [], "notes": []}

    def _read(self, sources: Sequence[TreeSource], chosen: Sequence[int], places: range, path: Path) -> dict[str, Any]:
        # By path: files of two suffixes may share a name.
        of_path = {sources[chosen[place]].path: self.config.files[chosen[place]] for place in places}
        found, refusals = read_sources([sources[chosen[place]] for place in places], self.config.reading, self.seed)
        trees: list[PreparedTree] = []
        notes: list[str] = []
        for source, read in found:
            file = of_path[source.path]
            label = None if file.label is None else self.classes.index(file.label)
            for one in read:
                spanning = tuple(map(contract, one.trees)) if self.config.contract else one.trees
                if spanning[0].num_nodes < 2:
                    refusals.append(Refusal(source.path, "a single node is no tree with edges"))
                    continue
                trees.append(PreparedTree(spanning, label, file.target))
                notes += [f"{source.name}: {note}" for note in one.notes]
        self._write(path, trees)
        return {"refused": [[str(one.path), one.reason] for one in refusals], "notes": notes}

    def _write(self, path: Path, trees: Sequence[PreparedTree]) -> None:
        chunks = [
            tree_columns(tree, 1.0, place, one.label, one.target)
            for place, one in enumerate(trees)
            for tree in one.trees
        ]
        self._store(path, chunks, [one.trees[0].name for one in trees], {})

    def _store(self, path: Path, chunks: Any, names: Sequence[str], build: Mapping[str, Any]) -> None:
        write_store(
            path,
            SCHEMA,
            chunks,
            node_features=NODE_FEATURES,
            attributes={"classes": list(self.classes), "trees": list(names)},
            build={"family": FAMILY, "feature_version": FEATURE_VERSION, "contract": self.config.contract, **build},
        )

    def join(self) -> Finished:
        """Write the stores, in units of the median edge, and what was left out of them."""
        summaries = self.summaries()
        refusals = [
            Refusal(Path(path), reason)
            for parts in summaries.values()
            for part in parts
            for path, reason in part["refused"]
        ]
        if self.config.generate is None:
            check_refusals(refusals, len(self.config.files), self.config.reading)
        for refusal in refusals:
            logger.warning("left out: %s: %s", refusal.path, refusal.reason)
        scale, length_range = self.scale()
        counts = {split: self._join_split(split, scale, length_range) for split in SPLITS}
        self.check_labels()
        notes = [note for parts in summaries.values() for part in parts for note in part["notes"]]
        write_json_atomically(
            self.directory.path / "summary.json",
            {
                "scale": scale,
                "length_range": list(length_range),
                "trees": counts,
                "refused": [[str(one.path), one.reason] for one in refusals],
                "notes": notes,
            },
        )
        metrics = {f"num_trees_{split}": float(count) for split, count in counts.items()}
        artifacts = {split: f"{split}.h5" for split in SPLITS}
        return Finished(
            metrics={**metrics, "median_edge": scale, "num_refused": float(len(refusals))},
            artifacts={**artifacts, "summary": "summary.json"},
        )

    def scale(self) -> tuple[float, tuple[float, float]]:
        """Return the median edge of the training trees, and the range of their edges in units of it."""
        if (joined := self.directory.path / f"{TRAIN}.h5").is_file():  # its parts may be gone
            build = GraphStore.open(joined).build
            return build["scale"], tuple(build["length_range"])
        lengths = np.concatenate([_lengths(GraphStore.open(self.parts.path(name))) for name in self.names[TRAIN]])
        lengths = lengths[lengths > 0].astype(np.float64)
        if not len(lengths):
            raise UserError("no training tree has an edge of any length: correct the positions")
        scale = float(np.median(lengths))
        low, high = (float(value) / scale for value in np.quantile(lengths, QUANTILES))
        # All edges alike, as in a grid: a range around them still tells shorter from longer ones.
        return scale, (min(low, 0.8), max(high, 1.25))

    def check_labels(self) -> None:
        """Refuse labels that nothing can be learned from, before hours are spent; UserError says what to give."""
        if not self.config.for_task:
            return
        of_split = {split: GraphStore.open(self.directory.path / f"{split}.h5").columns for split in SPLITS}
        known = {
            split: np.asarray(columns["label"])[np.asarray(columns["labelled"]) > 0]
            for split, columns in of_split.items()
        }
        if not any(len(labels) for labels in known.values()):
            return
        empty = [split for split in SPLITS if not len(known[split])]
        if empty:
            raise UserError(f"{', '.join(empty)}: no tree with a label: label more files, or state their splits")
        if self.classes and len(np.unique(known[TRAIN])) < 2:
            raise UserError("all labelled training trees are of one class: give two, or set label_fractions=[]")
        for sentence in describe_untrained(of_split, self.classes):
            logger.warning("%s", sentence)

    def _join_split(self, split: str, scale: float, length_range: tuple[float, float]) -> int:
        """Write the store of a split; return the number of its networks."""

        def write(path: Path, parts: Sequence[Path]) -> None:
            stores = [GraphStore.open(part) for part in parts]
            names = [name for store in stores for name in store.attributes["trees"]]
            if not names:
                raise UserError(f"{split}: none of its files can be used: mend them, or give more")
            build = {"scale": scale, "length_range": list(length_range)}
            self._store(path, _joined(stores, scale), names, build)

        return len(GraphStore.open(self.join_store(split, write)).attributes["trees"])


def _lengths(store: GraphStore) -> NDArray[np.float32]:
    """Return the lengths of edges, those of a network once however many trees span it."""
    columns = store.columns
    is_first = np.zeros(columns.num_graphs, bool)
    is_first[Networks.of(columns).first] = True
    return np.asarray(columns["length"])[np.repeat(is_first, columns.node_counts)]


def _joined(stores: Sequence[GraphStore], scale: float) -> Iterator[GraphColumns]:
    before = 0
    for store in stores:
        yield scaled(store.columns, scale).replace(tree=np.asarray(store.columns["tree"]) + before)
        before += len(store.attributes["trees"])
