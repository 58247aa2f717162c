"""What is estimated from attempts: rules one by one, and a replay of runs in order."""

import math

import numpy as np
import pytest

from kdgat.cluster.forecast import Job, estimate_memory, estimate_walltime, like, similar
from kdgat.cluster.usage import Asked, Usage, append_usage, read_usages


def usage(run="a", unit_s=0.1, rss_mib=3000, graphs=1000, **given):
    fields = {"time": 0.0, "family": "can", "stage": "normal", "device": "cpu", "parameters": 100, "startup_s": 6.0}
    return Usage(run=run, unit_s=unit_s, rss_mib=rss_mib, size={"graphs": graphs}, **{**fields, **given})


def walltime_of(rate, units, startup=6.0):
    return math.ceil(1.15 * (startup + units * rate + 20))


@pytest.mark.parametrize(
    ("rates", "rate", "coverage"),
    [
        ([0.1], 0.15, 0.5),
        ([0.1, 0.2], 0.26, 2 / 3),
        ([0.1, 0.2, 0.15], 0.24, 0.75),
        ([0.4, 0.1, 0.2, 0.3], 0.4, 0.8),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 0.8, 0.8),
    ],
)
def test_the_rate_is_the_one_that_covers_the_next_run(rates, rate, coverage) -> None:
    found = estimate_walltime([usage(str(place), one) for place, one in enumerate(rates)], [], 1000, parameters=100)
    assert (found.value, found.coverage) == (walltime_of(rate, 1000), pytest.approx(coverage))
    assert f"{len(rates)} run" in found.source
    assert "1,000 steps" in found.source


def test_attempts_of_one_run_are_one_observation() -> None:
    found = estimate_walltime([usage("a", 0.1), usage("a", 0.2), usage("a", 0.1)], [], 10, parameters=100)
    assert (found.value, found.coverage) == (walltime_of(0.3, 10), 0.5)


def test_what_this_run_has_shown_comes_first() -> None:
    found = estimate_walltime([usage("a", 9.0)], [usage("b", 0.2)], 10, parameters=100)
    assert found.value == walltime_of(0.22, 10)
    assert "this run" in found.source


def test_rates_of_another_model_are_scaled_and_those_of_the_same_come_first() -> None:
    larger = usage("a", 0.4, parameters=200)
    assert estimate_walltime([larger], [], 10, parameters=100).value == walltime_of(0.3, 10)
    assert estimate_walltime([larger, usage("b", 0.1)], [], 10, parameters=100).value == walltime_of(0.15, 10)


def test_without_a_rate_nothing_is_estimated() -> None:
    assert estimate_walltime([usage(unit_s=0.0)], [], 10) is None
    assert estimate_memory([usage(rss_mib=0)], {}, 4096, with_gpu=False) is None


def test_memory_grows_with_the_size_and_never_shrinks_below_what_was_seen() -> None:
    seen = [usage("a", rss_mib=10_000, graphs=1000)] * 3
    runs = [one.model_copy(update={"run": str(place)}) for place, one in enumerate(seen)]
    twice, half = (estimate_memory(runs, {"graphs": n}, 4096, with_gpu=False).value for n in (2000, 500))
    assert twice == math.ceil(20_000 * 1.2 + 256)
    assert half == math.ceil(10_000 * 1.2 + 256)


@pytest.mark.parametrize(
    ("now", "chosen"),
    [
        (1000, [900, 1200]),
        (5000, [9000, 10_000]),
        (100_000, [9000, 10_000]),
        (300, [900, 1200]),
        (9500, [9000, 10_000]),
    ],
)
def test_attempts_that_read_about_as_much_count_else_next_more_else_next_less(now, chosen) -> None:
    known = [usage(str(graphs), graphs=graphs) for graphs in (900, 1200, 9000, 10_000)]
    assert [one.size["graphs"] for one in similar(known, {"graphs": now})] == chosen
    assert similar(known, {}) == known
    assert similar([], {"graphs": now}) == []


