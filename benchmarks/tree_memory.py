"""Measure what pretraining steps on trees take, beside what `kdgat plan trees` predicts.

    OMP_NUM_THREADS=1 python benchmarks/tree_memory.py
    OMP_NUM_THREADS=1 python benchmarks/tree_memory.py --nodes 50000 --hidden 64 --interactions 3 --limit 8G
    python benchmarks/tree_memory.py --accelerator cuda

Each line is a process of its own. `torch` is the most that torch's tensors take at one time, `process` how much the
process grows (VmHWM above what it had before the first step); on a GPU, torch.cuda.max_memory_allocated, where what
matrix products work with comes on top. Prints the worst ratios and the rate: paths of H=64, L=3 per second and core.
"""

from __future__ import annotations

import argparse
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdgat.base import MIB, validate_config
from kdgat.cluster.resources import parse_memory
from kdgat.graphs import GraphColumns, TensorColumns
from kdgat.training import TrainingConfig, seed_everything
from kdgat.training.allocator import return_freed_memory
from kdgat.training.averages import Averages
from kdgat.training.measure import StepMeasurement, measure_steps, measure_training_step, run_alone
from kdgat.trees.graphs.columns import tree_columns
from kdgat.trees.names import PRETRAIN
from kdgat.trees.objectives.growth import channels_of
from kdgat.trees.sections import EncoderConfig, PretrainStageConfig
from kdgat.trees.synthetic.dataset import draw
from kdgat.trees.training.memory import TreeCounts, predict_peak, work_of
from kdgat.trees.training.pretraining import PretrainedTrees, PretrainObjective
from kdgat.trees.training.source import counts_of

NUM_TREES = 30  # that are drawn; larger batches hold them several times
LENGTH_RANGE = (0.2, 5.0)
# Of the drawn trees, roughly: enough to leave out what would take more than --limit before it is made.
PATHS_PER_NODE = {"gtmp": 2.6, "sgmp": 4.6}


@dataclass(frozen=True)
class Measurement:
    """One step, measured.

    Attributes:
        counts: of the batch.
        num_trees: of the batch.
        kept_bytes, allocated_bytes: of torch's tensors on the CPU, after the forward pass and at most, weights and
            optimizer included in the latter.
        steps: what the process took, or on a GPU its allocator.
    """

    counts: TreeCounts
    num_trees: int
    kept_bytes: int
    allocated_bytes: int
    steps: StepMeasurement | None


def measure_step(config: PretrainStageConfig, num_nodes: int, num_steps: int = 2) -> Measurement:
    """Measure steps of a batch of drawn trees with at least `num_nodes` nodes, in a process of its own.

    Raises:
        UserError: if that process could not, for instance for lack of memory.
    """
    return run_alone(measure_here, config.model_dump(mode="json"), num_nodes, num_steps)


def measure_here(content: dict[str, Any], num_nodes: int, num_steps: int) -> Measurement:
    """Measure steps in this process: what the process takes, then what torch allocates; the former if `num_steps`."""
    config = validate_config(PretrainStageConfig, content)
    columns = _columns(num_nodes)
    chosen = np.asarray(trees_of(columns, num_nodes))
    tensors = TensorColumns.from_columns(columns)
    seed_everything(0)
    objective = PretrainObjective(PretrainedTrees(config, channels_of(LENGTH_RANGE, config.growth)), config)
    steps = None
    if num_steps:
        return_freed_memory()
        # What the first step loads, whatever its size, is no part of a batch.
        with Averages().listen(objective):
            objective.training_step(tensors.gather(np.zeros(1, np.int64))).backward()
        objective.zero_grad()
        steps = measure_steps(objective, tensors.gather(chosen), config.training, num_steps=num_steps)
    kept, allocated = 0, 0
    if steps is None or not steps.on_gpu:
        kept, allocated = measure_training_step(objective, lambda: tensors.gather(chosen), config.training.precision)
    return Measurement(counts_of(columns, chosen), len(chosen), kept, allocated, steps)


def _columns(num_nodes: int) -> GraphColumns:
    parts: list[GraphColumns] = []
    for place, one in enumerate(draw("neurons", None, NUM_TREES, 0)):
        parts.append(tree_columns(one.tree, 1.0, place))
        if sum(part.num_nodes for part in parts) >= num_nodes:
            break
    return GraphColumns.concatenate(parts)


