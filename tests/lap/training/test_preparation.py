from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdgat.base import UserError, sha256_of_file
from kdgat.graphs import GraphStore
from kdgat.lap.config import LapConfig
from kdgat.lap.graphs.bipartite import TARGET
from kdgat.lap.inputs import lap_run
from kdgat.lap.instances import distributions
from kdgat.lap.instances.distributions import generate
from kdgat.lap.instances.files import SPLIT_FILES
from kdgat.lap.instances.store import LapStore, write_store
from kdgat.lap.training import preparation
from kdgat.lap.training.preparation import SPLITS, instance_seed
from kdgat.run import run_locally
from kdgat.stage import Failed, Finished, Paused, RunDirectory
from kdgat.training import Deadline
from tests.lap.runs import MEDIUM, SMALL, outcome_of, run_up_to, small_config

STORES = ("train.h5", "validation.h5", "test.h5")


def prepared(path: Path, config: LapConfig | None = None) -> RunDirectory:
    return run_up_to(config or small_config(stages=[SMALL]), path, "prepare-16")["prepare-16"]


def hashes(directory: RunDirectory) -> list[str]:
    return [sha256_of_file(directory.path / name) for name in STORES]


def test_a_preparation_makes_labelled_graphs_to_train_on_and_instances_to_test_on(tmp_path: Path) -> None:
    directory = prepared(tmp_path)
    graphs = GraphStore.open(directory.path / "train.h5")
    assert graphs.num_graphs == 8
    assert np.all(graphs.columns.node_counts == 32)
    assert np.any(graphs.columns.x[:, TARGET] != 0.0)
    test = LapStore.open(directory.path / "test.h5")
    assert (test.sizes().tolist(), test.families(), test.storage) == ([16, 16], ["uniform", "sparse"], "seeded")
    outcome = directory.read_outcome()
    assert isinstance(outcome, Finished)
    assert outcome.metrics == {"num_instances_train": 8, "num_instances_validation": 2, "num_instances_test": 2}


def test_no_two_splits_and_no_two_data_seeds_share_an_instance() -> None:
    seeds = [instance_seed(seed, split, place) for seed in range(3) for split in SPLITS for place in (0, 1, 999_999)]
    assert len(set(seeds)) == len(seeds)


def test_equal_configurations_make_equal_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first = prepared(tmp_path / "a")
    assert hashes(first) == hashes(prepared(tmp_path / "b"))
    other = prepared(tmp_path / "c", small_config(["data.seed=1"], stages=[SMALL]))
    assert not set(hashes(first)) & set(hashes(other))


def test_a_killed_preparation_keeps_its_parts_and_comes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "LARGEST_PART", 2)
    whole = prepared(tmp_path / "whole")
    made: list[int] = []

    class KilledError(BaseException):
        pass

    def dying(family: str, n: int, seed: int, **parameters: Any) -> distributions.Instance:
        if len(made) == 5:
            raise KilledError
        made.append(seed)
        return generate(family, n, seed, **parameters)

    monkeypatch.setattr(distributions, "generate", dying)
    with pytest.raises(KilledError):
        prepared(tmp_path / "killed")
    [directory] = map(RunDirectory, (tmp_path / "killed" / "stages").iterdir())
    assert directory.newest_checkpoint() == "parts/train/00000002.json"  # two parts of two; the third was cut
    again: list[int] = []

    def counting(family: str, n: int, seed: int, **parameters: Any) -> distributions.Instance:
        again.append(seed)
        return generate(family, n, seed, **parameters)

    monkeypatch.setattr(distributions, "generate", counting)
    prepared(tmp_path / "killed")
    assert again == [*made[4:], *again[1:]]
    assert len(again) == 12 - 4
    assert hashes(directory) == hashes(whole)


def test_a_preparation_whose_job_ends_pauses_after_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "LARGEST_PART", 4)
    now = iter([0.0, 0.0, *[1000.0] * 20])
    deadline = Deadline(end_time=1000.0, clock=lambda: next(now))
    monkeypatch.setattr(Deadline, "from_environment", classmethod(lambda *_: deadline))
    run_locally(lap_run(small_config(stages=[SMALL])), tmp_path)
    outcome = outcome_of(tmp_path, "prepare-16")
    assert isinstance(outcome, Paused)
    assert outcome.checkpoint.startswith("parts/train/")
    assert "of 12 instances" in outcome.reason


def write_buckets(folder: Path, bucket: str, splits: dict[str, list[tuple[str, int, int]]]) -> None:
    for split, instances in splits.items():
        path = folder / bucket / "full" / f"{SPLIT_FILES[split]}.h5"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_store(path, (generate(*instance) for instance in instances), "dense")


SOME = {
    "train": [("uniform", 16, 1), ("uniform", 24, 2), ("metric", 16, 3)],
    "validation": [("uniform", 16, 4), ("uniform", 24, 5)],
    "test": [("sparse", 16, 6), ("uniform", 24, 7)],
}


def test_files_are_filtered_by_size_and_keep_their_storage(tmp_path: Path) -> None:
    write_buckets(tmp_path / "data", "small", SOME)
    config = small_config(source=str(tmp_path / "data"), stages=[SMALL])
    directory = prepared(tmp_path / "run", config)
    assert GraphStore.open(directory.path / "train.h5").num_graphs == 2
    test = LapStore.open(directory.path / "test.h5")
    assert (test.families(), test.sizes().tolist(), test.storage) == (["sparse"], [16], "dense")
    assert set(directory.read_spec().inputs) == {"train", "validation", "test"}
    np.testing.assert_array_equal(test.record(0).cost, generate("sparse", 16, 6).cost)


def test_a_size_that_no_file_has_is_refused_with_the_sizes_that_are_there(tmp_path: Path) -> None:
    write_buckets(tmp_path / "data", "small", {**SOME, "validation": [("uniform", 24, 5)]})
    with pytest.raises(UserError, match=r"val\.h5: has no instance of size 16 .*it has: 1 of size 24"):
        lap_run(small_config(source=str(tmp_path / "data"), stages=[SMALL]))


def test_a_missing_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    write_buckets(tmp_path, "small", {"train": SOME["train"], "test": SOME["test"]})
    with pytest.raises(UserError, match=r"small/full/val\.h5 is missing"):
        lap_run(small_config(source=str(tmp_path), stages=[SMALL]))


def test_an_instance_in_two_splits_is_refused(tmp_path: Path) -> None:
    write_buckets(tmp_path / "data", "small", {**SOME, "test": [("uniform", 16, 9), ("metric", 16, 3)]})
    run_locally(lap_run(small_config(source=str(tmp_path / "data"), stages=[SMALL])), tmp_path / "run")
    outcome = outcome_of(tmp_path / "run", "prepare-16")
    assert isinstance(outcome, Failed)
    assert "instance 1 of test is in train too" in outcome.evidence


def test_sizes_come_from_the_bucket_that_holds_them(tmp_path: Path) -> None:
    sizes = "progression={small_512_only: {size: 1025, train: 1, validation: 1, test: 1}}"
    with pytest.raises(UserError, match="mid_1536/full"):
        lap_run(small_config([sizes], source=str(tmp_path), stages=[SMALL]))
    assert MEDIUM in small_config().progression
