"""How configurations of detectors are judged: by vehicles that are left out, of the recordings that train.

Validation windows are of the vehicles that train, and do not tell how a detector does on another one. So a trial trains
once for each vehicle, without it, and is scored on that vehicle's recordings. Test recordings are not read at all:
neither those of test scenarios, nor those of a vehicle that `data.hold_out` keeps for the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from kdgat.base import UserError
from kdgat.can.config import CanConfig
from kdgat.can.evaluation.results import Results
from kdgat.can.models.names import ENSEMBLE, ENSEMBLE_MEMBERS
from kdgat.can.sizes import read_recordings
from kdgat.canbus.catalog import HELD_OUT, RecordingFile, find_entry, matches_hold_out
from kdgat.run import Interval, Measure

VEHICLES: Final = "vehicles"  # the objective
# What the mean of the attention networks needs: no fusion is trained where it decides.
_NEEDED_BY_ENSEMBLE: Final = ("prepare", "autoencoder", *ENSEMBLE_MEMBERS, "evaluation")


def vehicle_folds(config: CanConfig) -> dict[str, CanConfig]:
    """Return one configuration per vehicle that can be left out of training and scored, by its name.

    Raises:
        UserError: if there is none.
        DatasetError, RecordingError: if the recordings cannot be read.
    """
    data = config.data
    recordings = read_recordings(data)
    folder = find_entry(data.dataset, data.data_root, data.catalog).folder_in(data.data_root)
    train = recordings.require_train()
    names = sorted({file.vehicle for file in train if file.vehicle and file.num_attacks})
    names = [name for name in names if not all(_is_of(file, name) for file in train)]
    if not names:
        known = ", ".join(sorted({file.vehicle for file in train if file.vehicle})) or "none"
        raise UserError(
            f"--objective {VEHICLES}: the training recordings of {data.dataset} have no vehicle to leave out (known: "
            f"{known}; it must have attacks, and others must be left): name vehicles in an entry of --catalog, or give "
            "--objective validation"
        )
    kept = {file.path for file in train}
    others = [file.path for file in recordings if file.path not in kept]
    others += [dropped.recording.path for dropped in recordings.dropped]
    unread = sorted({*data.leave_out, *(path.relative_to(folder).as_posix() for path in others)})
    stages = config.stages
    if config.evaluation.detector == ENSEMBLE:
        stages = tuple(stage for stage in stages if stage in _NEEDED_BY_ENSEMBLE)
    return {
        name: config.model_copy(
            update={
                "data": data.model_copy(update={"hold_out": (name,), "leave_out": tuple(unread)}),
                "stages": stages,
            }
        )
        for name in names
    }


def judge_vehicles(results: Mapping[str, Results]) -> list[Measure]:
    """Return the mean F1 on vehicles that were left out, and behind it that of each; nothing where one has none.

    Of several seeds it is the mean of their detectors, each alone, with the interval over seeds.
    """
    found, single = [], []
    for name, of_fold in results.items():
        scenario = of_fold.scenarios.get(HELD_OUT)
        spread = None if scenario is None else scenario.over_seeds.get("f1")
        if scenario is None or scenario.f1 is None:
            return []
        mean, deviation, count, by_seed = scenario.f1, 0.0, 1, dict[int, float]()
        if spread is not None and spread.mean is not None:
            mean, deviation, count = spread.mean, spread.std or 0.0, spread.count
            by_seed = spread.by_seed(of_fold.detector.seeds)
        found.append((name, Interval.of_moments(mean, deviation, count).of_share(), deviation))
        single.append(by_seed)
    mean = math.fsum(interval.mean for _, interval, _ in found) / len(found)
    # Of the mean over vehicles, whose seeds have nothing to do with each other.
    deviation = math.sqrt(math.fsum(one**2 for _, _, one in found)) / len(found)
    count = min(interval.count for _, interval, _ in found)
    seeds = [seed for seed in single[0] if all(seed in by_seed for by_seed in single)] if single else []
    of_seeds = {seed: math.fsum(by_seed[seed] for by_seed in single) / len(single) for seed in seeds}
    seeds_interval = Interval.of_moments(mean, deviation, count).of_share()
    whole = Measure("F1, vehicles left out", mean, seeds_interval, True, of_seeds)
    single_vehicles = [
        Measure(f"F1 {name}", interval.mean, interval, True, by_seed)
        for (name, interval, _), by_seed in zip(found, single, strict=True)
    ]
    return [whole, *single_vehicles]


def _is_of(file: RecordingFile, vehicle: str) -> bool:
    return matches_hold_out(file.name, file.vehicle, (vehicle,))
