"""Two runs on the recordings that neither was trained on, and runs as models of a registry."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.base.configuration import apply_overrides
from kdgat.can.evaluation.other_recordings import evaluate_run, make_evaluation
from kdgat.can.evaluation.results import Results
from kdgat.can.evaluation.run import lineage_of
from kdgat.can.kinds import ComparisonStageConfig
from kdgat.can.nightly.comparison import IN_SERVICE, compare_runs, make_comparison, read_comparison, scores_of
from kdgat.can.nightly.registered import config_hash, model_source
from kdgat.can.nightly.run import ComparisonPlan, plan_comparison
from kdgat.canbus import make_vehicle, read_recording, simulate
from kdgat.canbus.features import FEATURE_VERSION
from kdgat.canbus.profile import Profile, learn_profile
from kdgat.family import ScoringRequest
from kdgat.registry import ModelEntry, Registry
from kdgat.registry.registry import ENTRY_FILE
from kdgat.run import OutputDirectory, RunError, StageState
from kdgat.run.directory import RunIndex
from kdgat.stage import Finished
from kdgat.stage.runner import run_stage
from tests.can.small_runs import small_config, train_here
from tests.canbus.recording_files import write_csv

CATALOG = "synthetic: {description: my cars, train_scenarios: ['train_*']}\n"


@pytest.fixture(scope="module")
def plain(trained_run: OutputDirectory) -> OutputDirectory:
    return trained_run


@pytest.fixture(scope="module")
def wide(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> OutputDirectory:
    """Return a run that was trained on the test recordings of all vehicles but birch."""
    return train_here(tmp_path_factory.mktemp("wide"), small_config(data_root, hold_out=["birch"]))


def test_runs_are_compared_on_what_none_of_them_was_trained_on(
    plain: OutputDirectory, wide: OutputDirectory, data_root: Path
) -> None:
    comparison = compare_runs({"new": plain.path, "old": wide.path}, data_root, "synthetic")
    assert comparison.recordings
    assert all("birch" in name for name in comparison.recordings)
    assert comparison.left_out
    assert not any("birch" in name for name in comparison.left_out)
    assert set(comparison.left_out.values()) == {"old was trained on it"}
    scenarios = {name.partition("/")[0] for name in comparison.recordings}
    assert comparison.metrics["new"].keys() == comparison.metrics["old"].keys() == scenarios
    for name, scores in comparison.metrics["new"].items():
        for key in ("num_windows", "num_attack_windows"):
            assert scores[key] == comparison.metrics["old"][name][key]
    alone = compare_runs({"new": plain.path}, data_root, "synthetic")
    assert not alone.left_out
    assert alone.metrics["new"] == scores_of(evaluate_run(plain.path, data_root))


@pytest.mark.processes  # drives are long enough for other processes to help
def test_a_profile_judges_all_runs_alike_on_the_recordings_that_it_fits_and_has_not_learned(
    plain: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    vehicle = make_vehicle(77, "gingko")
    whole = simulate(vehicle, 30.0, seed=4)
    numbers, counts = np.unique(whole.identifier, return_counts=True)
    silenced = whole.select(whole.identifier != numbers[counts.argmax()])  # from the beginning on
    attacked = replace(silenced, label=np.ones(len(silenced), np.uint8))
    drives = {
        "silenced": attacked,
        "learned": simulate(vehicle, 70.0, seed=3),
        "other": simulate(make_vehicle(5), 20.0),
    }
    for name, messages in drives.items():
        write_csv(tmp_path / "synthetic" / "test_01" / f"{name}.csv", messages)
    content = read_recording(tmp_path / "synthetic" / "test_01" / "learned.csv")
    learn_profile([("learned.csv", content)]).write(tmp_path / "car.json")
    runs = {"new": plain.path, "old": plain.path}
    without = compare_runs(runs, tmp_path, "synthetic")
    found = compare_runs(runs, tmp_path, "synthetic", profile=tmp_path / "car.json")
    assert found.left_out == {"test_01/learned": "the profile learned it"}
    assert found.recordings == ["test_01/other", "test_01/silenced"]
    assert found.metrics["new"] == found.metrics["old"]
    assert (found.metrics["new"]["test_01"]["recall"] or 0.0) > (without.metrics["new"]["test_01"]["recall"] or 0.0)
    assert "habits judged by the profile, of 70 s" in found.notes
    assert any(note.startswith("test_01/other: judged without the profile, which") for note in found.notes)
    same = found.model_copy(update={"profile": None})
    assert found.test_sets() != same.test_sets(), "what another profile judged is no number to compare with"


def test_where_no_recording_is_left_nothing_is_measured(wide: OutputDirectory, data_root: Path, tmp_path: Path) -> None:
    for path in (data_root / "synthetic").iterdir():
        if "birch" not in path.name:
            (tmp_path / "synthetic").mkdir(exist_ok=True)
            shutil.copy(path, tmp_path / "synthetic" / path.name)
    comparison = compare_runs({"new": wide.path}, tmp_path, "synthetic")
    assert comparison.metrics == {"new": {}}
    assert not comparison.recordings


def test_a_part_of_what_one_run_was_trained_on_is_left_out(
    plain: OutputDirectory, wide: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    source = next(path for path in (data_root / "synthetic").glob("test_*") if "birch" not in path.name)
    trained = read_recording(source)
    write_csv(tmp_path / "synthetic" / "cut" / "part.csv", trained.select(slice(333, 3000)))
    unseen = next(path for path in (data_root / "synthetic").glob("test_*") if "birch" in path.name)
    write_csv(tmp_path / "synthetic" / "other" / "drive.csv", read_recording(unseen))
    comparison = compare_runs({"new": plain.path, "old": wide.path}, tmp_path, "synthetic")
    assert comparison.recordings == ["other/drive"]
    assert comparison.contents.keys() == {"other/drive"}
    assert comparison.test_sets().keys() == {"other"}
    assert set(comparison.left_out) == {"cut/part"}
    assert "shares blocks of messages with test_" in comparison.left_out["cut/part"]
    assert comparison.left_out["cut/part"].endswith("which old was trained on")
    assert len(compare_runs({"new": plain.path}, tmp_path, "synthetic").recordings) == 2


def test_other_windows_are_said_aloud(plain: OutputDirectory, data_root: Path, tmp_path: Path) -> None:
    other = OutputDirectory(shutil.copytree(plain.path, tmp_path / "other"))
    index = other.read_index()
    index.config["windows"]["stride"] = 50
    other.write_index(index)
    comparison = compare_runs({"new": plain.path, "old": other.path}, data_root, "synthetic")
    (fault,) = comparison.faults
    assert "different windows" in fault
    assert "stride 50" in fault


def test_the_stage_finds_the_same(
    plain: OutputDirectory, wide: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    config = ComparisonStageConfig(
        runs={"new": str(plain.path), "old": str(wide.path)}, data_root=str(data_root), dataset="synthetic"
    )
    directory = make_comparison(tmp_path, config)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert read_comparison(directory) == compare_runs({"new": plain.path, "old": wide.path}, data_root, "synthetic")
    assert make_comparison(tmp_path, config).is_finished()
    other = config.model_copy(update={"contents": {"new": "other weights"}})
    assert not make_comparison(tmp_path, other).is_finished()


def test_a_file_that_came_while_the_models_were_trained_is_not_read(
    plain: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    shutil.copytree(data_root / "synthetic", tmp_path / "data" / "synthetic")
    folder = tmp_path / "data" / "synthetic"
    known = tuple(path.name for path in folder.iterdir())
    (folder / "test_01_known_vehicle_known_attack__late.parquet").write_bytes(b"PAR1 and not yet more")
    config = ComparisonStageConfig(
        runs={"new": str(plain.path)}, data_root=str(tmp_path / "data"), dataset="synthetic", only=known
    )
    directory = make_comparison(tmp_path / "jobs", config)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert read_comparison(directory) == compare_runs({"new": plain.path}, data_root, "synthetic")


def test_a_run_that_has_not_finished_cannot_be_compared(
    plain: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    run = OutputDirectory(shutil.copytree(plain.path, tmp_path / "run"))
    index = run.read_index()
    index.record("evaluation-large-seed0").state = StageState.PAUSED
    run.write_index(index)
    with pytest.raises(RunError, match="no evaluation stage has finished"):
        compare_runs({"new": run.path}, data_root, "synthetic")


def of_older_features(output: OutputDirectory, path: Path) -> OutputDirectory:
    """Copy a run and let it be one of a kdgat that computed other features."""
    copy = OutputDirectory(shutil.copytree(output.path, path))
    directory = copy.stage_directory(next(record for record in copy.read_index().stages if record.stage == "prepare"))
    spec = json.loads(directory.spec_path.read_text())
    spec["config"]["feature_version"] = FEATURE_VERSION - 1
    directory.spec_path.write_text(json.dumps(spec))
    return copy


def test_a_run_that_may_fail_does_not_keep_the_others_from_being_scored(
    plain: OutputDirectory, wide: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    old = of_older_features(wide, tmp_path / "old")
    runs = {"new": plain.path, "old": old.path}
    with pytest.raises(UserError, match="features of version"):
        compare_runs(runs, data_root, "synthetic")
    for run in (old.path, tmp_path / "nowhere"):
        comparison = compare_runs({**runs, "old": run}, data_root, "synthetic", may_fail=["old"])
        assert comparison.metrics == compare_runs({"new": plain.path}, data_root, "synthetic").metrics
        (fault,) = comparison.faults
        assert fault.startswith("old cannot be compared: ")
    with pytest.raises(UserError, match="features of version"):
        compare_runs({"new": old.path, "old": plain.path}, data_root, "synthetic", may_fail=["old"])


class Line:
    """A registry in which one model was started from the weights of another."""

    def __init__(self, path: Path, first: OutputDirectory, second: OutputDirectory) -> None:
        self.registry = Registry(path)
        self.first = self.add(first)
        self.second = self.add(second, self.first.id)

    def add(self, run: OutputDirectory, parent: str | None = None) -> ModelEntry:
        source = model_source(run.path)
        return self.registry.add(source.files, family="can", dataset="synthetic", content=source.content, parent=parent)


def test_what_the_weights_have_seen_before_is_no_test(
    plain: OutputDirectory, wide: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    line = Line(tmp_path / "registry", wide, plain)
    moved = Registry(line.registry.path.rename(tmp_path / "moved"))
    second = moved.model_path(line.second.id)
    lineage = lineage_of(second)
    assert set(lineage.trained.values()) == {line.first.id}
    results = evaluate_run(second, data_root)
    left_out = [note for note in results.data.notes if f"{line.first.id} was trained on it" in note]
    assert left_out
    assert not any("birch" in note for note in left_out)
    both = compare_runs({"a": plain.path, "b": wide.path}, data_root, "synthetic")
    scored = {f"{row.scenario}/{row.name}" for row in results.data.recordings if row.scenario.startswith("test")}
    assert scored == set(both.recordings)
    job = make_evaluation(ScoringRequest(second, data_root), below=tmp_path / "jobs")
    entry = second / ENTRY_FILE
    content = entry.read_bytes()
    entry.write_text("{}")
    (note,) = lineage_of(second).notes
    assert "not all that the weights" in note
    entry.write_bytes(content)
    shutil.rmtree(moved.model_path(line.first.id))  # which the job cannot see
    assert isinstance(run_stage(job, quiet=True), Finished)
    assert Results.read(job.path / "results.json").f1 == results.f1
    assert job.read_work() is not None, "what it took is told"
    assert lineage_of(second).notes  # by now nobody can tell
    config = plan_comparison(plain.path, small_config(data_root), [], {}, moved, {IN_SERVICE: line.second}).config
    assert not config.also_trained


def test_a_night_compares_on_what_no_model_of_the_line_has_seen(
    plain: OutputDirectory, wide: OutputDirectory, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(tmp_path / "registry", wide, plain)
    catalog = tmp_path / "my.yaml"
    catalog.write_text(CATALOG)
    monkeypatch.chdir(tmp_path)
    config = small_config(data_root, catalog="my.yaml")

    def planned(contents: str = "a", profile: Path | None = None) -> ComparisonPlan:
        others = {IN_SERVICE: line.second}
        return plan_comparison(plain.path, config, [], {"new": contents}, line.registry, others, profile)

    plan = planned()
    assert plan.config.also_trained == lineage_of(line.registry.model_path(line.second.id)).trained != {}
    assert plan.config.catalog == str(catalog)
    comparison = compare_runs(
        {"new": plain.path}, data_root, "synthetic", also_trained=plan.config.also_trained, catalog=catalog
    )
    assert all("birch" in name for name in comparison.recordings)
    started = OutputDirectory(shutil.copytree(plain.path, tmp_path / "started"))
    index = started.read_index()
    index.config["start_from"] = str(line.registry.model_path(line.second.id))
    started.write_index(index)
    assert set(lineage_of(started.path).trained.values()) == {line.first.id, line.second.id}

    # Other weights, another catalog and a profile are another comparison.
    plans = [plan, planned("b")]
    catalog.write_text(CATALOG + "# changed\n")
    plans.append(planned())
    Profile().write(tmp_path / "car.json")
    plans.append(planned(profile=tmp_path / "car.json"))
    assert len({plan.config.model_dump_json() for plan in plans}) == 4
    assert '"profile"' not in plan.config.model_dump_json(), "comparisons of before keep their names"

    weights = next(line.registry.model_path(line.second.id).rglob("*.safetensors"))
    weights.chmod(0o644)
    weights.write_bytes(b"damaged")
    damaged = planned()
    assert damaged.config.runs.keys() == {"new"}
    (fault,) = damaged.add_to(comparison).faults
    assert "in_service cannot be compared" in fault


def test_the_models_that_a_night_is_held_to_are_measured_on_the_same_recordings(
    plain: OutputDirectory, wide: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    line = Line(tmp_path / "registry", wide, plain)
    config = small_config(data_root)
    known = [path.name for path in (data_root / "synthetic").iterdir()]
    others = {IN_SERVICE: line.second, line.first.id: line.first}
    plan = plan_comparison(plain.path, config, known, {}, line.registry, others)
    assert set(plan.config.may_fail) == others.keys()
    directory = make_comparison(tmp_path / "jobs", plan.config)
    assert isinstance(run_stage(directory, quiet=True), Finished)
    comparison = plan.add_to(read_comparison(directory))
    assert not comparison.faults
    assert comparison.metrics.keys() == {"new", IN_SERVICE, line.first.id}
    counts = [
        {name: scores["num_windows"] for name, scores in metrics.items()} for metrics in comparison.metrics.values()
    ]
    assert counts[0] == counts[1] == counts[2] != {}
    alone = plan_comparison(plain.path, config, known, {}, line.registry, {IN_SERVICE: line.second})
    assert not make_comparison(tmp_path / "jobs", alone.config).is_finished()  # another comparison

    weights = next(line.registry.model_path(line.first.id).rglob("*.safetensors"))
    weights.chmod(0o644)
    weights.write_bytes(b"damaged")
    plan = plan_comparison(plain.path, config, known, {}, line.registry, others)
    assert plan.config.runs.keys() == {"new", IN_SERVICE}
    assert [fault.partition(":")[0] for fault in plan.faults] == [f"{line.first.id} cannot be compared"]


def test_a_registered_model_is_a_run_without_its_data(data_root: Path, plain: OutputDirectory, tmp_path: Path) -> None:
    run = OutputDirectory(shutil.copytree(plain.path, tmp_path / "run"))
    catalog = tmp_path / "my.yaml"
    catalog.write_text(CATALOG)
    index = run.read_index()
    index.config["data"]["catalog"] = str(catalog)
    run.write_index(index)
    source = model_source(run.path)
    registry = Registry(tmp_path / "registry")
    entry = registry.add(
        source.files, family="can", dataset="synthetic", content=source.content, provenance=source.provenance
    )
    assert entry.provenance["packages"]["torch"]
    assert entry.provenance["recordings"].keys() >= {"train/train_02_with_attacks/DoS-alder"}
    catalog.unlink()
    shutil.rmtree(run.path)
    registry.path.rename(tmp_path / "moved")
    model = tmp_path / "moved" / "models" / entry.id
    assert not list(model.rglob("*.h5"))
    assert sum(path.stat().st_size for path in model.rglob("*") if path.is_file()) < 1_000_000
    assert evaluate_run(model, data_root).f1 == evaluate_run(plain.path, data_root).f1


def test_the_same_run_is_the_same_model_whatever_happened_to_its_directory(
    plain: OutputDirectory, wide: OutputDirectory, tmp_path: Path
) -> None:
    run = OutputDirectory(shutil.copytree(plain.path, tmp_path / "run"))
    index = run.read_index()
    for record in index.stages:
        record.state, record.attempts, record.message = StageState.CACHED, 7, "finished before"
    run.write_index(RunIndex(**{**index.model_dump(), "created": "2001-01-01T00:00:00+00:00"}))
    assert model_source(run.path).content == model_source(plain.path).content != model_source(wide.path).content


def test_weights_that_are_not_as_their_stage_wrote_them_become_no_model(plain: OutputDirectory, tmp_path: Path) -> None:
    run = OutputDirectory(shutil.copytree(plain.path, tmp_path / "run"))
    weights = next(run.stages_path.glob("normal-*/weights.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(RunError, match=r"weights\.safetensors is changed since .* wrote it"):
        model_source(run.path)


def test_a_configuration_is_the_same_wherever_the_data_lie(data_root: Path) -> None:
    one, other = small_config(data_root), small_config(Path("elsewhere"), leave_out=["x"])
    other = other.model_copy(update={"start_from": "some/model"})
    hashes = {config_hash(config.model_dump(mode="json")) for config in (one, other)}
    assert len(hashes) == 1
    changed = small_config(data_root, "training.max_epochs=3")
    saved_more_often = apply_overrides(
        one, ["training.checkpoint_interval_s=1", "training.accelerator=cpu", "data.backend=cpu"]
    )
    assert config_hash(saved_more_often.model_dump(mode="json")) in hashes
    assert config_hash(changed.model_dump(mode="json")) not in hashes
