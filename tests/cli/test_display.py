import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.signals import stop_on_signals
from kdgat.base.text import describe_seconds
from kdgat.cli.display import RESULTS, PlainWatcher, TerminalWatcher, watched
from kdgat.cluster import Site, StopRequest
from kdgat.run import EVALUATION, OutputDirectory, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.run.progress import describe_progress, fraction_done
from tests.support.waiting import wait_until

TRAINING = {"phase": "train", "epoch": 2, "max_epochs": 10, "step": 5, "num_steps": 10, "loss": 0.25}


LEFT = {"left_low_s": 700.0, "left_high_s": 850.0}


def write_run(output: OutputDirectory, *states: StageState, message: str = "", kinds: tuple[str, ...] = ()) -> None:
    records = [
        StageRecord(name=f"stage{place}", stage=kind, scale="large", seed=0, state=state, directory=f"s{place}")
        for place, (state, kind) in enumerate(zip(states, kinds or ["normal"] * len(states), strict=True))
    ]
    records[-1].message = message
    for record in records:
        (output.path / str(record.directory)).mkdir(parents=True, exist_ok=True)
    output.write_index(RunIndex(family="can", config={}, stages=records))


def write_progress(output: OutputDirectory, place: int, progress: dict[str, Any]) -> Path:
    path = output.path / f"s{place}" / "progress.json"
    path.write_text(json.dumps(progress))
    return path


def recorder(*, is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=120)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("progress", "fraction"),
    [
        (TRAINING, 0.25),
        ({**TRAINING, "phase": "validation", "step": 1, "num_steps": 9}, 0.3),  # training of the third epoch is done
        ({"phase": "teacher", "done": 30, "total": 40}, 0.75),
        ({"phase": "train", "epoch": 10, "max_epochs": 10}, 1.0),
        ({}, 0.0),
    ],
)
def test_progress_becomes_a_fraction(progress: dict[str, Any], fraction: float) -> None:
    assert fraction_done(progress) == pytest.approx(fraction)


def test_progress_is_described_for_people() -> None:
    assert describe_progress(TRAINING) == "epoch 3/10, loss 0.25"
    assert describe_progress({**TRAINING, "seconds_to_deadline": 57840.2}).endswith("loss 0.25, 16 h 4 min to deadline")
    assert describe_progress({"phase": "teacher", "done": 3000, "total": 40000}) == "3,000 of 40,000, teacher"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1.0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (86399, "23 h 59 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_a_duration_is_said_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert describe_seconds(seconds) == words


def test_each_change_is_one_plain_line_where_there_is_no_terminal(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=False)
    watcher = PlainWatcher(output, console)
    write_run(output, StageState.RUNNING, StageState.PLANNED)
    watcher.look()
    watcher.look()
    write_run(output, StageState.FINISHED, StageState.FAILED, message="BAD_INPUT: no such file")
    watcher.close()
    text = text_of(console)
    assert text.count("stage0: running") == 1
    assert text.count("stage0: finished") == 1
    assert "stage1: failed (no such file)" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_who_waits_for_tables_after_the_last_stage_is_told_what_goes_on(tmp_path: Path, *, is_terminal: bool) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=is_terminal)
    watcher = (TerminalWatcher if is_terminal else PlainWatcher)(output, console)
    write_run(output, StageState.CACHED, StageState.RUNNING, kinds=("normal", EVALUATION))
    watcher.look()
    if is_terminal:
        assert RESULTS not in text_of(console)
    write_run(output, StageState.CACHED, StageState.FINISHED, kinds=("normal", EVALUATION))
    watcher.look()
    watcher.look()
    if isinstance(watcher, TerminalWatcher):
        watcher._progress.refresh()  # otherwise drawn ten times a second
    watcher.close()
    found = text_of(console)
    assert RESULTS in found
    if not is_terminal:
        assert found.count(RESULTS) == 1


def test_a_run_without_evaluation_collects_nothing(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=False)
    watcher = PlainWatcher(output, console)
    write_run(output, StageState.FINISHED)
    watcher.close()
    assert RESULTS not in text_of(console)


def test_a_night_shows_the_stages_of_its_own_run_and_says_what_comes_after_them(tmp_path: Path) -> None:
    runs = [OutputDirectory(tmp_path / "first")]
    console = recorder(is_terminal=False)
    watcher = PlainWatcher(lambda: runs[-1], console, afterwards="comparing")
    write_run(runs[0], StageState.FINISHED, StageState.FINISHED, kinds=("normal", EVALUATION))
    watcher.look()
    runs.append(OutputDirectory(tmp_path / "second"))
    write_run(runs[1], StageState.FINISHED, StageState.RUNNING, kinds=("normal", EVALUATION))
    watcher.look()
    assert text_of(console).count("stage0: finished") == 2
    assert text_of(console).count("comparing") == 1
    write_run(runs[1], StageState.FINISHED, StageState.FINISHED, kinds=("normal", EVALUATION))
    watcher.close()
    assert text_of(console).count("comparing") == 2
    assert RESULTS not in text_of(console)


def test_a_run_may_become_known_while_it_is_watched(tmp_path: Path) -> None:
    known: list[OutputDirectory] = []
    console = recorder(is_terminal=False)
    watcher = PlainWatcher(lambda: known[-1] if known else None, console)
    watcher.look()
    known.append(OutputDirectory(tmp_path))
    write_run(known[0], StageState.RUNNING)
    watcher.close()
    assert text_of(console).count("stage0: running") == 1


