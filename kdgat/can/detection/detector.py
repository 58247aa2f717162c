"""A detector as it stands: networks with their calibration, a threshold, and the arrival clock beside them.

A window is an alarm if the mean of the networks' calibrated logits reaches the threshold, or if the clock says so: a
message came too early, or an identifier is overdue.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.can.detection.model_file import DetectorParameters, Weights, onnx_bytes, read_model
from kdgat.can.detection.network import Network
from kdgat.can.evaluation.calibration import Scaling, logit, sigmoid
from kdgat.can.evaluation.decision import LOGIT_LIMIT, DefaultDetector
from kdgat.can.evaluation.finished_run import FinishedCanRun
from kdgat.can.evaluation.run_detector import detector_of, windows_of
from kdgat.can.evaluation.untrained import CLOCK_BOUNDS, ClockBounds, clock_scores
from kdgat.can.evaluation.vehicle_calibration import VehicleCalibration
from kdgat.can.models.names import CLOCK, ENSEMBLE, ENSEMBLE_MEMBERS
from kdgat.can.sections import WindowConfig
from kdgat.graphs.columns import GraphColumns
from kdgat.run.directory import OutputDirectory
from kdgat.stage.files import sha256_of_file
from kdgat.training.weights import read_arrays

STUDENT: Final = "distill_gat"
REGISTRY_VARIABLE: Final = "KDGAT_REGISTRY"


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
    clock: ClockBounds = CLOCK_BOUNDS

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
        by_clock = clock_scores(graphs["early"], graphs["overdue"], self.clock) >= 0.0
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


def load_detector(
    path: Path | None,
    name: str | None = None,
    seed: int | None = None,
    calibration: VehicleCalibration | None = None,
) -> Detector:
    """Make a detector from a run directory or an exported file; of neither, the clock alone.

    Args:
        path: of `find_model`; None for the clock.
        name: an attention network of the run, `ensemble`, or `clock`. By default the one of `calibration`, else the
            student of one seed, if the run has one, else what the run itself decides by.
        seed: of the run, that one alone; by default the first for a student that nobody asked for, else all.
        calibration: the threshold for one vehicle.

    Raises:
        DetectorError, ModelFileError, EvaluationError, RunError, VehicleCalibrationError: saying what is wrong.
    """
    if path is None or name == CLOCK:
        if name not in (None, CLOCK):
            raise DetectorError(
                f"detector {name!r} needs a model: give --model, or --detector {CLOCK} for the clock alone"
            )
        if calibration is not None:
            raise DetectorError("a calibration is of a network's threshold, which the clock alone does not have")
        return Detector(CLOCK, WindowConfig() if path is None else _windows_at(path), ())
    if path.is_file():
        return _of_file(path, name, calibration)
    run = FinishedCanRun(OutputDirectory(path))
    chosen = chosen_detector(run, name, seed, calibration)
    networks = [trained_network(run, chosen, *place) for place in _places(chosen)]
    members = tuple(
        Member(Network(onnx_bytes(one.weights, one.description, one.parameters)), one.parameters.scaling)
        for one in networks
    )
    parameters = networks[0].parameters
    return Detector(chosen.model, parameters.windows, members, parameters.threshold, parameters.clock)


def chosen_detector(
    run: FinishedCanRun, name: str | None, seed: int | None, calibration: VehicleCalibration | None = None
) -> DefaultDetector:
    """Return the calibrated detector of a run that is meant by name and seed, as of `load_detector`."""
    seeds = None if seed is None else [seed]
    if calibration is not None:
        name = calibration.detector if name is None else name
        seeds = calibration.seeds if seeds is None else seeds
    elif name is None and STUDENT in run.weights(run.seeds[0]):
        name, seeds = STUDENT, seeds or run.seeds[:1]
    detector = detector_of(run, name, seeds)
    unfit = [column for _, column in _places(detector) if column not in ENSEMBLE_MEMBERS]
    if unfit:
        trained = [one for one in ENSEMBLE_MEMBERS if one in run.weights(run.seeds[0])]
        raise DetectorError(
            f"{detector.model} reads {unfit[0]}, which is no attention network: give --detector, one of "
            f"{', '.join([*trained, ENSEMBLE, CLOCK])}"
        )
    if calibration is None:
        return detector
    calibration.check(run, detector)
    return calibration.applied_to(detector)


def trained_network(run: FinishedCanRun, detector: DefaultDetector, seed: int, name: str) -> TrainedNetwork:
    """Read one network of a detector."""
    weights = run.weights(seed)
    if name not in weights:
        raise DetectorError(
            f"{run.output.path} was scored by {name} of seed {seed}, whose weights are gone: train it again"
        )
    arrays, description = read_arrays(weights[name])
    parameters = DetectorParameters(
        name=name,
        seed=seed,
        dataset=run.dataset,
        feature_version=run.feature_version(),
        node_features=tuple(description["node_features"] or ()),
        edge_features=tuple(description["edge_features"] or ()),
        windows=windows_of(run),
        scaling=detector.scalings[seed][name],
        threshold=float(logit(detector.rule.threshold)),
        clock=detector.rule.clock or CLOCK_BOUNDS,
        weights=sha256_of_file(weights[name]),
    )
    parameters.check_features(str(run.output.path))
    return TrainedNetwork(arrays, description, parameters)


def _places(detector: DefaultDetector) -> list[tuple[int, str]]:
    return [(seed, column) for seed, columns in detector.scalings.items() for column in columns]


def _of_file(path: Path, name: str | None, calibration: VehicleCalibration | None) -> Detector:
    file = read_model(path)
    parameters = file.parameters
    if name not in (None, parameters.name):
        raise DetectorError(f"{path} holds {parameters.name}, not {name!r}: leave --detector out")
    threshold, clock = parameters.threshold, parameters.clock
    if calibration is not None:
        key = f"seed {parameters.seed}, {parameters.name}"
        is_of_this = (calibration.detector, calibration.seeds) == (parameters.name, [parameters.seed])
        if not is_of_this or calibration.weights.get(key) != parameters.weights:
            raise DetectorError(
                f"the calibration is for {calibration.detector} of seeds {calibration.seeds}, and {path} holds "
                f"{parameters.name} of seed {parameters.seed}, or other weights: calibrate with --detector "
                f"{parameters.name} --seed {parameters.seed}"
            )
        threshold, clock = calibration.operating_point.threshold, calibration.clock
    member = Member(file.network, parameters.scaling)
    return Detector(parameters.name, parameters.windows, (member,), threshold, clock)


def _windows_at(path: Path) -> WindowConfig:
    return read_model(path).parameters.windows if path.is_file() else windows_of(FinishedCanRun(OutputDirectory(path)))
