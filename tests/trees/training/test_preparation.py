import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdgat.base import UserError, sha256_of_file
from kdgat.graphs import GraphStore
from kdgat.run import OutputDirectory
from kdgat.run.plan import create_stage
from kdgat.stage import Finished, Paused, RunDirectory
from kdgat.training import Deadline, Parts
from kdgat.trees.config import TreesConfig
from kdgat.trees.family import FAMILY
from kdgat.trees.graphs.columns import tree_of
from kdgat.trees.graphs.networks import Networks
from kdgat.trees.training import preparation
from kdgat.trees.training.preparation import run_prepare
from tests.trees.examples import random_tree
from tests.trees.small_runs import small_config, write_braids, write_folder, write_swc

SPLITS = ("train", "validation", "test")
NUM_FILES = 24


class KilledError(BaseException):
    pass


def begin(path: Path, config: TreesConfig) -> RunDirectory:
    run = FAMILY.plan(config)
    directory, _ = create_stage(run, run.plan[0], {}, OutputDirectory(path))
    return directory


def prepare(directory: RunDirectory) -> Any:
    return run_prepare(directory.read_spec(), directory)


def prepared(path: Path, config: TreesConfig) -> RunDirectory:
    directory = begin(path, config)
    assert isinstance(prepare(directory), Finished)
    return directory


def stores(directory: RunDirectory) -> dict[str, GraphStore]:
    return {split: GraphStore.open(directory.path / f"{split}.h5") for split in SPLITS}


def hashes(directory: RunDirectory) -> list[str]:
    return [sha256_of_file(directory.path / name) for name in ("train.h5", "validation.h5", "test.h5", "summary.json")]


def folder_config(folder: Path, *overrides: str) -> TreesConfig:
    return small_config(f"data.data_root={folder}", *overrides)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    labels = [["large", "small"][place % 2] for place in range(NUM_FILES)]
    return write_folder(tmp_path_factory.mktemp("cells"), NUM_FILES, {"label": labels})


@pytest.fixture
def config(request: pytest.FixtureRequest, folder: Path) -> TreesConfig:
    if request.param == "folder":
        return folder_config(folder)
    return small_config("data.train=9", "data.validation=3", "data.test=3", "data.classes=[reference, angle, pruning]")


def test_drawn_trees_are_stored_with_their_classes(tmp_path: Path) -> None:
    found = stores(prepared(tmp_path, small_config("data.classes=[reference, angle, pruning]")))
    assert {split: store.num_graphs for split, store in found.items()} == {"train": 15, "validation": 5, "test": 10}
    for store in found.values():
        assert store.attributes["classes"] == ["reference", "angle", "pruning"]
        assert np.asarray(store.columns["label"])[:4].tolist() in ([0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2])
        assert np.asarray(store.columns["labelled"]).all()
        assert np.asarray(store.columns["tree"]).tolist() == list(range(store.num_graphs))
        assert len(set(store.attributes["trees"])) == store.num_graphs


def test_no_tree_is_drawn_twice(tmp_path: Path) -> None:
    trees = [
        np.asarray(tree_of(store.columns, place).position).tobytes()
        for store in stores(prepared(tmp_path, small_config())).values()
        for place in range(store.num_graphs)
    ]
    assert len(set(trees)) == len(trees) == 30


def test_equal_configurations_make_equal_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first = hashes(prepared(tmp_path / "a", small_config()))
    assert first == hashes(prepared(tmp_path / "b", small_config()))
    assert not set(first) & set(hashes(prepared(tmp_path / "c", small_config("data.seed=1"))))


def test_parts_of_any_size_come_to_the_same_trees(tmp_path: Path, folder: Path, monkeypatch) -> None:
    whole = stores(prepared(tmp_path / "whole", folder_config(folder)))
    monkeypatch.setattr(preparation, "FILES_IN_PART", 2)
    cut = stores(prepared(tmp_path / "cut", folder_config(folder)))
    for split in SPLITS:
        assert whole[split].attributes["trees"] == cut[split].attributes["trees"]
        for column in ("pos", "length", "label", "tree", "general"):
            assert np.array_equal(whole[split].columns[column], cut[split].columns[column])


