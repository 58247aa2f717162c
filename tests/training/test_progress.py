"""Progress: a bar on a terminal, plain lines elsewhere, nothing on stderr when quiet."""

import io
import json
import logging
import sys

import pytest
import torch

from kdgat.run.progress import describe_progress
from kdgat.stage import RunDirectory, StageSpec
from kdgat.stage.work import FitWork
from kdgat.training import Deadline
from kdgat.training.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def work(directory, deadline=None):
    progress = Progress(directory, "student", 3, deadline or Deadline())
    progress.start_epoch(1, 2, 10)
    progress.count(128)
    progress.report(epoch=1, step=3, num_steps=10, phase="train", loss=0.25)
    progress.end_epoch()


@pytest.mark.parametrize(
    ("stream", "quiet", "bar"), [(Terminal, False, True), (Terminal, True, False), (io.StringIO, False, False)]
)
def test_bar_is_for_terminals_that_want_it(tmp_path, monkeypatch, stream, quiet, bar):
    stderr = stream()
    monkeypatch.setattr(sys, "stderr", stderr)
    directory = RunDirectory(tmp_path)
    directory.quiet = quiet
    work(directory)
    assert ("student epoch 2/3" in stderr.getvalue()) == bar
    assert ("loss 0.25" in stderr.getvalue()) == bar
    if not bar:
        assert stderr.getvalue() == ""


