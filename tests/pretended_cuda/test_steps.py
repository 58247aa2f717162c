"""What a step of training asks of a GPU: launches, uploads and waits are what small graphs spend their time with."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from lightning import LightningModule

from kdgat.gpu.networks import NETWORKS, autoencoder, detector, random_windows
from kdgat.gpu.step import Stepper, make_stepper
from kdgat.graphs import GraphColumns, place_columns
from kdgat.graphs.padding import Capacity, StaticGather
from kdgat.lap.graphs.bipartite import build_graph
from kdgat.lap.models import make_model
from kdgat.lap.sections import ModelConfig
from kdgat.lap.training.objective import WarmStartObjective
from kdgat.training import TrainingConfig
from kdgat.trees.models.classifier import TreePredictor
from kdgat.trees.objectives.growth import channels_of
from kdgat.trees.sections import EncoderKind, HeadConfig, PretrainStageConfig
from kdgat.trees.training.finetuning import FinetuneObjective, Task
from kdgat.trees.training.pretraining import PretrainedTrees, PretrainObjective
from tests.lap.graph_examples import GRAPH, problem
from tests.pretended_cuda.device import CUDA, Seen
from tests.trees.examples import TINY, columns_of, random_tree

# Launches of a step of the usual size, with what measures it. Fewer is better: lower the number then.
MOST_LAUNCHES = {"GAT large": 380, "VGAE large": 390, "GATv2 large": 460, "trees": 1600, "LAP 512": 4300}
SENT_PER_GRAPH = 8 * 7  # its number, sizes and places


def take_steps(stepper: Stepper, count: int, first: int = 2) -> None:
    for step in range(first, first + count):
        stepper.learn(stepper.batch(step))


@pytest.fixture(params=MOST_LAUNCHES)
def name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_step_waits_for_nothing_and_sends_indices_alone(name: str, seen: Seen) -> None:
    stepper = make_stepper(name, "cuda")
    take_steps(stepper, 2, first=0)
    seen.clear()
    take_steps(stepper, 3)
    assert seen.waits == Counter()
    assert seen.uploads.total() == 3 * 2
    assert seen.bytes_sent == 3 * (SENT_PER_GRAPH * stepper.size + 8)
    assert seen.launches <= 3 * MOST_LAUNCHES[name]


@pytest.mark.parametrize("make", [detector, autoencoder])
def test_validation_of_windows_waits_for_nothing(make: Callable[[float], LightningModule], seen: Seen) -> None:
    stepper = Stepper(make(0.1), random_windows(16), 4, "cuda", "32-true")
    stepper.module.eval()
    with stepper.averages.listen(stepper.module), torch.no_grad():
        for step in range(3):
            batch = stepper.batch(step)
            seen.clear()
            stepper.module.validation_step(batch)
    assert seen.waits == Counter()
    assert seen.uploads == Counter()


def test_every_step_launches_the_same_operators(name: str, seen: Seen) -> None:
    stepper = make_stepper(name, "cuda")
    take_steps(stepper, 2, first=0)
    steps = []
    for step in (2, 3):
        seen.clear()
        seen.calls = []
        take_steps(stepper, 1, first=step)
        steps.append([operator for operator, _ in seen.calls])
    assert steps[0] == steps[1]


@pytest.mark.parametrize("name", ["GAT large", "VGAE large"])
def test_steps_on_padded_batches_launch_the_same_operators_on_the_same_shapes(name: str, seen: Seen) -> None:
    stepper = make_stepper(name, "cuda")
    take_steps(stepper, 1, first=0)
    columns = place_columns([NETWORKS[name].columns()], CUDA)
    assert columns is not None
    plan = [stepper.indices(step) for step in range(4)]
    static = StaticGather(columns, Capacity.of(columns, plan))
    steps = []
    for indices in plan:
        seen.clear()
        seen.calls = []
        static.choose(indices)
        stepper.learn(static())
        steps.append(seen.calls)
        assert seen.waits == Counter()
        assert (seen.uploads.total(), seen.bytes_sent) == (1, 8 * stepper.size)
    assert steps[1] == steps[2] == steps[3]


def test_all_networks_are_tried_or_left_out_knowingly() -> None:
    assert NETWORKS.keys() - MOST_LAUNCHES.keys() == {"LAP 2048"}  # as LAP 512, and slow


def some_trees() -> GraphColumns:
    """Return trees of several shapes, a node alone among them, with classes."""
    trees = columns_of([random_tree(seed, size) for seed, size in enumerate((30, 1, 12, 50, 2))])
    return trees.replace(label=np.arange(trees.num_graphs, dtype=np.int32) % 2)


def pretraining(kind: EncoderKind) -> LightningModule:
    config = PretrainStageConfig(
        training=TrainingConfig(), encoder=TINY.model_copy(update={"kind": kind, "recompute": True})
    )
    return PretrainObjective(PretrainedTrees(config, channels_of((0.2, 5.0), config.growth)), config)


def classification(*, is_gin: bool) -> LightningModule:
    return FinetuneObjective(TreePredictor(TINY, HeadConfig(), 2, is_gin=is_gin), Task(("one", "other")))


def instances_of_several_shapes() -> GraphColumns:
    problems = (problem(10, 10, 0, 0.2), problem(6, 9, 1), problem(12, 12, 2))
    return GraphColumns.concatenate([build_graph(cost, mask, config=GRAPH) for cost, mask in problems])


@pytest.mark.parametrize(
    ("make", "make_columns"),
    [
        (lambda: pretraining("gtmp"), some_trees),
        (lambda: pretraining("sgmp"), some_trees),
        (lambda: classification(is_gin=False), some_trees),
        (lambda: classification(is_gin=True), some_trees),
        (lambda: WarmStartObjective(make_model(ModelConfig())), instances_of_several_shapes),
    ],
    ids=["branches", "paths in every direction", "classes", "gin", "assignment"],
)
def test_steps_of_other_kinds_and_of_graphs_of_all_sizes_wait_for_nothing(
    make: Callable[[], LightningModule], make_columns: Callable[[], GraphColumns], seen: Seen
) -> None:
    stepper = Stepper(make(), make_columns(), 4, "cuda", "32-true")
    take_steps(stepper, 1, first=0)
    seen.clear()
    take_steps(stepper, 2)
    assert (seen.waits, seen.uploads.total()) == (Counter(), 2 * 2)