def test_a_folder_is_read_with_its_table_of_labels(tmp_path: Path, folder: Path) -> None:
    found = stores(prepared(tmp_path, folder_config(folder)))
    names = [name for store in found.values() for name in store.attributes["trees"]]
    assert sorted(names) == [f"cell{place:02d}" for place in range(NUM_FILES)]
    scale = found["train"].build["scale"]
    for store in found.values():
        assert store.build["scale"] == scale
        for place, name in enumerate(store.attributes["trees"]):
            number = int(name.removeprefix("cell"))
            tree = tree_of(store.columns, place)
            assert store.attributes["classes"][int(store.columns["label"][place])] == ["large", "small"][number % 2]
            assert tree.num_nodes == 20 + number
            expected = random_tree(number, 20 + number)
            assert np.allclose(tree.length * scale, expected.length, atol=2e-4)
            assert np.allclose(tree.position * scale, expected.position - expected.position[0], atol=3e-4)
            assert np.allclose(tree.radius * scale, expected.radius, atol=2e-4)


def test_numbers_of_a_table_are_targets(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "cells", 12, {"target_size": [0.5 * place for place in range(9)]})
    found = stores(prepared(tmp_path, folder_config(folder)))
    for store in found.values():
        assert store.attributes["classes"] == []
        for name, target, labelled in zip(
            store.attributes["trees"], store.columns["target"], store.columns["labelled"], strict=True
        ):
            number = int(name.removeprefix("cell"))
            assert (float(target), bool(labelled)) == ((0.5 * number, True) if number < 9 else (0.0, False))


def test_length_1_is_the_median_edge_of_the_training_trees_alone(tmp_path: Path) -> None:
    stated = ["train", "train", "validation", "test"]
    folder = tmp_path / "cells"
    factors = (1.0, 3.0, 50.0, 200.0)
    trees = [random_tree(place, 30) for place in range(4)]
    for place, (tree, factor) in enumerate(zip(trees, factors, strict=True)):
        write_swc(folder / f"cell{place:02d}.swc", replace(tree, position=factor * tree.position))
    rows = [f"cell{place:02d}.swc,{'ab'[place % 2]},{split}" for place, split in enumerate(stated)]
    (folder / "labels.csv").write_text("\n".join(["file,label,split", *rows]) + "\n")
    directory = prepared(tmp_path, folder_config(folder))
    edges = np.concatenate([factor * tree.length[1:] for tree, factor in zip(trees[:2], factors[:2], strict=True)])
    found = stores(directory)
    assert found["train"].build["scale"] == pytest.approx(np.median(edges), rel=1e-3)
    low, high = np.quantile(edges / np.median(edges), (0.005, 0.995))
    assert found["train"].build["length_range"] == pytest.approx([low, high], rel=1e-2)
    lengths = np.asarray(found["train"].columns["length"])
    assert np.median(lengths[lengths > 0]) == pytest.approx(1.0, rel=1e-3)
    assert np.median(np.asarray(found["test"].columns["length"])) > 20


def test_contracted_trees_keep_their_lengths(tmp_path: Path, folder: Path) -> None:
    whole = stores(prepared(tmp_path / "whole", folder_config(folder)))["test"]
    contracted = stores(prepared(tmp_path / "contracted", folder_config(folder, "data.contract=true")))["test"]
    assert contracted.columns.num_nodes < whole.columns.num_nodes
    for place in range(whole.num_graphs):
        one, other = tree_of(whole.columns, place), tree_of(contracted.columns, place)
        assert not (other.num_children[1:] == 1).any()
        assert one.length.sum() * whole.build["scale"] == pytest.approx(
            other.length.sum() * contracted.build["scale"], rel=1e-5
        )


def test_files_of_one_name_and_two_suffixes_keep_their_own_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    rows = []
    for place in range(6):
        write_swc(folder / f"cell{place}.swc", random_tree(place, 20 + place))
        mask = np.zeros((40, 40), bool)
        mask[20, 3 : 30 + place] = mask[10:20, 15] = True
        np.save(folder / f"cell{place}.npy", mask)
        rows += [f"cell{place}.swc,neuron", f"cell{place}.npy,vessel"]
    (folder / "labels.csv").write_text("\n".join(["file,label", *rows]) + "\n")
    labels = []
    for store in stores(prepared(tmp_path, folder_config(folder))).values():
        for place, label in enumerate(np.asarray(store.columns["label"]).tolist()):
            is_flat = bool((tree_of(store.columns, place).position[:, 2] == 0).all())
            assert store.attributes["classes"][label] == ("vessel" if is_flat else "neuron")
            labels.append(label)
    assert sorted(labels) == [0] * 6 + [1] * 6


def spoil(folder: Path, count: int) -> None:
    for place in range(count):
        (folder / f"cell{place:02d}.swc").write_text(
            ["1 1 0 0 0 1 -1\n", "1 1 0 zero 0 1 -1\n2 1 0 0 1 1 1\n"][place % 2]
        )


