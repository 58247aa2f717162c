"""Whatever a stage does, its directory tells how it ended."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest

from kdgat.stage import Failed, FailureKind, Finished, Paused, RunDirectory, StageBusyError, StageInput, StageSpec
from kdgat.stage.errors import OwnerLostError
from kdgat.stage.owner import Owner
from kdgat.stage.runner import run_stage
from kdgat.stage.signals import stop_signals

REPOSITORY = Path(__file__).parents[2]

FAMILY = """
import os, signal, time
from pathlib import Path
from kdgat.base.configuration import ConfigurationError
from kdgat.stage.errors import EnvironmentFaultError
from kdgat.stage.outcome import Finished, Paused
from kdgat.stage.signals import stop_signals

def run(spec, directory):
    with (directory.path / "calls").open("a") as file:
        file.write("x")
    return globals()[spec.stage](spec, directory)

def finish(spec, directory):
    return Finished(metrics={"seed": spec.seed}, artifacts={"calls": "calls"})

def mistake(spec, directory):
    raise ConfigurationError("training.max_epochs=0: expected int; write 1")

def overflow(spec, directory):
    raise FloatingPointError("the loss is nan in epoch 3")

def host_memory(spec, directory):
    return bytearray(1 << 62)

def torch_host_memory(spec, directory):
    import torch
    return torch.empty(1 << 60)

def cuda_memory(spec, directory):
    import torch
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

def lost_gpu(spec, directory):
    raise EnvironmentFaultError("the job was given a GPU and sees none")

def full_disk(spec, directory):
    Path("/dev/full").write_text("x")

def broken_gpu(spec, directory):
    import torch
    raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")

def runs_out_of_quota(spec, directory):
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return Finished()

def loses_its_directory(spec, directory):
    directory.path.rename(directory.path.with_name("gone"))
    return Finished()

def bug(spec, directory):
    return {}["missing"]

def bare_value_error(spec, directory):
    return int("x")

def interrupted_while_it_imports(spec, directory):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    except BaseException:  # as CPython does while it loads a compiled module
        raise TypeError("expected a message argument") from None

def interrupted(spec, directory):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    except Exception:
        return Finished()

def watching(spec, directory):
    with stop_signals() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01)
        return Paused(checkpoint="here", reason=stop.signal_name)

def robbed(spec, directory):
    directory.owner_path.write_text('{"token": "other", "pid": 5, "host": "node2"}')
    return Finished()

def warning(spec, directory):
    import warnings
    warnings.warn("a library is worried")
    return Finished()

def waiting(spec, directory):
    (directory.path / "ready").touch()
    time.sleep(60)
