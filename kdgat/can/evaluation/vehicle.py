"""The threshold of a trained network on one vehicle, learned by `kdgat profile --model`, and kept in its profile.

Who uses one neither scores nor loads torch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic import Field

from kdgat.base import Config, UserError, sha256_of_file
from kdgat.base.kept import read_kept
from kdgat.can.evaluation.calibration import MIN_WINDOWS, OperatingPoint, covered_seconds
from kdgat.can.evaluation.decision import Detector, decide
from kdgat.can.evaluation.run import FinishedCanRun, copy_of_trained, lineage_of
from kdgat.can.models.names import HABITS
from kdgat.can.models.scaling import logit
from kdgat.canbus import Messages, windows_to_graphs
from kdgat.canbus.near_copies import kept_blocks
from kdgat.run import OutputDirectory

if TYPE_CHECKING:
    from kdgat.canbus.profile import Profile

FAR_LOGIT: Final = 3.0  # of an attack probability of 95 %
MOST_FAR: Final = 0.01  # share of windows that far up, beyond which the minutes are not clean
LEARN: Final = "kdgat profile LOG... --grow FILE --out FILE --model RUN"

logger = logging.getLogger(__name__)


class VehicleThreshold(Config):
    """The operating point of one detector on one vehicle, and what it was made from: one of a profile's `networks`."""

    created: str = Field(description="ISO 8601 with time zone")
    detector: str
    seeds: list[int]
    weights: dict[str, str] = Field(description="seed and model -> SHA-256 of the weights it is for")
    operating_point: OperatingPoint
    sentence: str

    def added_to(self, profile: Profile) -> Profile:
        """Return the profile with it, in the place of an earlier one of the same detector and weights."""
        whose = {"detector": self.detector, "seeds": self.seeds, "weights": self.weights}
        others = [one for one in profile.networks if not whose.items() <= one.items()]
        return profile.model_copy(update={"networks": [*others, self.model_dump(mode="json")]})


def thresholds_of(profile: Profile) -> list[VehicleThreshold]:
    """Read the thresholds of a profile, the one learned last at the end; UserError for what is none."""
    advice = "learn the profile anew by `kdgat profile LOG... --out FILE --model RUN`"
    return [
        read_kept(VehicleThreshold, one, f"networks.{place} of the profile", advice)
        for place, one in enumerate(profile.networks)
    ]


def find_threshold(
    profile: Profile, detector: str, seeds: Sequence[int], weights: Mapping[str, str], whose: object
) -> VehicleThreshold | None:
    """Return what a profile has of a detector with these weights, of the run or file `whose`; None if it has nothing.

    UserError if it is of other weights, or all that it has is.
    """
    known = thresholds_of(profile)
    same = [one for one in known if (one.detector, one.seeds) == (detector, [*seeds])]
    found = [one for one in same if weights.items() <= one.weights.items()]
    if found or not known:
        return found[-1] if found else None
    if not same and any(weights.items() & one.weights.items() for one in known):
        has = ", ".join(f"{one.detector} of seeds {one.seeds}" for one in known)
        logger.warning("the profile has no threshold of %s of seeds %s; it has: %s", detector, [*seeds], has)
        return None
    other = (same or known)[-1]
    key = next((key for key in weights if weights[key] != other.weights.get(key)), "")
    seed = f" --seed {seeds[0]}" if len(seeds) == 1 else ""
    raise UserError(
        f"networks.weights of the profile: its threshold of {other.detector} is of {key} "
        f"{other.weights.get(key, 'none')[:12]}, and {whose} has {weights.get(key, 'none')[:12]}: learn it again by "
        f"`{LEARN} --detector {detector}{seed}`"
    )


def threshold_for(profile: Profile, run: FinishedCanRun, detector: Detector) -> VehicleThreshold | None:
    """Return what a profile has of a detector of a run, as of `find_threshold`."""
    return find_threshold(
        profile, detector.model, [*detector.scalings], weights_of(run, detector.scalings), run.output.path
    )


def learn_threshold(
    run_directory: Path | str,
    drives: Iterable[tuple[str, Messages]],
    *,
    alarms_per_hour: float | None = None,
    detector: str | None = None,
    seed: int | None = None,
    is_trusted: bool = False,
) -> VehicleThreshold:
    """Fit the threshold of a run's detector on drives of one vehicle without attacks, each with its name.

    Windows that are alarms by the habits of identifiers are left out, unless the drives are trusted.

    Args:
        run_directory: output directory of `kdgat train can`, or a registered model.
        drives: names and messages.
        alarms_per_hour: the budget; by default that of the run's configuration.
        detector: which of the run's detectors; by default its own choice.
        seed: that alone; by default all.
        is_trusted: there is no attack in them, whatever it looks like.

    Raises:
        UserError, RunError: if drives look attacked, are too short or trained the model, or the run lacks something.
    """
    from kdgat.can.evaluation.scoring import RecordingScorer

    run = FinishedCanRun(OutputDirectory(run_directory))
    scorer = RecordingScorer(run, detector, None if seed is None else [seed])
    trained = _trained_on(run)
    parts, names = [], list[str]()
    for name, messages in drives:
        seen = trained.get(messages.content_hash())
        if seen is None and (copied := copy_of_trained(run, kept_blocks(messages))) is not None:
            seen = f"much of it is in {copied}, which the run was trained on"
        if seen is not None:
            raise UserError(
                f"{name}: {seen}; what it has learned by heart says nothing of other traffic. Give a recording that "
                "it has not seen, or leave --model out"
            )
        parts.append(windows_to_graphs(messages, scorer.windows))
        names.append(name)
    tables = scorer.score(parts, names)
    chosen = scorer.default_detector
    if not is_trusted:
        kept = next(iter(tables.values())).scores[HABITS] < 0.0
        tables = {seed: table.select(kept) for seed, table in tables.items()}
    table = tables[chosen.first_seed]
    logits = decide(chosen, tables).logit
    seconds = covered_seconds(table.start_time, table.end_time, table.recording)
    listed = ", ".join(names)
    _check_length(logits.size, seconds, listed)
    share = float(np.mean(logits > FAR_LOGIT))
    if share > MOST_FAR and not is_trusted:
        raise UserError(
            f"{listed}: in {share:.2%} of the windows the network gives an attack a logit above {FAR_LOGIT:g}, at most "
            f"{MOST_FAR:.0%} is expected of traffic without attacks; find out what happens there, and give other "
            "minutes, or --trust if you know that there is no attack"
        )
    budget = scorer.config.alarms_per_hour if alarms_per_hour is None else alarms_per_hour
    default = float(logit(scorer.config.threshold))
    usual = default if chosen.operating_point is None else chosen.operating_point.threshold
    point = OperatingPoint.of_vehicle(logits, seconds, budget, default, usual, f"clean minutes of {listed}")
    return VehicleThreshold(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        detector=chosen.model,
        seeds=list(chosen.scalings),
        weights=weights_of(run, chosen.scalings),
        operating_point=point,
        sentence=f"{chosen.at(point).rule.sentence()} {point.sentence()}",
    )


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


def weights_of(run: FinishedCanRun, seeds: Iterable[int]) -> dict[str, str]:
    """Return the SHA-256 of all weights of these seeds: `seed 0, normal` -> hash."""
    return {
        f"seed {seed}, {name}": sha256_of_file(path)
        for seed in seeds
        for name, path in sorted(run.weights(seed).items())
    }
