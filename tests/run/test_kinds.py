from pathlib import Path

import pytest

from kdgat.base import Config
from kdgat.run import PlannedStage
from kdgat.run.kinds import StageKind, StageKinds
from kdgat.run.plan import InputReference, make_spec
from kdgat.stage import RunDirectory, StageInputError, StageSpec
from kdgat.training import TrainingConfig


class Sections(Config):
    width: int = 3
    training: TrainingConfig = TrainingConfig()


KIND = StageKind("narrow", Sections, "tests.run.test_kinds:run_narrow", title="Narrow")


def planned(kind: StageKind = KIND, **training: object) -> PlannedStage:
    sections = {"width": 5, "training": TrainingConfig(**training), "other": "is not read"}  # type: ignore[arg-type]
    return kind.plan("narrow-seed0", "large", 0, sections)


def identity(stage: PlannedStage) -> str:
    return make_spec("toy", stage, {}, {}).identity()


def run_narrow(spec: object, directory: object) -> object:
    return ("ran", spec, directory)


def test_a_stage_is_planned_with_the_sections_that_its_kind_reads() -> None:
    stage = planned()
    assert set(stage.config) == {"width", "training"}
    assert stage.config["width"] == 5


@pytest.mark.parametrize(
    "execution",
    [
        {"checkpoint_interval_s": 1.0},
        {"checkpoint_margin_s": 1.0},
        {"checkpoint_every_steps": 5},
        {"accelerator": "cpu"},
    ],
)
def test_what_changes_no_result_is_no_part_of_the_identity(execution: dict[str, object]) -> None:
    assert identity(planned(**execution)) == identity(planned())
    key, value = next(iter(execution.items()))
    assert planned(**execution).config["training"][key] == value, "the stage reads it all the same"


def test_what_changes_the_result_is_part_of_the_identity() -> None:
    others = [
        planned(max_epochs=2),
        planned(num_threads=2),
        planned(StageKind("narrow", Sections, "x:y", code_version=2)),
    ]
    assert len({identity(stage) for stage in [planned(), *others]}) == 4


def test_dependencies_follow_from_the_inputs() -> None:
    inputs = {
        "a": InputReference("prepare", "a"),
        "b": InputReference("prepare", "b"),
        "c": InputReference("first", "c"),
    }
    assert KIND.plan("x", "large", 0, {"width": 1, "training": TrainingConfig()}, inputs).depends_on == (
        "prepare",
        "first",
    )


def test_a_kind_runs_the_function_that_it_names() -> None:
    spec = StageSpec(family="can", stage=KIND.name, seed=0)
    assert KIND.run(spec, "directory") == ("ran", spec, "directory")  # type: ignore[arg-type, comparison-overlap]


def test_a_kind_does_not_run_what_was_planned_for_another_meaning_of_it(tmp_path: Path) -> None:
    spec = StageSpec(family="can", stage=KIND.name, seed=0, code_version=KIND.code_version + 1)
    with pytest.raises(StageInputError, match=r"code_version 2 of narrow, and the code here has 1: .* --replan"):
        KIND.run(spec, RunDirectory(tmp_path))


def test_kinds_are_found_by_name_and_an_unknown_one_is_refused() -> None:
    kinds = StageKinds((KIND, StageKind("evaluation", Config, "x:y", trains=False)))
    assert (kinds.names, kinds.trained) == (("narrow", "evaluation"), ("narrow",))
    with pytest.raises(StageInputError, match="stage 'narow': unknown key 'narow': did you mean 'narrow'"):
        kinds["narow"]