def test_a_traceback_is_shown_by_its_last_line(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=False)
    watcher = PlainWatcher(output, console)
    write_run(output, StageState.FAILED, message="ERROR: Traceback\n  File x\nKeyError: 'y'")
    watcher.close()
    assert "failed ('y' (KeyError))" in text_of(console)


def test_a_terminal_gets_a_bar_that_moves(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=True)
    watcher = TerminalWatcher(output, console)
    write_run(output, StageState.RUNNING)
    write_progress(output, 0, TRAINING)
    watcher.look()
    watcher._progress.refresh()
    assert "25%" in text_of(console)
    assert "epoch 3/10" in text_of(console)
    write_run(output, StageState.FINISHED)
    watcher.close()
    assert "1/1" in text_of(console)


def test_progress_from_before_a_job_was_lost_is_not_shown_while_the_next_one_waits(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=True)
    watcher = TerminalWatcher(output, console)
    write_run(output, StageState.RUNNING)
    path = write_progress(output, 0, TRAINING)
    watcher.look()
    (bar,) = watcher._progress.tasks
    assert bar.fields["words"].startswith("epoch 3/10")
    write_run(output, StageState.RUNNING, message="job 8 waits: PENDING Resources")
    watcher.look()
    assert "stage0 \x1b[2mjob 8 waits: PENDING Resources" in text_of(console)
    assert bar.fields["words"] == "job 8 waits: PENDING Resources"
    later = time.time() + 5
    os.utime(path, (later, later))
    watcher.look()
    assert bar.fields["words"].startswith("epoch 3/10")
    watcher.close()


def test_a_phase_that_is_done_does_not_stop_the_clock_of_its_stage(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=True)
    watcher = TerminalWatcher(output, console)
    write_run(output, StageState.RUNNING)
    write_progress(output, 0, {"phase": "difficulty", "done": 10, "total": 10})
    watcher.look()
    (bar,) = [task for task in watcher._progress.tasks if task.description != ""]
    assert not bar.finished
    watcher.close()


def test_what_an_earlier_run_left_is_not_shown(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=False)
    write_run(output, StageState.FAILED)
    old = time.time() - 60
    os.utime(output.index_path, (old, old))
    PlainWatcher(output, console).look()
    assert "stage0" not in text_of(console)


def test_a_half_written_index_is_read_again_later(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=False)
    watcher = PlainWatcher(output, console)
    output.index_path.write_text('{"config"')
    watcher.look()
    write_run(output, StageState.RUNNING)
    watcher.look()
    assert "stage0: running" in text_of(console)


def test_quiet_shows_nothing(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=True)
    with watched(output, console, quiet=True):
        write_run(output, StageState.RUNNING)
    assert text_of(console) == ""


def test_while_a_run_stops_the_count_is_of_stages_that_are_done(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=True)
    watcher = TerminalWatcher(output, console)
    write_run(output, StageState.FINISHED, StageState.PAUSED, StageState.BLOCKED)
    watcher.close()
    counts = [line for line in text_of(console).splitlines() if "/3" in line]
    assert len(counts) == 2  # that the third does not begin is no news
    assert all("1/3" in line for line in counts)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_where_a_stage_resumed_is_said_once(tmp_path: Path, is_terminal: bool) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=is_terminal)
    watcher = (TerminalWatcher if is_terminal else PlainWatcher)(output, console)
    write_run(output, StageState.RUNNING)
    write_progress(output, 0, {**TRAINING, "resumed": "epoch 2 step 34"})
    watcher.look()
    watcher.look()
    watcher.close()
    assert text_of(console).count("resumed at epoch 2 step 34") == 1


def test_an_output_path_that_is_a_file_does_not_end_the_display(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    watcher = PlainWatcher(OutputDirectory(tmp_path / "file" / "below"), recorder(is_terminal=False))
    watcher.look()
    watcher.close()


def test_bars_have_the_short_names_of_their_stages(tmp_path: Path) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=True)
    watcher = TerminalWatcher(output, console)
    record = StageRecord(name="normal-large-seed0", stage="normal", scale="large", seed=0, state=StageState.RUNNING)
    output.write_index(RunIndex(family="can", config={}, stages=[record]))
    watcher.look()
    (bar,) = watcher._progress.tasks
    assert bar.description == "normal"
    watcher.close()


def test_what_a_signal_says_stands_above_the_bars_and_freezes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, console = OutputDirectory(tmp_path), recorder(is_terminal=True)
    watcher = TerminalWatcher(output, console)
    with stop_on_signals(StopRequest(), Site(name="local")):
        signal.raise_signal(signal.SIGINT)
        wait_until(lambda: "once more to kill them" in text_of(console), "what it says")
    watcher.close()


def test_a_narrow_terminal_shortens_the_words_beside_bars_and_keeps_the_elapsed_time(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    watcher = TerminalWatcher(output, console)
    write_run(output, StageState.RUNNING, StageState.RUNNING)
    for place in (0, 1):
        write_progress(output, place, {**TRAINING, "seconds_to_deadline": 57840.2, "graphs_per_s": 1234.0, **LEFT})
    watcher.look()
    for task in watcher._progress.tasks:
        task.description = f"distill_autoencoder-large-{task.description}"
    printed = Console(file=io.StringIO(), width=80, color_system=None)
    printed.print(watcher._progress.make_tasks_table(watcher._progress.tasks))
    watcher.close()
    *lines, run = text_of(printed).splitlines()
    assert "12 to 14 min left" in run
    assert len(lines) == 2
    for line in lines:
        assert "0:00:0" in line
        assert "0:00:0…" not in line
        assert "%" in line
        assert "epoch 3/10" in line.split("0:00:0")[1]
