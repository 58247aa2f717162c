"""What duals to start from are worth: scipy, lapx, and our exact solver from untrained, trained and optimal duals.

    OMP_NUM_THREADS=1 python benchmarks/lap_warm_starts.py
    OMP_NUM_THREADS=1 python benchmarks/lap_warm_starts.py --model runs/lap --families uniform sparse metric

Makes fresh instances (of seeds that no training uses), lets all methods take turns on each in one process, checks every
answer against the optimum's certificate, and prints counters, milliseconds with features and inference included, and
ratios, which mean more than milliseconds where a machine does other things too. `--model` takes the output directory
of `kdgat train lap`, or weights.
"""

import argparse
from pathlib import Path

from rich.console import Console

from kdgat.cli.tables import print_tables
from kdgat.lap.evaluation.baselines import TRAINED, baselines
from kdgat.lap.evaluation.measurement import compile_methods, measure_problem
from kdgat.lap.evaluation.results import Evaluation, summarise
from kdgat.lap.evaluation.tables import comparison_table, methods_table
from kdgat.lap.evaluation.timing import describe_machine
from kdgat.lap.instances.distributions import DISTRIBUTIONS, generate
from kdgat.lap.instances.records import label
from kdgat.lap.models.predictor import Predictor
from kdgat.lap.sections import METHODS, EvaluationConfig
from kdgat.lap.solver.certificate import Problem, check_label
from kdgat.lap.training.start import last_weights
from kdgat.training.threads import one_thread

FIRST_SEED = 1 << 62  # beyond all that a run draws training, validation and test instances from
MODEL = "model"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="output directory of `kdgat train lap`, or weights")
    parser.add_argument("--families", nargs="+", default=["uniform", "sparse", "metric"], choices=list(DISTRIBUTIONS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[2048])
    parser.add_argument("--instances", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--solvers", nargs="+", default=["core"], choices=["core", "dense"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse()
    config = EvaluationConfig(repeats=arguments.repeats, solvers=arguments.solvers, methods=arguments.methods)
    weights = None if arguments.model is None else last_weights(arguments.model)
    predictors = {} if weights is None else {MODEL: Predictor.load(weights)}
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
