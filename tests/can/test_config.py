import pytest

from kdgat.base import ConfigurationError
from kdgat.can.config import CanConfig
from kdgat.can.kinds import RUN_KINDS
from kdgat.can.plan import plan_can
from kdgat.cluster import ResourceRequest, Site
from kdgat.cluster.request import stage_resources
from tests.can.small_runs import make_config

DATA = {"dataset": "synthetic", "data_root": "data"}


@pytest.mark.parametrize("preset", ["quick", "full", "tutorial"])
def test_every_preset_is_valid(preset: str) -> None:
    assert make_config(preset, data=DATA).seeds


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.max_epoch=2", ["max_epoch", "max_epochs"]),
        ("training.max_epochs=many", ["training.max_epochs", "many", "a whole number"]),
        ("trainin.max_epochs=2", ["trainin", "training"]),
        ("windows.size", ["windows.size", "key=value"]),
        ("data.validation_fraction=1.5", ["data.validation_fraction", "1.5"]),
        ("training_of.norml={}", ["norml", "normal"]),
        ("training_of.normal.max_epoch=2", ["max_epoch", "max_epochs"]),
        ("seeds=[1, 1]", ["seeds", "twice"]),
        ("seeds=[-1]", ["seeds", "-1", "0 or more"]),
        ("data.seed=-1", ["data.seed=-1", "0 or more"]),
        ("training.learning_rate=inf", ["training.learning_rate", "inf", "finite"]),
        ("injection.attack_weights.dos=-1", ["attack_weights.dos=-1", "from 0 up"]),
        ("stages=[curiculum]", ["stages", "curiculum"]),
        ("resources.norml.walltime=90", ["resources", "norml", "normal"]),
        ("resources.normal.walltim=90", ["walltim", "walltime"]),
        ("resources.normal.walltime=12:99:00", ["resources.normal.walltime=12:99:00", "99 minutes", "13:39:00"]),
        ("resources.normal.memory=1O G", ["resources.normal.memory=1O G", "85G"]),
        ("resources.normal.cores=0", ["resources.normal.cores=0", "1"]),
        ("resources={normal: {memory: 85GB}}", ["resources", "memory='85GB'", "85G"]),
    ],
)
def test_a_wrong_override_is_refused_with_key_value_and_fix(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        make_config("quick", [override], data=DATA)
    for word in words:
        assert word in str(error.value)
    assert len(str(error.value)) < 400, "one key, and not its whole section"


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="quick"):
        make_config("fast", data=DATA)


def test_a_common_training_override_beats_the_differences_of_the_preset() -> None:
    config = make_config("tutorial", ["training.max_epochs=2"], data=DATA)
    assert {config.training_for(stage).max_epochs for stage in ("autoencoder", "normal", "curriculum")} == {2}


def test_a_preset_fills_what_a_configuration_leaves_out() -> None:
    said = {"data": DATA, "training": {"max_epochs": 3}, "injection": {"clean_fraction": 0.5}, "seeds": [7]}
    config = CanConfig.from_data(said).completed("quick")
    quick = make_config("quick", data=DATA)
    assert {config.training_for(stage).max_epochs for stage in ("autoencoder", "normal", "distill_gat")} == {3}
    assert config.training_for("distill_gat").learning_rate == quick.training_for("distill_gat").learning_rate
    assert config.injection.clean_fraction == 0.5
    assert (config.injection.variants, config.seeds, config.preset) == (quick.injection.variants, (7,), "quick")


def test_what_is_said_of_one_stage_and_overrides_beat_the_preset() -> None:
    said = {"data": DATA, "training_of": {"normal": {"max_epochs": 4}}, "resources": {"normal": {"memory": "9G"}}}
    config = CanConfig.from_data(said).completed("quick", ["seeds=[1, 2]"])
    assert config.training_for("normal").max_epochs == 4
    assert config.training_for("autoencoder").max_epochs == 5
    assert config.resources["normal"].memory == "9G"
    assert set(config.resources) == {"default", "fusion", "normal"}
    assert config.seeds == (1, 2)


def test_a_configuration_without_a_preset_is_what_it_says() -> None:
    config = make_config("quick", data=DATA)
    assert config.completed() is config
    assert config.completed(overrides=["training.max_epochs=2"]).training.max_epochs == 2


def test_an_override_of_training_holds_for_every_stage_with_and_without_a_preset() -> None:
    overrides = ["training.max_epochs=7"]
    for config in (CanConfig.model_validate({"data": DATA}), make_config("quick", data=DATA)):
        for preset in (None, "quick"):
            start = CanConfig.from_data({"data": DATA}) if preset else config
            complete = start.completed(preset, overrides)
            assert complete.training_for("fusion").max_epochs == complete.training_for("normal").max_epochs == 7
            assert complete.training_for("fusion").patience == config.training_for("fusion").patience
    one = CanConfig.from_data({"data": DATA}).completed(None, [*overrides, "training_of.fusion.max_epochs=9"])
    assert (one.training_for("fusion").max_epochs, one.training_for("normal").max_epochs) == (9, 7)


