"""The stage `prepare`: the instances of one size become graph stores to train on and an instance store to test on.

Instances are generated, or read from files (inputs `train`, `validation` and `test`) of which those of the size are
taken. Work is done in parts of some instances, each a file of its own, so that a killed preparation loses one part.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kdgat.base import UserError, validate_config, write_json_atomically
from kdgat.graphs import GraphColumns, GraphStore
from kdgat.graphs import write_store as write_graph_store
from kdgat.lap.graphs.bipartite import EDGE_FEATURES, NODE_FEATURES, SCHEMA, build_graph
from kdgat.lap.instances.files import open_size
from kdgat.lap.names import FAMILY, TEST, TRAIN, VALIDATION
from kdgat.lap.sections import FEATURE_VERSION, LARGEST_COUNT, GeneratedConfig, PrepareConfig
from kdgat.stage import Finished, Outcome, RunDirectory, StageSpec
from kdgat.training import Parts, Preparation
from kdgat.training.preparation import check_feature_version, cut

if TYPE_CHECKING:
    from kdgat.lap.instances.records import Record, StoredRecord
    from kdgat.lap.instances.store import Storage

logger = logging.getLogger(__name__)

SPLITS: Final = (TRAIN, VALIDATION, TEST)
PART_ENTRIES: Final = 1 << 25  # of cost matrices in one part, so that a part takes seconds to a minute
LARGEST_PART: Final = 32  # instances


@dataclass(frozen=True)
class Source:
    """The instances of one split: how many, and each one with its labels when asked for."""

    count: int
    record: Callable[[int], Record]  # place in the split -> instance and labels
    stored: Callable[[int], StoredRecord] | Callable[[int], Record]  # likewise, without its costs where they are drawn
    storage: Storage


def instance_seed(seed: int, split: str, place: int) -> int:
    """Return the seed of an instance: no two splits of one data seed share one, nor do two data seeds."""
    return (len(SPLITS) * seed + SPLITS.index(split)) * LARGEST_COUNT + place


def run_prepare(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Write the stores of one size: graphs `train` and `validation`, instances `test`.

    Raises:
        UserError: if a file holds no instance of the size, or two splits hold the same instance.
    """
    return _Preparation(spec, directory).run()


def preparation_parts(spec: StageSpec, directory: RunDirectory) -> Parts:
    """Return the parts of a preparation, which may be made in any order and anywhere; raises what the stage does."""
    return _Preparation(spec, directory).parts


def _source(split: str, config: PrepareConfig, spec: StageSpec, directory: RunDirectory) -> Source:
    if config.generate is not None:
        return _generated(split, config.size, config.generate)
    if split not in spec.inputs:
        raise UserError(f"the spec names no instances for {split}: give config.generate, or files as inputs")
    store, indices = open_size(spec.inputs[split].resolve(directory.path), split, config.size)
    return Source(
        len(indices),
        lambda place: store.record(int(indices[place])),
        lambda place: store.stored(int(indices[place])),
        store.storage,
    )


def _generated(split: str, size: int, config: GeneratedConfig) -> Source:
    from kdgat.lap.instances.distributions import generate
    from kdgat.lap.instances.records import label

    def record(place: int) -> Record:
        family = config.families[place % len(config.families)]
        return label(generate(family, size, instance_seed(config.seed, split, place)))

    return Source(getattr(config, split), record, record, config.storage)


class _Preparation(Preparation):
    """The stores of one size, and the parts that they are joined from."""

    def __init__(self, spec: StageSpec, directory: RunDirectory) -> None:
        config = validate_config(PrepareConfig, spec.config)
        check_feature_version(config.feature_version, FEATURE_VERSION)
        self.config = config
        self.sources = {split: _source(split, config, spec, directory) for split in SPLITS}
        num_in_part = max(1, min(LARGEST_PART, PART_ENTRIES // config.size**2))
        parts = {
            split: cut(split, source.count, num_in_part, partial(self._make, split))
            for split, source in self.sources.items()
        }
        super().__init__(directory, "instances", parts)

    def _make(self, split: str, places: Sequence[int], path: Path) -> dict[str, Any]:
        """Write one part; return which families are in it and the hashes of its instances."""
        source = self.sources[split]
        families: list[str] = []
        contents: list[str] = []

        def note(record: Record | StoredRecord) -> None:
            families.append(record.family)
            contents.append(record.content)

        def graphs() -> Iterator[GraphColumns]:
            for place in places:
                record = source.record(place)
                note(record)
                yield build_graph(record.cost, record.mask, record.u, record.v, self.config.graph, instance=place)

        def instances() -> Iterator[Record | StoredRecord]:
            for place in places:
                record = source.stored(place)
                note(record)
                yield record

        if split == TEST:
            _write_instances(path, instances(), source.storage)
        else:
            self._write_graphs(path, graphs())
        return {"families": Counter(families), "contents": contents}

    def join(self) -> Finished:
        """Write the stores, and which families of instances each has."""
        summaries = self.summaries()
        contents = {split: [one for part in parts for one in part["contents"]] for split, parts in summaries.items()}
        _refuse_shared(contents)
        for split in SPLITS:
            path = self.join_store(split, partial(self._join, split))
            logger.info("%s: %d instances of size %d", path.name, self.sources[split].count, self.config.size)
        families = {
            split: dict(sorted(sum((Counter(part["families"]) for part in parts), Counter()).items()))
            for split, parts in summaries.items()
        }
        metrics = {f"num_instances_{split}": float(sum(counts.values())) for split, counts in families.items()}
        write_json_atomically(self.directory.path / "families.json", families)
        artifacts = {split: f"{split}.h5" for split in SPLITS}
        return Finished(metrics=metrics, artifacts={**artifacts, "families": "families.json"})

    def _join(self, split: str, path: Path, parts: Sequence[Path]) -> None:
        if split == TEST:
            from kdgat.lap.instances.store import LapStore

            stores = [LapStore.open(part) for part in parts]
            records = (store.stored(index) for store in stores for index in range(len(store)))
            _write_instances(path, records, self.sources[split].storage)
        else:
            self._write_graphs(path, (GraphStore.open(part).columns for part in parts))

    def _write_graphs(self, path: Path, chunks: Iterator[GraphColumns]) -> None:
        write_graph_store(
            path,
            SCHEMA,
            chunks,
            node_features=NODE_FEATURES,
            edge_features=EDGE_FEATURES,
            build=store_attributes(self.config),
        )


def store_attributes(config: PrepareConfig) -> dict[str, Any]:
    """Return what a graph store says about how it was built."""
    graph = config.graph.model_dump(mode="json")
    return {"family": FAMILY, "feature_version": FEATURE_VERSION, "size": config.size, "graph": graph}


def _write_instances(path: Path, records: Iterator[Record | StoredRecord], storage: Storage) -> None:
    from kdgat.lap.instances.store import write_store

    write_store(path, records, storage)


def _refuse_shared(contents: Mapping[str, Sequence[str]]) -> None:
    """Refuse splits that share an instance: a test on what was trained on says nothing."""
    owner: dict[str, str] = {}
    for split, hashes in contents.items():
        for place, content in enumerate(hashes):
            if owner.setdefault(content, split) != split:
                raise UserError(
                    f"instance {place} of {split} is in {owner[content]} too: split the files again by "
                    "`kdgat lap bucket`, which keeps equal instances together"
                )
