"""A run that is killed and started again is the run that was not: same weights and rows, bit for bit."""

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest
import torch

from kdgat.stage import EnvironmentFaultError, RunDirectory
from kdgat.stage.errors import OwnerLostError
from kdgat.stage.outcome import EXIT_FINISHED, EXIT_PAUSED
from kdgat.stage.provenance import record_attempt
from kdgat.training import Deadline
from kdgat.training.checkpoints import CheckpointError, Checkpoints
from kdgat.training.device import choose_device, describe_machine
from kdgat.training.fit import fit
from tests.training.graph_training import (
    CONFIG,
    SEED,
    CurriculumSource,
    GraphClassifier,
    make_graphs,
    make_sources,
    run_child,
    train,
)

REPOSITORY = Path(__file__).parents[2]
NUM_STEPS = 36  # of the whole training; the curriculum decides it


@pytest.fixture(scope="module")
def children() -> Iterator[ForkServerContext]:
    """Fork children from a server that has imported everything and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.graph_training"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(REPOSITORY))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield context


def start(context: ForkServerContext, path: Path, every: int | None, *happening: object) -> ForkServerProcess:
    process = context.Process(target=run_child, args=(path, every, *happening))
    process.start()
    return process


def run(context: ForkServerContext, path: Path, every: int | None, *happening: object) -> int:
    process = start(context, path, every, *happening)
    process.join(timeout=120)
    assert process.exitcode is not None, "the child hangs"
    return process.exitcode


def results(path: Path) -> tuple[bytes, str]:
    directory = RunDirectory(path)
    return directory.weights_path.read_bytes(), directory.metrics_path.read_text()


@pytest.fixture(scope="module")
def undisturbed(children: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """Weights file and rows of a run that nobody touched and that never saved before its end."""
    path = tmp_path_factory.mktemp("undisturbed")
    assert run(children, path, None) == EXIT_FINISHED
    assert RunDirectory(path).read_metrics()[-1]["step"] == NUM_STEPS
    return results(path)


class TestRestartEqualsUninterrupted:
    @pytest.mark.parametrize("every", [1, 5])
    @pytest.mark.processes
    def test_saving_changes_nothing(self, children, tmp_path, undisturbed, every):
        assert run(children, tmp_path, every) == EXIT_FINISHED
        assert results(tmp_path) == undisturbed

    @pytest.mark.parametrize(
        ("every", "kills"),
        [
            pytest.param(3, [("step", 2)], id="before-the-first-checkpoint"),
            pytest.param(5, [("step", 9), ("step", 7), ("step", 13)], id="mid-epoch"),
            pytest.param(6, [("step", 7)], id="first-step-of-an-epoch"),
            pytest.param(4, [("validation", 2), ("validation", 5)], id="in-validation"),
            pytest.param(4, [("metrics", 1), ("metrics", 2)], id="between-epochs"),
            pytest.param(3, [("open", 1), ("open", 4)], id="before-a-checkpoint-is-opened"),
            pytest.param(3, [("hash", 2), ("hash", 3)], id="checkpoint-without-hash"),
            pytest.param(3, [("rename", 1), ("rename", 3)], id="checkpoint-not-renamed"),
            pytest.param(2, [("renamed", 1), ("renamed", 2)], id="old-checkpoints-not-removed"),
            pytest.param(36, [("rename", 1)], id="last-checkpoint-not-renamed"),
        ],
    )
    @pytest.mark.processes
    def test_after_sigkill(self, children, tmp_path, undisturbed, every, kills):
        for event, occurrence in kills:
            assert run(children, tmp_path, every, event, occurrence, "kill") == -signal.SIGKILL
        assert run(children, tmp_path, every) == EXIT_FINISHED
        assert results(tmp_path) == undisturbed

    @pytest.mark.parametrize("occurrence", [1, 3])
    @pytest.mark.processes
    def test_after_a_kill_in_the_middle_of_writing_a_checkpoint(self, children, tmp_path, undisturbed, occurrence):
        assert run(children, tmp_path, 4, "open", occurrence, "partial") == -signal.SIGXFSZ
        partial = [entry for entry in (tmp_path / "checkpoints").iterdir() if entry.suffix == ".tmp"]
        assert [entry.stat().st_size for entry in partial] == [10_000]
        assert run(children, tmp_path, 4) == EXIT_FINISHED
        assert results(tmp_path) == undisturbed
        assert not list((tmp_path / "checkpoints").glob(".*"))

    @pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6))])
    @pytest.mark.processes
    def test_after_kills_at_seeded_random_events(self, children, tmp_path, undisturbed, seed):
        draw = random.Random(seed)
        assert run(children, tmp_path, 2, "step", draw.randint(1, 15), "kill") == -signal.SIGKILL
        for _ in range(5):
            event = draw.choice(["step", "step", "validation", "open", "hash", "rename", "renamed", "metrics"])
            code = run(children, tmp_path, draw.choice([1, 2, 5]), event, draw.randint(1, 9), "kill")
            assert code in (-signal.SIGKILL, EXIT_FINISHED)
        assert run(children, tmp_path, 3) == EXIT_FINISHED
        assert results(tmp_path) == undisturbed

    @pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
    @pytest.mark.processes
    def test_after_kills_from_outside_at_random_times(self, children, tmp_path, undisturbed, seed):
        draw = random.Random(seed)
        for _ in range(6):
            process = start(children, tmp_path, 1)
            checkpoints = tmp_path / "checkpoints"
            before = newest(checkpoints)
            while process.is_alive() and newest(checkpoints) == before:
                time.sleep(0.001)
            time.sleep(draw.uniform(0.0, 0.02))
            process.kill()
            process.join()
            if process.exitcode == EXIT_FINISHED:
                break
            assert process.exitcode == -signal.SIGKILL
        assert run(children, tmp_path, 1) == EXIT_FINISHED
        assert results(tmp_path) == undisturbed

    @pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "no hash"])
    @pytest.mark.processes
    def test_with_the_newest_checkpoint_damaged(self, children, tmp_path, undisturbed, damage):
        assert run(children, tmp_path, 5, "step", 18, "kill") == -signal.SIGKILL
        newest_path = max((tmp_path / "checkpoints").glob("*.pt"))
        data = bytearray(newest_path.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "no hash":
            newest_path.with_name(newest_path.name + ".sha256").unlink()
        else:
            newest_path.write_bytes({"truncated": data[: len(data) // 2], "flipped": data, "empty": b""}[damage])
        assert run(children, tmp_path, 5) == EXIT_FINISHED
        assert results(tmp_path) == undisturbed
        is_aside = newest_path.with_suffix(".damaged").exists()
        assert is_aside == (damage != "no hash")  # whole, it is known by its own sums

    @pytest.mark.processes
    def test_with_all_checkpoints_damaged_it_does_not_start_again_unasked(self, children, tmp_path, undisturbed):
        assert run(children, tmp_path, 5, "step", 18, "kill") == -signal.SIGKILL
        for path in (tmp_path / "checkpoints").glob("*.pt"):
            path.write_bytes(b"")
        with pytest.raises(CheckpointError, match="remove that folder to train from the start"):
            train(RunDirectory(tmp_path))
        shutil.rmtree(tmp_path / "checkpoints")
        assert run(children, tmp_path, 5) == EXIT_FINISHED
        assert results(tmp_path) == undisturbed

    @pytest.mark.parametrize(("event", "occurrence"), [("step", 1), ("step", 10), ("validation", 4), ("metrics", 4)])
    @pytest.mark.processes
    def test_after_sigterm_without_repeating_a_step(self, children, tmp_path, undisturbed, event, occurrence):
        assert run(children, tmp_path, None, event, occurrence, "term") == EXIT_PAUSED
        saved = Checkpoints(RunDirectory(tmp_path)).load_newest()
        assert saved is not None
        steps_done = {("step", 1): 1, ("step", 10): 10, ("validation", 4): 14, ("metrics", 4): NUM_STEPS}
        assert saved[1]["state"]["global_step"] == steps_done[event, occurrence]
        # If the first process lost none, the second one takes exactly the steps that are left, and no more.
        steps_left = NUM_STEPS - steps_done[event, occurrence]
        assert run(children, tmp_path, None, "step", steps_left + 1, "kill") == EXIT_FINISHED
        assert results(tmp_path) == undisturbed


def newest(checkpoints: Path) -> str:
    return max((entry.name for entry in checkpoints.glob("*.pt")), default="")


class Clock:
    """Seconds that pass only when a batch is asked for."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class ClockedSource(CurriculumSource):
    def __init__(self, clock: Clock) -> None:
        super().__init__(make_graphs(96, seed=1), CONFIG.batch_size, SEED)
        self.clock = clock

    def gather(self, indices):
        self.clock.now += 1.0
        return super().gather(indices)