def test_plain_lines_go_to_the_log_without_a_terminal(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("kdgat.training.progress.LOG_INTERVAL_S", 0.0)
    with caplog.at_level(logging.INFO, logger="kdgat"):
        work(RunDirectory(tmp_path))
    assert "train epoch 1 step 3/10, loss 0.25" in caplog.text


def test_file_tells_the_time_to_the_deadline(tmp_path):
    directory = RunDirectory(tmp_path)
    work(directory, Deadline(end_time=1060.0, clock=lambda: 1000.0))
    progress = json.loads(directory.progress_path.read_text())
    assert progress["seconds_to_deadline"] == 60.0
    assert (progress["fit"], progress["epoch"], progress["max_epochs"], progress["step"]) == ("student", 1, 3, 3)


MEMORY = {"gpu_allocated_bytes": 1 << 30, "gpu_reserved_bytes": 3 << 29, "gpu_free_bytes": 6 << 30}


def test_people_see_what_a_gpu_holds_and_nothing_of_it_on_a_cpu():
    assert describe_progress({"phase": "train", **MEMORY}) == "GPU 1.0 of 1.5 GiB, 6.0 free"
    assert describe_progress({"phase": "train", **MEMORY, "gpu_peak_bytes": 5 << 28}).endswith(
        "GiB, at most 1.2, 6.0 free"
    )
    assert describe_progress({"phase": "train"}) == ""


def test_file_tells_the_memory_of_the_gpu_that_is_used(tmp_path):
    directory = RunDirectory(tmp_path)
    if torch.cuda.is_available():
        torch.cuda.init()
    work(directory)
    progress = json.loads(directory.progress_path.read_text())
    assert {name for name in progress if name.startswith("gpu_")} == (
        {*MEMORY, "gpu_peak_bytes"} if torch.cuda.is_available() else set()
    )


def test_work_of_the_fits_of_a_process_is_noted_for_estimates(tmp_path):
    directory, now = RunDirectory(tmp_path), iter([0.0, 1.0, 5.0, 5.0, 100.0, 101.0, 103.0])
    clock = lambda: next(now)  # noqa: E731
    for name in ("teacher", "student"):
        progress = Progress(directory, name, 3, Deadline(), clock)
        progress.start_epoch(1, 2, 10)
        progress.count(128)
        if name == "teacher":
            progress.report(epoch=1, step=3, num_steps=10, phase="train", loss=0.25)
        progress.end(is_done=name == "student")
    work = directory.read_work()
    assert work.fits["teacher"] == FitWork(done=1, left=17, seconds=5.0)
    assert work.fits["student"] == FitWork(done=1, left=0, seconds=3.0)
    assert (work.done, work.left, work.step_s) == (2, 17, 4.0)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def trained(directory, clock, deadline, epochs, *, may_end_early=False, max_epochs=4):
    """Return what progress.json says 5 of 10 steps into an epoch, after epochs whose steps took these seconds."""
    progress = Progress(directory, "student", max_epochs, deadline, clock, may_end_early=may_end_early)
    for epoch, step_s in enumerate([*epochs, 1.0]):
        progress.start_epoch(epoch, 0, 10)
        for _ in range(10 if epoch < len(epochs) else 5):
            clock.now += step_s
            progress.count(1)
        clock.now += 2.0 if epoch < len(epochs) else 0.0  # validation
    progress.report(epoch=len(epochs), step=5, num_steps=10, phase="train", loss=0.25)
    return json.loads(directory.progress_path.read_text())


def test_the_end_of_a_stage_is_a_range_from_its_fastest_to_its_slowest_epoch_with_validation(tmp_path):
    found = trained(RunDirectory(tmp_path), Clock(), Deadline(), [1.0, 2.0])
    assert (found["left_low_s"], found["left_high_s"]) == (7.0 + 12.0, 17.0 + 22.0)
    assert found["epoch_left_s"] == 17.0
    assert describe_progress(found).startswith("epoch 3/4, 20 to 40 s left")


def test_before_the_first_validation_the_end_of_a_stage_is_a_lower_bound(tmp_path):
    found = trained(RunDirectory(tmp_path), Clock(), Deadline(), [])
    assert "epoch 1/4, at least 35 s left" in describe_progress(found)


def test_early_stopping_makes_the_end_an_upper_bound(tmp_path):
    found = trained(RunDirectory(tmp_path), Clock(), Deadline(), [1.0, 2.0], may_end_early=True)
    assert "at most 40 s left" in describe_progress(found)


def test_a_first_step_that_compiles_is_no_rate(tmp_path):
    clock, directory = Clock(), RunDirectory(tmp_path)
    progress = Progress(directory, "student", 1, Deadline(), clock)
    progress.start_epoch(0, 0, 10)
    for seconds in (100.0, 1.0, 1.0, 1.0):
        clock.now += seconds
        progress.count(1)
    progress.report(epoch=0, step=4, num_steps=10, phase="train", loss=0.25)
    assert json.loads(directory.progress_path.read_text())["left_high_s"] == 6.0


def test_a_stage_with_more_fits_to_come_lasts_at_least_as_long_as_this_one(tmp_path):
    directory = RunDirectory(tmp_path)
    fits = [{"name": "student"}, {"name": "last"}]
    directory.used_spec = StageSpec(family="lap", stage="line", seed=0, config={"fits": fits})
    assert "at least 20 s left" in describe_progress(trained(directory, Clock(), Deadline(), [1.0, 2.0]))


def test_whether_a_stage_ends_in_its_job_or_takes_more_of_them_is_said(tmp_path):
    clock = Clock()
    deadline = Deadline(end_time=100.0, margin_floor_s=20.0, clock=clock)
    text = describe_progress(trained(RunDirectory(tmp_path), clock, deadline, [1.0, 1.0]))
    assert "1 min 11 s to deadline (the stage fits)" in text
    text = describe_progress(trained(RunDirectory(tmp_path), clock, deadline, [1.0, 1.0], max_epochs=20))
    assert "(4 more jobs)" in text


def test_a_fit_that_does_no_step_notes_no_work(tmp_path):
    directory = RunDirectory(tmp_path)
    Progress(directory, "student", 3, Deadline()).end(is_done=True)
    assert directory.read_work() is None


def test_a_process_that_resumed_says_where(tmp_path):
    directory = RunDirectory(tmp_path)
    progress = Progress(directory, "student", 3, Deadline())
    progress.report(epoch=1, step=3, num_steps=10, phase="train", loss=0.25)
    assert "resumed" not in json.loads(directory.progress_path.read_text())
    progress.resumed = "student epoch 2 step 34"
    progress.report(epoch=1, step=34, num_steps=40, phase="train", loss=0.25)
    assert json.loads(directory.progress_path.read_text())["resumed"] == "student epoch 2 step 34"
