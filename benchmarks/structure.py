"""Does an attention network do better on vehicles it never met if nodes know their place in the window's graph?

    python benchmarks/structure.py --data-root DATA --dataset NAME --leave-out kia --leave-out sonata
    python benchmarks/structure.py ... --always-out spark --seeds 0 1 2 --scale small --work FOLDER

Three columns are appended to the features of a node: its PageRank times the number of nodes, its core number and the
logarithm of its triangles, in the window's undirected graph without loops. The other side has three columns of zeros:
both have the same shapes, first weights, batches and random numbers. For each vehicle left out (a word in the names of
recordings) the recordings of all others are prepared by `kdgat train can`, `normal` is trained on them by the preset
`quick`, and scored on the vehicle and on those of --always-out, at the threshold that validation calibrates
(probability .75). A vehicle whose recordings hold no attack is scored on attacks injected into them, too. Prints F1,
average precision and false alarms of both sides and their differences. --work keeps preparations and rows of results;
a second call with the same arguments goes on there, and may have more --seeds.
"""

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit

from kdgat.can.config import CanConfig
from kdgat.can.data.pool import PooledStores
from kdgat.can.evaluation.metrics import average_precision
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.ranking import rank
from kdgat.can.models.scaling import fit_scaling, logit
from kdgat.can.models.scoring import fit_standardisation, score_network
from kdgat.can.training.objective import DetectionObjective
from kdgat.can.training.sampling import PoolSource, SampledSource
from kdgat.canbus import InjectionConfig, WindowConfig, read_recording
from kdgat.canbus.catalog import discover_recordings
from kdgat.canbus.features import INJECTED, INJECTED_VALIDATION, RECORDINGS, SCHEMA, TRAIN, VALIDATION
from kdgat.canbus.injection import InjectedPool
from kdgat.graphs import GraphColumns, GraphStore
from kdgat.stage import RunDirectory, StageSpec
from kdgat.training import seed_everything
from kdgat.training.fit import fit

TRAINING, VALIDATING, HELD_OUT = (TRAIN, INJECTED), (VALIDATION, INJECTED_VALIDATION), "test-held_out"
VARIANTS_OF_VEHICLE = 6  # virtual recordings that test a vehicle without attacks
THRESHOLD = 0.75
DAMPING, ITERATIONS = 0.85, 50
SIDES = {"without": False, "with": True}


@njit(cache=True)
def fill_structure(node_ptr: Any, edge_ptr: Any, edge_index: Any, filled: Any) -> None:
    """Fill [N, 3]: PageRank times nodes, core number, log2 of 1 + triangles, of each node in its window."""
    for graph in range(len(node_ptr) - 1):
        first, count = node_ptr[graph], node_ptr[graph + 1] - node_ptr[graph]
        joined = np.zeros((count, count), np.bool_)
        for edge in range(edge_ptr[graph], edge_ptr[graph + 1]):
            source, target = edge_index[0, edge], edge_index[1, edge]
            if source != target:
                joined[source, target] = joined[target, source] = True
        degree = np.zeros(count, np.int64)
        neighbours = np.empty((count, count), np.int64)
        for node in range(count):
            for other in range(count):
                if joined[node, other]:
                    neighbours[node, degree[node]] = other
                    degree[node] += 1
        share = np.full(count, 1.0 / count)
        for _ in range(ITERATIONS):
            following, lost = np.full(count, (1.0 - DAMPING) / count), 0.0
            for node in range(count):
                if degree[node] == 0:
                    lost += share[node]
                for place in range(degree[node]):
                    following[neighbours[node, place]] += DAMPING * share[node] / degree[node]
            share = following + DAMPING * lost / count
        left, is_gone, core = degree.copy(), np.zeros(count, np.bool_), 0
        for _ in range(count):
            least = -1
            for node in range(count):
                if not is_gone[node] and (least < 0 or left[node] < left[least]):
                    least = node
            core = max(core, left[least])
            is_gone[least] = True
            filled[first + least, 1] = core
            for place in range(degree[least]):
                left[neighbours[least, place]] -= 1
        for node in range(count):
            triangles = 0
            for place in range(degree[node]):
                for before in range(place):
                    triangles += joined[neighbours[node, place], neighbours[node, before]]
            filled[first + node, 0] = share[node] * count
            filled[first + node, 2] = np.log2(1.0 + triangles)


