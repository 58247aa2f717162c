"""An output directory as a training run leaves it, with plausible numbers made through the real API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdgat.can.evaluation.calibration import DecisionRule, false_alarm_rate, mean_over_seeds
from kdgat.can.evaluation.costs import COSTS_FILE, Costs, ModelCost
from kdgat.can.evaluation.embeddings import EMBEDDINGS_FILE, EmbeddingMap, write_map
from kdgat.can.evaluation.metrics import (
    binary_metrics,
    break_down,
    per_recording_metrics,
    precision_recall_curve,
    roc_curve,
    spread_over_seeds,
)
from kdgat.can.evaluation.results import Results
from kdgat.can.evaluation.scores import Scores, ScoreTable, scores_path, write_scores
from kdgat.canbus.features import ATTACK_KINDS
from kdgat.run import OutputDirectory, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.stage import Finished, RunDirectory, StageSpec
from kdgat.stage.provenance import record_attempt

SEEDS = (0, 1, 2)
# How far attacks stand from benign windows, per model; the detector is the curriculum GAT.
MODELS = {
    "autoencoder": 1.5,
    "normal": 9.0,
    "curriculum": 10.0,
    "distill_autoencoder": 1.2,
    "distill_gat": 8.0,
    "fusion_dqn": 9.5,
    "fusion_mlp": 10.0,
    "fusion_average": 9.8,
}
SCENARIOS = {
    "test_01_known_vehicle_known_attack": ("Sonata_DoS", "Soul_Fuzzy"),
    "test_02_unknown_vehicle_known_attack": ("Spark_DoS", "Spark_Fuzzy"),
    "test_03_known_vehicle_unknown_attack": ("Sonata_Malfunction",),
    "attack_free": ("Spark_free",),
}
EPOCHS = 12


def make_scenario(names: tuple[str, ...], num_windows: int, generator: np.random.Generator) -> dict[str, Any]:
    """Labels, recordings and times: attacks come in campaigns with pauses."""
    recording = np.repeat(np.arange(len(names)), num_windows).astype(np.int32)
    second = np.tile(np.arange(num_windows) * 0.05, len(names))
    attacked = (second % 20 > 12) & (generator.random(second.size) < 0.98)
    label = np.where([names[index].endswith("free") for index in recording], 0, attacked).astype(np.int8)
    return {"recording": recording, "start_time": second + 1.6e9, "label": label}


def make_output(path: Path, *, num_windows: int = 1500, seeds: tuple[int, ...] = SEEDS) -> Path:
    """Write run.json, stage directories, score files and results.json."""
    generator = np.random.default_rng(11)
    output = OutputDirectory(path)
    rule = DecisionRule(temperature=1.4, bias=-0.2)
    models: dict[str, Any] = {model: {str(seed): {} for seed in seeds} for model in MODELS}
    scenarios, curves = {}, {"detector": {}, **{model: {} for model in MODELS}}
    for scenario, names in SCENARIOS.items():
        truth = make_scenario(names, num_windows, generator)
        label, recording = truth["label"], truth["recording"]
        difficulty = 0.6 if "02" in scenario else 1.0
        for model, distance in MODELS.items():
            members = []
            for seed in seeds:
                noise = generator.normal(0, 1.6, label.size) + generator.normal(0, 0.3)
                members.append(np.where(label == 1, distance * difficulty, 0) - distance / 2 + noise)
                metrics = binary_metrics(rule.calibrated(members[-1]), label, 0.0)
                models[model][str(seed)][scenario] = {
                    **metrics,
                    "recordings": per_recording_metrics(rule.calibrated(members[-1]), label, 0.0, recording, names),
                }
            mean = mean_over_seeds(members)
            curves[model][scenario] = make_curves(mean, label)
            if model == "curriculum":
                probability, decision = rule.apply(mean, recording)
                calibrated = rule.calibrated(mean)
                scenarios[scenario] = {
                    **binary_metrics(calibrated, label, 0.0, decision=decision),
                    "recordings": per_recording_metrics(calibrated, label, 0.0, recording, names),
                    "over_seeds": spread_over_seeds([models[model][str(seed)][scenario] for seed in seeds]),
                    "breakdown": break_down(make_table(truth, calibrated, list(names)), decision),
                    "explanations": make_explanations(),
                }
                curves["detector"][scenario] = make_curves(mean, label)
                write_scores(
                    scores_path(output.path, scenario),
                    Scores(
                        probability=probability.astype(np.float32),
                        recording_names=list(names),
                        attack_count=(label * 20).astype(np.int32),
                        **truth,
                    ),
                )
    write_stages(output, seeds, generator)
    write_map(output.path / EMBEDDINGS_FILE, make_map(generator))
    make_costs().write(output.path / COSTS_FILE)
    benign = generator.random(4000) < 0.002
    Results.model_validate(
        {
            "dataset": "hcrl_example",
            "created": "2026-11-20T12:00:00+00:00",
            "preset": "quick",
            "revision": "0123456789abcdef",
            "seeds": list(seeds),
            "detector": {
                "name": "curriculum GAT, mean of 3 seeds",
                "models": ["curriculum"],
                "seeds": list(seeds),
                "decision": rule.model_dump(),
                "rule": rule.sentence(),
                "false_alarm_rate": false_alarm_rate(benign).model_dump(),
            },
            "scenarios": scenarios,
            "models": models,
            "curves": curves,
            "data": make_data(num_windows),
            "parameter_counts": {
                "autoencoder": 1_710_000,
                "normal": 1_100_000,
                "curriculum": 1_100_000,
                "distill_autoencoder": 86_000,
                "distill_gat": 55_000,
                "fusion_dqn": 32_000,
                "fusion_mlp": 5_100,
                "fusion_average": 4,
            },
            "injection": make_injection(),
        }
    ).write(output.results_path)
    return output.path


def make_explanations() -> dict[str, Any]:
    rates = {"num_windows": 480, "hit_at_1": 0.8125, "hit_at_3": 0.9, "random_at_1": 0.031, "random_at_3": 0.092}
    return {
        "named_by": "curriculum",
        "num_attacked_windows": 500,
        "detector": rates,
        "habits": rates | {"num_windows": 120, "hit_at_1": 0.95},
    }


def make_map(generator: np.random.Generator) -> EmbeddingMap:
    """Two recordings of cars whose names tell which, one that does not tell, and a virtual one."""
    names = np.repeat(["test/Sonata_DoS", "test/Spark_DoS", "test/drive-7", "train/Sonata"], 30)
    return EmbeddingMap(
        model="distill_gat",
        point=generator.normal(size=(120, 2)).astype(np.float32),
        share=np.array([0.41, 0.23]),
        recording=names,
        kind=np.tile([0, 1, ATTACK_KINDS.index("suppression")], 40).astype(np.int8),
        is_virtual=names == "train/Sonata",
    )


def make_costs() -> Costs:
    cost = ModelCost(
        num_parameters=55_000, num_bytes=231_000, median_ms=0.75, percentile_99_ms=1.25, windows_per_second=4321.0
    )
    models = {"normal": cost, "distill_gat": cost}
    return Costs(device="a processor", seed=0, num_single=300, batch_size=128, models=models)


def make_table(truth: dict[str, Any], logits: np.ndarray, names: list[str]) -> ScoreTable:
    """Return the scores as the evaluation keeps them; every attack is of one kind and of many messages."""
    label = truth["label"]
    nothing = np.zeros(label.size, bool)
    return ScoreTable(
        scores={"curriculum": logits.astype(np.float32), "habits": np.full(label.size, -1.0, np.float32)},
        end_time=truth["start_time"] + 0.05,
        attack_count=(label * 20).astype(np.int32),
        kind=(label * ATTACK_KINDS.index("dos")).astype(np.int8),
        recording_names=names,
        is_virtual=nothing,
        is_learned=nothing,
        **truth,
    )


def make_curves(score: np.ndarray, label: np.ndarray) -> dict[str, Any]:
    return {"roc": roc_curve(score, label), "precision_recall": precision_recall_curve(score, label)}


def make_data(num_windows: int) -> dict[str, Any]:
    recordings = [
        {
            "name": name,
            "scenario": scenario,
            "role": "test",
            "num_messages": num_windows * 100,
            "num_windows": num_windows,
            "num_attack_windows": num_windows // 3,
        }
        for scenario, names in SCENARIOS.items()
        for name in names
    ]
    recordings.append({"name": "Sonata_DoS_2", "scenario": "train_01", "role": "train", "duplicate_of": "Sonata_DoS"})
    return {
        "num_messages": 1_908_595,
        "num_windows": 19_085,
        "num_attack_windows": 5_012,
        "num_dropped_duplicates": 1,
        "num_bad_rows": 2,
        "bad_rows": ["Sonata_DoS.csv:17: 9 bytes, at most 8", "Sonata_DoS.csv:18: no time stamp"],
        "splits": {
            "train": {"num_windows": 9000, "num_attack_windows": 2100, "num_messages": 900_000},
            "validation": {"num_windows": 2000, "num_attack_windows": 480, "num_messages": 200_000},
            "injected": {"num_windows": 6000, "num_attack_windows": 3300, "num_messages": 600_000},
        },
        "recordings": recordings,
        "window": {"messages": 100, "stride": 100},
    }


def make_injection() -> dict[str, Any]:
    kinds = ("spoofing", "denial_of_service", "fuzzing", "replay", "suppression", "sparse_messages")
    return {
        "enabled": True,
        "seed": 7,
        "num_virtual_vehicles": 24,
        "num_windows": 6000,
        "num_attack_windows": 3300,
        "attacks": {
            kind: {"num_windows": 900 - 130 * row, "num_messages": 20_000 - 3000 * row, "num_recordings": 60 - 7 * row}
            for row, kind in enumerate(kinds)
        },
        "diversity": {"jitter": 14, "dropped_identifiers": 9, "two_buses": 4},
    }


def write_stages(output: OutputDirectory, seeds: tuple[int, ...], generator: np.random.Generator) -> None:
    records = []
    stages = [("prepare", "shared", 0)]
    for seed in seeds:
        stages += [(stage, "large", seed) for stage in ("autoencoder", "normal", "curriculum")]
        stages += [("distill_gat", "small", seed), ("fusion", "large", seed)]
    for stage, scale, seed in stages:
        spec = StageSpec(family="can", stage=stage, scale=scale, seed=seed, config={"seed": seed}, inputs={})
        name = f"{stage}-{scale}-seed{seed}"
        folder = f"stages/{name}-{spec.identity()[:8]}"
        directory = RunDirectory(output.path / folder).create(spec)
        record_attempt(directory.provenance_path)
        fits = {"prepare": (), "fusion": ("dqn", "mlp")}.get(stage, ("",))
        for fit in fits:
            for epoch in range(EPOCHS):
                loss = 0.6 * np.exp(-0.4 * epoch) + 0.02
                row = {
                    "epoch": epoch,
                    "step": 60 * (epoch + 1),
                    "learning_rate": 0.002,
                    "train_loss": loss * generator.uniform(0.9, 1.1),
                    "validation_loss": (loss + 0.01) * generator.uniform(0.9, 1.2),
                    "validation_node_loss": loss / 3,
                    "validation_f1": float(1 - loss / 2),
                    "is_best": epoch in (0, 3, 8),
                }
                if stage == "curriculum":
                    row |= {"curriculum_ratio": 1.0 + 0.25 * epoch, "curriculum_percentile": 50.0 + 3 * epoch}
                directory.append_metrics({"fit": fit, **row} if fit else row)
        epochs = {"epochs": float(EPOCHS)} if fits == ("",) else {}
        directory.write_outcome(Finished(metrics=epochs))
        records.append(
            StageRecord(
                name=name,
                stage=stage,
                scale=scale,
                seed=seed,
                directory=folder,
                identity=spec.identity(),
                state=StageState.FINISHED,
                attempts=1,
            )
        )
    config = {"dataset": "hcrl_example", "seeds": list(seeds), "window": {"messages": 100, "stride": 100}}
    output.write_index(RunIndex(family="can", config=config, stages=records))


@pytest.fixture(scope="session")
def example_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests that change it copy it first."""
    return make_output(tmp_path_factory.mktemp("run"))
