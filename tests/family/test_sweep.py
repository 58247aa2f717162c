"""A sweep of the toy family, executed in this process: what is shared, what goes on, what is chosen by what."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kdgat.base import UserError
from kdgat.cli.sweep import change_from_best, outcomes_table, verdict
from kdgat.family import Family, Sweep, family_config, find_family, read_summary
from kdgat.family.summary import find_runs
from kdgat.family.sweep import Outcome, Trial, check_key, overrides_beside_file, read_sweep
from kdgat.run import Measure, OutputDirectory, RunConfig, StageState, run_locally
from tests.support.command_line import Answer

GOOD, BAD = "0.1", "1e-6"  # learning rates
RATE = "training.learning_rate"
ONE_STAGE = "{small_512_only: {size: 64, train: 2, validation: 2, test: 2}}"


def make_sweep(toy: Family, rates: Sequence[str] = (BAD, GOOD), seeds: Sequence[int] = (0, 1)) -> Sweep:
    configs = [
        ({RATE: rate}, toy.config.from_preset("quick", {"seeds": list(seeds)}, [f"{RATE}={rate}"])) for rate in rates
    ]
    return Sweep.of(toy, configs, "validation")


def execute(sweep: Sweep, out: Path, only: Sequence[str] | None = None) -> OutputDirectory:
    output = OutputDirectory(out)
    sweep.write(output)
    run_locally(sweep.run, out, only)
    return output


def test_stages_that_trials_have_in_common_stand_once_and_no_test_is_scored(toy: Family) -> None:
    assert [stage.name for stage in make_sweep(toy).run.plan] == [
        "prepare", "line-seed0-trial000", "line-seed1-trial000", "line-seed0-trial001", "line-seed1-trial001",
    ]  # fmt: skip


def test_the_best_by_validation_comes_first_with_an_interval_over_seeds(toy: Family, tmp_path: Path) -> None:
    best, worst = make_sweep(toy).finish(execute(make_sweep(toy), tmp_path))
    assert (best.trial.values, worst.trial.values) == ({RATE: GOOD}, {RATE: BAD})
    [measure] = best.measures
    assert measure.name == "validation_loss of line"
    assert measure.value < worst.measures[0].value
    assert measure.seeds is not None
    assert measure.seeds.count == 2


def outcome(name: str, by_seed: dict[int, float]) -> Outcome:
    trial = Trial(name, {RATE: name}, find_family("lap").config.from_preset("quick", {}))
    return Outcome(trial, "finished", [Measure.over_seeds("loss", by_seed, is_higher_better=False)])


def test_trials_are_compared_with_the_best_seed_by_seed() -> None:
    """Seeds differ by far more than trials do: intervals of the means overlap, those of the differences do not."""
    best = outcome("000", {0: 0.10, 1: 0.50, 2: 0.90})
    worse = outcome("001", {0: 0.12, 1: 0.53, 2: 0.92})
    alike = outcome("002", {0: 0.20, 1: 0.45, 2: 0.91})
    other_seeds = outcome("003", {7: 0.10, 8: 0.50, 9: 0.95})
    change = change_from_best(best, worse)
    assert change is not None
    assert (change.count, round(change.mean, 4)) == (3, 0.0233)
    assert verdict([best, worse, alike, other_seeds]) == "Within what seeds differ by: 002, 003."
    header, rows = outcomes_table([best, worse, other_seeds]).texts
    assert header[-2:] == ["from the best, by seed", "state"]
    assert [row[-2] for row in rows] == ["-", "+0.0233 +- 0.0143", "-"]
    one = [outcome("000", {0: 0.1}), outcome("001", {0: 0.2})]
    assert "from the best, by seed" not in outcomes_table(one).texts[0]


def test_each_trial_is_a_run_of_its_own_and_the_sweep_is_none(toy: Family, tmp_path: Path) -> None:
    sweep = make_sweep(toy)
    sweep.finish(execute(sweep, tmp_path))
    assert [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)] == ["trials/000", "trials/001"]
    found = read_summary(tmp_path / "trials" / "001")
    assert (found.state, found.seeds) == ("finished", [0, 1])
    alone = run_locally(sweep.folds[1].run, tmp_path / "alone")["line-seed1"]
    of_trial = OutputDirectory(tmp_path / "trials" / "001")
    line = of_trial.stage_directory(of_trial.read_index().record("line-seed1"))
    assert line.weights_path.read_bytes() == alone.weights_path.read_bytes()


def test_a_sweep_that_was_stopped_goes_on_and_one_with_more_trials_keeps_those_it_has(
    toy: Family, tmp_path: Path
) -> None:
    output = execute(make_sweep(toy), tmp_path, only=["line-seed0-trial000"])
    stopped = make_sweep(toy).finish(output)
    assert [(one.trial.name, one.state, list(one.measures)) for one in stopped] == [
        ("000", "2 of 3 stages done", []), ("001", "1 of 3 stages done", []),
    ]  # fmt: skip
    more = make_sweep(toy, (BAD, GOOD, "0.01"))
    output = execute(more, tmp_path)
    states = {record.name: record.state for record in output.read_index().stages}
    assert states["prepare"] == states["line-seed0-trial000"] == StageState.CACHED
    assert states["line-seed0-trial001"] == states["line-seed0-trial002"] == StageState.FINISHED
    assert len(list((tmp_path / "stages").glob("prepare-*"))) == 1
    assert all(one.state == "finished" for one in more.finish(output))


def test_a_sweep_that_is_stopped_before_its_first_stage_has_what_is_new_in_it_planned(
    toy: Family, tmp_path: Path
) -> None:
    before = execute(make_sweep(toy, (GOOD, "0.01"), seeds=[0]), tmp_path)
    more = make_sweep(toy, (GOOD, BAD, "0.02"), seeds=[0])
    more.write(before)  # and then Ctrl-C: run.json is that of the sweep before
    assert [(one.trial.name, one.state) for one in more.finish(before)] == [
        ("000", "finished"),
        ("001", "1 of 2 stages done"),  # its namesake was done by another learning rate
        ("002", "1 of 2 stages done"),
    ]


def test_trials_that_a_later_command_leaves_out_are_not_among_the_runs(toy: Family, tmp_path: Path) -> None:
    for name in ("000", "001", "002"):
        (tmp_path / "trials" / name).mkdir(parents=True)
        (tmp_path / "trials" / name / "run.json").touch()
    make_sweep(toy, (GOOD, BAD)).write(OutputDirectory(tmp_path))
    assert [path.name for path in find_runs(tmp_path)] == ["000", "001"]
    assert [path.name for path in find_runs(tmp_path / "trials")] == ["000", "001"]


def test_a_trial_that_fails_says_why_and_the_others_are_compared(toy: Family, tmp_path: Path) -> None:
    sweep = make_sweep(toy, (GOOD, "1e30"), seeds=[0])  # which no loss stays finite at
    best, failed = sweep.finish(execute(sweep, tmp_path))
    assert best.measures
    assert failed.state.startswith("failed: line-seed0-trial001: the loss is ")


def test_what_is_tried_is_kept_and_planned_again_from_the_file(toy: Family, tmp_path: Path) -> None:
    sweep = make_sweep(toy)
    sweep.write(OutputDirectory(tmp_path))
    again = read_sweep(OutputDirectory(tmp_path))
    assert [stage.name for stage in again.run.plan] == [stage.name for stage in sweep.run.plan]
    assert [trial.config for trial in again.trials] == [trial.config for trial in sweep.trials]
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match="give the command of the sweep again"):
        read_sweep(OutputDirectory(tmp_path))


@pytest.mark.parametrize("name", ["lap", "trees", "can"])
def test_the_file_of_a_trial_is_a_configuration_that_train_takes(name: str, tmp_path: Path) -> None:
    family = find_family(name)
    given = {"data": {"dataset": "cars", "data_root": str(tmp_path)}} if name == "can" else {}
    config = family.config.from_preset("quick", {"seeds": [3], **given}, [f"{RATE}=0.007", "training.patience=null"])
    Sweep.of(family, [({RATE: "0.007"}, config)], "validation").write(OutputDirectory(tmp_path))
    assert family_config(family, None, {}, None, None, tmp_path / "trials" / "000" / "config.yaml") == config


@pytest.mark.parametrize(
    ("overrides", "beside"),
    [
        (["stages=null"], []),
        (["training_of={}"], []),
        (["training_of={}", f"progression={ONE_STAGE}"], ["training_of", "progression"]),
    ],
)
def test_the_file_of_a_trial_and_what_it_says_to_give_besides_mean_its_configuration(
    overrides: list[str], beside: list[str], tmp_path: Path
) -> None:
    lap = find_family("lap")
    config = lap.config.from_preset("quick", {"stages": ["small_512_only"]}, overrides)
    Sweep.of(lap, [({}, config)], "validation").write(OutputDirectory(tmp_path))
    path = tmp_path / "trials" / "000" / "config.yaml"
    more = overrides_beside_file(config)
    assert [one.partition("=")[0] for one in more] == beside, "and no more where the file alone means the same"
    assert path.read_text().startswith("# A file is merged") == bool(beside)
    read = family_config(lap, None, {}, None, more, path)
    assert [one.config for one in lap.plan(read).plan] == [one.config for one in lap.plan(config).plan]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("data.points", "scored on"),
        ("seeds", "--seeds 0 1 2"),
        ("resources.line.memory", "changes no result"),
        ("training.checkpoint_interval_s", "and no result"),
        ("training_of.line.loggers", "and no result"),
        ("training.monitor", "by which number trials are scored"),
    ],
)
def test_keys_in_which_trials_cannot_be_compared_are_refused(toy: Family, key: str, text: str) -> None:
    with pytest.raises(UserError, match=text):
        check_key(toy.config, key)


@pytest.mark.parametrize(
    ("name", "key", "values", "text"),
    [
        ("toy", "training", ("{monitor: train_loss}", "{}"), "training.monitor"),
        ("toy", "training_of", ("{line: {mode: max}}", "{}"), "training.mode"),
        ("toy", "training_of.line", ("{learning_rate: 1}", "{monitor: train_loss}"), "training.monitor"),
        ("lap", "progression.mid_2048.validation", ("3", "6"), "validation data"),
        ("can", "windows.size", ("50", "100"), "validation data"),
        ("can", "injection.enabled", ("false", "true"), "validation data"),
    ],
)
def test_trials_that_validation_would_score_differently_are_refused_whatever_key_makes_them_so(
    toy: Family, name: str, key: str, values: tuple[str, str], text: str
) -> None:
    family = toy if name == "toy" else find_family(name)
    with pytest.raises(UserError, match=f"trial 001 .{key}=.*its {text} is not that of the first trial"):
        Sweep.of(family, configured(family, key, values), "validation")


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("toy", "training", ("{learning_rate: 0.1}", "{learning_rate: 0.2}")),
        ("lap", "progression.mid_2048.train", ("24", "48")),
        ("lap", "graph.witnesses", ("8", "16")),
        ("can", "sampling.graphs_per_epoch", ("10", "20")),
    ],
)
def test_what_leaves_the_score_of_validation_as_it_is_can_be_swept(
    toy: Family, name: str, key: str, values: tuple[str, str]
) -> None:
    family = toy if name == "toy" else find_family(name)
    assert len(Sweep.of(family, configured(family, key, values), "validation").trials) == 2


def configured(family: Family, key: str, values: Sequence[str]) -> list[tuple[dict[str, str], RunConfig]]:
    given = {"data": {"dataset": "synthetic", "data_root": "data"}} if family.name == "can" else {}
    return [({key: value}, family.config.from_preset("quick", given, [f"{key}={value}"])) for value in values]


def test_trees_that_start_from_weights_have_no_validation_to_compare_by() -> None:
    trees = find_family("trees")
    assert trees.judged_stage(["finetune", "scratch"]) is None
    assert trees.judged_stage(["pretrain", "finetune", "gin"]) == "pretrain"


class TestCommand:
    def test_a_dry_run_prints_the_trials_and_writes_nothing(
        self, toy: Family, tmp_path: Path, kdgat: Callable[..., Answer]
    ) -> None:
        words = ("--out", tmp_path / "out", "--grid", f"{RATE}=0.1,0.01", "training.batch_size=8,16", "--seeds", 0, 1)
        text = kdgat("sweep", "toy", *words, "--dry-run", status=0).stdout
        assert "4 trials" in text
        assert "9 stages, where the trials one by one would have 12" in text
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (("--grid", "training.learning_rat=0.1"), "unknown key 'learning_rat': did you mean 'learning_rate'?"),
            (("--grid", "training.learning_rate=0.1,-1"), "training.learning_rate=-1"),
            (("--random", "training.warmup_fraction=uniform:0:3", "--trials", 2), "training.warmup_fraction=3"),
            (("--grid", "training.max_epochs=1", "--objective", "F1"), "--objective F1: toy has validation"),
            (("--grid", "data.noise=1,2"), "it decides what trials are scored on"),
        ],
    )
    def test_mistakes_are_one_line_before_anything_starts(
        self, toy: Family, tmp_path: Path, kdgat: Callable[..., Answer], words: Sequence[object], text: str
    ) -> None:
        error = kdgat("sweep", "toy", "--out", tmp_path / "out", *words, status=1).stderr
        assert text in error
        assert error.count("\n") == 1
        assert not list(tmp_path.iterdir())

    def test_a_folder_with_a_run_is_not_taken_for_a_sweep(
        self, toy: Family, tmp_path: Path, kdgat: Callable[..., Answer]
    ) -> None:
        run_locally(toy.plan(toy.config.from_preset("quick", {})), tmp_path, ["prepare"])
        error = kdgat("sweep", "toy", "--out", tmp_path, "--grid", f"{RATE}=0.1", status=1).stderr
        assert "holds a run that is no sweep: choose another folder" in error

    @pytest.mark.parametrize("words", [("train", "toy"), ("sweep", "toy", "--grid", f"{RATE}=0.1")])
    def test_a_logger_that_is_not_installed_is_said_before_anything_starts(
        self,
        toy: Family,
        tmp_path: Path,
        kdgat: Callable[..., Answer],
        monkeypatch: pytest.MonkeyPatch,
        words: Sequence[str],
    ) -> None:
        monkeypatch.setattr("kdgat.training.config.find_spec", lambda name: None)
        answer = kdgat(*words, "--out", tmp_path / "out", "-O", "training.loggers=[tensorboard]", status=1)
        assert "tensorboard is not installed: pip install tensorboard" in answer.stderr
        assert not list(tmp_path.iterdir())
