import pytest

from kdgat.base import ConfigurationError, UserError
from kdgat.cluster import ResourceRequest, Site
from kdgat.cluster.request import stage_resources
from kdgat.lap.config import LapConfig, with_two_in_one
from tests.lap.runs import make_config

PUBLISHED = {
    "small_512_only": (512, 1200),
    "small_1024_only": (1024, 900),
    "mid_1536": (1536, 480),
    "mid_2048": (2048, 144),
    "mid_3072": (3072, 88),
    "large_4096": (4096, 30),
}


@pytest.mark.parametrize("preset", ["quick", "full", "tutorial"])
def test_every_preset_is_valid_and_its_stages_follow_each_other(preset: str) -> None:
    config = make_config(preset)
    sizes = [config.progression[name].size for name in config.chosen()]
    assert sizes == sorted(sizes)


def test_full_has_the_published_stages_and_numbers_of_instances() -> None:
    config = make_config("full")
    assert {name: (one.size, one.train) for name, one in config.progression.items()} == PUBLISHED
    assert config.groups()[0] == ("small_512_only", "small_1024_only")


@pytest.mark.parametrize("preset", ["quick", "full", "tutorial"])
def test_no_preset_trains_on_independent_costs_which_hold_nothing_to_learn(preset: str) -> None:
    independent = {"uniform", "sparse", "tie"}
    families = make_config(preset).data.families
    assert families
    assert not independent & set(families)
    asked = make_config(preset, ["data.families=[uniform, metric]"])
    assert asked.data.families == ("uniform", "metric")


def test_every_family_of_quick_has_instances_of_every_split_and_size() -> None:
    config = make_config("quick")
    for stage in config.progression.values():
        assert min(stage.train, stage.validation, stage.test) >= len(config.data.families)


def test_quick_goes_through_three_sizes_on_one_core() -> None:
    config = make_config("quick")
    assert config.chosen() == ["small_512_only", "small_1024_only", "mid_2048"]
    site = Site(name="large", scheduler="slurm")
    for stage in (*config.chosen(), "prepare", "evaluation"):
        asked = stage_resources(stage, config.resources, site, ResourceRequest())
        assert (asked.cores, asked.gpus) == (1, 0)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stages=[small_512]", ["stages", "small_512", "small_512_only"]),
        ("stages=[small_512_only, small_512_only]", ["stages", "twice"]),
        ("training_of.mid_2084.max_epochs=3", ["training_of", "mid_2084", "mid_2048"]),
        ("training_of.mid_2048.max_epoch=3", ["max_epoch", "max_epochs"]),
        ("resources.evaluatoin.memory=3G", ["resources", "evaluatoin", "evaluation"]),
        ("jobs=[[small_512_only, small_512_only]]", ["jobs", "small_512_only", "twice"]),
        ("jobs=[[small_512_only], [small_512_only]]", ["jobs", "small_512_only", "twice"]),
        ("jobs=[[small_512_only, mid_2048]]", ["jobs", "mid_2048", "does not follow", "small_512_only"]),
        ("jobs=[[small_512_only, mid_1538]]", ["jobs", "mid_1538"]),
        ("data.families=[unifrom]", ["unifrom", "uniform"]),
        ("data.families=[uniform, uniform]", ["twice"]),
        ("progression.mid_2048.size=1", ["progression.mid_2048.size", "1"]),
        ("progression.mid_2048.size=512", ["small_512_only", "mid_2048", "512"]),
        ("progression={Mid: {size: 8, train: 1, validation: 1, test: 1}}", ["Mid", "small letters"]),
        ("progression={prepare: {size: 8, train: 1, validation: 1, test: 1}}", ["prepare"]),
        ("seeds=[1, 1]", ["seeds", "twice"]),
        ("model.kind=dense", ["model.kind", "dense", "dual"]),
        ("model.rows.hidden=8", ["model.rows", "dual"]),
    ],
)
def test_a_wrong_override_is_refused_with_key_value_and_fix(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        make_config("quick", [override])
    for word in words:
        assert word in str(error.value)


def test_a_run_from_before_whose_configuration_has_other_networks_is_read() -> None:
    config = make_config("quick", ["model.dual.rounds=3"])
    content = config.model_dump(mode="json")
    content["model"] |= {"dense": {"hidden": 32, "heads": 4, "layers": 2, "dropout": 0.1}, "rows": {"hidden": 64}}
    assert LapConfig.from_data(content) == config
    content["model"]["kind"] = "rows"
    with pytest.raises(ConfigurationError, match=r"model.kind='rows'.*'dual'"):
        LapConfig.from_data(content)


def test_a_chosen_stage_brings_those_that_it_starts_from_unless_there_are_weights_to_start_from() -> None:
    assert make_config("full", stages=["mid_1536"]).chosen() == ["small_512_only", "small_1024_only", "mid_1536"]
    assert make_config("full", ["start_from=run"], stages=["mid_1536"]).chosen() == ["mid_1536"]


def test_chosen_stages_keep_the_order_of_the_progression() -> None:
    assert make_config("full", stages=["small_1024_only", "small_512_only"]).chosen() == [
        "small_512_only",
        "small_1024_only",
    ]


def test_jobs_hold_the_chosen_ones_of_their_stages() -> None:
    jobs = "jobs=[[small_512_only, small_1024_only, mid_1536], [mid_2048, mid_3072]]"
    config = make_config("full", [jobs], stages=["small_512_only", "small_1024_only", "mid_1536", "mid_2048"])
    assert config.groups() == [("small_512_only", "small_1024_only", "mid_1536"), ("mid_2048",)]


def test_two_in_one_puts_the_first_two_stages_into_one_job() -> None:
    config = with_two_in_one(make_config("quick"))
    assert config.groups() == [("small_512_only", "small_1024_only"), ("mid_2048",)]
    with pytest.raises(UserError, match="two consecutive stages"):
        with_two_in_one(make_config("quick", stages=["small_512_only"]))
    regrouped = with_two_in_one(make_config("quick", ["jobs=[[small_1024_only, mid_2048]]"]))
    assert regrouped.groups() == [("small_512_only", "small_1024_only"), ("mid_2048",)]


def test_a_batch_is_filled_by_edges_whatever_else_is_said_of_training() -> None:
    config = LapConfig.model_validate({"training": {"max_epochs": 3}})
    assert (config.training.batch_by, config.training.max_epochs) == ("edges", 3)


def test_a_common_training_override_beats_the_differences_of_the_preset() -> None:
    config = make_config("quick", ["training.max_epochs=2"])
    assert {config.training_for(name).max_epochs for name in config.chosen()} == {2}
    one = make_config("quick", ["training.max_epochs=2", "training_of.mid_2048.max_epochs=3"])
    assert [one.training_for(name).max_epochs for name in one.chosen()] == [2, 2, 3]


def test_a_preset_fills_what_a_configuration_leaves_out() -> None:
    said = LapConfig.model_validate({"training": {"max_epochs": 3}, "seeds": [7]})
    config = said.completed("quick", ["data.seed=5"])
    assert (config.preset, config.seeds, config.data.seed) == ("quick", (7,), 5)
    assert config.chosen() == make_config("quick").chosen()
    assert {config.training_for(name).max_epochs for name in config.chosen()} == {3}
