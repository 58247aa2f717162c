"""What a step of training asks of a GPU: launches, uploads and waits are what small graphs spend their time with."""

from collections import Counter

import pytest

from kdgat.gpu.networks import NETWORKS
from kdgat.gpu.step import Stepper, make_stepper
from kdgat.graphs import place_columns
from kdgat.graphs.padding import Capacity, StaticGather
from tests.pretended_cuda.device import CUDA, Seen

# Launches of a step of the usual size, with what measures it. Fewer is better: lower the number then.
MOST_LAUNCHES = {"GAT large": 380, "VGAE large": 390, "GATv2 large": 460}
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
    # Their sweeps and paths have sizes that the host asks for: lap/graphs/lists.py, trees/models/paths.py.
    assert NETWORKS.keys() - MOST_LAUNCHES.keys() == {"LAP 512", "LAP 2048", "trees"}
