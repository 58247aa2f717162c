import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flows import stages
from flows.attempts import Conclusion, LocalAttempts
from flows.execution import Execution, num_parallel_stages
from flows.slurm_attempts import SlurmAttempts
from kdgat.base import UserError, num_usable_cores
from kdgat.can.config import CanConfig
from kdgat.can.inputs import can_run
from kdgat.canbus.catalog import DatasetError
from kdgat.cluster import AttemptLedger, ResourceRequest, Resources, Site, decision
from kdgat.cluster.script import job_name
from kdgat.cluster.site import Limits
from kdgat.cluster.slurm import JobQueue
from kdgat.run import OutputDirectory, PlannedStage, Run, RunError, StageState
from kdgat.stage import Failed, FailureKind, Finished, Paused, RunDirectory, StageSpec
from tests.can.small_runs import make_config
from tests.support.fake_slurm import SLEEPS, FakeSlurm
from tests.support.faults import fail_at, unwritable

DATA = {"dataset": "synthetic", "data_root": "data"}
FINISHED = Conclusion(Finished(), attempts=1)
LOCAL = Site(name="local")
SLURM = Site(
    name="here",
    scheduler="slurm",
    gpu_type="v100",
    defaults=ResourceRequest(memory="2G"),
    limits=Limits(walltime="04:00:00", memory="8G", cores=4, gpus=1, jobs=7),
)
NOTHING = ResourceRequest()


def configured(*overrides: str) -> CanConfig:
    return make_config("quick", overrides, data=DATA)


@pytest.fixture
def execution(tmp_path: Path) -> Execution:
    return Execution(can_run(configured()), OutputDirectory(tmp_path), LOCAL, NOTHING)


def names(execution: Execution, num_free: int = 10) -> list[str]:
    return [planned.name for planned in execution.startable(num_free)]


def finish(execution: Execution, *wanted: str, conclusion: Conclusion = FINISHED) -> None:
    for planned in execution.run.plan:
        if planned.name in wanted:
            execution.conclude(planned, RunDirectory(execution.output.stages_path / planned.name), conclusion)


def test_a_stage_starts_when_all_it_needs_is_done(execution: Execution) -> None:
    assert names(execution) == ["prepare"]
    assert names(execution) == []
    finish(execution, "prepare")
    assert names(execution) == ["autoencoder-large-seed0", "normal-large-seed0"]
    finish(execution, "normal-large-seed0")
    assert names(execution) == []
    finish(execution, "autoencoder-large-seed0")
    assert names(execution) == ["curriculum-large-seed0", "distill_autoencoder-small-seed0"]


def test_no_more_stages_start_than_there_is_room_for(execution: Execution) -> None:
    names(execution)
    finish(execution, "prepare")
    assert names(execution, num_free=1) == ["autoencoder-large-seed0"]
    assert execution.num_running() == 1
    assert names(execution, num_free=0) == []


def test_a_failure_blocks_what_needs_it_and_nothing_else(execution: Execution) -> None:
    names(execution)
    finish(execution, "prepare")
    names(execution)
    failed = Conclusion(Failed(kind=FailureKind.NUMERIC, evidence="loss is not finite"), attempts=1)
    finish(execution, "autoencoder-large-seed0", conclusion=failed)
    execution.block_unreachable()
    execution.block_unreachable()  # as the flow does, each time it looks
    assert {record.name for record in execution.in_state(StageState.BLOCKED)} >= {
        "curriculum-large-seed0",
        "distill_gat-small-seed0",
        "evaluation-large-seed0",
    }
    assert not execution.is_over()
    finish(execution, "normal-large-seed0")
    assert execution.is_over()
    record = execution.index.record("autoencoder-large-seed0")
    assert record.reason == "loss is not finite"


def test_a_task_run_that_ended_without_a_word_is_a_failure(execution: Execution) -> None:
    names(execution)
    execution.fail_ended({"prepare"})
    execution.block_unreachable()
    assert execution.is_over()
    assert execution.index.record("prepare").state == StageState.FAILED


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (DatasetError("hold_out=0.9: no recording is left"), "hold_out=0.9: no recording is left"),
        (
            FileNotFoundError(2, "No such file or directory", "a.csv"),
            "a.csv: there is no such file or folder: check the path",
        ),
    ],
)
def test_a_stage_that_is_refused_says_the_sentence_alone(execution: Execution, error: Exception, sentence: str) -> None:
    (prepare,) = execution.startable(1)
    assert execution.fail(prepare, error) == sentence
    assert execution.output.read_index().record("prepare").reason == sentence


