"""The fake Slurm that the flow's tests rely on does what the real one does (`tests/slurm/test_scheduler.py`)."""

from collections.abc import Callable

import pytest

from tests.support.fake_slurm import FakeSlurm
from tests.support.scheduler_cases import Cluster, End, check_ending, every_behaviour, every_ending


@pytest.fixture
def cluster() -> FakeSlurm:
    return FakeSlurm()


@every_ending
def test_a_job_ends_as_in_slurm(cluster: FakeSlurm, end: End) -> None:
    check_ending(cluster, end)


@every_behaviour
def test_the_fake_behaves_as_slurm(cluster: FakeSlurm, behaviour: Callable[[Cluster], None]) -> None:
    behaviour(cluster)
