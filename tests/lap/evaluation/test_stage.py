from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdgat.assignment import CertificateError
from kdgat.base import ConfigurationError
from kdgat.lap.evaluation.baselines import baselines
from kdgat.lap.evaluation.measurement import bound_of, column_minima_of, compare_duals, scale_of
from kdgat.lap.evaluation.results import Evaluation, Kind, LapResults
from kdgat.lap.evaluation.stage import collect_results, run_evaluation
from kdgat.lap.instances.distributions import generate
from kdgat.lap.instances.label import Problem
from kdgat.lap.instances.records import label
from kdgat.lap.instances.store import write_store
from kdgat.lap.sections import METHODS
from kdgat.run import OutputDirectory, RunError
from kdgat.stage import Finished, Paused, StageInputError
from tests.lap.small_evaluations import evaluate, evaluation_directory, make_run, write_instances, write_network

SIZE = 30


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_instances(tmp_path_factory.mktemp("stores") / "test.h5", SIZE)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("weights"))


def test_every_method_is_measured_on_the_same_instances_and_every_instance_is_checked(
    tmp_path: Path, store: Path, weights: Path
) -> None:
    directory = evaluation_directory(tmp_path / "run", {SIZE: store}, {"small": weights, "large": weights})
    outcome = evaluate(directory)
    assert isinstance(outcome, Finished)
    assert outcome.metrics["num_checked"] == 6
    assert "times_untrained_uniform_30" in outcome.metrics
    found = Evaluation.read(directory.path / outcome.artifacts["results"])
    assert found.final_method == "trained large"
    assert found.num_checked == {str(SIZE): {"uniform": 3, "sparse": 3}}
    assert set(found.parameter_counts) == {"trained small", "trained large"}
    instances = {(row.method, row.family): set() for row in found.measurements}  # type: ignore[var-annotated]
    for row in found.measurements:
        instances[row.method, row.family].add(row.instance)
    assert set(map(frozenset, (value for (_, family), value in instances.items() if family == "uniform"))) == {
        frozenset({0, 1})
    }
    methods = {method for method, _ in instances}
    assert {
        "scipy",
        "column or row minima",
        "Sinkhorn",
        "oracle",
        "neighbour sweeps",
        "untrained network",
        "trained small",
        "trained large",
    } <= methods
    assert all(len(row.milliseconds) == 2 for row in found.measurements)
    progress = json.loads(directory.progress_path.read_text())
    assert {"phase": "instances", "done": 6, "total": 6}.items() <= progress.items()


def test_the_oracle_has_no_gap_and_column_minima_have_all_of_it(tmp_path: Path, store: Path, weights: Path) -> None:
    directory = evaluation_directory(tmp_path / "run", {SIZE: store}, {"small": weights})
    evaluate(directory)
    rows = Evaluation.read(directory.path / "evaluation.json").measurements
    oracle = [row for row in rows if row.kind is Kind.ORACLE]
    assert all(row.gap_share == pytest.approx(0, abs=1e-9) and row.u_r2 == pytest.approx(1) for row in oracle)
    assert all(row.gap_share == pytest.approx(1) for row in rows if row.method == "column minima")
    for name in ("column minima", "row minima"):  # each alone, although the solver knows which of them is better
        assert {row.seed_used for row in rows if row.method == name} == {name}
    sinkhorn = [row.gap_share for row in rows if row.method == "Sinkhorn"]
    assert all(value is not None and 0 <= value < 0.5 for value in sinkhorn)
    competitors = [row for row in rows if row.kind is Kind.COMPETITOR]
    assert all(row.gap is None and row.augmentations is None and row.solver is None for row in competitors)


def test_families_sizes_methods_and_stages_can_be_chosen(tmp_path: Path, store: Path, weights: Path) -> None:
    other = write_instances(tmp_path / "other.h5", 12)
    directory = evaluation_directory(
        tmp_path / "run",
        {SIZE: store, 12: other},
        {"small": weights, "large": weights},
        families=["sparse"],
        sizes=[12],
        methods=["row minima", "trained"],
        every_stage=False,
        check_all=False,
    )
    evaluate(directory)
    found = Evaluation.read(directory.path / "evaluation.json")
    assert {(row.family, row.size, row.method) for row in found.measurements} == {
        ("sparse", 12, "row minima"),
        ("sparse", 12, "trained large"),
    }
    assert found.num_checked == {"12": {"sparse": 2}}


def test_every_way_to_search_is_measured_that_is_wanted(tmp_path: Path, store: Path, weights: Path) -> None:
    directory = evaluation_directory(
        tmp_path / "run", {SIZE: store}, {"small": weights}, solvers=["core", "dense", "auto"], families=["uniform"]
    )
    evaluate(directory)
    rows = Evaluation.read(directory.path / "evaluation.json").measurements
    solvers = {(row.method, row.solver) for row in rows}
    assert {("oracle", "core"), ("oracle", "dense"), ("trained small", "dense"), ("scipy", None)} <= solvers
    assert {("column or row minima", "auto"), ("trained small", "auto")} <= solvers


