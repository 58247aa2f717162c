"""One question to Slurm for all who watch jobs, and no more of them than somebody needs."""

import pytest

from kdgat.cluster.slurm import HURRY_S, SLOWEST, JobQueue
from tests.support.fake_slurm import SLEEPS, FakeSlurm

INTERVAL_S = 5.0


@pytest.fixture
def slurm() -> FakeSlurm:
    """A full cluster, on which jobs wait."""
    slurm = FakeSlurm()
    slurm.drain()
    return slurm


@pytest.fixture
def queue(slurm: FakeSlurm) -> JobQueue:
    return JobQueue(slurm, INTERVAL_S, slurm.clock)


def state(queue: JobQueue, slurm: FakeSlurm, job_id: str, name: str = "wrap", since: float = 0.0) -> str:
    return queue.status(job_id, (name,), since).state


def watch(queue: JobQueue, slurm: FakeSlurm, seconds: float) -> int:
    """Look at all jobs four times a second; return how often Slurm was asked."""
    before, until = slurm.num_questions, slurm.clock.monotonic() + seconds
    while slurm.clock.monotonic() < until:
        for job in list(slurm.jobs):
            queue.status(job, ("wrap",), 0.0)
        slurm.clock.sleep(0.25)
    return slurm.num_questions - before


def test_a_hundred_jobs_cost_one_question_each_time(queue: JobQueue, slurm: FakeSlurm) -> None:
    for _ in range(100):
        slurm.submit(SLEEPS)
    num_questions = watch(queue, slurm, 3600)
    assert 3600 / (SLOWEST * INTERVAL_S) <= num_questions <= 3600 / (SLOWEST * INTERVAL_S) + 20


def test_changes_are_seen_within_the_interval_and_somebody_who_waits_for_one_sees_it_soon(
    queue: JobQueue, slurm: FakeSlurm
) -> None:
    job = slurm.submit(SLEEPS)
    watch(queue, slurm, 600)
    slurm.undrain()
    undrained = slurm.clock.monotonic()
    while state(queue, slurm, job) != "RUNNING":
        slurm.clock.sleep(0.25)
    assert slurm.clock.monotonic() - undrained <= SLOWEST * INTERVAL_S
    assert watch(queue, slurm, 3 * INTERVAL_S) == 2  # something has just changed: what is next?
    watch(queue, slurm, 600)
    slurm.cancel(job)
    queue.hurry()
    watch(queue, slurm, HURRY_S + 0.25)
    assert state(queue, slurm, job) == "GONE"


def test_who_hurries_all_the_time_asks_once_a_second_at_most(queue: JobQueue, slurm: FakeSlurm) -> None:
    slurm.submit(SLEEPS)
    before = slurm.num_questions
    for _ in range(400):
        queue.hurry()
        queue.status("1", ("wrap",), 0.0)
        slurm.clock.sleep(0.25)
    assert slurm.num_questions - before <= 101
    slurm.stop_controller()
    before = slurm.num_questions
    for _ in range(400):
        queue.hurry()
        queue.status("1", ("wrap",), 0.0)
        slurm.clock.sleep(0.25)
    assert slurm.num_questions - before <= 101


def test_an_older_answer_says_nothing_about_a_job_that_was_submitted_since(queue: JobQueue, slurm: FakeSlurm) -> None:
    assert state(queue, slurm, "1") == "GONE"
    job, since = slurm.submit(SLEEPS), slurm.clock.monotonic() + 0.1
    assert state(queue, slurm, job, since=since) == "UNKNOWN"
    slurm.clock.sleep(INTERVAL_S)
    assert state(queue, slurm, job, since=since) == "PENDING"


def test_a_number_with_another_name_is_another_job(queue: JobQueue, slurm: FakeSlurm) -> None:
    job = slurm.submit(SLEEPS, name="of somebody else")
    assert state(queue, slurm, job, "ours") == "GONE"
    assert state(queue, slurm, job, "of somebody else") == "PENDING"


def test_without_an_answer_nothing_is_known_and_what_was_known_stays(queue: JobQueue, slurm: FakeSlurm) -> None:
    slurm.stop_controller()
    assert state(queue, slurm, "1") == "UNKNOWN"
    assert queue.named("wrap") is None
    slurm.start_controller()
    job = slurm.submit(SLEEPS)
    slurm.clock.sleep(INTERVAL_S)
    assert queue.named("wrap") == [job]
    slurm.stop_controller()
    watch(queue, slurm, 60)
    assert state(queue, slurm, job) == "PENDING"


def test_all_who_ask_for_a_name_at_the_same_time_share_an_answer(queue: JobQueue, slurm: FakeSlurm) -> None:
    job = slurm.submit(SLEEPS, name="ours")
    for _ in range(50):
        assert queue.named("ours") == [job]
        assert queue.named("another") == []
    assert slurm.num_questions == 1
