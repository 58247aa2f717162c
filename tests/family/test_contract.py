"""What every family fulfils, one of another distribution, too: name it here, and run this file."""

import json
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from typing import Any

import pytest
import typer.main

from kdgat.cli.config import explained, keys_of
from kdgat.cli.main import build_application
from kdgat.family import Detects, Family, find_family
from kdgat.run import EVALUATION, Run
from kdgat.stage.families import family_package

NAMES = ("can", "lap", "trees", "experiment", "toy")
# What cannot be left out of a configuration.
NEEDED: dict[str, dict[str, Any]] = {
    "can": {"data": {"dataset": "synthetic", "data_root": "data"}},
    "experiment": {"source": "kdgat.experiment.example:experiment"},
}
COMMANDS = ("plan", "estimate", "train")
OF_A_CONFIGURATION = {"--preset", "--config", "--seeds", "--override"}
OF_JOBS = {"--site", "--walltime", "--memory", "--cores", "--gpus", "--account"}


@pytest.fixture(params=NAMES)
def family(request: pytest.FixtureRequest, toy: Family) -> Family:
    return find_family(request.param)


def planned(family: Family, **given: Any) -> Run:
    return family.plan(family.config.from_preset("quick", {**NEEDED.get(family.name, {}), **given}))


def options_of(command: str, family: str) -> Iterator[tuple[str, str]]:
    group = typer.main.get_command(build_application(command, [command, family])).commands[command]  # type: ignore[attr-defined]
    for parameter in group.commands[family].params:
        name = next(one for one in parameter.opts if one.startswith("--"))
        yield name, parameter.help or ""


def test_a_plan_is_a_function_of_the_configuration(family: Family) -> None:
    once, again = (planned(family, seeds=[0, 1]) for _ in range(2))
    assert list(once.plan) == list(again.plan)
    assert json.loads(json.dumps([stage.config for stage in once.plan])) == [stage.config for stage in once.plan]


def test_what_a_stage_needs_stands_before_it_and_each_seed_has_one_evaluation(family: Family) -> None:
    plan = planned(family, seeds=[0, 1]).plan
    names = [stage.name for stage in plan]
    assert len(set(names)) == len(names)
    for place, stage in enumerate(plan):
        assert set(stage.depends_on) <= set(names[:place])
    assert sorted(stage.seed for stage in plan if stage.stage == EVALUATION) == [0, 1]


def test_a_seed_more_leaves_the_stages_of_the_others_alone(family: Family) -> None:
    one, two = (planned(family, seeds=seeds).plan for seeds in ([0], [0, 1]))
    assert [stage for stage in two if stage in one] == list(one)


def test_its_stages_run_in_a_process_that_imports_its_package_alone(family: Family) -> None:
    assert callable(import_module(f"{family_package(family.name)}.stages").run)


def test_resources_and_differences_are_taken_for_every_stage_it_names(family: Family) -> None:
    config = planned(family).config
    assert set(config.trained_stages()) <= set(config.stage_names())
    for stage in config.stage_names():
        planned(family, resources={stage: {"memory": "4G"}})
    for stage in config.trained_stages():
        assert planned(family, training_of={stage: {"max_epochs": 3}}).config.training_for(stage).max_epochs == 3


def test_every_key_of_its_configuration_is_explained(family: Family) -> None:
    text = "\n".join(explained(keys_of(family.config, planned(family).config)))
    silent = [line for line in text.splitlines() if line and "#" not in line and not line.endswith(":")]
    assert silent == []


@pytest.mark.parametrize("name", ["can", "lap", "trees"])
def test_stages_are_chosen_with_what_they_need(name: str) -> None:
    family = find_family(name)
    everything = planned(family).plan
    for kind in dict.fromkeys(stage.stage for stage in everything):
        if name == "lap" and kind not in planned(family).config.trained_stages():
            continue  # whose preparations and evaluation follow from the stages of the progression
        chosen = planned(family, stages=[kind]).plan
        names = {stage.name for stage in chosen}
        assert {stage.name for stage in everything if stage.stage == kind} <= names
        assert all(names.issuperset(stage.depends_on) for stage in chosen)


@pytest.mark.parametrize("name", NAMES)
def test_commands_take_the_same_options_in_the_same_words(name: str, toy: Family) -> None:
    found = {command: dict(options_of(command, name)) for command in COMMANDS}
    for command, option in product(COMMANDS, OF_A_CONFIGURATION | OF_JOBS):
        assert found[command][option] == dict(options_of("plan", "can"))[option], (command, option)
    own = {option.flag for option in find_family(name).options if not option.plan_only}
    for command in COMMANDS:
        assert own <= set(found[command])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", [*COMMANDS, "sweep"])
def test_beside_its_own_options_a_command_has_those_that_it_has_for_any_family(
    name: str, command: str, toy: Family
) -> None:
    def common(family: str) -> dict[str, str]:
        own = {option.flag for option in find_family(family).options}
        return {option: text for option, text in options_of(command, family) if option not in own}

    assert common(name) == common("can")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_evaluated_on_other_data_takes_the_options_of_jobs_in_the_same_words(name: str, toy: Family) -> None:
    if not isinstance(find_family(name), Detects) and name != "experiment":
        with pytest.raises(KeyError):
            dict(options_of("evaluate", name))
        return
    of_plan = dict(options_of("plan", name))
    found = {option: text for option, text in options_of("evaluate", name) if option in OF_JOBS}
    assert found == {option: of_plan[option] for option in OF_JOBS}


def test_an_option_of_one_name_sets_the_same_key_in_all_families(toy: Family) -> None:
    keys: dict[str, tuple[str, bool]] = {}
    for option in (option for name in NAMES for option in find_family(name).options):
        assert keys.setdefault(option.flag, (option.key, option.is_many)) == (option.key, option.is_many)