"""


@pytest.fixture
def family(tmp_path, monkeypatch):
    """Register a family of stages, as another distribution would do it."""
    folder = tmp_path / "families"
    (folder / "demo").mkdir(parents=True)
    (folder / "demo" / "stages.py").write_text(FAMILY)
    (folder / "demo-1.dist-info").mkdir()
    (folder / "demo-1.dist-info" / "METADATA").write_text("Name: demo\nVersion: 1\n")
    (folder / "demo-1.dist-info" / "entry_points.txt").write_text("[kdgat.families]\ndemo = demo\n")
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name == "demo" or name.startswith("demo.")]:
        del sys.modules[name]


def make(tmp_path, stage, **changes):
    spec = StageSpec(**({"family": "demo", "stage": stage, "seed": 4} | changes))
    return RunDirectory(tmp_path / "run").create(spec)


def test_a_signal_that_comes_while_things_are_put_away_does_not_undo_the_work(tmp_path, family, monkeypatch):
    @contextmanager
    def slow(spec, directory):
        yield spec
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("kdgat.stage.runner.staged", slow)
    assert isinstance(run_stage(make(tmp_path, "finish")), Finished)


def test_finished_stage_is_not_run_again(tmp_path, family):
    directory = make(tmp_path, "finish")
    first = run_stage(directory, quiet=True)
    assert first == Finished(metrics={"seed": 4.0}, artifacts={"calls": "calls"})
    assert run_stage(directory, quiet=True) == first == directory.read_outcome()
    assert (directory.path / "calls").read_text() == "x"


@pytest.mark.parametrize(
    ("stage", "kind", "evidence"),
    [
        ("mistake", FailureKind.BAD_INPUT, "training.max_epochs=0: expected int; write 1"),
        ("overflow", FailureKind.NUMERIC, "the loss is nan in epoch 3"),
        ("host_memory", FailureKind.HOST_OOM, "MemoryError"),
        ("torch_host_memory", FailureKind.HOST_OOM, "can't allocate memory"),
        ("cuda_memory", FailureKind.CUDA_OOM, "Tried to allocate 2.00 GiB"),
        ("lost_gpu", FailureKind.ENVIRONMENT, "the job was given a GPU and sees none"),
        ("full_disk", FailureKind.ENVIRONMENT, "No space left on device"),
        ("broken_gpu", FailureKind.ENVIRONMENT, "uncorrectable ECC error"),
        ("bug", FailureKind.ERROR, "KeyError: 'missing'"),
        ("bare_value_error", FailureKind.ERROR, "invalid literal"),
    ],
)
def test_exceptions_become_kinds_of_failure_with_evidence(tmp_path, family, stage, kind, evidence):
    directory = make(tmp_path, stage)
    outcome = run_stage(directory, quiet=True)
    assert isinstance(outcome, Failed)
    assert outcome.kind == kind
    assert evidence in outcome.evidence
    assert directory.read_outcome() == outcome
    assert evidence in directory.log_path.read_text()


def test_failed_stage_may_be_tried_again(tmp_path, family):
    directory = make(tmp_path, "bug")
    run_stage(directory, quiet=True)
    run_stage(directory, quiet=True)
    assert (directory.path / "calls").read_text() == "xx"
    assert len(json.loads(directory.provenance_path.read_text())["attempts"]) == 2


@pytest.mark.parametrize("stage", ["interrupted", "interrupted_while_it_imports"])
def test_signal_outside_of_a_loop_pauses_the_stage_at_once(tmp_path, family, stage):
    outcome = run_stage(make(tmp_path, stage), quiet=True)
    assert isinstance(outcome, Paused)
    assert outcome.checkpoint == ""
    assert "SIGTERM" in outcome.reason


def test_pause_outside_of_a_loop_still_names_the_newest_checkpoint(tmp_path, family):
    directory = make(tmp_path, "interrupted")
    (directory.checkpoints_path / "named").mkdir(parents=True)
    for age_s, name in ((20, "checkpoint-00000009.pt"), (10, "named/checkpoint-00000001.pt")):
        (directory.checkpoints_path / name).touch()
        os.utime(directory.checkpoints_path / name, (1e9 - age_s, 1e9 - age_s))
    outcome = run_stage(directory, quiet=True)
    assert isinstance(outcome, Paused)
    assert outcome.checkpoint == "checkpoints/named/checkpoint-00000001.pt"


def test_a_signal_while_the_directory_is_locked_pauses_the_stage_too(tmp_path, family, monkeypatch):
    directory = make(tmp_path, "finish")
    claim = Owner.claim

    def claim_and_be_asked_to_leave(self):
        claim(self)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Owner, "claim", claim_and_be_asked_to_leave)
    outcome = run_stage(directory, quiet=True)
    assert isinstance(outcome, Paused)
    assert directory.read_outcome() == outcome
    assert not (directory.path / "calls").exists()


def test_a_signal_that_comes_while_a_directory_turns_out_to_be_taken_is_not_lost(tmp_path, family, monkeypatch):
    directory, owner, came = make(tmp_path, "finish"), RunDirectory(tmp_path / "run"), []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    lock = directory.lock

    def signalled():  # before the lock is asked for: it is taken
        os.kill(os.getpid(), signal.SIGTERM)
        return lock()

    monkeypatch.setattr(directory, "lock", signalled)
    try:
        with owner.lock(), pytest.raises(StageBusyError):
            run_stage(directory)
        assert came == [signal.SIGTERM], "who waits for the directory must hear it"
        monkeypatch.setattr(directory, "lock", lock)
        with owner.lock(), pytest.raises(StageBusyError):
            run_stage(directory)
        assert came == [signal.SIGTERM], "without a signal none is made up"
        monkeypatch.setattr(directory, "lock", signalled)
        with stop_signals() as outer, owner.lock(), pytest.raises(StageBusyError):
            run_stage(directory)
        assert outer, "an outer flag has it already"
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_loop_that_watches_the_flag_leaves_by_itself(tmp_path, family):
    assert run_stage(make(tmp_path, "watching"), quiet=True) == Paused(checkpoint="here", reason="SIGUSR1")


def test_handlers_are_put_back(tmp_path, family):
    before = signal.getsignal(signal.SIGTERM)
    run_stage(make(tmp_path, "watching"), quiet=True)
    assert signal.getsignal(signal.SIGTERM) is before


def test_owner_that_was_replaced_writes_no_outcome(tmp_path, family):
    directory = make(tmp_path, "robbed")
    with pytest.raises(OwnerLostError):
        run_stage(directory, quiet=True)
    assert directory.read_outcome() is None


def test_changed_input_is_bad_input_before_the_stage_is_called(tmp_path, family):
    (tmp_path / "train.h5").write_bytes(b"a")
    source = StageInput.of_file(tmp_path / "train.h5")
    directory = make(tmp_path, "finish", inputs={"train": source})
    (tmp_path / "train.h5").write_bytes(b"b")
    outcome = run_stage(directory, quiet=True)
    assert isinstance(outcome, Failed)
    assert outcome.kind == FailureKind.BAD_INPUT
    assert "the file was rewritten since" in outcome.evidence
    assert not (directory.path / "calls").exists()


def test_unknown_family_is_bad_input(tmp_path):
    outcome = run_stage(make(tmp_path, "finish", family="cn"), quiet=True)
    assert isinstance(outcome, Failed)
    assert outcome.kind == FailureKind.BAD_INPUT
    assert "family 'cn' is unknown" in outcome.evidence


def test_log_goes_to_stderr_unless_quiet(tmp_path, family, capsys):
    run_stage(make(tmp_path, "finish"), quiet=True)
    assert capsys.readouterr().err == ""
    run_stage(make(tmp_path / "loud", "finish"), quiet=False)
    assert "finished: seed 4" in capsys.readouterr().err


@pytest.mark.processes
def test_warnings_of_libraries_go_to_the_log_and_not_to_stderr_when_quiet(tmp_path, family):
    directory = make(tmp_path, "warning")
    done = subprocess.run(command(family, directory.path, "--quiet"), cwd=REPOSITORY, capture_output=True, check=True)
    assert done.stderr == b""
    assert "a library is worried" in directory.log_path.read_text()


def test_provenance_names_packages_revision_and_slurm_job(tmp_path, family, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    directory = make(tmp_path, "finish")
    run_stage(directory, quiet=True)
    attempt = json.loads(directory.provenance_path.read_text())["attempts"][0]
    assert attempt["packages"]["torch"].startswith("2.")
    assert attempt["slurm"]["SLURM_JOB_ID"] == "77"
    assert attempt["pid"] == os.getpid()
    if (REPOSITORY / ".git").exists():
        assert len(attempt["git"]["revision"]) == 40


def command(folder: Path, directory: Path, *options: str) -> list[str]:
    program = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(folder)!r})
        from kdgat.stage.__main__ import main
        from kdgat.stage.process import leave
        code = main(sys.argv[1:])
        heavy = [name for name in ("torch", "polars", "prefect", "lightning", "typer") if name in sys.modules]
        assert not heavy, heavy
        leave(code)
        """
    )
    return [sys.executable, "-c", program, str(directory), *options]


