"""Attempts that were recorded, each estimated from those before it: kdgat's own stages, with inputs of three sizes.

`benchmarks/estimates.py` records them, on a machine whose processors others used as well.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kdgat.cluster import Expectation, Resources
from kdgat.cluster.forecast import Job, expect
from kdgat.cluster.usage import Usage, read_usages

RECORDED = read_usages(Path(__file__).parent / "recorded")


def replayed(from_run: int) -> list[tuple[Usage, Expectation]]:
    """Return the attempts of the stages' runs from this one on, with what was expected of them."""
    seen: Counter[str] = Counter()
    found = []
    for place, one in enumerate(RECORDED):
        assert one.asked is not None
        job = Job(one.family, one.stage, one.config, one.size, one.run, one.epochs)
        expected = expect(RECORDED[:place], job, Resources.model_validate(one.asked.model_dump()))
        seen[one.stage] += 1
        if seen[one.stage] >= from_run:
            found.append((one, expected))
    return found


def wasted(amount: Callable[[Usage, Expectation], float]) -> float:
    return sum(amount(one, found) - one.wall_s * one.rss_mib for one, found in replayed(4))


def of_estimates(one: Usage, found: Expectation) -> float:
    return found["walltime"].value * found["memory"].value


def of_preset(one: Usage, _: Expectation) -> float:
    assert one.asked is not None
    return one.asked.walltime_s * one.asked.memory_mib


def test_there_are_enough_attempts_stages_and_sizes() -> None:
    assert len(RECORDED) >= 30
    assert len({one.stage for one in RECORDED}) >= 3
    assert len({one.run.partition("-")[0] for one in RECORDED}) == 3


def test_three_of_four_walltimes_from_the_fourth_run_on_are_enough() -> None:
    enough = [found["walltime"].value >= one.wall_s for one, found in replayed(4)]
    assert sum(enough) >= 0.75 * len(enough)


def test_no_memory_from_the_third_run_on_is_too_little() -> None:
    for one, found in replayed(3):
        assert found["memory"].value >= one.rss_mib, one.run


def test_what_is_asked_for_and_not_used_is_a_small_part_of_what_the_preset_asks_for_in_vain() -> None:
    assert wasted(of_estimates) < 0.1 * wasted(of_preset)
