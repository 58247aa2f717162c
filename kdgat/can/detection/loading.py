"""Which detector is meant by what a person gives: a run directory, a registered model's id, or an exported file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdgat.base import UserError
from kdgat.can.detection.detector import Detector, Member
from kdgat.can.detection.model_file import read_model
from kdgat.can.models.names import HABITS
from kdgat.canbus import WindowConfig

if TYPE_CHECKING:
    from kdgat.can.evaluation.vehicle_calibration import VehicleCalibration

REGISTRY_VARIABLE: Final = "KDGAT_REGISTRY"


def find_model(model: str, registry: Path | str | None = None) -> Path:
    """Return the run directory or exported file that is meant: a path, or the id of a model in a registry.

    `registry` is the directory of one, by default that of $KDGAT_REGISTRY. UserError, RegistryError say what is
    wrong.
    """
    path = Path(model)
    if path.exists():
        return path
    where = registry or os.environ.get(REGISTRY_VARIABLE)
    if where is None:
        raise UserError(
            f"{model} does not exist: give the output directory of a training, an exported file, or with --registry "
            f"(or ${REGISTRY_VARIABLE}) the id of a registered model"
        )
    from kdgat.registry import Registry

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
    """Make a detector from a run directory or an exported file; of neither, the habits of identifiers.

    Args:
        path: of `find_model`; None for the habits of identifiers.
        name: an attention network of the run, `ensemble`, or `habits`. By default the one of `calibration`,
            else the student of one seed, if the run has one, else what the run itself decides by.
        seed: of the run, that one alone; by default the first for a student that nobody asked for, else all.
        calibration: the threshold for one vehicle.

    Raises:
        UserError, RunError: each says
            what is wrong, and what to give.
    """
    if name == "clock":
        raise UserError(f"the arrival clock decides no longer: give --detector {HABITS} in its place")
    if path is None or name == HABITS:
        if name not in (None, HABITS):
            raise UserError(f"detector {name!r} needs a model: give --model, or --detector {HABITS}, which needs none")
        if seed is not None:
            raise UserError(f"--seed {seed} is of a network, and {HABITS} has none: leave it out")
        if calibration is not None:
            raise UserError(
                f"a calibration is of a network's threshold, and {HABITS} has none: give --model and leave "
                f"--detector {HABITS} out, or --calibration"
            )
        return Detector(HABITS, WindowConfig(), ())
    if path.is_file():
        return _load_file(path, name, seed, calibration)
    from kdgat.can.detection.trained import load_run  # knows how runs are evaluated, which a file does not need

    return load_run(path, name, seed, calibration)


def _load_file(path: Path, name: str | None, seed: int | None, calibration: VehicleCalibration | None) -> Detector:
    file = read_model(path)
    parameters = file.parameters
    if name not in (None, parameters.name):
        raise UserError(f"{path} holds {parameters.name}, not {name!r}: leave --detector out")
    if seed not in (None, parameters.seed):
        raise UserError(f"{path} holds seed {parameters.seed}, not {seed}: leave --seed out")
    threshold, habits, accumulation = parameters.threshold, parameters.habits, parameters.accumulation
    if calibration is not None:
        key = f"seed {parameters.seed}, {parameters.name}"
        is_of_this = (calibration.detector, calibration.seeds) == (parameters.name, [parameters.seed])
        if not is_of_this or calibration.weights.get(key) != parameters.weights:
            raise UserError(
                f"the calibration is for {calibration.detector} of seeds {calibration.seeds}, and {path} holds "
                f"{parameters.name} of seed {parameters.seed}, or other weights: calibrate with --detector "
                f"{parameters.name} --seed {parameters.seed}"
            )
        threshold, habits = calibration.operating_point.threshold, True
        accumulation = calibration.accumulation or accumulation
    member = Member(file.network, parameters.scaling)
    return Detector(parameters.name, parameters.windows, (member,), threshold, habits, accumulation)