@pytest.mark.parametrize(("stage", "code"), [("finish", 0), ("bug", 1), ("full_disk", 69), ("interrupted", 75)])
@pytest.mark.processes
def test_exit_status_of_the_process_without_heavy_imports(tmp_path, family, stage, code):
    directory = make(tmp_path, stage)
    done = subprocess.run(command(family, directory.path, "--quiet"), cwd=REPOSITORY, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr == b""


@pytest.mark.processes
def test_process_stopped_by_sigterm_exits_75_and_killed_leaves_no_outcome(tmp_path, family):
    directory = make(tmp_path, "waiting")
    directory.write_outcome(Paused(checkpoint="", reason="an earlier attempt"))
    for number, code, outcome in ((signal.SIGKILL, -9, type(None)), (signal.SIGTERM, 75, Paused)):
        (directory.path / "ready").unlink(missing_ok=True)
        process = subprocess.Popen(command(family, directory.path, "--quiet"), cwd=REPOSITORY)
        while not (directory.path / "ready").exists():
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(60) == code
        assert isinstance(directory.read_outcome(), outcome)


@pytest.mark.processes
def test_process_whose_reader_died_still_saves_and_exits_75(tmp_path, family):
    directory = make(tmp_path, "waiting")
    reader, writer = os.pipe()
    process = subprocess.Popen(command(family, directory.path), cwd=REPOSITORY, stdout=writer, stderr=writer)
    os.close(writer)
    while not (directory.path / "ready").exists():
        assert process.poll() is None
    os.close(reader)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert isinstance(directory.read_outcome(), Paused)


@pytest.mark.parametrize(
    ("stage", "words"),
    [("runs_out_of_quota", "File too large"), ("loses_its_directory", "was taken over by a process that has ended")],
)
@pytest.mark.processes
def test_process_that_could_write_nothing_says_so_with_its_exit_status(tmp_path, family, stage, words):
    directory = make(tmp_path, stage)
    done = subprocess.run(
        command(family, directory.path, "--quiet"), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 69, done.stderr
    assert words in done.stderr
    assert directory.read_outcome() is None


def run_by_hand(path):
    return subprocess.run(
        [sys.executable, "-m", "kdgat.stage", str(path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["empty", "missing"])
@pytest.mark.processes
def test_directory_that_is_not_there_is_one_sentence_and_the_environments_fault(tmp_path, name):
    (tmp_path / "empty").mkdir()
    done = run_by_hand(tmp_path / name)
    assert done.returncode == 69
    assert done.stderr.startswith(f"error: {tmp_path / name} is no run directory: spec.json is missing")
    assert "not mounted" in done.stderr


@pytest.mark.processes
def test_user_mistake_on_the_command_line_is_one_sentence(tmp_path):
    (tmp_path / "spec.json").write_text("{")
    done = run_by_hand(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'spec.json'} is damaged")


@pytest.mark.processes
def test_directory_that_is_in_use_is_the_environments_fault(tmp_path, family):
    directory = make(tmp_path, "finish")
    with directory.lock():
        done = run_by_hand(directory.path)
    assert done.returncode == 69
    assert done.stderr.startswith(f"error: {directory.path} is in use by pid {os.getpid()}")
