"""The processes beside a stage: how many there are, what they see, and what their ends mean."""

import os
import signal
from pathlib import Path

import pytest
import torch

from kdgat.base import ConfigurationError, write_bytes_atomically
from kdgat.stage import EnvironmentFaultError, FailureKind, RunDirectory, StageInput, StageSpec
from kdgat.stage.gpus import VISIBLE_VARIABLE
from kdgat.stage.provenance import GPUS_VARIABLE
from kdgat.stage.runner import failure_kind
from kdgat.training import TrainingConfig
from kdgat.training.ranks.end import LOST, describe_end, log_path, note_end
from kdgat.training.ranks.group import Seat, take_seat
from kdgat.training.ranks.processes import gpu_environments, meeting_place, mirror, num_ranks

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def training(ranks: int | None) -> TrainingConfig:
    return TrainingConfig(num_ranks=ranks)


def test_a_fit_on_the_processor_has_as_many_ranks_as_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPUS_VARIABLE, "4")  # which it does not use
    assert [num_ranks(training(ranks), CPU) for ranks in (None, 1, 3)] == [1, 1, 3]


def test_a_fit_has_a_rank_on_each_gpu_that_its_job_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert num_ranks(training(None), CUDA) == 1, "no job: the other GPUs may be somebody else's"
    assert num_ranks(training(2), CUDA) == 2
    with pytest.raises(ConfigurationError, match=r"training\.num_ranks=5: each rank needs a GPU .* there are 4"):
        num_ranks(training(5), CUDA)
    monkeypatch.setenv(GPUS_VARIABLE, "4")
    assert [num_ranks(training(ranks), CUDA) for ranks in (None, 1)] == [4, 1]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(EnvironmentFaultError, match="given 4 GPUs and torch sees 3"):
        num_ranks(training(None), CUDA)


def test_a_rank_goes_through_fits_that_are_done_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # its own, of the two that the job was given
    monkeypatch.setenv(GPUS_VARIABLE, "2")
    take_seat(Seat(1, 2, "second", tmp_path))
    try:
        assert [num_ranks(training(ranks), device) for ranks in (None, 2) for device in (CPU, CUDA)] == [1] * 4
    finally:
        take_seat(None)


def test_each_rank_sees_one_gpu_of_those_that_its_stage_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_environments(2, CPU) == {}
    monkeypatch.delenv(VISIBLE_VARIABLE, raising=False)
    assert gpu_environments(2, CUDA) == {0: {VISIBLE_VARIABLE: "0"}, 1: {VISIBLE_VARIABLE: "1"}}
    monkeypatch.setenv(VISIBLE_VARIABLE, "GPU-7, GPU-5,GPU-3")
    assert gpu_environments(2, CUDA)[1] == {VISIBLE_VARIABLE: "GPU-5"}


@pytest.fixture
def stage(tmp_path: Path) -> RunDirectory:
    """Return the directory of a stage that has an input beside it, and has done something."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "store").write_text("rows")
    given = StageInput.of_file(tmp_path / "data" / "store").model_copy(update={"path": "../data/store"})
    directory = RunDirectory(tmp_path / "stage").create(
        StageSpec(family="can", stage="normal", seed=0, inputs={"store": given})
    )
    (directory.path / "teacher").mkdir()
    (directory.path / "teacher" / "latent.npy").write_text("computed once")
    (directory.path / "difficulty.npy").write_text("computed once, too")
    directory.log_path.write_text("a line")
    directory.append_metrics({"epoch": 0})
    return directory


def test_a_rank_finds_what_its_stage_has_computed_and_its_inputs(stage: RunDirectory, tmp_path: Path) -> None:
    shown = mirror(stage, tmp_path / "elsewhere" / "rank-1")
    assert (shown.path / "teacher" / "latent.npy").read_text() == "computed once"
    spec = shown.read_spec()
    assert spec.identity() == stage.read_spec().identity()
    assert spec.inputs["store"].resolve(shown.path).read_text() == "rows"
    assert not shown.log_path.exists()
    assert shown.read_metrics() == []


def test_what_a_rank_writes_stays_with_it(stage: RunDirectory, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in stage.path.rglob("*") if path.is_file()}
    shown = mirror(stage, tmp_path / "rank-1")
    write_bytes_atomically(shown.path / "teacher" / "latent.npy", b"other")
    write_bytes_atomically(shown.path / "difficulty.npy", b"other")
    shown.append_metrics({"epoch": 7})
    shown.write_progress({"epoch": 7})
    (shown.path / "weights").mkdir()
    assert {path: path.read_bytes() for path in stage.path.rglob("*") if path.is_file()} == before


def test_what_a_killed_attempt_left_is_removed_by_the_next_one(
    stage: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = RunDirectory(tmp_path / "other")
    with meeting_place(stage) as left, meeting_place(other) as of_another:
        mirror(stage, left / "rank-1")
        with meeting_place(stage) as mine:
            assert not left.exists()
            assert of_another.is_dir()
    assert not mine.exists()
    assert (stage.path / "difficulty.npy").is_file()


@pytest.mark.parametrize(
    ("noted", "kind"),
    [
        (FailureKind.CUDA_OOM, FailureKind.CUDA_OOM),
        (FailureKind.HOST_OOM, FailureKind.HOST_OOM),
        (FailureKind.NUMERIC, FailureKind.NUMERIC),
        (FailureKind.ENVIRONMENT, FailureKind.ENVIRONMENT),
        (FailureKind.ERROR, FailureKind.ERROR),
        (LOST, FailureKind.ENVIRONMENT),
    ],
)
def test_a_stage_fails_as_its_rank_did(tmp_path: Path, noted: str, kind: FailureKind) -> None:
    note_end(tmp_path, 2, noted, "what it says")
    error = describe_end(tmp_path, 2, 4711, 1).error()
    assert failure_kind(error) is kind
    assert str(error) == "rank 2 of the fit (process 4711) ended with status 1: what it says"


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGSEGV, FailureKind.ERROR), (signal.SIGKILL, FailureKind.ENVIRONMENT)]
)
def test_a_rank_that_crashed_is_a_fault_of_the_stage_and_one_that_was_killed_is_none(
    tmp_path: Path, number: signal.Signals, kind: FailureKind
) -> None:
    log_path(tmp_path, 1).touch()
    assert failure_kind(describe_end(tmp_path, 1, 4711, -number).error()) is kind


def test_a_rank_that_noted_nothing_is_described_by_what_it_printed(tmp_path: Path) -> None:
    log_path(tmp_path, 1).write_text("Traceback\nModuleNotFoundError: No module named 'torch'\n")
    error = describe_end(tmp_path, 1, os.getpid(), 1).error()
    assert failure_kind(error) is FailureKind.ERROR
    assert str(error).endswith("Traceback | ModuleNotFoundError: No module named 'torch'")
