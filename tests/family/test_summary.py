import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kdgat.family import Family, read_summary, verdict
from kdgat.family.report import write_report
from kdgat.family.summary import RunSummary, differences, find_runs, grouped
from kdgat.run import Interval, Measure, OutputDirectory, RunError, StageRecord, StageState, run_locally
from kdgat.run.directory import RunIndex
from tests.support.command_line import Answer


def summary(name: str = "run", *, seeds: tuple[int, ...] = (0,), error: float = 0.5, **config: object) -> RunSummary:
    index = RunIndex(family="toy", config={"seeds": list(seeds), **config}, stages=[])
    return RunSummary(Path(name), index, [Measure("error", error, is_higher_better=False)])


def train(toy: Family, out: Path, *overrides: str, seeds: tuple[int, ...] = (0,)) -> Path:
    run_locally(toy.plan(toy.config.from_preset("quick", {"seeds": list(seeds)}, overrides)), out)
    toy.collect(OutputDirectory(out))
    return out


def test_a_run_says_its_scores_its_validation_and_its_code(toy: Family, tmp_path: Path) -> None:
    found = read_summary(train(toy, tmp_path / "run", seeds=(0, 1)))
    [score] = found.measures
    assert (score.name, score.is_higher_better) == ("error", False)
    assert score.seeds is not None
    assert score.seeds.count == 2
    assert found.objective is not None
    assert found.objective.name == "validation_loss of line"
    assert found.code["torch"]
    assert (found.state, found.seeds) == ("finished", [0, 1])


def test_a_run_that_has_not_finished_says_where_it_stands(toy: Family, tmp_path: Path) -> None:
    run = toy.plan(toy.config.from_preset("quick", {}))
    run_locally(run, tmp_path, only=["prepare"])
    found = read_summary(tmp_path)
    assert found.state == "planned, 1 of 3 stages done"
    assert (found.measures, found.objective) == ((), None)


def test_runs_are_found_below_a_folder_and_through_links_but_not_in_their_stages(tmp_path: Path) -> None:
    for name in ("a", "deep/b", ".hidden", "a/stages/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link").symlink_to(tmp_path / "a")
    (elsewhere / "circle").symlink_to(elsewhere)
    assert [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path / "deep")] == ["deep/b"]
    assert [path.name for path in find_runs(tmp_path) if path.name in ("a", "b", "c")] == ["a", "b"]
    assert elsewhere / "link" in list(find_runs(elsewhere))
    with pytest.raises(RunError, match="is no folder"):
        list(find_runs(tmp_path / "missing"))


def test_what_differs_is_told_by_dotted_key_data_and_code() -> None:
    first, second = summary(training={"epochs": 1, "size": 2}), summary(training={"epochs": 3, "size": 2, "new": {}})
    second = replace(second, data={"train": "0123456789abcdef"}, code={"torch": "2.13.0"})
    found = [(one.kind, one.key, list(one.values)) for one in differences([first, second])]
    assert found == [
        ("configuration", "training.epochs", ["1", "3"]),
        ("data", "files read", ["0 files", "1 file"]),
        ("data", "not read by all", ["-", "1: train"]),
        ("code", "torch", ["-", "2.13.0"]),
    ]


def test_recordings_that_differ_are_counted_and_named_and_no_hash_is_shown() -> None:
    common = {f"recording-{number}": f"{number}" * 64 for number in range(5)}
    first = replace(summary(), data=common | {f"monday-{number}": "a" * 64 for number in range(5)})
    second = replace(summary(), data=common | {"friday": "b" * 64, "recording-3": "c" * 64})
    found = {one.key: list(one.values) for one in differences([first, second]) if one.kind == "data"}
    assert found == {
        "files read": ["10 files", "6 files"],
        "not read by all": ["5: monday-0, monday-1, monday-2, ...", "1: friday"],
        "other content than 1's": ["-", "1: recording-3"],
    }
    other = replace(summary(), data={name: "d" * 64 for name in first.data})
    assert [one.values for one in differences([first, other]) if one.kind == "data"] == [["-", "all 10"]]


def test_runs_that_differ_in_their_seeds_alone_are_one_with_an_interval_over_them() -> None:
    runs = [summary(seeds=(0,), error=0.4), summary(seeds=(1,), error=0.6), summary(seeds=(0,), error=0.1, wide=True)]
    together, alone = grouped(runs)
    assert [run.seeds for run in together.runs] == [[0], [1]]
    assert together.measures["error"].value == pytest.approx(0.5)
    assert together.measures["error"].seeds == Interval.of([0.4, 0.6])
    assert not together.measures["error"].is_higher_better
    assert alone.measures["error"].value == 0.1


