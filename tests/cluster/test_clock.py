import pytest

from kdgat.cluster.clock import OWN_PAUSE_S, Heartbeat, StartTimeout
from tests.support.fake_slurm import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def heartbeat(clock: FakeClock) -> Heartbeat:
    return Heartbeat(clock)


def test_a_job_is_overdue_once_for_each_start_timeout_that_passes(clock: FakeClock) -> None:
    timeout = StartTimeout(60.0, clock)
    clock.sleep(59.0)
    assert timeout.overdue_s() == 0.0
    clock.sleep(2.0)
    assert timeout.overdue_s() == 61.0
    assert timeout.overdue_s() == 0.0
    clock.sleep(59.0)
    assert timeout.overdue_s() == 0.0
    clock.sleep(1.0)
    assert timeout.overdue_s() == 121.0


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