class TestDeadline:
    @pytest.mark.processes
    def test_pauses_before_the_deadline_and_resumes_to_the_same_weights(self, tmp_path, undisturbed):
        _, validation = make_sources()
        clock = Clock()
        deadline = Deadline(end_time=1000.0 + 30.0, margin_floor_s=20.0, clock=clock)
        directory = RunDirectory(tmp_path)
        torch.manual_seed(SEED)
        paused = fit(GraphClassifier(), ClockedSource(clock), validation, CONFIG, directory, SEED, deadline)
        assert paused.paused
        assert "remain before the job ends" in paused.reason
        assert 1000.0 < clock.now <= 1010.0
        assert (tmp_path / paused.checkpoint).is_file()
        assert not train(directory).paused
        assert results(tmp_path) == undisturbed

    def test_refuses_with_numbers_when_not_even_a_step_fits(self, tmp_path):
        deadline = Deadline(end_time=1012.0, margin_floor_s=20.0, clock=Clock())
        refused = train(RunDirectory(tmp_path), deadline=deadline)
        assert refused.paused
        assert refused.epochs == 0
        assert "12.0 s remain" in refused.reason
        assert "20.0 s to save" in refused.reason
        assert refused.checkpoint == ""
        assert not (tmp_path / "checkpoints").exists()

    @pytest.mark.processes
    def test_a_checkpoint_that_stalled_for_40_minutes_keeps_no_job_of_an_hour_from_training(
        self, tmp_path, undisturbed
    ):
        _, validation = make_sources()
        clock = Clock()
        stalled = Deadline(end_time=clock.now + 30.0, margin_floor_s=20.0, clock=clock)
        write = Checkpoints.write

        def write_slowly(self, state):
            stalled.observe_checkpoint(2400.0)
            return write(self, state)

        directory = RunDirectory(tmp_path)
        every = CONFIG.model_copy(update={"checkpoint_every_steps": 1})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoints, "write", write_slowly)
            torch.manual_seed(SEED)
            first = fit(GraphClassifier(), ClockedSource(clock), validation, every, directory, SEED, stalled)
        assert first.paused
        saved = Checkpoints(directory).load_newest()
        assert saved is not None
        before = saved[1]["state"]["global_step"]
        # A checkpoint from before restored times were bounded, which is the worst that can lie there.
        Checkpoints(directory).write({**saved[1], "checkpoint_s": 2400.0, "step_s": 18_000.0})
        hour = Deadline(end_time=clock.now + 3600.0, margin_floor_s=20.0, clock=clock)
        again = fit(GraphClassifier(), ClockedSource(clock), validation, CONFIG, directory, SEED, hour)
        assert not again.paused
        assert before < NUM_STEPS
        assert not train(directory).paused
        assert results(tmp_path) == undisturbed

    @pytest.mark.processes
    def test_a_suspended_job_loses_no_step_and_goes_on_when_it_is_woken(self, children, tmp_path, undisturbed):
        """Stopped for longer than its walltime: Slurm moves the end on, and the pause was no step of that length."""
        program, end = tmp_path / "squeue", tmp_path / "end"
        program.write_text(f"#!/bin/sh\ncat {end}\n")
        program.chmod(0o700)
        stopped_s, rest_s = 9.0, 8.0  # a step of 9 s would not fit into the 8 s that are left
        path, job_end = tmp_path / "run", time.time() + 15.0
        environment = {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_END_TIME": str(job_end),
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        }
        process = start(children, path, None, "step", 10, "stop", environment)
        assert process.pid is not None
        while state_of(process.pid) != "T":
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(max(stopped_s, job_end + 1.0 - time.time()))
        end.write_text(datetime.fromtimestamp(int(time.time() + rest_s)).isoformat())
        os.kill(process.pid, signal.SIGCONT)
        process.join(timeout=60)
        assert process.exitcode == EXIT_FINISHED
        assert results(path) == undisturbed


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class ForgetfulSource(CurriculumSource):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_source_that_forgets_its_state_is_refused(tmp_path):
    _, validation = make_sources()
    sources = [ForgetfulSource(make_graphs(96, seed=1), CONFIG.batch_size, SEED) for _ in range(2)]
    clock = Clock()
    deadline = Deadline(end_time=1010.0, margin_floor_s=0.0, clock=clock)
    sources[0].gather = ticking(sources[0].gather, clock)
    assert fit(GraphClassifier(), sources[0], validation, CONFIG, RunDirectory(tmp_path), SEED, deadline).epochs == 1
    with pytest.raises(CheckpointError, match="plans epoch 1 differently"):
        fit(GraphClassifier(), sources[1], validation, CONFIG, RunDirectory(tmp_path), SEED)


