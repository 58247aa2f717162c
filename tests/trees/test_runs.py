"""Whole runs in this process: drawn trees, folders with classes, with numbers and without either, and transfer."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kdgat
from kdgat.graphs import GraphStore, TensorColumns
from kdgat.run import FinishedRun, OutputDirectory, RunError, run_locally
from kdgat.stage import StageInputError
from kdgat.training import load_weights
from kdgat.trees.config import TreesConfig
from kdgat.trees.evaluation.downstream import plane
from kdgat.trees.evaluation.results import TreesResults
from kdgat.trees.family import FAMILY
from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.models.encoder import TreeEncoder, pool
from kdgat.trees.sections import EncoderConfig
from kdgat.trees.training.pretraining import PretrainedTrees
from tests.trees.small_runs import small_config, write_braids, write_folder

CLASSES = "data.classes=[reference, angle, pruning]"
SHORT = ("training={max_epochs: 1, batch_size: 8, patience: null}", "label_fractions=[1.0]", "order.warmup_epochs=0")
ONCE = ("prepare", "pretrain-seed0", "finetune-seed0", "scratch-seed0", "gin-seed0", "evaluation-seed0")
NUM_FILES = 14


def run(config: TreesConfig, path: Path) -> TreesResults:
    """Run all stages, and see that results can be written, read, and told."""
    planned = FAMILY.plan(config)
    finished = run_locally(planned, path)
    assert list(finished) == [one.name for one in planned.plan], OutputDirectory(path).read_index()
    results = FAMILY.collect(OutputDirectory(path))
    assert isinstance(results, TreesResults)
    assert TreesResults.read(path / "results.json") == results
    assert "NaN" not in (path / "results.json").read_text()
    for table in FAMILY.tables(results):
        header, rows = table.texts
        assert rows
        assert {len(row) for row in rows} == {len(header)}
    assert FAMILY.conclusions(results)
    assert all(sentence and "nan" not in sentence for sentence in FAMILY.conclusions(results))
    json.loads((path / "results.json").read_text())
    return results


def stages(path: Path) -> tuple[str, ...]:
    return tuple(record.name for record in OutputDirectory(path).read_index().stages)


@pytest.fixture(scope="module")
def neurons(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TreesResults]:
    path = tmp_path_factory.mktemp("neurons")
    return path, run(small_config(CLASSES, *SHORT), path)


def test_drawn_trees_are_pretrained_on_and_told_apart(neurons) -> None:
    path, results = neurons
    assert stages(path) == ONCE
    assert {row.method for row in results.scores} == {
        "linear probe", "kNN", "linear probe, untrained encoder", "kNN, untrained encoder",
        "random forest on morphometrics", "fine-tuned", "from scratch", "GIN",
    }  # fmt: skip
    assert {"length", "angle", "count", "total"} <= {row.channel for row in results.growth}
    assert {row.method for row in results.growth if row.channel == "length"} >= {"pretrained", "optimum"}
    for row in results.order:
        assert 0.0 <= row.auc.mean <= 1.0
    optimum = next(row for row in results.growth if (row.channel, row.method) == ("length", "optimum"))
    for row in results.growth:
        if row.channel == "length":
            assert row.loss.mean >= optimum.loss.mean - 0.02


def test_a_pretraining_takes_the_memory_that_is_predicted(neurons) -> None:
    memory = neurons[1].memory
    assert memory.where == "torch's tensors on the CPU"
    assert memory.predicted_bytes == pytest.approx(memory.measured_bytes, rel=0.15)


def test_no_baseline_of_the_order_is_better_than_knowing_the_depth_of_turned_pairs(neurons) -> None:
    """An ancestor stands above its descendant: depth alone is never wrong about a turned pair."""
    depth = next(row for row in neurons[1].order if row.method == "depth alone")
    assert depth.auc.mean > depth.auc_not_turned.mean > 0.5


def test_a_finished_run_is_not_run_again(neurons) -> None:
    path, results = neurons
    run_locally(FAMILY.plan(small_config(CLASSES, *SHORT)), path)
    assert {record.state.value for record in OutputDirectory(path).read_index().stages} == {"cached"}
    again = FAMILY.collect(OutputDirectory(path))
    assert (again.growth, again.order, again.scores) == (results.growth, results.order, results.scores)


def test_a_folder_with_classes_is_pretrained_on_and_told_apart(tmp_path: Path) -> None:
    labels = [["basket", "chandelier"][place % 2] for place in range(NUM_FILES)]
    folder = write_folder(tmp_path / "cells", NUM_FILES, {"label": labels})
    results = run(small_config(*SHORT, f"data.data_root={folder}"), tmp_path / "out")
    assert stages(tmp_path / "out") == ONCE
    assert {"fine-tuned", "linear probe"} <= {row.method for row in results.scores}
    assert "optimum" not in {row.method for row in results.growth}


def test_a_folder_without_labels_is_pretrained_on_alone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "cells", NUM_FILES)
    results = run(small_config(*SHORT, f"data.data_root={folder}"), tmp_path / "out")
    assert stages(tmp_path / "out") == ("prepare", "pretrain-seed0", "evaluation-seed0")
    assert results.scores == []
    assert {row.method for row in results.growth} >= {"pretrained"}
    [evaluation] = (tmp_path / "out" / "stages").glob("evaluation-*/evaluation.json")
    assert json.loads(evaluation.read_text())["task"] == "none"


def test_a_number_is_predicted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "cells", NUM_FILES, {"target": [20.0 + place for place in range(NUM_FILES - 2)]})
    results = run(small_config(*SHORT, "label_fractions=[0.5, 1.0]", f"data.data_root={folder}"), tmp_path / "out")
    assert {row.method for row in results.scores} >= {"linear probe", "fine-tuned", "random forest on morphometrics"}
    [evaluation] = (tmp_path / "out" / "stages").glob("evaluation-*/evaluation.json")
    content = json.loads(evaluation.read_text())
    assert (content["task"], content["classes"]) == ("number", [])
    assert all(math.isfinite(row["score"]) and row["error"] >= 0 for row in content["scores"])


def test_networks_with_loops_are_measured_once_however_many_trees_span_them(tmp_path: Path) -> None:
    labels = [["left", "right"][place // 2 % 2] for place in range(NUM_FILES)]
    splits = ["train", "test", "train", "test", "validation", "test", "test"] * 2
    folder = write_braids(tmp_path / "braids", NUM_FILES, {"label": labels, "split": splits})
    overrides = ("encoder.kind=sgmp", "data.reading.spanning_trees=3", f"data.data_root={folder}")
    results = run(small_config(*SHORT, *overrides), tmp_path / "out")
    assert results.trees == {"train": 4, "validation": 2, "test": 8}
    assert {"fine-tuned", "linear probe", "kNN"} <= {row.method for row in results.scores}
    [evaluation] = (tmp_path / "out" / "stages").glob("evaluation-*/evaluation.json")
    content = json.loads(evaluation.read_text())
    assert {row["num_labels"] for row in content["scores"]} == {4}
    check_map(tmp_path / "out", content["map"])


def check_map(out: Path, points: Sequence[Mapping[str, Any]]) -> None:
    """Compare places on the map with those of the mean embeddings of each network's trees, embedded one by one."""
    [test] = out.glob("stages/prepare-*/test.h5")
    [path] = out.glob("stages/pretrain-*/weights.safetensors")
    store = GraphStore.open(test)
    weights, description = load_weights(path)
    encoder = TreeEncoder(EncoderConfig(**description["encoder"])).eval()
    encoder.load_state_dict({key[8:]: one for key, one in weights.items() if key.startswith("encoder.")})
    of_network: dict[str, list[np.ndarray]] = {}
    for tree, place in enumerate(np.asarray(store.columns["tree"])):
        batch = TreeBatch.of(TensorColumns.from_columns(store.columns).gather(np.array([tree])))
        with torch.no_grad():
            found = pool(encoder(batch).both, batch)[0].double().numpy()
        of_network.setdefault(store.attributes["trees"][place], []).append(found)
    assert sorted({len(rows) for rows in of_network.values()}) == [1, 3]
    places = plane(np.stack([np.mean(rows, axis=0) for rows in of_network.values()]))
    expected = dict(zip(of_network, places, strict=True))
    assert sorted(point["name"] for point in points) == sorted(expected)
    for point in points:  # axes have no sign
        assert (abs(point["x"]), abs(point["y"])) == pytest.approx(tuple(abs(expected[point["name"]])), abs=1e-3)


