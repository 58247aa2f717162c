"""The networks of a finished run as those of a detector: its weights, calibrated as the run or a vehicle asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdgat.base import UserError, sha256_of_file
from kdgat.can.detection.detector import Detector, Member
from kdgat.can.detection.model_file import DetectorParameters, Weights, onnx_bytes
from kdgat.can.evaluation.decision import DefaultDetector
from kdgat.can.evaluation.finished_run import FinishedCanRun
from kdgat.can.evaluation.run_detector import accumulation_of, detector_of, windows_of
from kdgat.can.evaluation.vehicle_calibration import VehicleCalibration
from kdgat.can.models.names import ENSEMBLE, ENSEMBLE_MEMBERS, HABITS
from kdgat.can.models.runtime import Network
from kdgat.can.models.scaling import logit
from kdgat.run import OutputDirectory
from kdgat.training.weights import read_arrays

STUDENT: Final = "distill_gat"


@dataclass(frozen=True)
class TrainedNetwork:
    """A network of a finished run with all that a file of it holds."""

    weights: Weights
    description: dict[str, object]
    parameters: DetectorParameters


def load_run(path: Path, name: str | None, seed: int | None, calibration: VehicleCalibration | None) -> Detector:
    """Make a detector from a run directory; arguments and errors as of `load_detector`."""
    run = FinishedCanRun(OutputDirectory(path))
    chosen = chosen_detector(run, name, seed, calibration)
    networks = [trained_network(run, chosen, *place, calibration) for place in _places(chosen)]
    members = tuple(
        Member(Network(onnx_bytes(one.weights, one.description, one.parameters)), one.parameters.scaling)
        for one in networks
    )
    parameters = networks[0].parameters
    return Detector(
        chosen.model, parameters.windows, members, parameters.threshold, parameters.habits, parameters.accumulation
    )


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
        raise UserError(
            f"{detector.model} reads {unfit[0]}, which is no attention network: give --detector, one of "
            f"{', '.join([*trained, ENSEMBLE, HABITS])}"
        )
    if calibration is None:
        return detector
    calibration.check(run, detector)
    return calibration.applied_to(detector)


def trained_network(
    run: FinishedCanRun,
    detector: DefaultDetector,
    seed: int,
    name: str,
    calibration: VehicleCalibration | None = None,
) -> TrainedNetwork:
    """Read one network of a detector, which `calibration` was applied to."""
    if detector.rule.kind == "per_recording":
        raise UserError(
            f"{run.output.path} decides by evaluation.rule=per_recording, which needs a whole recording at once: give "
            "--calibration (`kdgat calibrate`), or train with evaluation.rule=budget or fixed"
        )
    accumulation = None if calibration is None else calibration.accumulation
    accumulation = accumulation or accumulation_of(run, detector)
    weights = run.weights(seed)
    if name not in weights:
        raise UserError(
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
        habits=detector.rule.habits,
        accumulation=accumulation,
        weights=sha256_of_file(weights[name]),
    )
    parameters.check_features(str(run.output.path))
    return TrainedNetwork(arrays, description, parameters)


def _places(detector: DefaultDetector) -> list[tuple[int, str]]:
    return [(seed, column) for seed, columns in detector.scalings.items() for column in columns]
