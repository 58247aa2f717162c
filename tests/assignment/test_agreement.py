"""Every entrance agrees with scipy: small, with a background, in a batch, seeded, as drop-in."""

from tests.assignment.agreement import check_all


def test_every_entrance_agrees_with_scipy() -> None:
    kinds = check_all(400, seed=0)
    assert len(kinds) == 14


def test_larger_problems_agree_too() -> None:
    check_all(30, seed=1, largest=300)