def test_an_override_of_one_stage_leaves_the_others_alone() -> None:
    config = make_config("quick", ["training.max_epochs=4", "training_of.normal.max_epochs=3"], data=DATA)
    assert config.training_for("normal").max_epochs == 3
    assert config.training_for("curriculum").max_epochs == 4


SITE = Site(name="large", scheduler="slurm")


def test_a_walltime_on_the_command_line_is_a_time_with_and_without_a_leading_zero() -> None:
    overrides = ["resources.normal.walltime=02:00:00", "resources.curriculum.walltime=2:00:00"]
    resources = make_config("quick", overrides, data=DATA).resources
    for stage in ("normal", "curriculum"):
        assert stage_resources(stage, resources, SITE, ResourceRequest()).walltime_s == 7200


@pytest.mark.parametrize("preset", ["quick", "full", "tutorial"])
def test_every_stage_of_a_preset_can_be_asked_for(preset: str) -> None:
    resources = make_config(preset, data=DATA).resources
    for stage in RUN_KINDS.names:
        stage_resources(stage, resources, SITE, ResourceRequest())


def test_quick_fits_one_core_and_full_trains_on_gpus_but_prepares_without() -> None:
    quick, full = (make_config(preset, data=DATA).resources for preset in ("quick", "full"))
    for stage in RUN_KINDS.names:
        small = stage_resources(stage, quick, SITE, ResourceRequest())
        assert (small.cores, small.gpus) == (1, 0)
        assert small.memory_mib <= 4096
        assert small.walltime_s <= 3600
    prepare = stage_resources("prepare", full, SITE, ResourceRequest())
    for stage in ("autoencoder", "normal", "curriculum", "distill_autoencoder", "distill_gat"):
        training = stage_resources(stage, full, SITE, ResourceRequest())
        assert (training.memory_mib, training.cores, training.gpus) == (64 * 1024, 8, 1)
        assert prepare.cores > training.cores
    assert prepare.gpus == 0


def test_what_a_job_asks_for_is_no_part_of_any_stage() -> None:
    plain = make_config("quick", data=DATA)
    other = make_config("quick", ["resources.default.walltime=90", "resources.normal.gpus=1"], data=DATA)
    assert other.resources != plain.resources
    assert plan_can(other) == plan_can(plain)  # with the sections that are a stage's identity


@pytest.mark.parametrize(
    ("dataset", "overrides", "factor"),
    [
        ("hcrl_sa", [], 0.55),
        ("set_02", [], 0.35),
        ("synthetic", [], 0.5),
        ("set_02", ["training.safety_factor.set_02=0.4"], 0.4),
        ("hcrl_sa", ["training.safety_factor.set_02=0.4"], 0.55),
        ("set_02", ["training.safety_factor=0.7"], 0.7),
        ("set_02", ["training_of.normal={safety_factor: 0.3}"], 0.3),
    ],
)
def test_a_stage_reads_the_safety_factor_of_its_dataset(dataset: str, overrides: list[str], factor: float) -> None:
    data = {**DATA, "dataset": dataset}
    config = make_config("quick", ["training.batch_size_mode=tuner", *overrides], data=data)
    normal = next(planned for planned in plan_can(config) if planned.stage == "normal")
    assert {**{"safety_factor": {"_default": 0.5}}, **normal.config["training"]}["safety_factor"] == {
        "_default": factor
    }


def test_stages_that_search_for_nothing_are_the_same_whatever_a_search_would_be_told() -> None:
    plain = plan_can(make_config("quick", data=DATA))
    told = plan_can(make_config("quick", ["training.safety_factor=0.3", "training.memory_budget=4G"], data=DATA))
    assert plain == told
    assert plain != plan_can(make_config("quick", ["training.batch_size_mode=trial"], data=DATA))


def test_a_fusion_keeps_its_batches_unless_it_is_named() -> None:
    searched = ["training.batch_size_mode=tuner", "training.memory_budget=4G"]
    config = make_config("full", searched, data=DATA)
    assert config.training_for("normal").batch_size_mode == "tuner"
    fusion = config.training_for("fusion")
    assert (fusion.batch_size_mode, fusion.memory_budget) == ("fixed", None)
    named = make_config("full", [*searched, "training_of.fusion.batch_size_mode=static"], data=DATA)
    assert named.training_for("fusion").batch_size_mode == "static"


@pytest.mark.parametrize("dataset", ["../data/mycar", "/data/mycar", "", "a/b", ".."])
def test_a_run_names_its_dataset_and_no_path(dataset: str) -> None:
    data = {"dataset": dataset, "data_root": "data"}
    with pytest.raises(ConfigurationError, match=rf"^data.dataset='{dataset}' cannot be part of a file name, .*; use"):
        CanConfig.from_preset("quick", {"data": data})
