"""What estimates from earlier attempts are worth: attempts of kdgat's own stages, each estimated from those before it.

    python benchmarks/estimates.py FOLDER [--rounds 4] [--replay]

Trains the stages prepare, autoencoder, normal and curriculum on simulated data of three sizes, one process per attempt
as jobs have it, each round with other seeds, and appends what every attempt took to FOLDER/history. Then, or with
--replay at once, goes through the attempts in order of time: walltime and memory are estimated from the ones before,
and compared with what the attempt took. Prints how many were covered, and what was asked for and not used against the
preset's requests. An interrupted run goes on with the next attempt.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kdgat.can.config import CanConfig
from kdgat.can.inputs import can_run
from kdgat.canbus.simulation import write_dataset
from kdgat.cluster import AttemptRecord, EndKind, ResourceRequest, Resources, Site, StopRequest
from kdgat.cluster.child import run_child
from kdgat.cluster.forecast import Job, expect
from kdgat.cluster.request import stage_resources
from kdgat.cluster.usage import Usage, append_usage, read_usages, run_name, usage_of, usage_path
from kdgat.run import OutputDirectory, Run
from kdgat.run.local import finished_stages
from kdgat.run.plan import create_stage
from kdgat.stage import Finished

SIZES = ("tiny", "small", "quick")
STAGES = ("prepare", "autoencoder", "normal", "curriculum")
OVERRIDES = ("injection.variants=30", "training.max_epochs=4", "training.num_threads=1")
SITE = Site(name="local")
FROM_WALLTIME, FROM_MEMORY = 3, 2  # runs that were seen before, from which on an estimate has to hold


def plan(folder: Path, size: str, number: int) -> Run:
    """Plan a run on simulated data, which are made if they are not there."""
    name = f"{size}-{number}"
    if not (folder / "data" / name).is_dir():
        write_dataset(folder / "data", name, size, number)
    content = {"data": {"dataset": name, "data_root": str(folder / "data")}, "seeds": [number], "stages": STAGES[1:]}
    return can_run(CanConfig.from_preset("quick", content, OVERRIDES))


def train(run: Run, output: OutputDirectory) -> None:
    """Run the stages that have not finished, each in a process, and note what it took."""
    history = usage_path(SITE, output.path)
    for planned in run.plan:
        done = finished_stages(run, output)
        if planned.name in done:
            continue
        directory, _ = create_stage(run, planned, done, output)
        started = time.time()
        end = run_child(directory, stop=StopRequest(), environment={"OMP_NUM_THREADS": "1"}, on_line=lambda _: None)
        work = directory.read_work()
        if not isinstance(end.outcome, Finished) or work is None:
            raise SystemExit(f"{directory.path}: {end.outcome}: {' | '.join(end.last_lines)}")
        record = AttemptRecord(
            number=1,
            resources=stage_resources(planned.stage, run.resources, SITE, ResourceRequest()),
            submitted=started,
            started=started,
            ended=time.time(),
            end=EndKind.FINISHED,
            peak_memory_mib=end.peak_memory_mib,
        )
        usage = usage_of(record, work, directory.read_spec(), run_name(history, directory))
        append_usage(history, usage)
        print(f"{output.path.name} {planned.stage}: {usage.describe()}", flush=True)


def replay(usages: Sequence[Usage]) -> None:
    """Estimate each attempt from those before it, and print what came of it."""
    seen: Counter[str] = Counter()
    walltimes, memories = [], []
    used = asked = estimated = 0.0  # GiB h
    for place, one in enumerate(usages):
        assert one.asked is not None
        request = Resources.model_validate(one.asked.model_dump())
        job = Job(one.family, one.stage, one.config, one.size, one.run, one.epochs)
        found = expect(usages[:place], job, request)
        before = seen[one.stage]
        seen[one.stage] += 1
        if "walltime" in found and before >= FROM_WALLTIME:
            walltimes.append((one, found["walltime"].value / one.wall_s))
        if "memory" in found and before >= FROM_MEMORY:
            memories.append((one, found["memory"].value / one.rss_mib))
        if "walltime" in found and "memory" in found and before >= FROM_WALLTIME:
            used += one.wall_s * one.rss_mib
            asked += request.walltime_s * request.memory_mib
            estimated += found["walltime"].value * found["memory"].value
    print(f"{len(usages)} attempts at {len(seen)} stages, {len(SIZES)} sizes")
    _print_covered(f"walltime, from the {FROM_WALLTIME + 1}th run on", walltimes)
    _print_covered(f"memory, from the {FROM_MEMORY + 1}rd run on", memories)
    scale = 3600 * 1024
    print(
        f"GiB h: used {used / scale:.3g}, asked for by estimates {estimated / scale:.3g}, "
        f"by the preset {asked / scale:.3g}: "
        f"waste {(estimated - used) / scale:.3g} against {(asked - used) / scale:.3g}"
    )


def _print_covered(name: str, found: Sequence[tuple[Usage, float]]) -> None:
    if not found:
        print(f"{name}: no attempt")
        return
    ratios = sorted(ratio for _, ratio in found)
    covered = sum(ratio >= 1.0 for ratio in ratios)
    print(
        f"{name}: {covered} of {len(ratios)} covered ({covered / len(ratios):.0%}), "
        f"estimate over use from {ratios[0]:.2f} to {ratios[-1]:.2f}, median {ratios[len(ratios) // 2]:.2f}"
    )
    for one, ratio in found:
        if ratio < 1.0:
            print(f"  not covered: {one.run}: {ratio:.2f} of {one.wall_s:.1f} s and {one.rss_mib} MiB")


def main() -> None:
    """Run and replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--replay", action="store_true", help="of what is noted already; nothing is trained")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    if not arguments.replay:
        for number in range(arguments.rounds):
            for size in SIZES:
                output = OutputDirectory(folder / f"{size}-{number}")
                output.stages_path.mkdir(parents=True, exist_ok=True)
                train(plan(folder, size, number), output)
    replay(read_usages(folder / "history"))


if __name__ == "__main__":
    main()
