"""What duals to start from are worth: scipy, lapx, and our exact solver from untrained, trained and optimal duals.

    OMP_NUM_THREADS=1 python benchmarks/lap_warm_starts.py
    OMP_NUM_THREADS=1 python benchmarks/lap_warm_starts.py --model runs/lap --families uniform sparse metric
    OMP_NUM_THREADS=1 python benchmarks/lap_warm_starts.py --model runs/lap/stages/small_512_only-512-seed* --sizes 512

Makes fresh instances (of seeds that no training uses), lets all methods take turns on each in one process, checks every
answer against the optimum's certificate, and prints counters, milliseconds with features and inference included, and
ratios, which mean more than milliseconds where a machine does other things too. `--model` takes the output directory
of `kdgat train lap`, or weights.

Several models are taken as one configuration trained with as many seeds. Each solves instances of its own, in turn with
the same form of network before training, the sweeps that it unrolls, and what the solver starts from by itself. Printed
are means over the training seeds with 95 % intervals: processor time of the start that is named over that of the
trained one, features and inference included (above 1: training pays), and entries looked at by searches in the same
way.
"""

import argparse
import statistics
import time
from pathlib import Path

from rich.console import Console

from kdgat.cli.tables import print_tables
from kdgat.lap.evaluation.baselines import TRAINED, Contender, baselines
from kdgat.lap.evaluation.measurement import compile_methods, measure_problem
from kdgat.lap.evaluation.results import Evaluation, summarise
from kdgat.lap.evaluation.tables import comparison_table, methods_table
from kdgat.lap.evaluation.timing import describe_machine
from kdgat.lap.instances.distributions import DISTRIBUTIONS, generate
from kdgat.lap.instances.label import Problem, check_assignment, check_label
from kdgat.lap.instances.records import label
from kdgat.lap.models.predictor import Predictor
from kdgat.lap.sections import METHODS, EvaluationConfig, Method
from kdgat.lap.training.start import last_weights
from kdgat.run import Interval
from kdgat.training import one_thread

FIRST_SEED = 1 << 62  # beyond all that a run draws training, validation and test instances from
MODEL = "model"
UNTRAINED: tuple[Method, ...] = ("column or row minima", "neighbour sweeps", "untrained network")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", nargs="+", default=[], type=Path, help="output directories of `kdgat train lap`, stages, or weights"
    )
    parser.add_argument("--families", nargs="+", default=["uniform", "sparse", "metric"], choices=list(DISTRIBUTIONS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[2048])
    parser.add_argument("--instances", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--solvers", nargs="+", default=["core"], choices=["core", "dense", "auto"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    return parser.parse_args()


def measure(
    family: str, size: int, first_seed: int, count: int, repeats: int, methods: list[Contender]
) -> dict[str, tuple[float, float]]:
    """Return the mean seconds of the fastest call, and the mean entries looked at, of each method by its key."""
    seconds: dict[str, list[float]] = {method.key: [] for method in methods}
    entries: dict[str, list[float]] = {method.key: [] for method in methods}
    for number in range(count):
        record = label(generate(family, size, first_seed + number))
        name = f"{family}, n = {size}, instance {number}"
        problem = Problem(name, record.cost, record.mask, record.u, record.v, record.optimum)
        check_label(problem)
        fastest = dict.fromkeys(seconds, float("inf"))
        for turn in range(repeats):
            for method in methods[turn % len(methods) :] + methods[: turn % len(methods)]:
                started = time.process_time()
                answer = method.call(problem, None)
                fastest[method.key] = min(fastest[method.key], time.process_time() - started)
                check_assignment(problem, method.key, answer.rows, answer.columns)
                assert answer.assignment is not None
                if turn == 0:
                    entries[method.key].append(answer.assignment.counters.scanned_columns)
        for key, value in fastest.items():
            seconds[key].append(value)
    return {key: (statistics.fmean(seconds[key]), statistics.fmean(entries[key])) for key in seconds}


def print_group(title: str, solver: str, runs: list[dict[str, tuple[float, float]]]) -> None:
    """Print the ratios of one family, size and method of the solver."""
    trained = f"{TRAINED} {MODEL} ({solver})"
    others = {name: f"{name} ({solver})" for name in UNTRAINED}
    cells = []
    for place, what in enumerate(("time", "entries")):
        ratios = {
            name: Interval.of([(run[key][place] + (place == 1)) / (run[trained][place] + (place == 1)) for run in runs])
            for name, key in others.items()
        }
        best = min(ratios, key=lambda name: ratios[name].mean)
        cells += [f"    {what:8s} {name:22s} {ratio.text}" for name, ratio in ratios.items()]
        cells.append(f"    {what:8s} best: {best}, {ratios[best].text}")
    milliseconds = Interval.of([1e3 * run[trained][0] for run in runs])
    print(f"{title}, {solver}: trained {milliseconds.mean:.3g} ms", *cells, sep="\n", flush=True)


def compare_seeds(arguments: argparse.Namespace) -> None:
    """Measure and print models that differ in their training seeds."""
    predictors = [Predictor.load(last_weights(path)) for path in arguments.model]
    methods = [baselines((*UNTRAINED, "trained"), arguments.solvers, {MODEL: one}) for one in predictors]
    compile_methods(methods[0])
    for family in arguments.families:
        for size in arguments.sizes:
            runs = [
                measure(family, size, FIRST_SEED + 1000 * k, arguments.instances, arguments.repeats, contenders)
                for k, contenders in enumerate(methods)
            ]
            for solver in arguments.solvers:
                print_group(f"{family}, n = {size}", solver, runs)


def main() -> None:
    """Measure and print."""
    arguments = parse()
    if len(arguments.model) > 1:
        with one_thread():
            compare_seeds(arguments)
        return
    config = EvaluationConfig(repeats=arguments.repeats, solvers=arguments.solvers, methods=arguments.methods)
    predictors = {
        name: Predictor.load(last_weights(path)) for name, path in zip((MODEL,), arguments.model, strict=False)
    }
    methods = baselines(config.methods, config.solvers, predictors)
    rows = []
    with one_thread():
        compile_methods(methods)
        for size in arguments.sizes:
            for family in arguments.families:
                for number in range(arguments.instances):
                    record = label(generate(family, size, FIRST_SEED + number))
                    name = f"{family}, n = {size}, instance {number}"
                    problem = Problem(name, record.cost, record.mask, record.u, record.v, record.optimum)
                    check_label(problem)
                    rows += measure_problem(problem, family, number, methods, config)
    evaluation = Evaluation(
        seed=0,
        final_method=f"{TRAINED} {MODEL}" if predictors else None,
        num_checked={str(size): dict.fromkeys(arguments.families, arguments.instances) for size in arguments.sizes},
        machine=describe_machine(),
        measurements=rows,
    )
    results = summarise([evaluation], created="")
    console = Console(width=120, highlight=False)
    machine = results.machine
    console.print(f"{machine.processor}, 1 thread; {', '.join(f'{name} {v}' for name, v in machine.versions.items())}")
    console.print()
    print_tables(console, [*map(methods_table, results.groups), comparison_table(results)])
    for conclusion in results.conclusions.values():
        console.print(conclusion)


if __name__ == "__main__":
    main()
