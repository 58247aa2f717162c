"""The stage `prepare`: recordings become graph stores, split without leaks, with a pool of injected attacks.

Inputs are recordings, named `<role>/<scenario>/<recording>` with role train, test or duplicate. The last part of each
training recording validates, with a gap before it; the injected traffic of each split is made from that split alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from kdgat.can.evaluation.results import InjectionSummary, SplitSummary
from kdgat.can.kinds import PrepareConfig
from kdgat.can.recordings.data_summary import DUPLICATE_ROLE, RunningSummary
from kdgat.can.recordings.logs import ReadLimits, read_recording
from kdgat.can.recordings.messages import Messages
from kdgat.can.sections import WindowConfig
from kdgat.can.virtual.injected_pool import InjectedPool
from kdgat.can.virtual.injection import clean_stretches
from kdgat.can.windows.feature_names import EDGE_FEATURES, FEATURE_VERSION, NODE_FEATURES
from kdgat.can.windows.graphs import build_graphs
from kdgat.can.windows.schema import RECORDINGS, SCHEMA
from kdgat.graphs.columns import GraphColumns
from kdgat.graphs.store import write_store
from kdgat.stage.configuration import validate_config
from kdgat.stage.directory import RunDirectory
from kdgat.stage.files import write_json_atomically
from kdgat.stage.outcome import Finished, Outcome
from kdgat.stage.spec import StageSpec
from kdgat.training.progress import phase_progress

logger = logging.getLogger(__name__)

TRAIN_ROLE: Final = "train"
TEST_ROLE: Final = "test"
VALIDATION_SEED: Final = 1_000_003  # keeps injected validation traffic apart from that of training
SHORTEST_STRETCH_S: Final = 0.7  # attack-free traffic that a virtual recording can be made of
DATA_SUMMARY: Final = "data_summary"
INJECTION_SUMMARY: Final = "injection_summary"


class PreparationError(ValueError):
    """Recordings that cannot be turned into training data; the text says what to do."""


@dataclass
class _Split:
    """A recording's messages and graphs, divided in time."""

    messages: Messages
    graphs: GraphColumns
    training_end: int  # messages before it train
    validation_begin: int  # messages from it on validate; those between are the gap
    training: np.ndarray[Any, np.dtype[np.bool_]]  # [G]
    validation: np.ndarray[Any, np.dtype[np.bool_]]  # [G]


def split_in_time(messages: Messages, config: PrepareConfig) -> _Split:
    """Build a recording's graphs and give its first part to training, its last to validation.

    No message is in both: windows that reach over the border, and `gap` strides after it, belong to neither.
    """
    graphs = build_graphs(messages, config.windows)
    border = int(len(messages) * (1.0 - config.data.validation_fraction))
    ends = graphs["first_message"] + graphs["message_count"]
    training = ends <= border
    validation_begin = border + config.data.gap * config.windows.stride
    validation = graphs["first_message"] >= validation_begin
    return _Split(messages, graphs, border, validation_begin, training, validation)