def trees_of(columns: GraphColumns, num_nodes: int) -> list[int]:
    """Choose trees one after the other, and again from the first, until they have so many nodes."""
    totals = itertools.accumulate(itertools.cycle(columns.node_counts.tolist()))
    count = next(place for place, total in enumerate(totals, start=1) if total >= num_nodes)
    return [place % columns.num_graphs for place in range(count)]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", nargs="+", type=int, default=[1_000, 10_000, 50_000])
    parser.add_argument("--hidden", nargs="+", type=int, default=[16, 32, 64, 128])
    parser.add_argument("--interactions", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--kinds", nargs="+", choices=["gtmp", "sgmp"], default=["gtmp", "sgmp"])
    parser.add_argument("--recompute", nargs="+", choices=["no", "yes"], default=["no", "yes"])
    parser.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed", "16-mixed"])
    parser.add_argument("--accelerator", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--limit", default="3G", help="leave out what is predicted to take more")
    parser.add_argument("--processes", type=int, default=1, help="side by side")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse()
    training = TrainingConfig(accelerator=arguments.accelerator, precision=arguments.precision)
    cases = [
        (nodes, PretrainStageConfig(encoder=EncoderConfig(kind=kind, hidden=hidden, interactions=rounds,
                                                          recompute=again == "yes"), training=training))
        for kind, again, nodes, hidden, rounds in itertools.product(
            arguments.kinds, arguments.recompute, arguments.nodes, arguments.hidden, arguments.interactions
        )
    ]  # fmt: skip
    print(f"{'kind':5}{'again':>6}{'nodes':>7}{'paths':>8}{'H':>4}{'L':>3}{'predicted':>10}{'torch':>8}{'ratio':>7}"
          f"{'process':>9}{'ratio':>7}{'s/step':>8}")  # fmt: skip
    ratios: dict[str, list[float]] = {"torch": [], "process": []}
    rates = []
    fitting = [case for case in cases if _guess(*case) < parse_memory(arguments.limit) * MIB]
    with ThreadPoolExecutor(arguments.processes) as pool:
        for (_, config), found in zip(fitting, pool.map(_measure, fitting), strict=True):
            rates.append(_print(config, found, ratios))
    print(f"{len(cases) - len(fitting)} of {len(cases)} left out, above --limit {arguments.limit}")
    for name, some in ratios.items():
        if some:
            print(f"predicted / {name}: {min(some):.3f} to {max(some):.3f}, {len(some)} times")
    print(f"paths of H=64, L=3 per second: {min(rates):,.0f} to {max(rates):,.0f}")


def _guess(nodes: int, config: PretrainStageConfig) -> float:
    below = (PATHS_PER_NODE[config.encoder.kind] - 1) * nodes
    return predict_peak(PRETRAIN, config, TreeCounts(nodes, nodes, below, below))


def _measure(case: tuple[int, PretrainStageConfig]) -> Measurement:
    return measure_step(case[1], case[0])


def _print(config: PretrainStageConfig, found: Measurement, ratios: dict[str, list[float]]) -> float:
    encoder, steps = config.encoder, found.steps
    assert steps is not None
    predicted = predict_peak(PRETRAIN, config, found.counts)
    process = steps.peak_bytes - steps.start_bytes
    if found.allocated_bytes:
        ratios["torch"].append(predicted / found.allocated_bytes)
    ratios["process"].append(predicted / process)
    paths = found.counts.paths(encoder)
    rate = paths * work_of(encoder) / steps.step_s
    torch_ratio = f"{ratios['torch'][-1]:7.3f}" if found.allocated_bytes else f"{'':7}"
    print(
        f"{encoder.kind:5}{'yes' if encoder.recompute else 'no':>6}{found.counts.nodes:7.0f}{paths:8.0f}"
        f"{encoder.hidden:4}{encoder.interactions:3}{predicted / MIB:10.1f}{found.allocated_bytes / MIB:8.1f}"
        f"{torch_ratio}{process / MIB:9.1f}{ratios['process'][-1]:7.3f}{steps.step_s:8.2f}",
        flush=True,
    )
    return rate


if __name__ == "__main__":
    main()
