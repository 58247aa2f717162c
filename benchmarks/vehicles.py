"""False alarms on vehicles that did not train, by the public training command: networks, and networks or habits.

The vehicles of folders without attacks are shuffled into groups. For each group a run trains `normal` on all the others
and on the training recordings of --base, and is scored on the group: as it is, and with attacks put into it.

    python -m benchmarks.vehicles FOLDER... [--base FOLDER] [--tests FOLDER ...] [--only GROUP ...] --out FOLDER
"""

import argparse
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.injected_attacks import OF_AN_IDENTIFIER, OF_THE_BUS, Attack, find_targets, traffic_of
from kdgat.can.evaluation.metrics import false_alarms_by_vehicle
from kdgat.can.evaluation.results import Results, VehicleAlarms
from kdgat.can.evaluation.run import FinishedCanRun
from kdgat.can.evaluation.scores import read_scores, scores_path
from kdgat.can.models.names import HABITS
from kdgat.canbus import Messages, read_recording, write_recording
from kdgat.canbus.catalog import RecordingPlace, discover_recordings, find_entry
from kdgat.run import OutputDirectory

GROUP = "test_group"
KINDS = ("new identifier, 10 ms", "flood, 3 times", "random payloads", "replay", "masquerade, random payloads")
ATTACK_S = 5.0


def vehicles_of(folders: list[Path]) -> dict[str, list[RecordingPlace]]:
    """Return the recordings that train of each vehicle in datasets; what names none is one of its dataset's name."""
    found = defaultdict(list)
    for folder in folders:
        entry = find_entry(folder.name, folder.parent)
        for place in discover_recordings(folder):
            if entry.role_of(place.scenario) == "train":
                found[entry.vehicle_of(place.name) or folder.name].append(place)
    return dict(found)


