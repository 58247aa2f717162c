"""The cheapest member of a detector goes first, and decisions stay what they were."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdgat.can.evaluation.accumulated_evidence import learn_accumulation, node_mean
from kdgat.can.evaluation.calibration import DecisionRule, Scaling, logit
from kdgat.can.evaluation.cascade import MIN_DEVIATIONS, SAFETY, CascadeError, check_cascade, learn_cascade
from kdgat.can.evaluation.decision import DefaultDetector, scenario_of_detector
from kdgat.can.evaluation.finished_run import FinishedCanRun
from kdgat.can.evaluation.node_scores import NodeScores
from kdgat.can.evaluation.other_recordings import evaluate_run, make_evaluation
from kdgat.can.evaluation.results import Results
from kdgat.can.evaluation.run_detector import cascade_of, detector_of
from kdgat.can.evaluation.score_tables import ScoreTable
from kdgat.can.evaluation.tables import cascade_table, models_table
from kdgat.can.sections import EvaluationConfig
from kdgat.run.directory import OutputDirectory
from kdgat.stage.outcome import Finished
from kdgat.stage.runner import run_stage
from tests.can.evaluation.score_tables import made_table
from tests.can.small_runs import small_config, train_here
from tests.support.command_line import Answer

NUM_WINDOWS = 6000
PARAMETERS = {(0, "normal"): 1000, (0, "curriculum"): 1000, (0, "distill_gat"): 50}
DETECTOR = DefaultDetector(
    "ensemble",
    {0: {"normal": Scaling(), "curriculum": Scaling(temperature=2.0), "distill_gat": Scaling(bias=1.0)}},
    DecisionRule(threshold=0.75),
)


def validation(noise: Mapping[str, float], seed: int = 0) -> ScoreTable:
    """Return windows of which a third are attacked, and members that are wrong by so much each."""
    generator = np.random.default_rng(seed)
    label = (np.arange(NUM_WINDOWS) % 3 == 2).astype(np.int8)
    centre = np.where(label == 1, 4.0, -4.0) + generator.normal(0.0, 1.0, NUM_WINDOWS)
    scores = {}
    for name, scaling in DETECTOR.scalings[0].items():
        calibrated = centre + generator.normal(0.0, noise.get(name, 1.0), NUM_WINDOWS)
        scores[name] = ((calibrated - scaling.bias) * scaling.temperature).astype(np.float32)
    return made_table(label, scores=scores)


@pytest.fixture(scope="module")
def tables() -> dict[int, ScoreTable]:
    return {0: validation({})}


@pytest.fixture(scope="module")
def cascaded(tables: dict[int, ScoreTable]) -> DefaultDetector:
    return replace(DETECTOR, cascade=learn_cascade(DETECTOR, tables, PARAMETERS))


def test_the_member_with_the_fewest_parameters_goes_first(cascaded: DefaultDetector) -> None:
    assert cascaded.cascade is not None
    assert (cascaded.cascade.seed, cascaded.cascade.model) == (0, "distill_gat")
    assert cascaded.cascade.num_members == 3


def test_of_equal_members_the_one_goes_first_that_needs_the_others_least() -> None:
    tables = {0: validation({"normal": 2.0, "curriculum": 0.5})}
    found = [learn_cascade(DETECTOR, tables, PARAMETERS | {member: 1}) for member in PARAMETERS]
    fewest = min(found, key=lambda one: one.num_validation_windows_of_all)
    assert len({one.num_validation_windows_of_all for one in found}) == len(found)
    assert learn_cascade(DETECTOR, tables, dict.fromkeys(PARAMETERS, 50)) == fewest


def test_every_decision_of_validation_is_that_of_all_members(
    tables: dict[int, ScoreTable], cascaded: DefaultDetector
) -> None:
    assert cascaded.cascade is not None
    np.testing.assert_array_equal(cascaded.decide(tables), DETECTOR.decide(tables))
    assert cascaded.cascade.num_differing > 0
    goes_on = np.count_nonzero(cascaded.cascade.goes_on(tables))
    assert goes_on == cascaded.cascade.num_validation_windows_of_all < NUM_WINDOWS / 2


def test_margins_are_safely_beyond_the_furthest_window_that_is_decided_otherwise(
    tables: dict[int, ScoreTable], cascaded: DefaultDetector
) -> None:
    assert cascaded.cascade is not None
    alone = DETECTOR.logits_of(tables, 0, "distill_gat") - float(logit(0.75))
    wrong = (alone >= 0.0) != DETECTOR.decide(tables)
    least = MIN_DEVIATIONS * np.std(alone - (DETECTOR.logits(tables) - float(logit(0.75))))
    assert cascaded.cascade.below == pytest.approx(max(least, SAFETY * -alone[wrong].min()))
    assert cascaded.cascade.above == pytest.approx(max(least, SAFETY * alone[wrong].max()))


def test_margins_are_not_nothing_where_members_never_differ() -> None:
    label = np.arange(1000) % 2
    centre = np.where(label == 1, 40.0, -40.0)
    jitter = np.resize([0.0, 0.5], 1000)
    scores = {
        "normal": centre.astype(np.float32),
        "curriculum": 2 * centre.astype(np.float32),
        "distill_gat": (centre + jitter).astype(np.float32),
    }
    cascade = learn_cascade(DETECTOR, {0: made_table(label, scores=scores)}, PARAMETERS)
    assert cascade.num_differing == 0
    assert 0.0 < cascade.below == cascade.above < 1.0


def test_scores_that_nobody_knows_have_no_part_in_a_decision(
    tables: dict[int, ScoreTable], cascaded: DefaultDetector
) -> None:
    assert cascaded.cascade is not None
    sure = ~cascaded.cascade.goes_on(tables)
    known = dict(tables[0].scores)
    for name in ("normal", "curriculum"):
        known[name] = np.where(sure, np.float32(np.nan), known[name])
    partly = {0: replace(tables[0], scores=known)}
    np.testing.assert_array_equal(cascaded.logits(partly), cascaded.logits(tables))
    np.testing.assert_array_equal(cascaded.logits(partly)[~sure], DETECTOR.logits(tables)[~sure])
    np.testing.assert_array_equal(cascaded.logits(partly)[sure], DETECTOR.logits_of(tables, 0, "distill_gat")[sure])
    assert [cascaded.scores_all(model, 0) for model in ("distill_gat", "normal", "ensemble", "clock")] == [
        True, False, False, True,
    ]  # fmt: skip


def test_evidence_that_adds_up_is_learned_from_the_scores_that_the_cascade_meets(
    tables: dict[int, ScoreTable], cascaded: DefaultDetector
) -> None:
    assert cascaded.cascade is not None
    generator = np.random.default_rng(1)
    scores = {
        name: generator.normal(shift, 1.0, 2 * NUM_WINDOWS).astype(np.float16)
        for name, shift in (("normal", 0.0), ("curriculum", 0.0), ("distill_gat", 6.0))
    }
    nodes = {0: NodeScores(2 * np.arange(NUM_WINDOWS + 1), np.zeros(2 * NUM_WINDOWS, np.int32), scores)}
    mixed, mean = node_mean(cascaded, nodes, tables), node_mean(DETECTOR, nodes, tables)
    assert mixed is not None
    assert mean is not None
    goes_on = np.repeat(cascaded.cascade.goes_on(tables), 2)
    np.testing.assert_array_equal(mixed[goes_on], mean[goes_on])
    np.testing.assert_array_equal(mixed[~goes_on], scores["distill_gat"][~goes_on])
    own = learn_accumulation(cascaded, tables, nodes, EvaluationConfig())
    other = learn_accumulation(DETECTOR, tables, nodes, EvaluationConfig())
    assert own is not None
    assert other is not None
    assert min(own.reference.scores) > max(other.reference.scores)


@pytest.mark.parametrize(
    ("detector", "calibration", "refused"),
    [
        (DefaultDetector("normal", {0: {"normal": Scaling()}}, DecisionRule()), None, "is normal alone"),
        (
            DefaultDetector("fusion", {s: {"fusion": Scaling()} for s in (0, 1)}, DecisionRule()),
            None,
            "fusion is no att",
        ),
        (replace(DETECTOR, rule=DecisionRule(kind="per_recording")), None, "evaluation.rule=per_recording"),
        (DETECTOR, "drive.json", "--calibration gives"),
    ],
)
def test_what_has_no_cascade_is_refused(
    tables: dict[int, ScoreTable], detector: DefaultDetector, calibration: object, refused: str
) -> None:
    with pytest.raises(CascadeError, match=rf"cascade=true: .*{refused}.*evaluate without --cascade"):
        check_cascade(detector, tables, calibration)


def test_a_few_windows_of_validation_are_refused(tables: dict[int, ScoreTable]) -> None:
    few = tables[0].select(np.arange(NUM_WINDOWS) < 1000)
    with pytest.raises(CascadeError, match=r"validation has 667 windows without and 333 with attack, and 500 of each"):
        check_cascade(DETECTOR, {0: few})


@pytest.fixture(scope="module")
def any_validation() -> Iterator[None]:
    """Let the few windows of tiny recordings teach, whatever that is worth."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kdgat.can.evaluation.cascade.MIN_WINDOWS", 0)
        yield


