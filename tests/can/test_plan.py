import pytest

from kdgat.base import ConfigurationError
from kdgat.can.config import CanConfig
from kdgat.can.kinds import RUN_KINDS
from kdgat.can.models.parameters import parameter_counts
from kdgat.can.plan import plan_can
from kdgat.run import PlannedStage
from tests.can.small_runs import make_config

DATA = {"dataset": "synthetic", "data_root": "data"}


def configured(*overrides: str, seeds: list[int] | None = None) -> CanConfig:
    return make_config("quick", overrides, data=DATA, seeds=seeds)


def by_name(plan: list[PlannedStage]) -> dict[str, PlannedStage]:
    return {planned.name: planned for planned in plan}


def test_every_stage_stands_after_what_it_depends_on() -> None:
    seen: set[str] = set()
    for planned in plan_can(configured(seeds=[0, 1, 2])):
        assert set(planned.depends_on) <= seen
        assert planned.name not in seen
        seen.add(planned.name)


def test_all_stages_are_planned_by_default() -> None:
    assert {planned.stage for planned in plan_can(configured())} == set(RUN_KINDS.names)


def test_seeds_share_the_preparation_and_nothing_else() -> None:
    plan = plan_can(configured(seeds=[3, 5]))
    assert [planned.name for planned in plan if planned.stage == "prepare"] == ["prepare"]
    for planned in plan:
        others = [name for name in planned.depends_on if name != "prepare"]
        if planned.stage not in ("prepare", "evaluation"):
            assert planned.seed in (3, 5)
            assert all(name.endswith(f"seed{planned.seed}") for name in others)


def test_autoencoder_and_plain_network_can_train_side_by_side() -> None:
    plan = by_name(plan_can(configured(seeds=[0])))
    assert plan["autoencoder-large-seed0"].depends_on == ("prepare",)
    assert plan["normal-large-seed0"].depends_on == ("prepare",)
    assert "autoencoder-large-seed0" in plan["curriculum-large-seed0"].depends_on


def test_a_student_learns_from_the_large_model() -> None:
    plan = by_name(plan_can(configured(seeds=[0])))
    assert plan["distill_gat-small-seed0"].inputs["teacher"].stage == "curriculum-large-seed0"
    assert plan["distill_autoencoder-small-seed0"].inputs["teacher"].stage == "autoencoder-large-seed0"


def test_no_trained_stage_reads_a_test_store() -> None:
    for planned in plan_can(configured()):
        reads_tests = any(reference.artifact.startswith("test") for reference in planned.inputs.values())
        assert reads_tests == (planned.stage == "evaluation")


def test_a_subset_of_stages_brings_its_dependencies_along() -> None:
    plan = plan_can(configured("stages=[curriculum]", seeds=[0]))
    assert [planned.stage for planned in plan] == ["prepare", "autoencoder", "curriculum"]


def test_an_evaluation_of_a_subset_takes_the_models_of_that_subset() -> None:
    plan = plan_can(configured("stages=[normal,evaluation]", seeds=[0]))
    assert [planned.stage for planned in plan] == ["prepare", "normal", "evaluation"]
    assert plan[-1].depends_on == ("prepare", "normal-large-seed0")
    assert set(plan[-1].inputs) == {"validation", "injected_validation", "test-", "normal"}
    assert len(plan_can(configured("stages=[evaluation]"))) == len(plan_can(configured()))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["evaluation.detector=ensmble"], "evaluation.detector='ensmble' needs ensmble"),
        (["stages=[autoencoder,evaluation]"], "the evaluation scores autoencoder:"),
        (["evaluation.models=[norml]"], "did you mean 'normal'"),
        (["evaluation.models=[normal]"], "the evaluation scores normal:"),
    ],
)
def test_a_detector_that_will_not_be_there_is_refused_before_training(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan_can(configured(*overrides))


def test_without_injection_no_stage_asks_for_a_share_of_injected_windows() -> None:
    for planned in plan_can(configured("injection.enabled=false", "sampling.injected_fraction=0.6")):
        assert planned.config.get("sampling", {}).get("injected_fraction") is None
    shares = [p.config["sampling"]["injected_fraction"] for p in plan_can(configured()) if "sampling" in p.config]
    assert shares == [0.6] * 5


def test_a_change_reaches_only_the_stages_that_read_it() -> None:
    before, after = (by_name(plan_can(configured(*o))) for o in ((), ("curriculum.end_ratio=7",)))
    changed = {name for name in before if before[name].config != after[name].config}
    assert changed == {"curriculum-large-seed0"}


def test_moving_the_data_changes_no_stage() -> None:
    elsewhere = make_config("quick", data={**DATA, "data_root": "elsewhere"})
    assert plan_can(elsewhere) == plan_can(configured())


def test_parameter_counts_follow_the_configured_width() -> None:
    narrow = parameter_counts(configured("gat.large.hidden=8"))
    wide = parameter_counts(configured("gat.large.hidden=16"))
    assert narrow["normal", "large"] < wide["normal", "large"]
    assert narrow["normal", "small"] == wide["normal", "small"]
    assert narrow["autoencoder", "large"] == wide["autoencoder", "large"]


def test_edge_features_change_the_stages_that_read_them_and_their_default_none() -> None:
    def configs(*overrides: str) -> dict[str, object]:
        return {planned.name: planned.config for planned in plan_can(configured(*overrides))}

    plain = configs()
    assert configs("gat.large.edge_features=true") == plain
    without = configs("gat.large.edge_features=false")
    changed = {name for name in plain if plain[name] != without[name]}
    assert changed == {"normal-large-seed0", "curriculum-large-seed0"}