def link(place: RecordingPlace, folder: Path) -> None:
    """Put a recording into the folder of a vehicle."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / place.path.name).symlink_to(place.path.resolve())


def put_attacks(path: Path, vehicle: str, root: Path) -> None:
    """Write a recording once for each kind of attack on an identifier of it, labelled."""
    messages = read_recording(path)
    traffic = traffic_of(messages)
    targets, begin = find_targets(traffic), max(8.0, min(0.4 * traffic.time[-1], 30.0))
    if not targets or begin + ATTACK_S > traffic.time[-1] - 2.5:
        return
    for kind in KINDS:
        attack = Attack(traffic, targets[0][0], begin, begin + ATTACK_S, np.random.default_rng(len(vehicle)))
        made = {**OF_THE_BUS, **OF_AN_IDENTIFIER}[kind](attack)
        folder = root / f"test_{kind.replace(',', '').replace(' ', '_')}" / vehicle
        folder.mkdir(parents=True, exist_ok=True)
        forged = Messages(
            timestamp=made.time,
            identifier=made.identifier,
            payload=made.payload.view(np.uint8).reshape(-1, 8),
            length=made.length,
            label=(~np.isin(made.time, traffic.time)).astype(np.int8),
            name=path.stem,
            scenario=folder.parent.name,
        )
        write_recording(folder / f"{path.stem}.parquet", forged)


def make_dataset(
    folder: Path, vehicles: dict[str, list[RecordingPlace]], group: set[str], options: argparse.Namespace
) -> None:
    """Lay the recordings out: `<scenario>/<vehicle>/<recording>`."""
    for vehicle, places in vehicles.items():
        for place in places:
            link(place, folder / (GROUP if vehicle in group else place.scenario) / vehicle)
        if vehicle in group:
            put_attacks(max((place.path for place in places), key=lambda path: path.stat().st_size), vehicle, folder)
    for vehicle, places in vehicles_of([options.base] if options.base else []).items():
        for place in places:
            link(place, folder / place.scenario / f"{options.base.name}-{vehicle}")
    for other in (*options.tests, *([options.base] if options.base else [])):
        entry = find_entry(other.name, other.parent)
        for place in discover_recordings(other):
            if entry.role_of(place.scenario) == "test" or other != options.base:
                link(place, folder / f"test_{other.name}" / place.scenario)


def false_alarms(output: Path) -> dict[str, dict[str, VehicleAlarms]]:
    """Return those on the vehicles of the group, by who decides."""
    results, scores = Results.read(output / "results.json"), read_scores(scores_path(output, GROUP))
    table = next(iter(FinishedCanRun(OutputDirectory(output)).tables(f"test-{GROUP}").values()))
    deciding = {
        "network": scores.probability >= results.detector.decision.threshold,
        "habits": table.scores[HABITS] >= 0.0,
        "network or habits": scores.decision,
    }
    return {who: false_alarms_by_vehicle(table, decision) for who, decision in deciding.items()}


def summary_of(rows: list[VehicleAlarms]) -> str:
    """Say how vehicles fare, each the same, and all windows together."""
    alarms, windows = (np.array([getattr(row, name) for row in rows]) for name in ("num_false_alarms", "num_windows"))
    shares = alarms / np.maximum(windows, 1)
    an_hour = sum(row.num_false_episodes for row in rows) / sum(row.hours for row in rows)
    return (
        f"{np.median(shares):.3%} | {shares.max():.2%} | {alarms.sum() / windows.sum():.3%} | "
        f"{(alarms == 0).sum()} of {len(rows)} | {an_hour:.0f}"
    )


def main() -> None:
    """Train, score and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--base", type=Path, help="a dataset whose training recordings always train")
    parser.add_argument("--tests", type=Path, nargs="+", default=[], help="datasets that are scored only")
    parser.add_argument("--groups", type=int, default=5)
    parser.add_argument("--only", type=int, nargs="+", help="of these groups")
    parser.add_argument("--seed", type=int, default=0, help="of the groups")
    parser.add_argument("--overrides", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    vehicles = vehicles_of(options.folders)
    names = np.random.default_rng(options.seed).permutation(sorted(vehicles)).tolist()
    pooled = defaultdict(list)
    for number in options.only or range(options.groups):
        group, output = set(names[number :: options.groups]), options.out / f"run-{number}"
        if not (options.out / f"data-{number}").exists():
            make_dataset(options.out / f"data-{number}" / "fleet", vehicles, group, options)
        command = [str(Path(sys.executable).with_name("kdgat")), "train", "can", "--dataset", "fleet"]
        command += ["--preset", "quick", "--data-root", str(options.out / f"data-{number}"), "--out", str(output)]
        for override in ("stages=[prepare,normal,evaluation]", "seeds=[0]", *options.overrides):
            command += ["-O", override]
        subprocess.run(command, check=True)
        found, results = false_alarms(output), Results.read(output / "results.json")
        print(results.detector.rule)
        print("| vehicle | windows | " + " | ".join(found) + " |\n|---|---|" + "---|" * len(found))
        for vehicle, of_habits in found["habits"].items():
            rows = [by_vehicle[vehicle] for by_vehicle in found.values()]
            cells = [f"{row.num_false_alarms / max(row.num_windows, 1):.2%}; {row.num_false_episodes}" for row in rows]
            print(f"| {vehicle} | {of_habits.num_windows:,} | {' | '.join(cells)} |")
        for who, by_vehicle in found.items():
            pooled[who] += by_vehicle.values()
        print("scenario: F1 and recall of both, F1, recall and AUC of the network alone")
        for scenario, measured in results.scenarios.items():
            alone = results.models["normal"]["0"][scenario]
            values = (measured.f1, measured.recall, alone.f1, alone.recall, alone.auc)
            print(scenario, " ".join("-" if value is None else f"{value:.3f}" for value in values))
    print("| decides | median vehicle | worst | pooled | vehicles without | alarms an hour |\n|" + "---|" * 6)
    for who, rows in pooled.items():
        print(f"| {who} | {summary_of(rows)} |")


if __name__ == "__main__":
    main()
