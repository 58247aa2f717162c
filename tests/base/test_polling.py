import time

from kdgat.base import wait_until


def test_an_answer_that_becomes_true_ends_the_waiting_and_one_that_does_not_ends_with_the_limit() -> None:
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), limit_s=600.0, poll_s=0.0)
    began = time.monotonic()
    assert not wait_until(lambda: False, limit_s=0.05, poll_s=600.0)
    assert 0.05 <= time.monotonic() - began < 300.0


def test_what_came_true_with_the_limit_counts_and_without_time_one_question_is_asked() -> None:
    asked: list[float] = []

    def is_late() -> bool:
        asked.append(time.monotonic())
        return len(asked) == 2

    assert wait_until(is_late, limit_s=0.02, poll_s=600.0)
    asked.clear()
    assert not wait_until(is_late, limit_s=0.0)
    assert len(asked) == 1
