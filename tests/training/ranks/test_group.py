"""Several processes at one fit: together they are one that accumulates, and they stop, fail and resume as one."""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kdgat.stage import RunDirectory
from kdgat.training.averages import Averages
from kdgat.training.checkpoints import Checkpoints
from kdgat.training.ranks.group import Group, Ranks
from tests.training.ranks.ranked_training import NUM_TRAINING, STEPS_PER_EPOCH, Scene, run_rank, train

pytestmark = pytest.mark.processes

REPOSITORY = Path(__file__).parents[3]
NUM_STEPS = 3 * STEPS_PER_EPOCH
IN_TWO_PARTS = {"accumulate": 2}
Trained = list[dict[str, Any]]  # by rank; of one that raised an error, nothing


@pytest.fixture(scope="module")
def children() -> Iterator[ForkServerContext]:
    """Fork children from a server that has imported everything and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.ranks.ranked_training"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield context


@pytest.fixture
def together(children: ForkServerContext, tmp_path: Path) -> Callable[..., Trained]:
    """Train in several processes at once, into `path`."""
    attempts = iter(range(100))

    def run(path: Path, count: int, scene: Scene) -> Trained:
        folder = tmp_path / f"attempt-{next(attempts)}"
        folder.mkdir()
        processes = [
            children.Process(target=run_rank, args=(folder, path, rank, count, scene)) for rank in range(count)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=120)
            assert process.exitcode is not None, "a rank hangs"
        results = [folder / f"{rank}.pt" for rank in range(count)]
        return [torch.load(one, weights_only=False) if one.is_file() else {} for one in results]

    return run


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], without: tuple[str, ...] = ()) -> bool:
    names = [name for name in one if name not in without]
    return bool(names) and one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in names)


def test_two_ranks_are_one_process_that_accumulates_twice_bit_for_bit(together, tmp_path):
    alone = train(tmp_path / "alone", Scene(config=IN_TWO_PARTS))
    first, second = together(tmp_path / "two", 2, Scene())
    # The buffer is rank 0's: one part of each batch, where a process alone goes through both.
    assert same(first["weights"], alone["weights"], without=("seen",))
    # Whose last batch has one graph, so that the second rank has none.
    assert (first["steps"], second["steps"]) == (NUM_STEPS, NUM_STEPS - 3)
    assert first["weights"]["seen"] == second["weights"]["seen"] == NUM_STEPS + 3 * 1000
    assert [row["step"] for row in RunDirectory(tmp_path / "two").read_metrics()] == [5, 10, 15]


def test_parts_of_a_batch_are_shared_out(together, tmp_path):
    """What is configured as two parts is a part for each of two ranks, and no more."""
    alone = train(tmp_path / "alone", Scene(config=IN_TWO_PARTS))
    found, _ = together(tmp_path / "two", 2, Scene(config=IN_TWO_PARTS))
    assert found["steps"] == NUM_STEPS
    assert same(found["weights"], alone["weights"], without=("seen",))
    for row, expected in zip(found["history"], alone["history"], strict=True):
        assert row["validation_loss"] == expected["validation_loss"]
        assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-12)


def test_three_ranks_differ_from_one_process_in_rounding_only(together, tmp_path):
    alone = train(tmp_path / "alone", Scene(config={"accumulate": 3}))
    found = together(tmp_path / "three", 3, Scene())
    for name, values in found[0]["weights"].items():
        if name != "seen":
            torch.testing.assert_close(values, alone["weights"][name], rtol=1e-4, atol=1e-5)


def test_a_stop_that_one_rank_sees_ends_all_after_one_step_and_the_next_attempt_goes_on_exactly(together, tmp_path):
    path = tmp_path / "stopped"
    undisturbed = together(tmp_path / "undisturbed", 2, Scene(dropout=0.3))[0]
    paused, other = together(path, 2, Scene(dropout=0.3, term_at=6))
    assert paused["paused"]
    assert paused["reason"] == "SIGTERM received by rank 1"
    assert same(paused["weights"], other["weights"])
    _, saved = Checkpoints(RunDirectory(path)).load_newest()
    # Of the first epoch's five steps the second rank has nothing to do in the last one.
    assert (saved["state"]["epoch"], saved["state"]["step"]) == (1, 3)
    resumed = together(path, 2, Scene(dropout=0.3))[0]
    assert not resumed["paused"]
    assert same(resumed["weights"], undisturbed["weights"])
    assert resumed["history"] == undisturbed["history"]


def test_each_rank_draws_numbers_of_its_own(together, tmp_path):
    config = IN_TWO_PARTS | {"max_epochs": 1}
    alone = train(tmp_path / "alone", Scene(dropout=0.3, config=config))
    first = together(tmp_path / "two", 2, Scene(dropout=0.3, config=config))[0]
    assert not same(first["weights"], alone["weights"], without=("seen",))


def test_a_rank_that_is_short_of_memory_makes_all_go_through_the_batch_in_smaller_parts(together, tmp_path):
    path = tmp_path / "short"
    whole = together(tmp_path / "whole", 2, Scene())[0]
    found = together(path, 2, Scene(room=2))[0]
    _, saved = Checkpoints(RunDirectory(path)).load_newest()
    assert saved["state"]["num_parts"] == 4
    for name, values in found["weights"].items():
        if name != "seen":
            torch.testing.assert_close(values, whole["weights"][name], rtol=1e-4, atol=1e-5)


def test_a_rank_without_memory_for_one_graph_ends_all(together, tmp_path):
    assert together(tmp_path / "short", 2, Scene(room=0)) == [{}, {}]


def test_an_error_of_one_rank_ends_the_others_and_what_was_saved_before_is_gone_on_from(together, tmp_path):
    path = tmp_path / "failed"
    often = {"checkpoint_every_steps": 2}
    undisturbed = together(tmp_path / "undisturbed", 2, Scene())[0]
    assert together(path, 2, Scene(fails_at=7, config=often)) == [{}, {}]
    resumed = together(path, 2, Scene(config=often))[0]
    assert same(resumed["weights"], undisturbed["weights"])
    assert resumed["history"] == undisturbed["history"]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_another_number_of_ranks_goes_on_from_a_checkpoint(together, tmp_path, before, after, caplog):
    path = tmp_path / "changed"
    accumulated = Scene(config=IN_TWO_PARTS)
    alone = train(tmp_path / "alone", accumulated)
    # With the same parts of each batch even the bits are the same.
    assert together(path, before, Scene(rank=0, term_at=6, config=IN_TWO_PARTS))[0]["paused"]
    if after == 1:
        resumed = train(path, accumulated)
        assert "was written by 2 processes that trained together and one goes on now" in caplog.text
    else:
        resumed = together(path, after, accumulated)[0]
    assert same(resumed["weights"], alone["weights"], without=("seen",))
    for found, expected in zip(resumed["history"], alone["history"], strict=True):
        assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("num_parts", [1, 2, 5])
@pytest.mark.parametrize("num_graphs", [1, 2, 7, NUM_TRAINING])
def test_parts_of_all_ranks_are_the_batch_in_its_order(count, num_parts, num_graphs):
    indices = np.arange(num_graphs) * 3
    found = []
    for rank in range(count):
        ranks = Ranks() if count == 1 else object.__new__(Group)
        ranks.rank, ranks.count = rank, count
        found += ranks.parts(indices, num_parts)
    assert all(len(part) for part in found)
    assert np.concatenate(found).tolist() == indices.tolist()


def test_what_ranks_have_counted_is_added_up():
    states = []
    for values in ({"loss": 1.0}, {}, {"loss": 4.0, "rare": 2.0}):
        averages = Averages()
        for name, value in values.items():
            averages.add(name, value, weight=2 if value == 1 else 1)
        states.append(averages.state_dict())
    assert Averages.merged(states).means() == {"loss": 2.0, "rare": 2.0}