def test_a_stop_gives_up_what_has_not_started(execution: Execution) -> None:
    names(execution)
    execution.block_rest("stopped by SIGINT")
    assert not execution.is_over()
    finish(execution, "prepare", conclusion=Conclusion(Paused(checkpoint="", reason="SIGTERM"), attempts=1))
    assert execution.is_over()


def test_whoever_watches_reads_every_change_in_the_index(execution: Execution) -> None:
    names(execution)
    assert execution.output.read_index().record("prepare").state == StageState.RUNNING
    finish(execution, "prepare", conclusion=Conclusion(Finished(), attempts=0))
    assert execution.output.read_index().record("prepare").state == StageState.CACHED


def test_an_index_that_cannot_be_written_ends_no_run(execution: Execution) -> None:
    with unwritable(execution.output.index_path):
        assert names(execution) == ["prepare"]
    assert execution.output.read_index().record("prepare").state == StageState.PLANNED
    finish(execution, "prepare")
    assert execution.output.read_index().record("prepare").state == StageState.FINISHED


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    output.index_path.write_text("{}")
    with pytest.raises(RunError, match=r"run\.json"):
        output.read_index()


def test_an_output_directory_takes_one_run_at_a_time(tmp_path: Path) -> None:
    first, second = OutputDirectory(tmp_path), OutputDirectory(tmp_path)
    with first.lock(), pytest.raises(RunError, match="in use by pid"), second.lock():
        pass
    with second.lock():
        pass


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdgat.stage.gpus.package_version", lambda name: "2.13.0")  # a build with CUDA
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")


def test_stages_on_this_machine_have_a_gpu_each(two_gpus: None, tmp_path: Path) -> None:
    execution = Execution(can_run(configured()), OutputDirectory(tmp_path), LOCAL, NOTHING)

    def gpus_of(*wanted: str) -> list[str]:
        runners = [execution.runner(planned) for planned in execution.run.plan if planned.name in wanted]
        return [runner.environment["CUDA_VISIBLE_DEVICES"] for runner in runners if isinstance(runner, LocalAttempts)]

    names(execution)
    assert gpus_of("prepare") == ["3"]
    finish(execution, "prepare")
    first, second = names(execution)
    assert gpus_of(first) + gpus_of(second) == ["3", "5"]
    finish(execution, first)
    (third, *_) = names(execution)
    assert gpus_of(third) == ["3"], "which is free again"
    assert gpus_of(second) == ["5"], "a stage that is tried again takes no other one"
    assert num_parallel_stages(1, LOCAL, num_gpus=len(execution.gpus)) == min(2, num_usable_cores())
    assert num_parallel_stages(1, LOCAL, wanted=4, num_gpus=len(execution.gpus)) == 4


def test_a_stage_of_several_ranks_has_as_many_gpus(two_gpus: None, tmp_path: Path) -> None:
    execution = Execution(can_run(configured("training.num_ranks=2")), OutputDirectory(tmp_path), LOCAL, NOTHING)
    runners = {planned.stage: execution.runner(planned) for planned in execution.run.plan}
    found = {
        stage: one.environment["CUDA_VISIBLE_DEVICES"]
        for stage, one in runners.items()
        if isinstance(one, LocalAttempts)
    }
    assert found["prepare"] == "3"
    assert found["normal"] == "3,5"
    assert num_parallel_stages(1, LOCAL, num_gpus=2, num_ranks=2) == 1


def test_stages_that_compute_on_the_processor_share_no_gpus(two_gpus: None, tmp_path: Path) -> None:
    config = configured("training.accelerator=cpu")
    assert Execution(can_run(config), OutputDirectory(tmp_path), LOCAL, NOTHING).gpus == ()
    partly = config.model_copy(update={"training_of": {"normal": {"accelerator": "auto"}}})
    assert Execution(can_run(partly), OutputDirectory(tmp_path), LOCAL, NOTHING).gpus == ("3", "5")


def test_stages_share_the_processors_of_this_machine() -> None:
    assert num_parallel_stages(1, LOCAL) == num_usable_cores()
    assert num_parallel_stages(10000, LOCAL) == 1


def test_as_many_stages_have_jobs_as_the_site_grants_one_run() -> None:
    assert num_parallel_stages(1, SLURM) == 7
    assert num_parallel_stages(10000, SLURM) == 7


def resources(config: CanConfig, path: Path, site: Site, command_line: ResourceRequest) -> dict[str, Resources | None]:
    execution = Execution(can_run(config), OutputDirectory(path), site, command_line)
    return {planned.stage: execution.resources(planned) for planned in execution.run.plan}


