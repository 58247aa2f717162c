import json

import pytest

from kdgat.cluster.usage import Asked, Usage, append_usage
from tests.support.command_line import kdgat


@pytest.fixture
def runs(tmp_path):
    asked = Asked(walltime_s=7200, memory_mib=8192, cores=1)
    common = {"family": "can", "device": "cpu", "wall_s": 3600.0, "rss_mib": 2048, "queue_s": 60.0}
    for run, stage, what in (("a", "normal", asked), ("b", "normal", asked), ("a", "evaluation", None)):
        usage = Usage(time=0.0, run=f"{run}/{stage}", stage=stage, asked=what, **common)
        append_usage(tmp_path / "runs" / "history" / f"{run}.jsonl", usage)
    return tmp_path / "runs"


def test_each_stage_shows_what_it_used_of_what_it_asked_for(runs):
    lines = {line.split("  ")[0]: line.split() for line in kdgat("runs", "usage", runs, status=0).stdout.splitlines()}
    assert lines["can normal"][2:] == ["cpu", "2", "2", "01:00:00", "50%", "2048M", "25%", "12.0", "00:01:00"]
    assert lines["can evaluation"][2:] == ["cpu", "1", "1", "01:00:00", "2048M"]


def test_what_no_attempt_says_anything_of_has_no_column(runs):
    shown = kdgat("runs", "usage", runs, status=0).stdout
    assert "median walltime" in shown
    assert "GPU busy" not in shown
    other = kdgat("runs", "usage", runs, "--stage", "evaluation", status=0).stdout
    assert all(heading not in other for heading in ("of asked", "GiB h unused", "in the queue"))


def test_it_is_found_from_the_folder_above(runs):
    assert "can normal" in kdgat("runs", "usage", folder=runs.parent, status=0).stdout


def test_one_stage_is_printed_as_json(runs):
    (found,) = json.loads(kdgat("runs", "usage", runs, "--stage", "normal", "--json", status=0).stdout)
    assert (found["attempts"], found["walltime_share"], found["wasted_gib_hours"]) == (2, 0.5, 12.0)


def test_a_stage_without_attempts_says_so(runs):
    done = kdgat("runs", "usage", runs, "--family", "trees", "--stage", "normal", status=0)
    assert "no attempt at trees normal is noted" in done.stdout
