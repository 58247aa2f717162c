"""Limits hold for a process and cannot be raised again, so each case is a process of its own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

SCRIPT = """
import logging, resource, sys
soft, hard, jobs = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from flows.execution import logger, watchable_jobs
logger.addHandler(logging.StreamHandler())  # as commands and flow runs have one
print(watchable_jobs(jobs), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def watchable(soft: int, hard: int, jobs: int) -> tuple[list[int], str]:
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard), str(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()], done.stderr


@pytest.mark.parametrize("jobs", [1, 32])
def test_a_limit_that_suffices_is_left_alone(jobs: int) -> None:
    assert watchable(1024, 4096, jobs) == ([jobs, 1024, 4096], "")


def test_a_limit_that_is_too_low_is_raised_as_far_as_needed() -> None:
    (jobs, soft, hard), said = watchable(256, 4096, 100)
    assert (jobs, hard, said) == (100, 4096, "")
    assert 256 < soft < hard


def test_where_the_limit_cannot_be_raised_fewer_jobs_are_watched_and_it_is_said() -> None:
    (jobs, soft, hard), said = watchable(256, 1024, 200)
    assert 1 <= jobs < 200
    assert soft == hard == 1024
    assert f"watch {jobs} jobs at once instead of 200" in said


def test_at_least_one_job_is_watched() -> None:
    assert watchable(64, 64, 5)[0][0] == 1
