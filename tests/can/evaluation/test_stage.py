"""From trained stages to results: the whole way on planted windows, for two seeds."""

from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.can.evaluation.costs import COSTS_FILE, Costs
from kdgat.can.evaluation.decision import choose_detector, judged_windows
from kdgat.can.evaluation.detectors import DetectorSet
from kdgat.can.evaluation.embeddings import EMBEDDINGS_FILE, read_map
from kdgat.can.evaluation.measurements import collect_results
from kdgat.can.evaluation.results import Results
from kdgat.can.evaluation.scores import ScoreTable, read_scores, read_table, scores_path
from kdgat.can.sections import EvaluationConfig
from kdgat.run import OutputDirectory, RunError, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.stage import Finished, RunDirectory, StageInput
from kdgat.stage.runner import run_stage
from tests.can.stage_inputs import FAST, SMALL_AUTOENCODER, SMALL_GAT, STORES, make_stage, make_stores

SEEDS = (0, 1)
TRAINING = FAST | {"max_epochs": 10}


def run_all(output: OutputDirectory, stores: dict[str, StageInput]) -> None:
    """Run autoencoder, normal, fusion and evaluation for each seed and write `run.json`."""
    records = []
    for seed in SEEDS:
        weights: dict[str, Path] = {}

        def run(stage: str, config: dict, seed: int = seed, **inputs: Path) -> Path:
            name = f"{stage}-large-seed{seed}"
            directory = make_stage(output.stages_path / name, stage, config, stores, seed, **inputs)
            assert isinstance(run_stage(directory, quiet=True), Finished)
            record = StageRecord(
                name=name, stage=stage, scale="large", seed=seed, directory=f"stages/{name}", state=StageState.FINISHED
            )
            records.append(record)
            return directory.weights_path

        weights["autoencoder"] = run("autoencoder", {"autoencoder": SMALL_AUTOENCODER, "training": FAST})
        weights["normal"] = run("normal", {"gat": SMALL_GAT, "training": TRAINING})
        fusion = {"fusion": {"dqn_hidden": [16], "block": 8}, "training": {"max_epochs": 3, "accelerator": "cpu"}}
        weights["fusion"] = run("fusion", fusion, autoencoder=weights["autoencoder"], gat=weights["normal"])
        run("evaluation", {}, **weights)
    output.write_index(RunIndex(family="can", config={"data": {"dataset": "planted"}}, stages=records))


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> OutputDirectory:
    output = OutputDirectory(tmp_path_factory.mktemp("run"))
    run_all(output, make_stores(tmp_path_factory.mktemp("stores")))
    return output


@pytest.fixture(scope="module")
def results(output: OutputDirectory) -> Results:
    return collect_results(output)


def test_every_model_is_measured_on_every_scenario_by_all_its_windows(results: Results) -> None:
    models = {
        "autoencoder",
        "normal",
        "fusion",
        "fusion_weighted_average",
        "fusion_mlp",
        "fusion_dqn",
        "ensemble",
        "habits",
    }
    assert set(results.models) == models
    for by_seed in results.models.values():
        assert set(by_seed) == {"0", "1"}
        for scenarios in by_seed.values():
            assert set(scenarios) == {"validation", "test_01_known", "test_02_clean"}
            assert scenarios["test_01_known"].num_windows == STORES["test-test_01_known"][0]
            assert scenarios["validation"].num_windows == 64  # of 120, those that no fusion has learned from


def test_the_default_detector_is_the_mean_of_the_seeds(results: Results, output: OutputDirectory) -> None:
    assert results.detector.seeds == [0, 1]
    assert results.seeds == [0, 1]
    assert results.detector.models == ["ensemble (mean of normal)"]
    scenario = results.scenarios["test_01_known"]
    assert scenario.auc is not None
    assert scenario.auc > 0.95
    assert scenario.over_seeds["f1"].count == 2
    assert set(scenario.recordings) == {"first", "second"}
    assert results.scenarios["test_02_clean"].f1 is None
    assert results.detector.false_alarm_rate is not None
    assert "virtual vehicles" in results.detector.false_alarm_rate.sentence


def test_results_and_scores_are_written_and_agree(results: Results, output: OutputDirectory) -> None:
    assert Results.read(output.results_path) == results
    scores = read_scores(scores_path(output.path, "test_01_known"))
    assert len(scores.probability) == 50
    assert scores.decision is not None
    hits = np.count_nonzero(scores.decision & (scores.label == 1))
    assert results.scenarios["test_01_known"].confusion_matrix[1][1] == hits


def test_curves_and_counts_of_every_stage_are_collected(results: Results) -> None:
    assert {"autoencoder-large", "normal-large", "fusion-large-dqn"} <= set(results.parameter_counts)
    assert len(results.training_curves["normal-large-seed0"]["validation_loss"]) == 10
    assert {"fusion-large-seed1 mlp", "fusion-large-seed1 dqn"} <= set(results.training_curves)


