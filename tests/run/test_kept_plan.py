"""A plan that is kept says what another one has otherwise, and gives the run back as it was planned."""

from dataclasses import replace
from pathlib import Path

import pytest

from kdgat.can.config import CanConfig
from kdgat.can.family import FAMILY
from kdgat.can.inputs import can_run
from kdgat.run import OutputDirectory, Run, RunError
from kdgat.run.directory import RunIndex, StageRecord, StageState
from kdgat.run.kept_plan import MOST_DIFFERENCES, KeptPlan, describe_differences, describe_other_epochs
from kdgat.stage import StageInput
from tests.can.small_runs import make_config


def configured(*overrides: str) -> CanConfig:
    return make_config("quick", overrides, data={"dataset": "synthetic", "data_root": "data"})


def run_of(*overrides: str, recordings: Path | None = None) -> Run:
    run = can_run(configured(*overrides))

    def external(planned):
        files = sorted(recordings.iterdir()) if recordings and planned.stage == "prepare" else []
        return {path.name: StageInput.of_file(path) for path in files}

    return replace(run, external_inputs=external)


@pytest.fixture
def output(tmp_path: Path) -> OutputDirectory:
    return OutputDirectory(tmp_path / "out")


def kept(output: OutputDirectory, run: Run) -> KeptPlan:
    plan = KeptPlan.of_run(run)
    output.path.mkdir(exist_ok=True)
    plan.write(output)
    noting = plan.noting_inputs(run, output)
    for planned in run.plan:
        noting.external_inputs(planned)
    found = KeptPlan.read(output)
    assert found is not None
    return found


def test_the_same_command_has_the_same_plan_and_gets_it_back(output: OutputDirectory) -> None:
    run = run_of()
    plan = kept(output, run)
    assert plan.differences(run_of()) == []
    again = plan.run(FAMILY, run_of("training.max_epochs=9"))
    assert list(again.plan) == list(run.plan)
    assert again.config == run.config


def test_more_seeds_and_what_changes_no_result_are_no_other_plan(output: OutputDirectory) -> None:
    plan = kept(output, run_of())
    assert plan.differences(run_of("seeds=[0, 1]")) == []


def test_inputs_are_written_when_a_stage_first_asks_for_them_and_not_again(
    output: OutputDirectory, tmp_path: Path
) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / "a").write_text("a")
    run = run_of(recordings=folder)
    plan = kept(output, run)
    written = output.plan_path.stat().st_ino
    noting = plan.noting_inputs(run, output)
    for planned in run.plan:
        noting.external_inputs(planned)
    assert output.plan_path.stat().st_ino == written


def test_another_configuration_is_named_by_key_and_values(output: OutputDirectory) -> None:
    plan = kept(output, run_of("training.max_epochs=3"))
    (difference,) = plan.differences(run_of("training.max_epochs=5"))
    assert difference == "training.max_epochs: 3, now 5"
    text = describe_differences([difference])
    assert "(training.max_epochs: 3, now 5)" in text
    assert "--replan" in text


def test_the_code_that_planned_it_is_named_with_a_difference_and_is_none_by_itself(
    output: OutputDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.run.kept_plan.describe_code", lambda: "kdgat 1.0 (abc)")
    plan = kept(output, run_of("training.max_epochs=3"))
    monkeypatch.setattr("kdgat.run.kept_plan.describe_code", lambda: "kdgat 1.1 (def)")
    assert plan.differences(run_of("training.max_epochs=3")) == []
    differences = plan.differences(run_of("training.max_epochs=5"))
    assert differences == ["planned by kdgat 1.0 (abc), now kdgat 1.1 (def)", "training.max_epochs: 3, now 5"]
    assert plan.model_copy(update={"code": ""}).differences(run_of("training.max_epochs=5")) == differences[1:]


def test_another_code_version_is_named_with_its_stage(output: OutputDirectory) -> None:
    run = run_of()
    plan = kept(output, run)
    newer = [replace(one, code_version=one.code_version + (one.stage == "normal")) for one in run.plan]
    (difference,) = plan.differences(replace(run, plan=newer))
    assert difference.startswith("code_version of normal: ")


def test_recordings_that_came_went_or_changed_are_named_and_the_old_ones_are_read_on(
    output: OutputDirectory, tmp_path: Path
) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / name).write_text(name)
    plan = kept(output, run_of(recordings=folder))
    assert plan.differences(run_of(recordings=folder)) == []
    (folder / "a").unlink()
    (folder / "b").write_text("other")
    (folder / "d").write_text("d")
    now = run_of(recordings=folder)
    ends = [text.removeprefix(f"{folder}/") for text in plan.differences(now)]
    assert ends == ["a is gone", "b has changed", "d is new"]
    old = plan.run(FAMILY, now)
    assert sorted(old.external_inputs(old.plan[0])) == ["a", "b", "c"]


def test_inputs_that_cannot_be_read_now_leave_the_plan_as_it_is(output: OutputDirectory) -> None:
    def unreadable(planned):
        raise OSError(116, "Stale file handle")

    plan = kept(output, run_of())
    differences = plan.differences(replace(run_of(), external_inputs=unreadable))
    assert differences
    assert all("cannot be compared" in text for text in differences)


def test_stages_that_are_planned_no_more_are_named(output: OutputDirectory) -> None:
    plan = kept(output, run_of("seeds=[0, 1]"))
    differences = plan.differences(run_of("seeds=[0]"))
    assert "normal-large-seed1 is not planned any more" in differences
    text = describe_differences([f"key{number}: 1, now 2" for number in range(MOST_DIFFERENCES + 3)])
    assert "; 3 more)" in text


def test_a_directory_of_an_older_version_has_no_plan_and_one_of_a_newer_is_not_guessed_at(
    output: OutputDirectory,
) -> None:
    output.path.mkdir()
    assert KeptPlan.read(output) is None
    output.plan_path.write_text('{"stages": 3}')
    with pytest.raises(RunError, match="--replan"):
        KeptPlan.read(output)


def test_a_plan_that_this_version_cannot_read_is_refused_with_what_to_do(output: OutputDirectory) -> None:
    plan = kept(output, run_of())
    plan.config["gone"] = 1
    with pytest.raises(RunError, match=r"gone.*--replan"):
        plan.run(FAMILY, run_of())


@pytest.mark.parametrize(
    ("state", "overrides", "told"),
    [
        (StageState.FINISHED, ["training.max_epochs=9"], True),
        (StageState.PAUSED, ["training.max_epochs=9"], False),
        (StageState.FINISHED, ["training.max_epochs=9", "training.learning_rate=0.5"], False),
        (StageState.FINISHED, [], False),
    ],
)
def test_other_epochs_of_a_finished_run_are_told_to_train_anew(
    state: StageState, overrides: list[str], told: bool, output: OutputDirectory
) -> None:
    kept(output, run_of())
    record = StageRecord(name="prepare", stage="prepare", scale="shared", seed=0, state=state)
    output.write_index(RunIndex(family="can", config={}, stages=[record]))
    said = describe_other_epochs(output, run_of(*overrides))
    assert ("training.max_epochs: " in said and ", now 9" in said and f"start_from={output.path}" in said) == told
    assert bool(said) == told


def test_a_folder_without_a_run_has_no_other_epochs(output: OutputDirectory) -> None:
    assert describe_other_epochs(output, run_of()) == ""