def test_a_stopped_evaluation_goes_on_with_the_next_instance(tmp_path: Path, store: Path, weights: Path) -> None:
    directory = evaluation_directory(tmp_path / "run", {SIZE: store}, {"small": weights})
    evaluate(directory)
    first = Evaluation.read(directory.path / "evaluation.json")
    assert {path.name for path in directory.parts_path.iterdir()} == {
        f"{SIZE}-{family}-{index:08d}.json" for family, start in (("uniform", 0), ("sparse", 3)) for index in
        range(start, start + 3)
    }  # fmt: skip
    (directory.parts_path / f"{SIZE}-sparse-00000004.json").unlink()  # as if it had been killed while at work on this
    run_evaluation(directory.read_spec(), directory)
    second = Evaluation.read(directory.path / "evaluation.json")
    changed = {
        (new.family, new.instance)
        for old, new in zip(first.measurements, second.measurements, strict=True)
        if old.milliseconds != new.milliseconds  # taken again
    }
    assert changed == {("sparse", 4)}
    assert second.num_checked == first.num_checked


def test_a_job_that_ends_soon_pauses_the_stage_after_what_is_done(
    tmp_path: Path, store: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = evaluation_directory(tmp_path / "run", {SIZE: store}, {"small": weights})
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 5.0))
    outcome = run_evaluation(directory.read_spec(), directory)
    assert isinstance(outcome, Paused)
    assert "0 of 6 instances are done" in outcome.reason
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 500.0))
    assert isinstance(run_evaluation(directory.read_spec(), directory), Finished)


@pytest.mark.parametrize("place", [0, 2])  # a measured instance, and one that is checked alone
def test_an_answer_that_disagrees_with_the_label_fails_the_stage(tmp_path: Path, weights: Path, place: int) -> None:
    records = [label(generate("uniform", SIZE, seed)) for seed in range(3)]
    wrong = records[place]
    # A worse matching, labelled with its true cost and with duals that do not prove it.
    columns = np.roll(wrong.columns, 1)
    cost = float(wrong.cost[wrong.rows, columns].sum())
    records[place] = replace(wrong, columns=columns, optimum=cost)
    write_store(tmp_path / "wrong.h5", records)
    directory = evaluation_directory(tmp_path / "run", {SIZE: tmp_path / "wrong.h5"}, {"small": weights})
    with pytest.raises(CertificateError, match=f"instance {place} "):
        run_evaluation(directory.read_spec(), directory)
    assert not (directory.path / "evaluation.json").exists()


def test_a_stage_without_test_instances_says_what_it_has(tmp_path: Path, store: Path, weights: Path) -> None:
    directory = evaluation_directory(tmp_path / "a", {}, {"small": weights})
    with pytest.raises(StageInputError, match="the spec has: weights-small"):
        run_evaluation(directory.read_spec(), directory)
    directory = evaluation_directory(tmp_path / "b", {SIZE: store}, {"small": weights}, families=["metric"])
    with pytest.raises(StageInputError, match=r"correct evaluation\.families"):
        run_evaluation(directory.read_spec(), directory)
    directory = evaluation_directory(tmp_path / "c", {SIZE: store}, {"small": weights}, repeat=3)
    with pytest.raises(ConfigurationError, match="did you mean 'repeats'"):
        run_evaluation(directory.read_spec(), directory)


def test_results_of_a_run_are_collected_from_all_seeds(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", sizes=(20,))
    results = collect_results(OutputDirectory(run))
    assert results == LapResults.read(run / "results.json")
    assert results.seeds == [0, 1]
    assert results.preset == "quick"
    assert results.final_method == "trained mid_2048"
    verdicts = [group.verdict for group in results.groups]
    assert all(verdict is not None and set(verdict.ratio_of_seeds) == {"0", "1"} for verdict in verdicts)

    index = OutputDirectory(run).read_index()
    training = [record for record in index.stages if record.stage != "evaluation"]
    OutputDirectory(run).write_index(index.model_copy(update={"stages": training}))
    with pytest.raises(RunError, match="no evaluation stage has finished"):
        collect_results(OutputDirectory(run))
    shutil.rmtree(run)


@pytest.mark.parametrize("family", ["uniform", "sparse", "metric", "tie"])
@pytest.mark.parametrize("solver", ["core", "dense"])
def test_every_method_answers_rightly(family: str, solver: str) -> None:
    record = label(generate(family, 60, 5))
    problem = Problem("p", record.cost, record.mask, record.u, record.v, record.optimum)
    methods = baselines(METHODS, (solver,), {})  # type: ignore[arg-type]
    assert {"scipy", "column or row minima", "Sinkhorn", "oracle"} <= {method.name for method in methods}
    for method in methods:
        answer = method.call(problem, method.ready(problem))
        assert record.cost[answer.rows, answer.columns].sum() == pytest.approx(record.optimum)
        if answer.duals is not None:
            assert bound_of(problem, answer.duals) <= record.optimum + 1e-9


def test_agreement_of_duals_knows_no_gauge_and_the_scale_follows_the_costs() -> None:
    record = label(generate("uniform", 50, 1))
    problem = Problem("p", record.cost, None, record.u, record.v, record.optimum)
    shifted = compare_duals(record.u + 5.0, record.u, 1.0)
    assert shifted == pytest.approx({"u_r2": 1.0, "u_mae": 0.0}, abs=1e-12)
    assert compare_duals(np.ones(3), np.zeros(3), 0.0) == {"u_r2": None, "u_mae": None}  # rows without any spread
    flat = compare_duals(np.zeros(50), record.u, 2.0)
    assert flat["u_r2"] == pytest.approx(0.0, abs=1e-12)
    assert flat["u_mae"] == pytest.approx(np.abs(record.u - record.u.mean()).mean() / 2)
    larger = replace(problem, cost=4.0 * problem.cost + 7.0)
    assert scale_of(larger) == pytest.approx(4.0 * scale_of(problem))
    assert bound_of(problem, column_minima_of(problem)) <= record.optimum