def test_test_labels_have_no_part_in_the_decision(output: OutputDirectory, results: Results) -> None:
    """Turning every test label round changes the measures, not one decision."""
    for seed in SEEDS:
        path = output.stages_path / f"evaluation-large-seed{seed}" / "scores-test-test_01_known.npz"
        hashes = RunDirectory(path.parent).hashes_path
        original, noted = path.read_bytes(), hashes.read_bytes()
        hashes.unlink()  # it has this file as it was
        with np.load(path) as file:
            columns = {name: file[name] for name in file.files}
        np.savez(path, **(columns | {"label": 1 - columns["label"]}))
        try:
            before = read_scores(scores_path(output.path, "test_01_known"))
            turned = collect_results(output)
            after = read_scores(scores_path(output.path, "test_01_known"))
        finally:
            path.write_bytes(original)
            hashes.write_bytes(noted)
        np.testing.assert_array_equal(before.decision, after.decision)
        np.testing.assert_array_equal(before.probability, after.probability)
        assert turned.detector == results.detector
    collect_results(output)


def test_a_model_can_be_asked_for_and_seeds_kept_apart(output: OutputDirectory) -> None:
    chosen = collect_results(output, EvaluationConfig(detector="fusion_dqn", average_seeds=False))
    assert len(chosen.detector.seeds) == 1
    assert "dqn of autoencoder and normal" in chosen.detector.models[0]
    with pytest.raises(ValueError, match="nonsense was not trained"):
        collect_results(output, EvaluationConfig(detector="nonsense"))
    collect_results(output)


def test_a_fusion_is_never_given_other_members(output: OutputDirectory) -> None:
    stages = output.stages_path
    mixed = {
        "autoencoder": stages / "autoencoder-large-seed1" / "weights.safetensors",
        "normal": stages / "normal-large-seed0" / "weights.safetensors",
        "fusion": stages / "fusion-large-seed0" / "weights.safetensors",
    }
    with pytest.raises(UserError, match="trained on other weights"):
        DetectorSet(mixed)


def test_scores_do_not_depend_on_the_other_windows_of_a_batch(output: OutputDirectory) -> None:
    """A table holds what each window gets by itself: the first windows of a store score the same without the rest."""
    from kdgat.can.data.pool import PooledStores
    from kdgat.can.models.scoring import load_attention, score_network
    from kdgat.graphs import GraphStore

    directory = RunDirectory(output.stages_path / "evaluation-large-seed0")
    table = read_table(directory.path / "scores-test-test_01_known.npz")
    spec = directory.read_spec()
    pool = PooledStores([GraphStore.open(spec.inputs["test-test_01_known"].path).columns])
    model, _ = load_attention(Path(spec.inputs["normal"].path))
    alone = score_network(model, pool, np.array([3, 1, 2]))["logit"]
    np.testing.assert_allclose(alone, table.scores["normal"][[3, 1, 2]], rtol=1e-4, atol=1e-5)


def test_an_unfinished_run_says_what_to_do(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    with pytest.raises(RunError, match=r"run\.json is missing"):
        collect_results(output)
    output.write_index(RunIndex(family="can", config={}, stages=[]))
    with pytest.raises(RunError, match="no evaluation stage has finished"):
        collect_results(output)


def test_models_are_compared_on_windows_that_no_fusion_has_learned_from(output: OutputDirectory) -> None:
    table = read_table(output.stages_path / "evaluation-large-seed0" / "scores-validation.npz")
    assert 0 < table.is_learned.sum() < table.num_windows
    judged = judged_windows(table)
    assert not judged.is_learned.any()
    np.testing.assert_array_equal(judged.scores["fusion"], table.scores["fusion"][~table.is_learned])
    perfect = {"normal": judged.label * 4.0 - 2.0, "fusion": judged.label * 4.0 - 2.0}
    scores = {name: np.where(table.label == 1, -2.0, 2.0) for name in perfect}  # wrong where a fusion has learned
    for name, values in perfect.items():
        scores[name][~table.is_learned] = values
    scores["habits"] = table.scores["habits"]
    scores["fusion"][table.is_learned] = table.label[table.is_learned] * 4.0 - 2.0  # right everywhere
    config = EvaluationConfig(detector="auto", candidates=("normal", "fusion"), calibration="none")
    default_detector = choose_detector({0: ScoreTable(**{**vars(table), "scores": scores})}, config)
    assert default_detector.model == "normal"  # equal where it counts, and simpler


def test_models_are_measured_and_windows_mapped_beside_the_results(output: OutputDirectory, results: Results) -> None:
    costs = Costs.read(output.path / COSTS_FILE)
    assert set(costs.models) == {"autoencoder", "normal", "fusion"}
    assert costs.device
    assert costs.models["normal"].num_parameters == results.parameter_counts["normal-large"]
    for name, cost in costs.models.items():
        weights = output.stages_path / f"{name}-large-seed0" / "weights.safetensors"
        assert cost.num_bytes == weights.stat().st_size
        assert 0.0 < cost.median_ms <= cost.percentile_99_ms
        assert cost.windows_per_second > 0.0
    found = read_map(output.path / EMBEDDINGS_FILE)
    assert found.model == "normal"
    assert len(found.point) == sum(size for name, (size, _) in STORES.items() if name not in ("train", "injected"))