def test_each_stage_asks_for_its_own(tmp_path: Path) -> None:
    config = configured(
        "resources.default={walltime: 02:00:00, cores: 2}",
        "resources.prepare={memory: 100G, walltime: 00:10:00}",  # held to what the site grants
        "resources.normal={gpus: 1}",
        "training.accelerator=cpu",  # this torch has code for no GPU
    )
    found = resources(config, tmp_path, SLURM, NOTHING)
    assert found["prepare"] == Resources(walltime_s=600, memory_mib=8192, cores=2)
    assert found["normal"] == Resources(walltime_s=7200, memory_mib=2048, cores=2, gpus=1, gpu_type="v100")
    assert found["evaluation"] == Resources(walltime_s=7200, memory_mib=2048, cores=2)


def test_the_command_line_holds_for_every_stage_and_is_refused_beyond_the_limits(tmp_path: Path) -> None:
    found = resources(configured(), tmp_path, SLURM, ResourceRequest(walltime="03:00:00"))
    assert {one.walltime_s for one in found.values() if one is not None} == {10_800}
    with pytest.raises(UserError, match="04:00:00"):
        resources(configured(), tmp_path, SLURM, ResourceRequest(walltime="05:00:00"))


def test_processes_on_this_machine_ask_for_nothing(tmp_path: Path) -> None:
    assert set(resources(configured(), tmp_path, LOCAL, NOTHING).values()) == {None}


def test_attempts_run_where_the_site_says_and_know_their_threads(tmp_path: Path) -> None:
    config = configured("training.num_threads=3")
    local, slurm = (
        execution.runner(execution.run.plan[0])
        for execution in (
            Execution(can_run(config), OutputDirectory(tmp_path), site, NOTHING) for site in (LOCAL, SLURM)
        )
    )
    assert isinstance(local, LocalAttempts)
    assert isinstance(slurm, SlurmAttempts)
    assert local.environment == slurm.environment == {"OMP_NUM_THREADS": "3"}
    assert slurm.log_directory == tmp_path / "slurm"
    assert slurm.image.name is None


def renamed(planned: PlannedStage, name: Callable[[str], str]) -> PlannedStage:
    inputs = {key: replace(one, stage=name(one.stage)) for key, one in planned.inputs.items()}
    return replace(planned, name=name(planned.name), inputs=inputs)


@pytest.mark.parametrize("is_sweep", [False, True])
def test_jobs_of_stages_that_are_in_the_plan_no_more_are_cancelled_once_that_is_known(
    is_sweep: bool, tmp_path: Path
) -> None:
    slurm, output, job_ids = FakeSlurm(), OutputDirectory(tmp_path), {}
    of_another_plan, of_another_seed = "gone-large-seed0-0000", "normal-large-seed9-0000"
    another_data = "prepare-shared-seed0-0000"
    undecided = "normal-large-seed0-0000"  # its identity depends on the data, which are not prepared
    for name in (of_another_plan, another_data, of_another_seed, undecided):
        directory = RunDirectory(output.stages_path / name).create(StageSpec(family="nowhere", stage="none", seed=0))
        ledger = AttemptLedger(directory)
        job_ids[name] = slurm.submit(SLEEPS, job_name(directory.path))
        ledger.submitted(ledger.open(Resources(walltime_s=60, memory_mib=1, cores=1, gpus=0)), job_ids[name])
    run = can_run(configured())
    if is_sweep:  # where stages are called otherwise than their folders
        run = replace(run, plan=[renamed(planned, lambda name: f"birch-{name}-trial000") for planned in run.plan])
    execution = Execution(run, output, SLURM, NOTHING)
    runner = execution.runner(execution.run.plan[0])
    assert isinstance(runner, SlurmAttempts)
    runner.queue = JobQueue(slurm, 5.0, slurm.clock)

    def cancelled() -> list[str]:
        execution.cancel_orphans()
        return sorted(
            name for name, job_id in job_ids.items() if slurm.status(job_id).state in ("CANCELLED", "COMPLETING")
        )

    assert cancelled() == sorted([of_another_plan, of_another_seed])
    prepare = execution.run.plan[0]
    execution.conclude(prepare, RunDirectory(output.stages_path / "prepare-shared-seed0-1111"), FINISHED)
    execution.index.record(prepare.name).directory = "stages/prepare-shared-seed0-1111"
    slurm.clock.sleep(10)
    assert cancelled() == sorted([of_another_plan, of_another_seed, another_data])
    assert execution.cancel_orphans() == []