def test_one_of_several_numbers_must_be_chosen(tmp_path: Path) -> None:
    columns = {"target_age": range(NUM_FILES), "target_dose": range(NUM_FILES)}
    folder = write_folder(tmp_path / "cells", NUM_FILES, columns)
    with pytest.raises(ValueError, match="target_age, target_dose: choose one by"):
        FAMILY.plan(small_config(f"data.data_root={folder}"))
    with pytest.raises(ValueError, match="unknown key 'target_does': did you mean 'target_dose'"):
        FAMILY.plan(small_config(f"data.data_root={folder}", "data.target=target_does"))
    assert FAMILY.plan(small_config(f"data.data_root={folder}", "data.target=target_dose")).plan


def test_an_encoder_of_neurons_is_used_on_rivers(neurons, tmp_path: Path) -> None:
    rivers = (*SHORT, "data.kind=rivers", f"start_from={neurons[0]}")
    results = run(small_config(*rivers), tmp_path)
    assert stages(tmp_path) == tuple(name for name in ONCE if not name.startswith("pretrain"))
    assert {row.method for row in results.growth if row.channel == "length"} >= {"pretrained", "optimum"}
    [finetune] = (tmp_path / "stages").glob("finetune-*/spec.json")
    [pretrained] = (neurons[0] / "stages").glob("pretrain-*/weights.safetensors")
    assert json.loads(finetune.read_text())["inputs"]["start"]["path"] == str(pretrained)