def run_prepare(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Write the stores of a run: train, validation, injected, injected_validation, test-<scenario>.

    Raises:
        PreparationError: if no recording trains, or no window is left for validation.
        RecordingError: naming the file, if one cannot be read.
    """
    config = validate_config(PrepareConfig, spec.config)
    if config.feature_version != FEATURE_VERSION:
        raise PreparationError(
            f"planned for features of version {config.feature_version}, this kdgat computes version {FEATURE_VERSION}: "
            "give the training command again"
        )
    limits = ReadLimits(max_bad_fraction=config.data.max_bad_fraction)
    files = {role: _inputs_of(spec, directory, role) for role in (TRAIN_ROLE, TEST_ROLE, DUPLICATE_ROLE)}
    if not files[TRAIN_ROLE]:
        raise PreparationError(
            f"dataset {config.data.dataset!r}: no recording trains; name a scenario train_..., or list "
            "train_scenarios in its catalog entry"
        )
    summary = RunningSummary(config.windows)
    report = _reporter(directory, len(files[TRAIN_ROLE]) + len(files[TEST_ROLE]))
    splits = []
    for scenario, name, path in files[TRAIN_ROLE]:
        messages = _read(path, scenario, name, limits)
        if not messages.labelled:
            raise PreparationError(
                f"{path}: has no labels, so attacks in it would be learned as benign; if it holds none, bring it in by "
                "`kdgat data import --attack-free`, else remove it from the training scenario"
            )
        splits.append(split_in_time(messages, config))
        summary.add(messages, TRAIN_ROLE, splits[-1].graphs)
        report(name)
    recorded = {
        "train": [split.graphs.select(np.flatnonzero(split.training)) for split in splits],
        "validation": [split.graphs.select(np.flatnonzero(split.validation)) for split in splits],
    }
    for store, parts in recorded.items():
        if sum(part.num_graphs for part in parts) == 0:
            raise PreparationError(
                f"dataset {config.data.dataset!r}: no window is left for {store}; give longer recordings, or change "
                f"data.validation_fraction={config.data.validation_fraction} or windows.size={config.windows.size}"
            )
    training_traffic: list[Messages] = []
    if config.injection.enabled:
        training_traffic = _clean([s.messages.select(slice(0, s.training_end)) for s in splits], 10.0)
        if not training_traffic:
            raise PreparationError(
                f"dataset {config.data.dataset!r}: no training recording has {SHORTEST_STRETCH_S:g} s without "
                "attack to inject into; add attack-free recordings, or train on the recordings alone with "
                "-O injection.enabled=false"
            )
    names = [f"{split.messages.scenario}/{split.messages.name}" for split in splits]
    artifacts = {store: _write(directory, store, parts, names, config, summary) for store, parts in recorded.items()}

    injection = InjectionSummary(enabled=config.injection.enabled, seed=config.data.seed)
    if config.injection.enabled:
        validation_traffic = _clean([s.messages.select(slice(s.validation_begin, None)) for s in splits], 3.0)
        num_validation = max(1, round(config.injection.variants * config.injection.validation_share))
        for store, traffic, seed, num_variants in (
            ("injected", training_traffic, config.data.seed, config.injection.variants),
            ("injected_validation", validation_traffic, config.data.seed + VALIDATION_SEED, num_validation),
        ):
            if not traffic:
                summary.note(f"{store}: no stretch without attack is long enough; nothing is injected")
                continue
            progress = phase_progress(directory, store)
            pool = InjectedPool(traffic, config.injection, config.windows, seed, num_variants, progress)
            artifacts[store] = _write(directory, store, pool, pool.names, config, summary)
            if store == "injected":
                injection = pool.summary(config.data.seed)

    for scenario in sorted({scenario for scenario, _, _ in files[TEST_ROLE]}):
        parts, names = [], []
        for _, name, path in (file for file in files[TEST_ROLE] if file[0] == scenario):
            messages = _read(path, scenario, name, limits)
            if not messages.labelled:
                summary.note(f"{scenario}/{name} has no labels and tests nothing")
                continue
            parts.append(build_graphs(messages, config.windows))
            names.append(f"{scenario}/{name}")
            summary.add(messages, TEST_ROLE, parts[-1])
            report(name)
        if parts:
            artifacts[f"test-{scenario}"] = _write(directory, f"test-{scenario}", parts, names, config, summary)
    for scenario, name, path in files[DUPLICATE_ROLE]:
        summary.add_duplicate(_read(path, scenario, name, limits))
    for note in summary.content.notes:
        logger.warning("%s", note)
    write_json_atomically(directory.path / f"{DATA_SUMMARY}.json", summary.content.model_dump(mode="json"))
    write_json_atomically(directory.path / f"{INJECTION_SUMMARY}.json", injection.model_dump(mode="json"))
    artifacts |= {DATA_SUMMARY: f"{DATA_SUMMARY}.json", INJECTION_SUMMARY: f"{INJECTION_SUMMARY}.json"}
    metrics = {f"num_windows_{name}": float(split.num_windows) for name, split in summary.content.splits.items()}
    return Finished(metrics=metrics, artifacts=artifacts)


def store_attributes(windows: WindowConfig) -> dict[str, Any]:
    """Return what a store says about how it was built."""
    return {"family": "can", "feature_version": FEATURE_VERSION, "windows": windows.model_dump(mode="json")}


def _inputs_of(spec: StageSpec, directory: RunDirectory, role: str) -> list[tuple[str, str, Path]]:
    found = []
    for key in sorted(spec.inputs):
        parts = key.split("/", 2)
        if len(parts) != 3 or parts[0] not in (TRAIN_ROLE, TEST_ROLE, DUPLICATE_ROLE):
            raise PreparationError(f"input {key!r} is not named <train|test|duplicate>/<scenario>/<recording>")
        if parts[0] == role:
            found.append((parts[1], parts[2], spec.inputs[key].resolve(directory.path)))
    return found


def _read(path: Path, scenario: str, name: str, limits: ReadLimits) -> Messages:
    messages = read_recording(path, scenario=scenario, limits=limits)
    messages.name = name
    for row in messages.bad_rows:
        logger.warning("%s:%d: dropped, %s", path, row.line, row.reason)
    if messages.num_backward:
        logger.warning("%s: the clock runs backwards %d times; file order is kept", path, messages.num_backward)
    return messages


def _clean(parts: Sequence[Messages], shortest_s: float) -> list[Messages]:
    """Cut attack-free stretches; where none is that long, those of half the length, and so on."""
    while shortest_s >= SHORTEST_STRETCH_S:
        stretches = [stretch for part in parts for stretch in clean_stretches(part, shortest_s)]
        if stretches:
            return stretches
        shortest_s /= 2.0
    return []


def _reporter(directory: RunDirectory, total: int) -> Callable[[str], None]:
    done = 0

    def report(name: str) -> None:
        nonlocal done
        done += 1
        directory.write_progress({"phase": "recordings", "done": done, "total": total})
        logger.info("read %s", name)

    return report


def _write(
    directory: RunDirectory,
    store: str,
    parts: Sequence[GraphColumns] | InjectedPool,
    names: Sequence[str],
    config: PrepareConfig,
    summary: RunningSummary,
) -> str:
    """Write one store whose recordings are numbered in the order of the parts; return its file name."""
    split = SplitSummary(num_windows=0, num_attack_windows=0, num_messages=0)

    def numbered() -> Iterator[GraphColumns]:
        nonlocal split
        for number, part in enumerate(parts):
            split = SplitSummary(
                num_windows=split.num_windows + part.num_graphs,
                num_attack_windows=split.num_attack_windows + int(part["y"].sum()),
                num_messages=split.num_messages + int(part["message_count"].sum()),
            )
            yield part.replace(recording=np.full(part.num_graphs, number, np.int32))

    path = directory.path / f"{store}.h5"
    write_store(
        path,
        SCHEMA,
        numbered(),
        node_features=NODE_FEATURES,
        edge_features=EDGE_FEATURES,
        attributes={RECORDINGS: list(names)},
        build=store_attributes(config.windows),
    )
    summary.content = summary.content.model_copy(update={"splits": {**summary.content.splits, store: split}})
    logger.info("%s: %d windows, %d of them attacked", path.name, split.num_windows, split.num_attack_windows)
    return path.name