def ticking(gather, clock):
    def gather_and_tick(indices):
        clock.now += 1.0
        return gather(indices)

    return gather_and_tick


def test_checkpoint_of_another_configuration_is_refused_with_both_values(tmp_path):
    train(RunDirectory(tmp_path), CONFIG.model_copy(update={"max_epochs": 1}))
    with pytest.raises(CheckpointError, match="max_epochs: 1 there, 4 now"):
        train(RunDirectory(tmp_path), CONFIG)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cpu": "SVE of another machine"}, EnvironmentFaultError),
        ({"device": "NVIDIA H200 (capability 9.0)"}, EnvironmentFaultError),
        ({"torch": "2.0.0"}, CheckpointError),
    ],
)
def test_a_checkpoint_of_another_kind_of_machine_is_warned_about_and_refused_where_the_same_bits_are_asked_for(
    tmp_path, caplog, changes, error
):
    for deterministic in (None, True):
        directory = RunDirectory(tmp_path / str(deterministic))
        directory.path.mkdir()
        config = CONFIG.model_copy(update={"deterministic": deterministic, "max_epochs": 1})
        train(directory, config)
        found = Checkpoints(directory).load_newest()
        assert found is not None
        assert found[1]["machine"] == describe_machine(choose_device())
        Checkpoints(directory).write({**found[1], "machine": {**found[1]["machine"], **changes}})
        (key, value) = changes.popitem()
        changes[key] = value
        if deterministic:
            with pytest.raises(error, match=rf"{key} was {re.escape(value)}, is .*training.deterministic is true"):
                train(directory, config)
        else:
            train(directory, config)
            assert f"{key} was {value}, is " in caplog.text


