import pytest

from kdgat.lap.config import StageOrderError, make_config
from kdgat.lap.plan import members, plan_lap
from tests.lap.runs import LARGE, MEDIUM, SMALL, small_config


def test_stages_start_from_the_weights_of_the_one_before_and_are_evaluated_at_the_end() -> None:
    plan = {planned.name: planned for planned in plan_lap(small_config())}
    assert list(plan) == [
        "prepare-16",
        "prepare-24",
        "prepare-32",
        f"{SMALL}-seed0",
        f"{MEDIUM}-seed0",
        f"{LARGE}-seed0",
        "evaluation-seed0",
    ]
    assert "start" not in plan[f"{SMALL}-seed0"].inputs
    start = plan[f"{MEDIUM}-seed0"].inputs["start"]
    assert (start.stage, start.artifact) == (f"{SMALL}-seed0", f"weights-{SMALL}")
    assert set(plan[f"{MEDIUM}-seed0"].depends_on) == {"prepare-24", f"{SMALL}-seed0"}
    assert list(plan["evaluation-seed0"].inputs) == [
        "test-16", "test-24", "test-32", f"weights-{SMALL}", f"weights-{MEDIUM}", f"weights-{LARGE}"
    ]  # fmt: skip


def test_seeds_share_instances_and_nothing_else() -> None:
    plan = plan_lap(small_config(seeds=[0, 3]))
    assert [planned.name for planned in plan if planned.stage == "prepare"] == [
        "prepare-16",
        "prepare-24",
        "prepare-32",
    ]
    for planned in plan:
        needed = [name for name in planned.depends_on if not name.startswith("prepare")]
        assert all(name.endswith(f"-seed{planned.seed}") for name in needed)


def test_stages_of_a_job_are_one_planned_stage_and_what_follows_starts_from_its_last() -> None:
    plan = {planned.name: planned for planned in plan_lap(small_config([f"jobs=[[{SMALL}, {MEDIUM}]]"]))}
    group = plan[f"{SMALL}_and_{MEDIUM}-seed0"]
    assert members(group) == [SMALL, MEDIUM]
    assert set(group.inputs) == {
        f"train-{SMALL}", f"validation-{SMALL}", f"train-{MEDIUM}", f"validation-{MEDIUM}"
    }  # fmt: skip
    start = plan[f"{LARGE}-seed0"].inputs["start"]
    assert (start.stage, start.artifact) == (group.name, f"weights-{MEDIUM}")
    assert plan["evaluation-seed0"].inputs[f"weights-{SMALL}"].stage == group.name


def test_a_choice_of_stages_prepares_and_evaluates_its_sizes_alone() -> None:
    plan = [planned.name for planned in plan_lap(small_config(stages=[SMALL]))]
    assert plan == ["prepare-16", f"{SMALL}-seed0", "evaluation-seed0"]


def test_a_gap_is_refused_before_anything_runs() -> None:
    with pytest.raises(StageOrderError, match=f"{LARGE} starts from the weights of {MEDIUM}"):
        plan_lap(small_config(stages=[SMALL, LARGE]))
    assert plan_lap(small_config(["start_from=somewhere"], stages=[SMALL, LARGE]))


def test_another_number_of_epochs_leaves_preparations_and_earlier_stages_alone() -> None:
    before = {planned.name: planned for planned in plan_lap(make_config("quick"))}
    after = {planned.name: planned for planned in plan_lap(make_config("quick", ["training_of.mid_2048.max_epochs=9"]))}
    assert [name for name in before if before[name].config != after[name].config] == ["mid_2048-seed0"]
