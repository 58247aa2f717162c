"""A finished run measured on other data, by the code it was trained with; and taken for one of changed code."""

import contextlib
from pathlib import Path

import pytest

from kdgat.base import UserError
from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.evaluation import OtherData
from kdgat.experiment.family import FAMILY
from kdgat.experiment.results import collect_results
from kdgat.run import EVALUATION, OutputDirectory, RunError, run_locally
from kdgat.run.local import new_index
from kdgat.run.plan import create_stage, find_stage
from kdgat.stage import Finished, RunDirectory, StageInput
from kdgat.stage.runner import run_stage
from tests.experiment.conftest import SOURCE
from tests.support.command_line import run_kdgat

ROOTED = "def data(root: Path, largest: int = 6)"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> OutputDirectory:
    """Train on the rings of a folder, whose number a file says; then the source is removed."""
    path = tmp_path_factory.mktemp("trained")
    source = path / "rings.py"
    text = SOURCE.replace("def data(graphs: int = 24, largest: int = 6)", ROOTED)
    source.write_text(
        text.replace(
            "    generator = torch", '    graphs = int((root / "number").read_text())\n    generator = torch', 1
        ).replace("import torch\n", "from pathlib import Path\n\nimport torch\n", 1)
    )
    root = folder(path / "data", 24)
    config = ExperimentConfig.from_preset("quick", {"source": str(source), "root": str(root), "seeds": [0, 1]})
    output = OutputDirectory(path / "out")
    run_locally(FAMILY.plan(config), output.path)
    source.unlink()
    return output


def folder(path: Path, number: int) -> Path:
    path.mkdir()
    (path / "number").write_text(str(number))
    return path


def directory_inputs(path: Path) -> list[StageInput]:
    return list(RunDirectory(path).read_spec().inputs.values())


def measure(data: OtherData) -> dict[int, Finished]:
    def to_end(directory: RunDirectory) -> Finished:
        outcome = directory.read_outcome() if directory.is_finished() else run_stage(directory, quiet=True)
        assert isinstance(outcome, Finished)
        return outcome

    prepared = data.prepare()
    to_end(prepared)
    return {seed: to_end(directory) for seed, directory in data.evaluations(prepared)}


@pytest.mark.processes
def test_a_run_is_measured_on_another_folder_and_with_other_arguments(trained: OutputDirectory, tmp_path: Path) -> None:
    own = collect_results(trained)
    other = OtherData.of_run(trained, folder(tmp_path / "other", 40), ["data.largest=4"])
    results = other.results(measure(other))
    for directory in trained.evaluations_path.iterdir():  # in an image, what a name leads through by `..` is not there
        assert all(".." not in one.path for one in directory_inputs(directory))
    assert results.seeds == own.seeds == [0, 1]
    assert set(results.metrics) == set(own.metrics)
    assert results.metrics != own.metrics
    assert collect_results(trained) == own.model_copy(update={"created": collect_results(trained).created})


@pytest.mark.processes
def test_equal_files_give_equal_results_and_what_is_measured_stays(trained: OutputDirectory, tmp_path: Path) -> None:
    first = OtherData.of_run(trained, folder(tmp_path / "first", 32))
    second = OtherData.of_run(trained, folder(tmp_path / "second", 32))
    measured = measure(first)
    prepared = second.prepare()
    assert prepared.is_finished()
    assert all(directory.is_finished() for _, directory in second.evaluations(prepared))
    assert measure(second) == measured


@pytest.mark.processes
@pytest.mark.parametrize(
    ("root", "overrides", "message"),
    [
        (None, [], "name others by --root or -O data.KEY=VALUE"),
        ("data", [], "name others by --root or -O data.KEY=VALUE"),
        ("missing", [], "missing is not there"),
        (None, ["model.hidden=4"], "takes keys of `data` alone"),
        (None, ["data.larges=4"], "did you mean 'largest'"),
    ],
)
def test_what_is_no_other_data_is_refused(
    trained: OutputDirectory, root: str | None, overrides: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        OtherData.of_run(trained, None if root is None else trained.path.parent / root, overrides)


@pytest.mark.processes
def test_the_command_prints_and_writes_what_was_measured(trained: OutputDirectory, tmp_path: Path) -> None:
    other = folder(tmp_path / "other", 28)
    answer = run_kdgat("evaluate", "experiment", "--run", trained.path, "--root", other, "--json", tmp_path / "r.json")
    assert answer.returncode == 0, answer.stderr
    data = OtherData.of_run(trained, other)
    prepared = data.prepare()
    assert prepared.is_finished()
    results = FAMILY.results.read(tmp_path / "r.json")
    assert results.metrics == data.results(measure(data)).metrics
    assert f"{results.metrics['test.error']['1']:.4f}" in answer.stdout


@pytest.mark.processes
def test_stages_stay_as_they_are_where_a_change_of_code_is_said_to_change_nothing(
    trained: OutputDirectory, tmp_path: Path
) -> None:
    given, source = trained.read_index().config, tmp_path / "rings.py"
    spec = trained.stage_directory(trained.read_index().stages[-1]).read_spec()
    (text,) = spec.execution["files"].values()
    source.write_text(text.replace("pooled", "summed"))

    def finished(**more: str) -> list[str]:
        keys = {"source": str(source), "root": given["root"], "seeds": [0, 1], **more}
        run = FAMILY.plan(ExperimentConfig.from_preset("quick", keys))
        taken: dict[str, RunDirectory] = {}
        for planned in run.plan:
            with contextlib.suppress(RunError):  # needs what runs again
                directory, _ = find_stage(run, planned, taken, trained)
                if directory.is_finished():
                    taken[planned.name] = directory
        return list(taken)

    assert finished() == ["prepare", "prepare-large"]
    trainings = [record.name for record in trained.read_index().stages if record.stage != EVALUATION]
    assert finished(same_code=str(trained.path)) == trainings
    # A command before, which has begun them anew and was stopped, does not hide what has finished.
    index = trained.read_index()
    begun = FAMILY.plan(ExperimentConfig.from_preset("quick", {"source": str(source), "root": given["root"]}))
    taken = {name: trained.stage_directory(index.record(name)) for name in ("prepare", "prepare-large")}
    create_stage(begun, next(one for one in begun.plan if one.name == "small-seed0"), taken, trained)
    trained.write_index(new_index(begun))
    try:
        assert finished(same_code=str(trained.path)) == trainings
    finally:
        trained.write_index(index)
    with pytest.raises(RunError, match=r"run\.json is missing"):
        finished(same_code=str(tmp_path))


@pytest.mark.processes
def test_files_that_have_changed_below_the_root_of_a_run_are_other_data(trained: OutputDirectory) -> None:
    number = trained.path.parent / "data" / "number"
    before = number.read_text()
    number.write_text("26")
    try:
        results = (data := OtherData.of_run(trained, None)).results(measure(data))
    finally:
        number.write_text(before)
    assert set(results.metrics) == {"test.error"}
