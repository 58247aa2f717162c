"""A detector as it stands: networks with their calibration, a threshold, and the arrival clock beside them.

A window is an alarm if the mean of the networks' calibrated logits reaches the threshold, or if the clock says so: a
message came too early, or an identifier is overdue.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.can.detection.model_file import DetectorParameters, Weights, onnx_bytes, read_model
from kdgat.can.detection.network import Network
from kdgat.can.evaluation.calibration import Scaling, logit, sigmoid
from kdgat.can.evaluation.decision import LOGIT_LIMIT, calibrate, calibrated_detector, choose_detector, windows_for
from kdgat.can.evaluation.finished_run import FinishedCanRun
from kdgat.can.models.names import ENSEMBLE, ENSEMBLE_MEMBERS
from kdgat.can.sections import WindowConfig
from kdgat.can.windows.schema import VALIDATION
from kdgat.graphs.columns import GraphColumns
from kdgat.run.directory import OutputDirectory
from kdgat.stage.configuration import validate_config
from kdgat.training.weights import read_arrays

STUDENT: Final = "distill_gat"
CLOCK: Final = "clock"  # a detector without a network
REGISTRY_VARIABLE: Final = "KDGAT_REGISTRY"
EARLY_BOUND, OVERDUE_BOUND = 0.5, 1.0  # log2, of the arrival clock


class DetectorError(ValueError):
    """A detector cannot be had from what was given; the text says what to give."""


class Verdicts(NamedTuple):
    """What a detector says of G windows with N nodes."""

    logit: NDArray[np.float64]  # [G] calibrated
    probability: NDArray[np.float64]  # [G]
    node_logit: NDArray[np.float64]  # [N]
    by_network: NDArray[np.bool_]  # [G] alarms
    by_clock: NDArray[np.bool_]  # [G]

    @property
    def is_alarm(self) -> NDArray[np.bool_]:
        """Return which windows [G] are alarms."""
        return self.by_network | self.by_clock


@dataclass(frozen=True)
class Member:
    """One network of a detector."""

    network: Network
    scaling: Scaling


@dataclass(frozen=True)
class Detector:
    """Decide about windows."""

    name: str
    windows: WindowConfig
    members: tuple[Member, ...]
    threshold: float = 0.0  # calibrated logit

    def decide(self, graphs: GraphColumns) -> Verdicts:
        """Return the verdicts on windows."""
        logits = np.full(graphs.num_graphs, -LOGIT_LIMIT)
        node_logits = np.zeros(graphs.num_nodes)
        if self.members and graphs.num_graphs:
            scores = [member.network.score(graphs) for member in self.members]
            calibrated = [
                np.clip(member.scaling.calibrated(window), -LOGIT_LIMIT, LOGIT_LIMIT)
                for member, (window, _) in zip(self.members, scores, strict=True)
            ]
            logits = np.mean(calibrated, axis=0)
            node_logits = np.mean([node for _, node in scores], axis=0, dtype=np.float64)
        by_clock = (graphs["early"] > EARLY_BOUND) | (graphs["overdue"] > OVERDUE_BOUND)
        by_network = logits >= self.threshold if self.members else np.zeros(graphs.num_graphs, bool)
        return Verdicts(logits, sigmoid(logits), node_logits, by_network, by_clock)

    def with_threshold(self, threshold: float) -> Detector:
        """Return the detector with another threshold, a calibrated logit."""
        return replace(self, threshold=threshold)


@dataclass(frozen=True)
class TrainedNetwork:
    """A network of a finished run with all that a file of it holds."""

    weights: Weights
    description: dict[str, object]
    parameters: DetectorParameters


def find_model(model: str, registry: Path | str | None = None) -> Path:
    """Return the run directory or exported file that is meant: a path, or the id of a model in a registry.

    `registry` is the directory of one, by default that of $KDGAT_REGISTRY. DetectorError, RegistryError say what is
    wrong.
    """
    path = Path(model)
    if path.exists():
        return path
    where = registry or os.environ.get(REGISTRY_VARIABLE)
    if where is None:
        raise DetectorError(
            f"{model} does not exist: give the output directory of a training, an exported file, or with --registry "
            f"(or ${REGISTRY_VARIABLE}) the id of a registered model"
        )
    from kdgat.registry.registry import Registry

    found = Registry(where)
    entry = found.entry(model)
    found.verify(entry)
    return found.model_path(entry.id)


def load_detector(path: Path | None, name: str | None = None, seed: int | None = None) -> Detector:
    """Make a detector from a run directory or an exported file; of neither, the clock alone.

    Args:
        path: of `find_model`; None for the clock.
        name: an attention network of the run, `ensemble`, or `clock`. By default the student, if the run has one, else
            what the run itself decides by.
        seed: of the run; by default its first.

    Raises:
        DetectorError, ModelFileError, RunError: saying what is wrong.
    """
    if path is None or name == CLOCK:
        if name not in (None, CLOCK):
            raise DetectorError(
                f"detector {name!r} needs a model: give --model, or --detector {CLOCK} for the clock alone"
            )
        windows = _windows_of(path) if path is not None else WindowConfig()
        return Detector(CLOCK, windows, ())
    if path.is_file():
        file = read_model(path)
        if name not in (None, file.parameters.name):
            raise DetectorError(f"{path} holds {file.parameters.name}, not {name!r}: leave --detector out")
        member = Member(file.network, file.parameters.scaling)
        return Detector(file.parameters.name, file.parameters.windows, (member,), file.parameters.threshold)
    run = FinishedCanRun(OutputDirectory(path))
    name = name or default_name(run)
    networks = [trained_network(run, member, seed) for member in _members(run, name, seed)]
    members = tuple(
        Member(Network(onnx_bytes(one.weights, one.description, one.parameters)), one.parameters.scaling)
        for one in networks
    )
    return Detector(name, networks[0].parameters.windows, members, _threshold(run, name, _seed(run, seed)))


def read_threshold(path: Path) -> float:
    """Read the threshold, a calibrated logit, from a calibration by clean minutes; DetectorError if it has none."""
    try:
        content = json.loads(path.read_bytes())
        threshold = float(content["threshold"])
    except (ValueError, KeyError, TypeError) as error:
        raise DetectorError(
            f"{path} is no calibration: `kdgat calibrate` writes one, a JSON object with `threshold`"
        ) from error
    if not math.isfinite(threshold):
        raise DetectorError(f"{path}: threshold={threshold} is no number; calibrate again")
    return threshold


def default_name(run: FinishedCanRun) -> str:
    """Return the student, if the run has one, else the model that the run itself decides by."""
    if STUDENT in run.weights(run.seeds[0]):
        return STUDENT
    return choose_detector(run.tables(VALIDATION), run.evaluation_config()).model


def trained_network(run: FinishedCanRun, name: str, seed: int | None = None) -> TrainedNetwork:
    """Read an attention network of a run, calibrated on the run's validation windows."""
    chosen = _seed(run, seed)
    weights = run.weights(chosen)
    if name not in weights or name not in ENSEMBLE_MEMBERS:
        there = ", ".join(one for one in ENSEMBLE_MEMBERS if one in weights) or "none"
        raise DetectorError(f"{run.output.path} has no attention network {name!r} of seed {chosen}; it has: {there}")
    arrays, description = read_arrays(weights[name])
    table = run.tables(VALIDATION)[chosen]
    parameters = DetectorParameters(
        name=name,
        seed=chosen,
        dataset=run.dataset,
        feature_version=run.feature_version(),
        node_features=tuple(description["node_features"] or ()),
        edge_features=tuple(description["edge_features"] or ()),
        windows=_run_windows(run),
        scaling=calibrate(name, windows_for(name, table), run.evaluation_config()),
        threshold=_threshold(run, name, chosen),
    )
    parameters.check_features(str(run.output.path))
    return TrainedNetwork(arrays, description, parameters)


def _members(run: FinishedCanRun, name: str, seed: int | None) -> Sequence[str]:
    if name != ENSEMBLE:
        return (name,)
    return [member for member in ENSEMBLE_MEMBERS if member in run.weights(_seed(run, seed))]


def _seed(run: FinishedCanRun, seed: int | None) -> int:
    if seed is not None and seed not in run.seeds:
        raise DetectorError(f"{run.output.path} has no seed {seed}; it has: {', '.join(map(str, run.seeds))}")
    return run.seeds[0] if seed is None else seed


def _threshold(run: FinishedCanRun, name: str, seed: int) -> float:
    """Return the calibrated logit from which the run's rule raises an alarm, whatever recording it is."""
    table = run.tables(VALIDATION)[seed]
    return float(logit(calibrated_detector(name, {seed: table}, run.evaluation_config()).rule.threshold))


def _windows_of(path: Path) -> WindowConfig:
    return (
        read_model(path).parameters.windows if path.is_file() else _run_windows(FinishedCanRun(OutputDirectory(path)))
    )


def _run_windows(run: FinishedCanRun) -> WindowConfig:
    return validate_config(WindowConfig, run.index.config.get("windows", {}))
