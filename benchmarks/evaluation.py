"""`evaluate can` of one checkout beside that of another: both as processes of their own, in turns.

    python benchmarks/evaluation.py --run OUT --data-root DATA --dataset NAME --before CHECKOUT [--repeats N] [--busy]

`--before` is a checkout of the commit to compare with, and OUT a run that both can read. Prints wall and processor
seconds, imports included, and says whether decisions are the same; with --busy beside a process that never rests.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
BUSY = "while True: pass"


def measure(checkout: Path, arguments: argparse.Namespace, out: Path) -> tuple[float, float]:
    """Return wall and processor seconds of one evaluation, which writes its results to `out`."""
    command = [sys.executable, "-m", "kdgat.cli.main", "evaluate", "can", "--run", str(arguments.run), "--quiet"]
    command += ["--data-root", str(arguments.data_root), "--dataset", arguments.dataset, "--json", str(out)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run(command, check=True, cwd=checkout, env=environment, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def decisions(path: Path) -> dict[str, Any]:
    """Return what was decided on every scenario."""
    content = json.loads(path.read_text())
    return {name: scenario["confusion_matrix"] for name, scenario in content["scenarios"].items()}


def main() -> None:
    """Print both sides and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--busy", action="store_true")
    arguments = parser.parse_args()
    arguments.run, arguments.data_root = arguments.run.absolute(), arguments.data_root.absolute()
    sides = {"before": arguments.before.absolute(), "now": HERE}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    neighbour = subprocess.Popen([sys.executable, "-c", BUSY]) if arguments.busy else None
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(arguments.repeats + 1):
                for name, checkout in sides.items():
                    taken[name].append(measure(checkout, arguments, Path(folder) / f"{name}.json"))
            found = [decisions(Path(folder) / f"{name}.json") for name in sides]
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()
    best = {name: [min(column) for column in zip(*runs[1:], strict=True)] for name, runs in taken.items()}
    for name, (wall, processor) in best.items():
        print(f"{name:8s} wall {wall:7.2f} s, processor {processor:7.2f} s")
    ratios = [before / now for before, now in zip(best["before"], best["now"], strict=True)]
    print(f"ratio    wall {ratios[0]:7.2f}  , processor {ratios[1]:7.2f}")
    print("decisions are the same" if found[0] == found[1] else f"decisions differ: {found}")


if __name__ == "__main__":
    main()