def test_a_seed_counts_once_however_many_copies_of_its_run_there_are() -> None:
    [group] = grouped([summary("a", error=0.4), summary("copy", error=0.4), summary("a", error=0.4)])
    assert group.measures["error"].seeds is None, "one seed tells nothing of others"
    assert [run.path.name for run in group.repeated] == ["copy", "a"]
    several = Measure.over_seeds("error", {0: 0.3, 1: 0.4, 2: 0.8}, is_higher_better=False)
    three = replace(summary("three", seeds=(0, 1, 2)), measures=[several])
    [group] = grouped([summary("a", error=0.3), three, summary("b", seeds=(3,), error=0.9)])
    assert [run.path.name for run in group.repeated] == ["a"]
    found, expected = group.measures["error"], Interval.of([0.3, 0.4, 0.8, 0.9])
    assert found.seeds is not None
    assert (found.value, found.seeds.count) == (pytest.approx(0.6), 4)
    assert (found.seeds.low, found.seeds.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def over(by_seed: dict[int, float]) -> Measure:
    return Measure.over_seeds("f", by_seed)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (
            Measure("e", 0.5, is_higher_better=False),
            Measure("e", 0.4, is_higher_better=False),
            "better (one seed each)",
        ),
        (Measure("f", 0.5), Measure("f", 0.4), "worse (one seed each)"),
        (Measure("f", 0.5), over({0: 0.1, 1: 0.2}), "worse (one of them by one seed)"),
        (Measure("f", 0.5), Measure("f", 0.5), "the same"),
        (over({0: 0.1, 1: 0.11}), over({2: 0.9, 3: 0.91}), "+0.8000, better"),
        (over({0: 0.1, 1: 0.9}), over({2: 0.2, 3: 0.9}), "within what seeds differ by"),
        # Of the same seeds: what a seed does to both is in neither difference.
        (over({0: 0.1, 1: 0.9}), over({0: 0.2, 1: 0.999}), "over 2 seeds, pair by pair: better"),
        (over({0: 0.1, 1: 0.9}), over({0: 0.3, 1: 0.8}), "over 2 seeds, pair by pair: within chance"),
        (over({0: 0.1, 1: 0.9, 2: 0.5}), over({0: 0.0, 1: 0.8, 3: 0.5}), "-0.1000 +- 0.0000 over 2 seeds"),
    ],
)
def test_a_difference_that_seeds_make_is_called_none(before: Measure, after: Measure, text: str) -> None:
    assert text in verdict(before, after)


def test_scores_of_a_run_that_was_begun_again_with_other_settings_are_not_its_own(toy: Family, tmp_path: Path) -> None:
    out = train(toy, tmp_path / "run")
    assert [one.name for one in read_summary(out).measures] == ["error"]
    assert "earlier run" not in write_report(out).read_text()
    again = toy.plan(toy.config.from_preset("quick", {"seeds": [0]}, ["training.max_epochs=2"]))
    run_locally(again, out, only=["prepare"])
    assert read_summary(out).measures == ()
    page = write_report(out).read_text()
    assert "The scores are of an earlier run, evaluated " in page
    assert "its evaluation is planned: the same training command again finishes it" in page


def test_the_state_is_that_of_the_stage_that_is_worst_off() -> None:
    records = [
        StageRecord(name=str(state), stage="s", scale="x", seed=0, state=state)
        for state in (StageState.CACHED, StageState.PAUSED, StageState.FAILED)
    ]
    index = RunIndex(family="toy", config={}, stages=records)
    assert RunSummary(Path("run"), index).state == "failed, 1 of 3 stages done"


def test_what_cannot_be_read_of_provenance_is_left_out(toy: Family, tmp_path: Path) -> None:
    out = train(toy, tmp_path)
    for path in out.glob("stages/*/provenance.json"):
        path.write_text(json.dumps({"attempts": []}))
    assert read_summary(out).code == {}


