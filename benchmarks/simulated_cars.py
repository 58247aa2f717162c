"""Evaluate a finished run of `kdgat train can` on simulated cars that it has never met: F1 and false alarms by kind.

    python benchmarks/simulated_cars.py RUN                               # cars 64000 to 64009, 20 s each
    python benchmarks/simulated_cars.py RUN --first-car 62000 --seconds 60

Every car drives once without an attack and once with each kind. Of each seed of the run, and of the mean of all: the
default detector, networks and habits together, at its one threshold. A window under suppression counts as
attacked while the campaign lasts. Nothing is chosen by these cars: take others with --first-car after looking at them.
"""

import argparse
from pathlib import Path

import numpy as np

from kdgat.can.evaluation.decision import decide
from kdgat.can.evaluation.run import FinishedCanRun
from kdgat.can.evaluation.scoring import RecordingScorer
from kdgat.canbus import make_vehicle, simulate, windows_to_graphs
from kdgat.canbus.simulation import AttackKind
from kdgat.run import OutputDirectory

FREE = "attack-free"


def main() -> None:
    """Simulate, score, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="output directory of `kdgat train can`")
    parser.add_argument("--first-car", type=int, default=64_000, help="seed of the first car")
    parser.add_argument("--cars", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0, help="that each drive takes")
    arguments = parser.parse_args()
    run = FinishedCanRun(OutputDirectory(arguments.run.absolute()))
    scorers = {f"seed {seed}": RecordingScorer(run, seeds=[seed]) for seed in run.seeds}
    if len(run.seeds) > 1:
        scorers["mean of all"] = RecordingScorer(run)
    seeds = range(arguments.first_car, arguments.first_car + arguments.cars)
    print(f"cars {seeds[0]} to {seeds[-1]}, {arguments.seconds:g} s each; F1, false alarms of benign windows")
    print(f"{'':<14}{'windows':>9}" + "".join(f"{name:>28}" for name in scorers))
    for kind in (None, *AttackKind):
        graphs = [
            windows_to_graphs(
                simulate(make_vehicle(seed), arguments.seconds, kind, seed), next(iter(scorers.values())).windows
            )
            for seed in seeds
        ]
        names = [str(seed) for seed in seeds]
        truth = np.concatenate([one["y"] for one in graphs]) > 0
        cells = []
        for scorer in scorers.values():
            alarm = decide(scorer.default_detector, scorer.score(graphs, names)).is_alarm
            cells.append(cell(alarm, truth))
        print(f"{kind or FREE:<14}{len(truth):>9,}" + "".join(f"{text:>28}" for text in cells), flush=True)


def cell(alarm: np.ndarray, truth: np.ndarray) -> str:
    """Write F1, where there are attacks, and false alarms."""
    false, benign = int((alarm & ~truth).sum()), int((~truth).sum())
    f1 = 2 * int((alarm & truth).sum()) / max(int(alarm.sum()) + int(truth.sum()), 1)
    return (f"{f1:.4f}  " if truth.any() else "") + f"{false} of {benign:,} ({100 * false / max(benign, 1):.1f} %)"


if __name__ == "__main__":
    main()
