"""Measure the stage `prepare`: against another checkout of kdgat, and how memory and time grow with the messages.

Run `python benchmarks/preparation.py compare --before CHECKOUT [--dataset hcrl_sa] [--data-root DIR] [--variants N]`:
both sides prepare the same recordings in turn, each in processes of its own, the first round compiles and is left out.
Prints wall and CPU seconds, peak memory, bytes a graph and ratios, and refuses to compare other windows: all columns
must be equal, features as float16, to which they are rounded since they are packed (`--before` may be older than that).
One feature in a million may differ, and is counted: where an interval lies on the border of a bin to its last bits.

Run `python benchmarks/preparation.py growth [--messages N ...] [--out ROWS]`: recordings of simulated messages, a
million each, are prepared with some virtual ones. Prints CPU time per message and peak memory, with pages of mapped
files and without; `growth.py` draws it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import yaml

import kdgat
from kdgat.base import num_usable_cores
from kdgat.can.config import CanConfig
from kdgat.can.inputs import recording_inputs
from kdgat.can.plan import plan_can
from kdgat.canbus.features import SCHEMA
from kdgat.graphs import GraphStore
from kdgat.run.plan import make_spec
from kdgat.stage import RunDirectory, StageInput, StageSpec

HERE = Path(__file__).resolve().parents[1]
OF_A_RECORDING = 1_000_000
MOST_OTHERS = 1e-6  # of the features: those of an interval on the border of a bin, to the last bits
RUN = "import sys; from kdgat.stage.__main__ import main; sys.exit(main([sys.argv[1], '--quiet']))"


class Measured(NamedTuple):
    """What one preparation took."""

    wall_s: float
    cpu_s: float
    peak_mb: float  # resident, pages of mapped files included, which the kernel takes back when it needs them
    own_mb: float  # the most without these, of 50 looks a second


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("compare")
    one.add_argument("--before", type=Path, required=True)
    one.add_argument("--after", type=Path, default=HERE)
    one.add_argument("--data-root", type=Path, default=HERE.parent / "shared" / "data")
    one.add_argument("--dataset", default="hcrl_sa")
    one.add_argument("--preset", default="quick")
    one.add_argument("--variants", type=int)
    one.add_argument("--repeats", type=int, default=2)
    one.set_defaults(run=compare)
    other = commands.add_parser("growth")
    other.add_argument("--messages", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000, 20_000_000])
    other.add_argument("--variants", type=int, default=25)
    other.add_argument("--out", type=Path, help="JSON lines that rows are added to")
    other.set_defaults(run=grow)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments.run(arguments, Path(folder))


def compare(arguments: argparse.Namespace, folder: Path) -> None:
    """Prepare with both checkouts in turn."""
    preset = yaml.safe_load((Path(kdgat.__file__).parent / f"can/presets/{arguments.preset}.yaml").read_text())
    if arguments.variants:
        preset["injection"]["variants"] = arguments.variants
    data = {"data_root": str(arguments.data_root), "dataset": arguments.dataset}
    config = CanConfig.model_validate({**preset, "data": data})
    spec = _spec(config, recording_inputs(config.data))
    sides = {"before": arguments.before, "after": arguments.after}
    few = _spec(
        CanConfig.model_validate({**preset, "data": data, "injection": {**preset["injection"], "variants": 2}}),
        spec.inputs,
    )
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    for repeat in range(arguments.repeats + 1):
        for name, checkout in sides.items():
            measured = prepare(folder / name, few if repeat == 0 else spec, checkout)
            if repeat == 0:
                continue
            found[name].append(measured)
            print(f"{name:<8}{_row(measured)}", flush=True)
    bytes_a_graph = check_windows(folder / "before", folder / "after")
    before, after = (
        Measured(*(statistics.median(column) for column in zip(*found[name], strict=True))) for name in sides
    )
    print(f"median before{_row(before)}\nmedian after {_row(after)}")
    print(f"wall {before.wall_s / after.wall_s:.2f} times as fast, CPU {before.cpu_s / after.cpu_s:.2f}")
    print("bytes a graph: before {:,.0f}, after {:,.0f}".format(*bytes_a_graph))


def check_windows(before: Path, after: Path) -> tuple[float, float]:
    """Refuse to compare preparations of other windows; return the bytes that a graph of each takes."""
    names = sorted(path.name for path in after.glob("*.h5"))
    assert names == sorted(path.name for path in before.glob("*.h5")), "there are other stores"
    num_graphs, num_values, num_others, sizes = 0, 0, 0, [0, 0]
    for name in names:
        columns = GraphStore.open(after / name, SCHEMA).columns
        num_graphs += columns.num_graphs
        for place, side in enumerate((before, after)):
            sizes[place] += (side / name).stat().st_size
        with h5py.File(before / name, "r") as file:
            for column in SCHEMA.stored:
                is_packed = column.packed
                if is_packed and column.name not in file:
                    found, expected = columns[column.name].values, file[f"{column.name}_values"][:]
                else:
                    found, expected = np.asarray(columns[column.name]), file[column.name][:]
                    expected = expected.astype(np.float16) if is_packed else expected
                assert found.shape == expected.shape, f"{name}: column {column.name} has another shape"
                others = int((found != expected).sum())
                assert is_packed or not others, f"{name}: column {column.name} differs"
                num_others, num_values = num_others + others, num_values + expected.size * is_packed
    print(f"{num_others} of {num_values:,} features are others")
    assert num_others <= MOST_OTHERS * num_values, "the windows are others"
    return sizes[0] / num_graphs, sizes[1] / num_graphs


def grow(arguments: argparse.Namespace, folder: Path) -> None:
    """Prepare more and more messages."""
    from kdgat.canbus import make_vehicle, simulate, write_recording

    vehicle = make_vehicle(0)
    rate = float((1 / vehicle.period_s).sum())
    whole = simulate(vehicle, 1.05 * min(max(arguments.messages), OF_A_RECORDING) / rate, None, seed=0)
    names = ("wall s", "CPU s", "CPU us each", "peak MB", "own MB")
    print(f"{'messages':>12}{'recordings':>12}" + "".join(f"{name:>13}" for name in names))
    for number, num_messages in enumerate([min(arguments.messages), *arguments.messages]):
        path = folder / f"{num_messages}.parquet"
        write_recording(path, whole.select(slice(min(num_messages, OF_A_RECORDING))))
        num_recordings = max(num_messages // OF_A_RECORDING, 1)
        source = StageInput.of_file(path)
        inputs = {f"train/train_01/{place:04d}": source for place in range(num_recordings)}
        data = {"data_root": str(folder), "dataset": "simulated"}
        config = CanConfig.model_validate({"data": data, "injection": {"variants": arguments.variants}})
        measured = prepare(folder / "growth", _spec(config, inputs), HERE)
        if number:  # the first one compiles
            print(
                f"{num_messages:>12,}{num_recordings:>12}{measured.wall_s:>13.1f}{measured.cpu_s:>13.1f}"
                f"{1e6 * measured.cpu_s / num_messages:>13.2f}{measured.peak_mb:>13.0f}{measured.own_mb:>13.0f}",
                flush=True,
            )
            if arguments.out:
                row = {"us": 1e6 * measured.cpu_s / num_messages, "mb": measured.own_mb}
                with arguments.out.open("a") as rows:
                    rows.write(json.dumps({"what": "prepare, a message", "size": num_messages, **row}) + "\n")


def prepare(folder: Path, spec: StageSpec, checkout: Path) -> Measured:
    """Run the stage in a process of its own; return what it took."""
    shutil.rmtree(folder, ignore_errors=True)
    directory = RunDirectory(folder).create(spec)
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", RUN, str(directory.path)], env=environment, cwd=checkout)
    own_kib, ended = 0, 0
    while not ended:
        with contextlib.suppress(OSError, IndexError):  # it has just ended
            own_kib = max(own_kib, int(Path(f"/proc/{process.pid}/status").read_text().split("RssAnon:")[1].split()[0]))
        time.sleep(0.02)
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{checkout}: prepare ended with status {process.returncode}; see {directory.log_path}")
    return Measured(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, own_kib / 1024)


def _spec(config: CanConfig, inputs: dict[str, StageInput]) -> StageSpec:
    return make_spec("can", plan_can(config)[0], {}, inputs)


def _row(measured: Measured) -> str:
    return f" wall {measured.wall_s:7.1f} s   CPU {measured.cpu_s:7.1f} s   peak {measured.peak_mb:6.0f} MB"


if __name__ == "__main__":
    print(f"{num_usable_cores()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    main()
