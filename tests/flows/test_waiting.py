import pytest

from flows.waiting import FIRST_QUESTION_S, OWN_PAUSE_S, REPORT_TIMEOUT_S, Heartbeat, Queue
from kdgat.cluster.scheduler import JobStatus
from kdgat.cluster.site import Site
from tests.support.fake_slurm import SLEEPS, FakeClock, FakeSlurm

SITE = Site(name="here", scheduler="slurm", poll_interval_s=5, start_timeout_s=60)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def slurm(clock: FakeClock) -> FakeSlurm:
    """A full cluster with one job, which waits."""
    slurm = FakeSlurm(clock)
    slurm.drain()
    slurm.submit(SLEEPS)
    clock.sleep(0.5)
    return slurm


@pytest.fixture
def queue(clock: FakeClock, slurm: FakeSlurm) -> Queue:
    queue = Queue(SITE, slurm, clock)
    queue.begin()
    return queue


@pytest.fixture
def heartbeat(clock: FakeClock) -> Heartbeat:
    return Heartbeat(clock)


def test_before_a_job_is_submitted_nobody_is_asked(clock: FakeClock, slurm: FakeSlurm) -> None:
    queue = Queue(SITE, slurm, clock)
    clock.sleep(1e6)
    assert queue.ask("") is None
    assert queue.overdue_s() == 0.0
    assert not queue.is_silent()


def test_slurm_is_asked_soon_and_then_seldom(queue: Queue, clock: FakeClock) -> None:
    assert queue.ask("1") is None
    clock.sleep(FIRST_QUESTION_S)
    assert queue.ask("1") == JobStatus("PENDING", "Resources", exit_code="0:0")
    for _ in range(2):
        clock.sleep(SITE.poll_interval_s - 0.1)
        assert queue.ask("1") is None
        clock.sleep(0.1)
        assert queue.ask("1") is not None


def test_a_change_is_told_once(queue: Queue, clock: FakeClock, slurm: FakeSlurm) -> None:
    changes = []
    for happens in (str, str, slurm.undrain, str):
        happens()
        clock.sleep(SITE.poll_interval_s)
        queue.ask("1")
        changes.append(queue.has_changed())
    assert changes == [True, False, True, False]


def test_a_job_is_overdue_once_for_each_start_timeout_that_passes(queue: Queue, clock: FakeClock) -> None:
    clock.sleep(59.0)
    assert queue.overdue_s() == 0.0
    clock.sleep(2.0)
    assert queue.overdue_s() == 61.0
    assert queue.overdue_s() == 0.0
    clock.sleep(59.0)
    assert queue.overdue_s() == 0.0
    clock.sleep(1.0)
    assert queue.overdue_s() == 121.0


def test_a_job_that_runs_is_not_overdue_but_may_be_silent(queue: Queue, clock: FakeClock, slurm: FakeSlurm) -> None:
    clock.sleep(50.0)
    slurm.undrain()
    queue.ask("1")
    clock.sleep(100.0)
    queue.ask("1")
    assert queue.overdue_s() == 0.0
    assert not queue.is_silent()
    clock.sleep(REPORT_TIMEOUT_S - 100.0)
    assert not queue.is_silent()
    clock.sleep(1.0)
    assert queue.is_silent()


def test_silence_lasts_from_the_last_heartbeat(heartbeat: Heartbeat, clock: FakeClock) -> None:
    assert heartbeat.silence_s(17.0) == 0.0
    for second in range(1, 4):
        clock.sleep(1.0)
        assert heartbeat.silence_s(17.0) == second
    clock.sleep(1.0)
    assert heartbeat.silence_s(21.0) == 0.0


def test_the_time_in_which_we_slept_ourselves_is_no_silence(heartbeat: Heartbeat, clock: FakeClock) -> None:
    heartbeat.silence_s(17.0)
    clock.sleep(3.0)
    assert heartbeat.silence_s(17.0) == 3.0
    clock.sleep(3600.0)  # a laptop's lid, or a flow that was stopped
    assert heartbeat.silence_s(17.0) == 0.0
    clock.sleep(OWN_PAUSE_S)
    assert heartbeat.silence_s(17.0) == OWN_PAUSE_S