def left(slurm: FakeSlurm, execution: Execution) -> tuple[RunDirectory, str]:
    """Leave a job of the first stage behind, as a command does that is killed."""
    directory = execution.open_directory(execution.run.plan[0])
    job_id = slurm.submit(SLEEPS, job_name(directory.path))
    ledger = AttemptLedger(directory)
    ledger.submitted(ledger.open(Resources(walltime_s=60, memory_mib=1, cores=1, gpus=0)), job_id)
    return directory, job_id


def of_window(size: int) -> Run:
    return replace(can_run(configured(f"windows.size={size}")), external_inputs=lambda planned: {})


@pytest.mark.parametrize("is_replanned", [False, True])
def test_another_plan_leaves_jobs_alone_that_are_under_way_until_a_person_gives_theirs_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_replanned: bool
) -> None:
    slurm, output = FakeSlurm(), OutputDirectory(tmp_path)
    directory, job_id = left(slurm, Execution(of_window(50), output, SLURM, NOTHING))
    if is_replanned:
        output.give_up_plan()
    second = Execution(of_window(60), output, SLURM, NOTHING)
    runner = second.runner(second.run.plan[0])
    assert isinstance(runner, SlurmAttempts)
    runner.queue = JobQueue(slurm, 5.0, slurm.clock)
    assert (second.open_directory(second.run.plan[0]).path == directory.path) is not is_replanned
    second.cancel_orphans()
    assert (slurm.status(job_id).state in ("CANCELLED", "COMPLETING")) is is_replanned
    assert ("windows.size: 50, now 60" in caplog.text) is not is_replanned


def test_a_command_that_was_killed_between_two_jobs_of_a_stage_left_its_plan(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    first = Execution(of_window(50), output, SLURM, NOTHING)
    directory = first.open_directory(first.startable(1)[0])
    (directory.path / "checkpoints").mkdir()
    (directory.path / "checkpoints" / "checkpoint-00000001.pt").touch()
    second = Execution(of_window(60), output, SLURM, NOTHING)
    assert second.open_directory(second.run.plan[0]).path == directory.path


def test_a_changed_plan_goes_where_nothing_is_under_way(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    first = Execution(of_window(50), output, SLURM, NOTHING)
    before = first.open_directory(first.run.plan[0])
    second = Execution(of_window(60), output, SLURM, NOTHING)
    assert second.open_directory(second.run.plan[0]).path != before.path


def test_the_output_of_another_family_is_refused(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    Execution(can_run(configured()), output, LOCAL, NOTHING)
    with pytest.raises(RunError, match=r"holds a run of can, not of lap: choose another --out"):
        Execution(replace(can_run(configured()), family="lap"), output, LOCAL, NOTHING)


def test_processes_of_this_machine_leave_no_orphans(execution: Execution) -> None:
    assert execution.cancel_orphans() == []


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES, errno.ENOENT])
@pytest.mark.parametrize("name", ["run.lock", "run-owner.json", "plan.json", "run.json"])
def test_an_errno_of_the_runs_own_files_ends_no_command_that_begins(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "FIRST_DELAY_S", 0.0)
    monkeypatch.setattr(stages, "get_run_logger", lambda: logging.getLogger("run"))
    monkeypatch.setattr(stages, "mark_lost_runs", lambda output: 0)
    monkeypatch.setattr(stages, "_run_stages", lambda opened: opened.execution.block_rest("seen"))
    monkeypatch.setattr(stages, "publish_attempts", lambda *words: None)
    output = OutputDirectory(tmp_path)
    output.write_index(Execution(can_run(configured()), output, LOCAL, NOTHING).index)
    errors = [number] * 3

    def error() -> OSError | None:
        return OSError(errors.pop(), "of this machine", str(tmp_path / name)) if errors else None

    with monkeypatch.context() as patch:
        for path in (tmp_path / name, tmp_path / f".{name}"):  # the latter is renamed to it
            fail_at(path, patch, error)
        stages.execute(can_run(configured()), output, LOCAL, NOTHING, None, 0, lambda output, done: "")
    assert errors == []
    assert {record.message for record in output.read_index().stages} == {"seen"}


def test_a_run_that_is_in_use_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = OutputDirectory(tmp_path)
    with output.lock(), pytest.raises(RunError, match="in use by pid"):
        stages.execute(can_run(configured()), output, LOCAL, NOTHING, None, 0, lambda output, done: "")