def test_a_few_unusable_files_are_left_out_with_their_reasons(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "cells", 40)
    spoil(folder, 2)
    directory = begin(tmp_path, folder_config(folder))
    outcome = prepare(directory)
    assert isinstance(outcome, Finished)
    assert outcome.metrics["num_refused"] == 2
    assert sum(store.num_graphs for store in stores(directory).values()) == 38
    refused = {
        Path(path).name: reason for path, reason in json.loads((directory.path / "summary.json").read_text())["refused"]
    }
    assert "a tree needs two nodes" in refused["cell00.swc"]
    assert refused["cell01.swc"].startswith("line 1: ")


def test_too_many_unusable_files_are_an_error_that_lists_them(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "cells", 20)
    spoil(folder, 6)
    with pytest.raises(UserError, match=r"6 of 20 files are unusable.*\n.*cell0\d\.swc: .*"):
        prepare(begin(tmp_path, folder_config(folder)))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "TREES_IN_PART", 4)
    monkeypatch.setattr(preparation, "FILES_IN_PART", 6)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("config", ["drawn", "folder"], indirect=True)
@pytest.mark.parametrize("is_written", [False, True], ids=["before it is written", "after"])
def test_a_preparation_killed_at_any_store_comes_to_the_same_bytes(
    tmp_path: Path, config: TreesConfig, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    written: list[Path] = []
    write_store = preparation.write_store
    kill_at, is_armed = 0, True

    def dying(path: Path, *arguments: Any, **named: Any) -> None:
        if is_written:
            write_store(path, *arguments, **named)
        written.append(path)
        if is_armed and len(written) == kill_at:
            raise KilledError
        if not is_written:
            write_store(path, *arguments, **named)

    monkeypatch.setattr(preparation, "write_store", dying)
    whole = hashes(prepared(tmp_path / "whole", config))
    num_stores = len(written)
    assert num_stores >= 3 + 4  # those of the splits, and parts
    for kill_at in range(1, num_stores + 1):
        written.clear()
        is_armed = True
        directory = begin(tmp_path / str(kill_at), config)
        with pytest.raises(KilledError):
            prepare(directory)
        kept = {path.name for path in directory.parts_path.rglob("*.json")}
        written.clear()
        is_armed = False
        assert isinstance(prepare(directory), Finished)
        assert hashes(directory) == whole
        # What was complete is not made again.
        assert len(written) == num_stores - kill_at + (0 if is_written and kill_at > num_stores - 3 else 1)
        assert kill_at == 1 or kept
        assert not list(directory.parts_path.rglob("*.h5"))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("config", ["drawn", "folder"], indirect=True)
def test_a_preparation_killed_while_parts_are_removed_comes_to_the_same_bytes(
    tmp_path: Path, config: TreesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hashes(prepared(tmp_path / "whole", config))
    directory = begin(tmp_path / "killed", config)
    remove_files = Parts.remove_files
    for _ in SPLITS:

        def dying(self: Parts, names: list[str]) -> None:
            still_there = [name for name in names if self.path(name).is_file()]
            remove_files(self, still_there[:1])
            if still_there:
                raise KilledError

        monkeypatch.setattr(Parts, "remove_files", dying)
        with pytest.raises(KilledError):
            prepare(directory)
    monkeypatch.setattr(Parts, "remove_files", remove_files)
    assert isinstance(prepare(directory), Finished)
    assert hashes(directory) == whole


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("config", ["drawn", "folder"], indirect=True)
def test_a_preparation_whose_job_ends_pauses_after_a_part_and_goes_on(
    tmp_path: Path, config: TreesConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hashes(prepared(tmp_path / "whole", config))
    directory = begin(tmp_path / "paused", config)
    now = iter([0.0, 0.0, *[1000.0] * 20])
    deadline = Deadline(end_time=1000.0, clock=lambda: next(now))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deadline, "from_environment", classmethod(lambda *_: deadline))
        outcome = prepare(directory)
    assert isinstance(outcome, Paused)
    assert outcome.checkpoint.startswith("parts/train/")
    assert isinstance(prepare(directory), Finished)
    assert hashes(directory) == whole


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("abab,train;abab,train;a,validation;a,test", None),
        ("a,train;a,train;a,validation;b,test", "one class"),
    ],
)
def test_labels_that_nothing_can_be_learned_from_are_refused_before_training(
    tmp_path: Path, rows: str, problem: str | None
) -> None:
    folder = tmp_path / "cells"
    lines = ["file,label,split"]
    for place, row in enumerate(rows.split(";")):
        label, split = row.split(",")
        write_swc(folder / f"cell{place}.swc", random_tree(place, 30))
        lines.append(f"cell{place}.swc,{label[place % len(label)]},{split}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    if problem is None:
        assert prepared(tmp_path, folder_config(folder))
        return
    with pytest.raises(UserError, match=problem):
        prepared(tmp_path, folder_config(folder))
    assert prepared(tmp_path / "unused", folder_config(folder, "label_fractions=[]"))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_class_that_training_has_no_tree_of_is_told(
    split: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cells"
    rows = ["a,train", "b,train", "a,validation", "a,test", f"c,{split}", f"c,{split}"]
    for place in range(len(rows)):
        write_swc(folder / f"cell{place}.swc", random_tree(place, 30))
    lines = [f"cell{place}.swc,{row}" for place, row in enumerate(rows)]
    (folder / "labels.csv").write_text("\n".join(["file,label,split", *lines]) + "\n")
    assert prepared(tmp_path, folder_config(folder))
    assert f"no training tree is of the class 'c', so no model can name it: 2 in {split} of it" in caplog.text
    assert "class 'a'" not in caplog.text


@pytest.fixture(scope="module")
def braids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    labels = [["left", "right"][place // 2 % 2] for place in range(12)]
    return write_braids(tmp_path_factory.mktemp("rivers") / "braids", 12, {"label": labels})


def spanning(directory: RunDirectory) -> dict[str, list[bytes]]:
    """Return the parents in the trees of each network by its name: positions go by the scale of all."""
    found: dict[str, list[bytes]] = {}
    for store in stores(directory).values():
        for tree, place in enumerate(np.asarray(store.columns["tree"])):
            found.setdefault(store.attributes["trees"][place], []).append(tree_of(store.columns, tree).parent.tobytes())
    return found


@pytest.mark.parametrize("contract", ["false", "true"])
def test_spanning_trees_of_a_network_share_its_split_and_label(tmp_path: Path, braids: Path, contract: str) -> None:
    config = folder_config(braids, "data.reading.spanning_trees=4", f"data.contract={contract}")
    directory = prepared(tmp_path, config)
    names: list[str] = []
    for store in stores(directory).values():
        names += store.attributes["trees"]
        networks, labels = Networks.of(store.columns), np.asarray(store.columns["label"])
        assert np.array_equal(np.asarray(store.columns["tree"])[networks.first], np.arange(len(networks)))
        for name, first, count in zip(store.attributes["trees"], networks.first, networks.count, strict=True):
            number = int(name.removeprefix("braid"))
            assert count == (4 if number % 4 else 1)
            assert set(labels[first : first + count]) == {number // 2 % 2}
    assert sorted(names) == [f"braid{place:02d}" for place in range(12)]
    assert max(len(set(trees)) for trees in spanning(directory).values()) == 4
    summary = json.loads((directory.path / "summary.json").read_text())
    assert sum(summary["trees"].values()) == 12
    assert "braid01: 3 loops: 4 random spanning trees" in summary["notes"]


def test_spanning_trees_follow_from_seed_and_name_alone(tmp_path: Path, braids: Path, monkeypatch) -> None:
    def draw(name: str, *overrides: str) -> dict[str, list[bytes]]:
        return spanning(prepared(tmp_path / name, folder_config(braids, "data.reading.spanning_trees=4", *overrides)))

    whole = draw("whole")
    monkeypatch.setattr(preparation, "FILES_IN_PART", 2)
    assert draw("cut") == whole
    fewer = tmp_path / "fewer"  # without the first file, parts and places are others
    write_braids(fewer, 12, {"label": ["left", "right"] * 6})
    (fewer / "braid00.geojson").unlink()
    table = (fewer / "labels.csv").read_text().replace("braid00.geojson,left\n", "")
    (fewer / "labels.csv").write_text(table)
    found = spanning(prepared(tmp_path / "few", folder_config(fewer, "data.reading.spanning_trees=4")))
    assert found == {name: trees for name, trees in whole.items() if name != "braid00"}
    other = draw("other", "data.seed=1")
    assert sum(other[name] != whole[name] for name in whole) > 5


def test_length_1_counts_each_network_once(tmp_path: Path, braids: Path) -> None:
    directory = prepared(tmp_path, folder_config(braids, "data.reading.spanning_trees=5"))
    train = stores(directory)["train"]
    lengths = np.concatenate(
        [tree_of(train.columns, int(tree)).length[1:] for tree in Networks.of(train.columns).first]
    )
    assert np.median(lengths) == pytest.approx(1.0, rel=1e-5)


def test_what_has_one_tree_is_prepared_under_the_name_that_it_always_had(folder: Path) -> None:
    config = FAMILY.plan(folder_config(folder, "data.reading.spanning_trees=1")).plan[0].config
    assert "spanning_trees" not in config["reading"]
    assert (
        FAMILY.plan(folder_config(folder, "data.reading.spanning_trees=2")).plan[0].config["reading"]["spanning_trees"]
        == 2
    )