def test_a_checkpoint_from_before_machines_were_noted_is_resumed_from(tmp_path, caplog):
    train(RunDirectory(tmp_path))
    found = Checkpoints(RunDirectory(tmp_path)).load_newest()
    assert found is not None
    old = {key: value for key, value in found[1].items() if key != "machine"}
    Checkpoints(RunDirectory(tmp_path)).write(old)
    assert not train(RunDirectory(tmp_path)).paused
    assert "another kind of machine" not in caplog.text


def test_an_attempt_notes_what_it_trains_on(tmp_path):
    directory = RunDirectory(tmp_path)
    record_attempt(directory.provenance_path)
    train(directory, CONFIG.model_copy(update={"max_epochs": 1}))
    (attempt,) = json.loads(directory.provenance_path.read_text())["attempts"]
    assert attempt["trains_on"] == describe_machine(choose_device())


def test_checkpoint_settings_may_change_between_attempts(tmp_path):
    first = train(RunDirectory(tmp_path))
    again = train(RunDirectory(tmp_path), CONFIG.model_copy(update={"checkpoint_interval_s": 1.0}))
    assert again == first


def test_process_that_lost_its_directory_writes_no_checkpoint(tmp_path):
    directory = RunDirectory(tmp_path)
    source, validation = make_sources()
    gather, num_batches = source.gather, 0

    def gather_and_lose(indices):
        nonlocal num_batches
        num_batches += 1
        if num_batches == 5:
            directory.owner_path.write_text('{"token": "another", "pid": 1, "host": "elsewhere"}')
        return gather(indices)

    source.gather = gather_and_lose
    config = CONFIG.model_copy(update={"checkpoint_every_steps": 2})
    with directory.lock(), pytest.raises(OwnerLostError, match="pid 1 on elsewhere"):
        fit(GraphClassifier(), source, validation, config, directory, SEED)
    found = Checkpoints(directory).load_newest()
    assert found is not None
    assert found[1]["state"]["global_step"] == 4
    assert directory.owner_path.exists(), "the new owner's token stays"