def test_memory_of_much_larger_runs_is_not_asked_for_where_similar_ones_are_known() -> None:
    known = [usage(str(place), graphs=1000, rss_mib=3000) for place in range(3)]
    known += [usage("large", graphs=100_000, rss_mib=60_000)]
    assert estimate_memory(known, {"graphs": 1000}, 65_536, with_gpu=False).value == math.ceil(3000 * 1.2 + 256)
    died = usage("died", graphs=100_000, rss_mib=60_000, out_of_memory=True)
    assert estimate_memory([*known, died], {"graphs": 1000}, 65_536, with_gpu=False).value > 90_000


def test_few_runs_never_ask_for_less_than_half_of_what_is_configured() -> None:
    runs = [usage(str(place), rss_mib=100) for place in range(3)]
    assert estimate_memory(runs[:2], {}, 65_536, with_gpu=False).value == 32_768
    assert estimate_memory(runs, {}, 65_536, with_gpu=False).value == 2048
    assert estimate_memory(runs, {}, 65_536, with_gpu=True).value == 4096


def test_a_run_that_was_out_of_memory_asks_for_more_than_it_had() -> None:
    asked = Asked(walltime_s=3600, memory_mib=8192, cores=1)
    found = estimate_memory([usage(rss_mib=8000, out_of_memory=True, asked=asked)], {}, 4096, with_gpu=False)
    assert found.value >= 1.5 * 8192


def test_a_line_is_taken_only_where_sizes_explain_the_memory() -> None:
    sizes = [1000, 2000, 4000, 1000, 2000, 4000]
    straight = [usage(str(place), rss_mib=2000 + 4 * graphs, graphs=graphs) for place, graphs in enumerate(sizes)]
    found = estimate_memory(straight, {"graphs": 8000}, 4096, with_gpu=False)
    assert "line through 6 runs" in found.source
    assert found.value == math.ceil((2000 + 32_000) * 1.1 + 256)
    flat = [usage(str(place), rss_mib=5000 + place % 2, graphs=graphs) for place, graphs in enumerate(sizes)]
    assert "largest of" in estimate_memory(flat, {"graphs": 8000}, 4096, with_gpu=False).source


@pytest.mark.parametrize("seed", range(5))
def test_replayed_runs_are_covered_as_often_as_is_claimed(seed) -> None:
    """Rates of one node type scatter by a fifth; memory has a part that does not follow the size."""
    generator = np.random.default_rng(seed)
    before: list[Usage] = []
    covered, short = [], 0
    for number in range(60):
        graphs = int(generator.choice([2000, 9000, 30_000]))
        rate = 0.05 * float(np.exp(generator.normal(0, 0.2)))
        memory = 1500 + 0.2 * graphs * float(np.exp(generator.normal(0, 0.05)))
        run = usage(str(number), rate, round(memory), graphs, done=10 * graphs)
        if number >= 4:
            walltime = estimate_walltime(before, [], 10 * graphs, parameters=100)
            needed_s = run.startup_s + (run.done + run.left) * run.unit_s + run.checkpoint_s
            covered.append(walltime.value >= needed_s)
        if number >= 3:
            short += estimate_memory(before, run.size, 8192, with_gpu=False).value < memory
        before.append(run)
    assert np.mean(covered) >= 0.75
    assert short == 0


def test_lines_of_many_runs_are_read_and_damaged_ones_left_out(tmp_path) -> None:
    assert append_usage(tmp_path / "history" / "one.jsonl", usage("one", time=2.0))
    assert append_usage(tmp_path / "history" / "two.jsonl", usage("two", time=1.0, device="v100"))
    with (tmp_path / "history" / "two.jsonl").open("a") as file:
        file.write('{"v": 9, "time": 3.0}\n{"v": 1, "ti')
    found = read_usages(tmp_path / "history")
    assert [one.run for one in found] == ["two", "one"]
    job = Job("can", "normal", "same")
    assert like(found, job, cores=1, gpus=0) == [found[1]]
    assert like(found, job, cores=1, gpus=1) == [found[0]]
    assert like(found, job, cores=1, gpus=2) == []
