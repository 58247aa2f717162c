"""Batches of a packed file are those that PyG makes of the same graphs; other samples are kept, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.datasets import FakeDataset, FakeHeteroDataset

from kdgat.experiment.declaration import ExperimentError
from kdgat.experiment.samples import Samples, write_samples


def kept(path: Path, samples: Any, collate: Any = None) -> Samples:
    write_samples(path / "samples", samples, collate)
    return Samples(path / "samples", collate)


def molecules() -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    return [
        Data(
            z=torch.randint(1, 9, (size,), generator=generator),
            pos=torch.randn(size, 3, generator=generator),
            y=float(size),
            name=f"molecule {size}",
            face=torch.randint(0, size, (3, 2), generator=generator),
        )
        for size in (3, 5, 4, 7)
    ]


def of_other_types() -> list[Data]:
    """Return graphs with a type that numpy lacks, narrow indices, one index a graph and one row of features a graph."""
    return [
        Data(
            x=torch.full((size, 2), size / 3, dtype=torch.bfloat16),
            edge_index=torch.tensor([[0, 1], [1, 0]], dtype=torch.int32),
            root_index=torch.tensor([size - 1]),
            flags=torch.tensor([[True, False]]),
        )
        for size in (2, 4, 3, 5)
    ]


DATASETS = {
    "one kind of node": lambda: list(FakeDataset(num_graphs=6, avg_num_nodes=9, edge_dim=2)),
    "several kinds of nodes": lambda: list(FakeHeteroDataset(num_graphs=6, avg_num_nodes=9, edge_dim=2)),
    "molecules without edges": molecules,
    "other types": of_other_types,
    "without features": lambda: [Data(edge_index=torch.tensor([[0], [1]]), num_nodes=size) for size in (2, 4, 3, 5)],
}


def stores_of(batch: Any) -> dict[Any, dict[str, Any]]:
    return {store._key: {name: store[name] for name in store} for store in batch.stores}


@pytest.mark.parametrize("name", DATASETS)
def test_a_batch_has_every_attribute_that_pyg_gives_it(tmp_path: Path, name: str) -> None:
    graphs = DATASETS[name]()
    indices = np.array([3, 0, 1])
    found = kept(tmp_path, graphs).gather(indices)
    expected = Batch.from_data_list([graphs[index] for index in indices])
    assert type(found) is type(expected)
    assert found.num_graphs == expected.num_graphs == 3
    assert found.num_nodes == expected.num_nodes
    ours, theirs = stores_of(found), stores_of(expected)
    assert ours.keys() == theirs.keys()
    for key, store in theirs.items():
        assert ours[key].keys() == store.keys(), key
        for attribute, value in store.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(ours[key][attribute], value), (key, attribute)
                assert ours[key][attribute].dtype == value.dtype
            else:
                assert ours[key][attribute] == value


def test_equal_samples_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_samples(tmp_path / name, molecules(), None)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_tensors_and_dictionaries_of_them_are_batched_by_torch(tmp_path: Path) -> None:
    samples = [{"x": torch.full((2,), float(place)), "label": place} for place in range(5)]
    batch = kept(tmp_path, samples).gather(np.array([4, 2]))
    assert batch["x"].tolist() == [[4.0, 4.0], [2.0, 2.0]]
    assert batch["label"].tolist() == [4, 2]


def test_a_collate_of_ones_own_receives_the_samples_as_they_were(tmp_path: Path) -> None:
    graphs = molecules()
    found = kept(tmp_path, graphs, lambda chosen: chosen).gather(np.array([1, 3]))
    assert [graph.name for graph in found] == ["molecule 5", "molecule 7"]
    assert torch.equal(found[1].pos, graphs[3].pos)


@pytest.mark.parametrize("tags", ["a text", ["a list"]])
def test_what_a_collate_changes_of_a_sample_is_there_again_in_the_next_epoch(tmp_path: Path, tags: Any) -> None:
    def collate(graphs: list[Data]) -> tuple[torch.Tensor, Any]:
        found = graphs[0].x.clone(), str(graphs[0].tags)
        graphs[0].x = graphs[0].x + 1
        graphs[0].tags = graphs[0].tags.append("another") if isinstance(tags, list) else "another"
        return found

    samples = kept(tmp_path, [Data(x=torch.ones(2, 1), tags=tags)], collate)
    first, *others = [samples.gather(np.array([0])) for _ in range(3)]
    assert first[1] == str(tags)
    for other in others:
        assert torch.equal(other[0], first[0])
        assert other[1] == first[1]


@pytest.mark.parametrize(
    ("samples", "what"),
    [
        ([], "no samples"),
        ([Data(x=torch.ones(2, 1)), Data(x=torch.ones(2, 1), y=torch.ones(1))], "sample 1 has other attributes"),
        ([Data(x=torch.ones(2, 1)), Data(x=torch.ones(2, 1).long())], "several types"),
        ([Data(x=torch.ones(2, 1)), Data(x=torch.ones(2, 3))], "cannot be joined"),
        ([Data(x=torch.ones(2, 1), tags={"a"})], "tags is a set"),
        ([object()], "is a object"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_sample_and_attribute(tmp_path: Path, samples: list[Any], what: str) -> None:
    with pytest.raises(ExperimentError, match=what):
        write_samples(tmp_path / "samples", samples, None)


def test_a_graph_of_several_types_keeps_them(tmp_path: Path) -> None:
    graphs = DATASETS["several kinds of nodes"]()
    assert isinstance(graphs[0], HeteroData)
    batch = kept(tmp_path, graphs).gather(np.array([0]))
    assert batch.node_types == graphs[0].node_types
    assert batch.edge_types == graphs[0].edge_types


@pytest.mark.parametrize("samples", [molecules(), [{"z": torch.ones(2)} for _ in range(4)]], ids=["graphs", "others"])
def test_what_a_batch_changes_in_place_is_as_it_was_in_the_next_one(tmp_path: Path, samples: Any) -> None:
    found = kept(tmp_path, samples, lambda chosen: chosen[0])
    before = found.gather(np.array([1]))["z"].clone()
    found.gather(np.array([1]))["z"].add_(1)
    assert torch.equal(found.gather(np.array([1]))["z"], before)
