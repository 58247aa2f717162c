"""Stop signals raise where nobody looks, and only set a flag where a loop does."""

import os
import signal
import threading

import pytest

from kdgat.stage.errors import StopRequested
from kdgat.stage.signals import STOP_SIGNALS, stop_signals


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_unwatched_signal_raises_and_no_except_exception_swallows_it(number):
    def careless():
        try:
            send(number)
        except Exception:
            pytest.fail("swallowed")

    with stop_signals() as stop, stop.interrupting(), pytest.raises(StopRequested, match=number.name):
        careless()
    assert stop.signal_name == number.name


def test_watched_signal_sets_the_flag_and_the_first_one_names_the_reason():
    with stop_signals() as stop:
        assert not stop
        send(signal.SIGUSR1)
        send(signal.SIGTERM)
        assert stop
        assert stop.signal_name == "SIGUSR1"


def test_second_interrupt_from_the_keyboard_insists():
    with stop_signals():
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_pending_signal_raises_as_soon_as_interrupting_is_entered():
    with stop_signals() as stop:
        send(signal.SIGTERM)
        with pytest.raises(StopRequested), stop.interrupting():
            pytest.fail("entered")
        send(signal.SIGTERM)  # watched again: does not raise


def test_a_signal_between_the_handler_and_the_first_look_is_looked_at(monkeypatch):
    install = signal.signal

    def at_once(number, handler):
        previous = install(number, handler)
        if number == signal.SIGTERM and callable(handler):
            send(number)
        return previous

    monkeypatch.setattr(signal, "signal", at_once)
    with stop_signals() as stop:
        assert stop.signal_name == "SIGTERM"


def test_inner_use_shares_the_outer_flag_and_keeps_its_handlers():
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as outer:
        with stop_signals() as inner:
            send(signal.SIGTERM)
        assert outer is inner
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_get_a_flag_that_stays_unset():
    flags = []

    def work():
        with stop_signals() as stop:
            flags.append(bool(stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert flags == [False]