class TestCommand:
    @pytest.fixture
    def folder(self, toy: Family, tmp_path: Path) -> Path:
        """Return a folder with two seeds of one configuration, a better one, and one that is damaged."""
        train(toy, tmp_path / "short-0", "training.max_epochs=1", seeds=(0,))
        train(toy, tmp_path / "short-1", "training.max_epochs=1", seeds=(1,))
        train(toy, tmp_path / "long", "training.max_epochs=20", "training.learning_rate=0.1")
        (tmp_path / "damaged").mkdir()
        (tmp_path / "damaged" / "run.json").write_text("{")
        return tmp_path

    def test_list_has_a_line_for_each_and_one_for_what_cannot_be_read(
        self, folder: Path, kdgat: Callable[..., Answer]
    ) -> None:
        answer = kdgat("runs", "list", folder, status=0)
        assert all(name in answer.stdout for name in ("short-0", "short-1", "long"))
        assert "damaged cannot be read" in answer.stderr
        listed = json.loads(kdgat("runs", "list", folder, "--json", status=0).stdout)
        assert sorted(Path(run["path"]).name for run in listed) == ["long", "short-0", "short-1"]

    def test_best_goes_by_validation_and_prints_a_path_for_scripts(
        self, folder: Path, kdgat: Callable[..., Answer]
    ) -> None:
        assert kdgat("runs", "best", folder, "--quiet", status=0).stdout.strip() == str(folder / "long")
        assert "validation_loss of line" in kdgat("runs", "best", folder, status=0).stdout
        (folder / "none").mkdir()
        assert "nothing to choose from" in kdgat("runs", "best", folder / "none", status=1).stderr

    def test_best_has_a_table_for_each_number_that_runs_were_validated_by(
        self, toy: Family, folder: Path, kdgat: Callable[..., Answer]
    ) -> None:
        train(toy, folder / "other", "training.monitor=train_loss")
        text = kdgat("runs", "best", folder, status=0).stdout
        assert text.count("toy: the best first, by validation") == 2
        assert "train_loss of line" in text
        refused = kdgat("runs", "best", folder, "--quiet", status=1).stderr
        assert f"train_loss of line: {folder / 'other'}" in refused
        assert f"validation_loss of line: {folder / 'long'}" in refused
        listed = json.loads(kdgat("runs", "best", folder, "--json", status=0).stdout)
        assert [Path(run["path"]).name for run in listed] == ["other", "long", "short-0", "short-1"]

    def test_best_takes_no_run_that_has_not_finished_and_lists_it_below(
        self, toy: Family, folder: Path, kdgat: Callable[..., Answer]
    ) -> None:
        config = toy.config.from_preset("quick", {"seeds": [0, 1]}, ["training.learning_rate=0.2", "training.mode=max"])
        run_locally(toy.plan(config), folder / "half", only=["line-seed0"])
        index = OutputDirectory(folder / "half").read_index()
        assert index.record("line-seed0").state == StageState.FINISHED
        text = kdgat("runs", "best", folder, status=0).stdout
        assert "Not compared, it has not finished: half (planned, 2 of 5 stages done)" in text
        assert kdgat("runs", "best", folder, "--quiet", status=0).stdout.strip() == str(folder / "long")
        alone = kdgat("runs", "best", folder / "half", status=1).stderr
        assert "no run in it has finished training" in alone
        assert "2 of 5 stages done" in alone

    def test_compare_says_what_differed_and_what_it_changed(self, folder: Path, kdgat: Callable[..., Answer]) -> None:
        text = kdgat("runs", "compare", folder / "short-0", folder / "short-1", folder / "long", status=0).stdout
        assert "short-0 + " in text
        assert "training.max_epochs" in text
        assert "better" in text
        content = json.loads(kdgat("runs", "compare", folder / "short-0", folder / "long", "--json", status=0).stdout)
        assert {one["key"] for one in content["differences"]} == {"training.max_epochs", "training.learning_rate"}
        twice = kdgat("runs", "compare", folder / "short-0", folder / "short-0", folder / "long", status=0).stdout
        assert "short-0 repeats a seed (0)" in twice
        assert "better (one seed each)" in " ".join(twice.split())
        alike = kdgat("runs", "compare", folder / "short-0", folder / "short-1", status=1)
        assert "these runs differ in their seeds: configuration, data and code are the same" in alike.stderr
        same = kdgat("runs", "compare", folder / "long", folder / "long", status=1)
        assert "these runs differ in nothing: " in same.stderr
        other = folder / "other"
        OutputDirectory(other).path.mkdir()
        OutputDirectory(other).write_index(RunIndex(family="lap", config={}, stages=[]))
        mixed = kdgat("runs", "compare", folder / "long", other, status=1).stderr
        assert "other is of lap: runs of one family are compared" in mixed
        assert mixed.count("\n") == 1
        assert "one run alone: name two or more" in kdgat("runs", "compare", folder / "long", status=1).stderr

    def test_runs_without_tests_are_compared_by_their_validation(
        self, folder: Path, kdgat: Callable[..., Answer]
    ) -> None:
        for run in ("short-0", "long"):
            (folder / run / "results.json").unlink()
        text = kdgat("runs", "compare", folder / "short-0", folder / "long", status=0).stdout
        assert "validation: validation_loss" in " ".join(text.split())
        told = " ".join(text.split())
        assert "None of these runs has scored tests (finished); what stands above is of validation data." in told

    def test_show_has_stages_scores_and_what_was_set(self, folder: Path, kdgat: Callable[..., Answer]) -> None:
        text = kdgat("runs", "show", folder / "long", status=0).stdout
        assert all(part in text for part in ("line-seed0", "error", "training.max_epochs", "20", "finished"))
        assert "is not the output of a training run" in kdgat("runs", "show", folder, status=1).stderr