def test_a_single_pretraining_serves_all_seeds_and_of_several_each_its_own(neurons, tmp_path: Path) -> None:
    start = f"start_from={neurons[0]}"
    assert FAMILY.plan(small_config(CLASSES, *SHORT, start, "seeds=[0, 7]")).plan
    index = OutputDirectory(neurons[0]).read_index()
    (pretrained,) = [record for record in index.stages if record.stage == "pretrain"]
    two = index.model_copy(update={"stages": [pretrained, pretrained.model_copy(update={"seed": 1})]})
    OutputDirectory(tmp_path).write_index(two)
    with pytest.raises(
        StageInputError, match="has pretrained with the seeds 0, 1, none with 7: take --seeds from these"
    ):
        FAMILY.plan(small_config(CLASSES, *SHORT, f"start_from={tmp_path}", "seeds=[7]"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("encoder.hidden=16", "encoder.hidden is 16 and was 8"),
        ("encoder.kind=sgmp", "encoder.kind is sgmp and was gtmp"),
    ],
)
def test_weights_of_another_encoder_are_refused_before_anything_runs(neurons, override: str, words: str) -> None:
    with pytest.raises(StageInputError, match=words):
        FAMILY.plan(small_config(CLASSES, *SHORT, f"start_from={neurons[0]}", override))


def test_how_gradients_were_computed_is_no_other_encoder(neurons) -> None:
    assert FAMILY.plan(small_config(CLASSES, *SHORT, f"start_from={neurons[0]}", "encoder.recompute=true")).plan


def test_what_changes_no_result_trains_nothing_anew(neurons) -> None:
    other = small_config(CLASSES, *SHORT, "encoder.recompute=true")
    run_locally(FAMILY.plan(other), neurons[0])
    assert {record.state.value for record in OutputDirectory(neurons[0]).read_index().stages} == {"cached"}


def test_what_is_no_run_is_refused_before_anything_runs(neurons, tmp_path: Path) -> None:
    with pytest.raises(StageInputError, match="no run and no weights are there"):
        FAMILY.plan(small_config(f"start_from={tmp_path}"))
    with pytest.raises(RunError, match="is --out itself"):
        FAMILY.plan_into(small_config(CLASSES, *SHORT, f"start_from={neurons[0]}"), neurons[0])


def test_its_networks_are_loaded_as_they_were_trained(neurons: tuple[Path, TreesResults]) -> None:
    pretrained = kdgat.load_model(neurons[0])
    assert isinstance(pretrained, PretrainedTrees)
    assert not pretrained.training
    run = FinishedRun(OutputDirectory(neurons[0]))
    for record in run.records():
        for name in run.outcome(record).artifacts:
            if name.startswith("weights"):
                network = kdgat.load_model(neurons[0], stage=record.name, artifact=name)
                stored = load_weights(run.artifact(record, name))[0]
                assert all(torch.equal(one, stored[key]) for key, one in network.state_dict().items())