class Windows:
    """The windows of a preparation, with three more columns or as many zeros, and what they are tested on."""

    def __init__(self, folder: Path, injected: dict[str, GraphColumns], is_structured: bool, every: int) -> None:
        """Read the stores of a finished preparation, of those that do not train every so many-th window alone."""
        store = {name: GraphStore.open(folder / f"{name}.h5", SCHEMA) for name in (*TRAINING, *VALIDATING, HELD_OUT)}
        self.train = PooledStores([extended(store[name].columns, is_structured) for name in TRAINING], TRAINING)
        validation = [extended(thinned(store[name].columns, every), is_structured) for name in VALIDATING]
        self.validation = PooledStores(validation, VALIDATING)
        recorded = thinned(store[HELD_OUT].columns, every)
        self.test = PooledStores([extended(one, is_structured) for one in (recorded, *injected.values())])
        names = np.array(store[HELD_OUT].attributes[RECORDINGS])[np.asarray(recorded["recording"])].tolist()
        self.names = names + [name for name, part in injected.items() for _ in range(part.num_graphs)]  # [G]


def thinned(columns: GraphColumns, every: int) -> GraphColumns:
    """Return every so many-th window."""
    return columns if every == 1 else columns.select(np.arange(0, columns.num_graphs, every))


def inject(arguments: argparse.Namespace, vehicles: Sequence[str]) -> dict[str, GraphColumns]:
    """Return windows of attacks injected into the traffic, as it was recorded, of vehicles that have no others."""
    found = {}
    config = InjectionConfig(variants=VARIANTS_OF_VEHICLE, kept_fraction=0.2, original_fraction=1.0)
    places = discover_recordings(arguments.data_root / arguments.dataset)
    for vehicle in vehicles:
        traffic = [read_recording(one.path) for one in places if vehicle.lower() in one.name.lower()]
        if not any(messages.num_attacks for messages in traffic):
            pool = InjectedPool(traffic, config, WindowConfig(), 0, range(config.variants))
            found[vehicle] = GraphColumns.concatenate(list(pool))
    return found


def extended(columns: GraphColumns, is_structured: bool) -> GraphColumns:
    """Return columns with three more features of nodes; unpacked, but in float16, as they are stored."""
    extra = np.zeros((columns.num_nodes, 3))
    if is_structured:
        fill_structure(columns.node_ptr, columns.edge_ptr, np.asarray(columns.edge_index), extra)
    x = np.empty((columns.num_nodes, columns.x.shape[1] + 3), np.float16)
    for begin in range(0, len(x), 1 << 16):
        rows = np.arange(begin, min(begin + (1 << 16), len(x)))
        x[rows, :-3] = columns.x.take(rows, axis=0)
    x[:, -3:] = extra
    return columns.replace(x=x)


def prepare(arguments: argparse.Namespace, vehicle: str, work: Path) -> Path:
    """Prepare the recordings with a vehicle held out; return the folder of the stores."""
    out = work / vehicle
    if done := [one for one in out.glob("stages/prepare-*") if RunDirectory(one).is_finished()]:
        return done[0]
    command = [sys.executable, "-m", "kdgat.cli.main", "train", "can", "--out", str(out), "--quiet", "--seeds", "0"]
    command += ["--dataset", arguments.dataset, "--data-root", str(arguments.data_root), "-O", "stages=[prepare]"]
    command += ["-O", f"injection.variants={arguments.variants}"]
    for word in (vehicle, *arguments.always_out):
        command += ["--hold-out", word]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (folder,) = out.glob("stages/prepare-*")
    return folder


def train(windows: Windows, config: CanConfig, scale: str, seed: int) -> GraphAttentionNetwork:
    """Train `normal` from one seed."""
    training = config.training_for("normal").for_dataset(config.data.dataset)
    seed_everything(seed)
    pool = windows.train
    model = GraphAttentionNetwork(getattr(config.gat, scale), pool.num_node_features, pool.num_edge_features)
    fit_standardisation(model, pool, np.ones(pool.num_graphs, bool))
    source = SampledSource(pool, config.sampling, training, seed)
    chosen = np.arange(windows.validation.num_graphs)
    validation = PoolSource(windows.validation, chosen, training, seed, shuffle=False)
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(folder).create(StageSpec(family="can", stage="normal", scale=scale, seed=seed))
        result = fit(DetectionObjective(model, config.loss), source, validation, training, directory, seed)
    if result.paused:
        raise SystemExit(f"not trained to the end: {result.reason}")
    return model


