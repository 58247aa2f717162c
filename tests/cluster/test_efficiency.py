import pytest

from kdgat.cluster.efficiency import efficiencies
from kdgat.cluster.usage import Asked, Usage


def usage(run, wall_s, rss_mib, queue_s=0.0, stage="normal", **asked):
    return Usage(
        time=0.0, run=run, family="can", stage=stage, device="v100", wall_s=wall_s, rss_mib=rss_mib, queue_s=queue_s,
        asked=Asked(**asked) if asked else None,
    )  # fmt: skip


def test_what_was_used_stands_beside_what_was_asked_for() -> None:
    asked = {"walltime_s": 7200, "memory_mib": 8192, "cores": 1}
    attempts = [
        usage("a", 3600, 4096, 60.0, **asked),
        usage("a", 720, 2048, 600.0, **asked),
        usage("b", 1800, 2048, 120.0, **asked),
        usage("c", 100, 500, stage="curriculum"),
    ]
    normal, curriculum = efficiencies(attempts)
    assert (normal.attempts, normal.runs, normal.queue_s) == (3, 2, 120.0)
    assert (normal.wall_s, normal.rss_mib) == (1800, 4096)
    assert (normal.walltime_share, normal.memory_share) == (0.25, 0.25)
    assert normal.wasted_gib_hours == pytest.approx(4 * 1.0 + 6 * 0.2 + 6 * 0.5)
    assert (curriculum.stage, curriculum.walltime_share, curriculum.wasted_gib_hours) == ("curriculum", None, 0.0)
    assert efficiencies(attempts, "curriculum") == [curriculum]


def test_how_busy_gpus_were_is_that_of_the_attempt_in_the_middle() -> None:
    known = [usage("a", 60, 100).model_copy(update={"gpu_busy": share}) for share in (0.2, 0.9, 0.4, None)]
    (found,) = efficiencies(known)
    assert found.gpu_busy == 0.4
    assert "40%" in found.cells()
