"""The files by which processes of kdgat talk to each other, and those that people write: sites, catalogs, settings."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from kdgat.base.configuration import apply_overrides
from kdgat.base.hashes import KnownHashes
from kdgat.can.evaluation.vehicle import thresholds_of
from kdgat.canbus.catalog import load_catalog
from kdgat.canbus.profile import Profile
from kdgat.cli.display import PlainWatcher
from kdgat.cluster import AttemptLedger, AttemptRecord, Resources
from kdgat.cluster.attendance import read_connection
from kdgat.cluster.child import read_progress
from kdgat.cluster.report import NodeReport, parse_report
from kdgat.cluster.site import read_site
from kdgat.cluster.usage import Asked, Usage, read_usages
from kdgat.family import find_family, read_config, read_summary
from kdgat.family.report import family_of
from kdgat.family.summary import grouped
from kdgat.lap.training.start import last_weights
from kdgat.registry import Registry
from kdgat.run import OutputDirectory, StageRecord, StageState
from kdgat.run.attempts import attempt_rows
from kdgat.run.directory import RunIndex
from kdgat.run.progress import describe_progress, fraction_done
from kdgat.stage import Failed, FailureKind, Finished, Paused, RunDirectory, StageInput, StageSpec, Work
from kdgat.stage.outcome import EXIT_ENVIRONMENT
from kdgat.stage.owner import own, read_owner
from kdgat.stage.provenance import code_difference, note_in_attempt, record_attempt
from kdgat.stage.runner import run_stage
from kdgat.stage.work import FitWork
from kdgat.training.batch_size.search import read_decision
from kdgat.training.checkpoints import Checkpoints
from kdgat.training.weights import read_arrays, read_weights, save_weights
from tests.fuzz.inputs import damaged, damaged_json
from tests.fuzz.target import Target, check_sentence, quiet, read_or_refuse
from tests.support.command_line import kdgat

HASH = "0" * 64
SPEC = StageSpec(
    family="lap",
    stage="prepare",
    seed=0,
    config={"size": 8, "data": {"seed": 1}},
    inputs={"train": StageInput(path="../x.h5", sha256=HASH)},
).model_dump(mode="json")
OUTCOMES = [
    Finished(metrics={"f1": 0.5}, artifacts={"weights": "weights.safetensors", "results": "results.json"}),
    Paused(checkpoint="checkpoints/checkpoint-00000001.pt", reason="SIGTERM received", needed_s=3.0),
    Failed(kind=FailureKind.BAD_INPUT, evidence="a sentence"),
]
RESOURCES = Resources(walltime_s=3600, memory_mib=1024, cores=2)
ATTEMPTS = [
    AttemptRecord(
        number=1,
        resources=RESOURCES,
        job_id="17",
        submitted=1.0,
        started=2.0,
        ended=9.0,
        end="Paused",
        made_progress=True,
    ),
    AttemptRecord(number=2, end="ProcessKilled", signal=9, next_resources=RESOURCES, next_excluded_nodes=("n1",)),
]
USAGES = [
    [
        Usage(
            time=1.0,
            run="a",
            family="can",
            stage="normal",
            device="cpu",
            asked=Asked(walltime_s=60, memory_mib=9, cores=1),
        ).model_dump(mode="json"),
        Usage(time=2.0, run="b", family="can", stage="normal", device="cpu", end="Completed").model_dump(mode="json"),
    ]
]
WORK = Work(started=1.0, fits={"": FitWork(done=3, left=2, seconds=1.5)}, size={"bytes": 100})
PROGRESS = [
    {
        "phase": "train",
        "epoch": 1,
        "max_epochs": 3,
        "step": 4,
        "num_steps": 10,
        "loss": 0.5,
        "graphs_per_s": 10.0,
        "seconds_to_deadline": 60.0,
        "gpu_allocated_bytes": 1,
        "gpu_reserved_bytes": 2,
        "gpu_free_bytes": 3,
    },
    {"done": 3, "total": 9},
]
PROVENANCE = {
    "attempts": [{"git": {"revision": "a" * 40, "dirty": True}, "packages": {"torch": "2.13.0"}, "host": "n1"}]
}
INDEX = RunIndex(
    family="can",
    config={"preset": "quick", "seeds": [0], "data": {"dataset": "x"}, "resources": {}},
    stages=[
        StageRecord(
            name="prepare", stage="prepare", scale="shared", seed=0, directory="stages/a", state=StageState.FINISHED
        ),
        StageRecord(
            name="normal-large-seed0",
            stage="normal",
            scale="large",
            seed=0,
            depends_on=["prepare"],
            message="ERROR: a\nb",
        ),
    ],
).model_dump(mode="json")
BATCHES = {"mode": "tuner", "unit": "graphs", "found": 9, "factor": 0.5, "size": 4, "epoch": 0, "num_batches": 2}
SITES = [
    {
        "name": "own",
        "scheduler": "slurm",
        "partition": "batch",
        "limits": {"walltime": "16:00:00", "jobs": 3},
        "defaults": {"memory": "8G"},
    },
    {"scheduler": "local"},
]
CATALOGS = [
    {"cars": {"description": "mine", "train_scenarios": ["train_*"], "vehicles": {"ford": "f-?150"}, "windows": 7}}
]
CONFIGS = [
    {"preset": "quick", "seeds": [0, 1], "training": {"max_epochs": 2}, "data": {"dataset": "x", "data_root": "data"}}
]
OVERRIDES = (
    "training.max_epochs=2",
    "seeds=[0, 1]",
    "data.seed=-1",
    "training.learning_rate=inf",
    "injection.attack_weights.dos=-1",
    "resources.normal.walltime=16:00:00",
    "evaluation.models=[normal]",
    "gat.hidden=64",
    "stages=[prepare]",
)


def _file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], None]:
    """Return a check that writes an input under a name in the folder and reads it."""

    def check(folder: Path, data: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        read_or_refuse(folder, lambda: read(path))

    return check


def _json(
    name: str, share: int, file: str, samples: list[Any], read: Callable[[Path], object], *, lines: bool = False
) -> Target:
    return Target(name, share, lambda: damaged_json(samples, lines=lines), _file(file, read))


def _read_spec(path: Path) -> None:
    spec = RunDirectory(path.parent).read_spec()
    assert spec.identity() == StageSpec.model_validate_json(spec.model_dump_json()).identity()
    spec.movable(path.parent, path.parent.parent)


def _show_progress(path: Path) -> None:
    content = read_progress(RunDirectory(path.parent))
    if content:
        assert 0.0 <= fraction_done(content) <= 1.0
        describe_progress(content)


def _show_run(path: Path) -> None:
    """Look at a run as the display of `train` does while its files are written."""
    output = OutputDirectory(path.parent)
    from rich.console import Console

    watcher = PlainWatcher(output, Console(quiet=True))
    watcher.look()
    watcher.close()


def _read_index(path: Path) -> None:
    index = OutputDirectory(path.parent).read_index()
    for record in index.stages:
        assert "\n" not in record.reason
    attempt_rows(OutputDirectory(path.parent))


def _check_summary(folder: Path, drawn: tuple[bytes, bytes, bytes]) -> None:
    """Summarise a run of which index, outcome and provenance may be damaged."""
    index, outcome, provenance = drawn
    stage = folder / "stages" / "a"
    stage.mkdir(parents=True)
    (folder / "run.json").write_bytes(index)
    (stage / "outcome.json").write_bytes(outcome)
    (stage / "provenance.json").write_bytes(provenance)
    (stage / "spec.json").write_text(json.dumps(SPEC))
    read_or_refuse(folder, lambda: grouped([read_summary(folder)]))
    read_or_refuse(folder, lambda: family_of(OutputDirectory(folder)))
    read_or_refuse(folder, lambda: last_weights(folder))


def _read_provenance(path: Path) -> None:
    code_difference(path)


def _check_provenance_writers(folder: Path, data: bytes) -> None:
    (folder / "provenance.json").write_bytes(data)
    with quiet():
        note_in_attempt(folder / "provenance.json", num_ranks=2)
        record_attempt(folder / "provenance.json")


def _check_owner(folder: Path, data: bytes) -> None:
    path = folder / "owner.json"
    path.write_bytes(data)
    read_or_refuse(folder, lambda: read_owner(path))
    with quiet(), own(folder / "owner.lock", path) as owner:
        owner.check()


def _read_ledger(path: Path) -> None:
    ledger = AttemptLedger(RunDirectory(path.parent))
    for record in ledger.records:
        record.as_end()
    ledger.left_open()


def _read_hashes(path: Path) -> None:
    KnownHashes(path).find(path)


@cache
def _weights() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        directory = RunDirectory(name)
        return save_weights(directory, torch.nn.Linear(2, 3), {"hidden": 3}, {"epoch": 1}).read_bytes()


def _read_weights(path: Path) -> None:
    read_or_refuse(path.parent, lambda: read_weights(path))
    read_arrays(path)


@cache
def _checkpoint_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        checkpoints = Checkpoints(RunDirectory(name))
        for step in (1, 2):
            checkpoints.write({"step": step, "weights": torch.ones(3)})
        return {path.name: path.read_bytes() for path in sorted(checkpoints.path.iterdir())}


def _checkpoints() -> st.SearchStrategy[tuple[str, bytes]]:
    names = st.sampled_from(sorted(_checkpoint_files()))
    return names.flatmap(lambda name: st.tuples(st.just(name), damaged([_checkpoint_files()[name]])))


def _check_checkpoints(folder: Path, drawn: tuple[str, bytes]) -> None:
    """Load the newest of two checkpoints of which one file is damaged: one of them is there, whole."""
    name, data = drawn
    checkpoints = Checkpoints(RunDirectory(folder))
    checkpoints.path.mkdir()
    for file, content in _checkpoint_files().items():
        (checkpoints.path / file).write_bytes(data if file == name else content)
    with quiet():
        loaded = checkpoints.load_newest()
    assert loaded is not None
    assert loaded[1]["step"] in (1, 2)
    assert loaded[1]["weights"].tolist() == [1, 1, 1]


def _check_stage(folder: Path, data: bytes) -> None:
    """Run what a damaged spec asks for: it fails with a sentence, or is refused; its input is not there."""
    directory = folder / "stages" / "a"
    directory.mkdir(parents=True)
    (directory / "spec.json").write_bytes(data)
    with quiet():
        answer = kdgat("stage", "run", directory, "--quiet")
    assert answer.status in (1, EXIT_ENVIRONMENT), answer
    assert "Traceback" not in answer.stderr
    outcome = RunDirectory(directory).read_outcome()
    assert outcome is None or isinstance(outcome, Failed)
    assert outcome is None or outcome.kind in (FailureKind.BAD_INPUT, FailureKind.ENVIRONMENT), outcome
    assert not list(directory.glob(".*.tmp"))


def _check_finished_stage(folder: Path, data: bytes) -> None:
    """Run a stage that has left a damaged outcome, which must not be taken for the end of it."""
    directory = RunDirectory(folder / "a")
    directory.path.mkdir()
    directory.spec_path.write_text(json.dumps(SPEC))
    directory.outcome_path.write_bytes(data)
    with quiet():
        try:
            outcome = run_stage(directory, quiet=True)
        except ValueError as error:
            assert directory.outcome_path.read_bytes() == data, "a damaged outcome was overwritten"
            check_sentence(str(error))
        else:
            assert isinstance(outcome, Finished | Failed)


def _overrides() -> st.SearchStrategy[str]:
    return damaged([text.encode() for text in OVERRIDES]).map(lambda data: data.decode("utf-8", "replace"))


def _check_override(folder: Path, override: str) -> None:
    for name in ("can", "lap", "trees"):
        family = find_family(name)
        config = family.config.from_preset(
            "quick", {"data": {"dataset": "x", "data_root": "."}} if name == "can" else {}
        )
        read_or_refuse(folder, lambda config=config: apply_overrides(config, [override]))  # type: ignore[misc]


def _read_results(path: Path) -> None:
    for name in ("can", "lap", "trees"):
        read_or_refuse(path.parent, lambda name=name: find_family(name).results.read(path))  # type: ignore[misc]


def _yaml(name: str, share: int, samples: list[Any], read: Callable[[Path], object]) -> Target:
    return Target(name, share, lambda: damaged_json(samples), _file("own.yaml", read))


def _check_registry(folder: Path, data: bytes) -> None:
    (folder / "index.json").write_bytes(data)
    read_or_refuse(folder, lambda: Registry(folder).read())


TARGETS = (
    _json("spec", 60, "a/spec.json", [SPEC], _read_spec),
    _json(
        "outcome",
        60,
        "a/outcome.json",
        [one.model_dump(mode="json") for one in OUTCOMES],
        lambda path: RunDirectory(path.parent).is_finished(),
    ),
    _json("progress", 60, "a/progress.json", PROGRESS, _show_progress),
    _json(
        "attempts",
        60,
        "a/attempts.jsonl",
        [[one.model_dump(mode="json") for one in ATTEMPTS]],
        _read_ledger,
        lines=True,
    ),
    _json("usages", 30, "history/a.jsonl", USAGES, lambda path: read_usages(path.parent), lines=True),
    _json(
        "metrics",
        40,
        "a/metrics.jsonl",
        [[{"epoch": 1, "loss": 0.5}, {"epoch": 2, "fit": "x"}]],
        lambda path: RunDirectory(path.parent).read_metrics(),
        lines=True,
    ),
    _json("run", 60, "run.json", [INDEX], _read_index),
    _json("display", 20, "run.json", [INDEX], _show_run),
    Target(
        "summary",
        40,
        lambda: st.tuples(
            damaged_json([INDEX]),
            damaged_json([one.model_dump(mode="json") for one in OUTCOMES]),
            damaged_json([PROVENANCE]),
        ),
        _check_summary,
    ),
    _json("provenance", 40, "provenance.json", [PROVENANCE], _read_provenance),
    Target("provenance-writers", 10, lambda: damaged_json([PROVENANCE]), _check_provenance_writers),
    Target(
        "owner", 30, lambda: damaged_json([{"token": "a", "pid": 1, "host": "n1", "slurm_job_id": None}]), _check_owner
    ),
    _json("hashes", 30, "a/hashes.json", [{"hashes.json": {"signature": [1, 2, 3, 4], "sha256": HASH}}], _read_hashes),
    _json(
        "work", 30, "a/work.json", [WORK.model_dump(mode="json")], lambda path: RunDirectory(path.parent).read_work()
    ),
    _json(
        "node-report",
        20,
        "a/report.json",
        [
            NodeReport(
                status=0,
                outcome=OUTCOMES[0],
                node="n1",
                stop_reason="",
                checkpoint="",
                made_progress=True,
                peak_memory_mib=1,
                was_oom_killed=False,
                stalled=False,
            ).model_dump(mode="json")
        ],
        lambda path: parse_report(path.read_bytes()),
    ),
    _json(
        "connection",
        10,
        "a/connection.json",
        [{"address": "tls://n1:1", "certificate": "a", "key": "b"}],
        read_connection,
    ),
    _json("batches", 20, "a/batches.json", [BATCHES], lambda path: read_decision(path.parent)),
    Target("weights", 40, lambda: damaged([_weights()]), _file("a/weights.safetensors", _read_weights)),
    Target("checkpoints", 30, _checkpoints, _check_checkpoints),
    Target("stage", 20, lambda: damaged_json([SPEC]), _check_stage),
    Target(
        "finished-stage",
        10,
        lambda: damaged_json([one.model_dump(mode="json") for one in OUTCOMES]),
        _check_finished_stage,
    ),
    _yaml("site", 30, SITES, read_site),
    _yaml("catalog", 30, CATALOGS, load_catalog),
    _yaml("config", 30, CONFIGS, lambda path: _configure(path)),
    Target("override", 40, _overrides, _check_override),
    _json(
        "results",
        30,
        "a/results.json",
        [{"schema_version": 1, "family": "lap", "created": "2026-01-01", "seeds": [0]}],
        _read_results,
    ),
    _json(
        "profile",
        20,
        "a/profile.json",
        [{"schema_version": 1, "drives": [], "networks": [{"created": "x", "detector": "student", "seeds": [0]}]}],
        lambda path: thresholds_of(Profile.read(path)),
    ),
    Target(
        "registry",
        20,
        lambda: damaged_json(
            [{"schema_version": 1, "models": [], "history": [{"model": "a", "time": "2026-01-01T00:00:00Z"}]}]
        ),
        _check_registry,
    ),
)


def _configure(path: Path) -> None:
    """Read a file of settings, and make the configuration of a run of it."""
    for name in ("can", "lap", "trees"):
        family = find_family(name)
        content = read_config(family, path)
        family.config.from_preset("quick", {key: value for key, value in content.items() if key != "preset"})