def score(model: GraphAttentionNetwork, windows: Windows, vehicles: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the network is worth on each vehicle, at the calibrated threshold."""
    scaling = fit_scaling(
        score_network(model, windows.validation)["logit"], windows.validation.labels, method="temperature"
    )
    logits = score_network(model, windows.test)["logit"]
    alarm = scaling.calibrated(logits) >= logit(THRESHOLD)
    rows = []
    for vehicle in vehicles:
        own = np.flatnonzero([vehicle.lower() in name.lower() for name in windows.names])
        truth, hits = windows.test.labels[own] > 0, alarm[own]
        row: dict[str, Any] = {
            "vehicle": vehicle,
            "windows": len(own),
            "attacked": int(truth.sum()),
            "false": int((hits & ~truth).sum()),
        }
        if truth.any():
            row["f1"] = 2 * int((hits & truth).sum()) / (int(hits.sum()) + int(truth.sum()))
            row["average_precision"] = average_precision(rank(logits[own], truth))
        rows.append(row)
    return rows


def print_differences(rows: Sequence[dict[str, Any]]) -> None:
    """Print both sides by vehicle and their mean over vehicles: each difference, and the mean with its error."""
    print(f"{'':14s} {'':18s} {'without':>9s} {'with':>9s}   difference, each fold and seed")
    for measure, digits in (("f1", 4), ("average_precision", 4), ("false", 0)):
        found: dict[str, dict[str, dict[tuple[str, int], float]]] = {}
        for row in rows:
            if measure in row:
                of_vehicle = found.setdefault(row["vehicle"], {side: {} for side in SIDES})
                of_vehicle[row["side"]][row["fold"], row["seed"]] = row[measure]
        trained = sorted({key for sides in found.values() for key in sides["without"] if key in sides["with"]})
        means: dict[str, dict[tuple[str, int], float]] = {side: {} for side in SIDES}
        for side, key in itertools.product(SIDES, trained):
            means[side][key] = statistics.fmean(one[side][key] for one in found.values() if key in one[side])
        found["mean"] = means
        for vehicle, sides in found.items():
            pairs = [(sides["without"][key], sides["with"][key]) for key in trained if key in sides["with"]]
            differences = [after - before for before, after in pairs]
            error = statistics.stdev(differences) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.nan
            before, after = (statistics.fmean(side) for side in zip(*pairs, strict=True))
            print(
                f"{vehicle:14s} {measure:18s} {before:9.{digits}f} {after:9.{digits}f}   "
                f"{statistics.fmean(differences):+.{digits}f} +- {error:.{digits}f}   "
                + " ".join(f"{one:+.{digits}f}" for one in differences)
            )


def main() -> None:
    """Prepare, train and score each fold, seed and side; print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--leave-out", action="append", required=True, help="one fold each")
    parser.add_argument("--always-out", action="append", default=[], help="never trained on, tested in each fold")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--scale", choices=("small", "large"), default="small")
    parser.add_argument("--variants", type=int, default=300, help="virtual recordings")
    parser.add_argument("--every", type=int, default=1, help="validate and test on every so many-th window")
    parser.add_argument("--work", type=Path, help="where preparations and rows are kept; a second call goes on there")
    parser.add_argument("-O", dest="overrides", action="append", default=[], help="as of kdgat train can")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = {"dataset": arguments.dataset, "data_root": str(arguments.data_root)}
    config = CanConfig.from_preset("quick", {"data": data}, arguments.overrides)
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        kept = work / f"rows-{arguments.scale}.jsonl"
        rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
        for vehicle in arguments.leave_out:
            folder = prepare(arguments, vehicle, work)
            vehicles = [vehicle, *arguments.always_out]
            injected = inject(arguments, vehicles)
            sides = {name: Windows(folder, injected, is_on, arguments.every) for name, is_on in SIDES.items()}
            for seed, (side, windows) in itertools.product(arguments.seeds, sides.items()):
                if any((row["fold"], row["side"], row["seed"]) == (vehicle, side, seed) for row in rows):
                    continue
                started = time.process_time()
                model = train(windows, config, arguments.scale, seed)
                new = [{"fold": vehicle, "side": side, "seed": seed, **row} for row in score(model, windows, vehicles)]
                rows += new
                with kept.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in new)
                print(f"{vehicle} {side} seed {seed}: {time.process_time() - started:.0f} s", *new[:1], flush=True)
        print_differences(rows)


if __name__ == "__main__":
    main()
