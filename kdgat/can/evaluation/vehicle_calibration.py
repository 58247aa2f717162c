"""The operating point of one detector on one vehicle, as a file that `kdgat calibrate` writes."""

from typing import ClassVar

from pydantic import Field

from kdgat.base import UserError, sha256_of_file
from kdgat.can.evaluation.accumulation import Accumulation
from kdgat.can.evaluation.decision import DefaultDetector
from kdgat.can.evaluation.finished_run import FinishedCanRun
from kdgat.can.evaluation.operating_point import OperatingPoint
from kdgat.run.results import Count, Finite, Versioned


class VehicleCalibration(Versioned):
    """The operating point of one detector on one vehicle, and what it was made from."""

    fix: ClassVar[str] = "make it with `kdgat calibrate`"

    created: str = Field(description="ISO 8601 with time zone")
    detector: str
    seeds: list[int]
    weights: dict[str, str] = Field(description="seed and model -> SHA-256 of the weights it is for")
    operating_point: OperatingPoint
    accumulation: Accumulation | None = Field(
        default=None, description="evidence that adds up, by these minutes; none: by the run's own validation"
    )
    num_habits_alarms: Count = Field(description="clean windows that are alarms by the habits of identifiers")
    num_alarms: Count = Field(description="clean windows with an alarm of the network, the habits or both")
    hours: Finite
    recordings: dict[str, str] = Field(description="name -> hash of the messages")
    sentence: str

    def check(self, run: FinishedCanRun, detector: DefaultDetector) -> None:
        """Refuse a detector that this was not made for: UserError."""
        if (detector.model, list(detector.scalings)) != (self.detector, self.seeds):
            raise UserError(
                f"the calibration is for {self.detector} of seeds {self.seeds}, the run decides by {detector.model} of "
                f"seeds {list(detector.scalings)}: calibrate again"
            )
        if weights_of(run, detector) != self.weights:
            raise UserError(
                f"the calibration was made with other weights than those of {run.output.path}: calibrate again"
            )

    def applied_to(self, detector: DefaultDetector) -> DefaultDetector:
        """Return the detector at this threshold, with the habits beside it."""
        return detector.at(self.operating_point)


def weights_of(run: FinishedCanRun, detector: DefaultDetector) -> dict[str, str]:
    """Return the SHA-256 of all weights of the detector's seeds: `seed 0, normal` -> hash."""
    return {
        f"seed {seed}, {name}": sha256_of_file(path)
        for seed in detector.scalings
        for name, path in sorted(run.weights(seed).items())
    }
