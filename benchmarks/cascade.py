"""`evaluate can --cascade` beside `evaluate can`: decisions, and processor seconds.

    python benchmarks/cascade.py --run OUT [OUT ...] --data-root DATA [--dataset NAME] [--repeats N]

Both sides are processes of their own, in turns, on one core. Prints, per scenario, confusion matrices, F1 and AUC of
both, and the share of windows that went on to all members; then the best processor seconds of both, imports and
reading included. Last, what runs have stored of their own tests: by each member in turn as the first one, in how many
windows decisions would differ.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kdgat.can.evaluation.calibration import logit
from kdgat.can.evaluation.cascade import learn_cascade
from kdgat.can.evaluation.finished_run import FinishedCanRun
from kdgat.can.evaluation.processes import ONE_CORE
from kdgat.can.evaluation.run_detector import detector_of
from kdgat.canbus.features import VALIDATION
from kdgat.run.directory import OutputDirectory

SIDES = {"full": (), "cascade": ("--cascade",)}


def measure(arguments: argparse.Namespace, run: Path, options: tuple[str, ...], out: Path) -> float:
    """Return processor seconds of one evaluation, which writes its results to `out`."""
    command = [sys.executable, "-m", "kdgat.cli.main", "evaluate", "can", "--run", str(run), "--quiet", *options]
    command += ["--data-root", str(arguments.data_root), "--json", str(out)]
    command += ["--dataset", arguments.dataset] if arguments.dataset else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env={**os.environ, **ONE_CORE}, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def print_scenarios(full: dict[str, Any], cascade: dict[str, Any]) -> None:
    """Print what both sides found in every scenario."""
    for name, one in full["scenarios"].items():
        other = cascade["scenarios"][name]
        share = other["num_windows_of_all"] / other["num_windows"]
        print(f"  {name}: {one['num_windows']:,} windows, {share:.1%} by all")
        for side, row in (("full", one), ("cascade", other)):
            f1, auc = ("-" if row[key] is None else f"{row[key]:.7f}" for key in ("f1", "auc"))
            print(f"    {side:8s} {row['confusion_matrix']} F1 {f1} AUC {auc}; evidence that adds up: {adding_up(row)}")
        print(f"    decisions that differ, at least: {num_differing(one, other)}")


def num_differing(full: dict[str, Any], cascade: dict[str, Any]) -> int:
    """Count decisions that differ by the confusion matrices of every recording: two in one may cancel out."""
    matrices = [[np.array(row["confusion_matrix"]) for row in side["recordings"].values()] for side in (full, cascade)]
    return sum(int(np.abs(one - other).sum()) // 2 for one, other in zip(*matrices, strict=True))


def adding_up(row: dict[str, Any]) -> str:
    """Say what evidence that adds up finds in a scenario."""
    found = (row["breakdown"] or {}).get("accumulated")
    if found is None:
        return "-"
    return f"{found['alone']['num_found']} of {found['alone']['num_episodes']}, {found['num_false_episodes']} false"


def print_members(run: FinishedCanRun) -> None:
    """Print, for each member as the first one, the tests' windows that would be decided otherwise."""
    detector, validation = detector_of(run), run.tables(VALIDATION)
    threshold = float(logit(detector.rule.threshold))
    members = [(seed, name) for seed, names in detector.scalings.items() for name in names]
    for member in members:
        cascade = learn_cascade(detector, validation, {one: int(one != member) for one in members})
        cascaded = replace(detector, cascade=cascade)
        differing = of_all = total = 0
        for split in run.test_splits():
            tables = run.tables(split)
            goes_on = cascade.goes_on(tables)
            # Of the networks alone: that the clock raises an alarm anyway says nothing of the cascade.
            above = [one.logits(tables) >= threshold for one in (detector, cascaded)]
            differing += int(np.count_nonzero(above[0] != above[1]))
            of_all, total = of_all + int(np.count_nonzero(goes_on)), total + len(goes_on)
        print(
            f"  {member[1]} of seed {member[0]} first: margins {cascade.below:.2f}, {cascade.above:.2f};"
            f" alone {cascade.num_differing} of {cascade.num_validation_windows:,} validation windows otherwise;"
            f" tests: {of_all / total:.1%} of {total:,} by all, {differing} decided otherwise"
        )


def main() -> None:
    """Print both sides of every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, nargs="+", required=True)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--dataset")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for run in arguments.run:
        print(run.name)
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        with tempfile.TemporaryDirectory() as folder:
            paths = {side: Path(folder) / f"{side}.json" for side in SIDES}
            for _ in range(arguments.repeats):
                for side, options in SIDES.items():
                    seconds[side].append(measure(arguments, run, options, paths[side]))
            full, cascade = (json.loads(path.read_text()) for path in paths.values())
        print_scenarios(full, cascade)
        print(f"  {cascade['detector']['rule']}")
        best = {side: min(taken) for side, taken in seconds.items()}
        print("  processor s: " + ", ".join(f"{side} {taken:.2f}" for side, taken in best.items()), end="")
        print(f", ratio {best['full'] / best['cascade']:.2f}")
        print_members(FinishedCanRun(OutputDirectory(run)))


if __name__ == "__main__":
    main()