@pytest.fixture(scope="module")
def two_seeds(any_validation: None, data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> OutputDirectory:
    return train_here(tmp_path_factory.mktemp("two"), small_config(data_root, "seeds=[0, 1]"))


@pytest.fixture(scope="module")
def results(two_seeds: OutputDirectory, data_root: Path) -> Results:
    return evaluate_run(two_seeds.path, data_root, cascade=True, processes=1)


def test_a_run_scores_by_a_cascade_and_says_so(two_seeds: OutputDirectory, data_root: Path, results: Results) -> None:
    plain = evaluate_run(two_seeds.path, data_root)
    cascade = results.detector.cascade
    assert plain.detector.cascade is None
    assert cascade is not None
    assert cascade.sentence() in results.detector.rule
    assert f"cascade: {cascade.sentence()}" in results.data.notes
    run = FinishedCanRun(two_seeds)
    detector = cascade_of(run, detector_of(run))
    for name, scenario in results.scenarios.items():
        expected, _, _ = scenario_of_detector(detector, run.tables(f"test-{name}"))
        assert scenario.confusion_matrix == expected.confusion_matrix, "as of windows that all networks have scored"
        assert scenario.num_windows_of_all == expected.num_windows_of_all
        found = f"{scenario.num_windows_of_all:,} of {scenario.num_windows:,} windows went on to all networks"
        assert f"cascade: {name}: {found}" in results.data.notes
        assert scenario.over_seeds == {}, "one seed has not scored all windows"
        assert plain.scenarios[name].num_windows_of_all is None
    assert set(results.models["normal"]) == {str(cascade.seed)}
    table = cascade_table(results)
    assert table is not None
    assert [row[0] for row in table.texts[1]] == [*results.scenarios, "validation"]
    assert cascade_table(plain) is None
    assert models_table(results).caption == f"F1 per model, of seed {cascade.seed}"


@pytest.mark.processes
def test_any_number_of_processes_scores_the_same_to_the_bit(
    two_seeds: OutputDirectory, data_root: Path, results: Results
) -> None:
    beside = evaluate_run(two_seeds.path, data_root, cascade=True, processes=3)
    assert beside.model_copy(update={"created": results.created}) == results


def test_a_stage_scores_by_a_cascade_and_one_without_is_what_it_was(
    two_seeds: OutputDirectory, data_root: Path, results: Results, tmp_path: Path
) -> None:
    job = make_evaluation(two_seeds.path, data_root, None, cascade=True, below=tmp_path / "cascade")
    assert job.read_spec().config["cascade"] is True
    assert isinstance(run_stage(job, quiet=True), Finished)
    found = json.loads((job.path / "results.json").read_text())
    assert found["scenarios"] == json.loads(results.model_dump_json())["scenarios"]
    plain = make_evaluation(two_seeds.path, data_root, None, below=tmp_path / "plain")
    assert "cascade" not in plain.read_spec().config


def test_the_command_takes_a_cascade_and_tells_what_went_on(
    two_seeds: OutputDirectory, data_root: Path, results: Results, kdgat: Callable[..., Answer]
) -> None:
    answer = kdgat("evaluate", "can", "--run", str(two_seeds.path), "--data-root", str(data_root), "--cascade")
    for note in results.data.notes:
        assert note in answer.stderr
    assert "by all" in answer.stdout


def test_a_run_of_one_network_is_refused_before_a_job_is_made(
    trained_run: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    with pytest.raises(CascadeError, match="normal alone"):
        evaluate_run(trained_run.path, data_root, cascade=True)
    with pytest.raises(CascadeError, match="normal alone"):
        make_evaluation(trained_run.path, data_root, None, cascade=True, below=tmp_path / "jobs")
    assert not (tmp_path / "jobs").exists()


def test_networks_that_torch_scores_have_no_cascade(
    two_seeds: OutputDirectory, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.can.evaluation.scored_recordings.RUNTIME", ("onnxruntime_that_nobody_has",))
    with pytest.raises(CascadeError, match="torch scores here"):
        evaluate_run(two_seeds.path, data_root, cascade=True)
