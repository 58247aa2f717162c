from dataclasses import replace

from kdgat.lap.plan import kind_of, members, plan_lap
from kdgat.run.plan import make_spec
from tests.lap.runs import LARGE, MEDIUM, SMALL, make_config, plan_of, small_config


def test_stages_start_from_the_weights_of_the_one_before_and_are_evaluated_at_the_end() -> None:
    plan = plan_of(small_config())
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
    plan = plan_of(small_config([f"jobs=[[{SMALL}, {MEDIUM}]]"]))
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


def test_a_gap_is_filled_unless_there_are_weights_to_start_from() -> None:
    assert plan_lap(small_config(stages=[SMALL, LARGE])) == plan_lap(small_config(stages=[SMALL, MEDIUM, LARGE]))
    started = plan_lap(small_config(["start_from=somewhere"], stages=[SMALL, LARGE]))
    assert not any(MEDIUM in stage.name for stage in started)


def test_a_stage_is_planned_again_only_where_what_it_reads_has_changed() -> None:
    def changed(*overrides: str) -> list[str]:
        before, after = plan_of(make_config("quick")), plan_of(make_config("quick", overrides))
        return [name for name in before if before[name] != after[name]]

    assert changed("training_of.mid_2048.max_epochs=9") == ["mid_2048-seed0"]
    assert changed("resources.default.memory=9G") == []
    assert changed("evaluation.repeats=9") == ["evaluation-seed0"]


def test_what_says_when_and_where_a_stage_is_trained_does_not_train_it_again() -> None:
    plain, other = (
        plan_of(make_config("quick", overrides))
        for overrides in ([], ["training.checkpoint_interval_s=5", "training.accelerator=cpu"])
    )
    name = "mid_2048-seed0"
    assert plain[name].config != other[name].config
    specs = [make_spec("lap", replace(plan[name], inputs={}), {}, {}) for plan in (plain, other)]
    assert specs[0].identity() == specs[1].identity()


def test_a_progression_may_have_a_stage_of_any_other_name() -> None:
    assert kind_of("prepare").name == "prepare"
    assert kind_of("evaluation").name == "evaluation"
    assert {kind_of(planned.stage).name for planned in plan_lap(small_config()) if members(planned)} == {"training"}
