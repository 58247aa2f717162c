"""The operating point of a detector on one vehicle, made of minutes without attack by `kdgat calibrate`, and its file.

Who reads the file neither scores nor loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from kdgat.base import UserError, sha256_of_file
from kdgat.can.evaluation.calibration import MIN_WINDOWS, SECONDS_PER_HOUR, OperatingPoint, covered_seconds
from kdgat.can.evaluation.decision import Detector, decide
from kdgat.can.evaluation.run import FinishedCanRun, copy_of_trained, lineage_of
from kdgat.can.models.names import HABITS
from kdgat.can.models.scaling import logit
from kdgat.canbus import read_recording, windows_to_graphs
from kdgat.canbus.look import require_judgeable
from kdgat.canbus.near_copies import kept_blocks
from kdgat.run import OutputDirectory
from kdgat.run.results import Count, Finite, Versioned

FAR_LOGIT: Final = 3.0  # of an attack probability of 95 %
MOST_FAR: Final = 0.01  # share of windows that far up, beyond which the minutes are not clean


class VehicleCalibration(Versioned):
    """The operating point of one detector on one vehicle, and what it was made from."""

    fix: ClassVar[str] = "make it with `kdgat calibrate`"

    created: str = Field(description="ISO 8601 with time zone")
    detector: str
    seeds: list[int]
    weights: dict[str, str] = Field(description="seed and model -> SHA-256 of the weights it is for")
    operating_point: OperatingPoint
    num_habits_alarms: Count = Field(description="clean windows that are alarms by the habits of identifiers")
    num_alarms: Count = Field(description="clean windows with an alarm of the network, the habits or both")
    hours: Finite
    recordings: dict[str, str] = Field(description="name -> hash of the messages")
    sentence: str

    def check(self, run: FinishedCanRun, detector: Detector) -> None:
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

    def applied_to(self, detector: Detector) -> Detector:
        """Return the detector at this threshold, with the habits beside it."""
        return detector.at(self.operating_point)


def calibrate_run(
    run_directory: Path | str,
    logs: Sequence[Path],
    *,
    alarms_per_hour: float | None = None,
    detector: str | None = None,
    seed: int | None = None,
    channel: str | None = None,
) -> VehicleCalibration:
    """Fit the threshold of a run's detector on recordings of one vehicle without attacks.

    Args:
        run_directory: output directory of `kdgat train can`, or a registered model.
        logs: the recordings.
        alarms_per_hour: the budget; by default that of the run's configuration.
        detector: which of the run's detectors; by default its own choice.
        seed: that alone; by default all.
        channel: of `read_recording`.

    Raises:
        UserError: if the recordings hold attacks, or look so, or are too short, or trained the model.
        RunError, UserError: if the run lacks what is needed.
        RecordingError: naming the file and what to do.
    """
    from kdgat.can.evaluation.scoring import RecordingScorer

    run = FinishedCanRun(OutputDirectory(run_directory))
    scorer = RecordingScorer(run, detector, None if seed is None else [seed])
    trained = _trained_on(run)
    parts, recordings = [], dict[str, str]()
    for path in logs:
        messages = read_recording(path, limits=scorer.limits, channel=channel)
        require_judgeable(path, messages)
        content = messages.content_hash()
        if messages.num_attacks:
            raise UserError(
                f"{path}: {messages.num_attacks:,} of its {len(messages):,} messages are labelled as attacks; give a "
                "recording without attacks"
            )
        if content in recordings.values():
            raise UserError(f"{path}: the same messages were given already; give each recording once")
        if content in trained:
            raise UserError(
                f"{path}: {trained[content]}; what it has learned by heart says nothing of other traffic. "
                "Give a recording that it has not seen"
            )
        if (copied := copy_of_trained(run, kept_blocks(messages))) is not None:
            raise UserError(
                f"{path}: much of it is in {copied}, which the run was trained on; what it has learned by heart says "
                "nothing of other traffic. Give a recording that it has not seen"
            )
        graphs = windows_to_graphs(messages, scorer.windows)
        parts.append(graphs)
        recordings[path.name if path.name not in recordings else str(path)] = content
    tables = scorer.score(parts, list(recordings))
    chosen = scorer.default_detector
    table = next(iter(tables.values()))
    logits = decide(chosen, tables).logit
    seconds = covered_seconds(table.start_time, table.end_time, table.recording)
    names = ", ".join(recordings)
    _check_length(logits.size, seconds, names)
    _check_clean(float(np.mean(logits > FAR_LOGIT)), f"the network gives an attack a logit above {FAR_LOGIT:g}", names)
    by_habits = table.scores[HABITS] >= 0.0
    _check_clean(float(np.mean(by_habits)), "the habits of identifiers raise an alarm", names)
    budget = scorer.config.alarms_per_hour if alarms_per_hour is None else alarms_per_hour
    highest = highest_threshold(chosen, float(logit(scorer.config.threshold)))
    point = OperatingPoint.of_benign(logits, seconds, budget, highest, f"clean minutes of {names}")
    calibrated = chosen.at(point)
    num_habits_alarms = int(np.count_nonzero(by_habits))
    measured = f"In these {seconds / 60:.3g} minutes the habits of identifiers raise {num_habits_alarms:,} alarms."
    return VehicleCalibration(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        detector=chosen.model,
        seeds=list(chosen.scalings),
        weights=weights_of(run, chosen),
        operating_point=point,
        num_habits_alarms=num_habits_alarms,
        num_alarms=int(np.count_nonzero(decide(calibrated, tables).is_alarm)),
        hours=seconds / SECONDS_PER_HOUR,
        recordings=recordings,
        sentence=f"{calibrated.rule.sentence()} {point.sentence()} {measured}",
    )


def highest_threshold(detector: Detector, default: float) -> float:
    """Return the larger of the default threshold and the run's own, which vehicles that did not train may have set."""
    own = detector.operating_point
    return default if own is None else max(default, own.threshold)


def _trained_on(run: FinishedCanRun) -> Mapping[str, str]:
    earlier = lineage_of(run.output.path).trained
    trained = {content: f"{name} was trained on it, from which this run started" for content, name in earlier.items()}
    own = {row.content_hash: "the run was trained on it" for row in run.trained_recordings() if row.content_hash}
    return trained | own


def _check_length(num_windows: int, seconds: float, names: str) -> None:
    missing = MIN_WINDOWS - num_windows
    if missing > 0:
        more = f", about {missing * seconds / num_windows:,.0f} s more" if num_windows and seconds > 0.0 else ""
        raise UserError(
            f"{names}: {num_windows:,} windows are too few for a threshold, which needs {MIN_WINDOWS:,}{more}; record "
            "longer, or give another recording beside it"
        )
    if seconds <= 0.0:
        raise UserError(f"{names}: no time passes, so there is no hour to count alarms in; check the time stamps")


def _check_clean(share: float, what: str, names: str) -> None:
    if share > MOST_FAR:
        raise UserError(
            f"{names}: in {share:.2%} of the windows {what}, at most {MOST_FAR:.0%} is expected of traffic without "
            "attacks; find out what happens there, and give another recording if it is an attack"
        )


def weights_of(run: FinishedCanRun, detector: Detector) -> dict[str, str]:
    """Return the SHA-256 of all weights of the detector's seeds: `seed 0, normal` -> hash."""
    return {
        f"seed {seed}, {name}": sha256_of_file(path)
        for seed in detector.scalings
        for name, path in sorted(run.weights(seed).items())
    }
